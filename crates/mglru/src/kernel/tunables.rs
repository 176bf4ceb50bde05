//! Every constant of the algorithm that can be changed while it runs, with the kernel's value as
//! the default.
//!
//! The numbers of generations and tiers are not tunable: frames store both in a few bits.

use std::fmt;

/// Generations that are never evicted; also the least number of generations.
pub const MIN_NR_GENS: u64 = 2;
/// The greatest number of generations.
pub const MAX_NR_GENS: u64 = 4;
/// Tiers of a generation.
pub const MAX_NR_TIERS: usize = 4;
/// The highest swappiness at which clean pages are still evicted, too.
pub const MAX_SWAPPINESS: u16 = 200;
/// The swappiness at which only dirty pages are evicted.
pub const SWAPPINESS_DIRTY_ONLY: u16 = MAX_SWAPPINESS + 1;
/// The largest value of a batch, a factor or a size among the tunables.
pub const TUNABLE_MAX: u32 = 1 << 30;

/// Constants, in the unit that each names. The defaults are the kernel's unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// What is switched on.
    pub enabled: Enabled,
    /// How much eviction prefers dirty pages: 0 (never) to 200, or 201 (only dirty pages).
    pub swappiness: u16,
    /// For how many milliseconds a generation is protected from eviction; 0 for no protection.
    pub min_ttl_ms: u64,
    /// `MIN_LRU_BATCH`: the most frames that a batch isolates. It is also the number of refaults
    /// below which the feedback does not react, and what the feedback adds to the total of the set
    /// point.
    pub min_lru_batch: u32,
    /// `MAX_LRU_BATCH`: the most frames that a batch looks at.
    pub max_lru_batch: u32,
    /// How many frames are looked at around a young one that eviction meets: a power of two. The
    /// young frame is among them, and the number of the first is a multiple of this.
    pub look_around: u32,
    /// A region is worth a visit if at least one in this many of its frames was young.
    pub young_share: u32,
    /// The weight of tier 0, which is the set point for the higher ones.
    pub gain_base: u32,
    /// The weight of the higher tiers.
    pub gain_tier: u32,
    /// A refault is recent if fewer generations than this were made since the eviction.
    pub recent_gens: u32,
    /// Where clean pages come in, counted back from the youngest generation: 1 to 4, where 4 is the
    /// oldest. Pages with the working set mark come in one generation above that.
    pub inflow_back: u32,
    /// Whether aging also considers, as kernels before 6.14 do, how pages spread over the
    /// generations.
    pub spread: bool,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            enabled: Enabled::ALL,
            swappiness: 60,
            min_ttl_ms: 0,
            min_lru_batch: 64,
            max_lru_batch: 4096,
            look_around: 64,
            young_share: 8,
            gain_base: 2,
            gain_tier: 3,
            recent_gens: 4,
            inflow_back: 4,
            spread: false,
        }
    }
}

/// A value that a tunable cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} cannot be {value}: {bounds}")]
pub struct TunablesError {
    name: &'static str,
    value: u64,
    bounds: &'static str,
}

impl Tunables {
    /// Checks that all values are within their bounds; the error names the first that is not.
    pub fn check(&self) -> Result<(), TunablesError> {
        let fail =
            |name, value: u32, bounds| Err(TunablesError { name, value: u64::from(value), bounds });
        if self.swappiness > SWAPPINESS_DIRTY_ONLY {
            return fail("swappiness", u32::from(self.swappiness), "take 0 to 201");
        }
        for (name, value) in [
            ("min_lru_batch", self.min_lru_batch),
            ("max_lru_batch", self.max_lru_batch),
            ("look_around", self.look_around),
            ("young_share", self.young_share),
            ("gain_base", self.gain_base),
            ("gain_tier", self.gain_tier),
        ] {
            if value == 0 || value > TUNABLE_MAX {
                return fail(name, value, "take 1 to 1073741824");
            }
        }
        if !self.look_around.is_power_of_two() {
            return fail("look_around", self.look_around, "take a power of two");
        }
        if self.recent_gens > super::token::SEQ_DISTANCE_MAX {
            return fail("recent_gens", self.recent_gens, "take at most 1024");
        }
        if !(1..=MAX_NR_GENS as u32).contains(&self.inflow_back) {
            return fail("inflow_back", self.inflow_back, "take 1 to 4");
        }
        Ok(())
    }
}

/// What is switched on: `lru_gen/enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enabled(u16);

/// A text that `enabled` cannot be set to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("enabled cannot be {text:?}: write y, n, or a number from 0 to 7, as in 0x0007")]
pub struct ParseEnabledError {
    text: String,
}

impl Enabled {
    /// The generations themselves. Without them, a plain CLOCK chooses.
    pub const MAIN: Self = Self(0x1);
    /// Sweeps over the accessed marks.
    pub const WALK: Self = Self(0x2);
    /// Sweeps skip regions in which nothing is expected (in the kernel: accessed bits of inner
    /// entries of page tables). Without it they visit all regions.
    pub const NONLEAF: Self = Self(0x4);
    /// Everything.
    pub const ALL: Self = Self(0x7);
    /// Nothing: a plain CLOCK.
    pub const NONE: Self = Self(0);

    /// Whether all of these are on.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These without those.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for Enabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

impl std::str::FromStr for Enabled {
    type Err = ParseEnabledError;

    fn from_str(text: &str) -> Result<Self, ParseEnabledError> {
        let trimmed = text.trim();
        let number = match trimmed {
            "y" | "Y" => return Ok(Self::ALL),
            "n" | "N" => return Ok(Self::NONE),
            _ => match trimmed.strip_prefix("0x").or(trimmed.strip_prefix("0X")) {
                // Besides digits, `from_str_radix` accepts a sign.
                Some(digits) if !digits.starts_with('+') => u16::from_str_radix(digits, 16).ok(),
                None if !trimmed.starts_with('+') => trimmed.parse().ok(),
                _ => None,
            },
        };
        number
            .filter(|bits| *bits <= Self::ALL.0)
            .map(Self)
            .ok_or_else(|| ParseEnabledError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enabled_is_read_and_shown_as_in_the_kernel() {
        for (text, shown) in
            [("y", "0x0007"), ("n", "0x0000"), ("5\n", "0x0005"), ("0x3", "0x0003")]
        {
            assert_eq!(text.parse::<Enabled>().unwrap().to_string(), shown);
        }
        for bad in ["", "8", "0x8", "yes", "+1", "0x+1", "-1"] {
            let error = bad.parse::<Enabled>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
        assert!(Enabled::ALL.without(Enabled::WALK).with(Enabled::WALK).has(Enabled::ALL));
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        assert_eq!(Tunables::default().check(), Ok(()));
        for (bad, name) in [
            (Tunables { swappiness: 202, ..Tunables::default() }, "swappiness"),
            (Tunables { min_lru_batch: 0, ..Tunables::default() }, "min_lru_batch"),
            (Tunables { look_around: 48, ..Tunables::default() }, "look_around"),
            (Tunables { inflow_back: 5, ..Tunables::default() }, "inflow_back"),
            (Tunables { gain_tier: u32::MAX, ..Tunables::default() }, "gain_tier"),
            (Tunables { recent_gens: 5000, ..Tunables::default() }, "recent_gens"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
