//! Waits for the callers that the last sync answered. Most callers that sync again and again come
//! back at once, and would otherwise miss the next sync and wait for two. A caller that was alone
//! the last time waits for nobody.

use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard, wait_briefly};

/// A sync waits for at most one part in this many of what it takes.
const GATHERS: u32 = 8;

/// A shorter wait is not worth it. Derived: the kernel's timers are late by as much.
const GATHER_MIN: Duration = Duration::from_micros(50);

/// After a wait in which nobody came, this many syncs wait for nobody.
const GATHERS_AGAIN: u32 = 16;

/// How much a new figure counts: one part in this many.
const SHARE: u32 = 4;

/// What is known of the last syncs of a file.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// How many callers the last sync had, and how many waited when it ended: as many may come
    /// again.
    pub(crate) expected: usize,
    ended_at: Option<Instant>,
    /// How long a sync takes.
    cost: Option<Duration>,
    /// How many syncs are still to wait for nobody.
    hurries: u32,
}

/// Waits for the callers that were there the last time, if that is not long ago. `of` gives what is
/// known of the last syncs, and how many callers wait for the next one. A caller that comes
/// notifies `come` once all of them have come.
pub(crate) fn gather<'a, T>(
    state: &'a Mutex<T>,
    come: &Condvar,
    mut guard: MutexGuard<'a, T>,
    of: impl Fn(&mut T) -> (&mut Gather, usize),
) -> MutexGuard<'a, T> {
    let began = Instant::now();
    let (known, came) = of(&mut guard);
    let Some(limit) = known.begin(came, began) else { return guard };
    loop {
        let (known, waiting) = of(&mut guard);
        let left = limit.saturating_sub(began.elapsed());
        if waiting >= known.expected || left.is_zero() {
            known.over(waiting - came);
            return guard;
        }
        guard = wait_briefly(come, state, guard, left);
    }
}

impl Gather {
    /// How long the next sync is to wait for others at most, if this many callers have come.
    pub(crate) fn begin(&mut self, came: usize, now: Instant) -> Option<Duration> {
        let limit = self.limit(came, now)?;
        if self.hurries > 0 {
            self.hurries -= 1;
            return None;
        }
        Some(limit)
    }

    /// Whether [`Gather::begin`] would let the next sync wait.
    pub(crate) fn would_begin(&self, came: usize, now: Instant) -> bool {
        self.hurries == 0 && self.limit(came, now).is_some()
    }

    fn limit(&self, came: usize, now: Instant) -> Option<Duration> {
        let (cost, ended_at) = (self.cost?, self.ended_at?);
        let limit = cost / GATHERS;
        let recent = now.saturating_duration_since(ended_at) <= cost;
        let worth = came > 0 && came < self.expected && limit >= GATHER_MIN;
        (worth && recent).then_some(limit)
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn cost(&self) -> Option<Duration> {
        self.cost
    }

    /// Pretends that syncs take so long that they wait for longer than `limit`.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn set_cost(&mut self, limit: Duration) {
        self.cost = Some(GATHERS * 2 * limit);
    }

    /// Notes that the wait is over, and how many came in it.
    pub(crate) fn over(&mut self, came: usize) {
        if came == 0 {
            self.hurries = GATHERS_AGAIN;
        }
    }

    /// Notes that a sync for `group` callers has ended, while `waiting` others waited.
    pub(crate) fn ended(&mut self, took: Duration, at: Instant, group: usize, waiting: usize) {
        self.cost = Some(self.cost.map_or(took, |cost| (cost * (SHARE - 1) + took) / SHARE));
        self.expected = group + waiting;
        self.ended_at = Some(at);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_sync_waits_for_those_of_the_last_one_as_long_as_that_helps() {
        let (mut gather, start) = (Gather::default(), Instant::now());
        assert_eq!(gather.begin(1, start), None, "nothing is known");
        let after = |ms| start + Duration::from_millis(ms);
        gather.ended(after(8) - start, after(8), 5, 2);
        assert_eq!(gather.begin(7, after(8)), None, "all are there");
        assert_eq!(gather.begin(3, after(17)), None, "it was long ago");
        assert_eq!(gather.begin(3, after(9)), Some(Duration::from_millis(1)));
        gather.over(2);
        assert!(gather.begin(3, after(9)).is_some());
        gather.over(0);
        assert!((0..16).all(|_| gather.begin(3, after(9)).is_none()));
        assert!(gather.begin(3, after(9)).is_some());
        gather.ended(Duration::from_micros(100), start + Duration::from_micros(100), 1, 0);
        assert_eq!(gather.begin(1, start), None, "it was alone");
    }
}
