//! The facts as plain data.

use homing_topology::{CpuId, CpuSet};

use crate::attributes::Attributes;
use crate::facts::Facts;
use crate::features::Features;
use crate::issuer_wait::IssuerWait;
use crate::layout::{Layout, PoolId, PoolSet, QueueId};

/// Items that wait in a queue.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, Snapshot, Waiting};
/// use homing_topology::{CpuId, Machine};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let mut facts = Snapshot::new(&layout, &[Attributes::new(Affinity::ALL[0])]);
/// let queue = facts.queue_items(&layout, PoolId(0), CpuId::new(2).ok_or("?")?, 3, 500);
/// assert_eq!(facts.waiting, [Waiting { queue, items: 3, since_ns: 500 }]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The queue.
    pub queue: QueueId,
    /// How many items wait in it.
    pub items: u32,
    /// Since when the first of them has waited.
    pub since_ns: u64,
}

/// Facts as plain fields, as an example, a test or a simple simulator sets them. Times are integer
/// nanoseconds.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, Snapshot, submit};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// let cpu = CpuId::new(0).ok_or("?")?;
/// facts.queue_items(&layout, PoolId(0), cpu, 1, facts.now_ns);
/// assert_eq!(submit(&layout, &facts, cpu, PoolId(0)).wake, None, "nobody is idle");
/// facts.idle = "1,3".parse()?;
/// assert_eq!(submit(&layout, &facts, cpu, PoolId(0)).wake, CpuId::new(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The time.
    pub now_ns: u64,
    /// The parts of the policy that are on.
    pub features: Features,
    /// The CPUs that have a worker.
    pub active: CpuSet,
    /// The CPUs whose worker is idle.
    pub idle: CpuSet,
    /// The CPUs whose worker searches.
    pub searching: CpuSet,
    /// The CPUs on which other threads issue.
    pub occupied: CpuSet,
    /// The CPUs whose issuer waits for its items. Such a CPU is left to its issuer only if it waits
    /// for less than half of an item's run time.
    pub waits: CpuSet,
    /// How long issuers wait.
    pub issuer_wait: IssuerWait,
    /// Whether issuers use all of their time.
    pub issuers_are_busy: bool,
    /// Since when CPUs have run what they run. CPUs that are not listed have just begun.
    pub busy: Vec<(CpuId, u64)>,
    /// How long a wake-up takes.
    pub delay_ns: u64,
    /// How much longer a wake-up takes on an issuer's CPU.
    pub occupied_delay_ns: u64,
    /// The pools' attributes, by their numbers.
    pub pools: Vec<Attributes>,
    /// Their masks. Pools beyond the end have none.
    pub masks: Vec<Option<CpuSet>>,
    /// The items that wait.
    pub waiting: Vec<Waiting>,
    /// The length of the items of every queue; 0 if it is not known.
    pub item_ns: u64,
}

impl Snapshot {
    /// All CPUs of the layout have a worker, and none is idle. These pools exist, and nothing
    /// waits.
    pub fn new(layout: &Layout, pools: &[Attributes]) -> Self {
        Self {
            now_ns: 1_000_000,
            features: Features::ALL,
            active: *layout.machine().online(),
            idle: CpuSet::EMPTY,
            searching: CpuSet::EMPTY,
            occupied: CpuSet::EMPTY,
            waits: CpuSet::EMPTY,
            issuer_wait: IssuerWait::default(),
            issuers_are_busy: false,
            busy: Vec::new(),
            delay_ns: 0,
            occupied_delay_ns: 1_000_000,
            pools: pools.to_vec(),
            masks: Vec::new(),
            waiting: Vec::new(),
            item_ns: 0,
        }
    }

    /// Lets items wait since `since_ns` in the queue of a pool that `cpu` uses. Returns that queue.
    ///
    /// # Panics
    /// If there is no such pool.
    pub fn queue_items(
        &mut self,
        layout: &Layout,
        pool: PoolId,
        cpu: CpuId,
        items: u32,
        since_ns: u64,
    ) -> QueueId {
        let queue = layout.queue(pool, self.pools[usize::from(pool.0)], cpu);
        self.waiting.push(Waiting { queue, items, since_ns });
        queue
    }
}

impl Facts for Snapshot {
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

    fn issuers_are_busy(&self) -> bool {
        self.issuers_are_busy
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
