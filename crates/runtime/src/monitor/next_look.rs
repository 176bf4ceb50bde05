//! When the monitor looks next. While everybody sleeps it rests: it looks some time after somebody
//! has begun to work, if all are not asleep again by then.
//!
//! A look takes the CPU from a worker, or wakes a CPU that sleeps. So the last worker to go to
//! sleep puts the look off, and makes the monitor rest now and then. The README has the protocol.

use crate::sync::{AtomicU64, Ordering, fence};

/// How long after somebody has begun to work the monitor looks.
const FIRST_NS: u64 = 4_000_000;

/// The longest rest.
const REST_NS: u64 = 60_000_000_000;

/// How long after a look workers may put the next one off: the monitor has other things to see to.
const CALM_NS: u64 = 250_000_000;

/// How long after a rest workers only put looks off. To begin a rest and to end it takes two system
/// calls, where putting a look off takes one, and not each time.
const REST_EVERY_NS: u64 = 20_000_000;

/// The bit of [`NextLook::at_ns`] that says that the monitor rests.
const RESTS: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct NextLook {
    /// When, with a bit for "unless somebody begins to work".
    at_ns: AtomicU64,
    /// Until when workers may put it off.
    calm_until_ns: AtomicU64,
    /// When a worker last made the monitor rest. An estimate: if two do so at once, one of these
    /// times is lost.
    rested_ns: AtomicU64,
}

impl NextLook {
    /// The first look is at once.
    pub(crate) fn new() -> Self {
        Self {
            at_ns: AtomicU64::new(0),
            calm_until_ns: AtomicU64::new(0),
            rested_ns: AtomicU64::new(0),
        }
    }

    /// When the monitor looks, as far as is known.
    pub(crate) fn at_ns(&self) -> u64 {
        self.at_ns.load(Ordering::Relaxed) & !RESTS
    }

    /// The monitor looks. `calm`: until the next look, workers may put it off.
    pub(crate) fn looks(&self, now_ns: u64, calm: bool) {
        let calm_until_ns = if calm { now_ns.saturating_add(CALM_NS) } else { 0 };
        self.calm_until_ns.store(calm_until_ns, Ordering::Relaxed);
    }

    /// The monitor has looked, and will again at this time.
    pub(crate) fn set(&self, at_ns: u64) {
        self.at_ns.store(at_ns, Ordering::Relaxed);
    }

    /// The monitor has looked, and rests if there is nothing to see for it. Returns whether it
    /// rests.
    pub(crate) fn rest(&self, now_ns: u64, nothing_to_see: impl Fn() -> bool) -> bool {
        self.at_ns.store(rest_until(now_ns), Ordering::Relaxed);
        self.unless_seen(now_ns, nothing_to_see)
    }

    /// Whether a worker that is about to sleep should find out whether it is the last one.
    pub(crate) fn may_put_off(&self, now_ns: u64) -> bool {
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        at_ns & RESTS == 0
            && now_ns < self.calm_until_ns.load(Ordering::Relaxed)
            && (self.may_rest(now_ns) || at_ns < now_ns.saturating_add(FIRST_NS / 2))
    }

    fn may_rest(&self, now_ns: u64) -> bool {
        let every_ns = if cfg!(any(loom, shuttle)) { 0 } else { REST_EVERY_NS };
        now_ns.saturating_sub(self.rested_ns.load(Ordering::Relaxed)) >= every_ns
    }

