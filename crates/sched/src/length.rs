//! How long items run, learned as they complete: it decides how many are taken at once.

/// How much work a worker takes at once, in nanoseconds. Derived: about what waking another CPU
/// costs, so that nobody could have begun an item of the batch much earlier.
pub const BATCH_NS: u64 = 5_000;

/// The most items a worker takes at once.
pub const BATCH_ITEMS_MAX: u32 = 32;

/// A running estimate of the length of a queue's items.
///
/// It rises at once and falls slowly (a sixteenth of the difference at a time): one long item
/// among short ones is reason enough to take few at a time for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemLength {
    mean_ns: u64,
}

impl ItemLength {
    /// From [`ItemLength::mean_ns`]: for keeping it in an atomic.
    pub const fn from_ns(mean_ns: u64) -> Self {
        Self { mean_ns }
    }

    /// The estimate; 0 before anything was recorded.
    pub const fn mean_ns(self) -> u64 {
        self.mean_ns
    }

    /// Takes note that `items` items ran for `elapsed_ns` together.
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

    /// How many items to take at once.
    pub const fn batch(self) -> u32 {
        if self.mean_ns == 0 {
            return 1;
        }
        let fit = BATCH_NS / self.mean_ns;
        if fit == 0 {
            1
        } else if fit > BATCH_ITEMS_MAX as u64 {
            BATCH_ITEMS_MAX
        } else {
            fit as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_slowly_and_shrink_at_once() {
        let mut length = ItemLength::default();
        assert_eq!(length.batch(), 1, "nothing is known");
        length = length.complete(50, 1);
        assert_eq!(length.batch(), BATCH_ITEMS_MAX);
        length = length.complete(1_000_000, 1);
        assert_eq!(length.batch(), 1);
        let mut rounds = 0;
        while length.batch() < BATCH_ITEMS_MAX {
            length = length.complete(50, 1);
            rounds += 1;
        }
        assert!((50..300).contains(&rounds), "{rounds}");
        assert_eq!(length.complete(77, 0), length);
    }
}
