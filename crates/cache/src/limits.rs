//! What a group is guaranteed and what it may have, in the unit in which its owner counts, and how
//! soon the group gives up entries because of that.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// The limits of a group, as in the kernel's memory controller. They may be changed at any time.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) min: AtomicU64,
    pub(crate) low: AtomicU64,
    pub(crate) high: AtomicU64,
    pub(crate) max: AtomicU64,
}

/// How soon what a group has goes: groups with earlier claims give first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    OverMax,
    OverHigh,
    OverLow,
    OverMin,
    /// What it has goes only to make room for its own.
    Protected,
}

impl Claim {
    /// All claims, in order.
    pub(crate) const ALL: [Self; 5] =
        [Self::OverMax, Self::OverHigh, Self::OverLow, Self::OverMin, Self::Protected];
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self::new([0, 0, u64::MAX, u64::MAX])
    }
}

impl Limits {
    /// From `min`, `low`, `high` and `max`.
    pub(crate) fn new(limits: [u64; 4]) -> Self {
        let [min, low, high, max] = limits.map(AtomicU64::new);
        Self { min, low, high, max }
    }

    pub(crate) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// How soon a group has to give if it has this much.
    pub(crate) fn claim(&self, usage: u64) -> Claim {
        let over = |limit: &AtomicU64| usage > limit.load(Relaxed);
        match () {
            () if over(&self.max) => Claim::OverMax,
            () if !over(&self.min) => Claim::Protected,
            () if over(&self.high) => Claim::OverHigh,
            () if over(&self.low) => Claim::OverLow,
            () => Claim::OverMin,
        }
    }
}

/// Limits as attributes.
#[cfg(feature = "control")]
impl Limits {
    /// The names of the limits, in the order of [`Limits::all`].
    pub(crate) const NAMES: [&str; 4] = ["min", "low", "high", "max"];

    /// All limits, to be read or set.
    pub(crate) fn all(&self) -> [&AtomicU64; 4] {
        [&self.min, &self.low, &self.high, &self.max]
    }

    /// A limit as text: `max` for none.
    pub(crate) fn to_text(limit: u64) -> String {
        if limit == u64::MAX { "max".to_owned() } else { limit.to_string() }
    }

    /// A limit from such a text, or from a size as people write it.
    pub(crate) fn from_text(text: &str) -> Option<u64> {
        let size = || text.parse().ok().map(|homing_control::ByteSize(size)| size);
        if text == "max" { Some(u64::MAX) } else { size() }
    }

    /// The group and the attribute in a path below that of a cache. A group's name may contain
    /// slashes.
    pub(crate) fn of_group(path: &str) -> Option<(&str, &str)> {
        path.strip_prefix("group/")?.rsplit_once('/')
    }
}