    /// To be called after all were seen asleep, which they were at `now_ns` or later. Returns
    /// whether this changes the time of the next look.
    pub(crate) fn put_off(&self, now_ns: u64, nothing_to_see: impl Fn() -> bool) -> bool {
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        let rests = self.may_rest(now_ns);
        if !rests && !nothing_to_see() {
            return false;
        }
        // Otherwise, whoever works by now has not begun before `now_ns`.
        let until_ns = if rests { rest_until(now_ns) } else { now_ns.saturating_add(FIRST_NS) };
        let (order, on_failure) = (Ordering::Relaxed, Ordering::Relaxed);
        // If the monitor has set another time meanwhile, that one stays.
        if at_ns & RESTS != 0
            || self.at_ns.compare_exchange(at_ns, until_ns, order, on_failure).is_err()
        {
            return false;
        }
        if rests {
            self.rested_ns.store(now_ns, Ordering::Relaxed);
            self.unless_seen(now_ns, nothing_to_see);
        }
        true
    }

    /// Ends the rest that has just begun if there is something to see. Returns whether it goes on.
    fn unless_seen(&self, now_ns: u64, nothing_to_see: impl Fn() -> bool) -> bool {
        // Pairs with the fence of `begin`: either we see who works, or it sees that the monitor
        // rests.
        fence(Ordering::SeqCst);
        let rests = nothing_to_see();
        if !rests {
            self.end_rest(now_ns);
        }
        rests
    }

    /// To be called by a thread that begins to work and may have looked asleep until then. Returns
    /// whether the monitor rested, and so has to wake earlier than it was to.
    #[must_use = "the alarm has to be set"]
    pub(crate) fn begin(&self, now_ns: impl FnOnce() -> u64) -> bool {
        fence(Ordering::SeqCst);
        self.rests() && self.end_rest(now_ns())
    }

    pub(crate) fn rests(&self) -> bool {
        self.at_ns.load(Ordering::Relaxed) & RESTS != 0
    }

    /// Ends the rest, whoever began it. Returns whether there was one.
    fn end_rest(&self, now_ns: u64) -> bool {
        // Under the model checkers, where no time passes, the monitor looks at once.
        let first_ns = if cfg!(any(loom, shuttle)) { 0 } else { FIRST_NS };
        let at_ns = now_ns.saturating_add(first_ns);
        let end = |before: u64| (before & RESTS != 0).then_some(at_ns);
        self.at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).is_ok()
    }
}

fn rest_until(now_ns: u64) -> u64 {
    now_ns.saturating_add(REST_NS) | RESTS
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_look_is_put_off_while_all_sleep_now_and_then_but_not_for_ever() {
        let next_look = NextLook::new();
        next_look.looks(100 * MS, true);
        next_look.set(104 * MS);
        let sleep = |at_ns| next_look.may_put_off(at_ns) && next_look.put_off(at_ns, || true);
        assert!(sleep(101 * MS) && next_look.rests());
        assert!(!sleep(101 * MS), "it rests");
        assert!(next_look.begin(|| 102 * MS));
        assert!(!sleep(103 * MS), "the look is far enough");
        assert!(sleep(105 * MS) && !next_look.rests(), "it has rested just before");
        assert_eq!(next_look.at_ns(), 109 * MS);
        let mut now_ns = 105 * MS;
        while now_ns < next_look.at_ns() {
            sleep(now_ns);
            if next_look.begin(|| now_ns) {
                assert_eq!(next_look.at_ns(), now_ns + 4 * MS);
            }
            now_ns += MS;
        }
        assert!((350 * MS..360 * MS).contains(&now_ns), "{now_ns}");
    }

    #[test]
    fn what_the_monitor_is_to_see_is_not_put_off() {
        let next_look = NextLook::new();
        next_look.looks(100 * MS, false);
        next_look.set(101 * MS);
        assert!(!next_look.may_put_off(100 * MS), "it looks closely");
        next_look.looks(101 * MS, true);
        next_look.set(105 * MS);
        assert!(next_look.put_off(102 * MS, || false), "somebody works after all");
        assert_eq!((next_look.at_ns(), next_look.rests()), (106 * MS, false));
        assert!(!next_look.rest(107 * MS, || false));
        assert_eq!((next_look.at_ns(), next_look.rests()), (111 * MS, false));
        assert!(next_look.rest(107 * MS, || true) && next_look.rests());
    }
}
