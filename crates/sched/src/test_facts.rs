//! The facts of unit tests: plain fields, and queues that wait where a test says so.

use homing_topology::{CpuId, CpuSet, Machine, Scope};

use crate::attributes::{Affinity, Attributes};
use crate::facts::Facts;
use crate::features::Features;
use crate::issuer_wait::IssuerWait;
use crate::layout::{Layout, PoolId, PoolSet, QueueId};

/// A queue with items in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) queue: QueueId,
    pub(crate) items: u32,
    pub(crate) since_ns: u64,
}

/// What a test says is so. Nothing waits and nobody is idle unless told.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) now_ns: u64,
    pub(crate) features: Features,
    pub(crate) active: CpuSet,
    pub(crate) idle: CpuSet,
    pub(crate) searching: CpuSet,
    pub(crate) occupied: CpuSet,
    /// CPUs whose issuer waits, and how long they do.
    pub(crate) waits: CpuSet,
    pub(crate) issuer_wait: IssuerWait,
    /// Since when CPUs have run what they run; the others have just begun.
    pub(crate) busy: Vec<(CpuId, u64)>,
    /// What a wake-up takes, and how much longer on an issuer's CPU.
    pub(crate) delay_ns: u64,
    pub(crate) occupied_delay_ns: u64,
    pub(crate) pools: Vec<Attributes>,
    /// The pools' masks; none for those beyond its end.
    pub(crate) masks: Vec<Option<CpuSet>>,
    pub(crate) waiting: Vec<Waiting>,
    /// The length of the items of every queue.
    pub(crate) item_ns: u64,
}

impl Given {
    /// All CPUs of the layout have a worker; these pools exist.
    pub(crate) fn new(layout: &Layout, pools: &[Attributes]) -> Self {
        Self {
            now_ns: 1_000_000,
            features: Features::ALL,
            active: *layout.machine().online(),
            idle: CpuSet::EMPTY,
            searching: CpuSet::EMPTY,
            occupied: CpuSet::EMPTY,
            waits: CpuSet::EMPTY,
            issuer_wait: IssuerWait::default(),
            busy: Vec::new(),
            delay_ns: 0,
            occupied_delay_ns: 1_000_000,
            pools: pools.to_vec(),
            masks: Vec::new(),
            waiting: Vec::new(),
            item_ns: 0,
        }
    }

    /// Items wait since `since_ns` in the queue that `cpu` uses of a pool.
    pub(crate) fn put(
        &mut self,
        layout: &Layout,
        pool: u8,
        cpu: usize,
        items: u32,
        since_ns: u64,
    ) -> QueueId {
        let attributes = self.pools[usize::from(pool)];
        let queue = layout.queue(PoolId(pool), attributes, cpu_id(cpu));
        self.waiting.push(Waiting { queue, items, since_ns });
        queue
    }
}

impl Facts for Given {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn features(&self) -> Features {
        self.features
    }

    fn active(&self) -> CpuSet {
        self.active
    }

    fn idle(&self) -> CpuSet {
        self.idle
    }

    fn searching(&self) -> CpuSet {
        self.searching
    }

    fn occupied(&self, item_ns: u64) -> CpuSet {
        let brief = self.issuer_wait.is_brief(item_ns);
        if brief { self.occupied.or(&self.waits) } else { self.occupied }
    }

    fn busy_since_ns(&self, cpu: CpuId) -> u64 {
        let since = self.busy.iter().find(|(busy, _)| *busy == cpu);
        since.map_or(u64::MAX, |(_, since_ns)| *since_ns)
    }

    fn wake_ns(&self, occupied: bool) -> u64 {
        self.delay_ns.saturating_add(if occupied { self.occupied_delay_ns } else { 0 })
    }

    fn pools(&self) -> PoolSet {
        PoolSet::first(self.pools.len() as u8)
    }

    fn attributes(&self, pool: PoolId) -> Attributes {
        self.pools[usize::from(pool.0)]
    }

    fn cpumask(&self, pool: PoolId) -> Option<&CpuSet> {
        self.masks.get(usize::from(pool.0))?.as_ref()
    }

    fn waiting(&self, queue: QueueId) -> u32 {
        self.waiting.iter().filter(|entry| entry.queue == queue).map(|entry| entry.items).sum()
    }

    fn head_since_ns(&self, queue: QueueId) -> u64 {
        let entries = self.waiting.iter().filter(|entry| entry.queue == queue);
        entries.map(|entry| entry.since_ns).min().expect("asked only where items wait")
    }

    fn item_ns(&self, _queue: QueueId) -> u64 {
        self.item_ns
    }
}

pub(crate) fn layout(grid: &str) -> Layout {
    Layout::new(&Machine::from_grid(grid).unwrap()).unwrap()
}

pub(crate) fn cpu_id(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}

pub(crate) fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

pub(crate) const fn loose(scope: Scope) -> Attributes {
    Attributes::new(Affinity { scope, strict: false })
}

pub(crate) const fn strict(scope: Scope) -> Attributes {
    Attributes::new(Affinity { scope, strict: true })
}
