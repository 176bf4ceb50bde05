//! Whether many who sync one file do better side by side or together. Pure.
//!
//! Where a flush costs little, syncs of one file that run side by side beat one that all share: nobody
//! has to be woken for another. Where it costs more, they wait for the same disk, which one sync
//! asks only once. What a disk does with flushes that come together cannot be known, so both are
//! tried, and what has answered more callers in a second goes on.

use std::time::Instant;

use crate::choice::Choice;
use crate::windows::Windows;

/// How those are served who come at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each by itself, on a description of its own.
    Beside,
    /// One sync runs, and all who come meanwhile share the next one.
    Together,
}

/// Which way answers more of those who make one file durable, as measured: for a
/// [`SharedFile`](crate::SharedFile), and for whoever has two ways of his own.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use homing_durable::{Pace, Way};
///
/// let (mut pace, mut now) = (Pace::new(Way::Beside, false), Instant::now());
/// for _ in 0..1000 {
///     now += Duration::from_millis(1);
///     // Together answers four times as many.
///     pace.answered(if pace.way() == Way::Beside { 5 } else { 20 }, now);
/// }
/// assert_eq!(pace.way(), Way::Together);
/// pace.idle(true, now); // who comes alone is no measure of either
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pace {
    /// By answers in a second; a way is its place in `WAYS`.
    choice: Choice,
    windows: Windows,
    /// Not to be changed: for tests.
    pinned: bool,
}

/// It is not known how many there are. Chosen: as many as are served side by side at least.
const CALLERS: usize = 16;

const WAYS: [Way; 2] = [Way::Beside, Way::Together];

impl Pace {
    /// Begins with a way; always keeps to it, if it is `pinned`.
    pub fn new(way: Way, pinned: bool) -> Self {
        let choice = Choice::new(WAYS.len(), way as usize);
        Self { choice, windows: Windows::default(), pinned }
    }

    /// The way to go now.
    pub fn way(&self) -> Way {
        WAYS[self.choice.way()]
    }

    /// Somebody came while nothing was under way. If he is `alone` the ways do not differ for him.
    pub fn idle(&mut self, alone: bool, now: Instant) {
        self.windows.idle(alone, now);
    }

    /// So many have been answered.
    pub fn answered(&mut self, count: usize, now: Instant) {
        if let Some(rate) = self.windows.answered(count, CALLERS, now)
            && !self.pinned
        {
            self.choice.note(rate);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Twenty seconds in which each way answers so many callers in a millisecond; how much of the
    /// time was spent side by side.
    fn beside(pace: &mut Pace, now: &mut Instant, rates: [usize; 2]) -> f64 {
        let ms = 20_000;
        let mut beside = 0;
        for _ in 0..ms {
            let is_beside = pace.way() == Way::Beside;
            beside += u32::from(is_beside);
            *now += Duration::from_millis(1);
            pace.answered(rates[usize::from(!is_beside)], *now);
        }
        f64::from(beside) / f64::from(ms)
    }

    #[test]
    fn what_answers_more_goes_on_and_the_other_is_tried_seldom() {
        let mut pace = Pace::new(Way::Together, false);
        let now = &mut Instant::now();
        assert!(beside(&mut pace, now, [11, 7]) > 0.97);
        assert!(beside(&mut pace, now, [4, 8]) < 0.3);
        assert!(beside(&mut pace, now, [4, 8]) < 0.03);
        assert!(beside(&mut pace, now, [8, 8]) < 0.03, "no better is no reason");
    }

    #[test]
    fn nothing_is_learned_where_nobody_comes() {
        let mut pace = Pace::new(Way::Together, false);
        let now = &mut Instant::now();
        beside(&mut pace, now, [8, 4]);
        let rate = pace.choice.rate();
        *now += Duration::from_secs(60);
        pace.idle(false, *now);
        beside(&mut pace, now, [8, 4]);
        assert_eq!(
            (pace.way(), pace.choice.rate().map(f64::round)),
            (Way::Beside, rate.map(f64::round))
        );
    }

    #[test]
    fn nothing_is_learned_of_lone_callers() {
        let mut pace = Pace::new(Way::Together, false);
        let now = Instant::now();
        for at in 0..20_000 {
            pace.idle(true, now + Duration::from_millis(at));
            assert_eq!(pace.way(), Way::Together);
            pace.answered(1, now + Duration::from_millis(at));
        }
    }
}
