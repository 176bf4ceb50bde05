//! How expensive it is assumed to be to fetch an item from another pod.

use serde::{Deserialize, Serialize};

use crate::pull::{PULL_AGE_MAX_NS, Reach};

/// How expensive fetching is, relative to what is usual ([`Reach::cost_ns`]): a quarter, half, the
/// same, twice, or four times as much. The more expensive it is, the longer the work of other pods
/// is left to them.
///
/// The usual figures are guesses about machines. [`crate::Auto`] chooses by how much longer the
/// fetched items of a workqueue really ran.
///
/// ```
/// use homing_sched::{PullCost, Reach};
///
/// let items_ns = 10_000;
/// assert_eq!(PullCost::USUAL.age_ns(Reach::Node, items_ns), Reach::Node.cost_ns());
/// let dear = PullCost::from_percent(400).ok_or("one of PullCost::ALL")?;
/// assert_eq!(dear.age_ns(Reach::Node, items_ns), 4 * Reach::Node.cost_ns());
/// assert_eq!((dear.percent(), PullCost::from_percent(90)), (400, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "u64", into = "u64")]
pub struct PullCost(i8);

impl PullCost {
    /// As usual.
    pub const USUAL: Self = Self(0);

    /// All of them, the cheapest first. There are few, because queues with different costs are not
    /// shared.
    pub const ALL: [Self; 5] = [Self(-2), Self(-1), Self(0), Self(1), Self(2)];

    /// From 25, 50, 100, 200 or 400.
    pub fn from_percent(percent: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|cost| cost.percent() == percent)
    }

    /// In per cent of what is usual.
    pub const fn percent(self) -> u64 {
        self.times(100)
    }

    /// How long items that run for `item_ns` are left to their own pod, in nanoseconds: the cost of
    /// fetching one.
    pub fn age_ns(self, reach: Reach, item_ns: u64) -> u64 {
        // Long items touch more memory.
        self.times((item_ns / 16).clamp(reach.cost_ns(), PULL_AGE_MAX_NS))
    }

    const fn times(self, usual: u64) -> u64 {
        // The first shift is by 0 to 4.
        (usual << (self.0 + 2)) >> 2
    }

    /// The cost that is nearest to `measured` of `usual`. It stays as it is until another one is
    /// nearer by far, so that it does not swing.
    #[must_use]
    pub(crate) fn follow(self, measured: u64, usual: u64) -> Self {
        // The middle between two costs is 1.41 times the lower one. A change upward comes at 1.7
        // times the lower one, a change downward at 1.2 times.
        let (measured, usual) = (u128::from(measured) * 100, u128::from(usual));
        let percent = |cost: i8| u128::from(Self(cost).percent());
        let mut cost = self.0;
        while cost < 2 && measured > usual * percent(cost) * 17 / 10 {
            cost += 1;
        }
        while cost > -2 && measured * 17 / 10 < usual * percent(cost) {
            cost -= 1;
        }
        Self(cost)
    }
}

impl TryFrom<u64> for PullCost {
    type Error = String;

    fn try_from(percent: u64) -> Result<Self, String> {
        let known = Self::from_percent(percent);
        known.ok_or_else(|| format!("{percent} is not a pull cost: 25, 50, 100, 200 or 400"))
    }
}

impl From<PullCost> for u64 {
    fn from(cost: PullCost) -> Self {
        cost.percent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_double_and_are_found_by_their_percentage() {
        let percents = PullCost::ALL.map(PullCost::percent);
        assert_eq!(percents, [25, 50, 100, 200, 400]);
        for cost in PullCost::ALL {
            assert_eq!(PullCost::from_percent(cost.percent()), Some(cost));
            assert_eq!(cost.age_ns(Reach::Home, 0), 0);
            assert_eq!(cost.age_ns(Reach::Llc, 0), Reach::Llc.cost_ns() * cost.percent() / 100);
            assert_eq!(
                cost.age_ns(Reach::Remote, u64::MAX),
                PULL_AGE_MAX_NS * cost.percent() / 100
            );
        }
    }

    #[test]
    fn what_is_measured_is_followed_but_not_its_noise() {
        let usual = PullCost::USUAL;
        let follow = |measured| usual.follow(measured, 1_000).percent();
        let measured = [0, 200, 400, 550, 600, 1_000, 1_690, 1_710, 3_500, u64::MAX];
        assert_eq!(measured.map(follow), [25, 25, 50, 50, 100, 100, 100, 200, 400, 400]);
        // Half way between two it stays where it is.
        let twice = PullCost::from_percent(200).unwrap();
        assert_eq!((usual.follow(1_400, 1_000), twice.follow(1_400, 1_000)), (usual, twice));
    }
}
