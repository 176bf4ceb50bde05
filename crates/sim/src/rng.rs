//! Random numbers that are the same everywhere for the same seed.

/// `SplitMix64` (Steele, Lea, Flood, 2014): one addition and a few shifts, any seed is good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; 0 where that is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.bits() as u128 * bound as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// About `mean`, at most `percent` per cent more or less.
    pub const fn about(&mut self, mean: u64, percent: u64) -> u64 {
        let spread = mean / 100 * percent;
        self.between(mean - spread, mean + spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut rng = Rng::new(1);
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| rng.between(3, 7)).collect();
        assert!(seen.into_iter().eq(3..=7));
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| (900..=1100).contains(&rng.about(1000, 10))));
        assert_ne!(Rng::new(1).bits(), Rng::new(2).bits());
    }
}
