//! What is known about one filesystem: which of its files wait, what is under way there, and how
//! callers are served. Pure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::early::Waves;
use crate::file_id::FileId;
use crate::group::{Group, Service};
use crate::policy::Policy;
use crate::strategy::Costs;
use crate::system::Failure;

/// What cannot be committed is looked at again after so long: somebody may just have had no descriptor
/// left to look with, or has mounted another filesystem under the number. Chosen: it takes some 20 us.
const LOOKS: Duration = Duration::from_secs(1);

/// One filesystem.
#[derive(Debug, Default)]
pub(crate) struct Filesystem {
    /// Files that can be synced now, first come first,
    pub(crate) ready: VecDeque<FileId>,
    /// and those who asked for them.
    pub(crate) callers: usize,
    /// Whether it can be committed, once that is known: see [`System::commits`](crate::System).
    pub(crate) commits: Option<bool>,
    /// When that is to be looked at again, where it cannot be now.
    pub(crate) looks_again: Option<Instant>,
    pub(crate) committing: bool,
    /// When the last commit ended.
    pub(crate) committed: Option<Instant>,
    /// Write-back is being begun: syncs wait for that.
    pub(crate) beginning: bool,
    /// Files that are being synced, by themselves or by a commit,
    pub(crate) syncing: usize,
    /// and those who asked for them, but for bulks.
    pub(crate) serving: usize,
    /// How the flush of its device failed the last time, and how many of all devices had by then.
    pub(crate) lost: Option<(u64, Arc<Failure>)>,
    pub(crate) costs: Costs,
    pub(crate) waves: Waves,
    pub(crate) group: Group,
}

/// What a job has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Of the filesystem, not of one file.
    pub(crate) was_commit: bool,
    /// So many files were synced,
    pub(crate) files: usize,
    /// for so many who had asked,
    pub(crate) askers: usize,
    /// callers, each with one file or with a batch,
    pub(crate) callers: usize,
    /// and so many of them were of a wave.
    pub(crate) waved: usize,
    /// The caller did it, on his own thread.
    pub(crate) by_caller: bool,
}

/// A caller may sync his file himself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// Others do, too.
    pub(crate) beside: bool,
    /// Flushes of devices that had failed before.
    pub(crate) since: u64,
}

impl Filesystem {
    /// Whether nothing is under way, where somebody has come.
    pub(crate) fn note_idle(&mut self, now: Instant) -> bool {
        let idle = self.syncing == 0 && self.ready.is_empty() && !self.group.gathers();
        if idle {
            self.group.idle(now);
        }
        idle
    }

    /// How those are served who come at the same time. Where much waits to be written, of this
    /// filesystem or another one, commits of it are not tried, and given up once one was dear.
    pub(crate) fn service(&self, policy: Policy) -> Service {
        if !self.may_commit() {
            return Service::Beside;
        }
        let doubtful = self.group.is_trial() || self.costs.was_dear();
        self.group.service(Policy { crowded: policy.crowded && doubtful, ..policy })
    }

    /// Notes whether it can be committed; for good, if nothing `may_change` that.
    pub(crate) fn note_commits(&mut self, commits: bool, may_change: bool) {
        self.commits = Some(commits);
        self.looks_again = (!commits && may_change).then(|| Instant::now() + LOOKS);
    }

    /// Whether that need not be looked at.
    pub(crate) fn is_known(&self) -> bool {
        self.commits.is_some() && self.looks_again.is_none_or(|again| Instant::now() < again)
    }

    /// Whether nobody wants anything of it: what is known of it can be forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        let waits = !self.ready.is_empty() || self.group.gathers();
        let works = self.committing || self.beginning || self.syncing > 0;
        !waits && !works && self.lost.is_none()
    }

    /// Whether it is known that it can be committed.
    pub(crate) fn may_commit(&self) -> bool {
        self.commits == Some(true)
    }

    /// Whether a file can be synced at once, beside those that are, and before those that wait:
    /// whoever syncs one file is not behind another's thousands.
    pub(crate) fn may_begin_beside(&self, policy: Policy) -> bool {
        self.service(policy) == Service::Beside && !self.group.gathers()
    }

    /// It is.
    pub(crate) fn begin_alone(&mut self) {
        self.syncing += 1;
        self.serving += 1;
    }

    /// One more file waits.
    pub(crate) fn push(&mut self, id: FileId, callers: usize) {
        self.ready.push_back(id);
        self.callers += callers;
    }

    /// One that does not wait any more is being synced.
    pub(crate) fn begin(&mut self, callers: usize) {
        self.callers -= callers;
        self.serving += callers;
        self.syncing += 1;
    }

    /// A file waits no longer, if it did.
    pub(crate) fn forget(&mut self, id: FileId, callers: usize) {
        let waiting = self.ready.len();
        self.ready.retain(|ready| *ready != id);
        if self.ready.len() < waiting {
            self.callers -= callers;
        }
    }

    /// Those that wait and can be part of a commit. Of what is no file of the filesystem's that
    /// would write nothing.
    pub(crate) fn take_plain(&mut self) -> Vec<FileId> {
        let ready = std::mem::take(&mut self.ready);
        let (taken, left) = ready.into_iter().partition(|id| id.is.is_of_filesystem());
        self.ready = left;
        Vec::from(taken)
    }

    /// Files have been synced, in so long.
    pub(crate) fn end_work(&mut self, work: Work, took: Duration, policy: Policy, now: Instant) {
        let Work { was_commit, files, askers, callers, waved, .. } = work;
        self.syncing -= files;
        self.serving -= callers;
        if waved > 0 {
            self.waves.end(waved, !was_commit, now);
        }
        let others = self.serving + self.callers;
        if callers > 0 {
            // Of a batch only its caller: by itself each of its files would be an answer.
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
            // Beside a commit it waits for the same journal.
            self.costs.note_file(took);
        }
    }

    /// Whether the next group is put off, and for how long at most.
    pub(crate) fn begin_gather(&mut self, policy: Policy) -> Option<Duration> {
        if self.syncing > 0 || self.service(policy) == Service::Beside {
            return None;
        }
        self.group.begin_gather(self.callers, self.costs.commit()?)
    }

    /// The next group is put off while others are synced side by side, once.
    pub(crate) fn hold(&mut self) -> Option<Duration> {
        if self.syncing == 0 {
            self.group.release();
            return None;
        }
        self.group.hold(self.costs.commit().or(self.costs.file()).unwrap_or_default())
    }

    /// Whether it is put off no longer.
    pub(crate) fn has_gathered(&self) -> bool {
        !self.group.gathers()
            || self.group.is_enough(self.callers)
            || (self.group.holds() && self.syncing == 0)
    }

    /// A line: its device, what waits, what its ways cost.
    #[cfg(feature = "control")]
    pub(crate) fn told(&self, device: u64, policy: Policy) -> String {
        // Elsewhere than on Linux it is of another type.
        #[allow(clippy::unnecessary_cast)]
        let device = device as rustix::fs::Dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let Self { ready, committing, costs, waves, .. } = self;
        let (waiting, committing) = (ready.len(), u8::from(*committing));
        let (costs, early) = (costs.told(), u8::from(waves.is_early()));
        let service = self.service(policy).name();
        format!(
            "{major}:{minor} waiting {waiting} committing {committing} {costs} early {early} \
             service {service}"
        )
    }
}
