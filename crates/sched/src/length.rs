//! How long items run, learned as they complete. This decides how many a worker takes at once.

/// How much work a worker takes at once, in nanoseconds. Derived: about what waking another CPU
/// costs, so that nobody could have begun an item of the batch much earlier.
pub const BATCH_NS: u64 = 5_000;

/// How much work a worker takes at once when many items wait, in nanoseconds: going to the queue
/// for each item would cost the other workers more than it gains. Derived: the cache lines of a
/// queue that several workers empty cost about 0.3 us each time, so under a hundredth of this.
pub const BACKLOG_BATCH_NS: u64 = 50_000;

/// This many batches must wait for that: at least one for each CPU of the queue.
const BACKLOG_BATCHES: u32 = 16;

/// The most items a worker takes at once.
pub const BATCH_ITEMS_MAX: u32 = 32;

/// A running estimate of the length of a queue's items.
///
/// It rises at once and falls slowly (a sixteenth of the difference at a time): one long item among
/// short ones is reason enough to take few at a time for a while.
///
/// ```
/// use homing_sched::ItemLength;
///
/// let unknown = ItemLength::default();
/// assert_eq!(unknown.batch(100), 1, "nobody knows how long they are");
/// let short = unknown.complete(10_000, 10); // ten items in 10 us
/// assert!(short.batch(100) > 1, "several at once");
/// let long = short.complete(1_000_000, 1);
/// assert_eq!(long.batch(100), 1, "one long item is enough");
/// assert_eq!(ItemLength::from_ns(long.mean_ns()), long);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemLength {
    mean_ns: u64,
}

impl ItemLength {
    /// From [`ItemLength::mean_ns`], for use in an atomic.
    pub const fn from_ns(mean_ns: u64) -> Self {
        Self { mean_ns }
    }

    /// The estimate; 0 before anything was recorded.
    pub const fn mean_ns(self) -> u64 {
        self.mean_ns
    }

    /// Takes note that `items` items ran for `elapsed_ns` together.
    ///
    /// ```
    /// use homing_sched::ItemLength;
    ///
    /// let one_long = ItemLength::default().complete(1_000_000, 1);
    /// let later = one_long.complete(1_000, 1);
    /// assert!(later.mean_ns() < one_long.mean_ns(), "it falls");
    /// assert!(later.mean_ns() > 900_000, "but slowly");
    /// ```
    #[must_use]
    pub const fn complete(self, elapsed_ns: u64, items: u32) -> Self {
        if items == 0 {
            return self;
        }
        // At least 1: 0 means that nothing is known.
        let sample = elapsed_ns / items as u64 + 1;
        let mean_ns = if sample >= self.mean_ns {
            sample
        } else {
            self.mean_ns - (self.mean_ns - sample).div_ceil(16)
        };
        Self { mean_ns }
    }

    /// How many items to take at once if `waiting` wait.
    pub fn batch(self, waiting: u32) -> u32 {
        if self.mean_ns == 0 {
            return 1;
        }
        let share = u64::from(waiting / BACKLOG_BATCHES);
        let fit = (BATCH_NS / self.mean_ns).max(share.min(BACKLOG_BATCH_NS / self.mean_ns));
        fit.clamp(1, BATCH_ITEMS_MAX.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_slowly_and_shrink_at_once() {
        let mut length = ItemLength::default();
        assert_eq!(length.batch(0), 1, "nothing is known");
        length = length.complete(50, 1);
        assert_eq!(length.batch(0), BATCH_ITEMS_MAX);
        length = length.complete(1_000_000, 1);
        assert_eq!(length.batch(0), 1);
        let mut rounds = 0;
        while length.batch(0) < BATCH_ITEMS_MAX {
            length = length.complete(50, 1);
            rounds += 1;
        }
        assert!((50..300).contains(&rounds), "{rounds}");
        assert_eq!(length.complete(77, 0), length);
    }

    #[test]
    fn batches_of_longer_items_where_many_wait() {
        let length = ItemLength::from_ns(10_000);
        assert_eq!([0, 15, 32, 64, 100_000].map(|waiting| length.batch(waiting)), [1, 1, 2, 4, 5]);
        assert_eq!(ItemLength::from_ns(60_000).batch(100_000), 1);
    }
}
