//! What has been done so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// Each figure is exact; together they need not be of one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Syncs asked for.
    pub asked: u64,
    /// Of those, answered by a sync that somebody else had asked for too.
    pub shared: u64,
    /// Files synced one by one.
    pub files: u64,
    /// Commits of a filesystem.
    pub commits: u64,
    /// Files made durable by those.
    pub committed: u64,
    /// Syncs that failed, those counted in that found an earlier failure.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) asked: AtomicU64,
    pub(crate) shared: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) committed: AtomicU64,
    pub(crate) failed: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn read(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            asked: read(&self.asked),
            shared: read(&self.shared),
            files: read(&self.files),
            commits: read(&self.commits),
            committed: read(&self.committed),
            failed: read(&self.failed),
        }
    }
}
