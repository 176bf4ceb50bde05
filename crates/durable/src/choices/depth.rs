//! How many files of a filesystem are synced side by side, each by itself. Pure.
//!
//! What a disk and a journal do with syncs that come together cannot be known. Where a flush takes
//! milliseconds, four times as many side by side have been twice as fast; with plain threads on
//! ext4 where flushes cost next to nothing, they were six times slower. So while more files are
//! there than the smaller depth takes, the greater one is tried now and then, and the one that
//! syncs more files in a second stays in use.

use std::time::{Duration, Instant};

use crate::choices::choice::Choice;
use crate::choices::windows::{ROUNDS, WINDOW};

/// The depths that are compared. Measured with plain threads: 16 were slower than 64 on every disk,
/// and 512 no more than 16 % faster than 256 where that was best.
const DEPTHS: [usize; 2] = [64, 256];

/// The greatest depth that is chosen.
pub(crate) const DEPTH_AUTO_MAX: usize = DEPTHS[1];

/// A figure covers this many files, and at least [`WINDOW`]. Derived: rounds of the smaller depth;
/// with rounds of the greater one, a trial of what is six times slower would take too long.
const FILES: u32 = ROUNDS * DEPTHS[0] as u32;

/// What has been measured of one filesystem.
#[derive(Debug)]
pub(crate) struct Depth {
    choice: Choice,
    /// The figure that is being made: how many files, in how much time. Bulks may be short, so it
    /// goes on from one to the next.
    files: u32,
    took: Duration,
    /// How many more are to count: those that were there, with the last one, when that were more
    /// than the smaller depth takes. So the end of a bulk counts, too.
    left: usize,
    /// When the last of them was synced.
    last: Option<Instant>,
    /// When they ceased to count.
    paused: Option<Instant>,
    /// This many files still end as they began, by the other depth, and do not count.
    skipped: usize,
}

impl Default for Depth {
    fn default() -> Self {
        let choice = Choice::new(DEPTHS.len(), 0);
        let (last, paused) = (None, None);
        Self { choice, files: 0, took: Duration::ZERO, left: 0, last, paused, skipped: 0 }
    }
}

impl Depth {
    /// How many to sync side by side now.
    pub(crate) fn now(&self) -> usize {
        DEPTHS[self.choice.way()]
    }

    /// Notes that a file has been synced by itself, which took so long, when this many more were
    /// being synced or waited.
    pub(crate) fn note(&mut self, others: usize, took: Duration, now: Instant) {
        if others >= DEPTHS[0] {
            self.left = others + 1;
        }
        if self.left > 0 {
            self.left -= 1;
            self.count(took, now);
        }
        if self.left == 0 {
            // The others are synced side by side, whatever the depth; or there are none.
            self.pause(now);
        }
    }

    fn count(&mut self, took: Duration, now: Instant) {
        // The first one counts from when it began: all of a short bulk may end at the same time.
        let began = now.checked_sub(took).max(self.paused);
        let Some(last) = self.last.replace(now).or(began) else { return };
        if self.skipped > 0 {
            self.skipped -= 1;
            return;
        }
        self.files += 1;
        self.took += now.saturating_duration_since(last);
        if self.files < FILES || self.took < WINDOW {
            return;
        }
        let before = self.now();
        self.choice.note(f64::from(self.files) / self.took.as_secs_f64());
        (self.files, self.took) = (0, Duration::ZERO);
        if self.now() != before {
            // What is under way, and a first round as that has left the others.
            self.skipped = before + DEPTHS[0];
        }
    }

    /// Notes that files are made durable in another way now, or that few are there. That time does
    /// not count.
    pub(crate) fn pause(&mut self, now: Instant) {
        (self.left, self.last, self.paused) = (0, None, Some(now));
    }

    /// Notes that another depth is in force, at which `running` files are being synced.
    pub(crate) fn overrule(&mut self, running: usize, now: Instant) {
        self.pause(now);
        self.skipped = running + DEPTHS[0];
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
            let millisecond = Duration::from_millis(1);
            (0..rates[usize::from(is_deep)]).for_each(|_| depth.note(others, millisecond, *now));
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
            depth.pause(now);
            deep(&mut depth, &mut now, 1000, [10, 10]);
            assert!((depth.choice.rate().unwrap() / before - 1.0).abs() < 0.1);
        }
    }

    /// A hundred bulks of so many files, a second apart. At each depth, so many of them end at the
    /// same time, after so long. Returns how many bulks were synced at the greater depth.
    fn deep_bulks(files: usize, rates: [(usize, Duration); 2]) -> u32 {
        let (mut depth, now) = (Depth::default(), &mut Instant::now());
        let mut deep = 0;
        for _ in 0..100 {
            let is_deep = depth.now() == DEPTHS[1];
            deep += u32::from(is_deep);
            let (at_a_time, took) = rates[usize::from(is_deep)];
            for others in (0..files).rev() {
                if (files - 1 - others).is_multiple_of(at_a_time) {
                    *now += took;
                }
                depth.note(others, took, *now);
            }
            *now += Duration::from_secs(1);
        }
        deep
    }

    #[test]
    fn bulks_that_end_before_a_figure_is_complete_are_measured_together() {
        let ms = Duration::from_millis;
        for files in [100, 128, 300] {
            let deep = deep_bulks(files, [(64, ms(20)), (256, ms(25))]);
            assert!(deep > 85, "{deep} of 100, of {files} files");
            let deep = deep_bulks(files, [(64, ms(20)), (256, ms(120))]);
            assert!((1..=20).contains(&deep), "a trial ends: {deep} of 100, of {files} files");
        }
    }
}
