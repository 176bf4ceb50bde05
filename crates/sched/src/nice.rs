//! `nice`: how a CPU's time is shared among the pools that have work for it.

use serde::{Deserialize, Serialize};

use crate::layout::PoolId;

/// How nice the items of a workqueue are to others: the kernel's nice levels, -20 to 19. A pool
/// gets 1.25 times as much of a CPU's time as a pool that is one level nicer, as with the kernel's
/// threads.
///
/// ```
/// use homing_sched::Nice;
///
/// let nicer = Nice::new(5).ok_or("out of range")?;
/// assert_eq!((nicer.get(), Nice::NORMAL.get()), (5, 0));
/// assert_eq!(Nice::NORMAL.weight() / nicer.weight(), 3, "1.25 to the fifth");
/// assert_eq!(Nice::new(20), None);
/// # Ok::<(), &str>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "i8")]
pub struct Nice(i8);

impl Nice {
    /// The level of the kernel's `WQ_HIGHPRI`: 87 times the share of [`Nice::NORMAL`].
    pub const HIGHPRI: Self = Self(-20);
    /// The default.
    pub const NORMAL: Self = Self(0);
    /// The least share.
    pub const MAX: Self = Self(19);

    /// `None` unless the level is between -20 and 19.
    pub const fn new(level: i8) -> Option<Self> {
        if level >= Self::HIGHPRI.0 && level <= Self::MAX.0 { Some(Self(level)) } else { None }
    }

    /// The level.
    pub const fn get(self) -> i8 {
        self.0
    }

    /// The share of a CPU, relative to 1,024 for level 0.
    pub const fn weight(self) -> u64 {
        const BITS: u32 = 20;
        let mut weight = 1024 << BITS;
        let mut level = self.0;
        while level < 0 {
            weight = weight / 4 * 5;
            level += 1;
        }
        while level > 0 {
            weight = weight / 5 * 4;
            level -= 1;
        }
        weight >> BITS
    }
}

impl TryFrom<i8> for Nice {
    type Error = String;

    fn try_from(level: i8) -> Result<Self, String> {
        Self::new(level).ok_or_else(|| format!("{level} is not a nice level: -20 to 19"))
    }
}

/// The least time that a batch counts for, in nanoseconds: clocks are coarser than short items.
const BATCH_MIN_NS: u64 = 100;

/// How much of one CPU's time each pool has had, by weight. The CPU's worker takes from the pool
/// that has had the least, among those that have work.
///
/// A pool that had no work for a while does not save up its share: it begins where the others are.
/// This is the virtual run time of the kernel's fair scheduler, with batches as time slices.
///
/// ```
/// use homing_sched::{Nice, PoolId, Shares};
///
/// let (plain, kind) = (PoolId(0), PoolId(1));
/// let mut shares = Shares::default();
/// shares.ran(plain, Nice::NORMAL, 10_000);
/// shares.ran(kind, Nice::new(10).ok_or("?")?, 10_000);
/// assert!(shares.had_ns(kind) > 5 * shares.had_ns(plain), "it is satisfied with less");
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Shares {
    /// By pool: weighted nanoseconds.
    had_ns: Vec<u64>,
    /// The most that a pool had had when it was taken from: others begin there.
    floor_ns: u64,
}

impl Shares {
    /// Nobody has had anything: for callers that only ask whether there is work.
    pub const NONE: Self = Self { had_ns: Vec::new(), floor_ns: 0 };

    /// What the pools have had, by their numbers, and where the others begin: as another worker of
    /// the same CPU left it.
    ///
    /// ```
    /// use homing_sched::{Nice, PoolId, Shares};
    ///
    /// let mut shares = Shares::default();
    /// shares.ran(PoolId(1), Nice::NORMAL, 10_000);
    /// shares.ran(PoolId(1), Nice::NORMAL, 10_000);
    /// let again = Shares::new([0, 20_000], shares.floor_ns());
    /// assert_eq!([0, 1].map(|pool| again.had_ns(PoolId(pool))), [10_000, 20_000]);
    /// ```
    pub fn new(had_ns: impl IntoIterator<Item = u64>, floor_ns: u64) -> Self {
        let mut had_ns: Vec<u64> = had_ns.into_iter().collect();
        let used = had_ns.iter().rposition(|had_ns| *had_ns > 0).map_or(0, |last| last + 1);
        had_ns.truncate(used);
        Self { had_ns, floor_ns }
    }

