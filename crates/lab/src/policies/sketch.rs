//! How often pages were asked for lately, approximately: a count-min sketch with counters of 4 bits
//! that are halved from time to time.
//!
//! G. Cormode, S. Muthukrishnan, "An improved data stream summary: the count-min sketch and its
//! applications", 2005; with the ageing of G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly
//! efficient cache admission policy", ACM Transactions on Storage 13(4), 2017.

use crate::policy::Page;

/// Counters for each page have this many rows.
const ROWS: usize = 4;
/// The greatest value of a counter of 4 bits.
const COUNT_MAX: u64 = 15;
/// Counters in a word.
const COUNTERS: u64 = 16;
/// The lower three bits of each counter.
const HALVES: u64 = 0x7777_7777_7777_7777;
/// The lowest bit of each counter.
const ODD: u64 = 0x1111_1111_1111_1111;
/// Odd numbers to multiply by, one for each row. Any would do.
const SEEDS: [u64; ROWS] =
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0xD6E8_FEB8_6659_FD93];

/// A sketch of frequencies.
#[derive(Debug)]
pub(super) struct Sketch {
    words: Vec<u64>,
    /// The index of a word is the upper bits of a hash, shifted by this.
    shift: u32,
    /// Increments since the last halving, about, and when the next one is due.
    size: usize,
    sample_size: usize,
}

impl Sketch {
    /// Makes a sketch for a cache of this many pages: 16 counters for each, and halving after ten
    /// times as many increments, as in Caffeine.
    pub(super) fn new(capacity: usize) -> Self {
        let len = capacity.next_power_of_two().max(8);
        Self {
            words: vec![0; len],
            shift: u64::BITS - len.trailing_zeros(),
            size: 0,
            sample_size: capacity.saturating_mul(10).max(10),
        }
    }

    /// How often the page was asked for lately; never too small, but for ageing.
    pub(super) fn count(&self, page: Page) -> u64 {
        let count = |row: usize| {
            let (word, offset) = self.place(page, row);
            (self.words[word] >> offset) & COUNT_MAX
        };
        (0..ROWS).map(count).min().unwrap_or(0)
    }

    /// The page is asked for.
    pub(super) fn increment(&mut self, page: Page) {
        let mut added = false;
        for row in 0..ROWS {
            let (word, offset) = self.place(page, row);
            if (self.words[word] >> offset) & COUNT_MAX < COUNT_MAX {
                self.words[word] += 1 << offset;
                added = true;
            }
        }
        if added {
            self.size += 1;
            if self.size >= self.sample_size {
                self.halve();
            }
        }
    }

    fn halve(&mut self) {
        let mut odd = 0;
        for word in &mut self.words {
            odd += (*word & ODD).count_ones() as usize;
            *word = (*word >> 1) & HALVES;
        }
        // The halves that odd counters lose are subtracted, as a mean over the rows.
        self.size = (self.size - odd / ROWS) / 2;
    }

    /// The word and the bit at which a page's counter in a row begins.
    fn place(&self, page: Page, row: usize) -> (usize, u64) {
        let hash = (u64::from(page) + 1).wrapping_mul(SEEDS[row]);
        let hash = (hash ^ (hash >> 32)).wrapping_mul(SEEDS[(row + 1) % ROWS]);
        ((hash >> self.shift) as usize, (hash % COUNTERS) * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_small_until_they_are_halved() {
        let mut sketch = Sketch::new(64);
        for page in 0..40_u32 {
            for _ in 0..=page % 15 {
                sketch.increment(page);
            }
        }
        let counts: Vec<_> = (0..40).map(|page| sketch.count(page)).collect();
        let short = (0..40_u32).find(|page| counts[*page as usize] < u64::from(page % 15 + 1));
        assert_eq!(short, None, "{counts:?}");
        let exact = (0..40_u32).filter(|page| counts[*page as usize] == u64::from(page % 15 + 1));
        assert!(exact.count() > 30, "{counts:?}");
        sketch.halve();
        for page in 0..40 {
            assert_eq!(sketch.count(page), counts[page as usize] / 2);
        }
    }

    #[test]
    fn counters_end_at_15_and_age() {
        let mut sketch = Sketch::new(1000);
        for _ in 0..100 {
            sketch.increment(7);
        }
        assert_eq!(sketch.count(7), 15);
        assert_eq!(sketch.size, 15);
        for page in 100..100 + 10_000 {
            sketch.increment(page);
        }
        assert!(sketch.count(7) < 15 && sketch.size < 10_000);
    }
}
