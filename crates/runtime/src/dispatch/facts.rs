//! The facts that decisions are made from, as they are at this moment.

use homing_sched::{Attributes, Facts, Features, PoolId, PoolSet, QueueId};
use homing_topology::{CpuId, CpuSet};

use super::Dispatch;
use crate::clock::now_ns;
use crate::sync::Ordering;

impl Facts for Dispatch {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn features(&self) -> Features {
        Features::from_bits(self.features.load(Ordering::Relaxed) as u8)
    }

    fn active(&self) -> CpuSet {
        self.active.snapshot()
    }

    fn idle(&self) -> CpuSet {
        self.idle.snapshot()
    }

    fn searching(&self) -> CpuSet {
        self.searching.snapshot()
    }

    fn occupied(&self, item_ns: u64) -> CpuSet {
        let brief = self.issuer_wait().is_brief(item_ns);
        if brief { self.occupied.all() } else { self.occupied.snapshot() }
    }

    fn busy_since_ns(&self, cpu: CpuId) -> u64 {
        self.slot(cpu).busy_since_ns()
    }

    fn wake_ns(&self, occupied: bool) -> u64 {
        let delays = self.wake_delays();
        if occupied { delays.occupied_ns } else { delays.free_ns }
    }

    fn issuers_are_busy(&self) -> bool {
        self.issuer_time().is_all_used() && self.occupied.any() && !self.occupied.any_waits()
    }

    fn pools(&self) -> PoolSet {
        self.pools.in_use()
    }

    fn attributes(&self, pool: PoolId) -> Attributes {
        self.pools.attributes(pool)
    }

    fn cpumask(&self, pool: PoolId) -> Option<&CpuSet> {
        self.pools.cpumask(pool)
    }

    fn waiting(&self, queue: QueueId) -> u32 {
        self.pools.queue(queue).waiting()
    }

    fn head_since_ns(&self, queue: QueueId) -> u64 {
        self.pools.queue(queue).head_since_ns(now_ns)
    }

    fn item_ns(&self, queue: QueueId) -> u64 {
        self.pools.queue(queue).length().mean_ns()
    }
}

/// What the runtime itself asks.
impl Dispatch {
    pub(crate) fn has_work(&self) -> bool {
        self.pools.queues().any(|queue| queue.waiting() > 0)
    }

    pub(crate) fn is_any_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Whether each CPU has been announced idle and has not been woken since.
    pub(crate) fn all_idle(&self) -> bool {
        self.idle.contains_all(&self.active)
    }

    /// Whether all workers sleep or are about to, and nothing waits.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.slots().all(|(_, slot)| slot.working_owner().is_none()) && !self.has_work()
    }
}
