//! Why and since when a worker has no work.

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::pull::Reach;

/// A worker that has been idle for this long pulls whatever it may, however fresh; from beyond its cache only
/// where some issuer waits. Derived: ten times the dearest pull.
pub const IDLE_PATIENCE_NS: u64 = 100_000;

/// Who has slept within this time takes at once what other pods have more of than they have CPUs. Who has not goes
/// to sleep first, if only until it is ripe: a kernel moves threads that wait for a CPU, such as issuers that crowd
/// behind another cache, mostly to one that has become idle. Simulated; with a quarter of it the gain is three
/// quarters, with no bound it is none where issuers can move.
pub const RESTED_NS: u64 = 4_000_000;

/// Why and since when a worker has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Idle {
    /// It has just run out of work, at this time.
    Since(u64),
    /// The same, of one that has slept of late ([`RESTED_NS`]).
    Rested(u64),
    /// It was woken at this time for an item that far away: it takes any that is no farther, however fresh, and
    /// what is farther as if it had run out of work then. If somebody else was faster, its waker did not mean
    /// the items of others: these have been woken for them, or come by.
    Called(Reach, u64),
    /// Its patience is at an end, or nobody else may come: it takes the freshest item, wherever it is.
    Any,
}

impl Idle {
    /// Of a worker that has just run out of work, and has slept until `slept_ns`.
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

    /// Of a worker that was so, and has slept until the time that it was given without being woken: its
    /// patience is at an end. Where no issuer waits that is nothing to anybody, and it goes on as it was.
    #[must_use]
    pub fn slept(self, facts: &impl Facts) -> Self {
        if facts.issuers_are_busy() { self } else { Self::Any }
    }
}
