//! How many files of a filesystem are synced side by side, each by itself. Pure.
//!
//! What a disk and a journal do with syncs that come together cannot be known. Where a flush takes
//! milliseconds, four times as many side by side have been twice as fast; on ext4 where flushes
//! cost next to nothing, they were six times slower. So while more files wait than the smaller
//! depth takes, the greater one is tried now and then, and the one that syncs more files in a
//! second stays in use.

use std::time::Instant;

use crate::choice::Choice;
use crate::windows::Windows;

/// The depths that are compared. Measured: 16 were slower than 64 on every disk, and 500 no more
/// than 16 % faster than 256 where that was best.
const DEPTHS: [usize; 2] = [64, 256];

/// The greatest depth that is chosen.
pub(crate) const DEPTH_MAX: usize = DEPTHS[1];

/// What has been measured of one filesystem.
#[derive(Debug)]
pub(crate) struct Depth {
    choice: Choice,
    windows: Windows,
}

impl Default for Depth {
    fn default() -> Self {
        Self { choice: Choice::new(DEPTHS.len(), 0), windows: Windows::default() }
    }
}

impl Depth {
    /// How many to sync side by side now.
    pub(crate) fn now(&self) -> usize {
        DEPTHS[self.choice.way()]
    }

    /// Notes that a file has been synced by itself, when this many more were being synced or
    /// waited.
    pub(crate) fn note(&mut self, others: usize, now: Instant) {
        if others < DEPTHS[0] {
            // All are synced side by side, whatever the depth.
            return self.pause();
        }
        // Counted in rounds of the smaller depth: with 256 files in each, a trial of what is six
        // times slower would take too long.
        let rate = self.windows.answered(1, DEPTHS[0], now);
        let before = self.now();
        if let Some(rate) = rate {
            self.choice.note(rate);
        }
        if self.now() != before {
            self.windows.skip(DEPTHS[0]);
        }
    }

    /// Notes that files are made durable in other ways now. The present window says nothing.
    pub(crate) fn pause(&mut self) {
        self.windows = Windows::default();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Simulates this many seconds in which `others` more files wait, and each depth syncs as many
    /// in a millisecond as `rates` has for it. Returns how much of the time was spent at the
    /// greater one.
    fn deep(depth: &mut Depth, now: &mut Instant, others: usize, rates: [u32; 2]) -> f64 {
        let milliseconds = 20_000;
        let mut deep = 0;
        for _ in 0..milliseconds {
            let is_deep = depth.now() == DEPTHS[1];
            deep += u32::from(is_deep);
            *now += Duration::from_millis(1);
            (0..rates[usize::from(is_deep)]).for_each(|_| depth.note(others, *now));
        }
        f64::from(deep) / f64::from(milliseconds)
    }

    #[test]
    fn the_faster_depth_stays_and_the_other_is_tried_seldom() {
        let (mut depth, now) = (Depth::default(), &mut Instant::now());
        assert!(deep(&mut depth, now, 1000, [3, 7]) > 0.95);
        assert!(deep(&mut depth, now, 1000, [56, 8]) < 0.5);
        let share = deep(&mut depth, now, 1000, [56, 8]);
        assert!(share < 0.01, "{share}");
    }

    #[test]
    fn where_all_are_synced_at_once_nothing_is_tried() {
        let (mut depth, now) = (Depth::default(), &mut Instant::now());
        assert!(deep(&mut depth, now, 63, [3, 7]) < 0.001);
        assert!(deep(&mut depth, now, 64, [3, 7]) > 0.95);
    }

    #[test]
    fn a_pause_is_no_time_of_few_syncs() {
        let (mut depth, mut now) = (Depth::default(), Instant::now());
        for _ in 0..100 {
            deep(&mut depth, &mut now, 1000, [10, 10]);
            let before = depth.choice.rate().unwrap();
            now += Duration::from_secs(60);
            depth.pause();
            deep(&mut depth, &mut now, 1000, [10, 10]);
            assert!((depth.choice.rate().unwrap() / before - 1.0).abs() < 0.1);
        }
    }
}
