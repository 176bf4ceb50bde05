//! How many callers are answered in a second, measured in windows of time. Pure.

use std::time::{Duration, Instant};

/// A figure is of so long and so many rounds of all callers at least. Derived: a few of the kernel's
/// time slices, and so many that one sync more or less is no tenth;
const WINDOW: Duration = Duration::from_millis(20);
const ROUNDS: u32 = 4;
/// or, on slow disks, of so long. And never of fewer answers than this.
const LONG_WINDOW: Duration = Duration::from_millis(200);
const ANSWERS_MIN: u32 = 16;

/// The window that is open: when it began, how many were answered, and how many came when nobody
/// else was there.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    began: Option<Instant>,
    last: Option<Instant>,
    answered: u32,
    alone: u32,
    /// So many answers are still by another way, and say nothing.
    skipped: u32,
}

impl Windows {
    /// Somebody came while nothing was under way; `alone` if nobody else was there before, either.
    pub(crate) fn idle(&mut self, alone: bool, now: Instant) {
        self.alone += u32::from(alone);
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > WINDOW) {
            // Nobody wanted anything: that says nothing.
            self.began = None;
        }
    }

    /// So many are answered now of whom nobody else was there.
    pub(crate) fn note_alone(&mut self, count: usize) {
        self.alone = self.alone.saturating_add(number(count));
    }

    /// So many have been answered, of so many callers: how many are in a second, where a window ends
    /// with them, and most of them were not alone.
    pub(crate) fn answered(&mut self, count: usize, callers: usize, now: Instant) -> Option<f64> {
        self.last = Some(now);
        if self.skipped > 0 {
            self.skipped = self.skipped.saturating_sub(number(count));
            self.began = None;
        }
        let Some(began) = self.began else {
            self.begin(now);
            return None;
        };
        self.answered = self.answered.saturating_add(number(count));
        let took = now.saturating_duration_since(began);
        let rounds = self.answered / number(callers).max(1);
        let is_over = self.answered >= ANSWERS_MIN
            && ((took >= WINDOW && rounds >= ROUNDS) || took >= LONG_WINDOW);
        if !is_over {
            return None;
        }
        let rate = f64::from(self.answered) / took.as_secs_f64();
        let tells = self.alone <= self.answered / 4;
        self.begin(now);
        tells.then_some(rate)
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.answered, self.alone) = (Some(now), 0, 0);
    }

    /// Another way is gone from now on, by so many callers: what is under way ends by the old one,
    /// and the first round by the new one finds them as that has left them.
    pub(crate) fn skip(&mut self, callers: usize) {
        self.skipped = number(callers).saturating_mul(2).max(1);
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
