//! What is known about one filesystem: which of its files wait, what is under way there, and how
//! callers are served. Pure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::choices::depth::Depth;
use crate::choices::early::Waves;
use crate::choices::group::{Group, Service};
use crate::choices::policy::Policy;
use crate::choices::strategy::Costs;
use crate::files::file_id::FileId;
use crate::files::ready::Ready;
use crate::system::Failure;

/// A filesystem that cannot be committed is looked at again after this long: there may have been no
/// descriptor left to look with, or another filesystem may have been mounted under the number.
/// Chosen: looking takes some 20 us.
const LOOKS: Duration = Duration::from_secs(1);

/// One filesystem.
#[derive(Debug, Default)]
pub(crate) struct Filesystem {
    /// Files that can be synced now.
    pub(crate) ready: Ready,
    /// How many callers asked for them.
    pub(crate) callers: usize,
    /// Whether it can be committed, once that is known: see [`System::commits`](crate::System).
    pub(crate) commits: Option<bool>,
    /// When that is to be looked at again, if it cannot be committed now.
    pub(crate) looks_again: Option<Instant>,
    pub(crate) committing: bool,
    /// When the last commit ended.
    pub(crate) committed: Option<Instant>,
    /// The write-back of a wave is being begun: syncs wait for that.
    pub(crate) beginning: bool,
    /// How many jobs use its disk.
    pub(crate) running: usize,
    /// How many callers sync a file of it themselves.
    pub(crate) alone: usize,
    /// How many files are being synced, by themselves or by a commit.
    pub(crate) syncing: usize,
    /// How many callers asked for them, except for bulks.
    pub(crate) serving: usize,
    /// How many flushes of all devices had failed when that of its device failed the last time, and
    /// how it failed.
    pub(crate) lost: Option<(u64, Arc<Failure>)>,
    pub(crate) costs: Costs,
    /// How many jobs do best.
    pub(crate) best_depth: Depth,
    pub(crate) waves: Waves,
    pub(crate) group: Group,
}

/// What a job has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// It was a commit of the filesystem, not a sync of one file.
    pub(crate) was_commit: bool,
    /// How many files were synced.
    pub(crate) files: usize,
    /// How many requests that answered.
    pub(crate) askers: usize,
    /// How many callers that answered, each with one file or with a batch.
    pub(crate) callers: usize,
    /// How many of the files were of a wave.
    pub(crate) waved: usize,
    /// The caller did it, on its own thread.
    pub(crate) by_caller: bool,
}

/// Leave for a caller to sync its file itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// Other syncs are under way, or wait.
    pub(crate) beside: bool,
    /// How many flushes of devices had failed before.
    pub(crate) since: u64,
}

impl Filesystem {
    /// Notes that a caller has come. Returns whether nothing is under way, or waits.
    pub(crate) fn note_idle(&mut self, now: Instant) -> bool {
        let idle = self.syncing == 0 && self.ready.is_empty() && !self.group.gathers();
        if idle {
            self.group.idle(now);
        }
        idle
    }

    /// How callers that come at the same time are served. While much waits to be written, on this
    /// filesystem or another one, commits of it are not tried, and are given up once one took too
    /// long.
    pub(crate) fn service(&self, policy: Policy) -> Service {
        if !self.may_commit() {
            return Service::Beside;
        }
        let doubtful = self.group.is_trial() || self.costs.was_dear();
        let unwritten = if doubtful { policy.unwritten } else { 0 };
        self.group.service(Policy { unwritten, ..policy })
    }

    /// How many jobs it may have, and as many again on the threads of callers.
    pub(crate) fn depth(&self, policy: Policy) -> usize {
        policy.depth.unwrap_or_else(|| self.best_depth.now())
    }

    /// Whether another job may begin. There may be only `one` if too many are under way elsewhere.
    pub(crate) fn has_room(&self, policy: Policy, one: bool) -> bool {
        self.running < if one { 1 } else { self.depth(policy) }
    }

    /// Notes whether it can be committed; for good, if nothing `may_change` that.
    pub(crate) fn note_commits(&mut self, commits: bool, may_change: bool) {
        self.commits = Some(commits);
        self.looks_again = (!commits && may_change).then(|| Instant::now() + LOOKS);
    }

    /// Whether it is known if it can be committed, and that need not be looked at now.
    pub(crate) fn is_known(&self) -> bool {
        self.commits.is_some() && self.looks_again.is_none_or(|again| Instant::now() < again)
    }

