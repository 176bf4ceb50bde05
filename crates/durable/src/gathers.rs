//! Files for which several callers ask for the same sync, and those among them whose next sync is
//! put off until these callers have come ([`gather`](crate::gather)).

use std::collections::VecDeque;
use std::time::Duration;

use crate::file_id::FileId;

/// So many files' syncs are put off at a time, each by a thread that waits: with more there is enough to do.
const PUT_OFF_MAX: usize = 4;

/// Of so many files it is known who asks for them. Chosen: more than a program has that many wait for.
const SHARED_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    /// The latest last.
    shared: VecDeque<FileId>,
    /// How many are put off,
    put_off: usize,
    /// and the jobs of these that are still to begin.
    jobs: Vec<(FileId, Duration)>,
    /// One of them has those for whom it was.
    has_come: bool,
}

impl Gathers {
    /// Whether it has changed that several ask for a file. Of whom that is to be forgotten, as there are too many.
    pub(crate) fn note(&mut self, id: FileId, is_shared: bool) -> Option<FileId> {
        if !is_shared {
            self.shared.retain(|shared| *shared != id);
            return None;
        }
        self.shared.push_back(id);
        if self.shared.len() > SHARED_MAX { self.shared.pop_front() } else { None }
    }

    /// Whether one more may be put off.
    pub(crate) fn may_put_off(&self) -> bool {
        self.put_off < PUT_OFF_MAX
    }

    /// A file's next sync is put off, for so long at most.
    pub(crate) fn put_off(&mut self, id: FileId, limit: Duration) {
        self.put_off += 1;
        self.jobs.push((id, limit));
    }

    /// One that was put off is no longer.
    pub(crate) fn end(&mut self) {
        self.put_off -= 1;
    }

    /// One that is to be waited for by a job.
    pub(crate) fn next_job(&mut self) -> Option<(FileId, Duration)> {
        self.jobs.pop()
    }

    /// Whether there is one.
    pub(crate) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Somebody has come to one that is put off; `all`: he was the last.
    pub(crate) fn note_come(&mut self, all: bool) {
        self.has_come |= all;
    }

    /// Whether the last has come to any of them, and that has not been said.
    pub(crate) fn say(&mut self) -> bool {
        std::mem::take(&mut self.has_come)
    }
}
