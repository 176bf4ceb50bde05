//! How long reading takes from a backing, and so what a hit saves.

use std::time::Instant;

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::Relaxed;

/// The time for a page before any is measured: that of a disk.
const PAGE_NS: u32 = 1_000_000;
/// The stored time approaches what nine reads in ten do not exceed: a longer read raises it by an
/// eighth, a shorter one lowers it by a 64th. So a backing that has to fetch every tenth page from
/// a disk counts as a disk, and one whose readers now and then lose their CPU does not.
const RAISE: u32 = 8;
const LOWER: u32 = 64;
/// Longer runs are not measured: a page takes less time in them than when it is read alone.
const RUN_MAX: u64 = 8;
/// The time for putting a page in and another one out: bookkeeping, and a copy. Measured on one
/// machine.
const BOOKS_NS: usize = 250;
const COPIED_BYTES_PER_NS: usize = 8;
/// The highest price, as a share of what a hit saves.
const PRICE_MAX: f32 = 0.5;

/// The time for a page, in nanoseconds. Each read that misses writes it, so it has its own cache
/// line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ReadTime(AtomicU32);

impl Default for ReadTime {
    fn default() -> Self {
        Self(AtomicU32::new(PAGE_NS))
    }
}

impl ReadTime {
    /// Runs `read`, which reads this many pages, and takes its time.
    pub(super) fn of<T, E>(&self, pages: u64, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        // There is no time in a model.
        if cfg!(shuttle) || !(1..=RUN_MAX).contains(&pages) {
            return read();
        }
        let begin = Instant::now();
        let result = read();
        if result.is_ok() {
            self.learn(begin.elapsed().as_nanos() as u64 / pages);
        }
        result
    }

    fn learn(&self, page_ns: u64) {
        let known = self.0.load(Relaxed);
        let next = if page_ns > u64::from(known) {
            known.saturating_add(known / RAISE + 1)
        } else {
            known.saturating_sub(known / LOWER + 1)
        };
        self.0.store(next, Relaxed);
    }

    /// The price of putting in a page of this many bytes, as a share of what a hit saves.
    pub(super) fn price(&self, page_size: usize) -> f32 {
        let admission_ns = BOOKS_NS + page_size / COPIED_BYTES_PER_NS;
        (admission_ns as f32 / self.0.load(Relaxed).max(1) as f32).min(PRICE_MAX)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_nine_reads_in_ten_take() {
        let time = ReadTime::default();
        assert!(time.price(4096) < 0.01);
        for turn in 0..10_000 {
            time.learn(if turn % 20 == 0 { 1_000_000 } else { 3_000 });
        }
        let price = time.price(4096);
        assert!((0.2..0.3).contains(&price), "{price}");
        for turn in 0..10_000 {
            time.learn(if turn % 5 == 0 { 100_000 } else { 1_000 });
        }
        let price = time.price(4096);
        assert!(price < 0.02, "{price}");
        for _ in 0..10_000 {
            time.learn(0);
        }
        assert!(time.price(4096) > PRICE_MAX - 0.01);
    }
}
