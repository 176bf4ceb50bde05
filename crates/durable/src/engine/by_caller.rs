//! Syncs on the thread of the caller: of a file that nobody else syncs, of a file that cannot be
//! kept for later, and through descriptions that belong to the caller.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use homing_runtime::blocking;

use crate::counters::add;
use crate::durable::Kind;
use crate::engine::commit;
use crate::engine::{Engine, nanoseconds};
use crate::files::Ended;
use crate::files::file_id::{FileId, Is};
use crate::files::filesystem::{Alone, Work};
use crate::synced::Verdict;
use crate::system::Failure;
use crate::system::description::Description;

/// The longest pause between two looks whether a file that cannot be kept is free.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(16);

impl Engine {
    /// Syncs a file on this thread if nothing of its filesystem is under way: it takes no longer
    /// than the system call. A caller that `waits` anyway also does so beside syncs that this one
    /// may run beside. Otherwise returns `None`.
    pub(crate) fn alone(
        self: &Arc<Self>,
        file: &impl Description,
        kind: Kind,
        waits: bool,
    ) -> Option<Verdict> {
        let Ok(id) = FileId::of(file.file()) else {
            return Some(self.sync_here(file, kind, self.losses()));
        };
        self.meet(id.device, file.file());
        let policy = self.policy();
        let begun = self.files().begin_alone(id, policy, waits);
        if !matches!(begun, Ok(None)) {
            add(&self.counts.asked, 1);
        }
        let Alone { beside, since } = match begun {
            Err(error) => return Some(self.failed(Err(error))),
            Ok(None) => return None,
            Ok(Some(alone)) => alone,
        };
        add(&self.counts.files, 1);
        let began = Instant::now();
        let verdict = self.sync_now(id, file.file(), kind);
        let took = began.elapsed();
        self.counts.latency_ns.note(nanoseconds(took));
        self.counts.batches.note(1);
        let (Ended { verdict, in_vain }, more) = {
            let mut files = self.files();
            files.note_ended(id, 1, took);
            let (was_commit, by_caller) = (false, true);
            let work = Work { was_commit, files: 1, askers: 1, callers: 1, waved: 0, by_caller };
            let verdict = commit::unless_lost(&files, since, (id, file.file(), kind), verdict);
            let ended = files.end(id, verdict, || file.keep().ok());
            files.end_job(id.device, work, took, policy);
            (ended, files.waits())
        };
        self.tell(in_vain, &verdict);
        if beside {
            self.crowd.look(&*self.system);
        }
        if more {
            self.go_on();
        }
        Some(self.failed(verdict))
    }

    /// Syncs a file that the engine cannot keep, on the caller's thread, when nobody else does.
    /// `since` is [`Engine::losses`] when the caller asked. A failure is sticky all the same.
    pub(crate) fn sync_here(
        self: &Arc<Self>,
        description: &impl Description,
        kind: Kind,
        since: u64,
    ) -> Verdict {
        let (file, asked_at) = (description.file(), Instant::now());
        add(&self.counts.files, 1);
        let known = FileId::of(file);
        let Ok(id) = known else {
            // Nobody knows which file this is, so a failure cannot be kept for it. Nor does anybody
            // know that all is well, so this is an error even if the sync succeeds.
            let nameless = FileId { device: 0, inode: 0, is: Is::Other };
            let unknown = known.map_err(|error| Failure { operation: "statx", error }).map(drop);
            let synced = blocking(|| self.system.sync(file, kind)).and(unknown);
            return self.failed(synced.map_err(|e| commit::error(nameless, file, kind, &e)));
        };
        // Of two syncs of the file side by side, only one would hear of a failure. The other may be
        // one of the caller's own batch, which has not begun: so it is begun first.
        self.go_on();
        let (mut has_claim, mut rest) = (false, Duration::from_millis(1));
        while !self.files().begin_here(id, &mut has_claim) {
            // The pauses grow, because many callers may wait for a slow disk.
            blocking(|| std::thread::sleep(rest));
            rest = (2 * rest).min(LOOK_AGAIN_MAX);
        }
        let verdict = self.sync_now(id, file, kind);
        let verdict = commit::unless_lost(&self.files(), since, (id, file, kind), verdict);
        let Ended { verdict, in_vain } = self.files().end(id, verdict, || description.keep().ok());
        self.tell(in_vain, &verdict);
        self.go_on();
        self.counts.latency_ns.note(nanoseconds(asked_at.elapsed()));
        self.counts.batches.note(1);
        self.failed(verdict)
    }

    /// Syncs a file through a description that nobody else syncs through meanwhile, on the caller's
    /// thread, beside whatever else is under way. `since` is [`Engine::losses`] when the callers
    /// asked.
    pub(crate) fn sync_own(&self, id: FileId, file: &Arc<File>, since: u64) -> Verdict {
        if let Some(error) = self.files().failure(id) {
            return self.failed(Err(error));
        }
        add(&self.counts.files, 1);
        let verdict = self.sync_now(id, file, Kind::Data);
        let verdict = commit::unless_lost(&self.files(), since, (id, file, Kind::Data), verdict);
        let verdict = self.end_own(id, verdict, || Some(Arc::clone(file)));
        self.failed(verdict)
    }

    fn sync_now(&self, id: FileId, file: &File, kind: Kind) -> Verdict {
        let synced = blocking(|| commit::file(&*self.system, id, file, kind));
        synced.map_err(|failure| commit::error(id, file, kind, &failure))
    }

    /// As [`Files::end_own`](crate::files::Files::end_own), and tells the callers that wait in
    /// vain.
    pub(crate) fn end_own(
        &self,
        id: FileId,
        verdict: Verdict,
        keep: impl FnOnce() -> Option<Arc<File>>,
    ) -> Verdict {
        let Ended { verdict, in_vain } = self.files().end_own(id, verdict, keep);
        self.tell(in_vain, &verdict);
        verdict
    }
}
