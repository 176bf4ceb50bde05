//! Decides whether many callers that sync one file do better side by side or together. Pure.
//!
//! If a flush costs little, syncs of one file that run side by side are faster than one that all
//! callers share: no thread has to be woken for another. If it costs more, they all wait for the
//! same disk, and one shared sync asks it only once. What a disk does with flushes that come
//! together cannot be known. So both ways are tried, and the one that has answered more callers in
//! a second stays in use.

use std::time::Instant;

use crate::choices::choice::Choice;
use crate::choices::windows::Windows;

/// How callers are served that come at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each caller does its own sync, on its own description.
    Beside,
    /// One sync runs, and all callers that come meanwhile share the next one.
    Together,
}

/// Which [`Way`] may be used for callers that make one file durable at the same time: through a
/// [`SharedFile`](crate::SharedFile), or by FUA writes to `homing serve`.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use homing_durable::Sharing;
///
/// durable.set_sharing(Sharing::Together); // one flush of the device for many, from now on
/// assert_eq!(durable.sharing(), Sharing::Together);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// The way that has answered more callers.
    #[default]
    Auto,
    /// [`Way::Beside`], as long as there are descriptions for it.
    Beside,
    /// [`Way::Together`].
    Together,
}

impl Sharing {
    /// All settings.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Beside, Self::Together];

    /// The name in the attribute `durable/sharing`.
    ///
    /// ```
    /// assert_eq!(homing_durable::Sharing::Together.name(), "together");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Beside => "beside",
            Self::Together => "together",
        }
    }
}

/// Measures which way answers more of the callers that make one file durable: for a
/// [`SharedFile`](crate::SharedFile), and for programs that have two ways of their own.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use homing_durable::{Pace, Way};
///
/// let (mut pace, mut now) = (Pace::new(Way::Beside), Instant::now());
/// for _ in 0..1000 {
///     now += Duration::from_millis(1);
///     // Together answers four times as many.
///     pace.answered(if pace.way() == Way::Beside { 5 } else { 20 }, now);
/// }
/// assert_eq!(pace.way(), Way::Together);
/// pace.idle(true, now); // a caller that comes alone is no measure of either
/// pace.allow(homing_durable::Sharing::Beside);
/// assert_eq!(pace.way(), Way::Beside, "whatever has been measured");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pace {
    /// Compares the ways by answers in a second; a way is its place in `WAYS`.
    choice: Choice,
    windows: Windows,
    allowed: Sharing,
}

/// How many callers are assumed, because their number is not known. Chosen: as many as are served
/// side by side, at least.
const CALLERS: usize = 16;

const WAYS: [Way; 2] = [Way::Beside, Way::Together];

impl Pace {
    /// Begins with this way.
    pub fn new(way: Way) -> Self {
        let choice = Choice::new(WAYS.len(), way as usize);
        Self { choice, windows: Windows::default(), allowed: Sharing::Auto }
    }

    /// From now on, only this may be chosen. Nothing is learned about a way that is not used.
    pub fn allow(&mut self, sharing: Sharing) {
        if sharing != self.allowed {
            (self.allowed, self.windows) = (sharing, Windows::default());
        }
    }

    /// The way to use now.
    pub fn way(&self) -> Way {
        match self.allowed {
            Sharing::Auto => WAYS[self.choice.way()],
            Sharing::Beside => Way::Beside,
            Sharing::Together => Way::Together,
        }
    }

    /// Notes that a caller came while nothing was under way. If it is `alone`, the ways do not
    /// differ for it.
    pub fn idle(&mut self, alone: bool, now: Instant) {
        self.windows.idle(alone, now);
    }

    /// Notes that this many callers have been answered.
    pub fn answered(&mut self, count: usize, now: Instant) {
        if let Some(rate) = self.windows.answered(count, CALLERS, now)
            && self.allowed == Sharing::Auto
        {
            self.choice.note(rate);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Simulates twenty seconds in which each way answers `rates` callers in a millisecond. Returns
    /// how much of the time was spent side by side.
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
        let mut pace = Pace::new(Way::Together);
        let now = &mut Instant::now();
        assert!(beside(&mut pace, now, [11, 7]) > 0.97);
        assert!(beside(&mut pace, now, [4, 8]) < 0.3);
        assert!(beside(&mut pace, now, [4, 8]) < 0.03);
        assert!(beside(&mut pace, now, [8, 8]) < 0.03, "no better is no reason");
    }

    #[test]
    fn nothing_is_learned_where_nobody_comes() {
        let mut pace = Pace::new(Way::Together);
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
    fn what_is_allowed_is_gone_and_teaches_nothing() {
        let mut pace = Pace::new(Way::Together);
        let now = &mut Instant::now();
        beside(&mut pace, now, [8, 4]);
        let (way, rate) = (pace.way(), pace.choice.rate());
        for (sharing, share) in [(Sharing::Together, 0.0), (Sharing::Beside, 1.0)] {
            pace.allow(sharing);
            assert_eq!(beside(&mut pace, now, [1, 100]).to_bits(), f64::to_bits(share));
        }
        pace.allow(Sharing::Auto);
        assert_eq!((pace.way(), pace.choice.rate()), (way, rate));
    }

    #[test]
    fn nothing_is_learned_of_lone_callers() {
        let mut pace = Pace::new(Way::Together);
        let now = Instant::now();
        for at in 0..20_000 {
            pace.idle(true, now + Duration::from_millis(at));
            assert_eq!(pace.way(), Way::Together);
            pace.answered(1, now + Duration::from_millis(at));
        }
    }
}
