//! What homing's runtime knows: its queues, and which workers are idle. The facts are read as they
//! are, or as they were a while ago.

use std::cell::Cell;
use std::collections::VecDeque;

use homing_sched::{
    Attributes, Facts, Features, IssuerTime, IssuerWait, ItemLength, Layout, Level, PoolId,
    PoolSet, QueueId, WakeDelays,
};
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use super::Item;

/// The only pool: a simulation has one workqueue.
pub(super) const POOL: PoolId = PoolId(0);

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Item>,
    pub(super) length: ItemLength,
    /// When the first item was first seen to wait; 0: not yet.
    pub(super) head_since_ns: Cell<u64>,
}

/// Facts that may be seen late.
#[derive(Clone, Debug)]
struct Seen {
    at_ns: u64,
    idle: CpuSet,
    searching: CpuSet,
    waiting: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Board {
    pub(super) now_ns: u64,
    pub(super) features: Features,
    pub(super) attributes: Attributes,
    pub(super) active: CpuSet,
    pub(super) idle: CpuSet,
    pub(super) searching: CpuSet,
    /// CPUs that an issuer occupied in this interval, and in the one before.
    occupied_now: CpuSet,
    occupied_before: CpuSet,
    /// CPUs whose issuer waits.
    issuer_waits: CpuSet,
    pub(super) issuer_wait: IssuerWait,
    pub(super) issuer_time: IssuerTime,
    /// How often the monitor has looked.
    pub(super) looks: u64,
    /// For each CPU: since when its worker has run its batch, or when it was called.
    busy_since_ns: Vec<u64>,
    pub(super) delays: WakeDelays,
    queues: Vec<Queue>,
    /// For each CPU the position of its queue.
    position_of: Vec<u16>,
    total: usize,
    stale_ns: u64,
    seen: Seen,
    /// Whether facts are read from `seen`.
    through_seen: bool,
}

impl Board {
    pub(super) fn new(
        layout: &Layout,
        attributes: Attributes,
        features: Features,
        stale_ns: u64,
    ) -> Self {
        let mut board = Self {
            now_ns: 1,
            features,
            attributes,
            active: *layout.machine().online(),
            idle: CpuSet::EMPTY,
            searching: CpuSet::EMPTY,
            occupied_now: CpuSet::EMPTY,
            occupied_before: CpuSet::EMPTY,
            issuer_waits: CpuSet::EMPTY,
            issuer_wait: IssuerWait::default(),
            issuer_time: IssuerTime::default(),
            looks: 0,
            busy_since_ns: vec![0; CPU_COUNT_MAX],
            delays: WakeDelays::default(),
            queues: Vec::new(),
            position_of: vec![0; CPU_COUNT_MAX],
            total: 0,
            stale_ns,
            seen: Seen {
                at_ns: 0,
                idle: CpuSet::EMPTY,
                searching: CpuSet::EMPTY,
                waiting: Vec::new(),
            },
            through_seen: false,
        };
        board.lay_out(layout, attributes);
        board
    }

    /// Changes the attributes. Returns the items that waited, with the CPU of their queue.
    pub(super) fn lay_out(
        &mut self,
        layout: &Layout,
        attributes: Attributes,
    ) -> Vec<(CpuId, Item)> {
        let mut left = Vec::new();
        for cpu in layout.leaders(self.attributes.level()).iter() {
            if let Some(queue) = self.queues.get_mut(usize::from(self.position_of[cpu.index()])) {
                left.extend(std::mem::take(&mut queue.items).into_iter().map(|item| (cpu, item)));
            }
        }
        let length = self.queues.first().map(|queue| queue.length).unwrap_or_default();
        self.attributes = attributes;
        let level: Level = attributes.level();
        let leaders = layout.leaders(level);
        let new = || Queue { length, ..Queue::default() };
        self.queues = leaders.iter().map(|_| new()).collect();
        for (position, leader) in leaders.iter().enumerate() {
            self.position_of[leader.index()] = position as u16;
        }
        self.seen.waiting = vec![0; self.queues.len()];
        self.total = 0;
        left
    }

    pub(super) fn queue_mut(&mut self, queue: QueueId) -> &mut Queue {
        &mut self.queues[usize::from(self.position_of[queue.leader.index()])]
    }

    pub(super) fn queue(&self, queue: QueueId) -> &Queue {
        &self.queues[usize::from(self.position_of[queue.leader.index()])]
    }

    /// A thread that is not a worker runs on `cpu`.
    pub(super) fn occupy(&mut self, cpu: CpuId) {
        self.occupied_now.insert(cpu);
        self.issuer_waits.remove(cpu);
    }

