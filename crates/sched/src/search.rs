//! How long a worker without work stays awake, looking, before it parks.

/// What a sleep and the wake-up from it cost together, in nanoseconds. Measured: 5 to 15 us on
/// current x86-64 servers, half of it the waker's.
pub const SLEEP_COST_NS: u64 = 10_000;

/// How long the gaps between work have been lately: a running mean that rises at once and falls
/// slowly, so that one long sleep among short gaps ends the searching for a while.
///
/// ```
/// use homing_sched::{Gaps, SLEEP_COST_NS};
///
/// let busy = (0..200).fold(Gaps::UNKNOWN, |gaps, _| gaps.note(2_000));
/// assert_eq!(busy.search_ns(false), SLEEP_COST_NS);
/// assert_eq!(busy.search_ns(true), 0, "others want the CPU");
/// assert_eq!(busy.note(1_000_000).search_ns(false), 0, "it would be in vain");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    mean_ns: u64,
}

impl Gaps {
    /// Before anything is known: as if the last gap had been long.
    pub const UNKNOWN: Self = Self { mean_ns: u64::MAX / 2 };

    /// Takes note of a gap: from when work ran out until there was some.
    #[must_use]
    pub const fn note(self, gap_ns: u64) -> Self {
        let mean_ns = if gap_ns >= self.mean_ns {
            gap_ns
        } else {
            self.mean_ns - (self.mean_ns - gap_ns).div_ceil(4)
        };
        Self { mean_ns }
    }

    /// How long to look before parking; 0: park at once.
    ///
    /// Looking pays where work comes before a sleep would have been over: then it costs at most
    /// what the sleep does. So never longer than that, and not at all where work has been coming
    /// later lately, or where the CPU is wanted by somebody else (`occupied`).
    pub const fn search_ns(self, occupied: bool) -> u64 {
        if occupied || self.mean_ns >= SLEEP_COST_NS { 0 } else { SLEEP_COST_NS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_while_gaps_are_short_and_nobody_wants_the_cpu() {
        let mut gaps = Gaps::UNKNOWN;
        assert_eq!(gaps.search_ns(false), 0);
        let mut noted = 0;
        while gaps.search_ns(false) == 0 {
            gaps = gaps.note(2_000);
            noted += 1;
        }
        assert!(noted < 200, "{noted}");
        assert_eq!(gaps.search_ns(false), SLEEP_COST_NS);
        assert_eq!(gaps.search_ns(true), 0);
        gaps = gaps.note(1_000_000);
        assert_eq!(gaps.search_ns(false), 0, "one long gap");
        (0..12).for_each(|_| gaps = gaps.note(2_000));
        assert_eq!(gaps.search_ns(false), 0);
        (0..12).for_each(|_| gaps = gaps.note(2_000));
        assert!(gaps.search_ns(false) > 0, "twenty-four short ones");
    }
}
