//! The facts that decisions are made from, as they are at this moment.

use homing_sched::{
    Attributes, Facts, Features, IssuerTime, IssuerWait, PoolId, PoolSet, QueueId, WakeDelays,
};
use homing_topology::{CpuId, CpuSet};

use super::Dispatch;
use crate::measure::clock::now_ns;
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

/// What is measured, and asked for as above.
impl Dispatch {
    /// Notes how long the worker of `cpu` took to run after it was woken.
    pub(crate) fn note_wake_delay(&self, cpu: CpuId, now_ns: u64) {
        let (woken_ns, occupied) = self.slot(cpu).woken();
        let delays = self.wake_delays().note(occupied, now_ns.saturating_sub(woken_ns));
        self.delay_occupied_ns.store(delays.occupied_ns, Ordering::Relaxed);
        self.delay_free_ns.store(delays.free_ns, Ordering::Relaxed);
    }

    fn wake_delays(&self) -> WakeDelays {
        WakeDelays {
            occupied_ns: self.delay_occupied_ns.load(Ordering::Relaxed),
            free_ns: self.delay_free_ns.load(Ordering::Relaxed),
        }
    }

    /// Notes that an issuer was on a CPU for `on_cpu_ns` of the `elapsed_ns` since it was asked
    /// last.
    pub(crate) fn note_issuer_time(&self, elapsed_ns: u64, on_cpu_ns: u64) {
        let waited = IssuerTime::default().note(elapsed_ns, on_cpu_ns).bits();
        if waited != 0 {
            self.issuer_time.fetch_or(waited, Ordering::Relaxed);
        }
    }

    fn issuer_time(&self) -> IssuerTime {
        IssuerTime::from_bits(self.issuer_time.load(Ordering::Relaxed))
    }

    /// Notes that an issuer was called `wait_ns` after it had begun to wait.
    pub(crate) fn note_issuer_wait(&self, wait_ns: u64) {
        let wait = self.issuer_wait().note(wait_ns);
        self.issuer_wait_ns.store(wait.mean_ns(), Ordering::Relaxed);
    }

    fn issuer_wait(&self) -> IssuerWait {
        IssuerWait::from_ns(self.issuer_wait_ns.load(Ordering::Relaxed))
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
