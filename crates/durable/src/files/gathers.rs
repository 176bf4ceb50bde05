//! Files for which several callers ask for the same sync, and those among them whose next sync is
//! put off until these callers have come ([`gather`](crate::files::gather)).

use std::collections::VecDeque;
use std::time::Duration;

use crate::files::file_id::FileId;

/// At most this many files' syncs are put off at a time, each by a thread that waits: with more
/// there is enough to do.
const PUT_OFF_MAX: usize = 4;

/// Callers are known for at most this many files. Chosen: more than a program has that many callers
/// wait for.
const SHARED_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    /// The latest last.
    shared: VecDeque<FileId>,
    /// How many files' syncs are put off.
    put_off: usize,
    /// Those of them whose jobs are still to begin.
    jobs: Vec<(FileId, Duration)>,
    /// One of them has all the callers that it was put off for.
    has_come: bool,
}

impl Gathers {
    /// Notes a change: whether several callers ask for a file. Returns the file for which that must
    /// be forgotten if there are too many.
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

    /// A sync that was put off is no longer.
    pub(crate) fn end(&mut self) {
        self.put_off -= 1;
    }

    /// A file whose callers a job is to wait for, and for how long at most.
    pub(crate) fn next_job(&mut self) -> Option<(FileId, Duration)> {
        self.jobs.pop()
    }

    /// Whether there is such a job.
    pub(crate) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Notes that a caller has come; `all`: it was the last that a put-off sync waited for.
    pub(crate) fn note_come(&mut self, all: bool) {
        self.has_come |= all;
    }

    /// Whether the last caller has come to any of them, and nobody was told so far.
    pub(crate) fn say(&mut self) -> bool {
        std::mem::take(&mut self.has_come)
    }
}
