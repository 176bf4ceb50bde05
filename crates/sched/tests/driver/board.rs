//! What the simulated runtime knows: its queues, and which CPUs are idle. The facts are read as
//! they are, or as they were a while ago.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};

use homing_sched::{
    Attributes, Facts, Features, ItemLength, Layout, Level, PoolId, PoolSet, QueueId,
};
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) number: u32,
    pub(crate) issued_ns: u64,
    pub(crate) length_ns: u64,
    /// How many items it issues as it begins.
    pub(crate) children: u32,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) items: VecDeque<Item>,
    pub(crate) length: ItemLength,
    /// When the first item was first seen to wait; 0 if it has not been seen yet.
    head_since_ns: Cell<u64>,
}

/// The facts that may be seen late.
#[derive(Clone, Debug, Default)]
struct Seen {
    at_ns: u64,
    idle: CpuSet,
    searching: CpuSet,
    waiting: Vec<u32>,
}

/// The facts.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) now_ns: u64,
    pub(crate) features: Features,
    pub(crate) active: CpuSet,
    pub(crate) idle: CpuSet,
    pub(crate) searching: CpuSet,
    pub(crate) occupied: CpuSet,
    busy_since_ns: Vec<u64>,
    pub(crate) issuers_are_busy: bool,
    /// How long waking a CPU takes, as far as the decisions know; 0 if they do not.
    pub(crate) delay_ns: u64,
    pub(crate) queues: Vec<Queue>,
    /// The queues that have items.
    pub(crate) filled: BTreeSet<usize>,
    pools: Vec<Attributes>,
    masks: Vec<Option<CpuSet>>,
    /// For each pool, the number of its first queue.
    first_of: Vec<usize>,
    /// For each level and each CPU, the position of its queue in a pool.
    position_of: Vec<Vec<usize>>,
    stale_ns: u64,
    seen: Seen,
    /// Whether facts are read as they were when last seen.
    through_seen: Cell<bool>,
}

impl Board {
    pub(crate) fn new(
        layout: &Layout,
        pools: &[Attributes],
        masks: &[Option<CpuSet>],
        stale_ns: u64,
    ) -> Self {
        let mut position_of = vec![vec![0; CPU_COUNT_MAX]; Level::ALL.len()];
        for level in Level::ALL {
            for (position, leader) in layout.leaders(level).iter().enumerate() {
                position_of[level as usize][leader.index()] = position;
            }
        }
        let mut queues = Vec::new();
        let mut first_of = Vec::new();
        for (pool, attributes) in pools.iter().enumerate() {
            first_of.push(queues.len());
            queues.extend(layout.leaders(attributes.level()).iter().map(|leader| Queue {
                id: QueueId { pool: PoolId(pool as u8), leader },
                items: VecDeque::new(),
                length: ItemLength::default(),
                head_since_ns: Cell::new(0),
            }));
        }
        Self {
            now_ns: 1,
            features: Features::ALL,
            active: *layout.machine().online(),
            idle: CpuSet::EMPTY,
            searching: CpuSet::EMPTY,
            occupied: CpuSet::EMPTY,
            busy_since_ns: vec![0; CPU_COUNT_MAX],
            issuers_are_busy: false,
            delay_ns: 0,
            filled: BTreeSet::new(),
            pools: pools.to_vec(),
            masks: masks.to_vec(),
            first_of,
            position_of,
            stale_ns,
            seen: Seen { waiting: vec![0; queues.len()], ..Seen::default() },
            queues,
            through_seen: Cell::new(false),
        }
    }

    /// Notes that the worker of `cpu` begins something, or is called.
    pub(crate) fn begin(&mut self, cpu: CpuId) {
        self.busy_since_ns[cpu.index()] = self.now_ns;
    }

    pub(crate) fn number_of(&self, queue: QueueId) -> usize {
        let pool = usize::from(queue.pool.0);
        let level = self.pools[pool].level() as usize;
        self.first_of[pool] + self.position_of[level][queue.leader.index()]
    }

    pub(crate) fn queue_mut(&mut self, queue: QueueId) -> &mut Queue {
        let number = self.number_of(queue);
        &mut self.queues[number]
    }

    pub(crate) fn queue(&self, queue: QueueId) -> &Queue {
        &self.queues[self.number_of(queue)]
    }

    /// Puts an item at the end and returns how many wait now.
    pub(crate) fn push(&mut self, queue: QueueId, item: Item) -> u32 {
        let number = self.number_of(queue);
        self.filled.insert(number);
        let items = &mut self.queues[number].items;
        items.push_back(item);
        items.len() as u32
    }

    /// Puts back items that were taken.
    pub(crate) fn put_back(&mut self, queue: QueueId, hand: &mut VecDeque<Item>) {
        let number = self.number_of(queue);
        while let Some(item) = hand.pop_back() {
            self.filled.insert(number);
            self.queues[number].items.push_front(item);
        }
    }

    /// Takes a batch, but no more than half of the items that wait, rounded up.
    pub(crate) fn take(&mut self, queue: QueueId) -> VecDeque<Item> {
        let number = self.number_of(queue);
        let found = &mut self.queues[number];
        let count = found
            .items
            .len()
            .div_ceil(2)
            .min(found.length.batch(found.items.len() as u32) as usize);
        found.head_since_ns.set(0);
        let rest = found.items.split_off(count);
        let taken = std::mem::replace(&mut found.items, rest);
        if found.items.is_empty() {
            self.filled.remove(&number);
        }
        taken
    }

    /// From now on, facts are read as they were up to `stale_ns` ago.
    pub(crate) fn look_as_seen(&mut self) {
        self.through_seen.set(self.stale_ns > 0);
        if self.stale_ns > 0 && self.now_ns - self.seen.at_ns > self.stale_ns {
            self.see();
        }
    }

    /// From now on, facts are read as they are.
    pub(crate) fn look_closely(&mut self) {
        self.through_seen.set(false);
        if self.stale_ns > 0 {
            self.see();
        }
    }

    fn see(&mut self) {
        self.seen.at_ns = self.now_ns;
        self.seen.idle = self.idle;
        self.seen.searching = self.searching;
        self.seen.waiting.fill(0);
        for number in &self.filled {
            self.seen.waiting[*number] = self.queues[*number].items.len() as u32;
        }
    }
}

impl Facts for Board {
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
        if self.through_seen.get() { self.seen.idle } else { self.idle }
    }

    fn searching(&self) -> CpuSet {
        if self.through_seen.get() { self.seen.searching } else { self.searching }
    }

    fn occupied(&self, _item_ns: u64) -> CpuSet {
        self.occupied
    }

    fn busy_since_ns(&self, cpu: CpuId) -> u64 {
        self.busy_since_ns[cpu.index()]
    }

    fn issuers_are_busy(&self) -> bool {
        self.issuers_are_busy
    }

    fn wake_ns(&self, occupied: bool) -> u64 {
        self.delay_ns + u64::from(occupied)
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
        let number = self.number_of(queue);
        if self.through_seen.get() {
            return self.seen.waiting[number];
        }
        self.queues[number].items.len() as u32
    }

    fn head_since_ns(&self, queue: QueueId) -> u64 {
        let seen = &self.queue(queue).head_since_ns;
        if seen.get() == 0 {
            seen.set(self.now_ns);
        }
        seen.get()
    }

    fn item_ns(&self, queue: QueueId) -> u64 {
        self.queue(queue).length.mean_ns()
    }
}

/// A CPU by its number.
pub(crate) fn cpu_id(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}
