//! How long it takes from waking a worker until it runs. This is learned separately for CPUs that
//! are occupied by their issuer and for others.
//!
//! Which is faster depends on what the issuer does next. If it waits, its own CPU is free at once
//! and has the item in its cache. If it goes on, the worker must wait for it. Only the outcome
//! tells. So both delays are kept, and the one that is not in use shrinks a little with each
//! wake-up of the other kind, until it is tried again: the worse it was, the later.

/// One part in this many of what was measured goes into the mean.
const WEIGHT: u64 = 8;

/// The other delay shrinks by one part in this many.
const FORGET: u64 = 8192;

/// Both delays, in nanoseconds.
///
/// ```
/// use homing_sched::WakeDelays;
///
/// let delays = (0..100).fold(WakeDelays::default(), |delays, _| delays.note(true, 30_000));
/// assert!(delays.occupied_ns > 25_000 && delays.free_ns == 0, "nothing is known of the other");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeDelays {
    /// For wake-ups on a CPU that its issuer occupies.
    pub occupied_ns: u64,
    /// For other wake-ups.
    pub free_ns: u64,
}

impl WakeDelays {
    /// Notes a wake-up that took `delay_ns`.
    #[must_use]
    pub const fn note(self, occupied: bool, delay_ns: u64) -> Self {
        let Self { occupied_ns, free_ns } = self;
        if occupied {
            Self { occupied_ns: mean(occupied_ns, delay_ns), free_ns: forget(free_ns) }
        } else {
            Self { occupied_ns: forget(occupied_ns), free_ns: mean(free_ns, delay_ns) }
        }
    }
}

const fn mean(before_ns: u64, delay_ns: u64) -> u64 {
    before_ns - before_ns.div_ceil(WEIGHT) + delay_ns / WEIGHT
}

/// Rounds up, so that it goes on where little is left.
const fn forget(delay_ns: u64) -> u64 {
    delay_ns - delay_ns.div_ceil(FORGET)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses the faster kind each time. Returns how many of `wakes` were on the occupied CPU.
    fn choose(wakes: u32, occupied_ns: u64, free_ns: u64) -> u32 {
        let mut delays = WakeDelays::default();
        let mut occupied_wakes = 0;
        for _ in 0..wakes {
            let occupied = delays.occupied_ns < delays.free_ns;
            occupied_wakes += u32::from(occupied);
            delays = delays.note(occupied, if occupied { occupied_ns } else { free_ns });
        }
        occupied_wakes
    }

    #[test]
    fn the_faster_kind_wins_and_the_other_is_tried_seldom() {
        assert!(choose(10_000, 2_000, 5_000) > 9_900);
        let tried = choose(100_000, 3_000_000, 5_000);
        assert!((1..200).contains(&tried), "{tried} of 100,000 took 3 ms");
    }

    #[test]
    fn what_was_slow_is_tried_again_after_a_while() {
        for occupied in [false, true] {
            let slow = WakeDelays::default().note(occupied, 3_000_000);
            let slower = |delays: WakeDelays| {
                let Delays(this, other) = Delays::of(delays, occupied);
                this > other
            };
            let other = |delays: WakeDelays| delays.note(!occupied, 20_000);
            let after = |count| (0..count).fold(slow, |delays, _| other(delays));
            assert!(slower(after(1_000)), "not soon");
            assert!(!slower(after(60_000)));
        }
    }

    struct Delays(u64, u64);

    impl Delays {
        fn of(delays: WakeDelays, occupied: bool) -> Self {
            let WakeDelays { occupied_ns, free_ns } = delays;
            if occupied { Self(occupied_ns, free_ns) } else { Self(free_ns, occupied_ns) }
        }
    }

    #[test]
    fn what_was_slow_once_is_tried_again_where_the_other_kind_is_fast() {
        for free_ns in [2_000, 5_000, 8_000] {
            let tried = choose(1_000_000, 3_000_000, free_ns);
            assert!(tried > 1, "{tried} of 1,000,000, where others take {free_ns} ns");
        }
    }
}
