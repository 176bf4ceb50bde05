//! Chooses between a few ways if only trying shows which is best. Pure.
//!
//! One way is in use. Now and then another is tried, each in its turn, and it stays if it is
//! better.

/// Another way is tried after `FIGURES_MIN` figures. Each time it was not better, the next trial
/// comes after twice as many, or four times as many if it was far from better, up to `FIGURES_MAX`:
/// a way that is half as fast then costs less than 1 %. The first trial comes after one figure,
/// because nothing is known yet.
const FIGURES_MIN: u32 = 4;
const FIGURES_MAX: u32 = 256;

/// Another way has to be better by this factor, in this many figures one after the other: by more
/// than figures of one way differ. Measured: with one figure, 6 % of answers were by the worse way.
/// The first way need not be better by the factor, or a way that was once luckier would stay
/// although it is worse.
const BETTER: f64 = 1.1;
const TRIAL_FIGURES: u32 = 2;

/// A way whose figure is less than this part of the best way's is far from better.
const FAR: f64 = 0.75;

/// How much a new figure counts: one part in this many.
const SHARE: f64 = 4.0;

/// See the module.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Ways are numbers below this one.
    ways: usize,
    /// The way to use if all are equally good.
    first: usize,
    way: usize,
    /// How fast `way` was.
    rate: Option<f64>,
    /// For how many more figures another way is being tried; and the way tried last.
    trial: u32,
    tried: usize,
    /// Figures since the last trial, and after how many the next one begins.
    figures: u32,
    until_trial: u32,
}

impl Choice {
    /// A choice among this many ways, at least two, that begins with `way`.
    pub(crate) fn new(ways: usize, way: usize) -> Self {
        let until_trial = 1;
        Self { ways, first: way, way, rate: None, trial: 0, tried: way, figures: 0, until_trial }
    }

    /// Whether the present way is only being tried.
    pub(crate) fn is_trial(&self) -> bool {
        self.trial > 0
    }

    /// The way to use now.
    pub(crate) fn way(&self) -> usize {
        if self.trial > 0 { self.tried } else { self.way }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Notes how fast [`Choice::way`] was: more is better.
    pub(crate) fn note(&mut self, rate: f64) {
        if self.trial > 0 {
            self.figures = 0;
            let better = if self.tried == self.first { 1.0 } else { BETTER };
            if self.rate.is_none_or(|before| rate > before * better) {
                self.trial -= 1;
                if self.trial == 0 {
                    (self.way, self.rate) = (self.tried, Some(rate));
                    self.until_trial = FIGURES_MIN;
                }
            } else {
                self.trial = 0;
                let far = self.rate.is_some_and(|before| rate < before * FAR);
                self.until_trial = (self.until_trial * if far { 4 } else { 2 }).min(FIGURES_MAX);
            }
            return;
        }
        self.rate = Some(self.rate.map_or(rate, |before| before + (rate - before) / SHARE));
        self.figures += 1;
        if self.figures >= self.until_trial {
            self.trial = TRIAL_FIGURES;
            self.tried = (self.tried + 1) % self.ways;
            if self.tried == self.way {
                self.tried = (self.tried + 1) % self.ways;
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// After how many figures of the way in use another one is tried.
    fn figures_until_trial(choice: &mut Choice, rate: f64) -> usize {
        let mut figures = 0;
        while !choice.is_trial() {
            choice.note(rate);
            figures += 1;
        }
        figures
    }

    #[test]
    fn what_was_far_from_better_is_tried_again_later_than_what_was_not_quite() {
        let mut choice = Choice::new(2, 0);
        let mut next = |tried| {
            let figures = figures_until_trial(&mut choice, 100.0);
            choice.note(tried);
            figures
        };
        assert_eq!([80.0, 70.0, 100.0, 0.0, 0.0].map(&mut next), [1, 2, 8, 16, 64]);
        assert_eq!([0.0, 0.0].map(next), [256, 256], "and never less often than this");
    }

    #[test]
    fn another_way_has_to_be_clearly_better_but_the_first_one_just_better() {
        let mut choice = Choice::new(2, 0);
        let mut try_twice = |rate| {
            figures_until_trial(&mut choice, 100.0);
            (0..TRIAL_FIGURES).for_each(|_| choice.note(rate));
            choice.way()
        };
        // Way 1 is tried until it stays, and then way 0.
        assert_eq!([105.0, 115.0, 95.0].map(&mut try_twice), [0, 1, 1]);
        assert_eq!(try_twice(105.0), 0);
    }

    #[test]
    fn a_single_figure_changes_little() {
        let mut choice = Choice::new(2, 0);
        choice.note(100.0);
        choice.note(0.0);
        assert!(!choice.is_trial(), "the other way was not better");
        choice.note(200.0);
        assert_eq!(choice.rate(), Some(125.0));
    }
}
