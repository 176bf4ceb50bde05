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

/// Which [`Way`] those may go who make one file durable at the same time: through a
/// [`SharedFile`](crate::SharedFile), or by `homing serve`'s writes with FUA.
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
pub enum Sharing {
    /// The one that has answered more.
    #[default]
    Auto,
    /// [`Way::Beside`], as long as there are descriptions for it.
    Beside,
    /// [`Way::Together`].
    Together,
}

impl Sharing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Beside, Self::Together];

    /// As the attribute `durable/sharing` has it.
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

/// Which way answers more of those who make one file durable, as measured: for a
/// [`SharedFile`](crate::SharedFile), and for whoever has two ways of his own.
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
/// pace.idle(true, now); // who comes alone is no measure of either
/// pace.allow(homing_durable::Sharing::Beside);
/// assert_eq!(pace.way(), Way::Beside, "whatever has been measured");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pace {
    /// By answers in a second; a way is its place in `WAYS`.
    choice: Choice,
    windows: Windows,
    allowed: Sharing,
}

/// It is not known how many there are. Chosen: as many as are served side by side at least.
const CALLERS: usize = 16;

const WAYS: [Way; 2] = [Way::Beside, Way::Together];

impl Pace {
    /// Begins with a way.
    pub fn new(way: Way) -> Self {
        let choice = Choice::new(WAYS.len(), way as usize);
        Self { choice, windows: Windows::default(), allowed: Sharing::Auto }
    }

    /// From now on only this may be chosen. Nothing is learned of a way that was not.
    pub fn allow(&mut self, sharing: Sharing) {
        if sharing != self.allowed {
            (self.allowed, self.windows) = (sharing, Windows::default());
        }
    }

    /// The way to go now.
    pub fn way(&self) -> Way {
        match self.allowed {
            Sharing::Auto => WAYS[self.choice.way()],
            Sharing::Beside => Way::Beside,
            Sharing::Together => Way::Together,
        }
    }

    /// Somebody came while nothing was under way. If he is `alone` the ways do not differ for him.
    pub fn idle(&mut self, alone: bool, now: Instant) {
        self.windows.idle(alone, now);
    }

    /// So many have been answered.
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