    /// Whether nobody wants anything of it, so that what is known of it can be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        let waits = !self.ready.is_empty() || self.group.gathers();
        let works = self.committing || self.beginning || self.syncing > 0;
        !waits && !works && self.lost.is_none()
    }

    /// Whether it is known that it can be committed.
    pub(crate) fn may_commit(&self) -> bool {
        self.commits == Some(true)
    }

    /// Whether a file can be synced at once, beside those that are being synced, and before those
    /// that wait: a caller that syncs one file does not stand behind another's thousands.
    pub(crate) fn may_begin_beside(&self, policy: Policy) -> bool {
        self.service(policy) == Service::Beside && !self.group.gathers()
    }

    /// Notes that a caller syncs its file itself.
    pub(crate) fn begin_alone(&mut self) {
        self.syncing += 1;
        self.serving += 1;
    }

    /// One more file waits.
    pub(crate) fn push(&mut self, id: FileId, callers: usize) {
        self.ready.push(id, callers > 0);
        self.callers += callers;
    }

    /// A file does not wait any more: it is being synced.
    pub(crate) fn begin(&mut self, callers: usize) {
        self.callers -= callers;
        self.serving += callers;
        self.syncing += 1;
    }

    /// Whether the files that wait should be committed at once, where `depth` can be synced side by
    /// side.
    pub(crate) fn prefers_commit(&mut self, policy: Policy, depth: usize) -> bool {
        if self.committing {
            // Nothing can be tried beside it.
            return self.may_commit() && self.costs.is_worth(policy, self.ready.len(), depth);
        }
        let rested = self.committed.is_none_or(|ended| self.costs.is_rested(ended.elapsed()));
        self.may_commit() && self.costs.prefers_commit(policy, self.ready.len(), depth, rested)
    }

    /// Takes a file of a caller that asked for one and would otherwise wait with a bulk for the
    /// next commit. If there are so many of these callers that they are worth a commit, they wait.
    pub(crate) fn take_single(&mut self, policy: Policy, depth: usize) -> Option<FileId> {
        let singles = self.ready.singles();
        let is_beside_bulk = singles < self.ready.len();
        let passes = is_beside_bulk && !self.costs.is_worth(policy, singles, depth);
        if passes { self.ready.pop_single() } else { None }
    }

    /// A file waits no longer, if it did.
    pub(crate) fn forget(&mut self, id: FileId, callers: usize) {
        if self.ready.remove(id) {
            self.callers -= callers;
        }
    }

    /// Notes that a job has synced files, and how long it took.
    pub(crate) fn end_work(&mut self, work: Work, took: Duration, policy: Policy, now: Instant) {
        let Work { was_commit, files, askers, callers, waved, .. } = work;
        self.syncing -= files;
        self.serving -= callers;
        if waved > 0 {
            self.waves.end(waved, !was_commit, now);
        }
        let others = self.serving + self.callers;
        if callers > 0 {
            // A batch counts once, for its caller: otherwise each of its files would be an answer.
            let answers = callers + askers.saturating_sub(files);
            self.group.answered(callers, answers, others, self.service(policy), now);
        } else if others == 0 {
            self.group.forget_callers();
        }
        let was_beside = self.committed.is_some_and(|ended| ended + took > now);
        if was_commit {
            self.committing = false;
            self.committed = Some(now);
            self.costs.note_commit(took);
        } else if !self.committing && !was_beside {
            // Only if no commit ran beside the sync: it would have waited for the same journal.
            self.costs.note_file(took);
        }
        if policy.depth.is_some() {
            self.best_depth.overrule(self.running, now);
        } else if was_commit || self.committing || was_beside {
            self.best_depth.pause(now);
        } else {
            self.best_depth.note(self.syncing + self.ready.len(), took, now);
        }
    }

    /// Whether the next group is put off, and for how long at most.
    pub(crate) fn begin_gather(&mut self, policy: Policy) -> Option<Duration> {
        if self.syncing > 0 || self.service(policy) == Service::Beside {
            return None;
        }
        self.group.begin_gather(self.callers, self.costs.commit()?)
    }

    /// Puts the next group off while files are synced side by side, once. Returns for how long at
    /// most.
    pub(crate) fn hold(&mut self) -> Option<Duration> {
        if self.syncing == 0 {
            self.group.release();
            return None;
        }
        self.group.hold(self.costs.commit().or(self.costs.file()).unwrap_or_default())
    }

    /// Whether the next group need not be put off any longer.
    pub(crate) fn has_gathered(&self) -> bool {
        !self.group.gathers()
            || self.group.is_enough(self.callers)
            || (self.group.holds() && self.syncing == 0)
    }

    /// A line: its device, what waits, what its ways cost.
    #[cfg(feature = "control")]
    pub(crate) fn told(&self, device: u64, policy: Policy) -> String {
        // On systems other than Linux it is of another type.
        #[allow(clippy::unnecessary_cast)]
        let device = device as rustix::fs::Dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let Self { ready, committing, costs, waves, .. } = self;
        let depth = self.depth(policy);
        let (waiting, committing) = (ready.len(), u8::from(*committing));
        let (costs, early) = (costs.told(), u8::from(waves.is_early()));
        let service = self.service(policy).name();
        format!(
            "{major}:{minor} waiting {waiting} committing {committing} {costs} depth {depth} \
             early {early} service {service}"
        )
    }
}
