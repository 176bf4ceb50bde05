//! Whether to do something, where only trying shows if it pays. Pure.
//!
//! One way goes on; now and then the other is tried, and stays if it is better.

/// The other way is tried after so many figures first, and after twice as many each time it was
/// not better, up to the last: a way that is half as fast then costs less than 1 %.
const FIGURES_MIN: u32 = 4;
const FIGURES_MAX: u32 = 256;

/// The other way has to be so much better, in so many figures one after the other: beyond what
/// figures of one way differ by. Measured: with one figure 6 % of answers were by the worse way.
const BETTER: f64 = 1.1;
const TRIAL_FIGURES: u32 = 2;

/// How much a new figure counts: one part in so many.
const SHARE: f64 = 4.0;

/// See the module.
#[derive(Debug)]
pub(crate) struct Choice {
    is_made: bool,
    /// How fast it was, while that was so.
    rate: Option<f64>,
    /// It is being tried, for so many figures more.
    trial: u32,
    /// Figures since the last trial, and how many there are until the next one.
    figures: u32,
    until_trial: u32,
}

impl Choice {
    pub(crate) fn new(is_made: bool) -> Self {
        Self { is_made, rate: None, trial: 0, figures: 0, until_trial: FIGURES_MIN }
    }

    /// Whether to do it now.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// How fast it was, as [`Choice::is_made`] said: more is better.
    pub(crate) fn note(&mut self, rate: f64) {
        if self.trial > 0 {
            self.figures = 0;
            if self.rate.is_none_or(|before| rate > before * BETTER) {
                self.trial -= 1;
                if self.trial == 0 {
                    self.rate = Some(rate);
                    self.until_trial = FIGURES_MIN;
                }
            } else {
                self.trial = 0;
                self.is_made = !self.is_made;
                self.until_trial = (self.until_trial * 2).min(FIGURES_MAX);
            }
            return;
        }
        self.rate = Some(self.rate.map_or(rate, |before| before + (rate - before) / SHARE));
        self.figures += 1;
        if self.figures >= self.until_trial {
            self.trial = TRIAL_FIGURES;
            self.is_made = !self.is_made;
        }
    }
}
