//! Whether many who sync one file do better side by side or together. Pure.
//!
//! Where a flush costs little, syncs of one file that run side by side beat one that all share: nobody
//! has to be woken for another. Where it costs more, they wait for the same disk, which one sync
//! asks only once. What a disk does with flushes that come together cannot be known, so both are
//! tried, and what has answered more callers in a second goes on.

use std::time::{Duration, Instant};

use crate::choice::Choice;

/// How those are served who come at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each by itself, on a description of its own.
    Beside,
    /// One sync runs, and all who come meanwhile share the next one.
    Together,
}

/// A figure is of so long and so many answers at least. Derived: a few of the kernel's time slices,
/// and eight rounds of eight callers.
const WINDOW: Duration = Duration::from_millis(20);
const ANSWERS_MIN: u32 = 64;

/// Which way answers more of those who make one file durable, as measured: for a
/// [`SharedFile`](crate::SharedFile), and for whoever has two ways of his own.
#[derive(Debug)]
pub struct Pace {
    /// Whether they share; by answers in a second.
    together: Choice,
    /// Not to be changed: for tests.
    pinned: bool,
    /// The window: when it began, how many were answered, and how many came when nobody else was
    /// there.
    began: Option<Instant>,
    last: Option<Instant>,
    answered: u32,
    alone: u32,
}

impl Pace {
    /// Begins with a way; always keeps to it, if it is `pinned`.
    pub fn new(way: Way, pinned: bool) -> Self {
        Self {
            together: Choice::new(way == Way::Together),
            pinned,
            began: None,
            last: None,
            answered: 0,
            alone: 0,
        }
    }

    /// The way to go now.
    pub fn way(&self) -> Way {
        if self.together.is_made() { Way::Together } else { Way::Beside }
    }

    /// Somebody came while nothing was under way. If he is `alone` the ways do not differ for him.
    pub fn idle(&mut self, alone: bool, now: Instant) {
        self.alone += u32::from(alone);
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > WINDOW) {
            // Nobody wanted anything: that says nothing of the way.
            self.began = None;
        }
    }

    /// So many have been answered.
    pub fn answered(&mut self, count: usize, now: Instant) {
        self.last = Some(now);
        let Some(began) = self.began else {
            self.begin(now);
            return;
        };
        self.answered = self.answered.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        let took = now.saturating_duration_since(began);
        if took < WINDOW || self.answered < ANSWERS_MIN {
            return;
        }
        let rate = f64::from(self.answered) / took.as_secs_f64();
        let lonely = self.alone > self.answered / 4;
        self.begin(now);
        if !lonely && !self.pinned {
            self.together.note(rate);
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.answered, self.alone) = (Some(now), 0, 0);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
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
        let rate = pace.together.rate();
        *now += Duration::from_secs(60);
        pace.idle(false, *now);
        beside(&mut pace, now, [8, 4]);
        assert_eq!(
            (pace.way(), pace.together.rate().map(f64::round)),
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
