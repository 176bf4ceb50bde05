//! What a decision may know. The threads of a runtime read it from atomics, a simulator from plain
//! fields. Any of it may be stale or torn by the time the decision is carried out.

use homing_topology::{CpuId, CpuSet};

use crate::attributes::Attributes;
use crate::features::Features;
use crate::layout::{PoolId, PoolSet, QueueId};

/// The visible state of the runtime. Times are integer nanoseconds of one monotonic clock.
///
/// ```
/// use homing_sched::*;
/// use homing_topology::{CpuId, CpuSet, Machine, Scope};
///
/// // What a simulator knows: which CPUs are idle, and how many items wait in each queue.
/// struct Given { idle: CpuSet, waiting: u32 }
///
/// impl Facts for Given {
///     fn now_ns(&self) -> u64 { 1_000_000 }
///     fn features(&self) -> Features { Features::ALL }
///     fn active(&self) -> CpuSet { "0-3".parse().unwrap() }
///     fn idle(&self) -> CpuSet { self.idle }
///     fn searching(&self) -> CpuSet { CpuSet::EMPTY }
///     fn occupied(&self, _: u64) -> CpuSet { CpuSet::EMPTY }
///     fn pools(&self) -> PoolSet { PoolSet::first(1) }
///     fn attributes(&self, _: PoolId) -> Attributes {
///         Attributes::new(Affinity { scope: Scope::Cache, strict: false })
///     }
///     fn waiting(&self, _: QueueId) -> u32 { self.waiting }
///     fn head_since_ns(&self, _: QueueId) -> u64 { 0 }
///     fn item_ns(&self, _: QueueId) -> u64 { 0 }
/// }
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let given = Given { idle: "3".parse()?, waiting: 1 };
/// let placement = submit(&layout, &given, CpuId::new(0).ok_or("?")?, PoolId(0));
/// assert_eq!(placement.wake, CpuId::new(3), "of the other cache: nobody else is idle");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Facts {
    /// The time. It is read only if a decision depends on it, because reading a clock is not free.
    fn now_ns(&self) -> u64;

    /// The parts of the policy that are on.
    fn features(&self) -> Features;

    /// The CPUs that have a worker at present.
    fn active(&self) -> CpuSet;

    /// The CPUs whose worker has announced that it is idle and has not been woken since.
    fn idle(&self) -> CpuSet;

    /// The CPUs whose worker is awake without work and will look at every queue that it may
    /// serve before it announces that it is idle.
    fn searching(&self) -> CpuSet;

    /// The CPUs on which threads that are not workers have just issued items, and which are better
    /// left to them than used for an item of this length: a worker woken there would compete with
    /// its issuer. If the issuer waits for its items, its CPU is left to it only if such waits are
    /// shorter than half of that length ([`crate::IssuerWait`]).
    fn occupied(&self, item_ns: u64) -> CpuSet;

    /// Since when the awake worker of a CPU has run what it runs, or has been called. A worker that
    /// has been busy for long may not come by soon. A time in the future means that it has just
    /// begun.
    fn busy_since_ns(&self, _cpu: CpuId) -> u64 {
        u64::MAX
    }

    /// How long a woken worker has lately taken to run, in nanoseconds: on a CPU occupied by its
    /// issuer, or on another one ([`crate::WakeDelays`]).
    fn wake_ns(&self, occupied: bool) -> u64 {
        u64::from(occupied)
    }

    /// Whether the threads that issue use all of their time, as far as they were asked: then none
    /// of them waits for its items ([`crate::IssuerTime`]). False if only workers issue.
    fn issuers_are_busy(&self) -> bool {
        false
    }

    /// The pools to look at: at least all that have items.
    fn pools(&self) -> PoolSet;

    /// The attributes of a pool.
    fn attributes(&self, pool: PoolId) -> Attributes;

    /// The CPUs that the items of a pool may use, unless all are allowed.
    fn cpumask(&self, _pool: PoolId) -> Option<&CpuSet> {
        None
    }

    /// About how many items wait in a queue; 0 only if none does.
    fn waiting(&self, queue: QueueId) -> u32;

    /// Since when, about, the first item of a queue has been waiting. Read only if some wait.
    fn head_since_ns(&self, queue: QueueId) -> u64;

    /// How long the items of a queue run ([`crate::ItemLength::mean_ns`]); 0 if this is not known
    /// yet.
    fn item_ns(&self, queue: QueueId) -> u64;
}