    /// What a pool counts as having had that begins now.
    pub fn floor_ns(&self) -> u64 {
        self.floor_ns
    }

    /// What a pool has had, or would count as having had if it began now.
    pub fn had_ns(&self, pool: PoolId) -> u64 {
        self.had_ns.get(usize::from(pool.0)).map_or(0, |had| *had).max(self.floor_ns)
    }

    /// Notes that a batch of the pool has run for this long.
    pub fn ran(&mut self, pool: PoolId, nice: Nice, elapsed_ns: u64) {
        let before_ns = self.had_ns(pool);
        self.ran_before(pool, nice, elapsed_ns);
        self.floor_ns = before_ns;
    }

    /// [`Shares::ran`] for what is told late: the pool may have had more than others by now, so
    /// where these begin stays.
    ///
    /// ```
    /// use homing_sched::{Nice, PoolId, Shares};
    ///
    /// let mut shares = Shares::default();
    /// for _ in 0..2 {
    ///     shares.ran_before(PoolId(1), Nice::NORMAL, 10_000);
    /// }
    /// assert_eq!([0, 1].map(|pool| shares.had_ns(PoolId(pool))), [0, 20_000]);
    /// ```
    pub fn ran_before(&mut self, pool: PoolId, nice: Nice, elapsed_ns: u64) {
        let index = usize::from(pool.0);
        if index >= self.had_ns.len() {
            // This happens once for a pool, and there are few.
            self.had_ns.resize(index + 1, 0);
        }
        let before_ns = self.had_ns(pool);
        let weighted_ns = elapsed_ns.max(BATCH_MIN_NS).saturating_mul(1024) / nice.weight();
        self.had_ns[index] = before_ns.saturating_add(weighted_ns.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_quarter_more() {
        assert_eq!(Nice::new(-21), None);
        assert_eq!(Nice::new(20), None);
        assert_eq!(Nice::NORMAL.weight(), 1024);
        assert_eq!(Nice::HIGHPRI.weight() / 1024, 86);
        assert!((14..=15).contains(&Nice::MAX.weight()));
        for level in -20..19 {
            let weight = |level| Nice::new(level).unwrap().weight();
            let ratio = weight(level) * 100 / weight(level + 1);
            // The smallest weights are whole numbers, too.
            assert!((120..=134).contains(&ratio), "{level}: {ratio}");
        }
    }

    #[test]
    fn busy_pools_get_their_weights_shares_and_idle_ones_save_nothing_up() {
        let pools = [Nice::new(-5).unwrap(), Nice::NORMAL, Nice::new(5).unwrap()];
        let mut shares = Shares::default();
        let mut ran = |rounds, among: &[usize]| {
            let mut ran = [0_u64; 3];
            for _ in 0..rounds {
                let least = *among.iter().min_by_key(|p| shares.had_ns(PoolId(**p as u8))).unwrap();
                shares.ran(PoolId(least as u8), pools[least], 10_000);
                ran[least] += 1;
            }
            ran
        };
        let all = ran(10_000, &[0, 1, 2]);
        for pool in 0..3 {
            let total: u64 = pools.iter().map(|nice| nice.weight()).sum();
            let fair = 10_000 * pools[pool].weight() / total;
            assert!(all[pool].abs_diff(fair) <= 2, "{all:?}, fair {fair}");
        }
        ran(10_000, &[0, 2]);
        let back = ran(100, &[0, 1, 2]);
        assert!(back[1] < 30, "it does not catch up on what it did not want: {back:?}");
    }

    #[test]
    fn a_batch_too_short_for_the_clock_counts_all_the_same() {
        let mut shares = Shares::default();
        shares.ran(PoolId(0), Nice::NORMAL, 0);
        assert_eq!(shares.had_ns(PoolId(0)), BATCH_MIN_NS);
    }
}
