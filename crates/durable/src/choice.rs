//! Chooses between a few ways if only trying shows which is best. Pure.
//!
//! One way is in use. Now and then another is tried, each in its turn, and it stays if it is
//! better.

/// Another way is tried after so many figures, and after twice as many each time it was
/// not better, four times where it was far from that, up to the last: a way that is half as fast
/// then costs less than 1 %. The first time one is enough, because nothing is known yet.
const FIGURES_MIN: u32 = 4;
const FIGURES_MAX: u32 = 256;

/// It has to be so much better, in so many figures one after the other: beyond what
/// figures of one way differ by. Measured: with one figure 6 % of answers were by the worse way.
/// The way to begin with need not be, or one that was luckier once would stay though it is worse.
const BETTER: f64 = 1.1;
const TRIAL_FIGURES: u32 = 2;

/// A way that has less than this part of what the best one has is far from it.
const FAR: f64 = 0.75;

/// How much a new figure counts: one part in so many.
const SHARE: f64 = 4.0;

/// See the module.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Ways are numbers below this one.
    ways: usize,
    /// The one to go where all are as good.
    first: usize,
    way: usize,
    /// How fast it was.
    rate: Option<f64>,
    /// Another one is being tried, for so many figures more; and the one tried last.
    trial: u32,
    tried: usize,
    /// Figures since the last trial, and how many there are until the next one.
    figures: u32,
    until_trial: u32,
}

impl Choice {
    /// One of so many ways, two at least; this one to begin with.
    pub(crate) fn new(ways: usize, way: usize) -> Self {
        let until_trial = 1;
        Self { ways, first: way, way, rate: None, trial: 0, tried: way, figures: 0, until_trial }
    }

    /// Whether that way is only being tried.
    pub(crate) fn is_trial(&self) -> bool {
        self.trial > 0
    }

    /// The way to go now.
    pub(crate) fn way(&self) -> usize {
        if self.trial > 0 { self.tried } else { self.way }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// How fast it was, by [`Choice::way`]: more is better.
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
