//! The refault feedback. It decides which tiers are protected, and which type goes first, by how
//! much of what was evicted came back. It is a controller with a proportional and an integral part.
//! The counters of one type of pages are in a [`Feedback`].
//!
//! The kernel's documentation calls it a PID controller (`multigen_lru.rst`).

use super::tunables::{MAX_NR_TIERS, Tunables};

/// One number for each tier.
pub(super) type PerTier = [u64; MAX_NR_TIERS];

/// What became of the pages of one type: in the oldest generation, and on average in earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Pages that came back soon, by the tier they had.
    pub refaulted: [u64; MAX_NR_TIERS],
    /// Pages of the oldest generation that were evicted.
    pub evicted: [u64; MAX_NR_TIERS],
    /// Pages of the oldest generation that were not evicted, because of their tier or of aging.
    pub protected: [u64; MAX_NR_TIERS],
    /// Moving average of refaults.
    pub avg_refaulted: [u64; MAX_NR_TIERS],
    /// Moving average of evicted and protected pages.
    pub avg_total: [u64; MAX_NR_TIERS],
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtrlPos {
    /// Pages that came back.
    pub refaulted: u64,
    /// Pages that could have been evicted.
    pub total: u64,
    /// Its weight.
    pub gain: u32,
}

impl Feedback {
    /// The sum of some tiers.
    pub fn position(&self, tiers: std::ops::Range<usize>, gain: u32) -> CtrlPos {
        let sum = |counters: &PerTier| counters[tiers.clone()].iter().sum::<u64>();
        CtrlPos {
            refaulted: sum(&self.avg_refaulted) + sum(&self.refaulted),
            total: sum(&self.avg_total) + sum(&self.protected) + sum(&self.evicted),
            gain,
        }
    }

    /// The highest tier that may be evicted; those above are protected.
    pub fn tier_index(&self, tunables: &Tunables) -> usize {
        let base = self.position(0..1, tunables.gain_base);
        let higher = (1..MAX_NR_TIERS).take_while(|tier| {
            let pv = self.position(*tier..tier + 1, tunables.gain_tier);
            positive(base, pv, tunables.min_lru_batch)
        });
        higher.last().unwrap_or(0)
    }

    /// Moves the counters of the oldest generation, which is gone, into the averages.
    pub(super) fn carry_over(&mut self) {
        for tier in 0..MAX_NR_TIERS {
            let refaulted = self.avg_refaulted[tier] + self.refaulted[tier];
            let total = self.avg_total[tier] + self.protected[tier] + self.evicted[tier];
            self.avg_refaulted[tier] = refaulted / 2;
            self.avg_total[tier] = total / 2;
        }
        self.refaulted = PerTier::default();
        self.evicted = PerTier::default();
        self.protected = PerTier::default();
    }
}

/// Whether the process variable may be evicted as readily as the set point: it came back fewer than
/// `batch` times, or not more often in proportion, by their gains.
pub fn positive(sp: CtrlPos, pv: CtrlPos, batch: u32) -> bool {
    // The product of three counters of 64 bits could exceed even 128 bits. If it saturates, both
    // sides are as good as equal.
    let product = |refaulted: u128, total: u128, gain: u32| {
        refaulted.saturating_mul(total).saturating_mul(u128::from(gain))
    };
    let sp_total = u128::from(sp.total) + u128::from(batch);
    let pv_rate = product(pv.refaulted.into(), sp_total, sp.gain);
    let sp_rate = product(u128::from(sp.refaulted) + 1, pv.total.into(), pv.gain);
    pv.refaulted < u64::from(batch) || pv_rate <= sp_rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_is_as_the_formula_says() {
        // sp: refaulted, total, gain; pv: the same; whether pv may be evicted.
        let table = [
            ((0, 0, 2), (63, 63, 3), true),
            ((0, 0, 2), (64, 64, 3), false),
            // 64 * (1000 + 64) * 2 = 136_192 against (r + 1) * 64 * 3
            ((708, 1000, 2), (64, 64, 3), false),
            ((709, 1000, 2), (64, 64, 3), true),
            // 100 * 164 * 2 = 32_800 against 11 * t * 3
            ((10, 100, 2), (100, 993, 3), false),
            ((10, 100, 2), (100, 994, 3), true),
            // A gain of 0, as for a type that is not wanted.
            ((5, 10, 0), (1000, 10, 200), true),
            ((5, 10, 200), (1000, 10, 0), false),
            ((u64::MAX, u64::MAX, 200), (u64::MAX, u64::MAX, 200), true),
        ];
        for ((r, t, gain), (pv_r, pv_t, pv_gain), expected) in table {
            let sp = CtrlPos { refaulted: r, total: t, gain };
            let pv = CtrlPos { refaulted: pv_r, total: pv_t, gain: pv_gain };
            assert_eq!(positive(sp, pv, 64), expected, "{sp:?} {pv:?}");
        }
    }

    #[test]
    fn tiers_are_protected_from_the_first_that_comes_back_too_often() {
        let tunables = Tunables::default();
        let with = |refaulted| Feedback { refaulted, evicted: [1000; 4], ..Feedback::default() };
        // 2 * 1064 * r <= 3 * 1000 * (101): r up to 142.
        for (refaulted, index) in [
            ([0, 0, 0, 0], 3),
            ([100, 142, 142, 142], 3),
            ([100, 143, 0, 0], 0),
            ([100, 142, 143, 0], 1),
            ([100, 0, 142, 143], 2),
        ] {
            assert_eq!(with(refaulted).tier_index(&tunables), index, "{refaulted:?}");
        }
    }

    #[test]
    fn averages_take_half_of_what_is_new() {
        let mut feedback = Feedback {
            refaulted: [9, 0, 0, 1],
            evicted: [10, 1, 0, 0],
            protected: [5, 0, 0, 3],
            avg_refaulted: [3, 5, 0, 0],
            avg_total: [100, 0, 0, 0],
        };
        let before = feedback.position(0..4, 7);
        assert_eq!(before, CtrlPos { refaulted: 18, total: 119, gain: 7 });
        feedback.carry_over();
        let expected = Feedback {
            avg_refaulted: [6, 2, 0, 0],
            avg_total: [57, 0, 0, 1],
            ..Feedback::default()
        };
        assert_eq!(feedback, expected);
    }
}
