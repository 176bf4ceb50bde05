//! What has been done so far.

use std::fmt;

use crate::sync::{AtomicU64, Ordering};

/// What has been done so far. Each number is exact; together they may not be from the same instant.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let files: Vec<_> = (0..3).map(|_| tempfile::tempfile()).collect::<Result<_, _>>()?;
/// for verdict in durable.fsync_many(&files).wait() {
///     verdict?;
/// }
/// let counters = durable.counters();
/// assert_eq!((counters.asked, counters.files + counters.committed, counters.failed), (3, 3, 0));
/// assert!(counters.flushes_saved() <= 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Syncs asked for.
    pub asked: u64,
    /// Of these, syncs answered by a sync that other callers had asked for too.
    pub shared: u64,
    /// Files synced one by one, also because a commit was not enough or not to be had.
    pub files: u64,
    /// Files whose write-back was begun before their turn to be synced came.
    pub early: u64,
    /// Commits of a filesystem.
    pub commits: u64,
    /// Files made durable by these commits.
    pub committed: u64,
    /// Syncs that failed, including those that found an earlier failure.
    pub failed: u64,
    /// How long syncs took, in nanoseconds: from when the sync was first asked for until its
    /// verdict.
    pub latency_ns: Histogram,
    /// How many callers each sync or commit answered.
    pub batches: Histogram,
}

impl Counters {
    /// Flushes of the device that were saved: one for each requested sync that was answered by a
    /// sync or a commit which also answered others.
    pub fn flushes_saved(&self) -> u64 {
        self.shared + self.committed.saturating_sub(self.commits)
    }
}

/// How many values there were of each size, in buckets that double in size.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let file = tempfile::tempfile()?;
/// durable.fsync_and_wait(&file)?;
/// let latency_ns = durable.counters().latency_ns;
/// let (below, count) = latency_ns.buckets().next().ok_or("nothing was measured")?;
/// assert_eq!((count, latency_ns.count(), latency_ns.quantile(0.99)), (1, 1, Some(below)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

/// The last one is for 2^38 and more: about five minutes, in nanoseconds.
const BUCKETS: usize = 40;

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A power of two below which the share `quantile` (0 to 1) of all values lies; `None` if there
    /// are no values.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * quantile.clamp(0.0, 1.0)).max(1.0);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        })?;
        Some(1 << bucket)
    }

    /// The buckets that are not empty: the upper bound of each (exclusive), and the number of its
    /// values.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(bucket, count)| (1 << bucket, *count))
    }
}

/// The buckets that are not empty.
impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) asked: AtomicU64,
    pub(crate) shared: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) early: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) committed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) latency_ns: Tally,
    pub(crate) batches: Tally,
}

/// A [`Histogram`] that is being made.
#[derive(Debug)]
pub(crate) struct Tally([AtomicU64; BUCKETS]);

impl Default for Tally {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Tally {
    pub(crate) fn note(&self, figure: u64) {
        let bucket = (u64::BITS - figure.leading_zeros()).min(BUCKETS as u32 - 1);
        add(&self.0[bucket as usize], 1);
    }

    fn read(&self) -> Histogram {
        Histogram { counts: std::array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed)) }
    }
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
            early: read(&self.early),
            commits: read(&self.commits),
            committed: read(&self.committed),
            failed: read(&self.failed),
            latency_ns: self.latency_ns.read(),
            batches: self.batches.read(),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn figures_fall_into_buckets_that_double() {
        let tally = Tally::default();
        for figure in [0, 1, 1, 2, 3, 1000, u64::MAX] {
            tally.note(figure);
        }
        let histogram = tally.read();
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets, [(1, 1), (2, 2), (4, 2), (1024, 1), (1 << 39, 1)]);
        assert_eq!(histogram.count(), 7);
        assert_eq!((histogram.quantile(0.5), histogram.quantile(1.0)), (Some(4), Some(1 << 39)));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
