//! How many callers are answered in a second, measured in windows of time. Pure.

use std::time::{Duration, Instant};

/// A figure covers at least this much time, and this many rounds of all callers. Derived: a few of
/// the kernel's time slices, and so many rounds that one sync more or less is no tenth.
pub(crate) const WINDOW: Duration = Duration::from_millis(20);
pub(crate) const ROUNDS: u32 = 4;
/// On slow disks this much time is enough. No figure covers fewer answers than `ANSWERS_MIN`.
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
    /// This many answers still come by another way, and say nothing.
    skipped: u32,
}

impl Windows {
    /// Notes that a caller came while nothing was under way; `alone` if nobody else was there
    /// before, either.
    pub(crate) fn idle(&mut self, alone: bool, now: Instant) {
        self.alone += u32::from(alone);
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > WINDOW) {
            // Nobody wanted anything for a while: this window says nothing.
            self.began = None;
        }
    }

    /// Notes that this many callers are answered now that were alone.
    pub(crate) fn note_alone(&mut self, count: usize) {
        self.alone = self.alone.saturating_add(number(count));
    }

    /// Notes that `count` requests have been answered, of `callers` callers. If a window ends with
    /// them, and most of its callers were not alone, returns how many were answered in a second.
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

    /// Notes that another way is used from now on, by this many callers. What is under way ends by
    /// the old way, and the first round by the new way finds the callers as the old one has left
    /// them: neither counts.
    pub(crate) fn skip(&mut self, callers: usize) {
        self.skipped = number(callers).saturating_mul(2).max(1);
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