    /// Whether a thread that is not a worker issues on `cpu`, even if it waits at the moment.
    pub(super) fn is_occupied(&self, cpu: CpuId) -> bool {
        self.occupied_now.contains(cpu) || self.occupied_before.contains(cpu)
    }

    /// The issuer on `cpu` waits. Returns whether one has issued there lately.
    pub(super) fn begin_wait(&mut self, cpu: CpuId) -> bool {
        let there = self.is_occupied(cpu);
        if there {
            self.issuer_waits.insert(cpu);
        }
        there
    }

    /// The worker of `cpu` begins something, or is called.
    pub(super) fn begin(&mut self, cpu: CpuId) {
        self.busy_since_ns[cpu.index()] = self.now_ns;
    }

    /// An interval has passed: forgets issuers that were not seen since the last one.
    pub(super) fn forget_occupied(&mut self) {
        self.occupied_before = std::mem::replace(&mut self.occupied_now, CpuSet::EMPTY);
        self.issuer_waits = self.issuer_waits.and(&self.occupied_before);
        self.issuer_time = self.issuer_time.pass();
        self.looks += 1;
    }

    /// How many queues there are.
    pub(super) fn queue_count(&self) -> u64 {
        self.queues.len() as u64
    }

    /// The oldest item of each queue.
    pub(super) fn heads(&self) -> impl Iterator<Item = Item> {
        self.queues.iter().filter_map(|queue| queue.items.front().copied())
    }

    /// How many items wait altogether.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Puts an item at the end. Returns how many wait now.
    pub(super) fn push(&mut self, queue: QueueId, item: Item) -> u32 {
        self.total += 1;
        let items = &mut self.queue_mut(queue).items;
        items.push_back(item);
        items.len() as u32
    }

    /// Takes a batch: from afar no more than half of what waits, rounded up.
    pub(super) fn take(&mut self, queue: QueueId, from_afar: bool) -> VecDeque<Item> {
        let found = self.queue_mut(queue);
        let waiting = found.items.len();
        let share = if from_afar { waiting.div_ceil(2) } else { waiting };
        let count = share.min(found.length.batch(waiting as u32) as usize);
        found.head_since_ns.set(0);
        let rest = found.items.split_off(count);
        let taken = std::mem::replace(&mut found.items, rest);
        self.total -= taken.len();
        taken
    }

    /// Has facts read as they were up to `stale_ns` ago from now on.
    pub(super) fn look_as_seen(&mut self) {
        self.through_seen = self.stale_ns > 0;
        if self.stale_ns > 0 && self.now_ns - self.seen.at_ns > self.stale_ns {
            self.see();
        }
    }

    /// Has facts read as they are from now on.
    pub(super) fn look_closely(&mut self) {
        self.through_seen = false;
        if self.stale_ns > 0 {
            self.see();
        }
    }

    fn see(&mut self) {
        self.seen.at_ns = self.now_ns;
        self.seen.idle = self.idle;
        self.seen.searching = self.searching;
        for (seen, queue) in self.seen.waiting.iter_mut().zip(&self.queues) {
            *seen = queue.items.len() as u32;
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
        if self.through_seen { self.seen.idle } else { self.idle }
    }

    fn searching(&self) -> CpuSet {
        if self.through_seen { self.seen.searching } else { self.searching }
    }

    fn occupied(&self, item_ns: u64) -> CpuSet {
        let all = self.occupied_now.or(&self.occupied_before);
        if self.issuer_wait.is_brief(item_ns) { all } else { all.minus(&self.issuer_waits) }
    }

    fn busy_since_ns(&self, cpu: CpuId) -> u64 {
        self.busy_since_ns[cpu.index()]
    }

    fn wake_ns(&self, occupied: bool) -> u64 {
        if occupied { self.delays.occupied_ns } else { self.delays.free_ns }
    }

    fn issuers_are_busy(&self) -> bool {
        let any = !(self.occupied_now.is_empty() && self.occupied_before.is_empty());
        any && self.issuer_time.is_all_used() && self.issuer_waits.is_empty()
    }

    fn pools(&self) -> PoolSet {
        PoolSet::first(1)
    }

    fn attributes(&self, _: PoolId) -> Attributes {
        self.attributes
    }

    fn waiting(&self, queue: QueueId) -> u32 {
        let position = usize::from(self.position_of[queue.leader.index()]);
        if self.through_seen {
            return self.seen.waiting[position];
        }
        self.queues[position].items.len() as u32
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
