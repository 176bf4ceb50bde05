//! Why a worker has no work, and since when.

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::pull::Reach;

/// A worker that has been idle for this long pulls any item that it may, however fresh; from beyond
/// its cache only if some issuer waits. Derived: ten times the most expensive pull.
pub const IDLE_PATIENCE_NS: u64 = 100_000;

/// A worker that has slept within this time takes at once from pods that have more items than CPUs.
/// Any other worker first goes to sleep, if only until the work is ripe: when threads wait for a
/// CPU, such as issuers that crowd behind another cache, a kernel mostly moves them to a CPU that
/// has become idle. Simulated: with a quarter of this value the gain is three quarters; with no
/// bound there is none where issuers can move.
pub const RESTED_NS: u64 = 4_000_000;

/// Why a worker has no work, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Idle {
    /// It ran out of work at this time.
    Since(u64),
    /// The same, for a worker that has slept lately ([`RESTED_NS`]).
    Rested(u64),
    /// It was woken at this time for an item that far away. It takes any item that is no farther,
    /// however fresh. It treats farther items as if it had run out of work at that time: if another
    /// worker was faster, its waker did not mean the items of other pods, for which workers have
    /// been woken, or will come by.
    Called(Reach, u64),
    /// Its patience is exhausted, or no other worker may come: it takes the freshest item, wherever
    /// it is.
    Any,
}

impl Idle {
    /// The state of a worker that has just run out of work, and that last slept until `slept_ns`.
    ///
    /// ```
    /// use homing_sched::{Idle, RESTED_NS};
    ///
    /// let slept_ns = 500;
    /// assert_eq!(Idle::out_of_work(700, slept_ns), Idle::Rested(700));
    /// let later = slept_ns + RESTED_NS;
    /// assert_eq!(Idle::out_of_work(later, slept_ns), Idle::Since(later));
    /// ```
    pub const fn out_of_work(now_ns: u64, slept_ns: u64) -> Self {
        let rested = now_ns.saturating_sub(slept_ns) < RESTED_NS;
        if rested { Self::Rested(now_ns) } else { Self::Since(now_ns) }
    }

    /// The state of this worker after it has slept for its given time without being woken: its
    /// patience is exhausted. If no issuer waits, nobody gains from that, and the state stays as it
    /// was.
    ///
    /// ```
    /// use homing_sched::{Affinity, Attributes, Idle, Layout, Snapshot};
    /// use homing_topology::{Machine, Scope};
    ///
    /// let layout = Layout::new(&Machine::from_grid("1x2x1")?).ok_or("no CPU")?;
    /// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
    /// let mut facts = Snapshot::new(&layout, &[attributes]);
    /// assert_eq!(Idle::Since(700).slept(&facts), Idle::Any);
    /// facts.issuers_are_busy = true;
    /// assert_eq!(Idle::Since(700).slept(&facts), Idle::Since(700));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn slept(self, facts: &impl Facts) -> Self {
        if facts.issuers_are_busy() { self } else { Self::Any }
    }
}
