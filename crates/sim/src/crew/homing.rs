//! homing's runtime: a pinned worker for each CPU that does what `homing_sched` decides, at the
//! cost of deciding it.

use std::collections::{BTreeMap, VecDeque};

use homing_sched::{
    Affinity, Attributes, Facts, Features, HandOff, Idle, IssuerClock, Layout, Next as Decision,
    QueueId, Reach, Search, Shares, before_park, calls_for_decision, hand_off, home, issuer_waits,
    overdue, reach, start, submit,
};
use homing_topology::{CpuId, CpuSet, Machine};

use super::board::{Board, POOL};
use super::chooser::Chooser;
use super::exposure::Exposure;
use super::settings::{Broken, HomingSettings};
use super::spare::Spare;
use super::{CREW_TOKEN, CrewCounts, Item, Next};
use crate::geometry::CpuIndex;
use crate::host::{Host, Kind, ThreadId};

/// The interval at which the runtime's monitor looks while there is work.
const TICK_NS: u64 = 1_000_000;

/// The interval at which a searching worker looks.
const SEARCH_STEP_NS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awake,
    Busy,
    /// Until this time.
    Searching(u64),
    /// Asleep, and announced as idle.
    Parked,
}

#[derive(Debug)]
struct Worker {
    thread: ThreadId,
    cpu: CpuId,
    state: State,
    hand: VecDeque<Item>,
    queue: Option<QueueId>,
    batch_items: u32,
    reach: Reach,
    began_ns: u64,
    idle: Idle,
    idle_since_ns: u64,
    search: Search,
    parks: u64,
    /// When its last sleep ended.
    slept_ns: u64,
    woken_ns: u64,
    woken_occupied: bool,
    /// How far away the work was that it was last woken for.
    called: Reach,
}

/// See the module.
#[derive(Debug)]
pub struct Homing {
    layout: Layout,
    settings: HomingSettings,
    board: Board,
    workers: Vec<Worker>,
    /// The first of its threads; the others follow.
    first: u32,
    ticking: bool,
    spare: Spare,
    /// For each issuer, the look after which it was last asked for its CPU time, and its clock.
    issuers_asked: BTreeMap<ThreadId, (u64, IssuerClock)>,
    /// Since when each issuer waits that has not been called yet.
    waiting_since_ns: BTreeMap<ThreadId, u64>,
    wakes_seen: u32,
    /// The CPUs that are idle because a wake-up was lost.
    lost: CpuSet,
    chooser: Option<Chooser>,
    exposure: Exposure,
    /// All counts except those that `exposure` keeps.
    counts: CrewCounts,
}

/// Tokens of timers.
const TICK: u64 = CREW_TOKEN;
const UNPARK: u64 = CREW_TOKEN | 1 << 62;

impl Homing {
    pub(super) fn new(settings: HomingSettings, host: &mut Host, machine: &Machine) -> Self {
        let layout = Layout::new(machine).expect("the machine fits");
        let HomingSettings { localize, pull_cost, .. } = settings;
        let affinity = settings.affinity.unwrap_or_else(|| Affinity::default_on(&layout));
        let attributes = Attributes { localize, pull_cost, ..Attributes::new(affinity) };
        let mut features = settings.features;
        if settings.broken == Some(Broken::NoFarPull) {
            features = Features::SMT_AWARE;
        }
        let board = Board::new(&layout, attributes, features, settings.stale_ns);
        let mut workers = Vec::new();
        for cpu in 0..host.geometry().len() {
            let id = host.geometry().id(cpu);
            let thread = host.spawn(Kind::Worker, cpu, CpuSet::of(id));
            workers.push(Worker {
                thread,
                cpu: id,
                state: State::Parked,
                hand: VecDeque::new(),
                queue: None,
                batch_items: 0,
                reach: Reach::Home,
                began_ns: 0,
                idle: Idle::Since(0),
                idle_since_ns: 0,
                search: Search::UNKNOWN,
                parks: 0,
                slept_ns: 0,
                woken_ns: 0,
                woken_occupied: false,
                called: Reach::Home,
            });
        }
        let first = workers[0].thread.0;
        let chooser = settings.auto.then(|| Chooser::new(&layout, affinity.scope));
        let mut crew = Self {
            layout,
            settings,
            board,
            workers,
            first,
            ticking: false,
            spare: Spare::default(),
            issuers_asked: BTreeMap::new(),
            waiting_since_ns: BTreeMap::new(),
            wakes_seen: 0,
            lost: CpuSet::EMPTY,
            chooser,
            exposure: Exposure::default(),
            counts: CrewCounts::default(),
        };
        crew.board.idle = crew.board.active;
        crew
    }

    pub(super) fn counts(&self) -> CrewCounts {
        CrewCounts { exposed_max_ns: Some(self.exposure.max_ns), ..self.counts }
    }

    pub(super) fn owns(&self, thread: ThreadId) -> bool {
        (thread.0.wrapping_sub(self.first) as usize) < self.workers.len()
    }

    pub(super) fn queue(
        &mut self,
        host: &mut Host,
        item: Item,
        cpu: CpuIndex,
        by: Option<ThreadId>,
    ) {
        self.put(host, item, cpu, by);
        self.note_exposure();
    }

    pub(super) fn hand_off(&mut self, host: &Host, item_ns: u64, issuer: ThreadId) -> HandOff {
        if !self.settings.hand_off {
            return HandOff::Queue;
        }
        let cpu = host.geometry().id(host.cpu_of(issuer));
        // Issuers that are pinned to one CPU together leave the other CPUs of their cache alone.
        let is_pinned = host.only_cpu_of(issuer).is_some();
        let place = if is_pinned { CpuSet::of(cpu) } else { self.layout.rings(cpu)[0] };
        self.spare.note(issuer, &place);
        let (cpus, idle) = (host.geometry().len(), !self.board.idle.is_empty());
        hand_off(&self.spare.facts(item_ns, cpus, idle))
    }

    /// An issuer is about to wait for its items: its CPU is free for them.
    pub(super) fn issuer_waits(&mut self, host: &mut Host, issuer: ThreadId) {
        let cpu = host.geometry().id(host.cpu_of(issuer));
        self.board.now_ns = host.now_ns().max(1);
        let issued = self.board.begin_wait(cpu);
        self.waiting_since_ns.insert(issuer, self.board.now_ns);
        if issued && self.board.total() > 0 && self.board.idle.contains(cpu) {
            self.board.look_closely();
            let from = host.cpu_of(issuer);
            self.wake_one(host, from, Some(issuer), None, |layout, board| {
                issuer_waits(layout, board, cpu)
            });
        }
        self.note_exposure();
    }

    /// Notes that what an issuer waits for is over.
    pub(super) fn issuer_is_called(&mut self, host: &Host, issuer: ThreadId) {
        if let Some(since_ns) = self.waiting_since_ns.remove(&issuer) {
            let wait_ns = host.now_ns().saturating_sub(since_ns);
            self.board.issuer_wait = self.board.issuer_wait.note(wait_ns);
        }
    }

    fn put(&mut self, host: &mut Host, item: Item, cpu: CpuIndex, by: Option<ThreadId>) {
        self.board.now_ns = host.now_ns().max(1);
        self.tick_on(host);
        let id = host.geometry().id(cpu);
        host.spend(by, cpu, host.costs.queue_ns.value);
        // The thread that queues, if it is not a worker, is the issuer. An item that an interrupt
        // brings is queued by the thread that the interrupt stops.
        let by_cpu = by.map_or(cpu, |thread| host.cpu_of(thread));
        if let Some(issuer) = by.or(host.current(by_cpu)).filter(|thread| !self.owns(*thread)) {
            self.board.occupy(host.geometry().id(by_cpu));
            self.ask_for_time(host, issuer);
        }
        let queue = home(&self.layout, &self.board, id, POOL);
        let waiting = self.board.push(queue, item);
        self.exposure.queued(item, self.board.now_ns);
        if let Some(chooser) = &mut self.chooser {
            chooser.queued(item, self.board.now_ns);
        }
        let item_ns = self.board.item_ns(queue);
        if calls_for_decision(item_ns, waiting) && !self.board.idle.is_empty() {
            self.board.look_as_seen();
            self.wake_one(host, cpu, by, Some(queue), |layout, board| {
                submit(layout, board, id, POOL).wake
            });
        }
    }

    /// Asks an issuer, once for each look of the monitor, for how much of the time since the last
    /// question it was on its CPU.
    fn ask_for_time(&mut self, host: &mut Host, issuer: ThreadId) {
        let (look, clock) = self.issuers_asked.entry(issuer).or_default();
        if std::mem::replace(look, self.board.looks) != self.board.looks
            && let Some(time) = clock.ask(self.board.now_ns, || host.ran_ns(issuer))
        {
            self.board.issuer_time = self.board.issuer_time.note(time.0, time.1);
        }
    }

    /// Wakes the worker that `choose` names, for items of `queue` or for any items. If that worker
    /// is awake already, chooses again.
    fn wake_one(
        &mut self,
        host: &mut Host,
        from: CpuIndex,
        by: Option<ThreadId>,
        queue: Option<QueueId>,
        mut choose: impl FnMut(&Layout, &Board) -> Option<CpuId>,
    ) {
        loop {
            host.spend(by, from, host.costs.place_ns.value);
            let Some(id) = choose(&self.layout, &self.board) else { return };
            if !self.board.idle.contains(id) {
                self.board.look_closely();
                continue;
            }
            self.board.idle.remove(id);
            self.board.begin(id);
            self.counts.wakes += 1;
            self.wakes_seen += 1;
            if let Some(Broken::LostWake(each)) = self.settings.broken
                && self.wakes_seen.is_multiple_of(each)
            {
                return;
            }
            let index = host.geometry().index(id);
            let occupied = self.board.is_occupied(id);
            let worker = &mut self.workers[index];
            worker.woken_ns = self.board.now_ns;
            worker.woken_occupied = occupied;
            let far = |queue| reach(&self.layout, &self.board, queue, id);
            worker.called = queue.map_or(Reach::Remote, far);
            let thread = worker.thread;
            host.wake_for(thread, by, from);
            return;
        }
    }

    pub(super) fn next(&mut self, host: &mut Host, thread: ThreadId) -> Next {
        let next = self.next_of(host, thread);
        self.note_exposure();
        next
    }

    /// Notes whether a CPU is idle while items wait. Strict items may wait while a CPU is idle.
    fn note_exposure(&mut self) {
        let idle = self.board.idle.or(&self.lost).minus(&self.board.occupied(0));
        let idle = !idle.is_empty() && !self.board.attributes.affinity.strict;
        self.exposure.idle(idle, self.board.heads(), self.board.now_ns);
    }

    /// Counts workers whose announcement was taken but that were not woken: they sleep for ever.
    fn note_lost_wakes(&mut self, host: &Host) {
        for worker in &self.workers {
            let claimed = worker.state == State::Parked && !self.board.idle.contains(worker.cpu);
            let known = self.lost.contains(worker.cpu);
            if claimed && !known && host.is_asleep(worker.thread) {
                self.lost.insert(worker.cpu);
                self.counts.lost_wakes += 1;
            }
        }
    }

    fn next_of(&mut self, host: &mut Host, thread: ThreadId) -> Next {
        let index = (thread.0 - self.first) as usize;
        self.board.now_ns = host.now_ns().max(1);
        let worker = &mut self.workers[index];
        match worker.state {
            State::Busy => {
                self.counts.done += 1;
                if let Some(item) = worker.hand.pop_front() {
                    return Next::Begin(item);
                }
                self.end_batch(index);
                self.look(host, index)
            }
            State::Parked => {
                if self.board.idle.contains(worker.cpu) {
                    return Next::Rest; // not woken: it falls asleep only now
                }
                self.rise(index);
                self.look(host, index)
            }
            State::Searching(until_ns) => self.search(host, index, until_ns),
            State::Awake => self.look(host, index),
        }
    }

    fn rise(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        worker.state = State::Awake;
        worker.slept_ns = self.board.now_ns;
        if worker.woken_ns > 0 {
            worker.idle = Idle::Called(worker.called, self.board.now_ns);
            let delay_ns = self.board.now_ns - worker.woken_ns;
            self.board.delays = self.board.delays.note(worker.woken_occupied, delay_ns);
            worker.search.woken(self.board.now_ns - worker.idle_since_ns);
            worker.woken_ns = 0;
        } else {
            worker.idle = worker.idle.slept(&self.board);
            worker.search.slept();
        }
    }

    fn end_batch(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let elapsed_ns = self.board.now_ns - worker.began_ns;
        worker.state = State::Awake;
        worker.idle = Idle::out_of_work(self.board.now_ns, worker.slept_ns);
        worker.idle_since_ns = self.board.now_ns;
        if let Some(chooser) = &mut self.chooser {
            chooser.ran(worker.reach, worker.batch_items, elapsed_ns);
        }
        if let Some(queue) = worker.queue.take() {
            let length = &mut self.board.queue_mut(queue).length;
            *length = length.complete(elapsed_ns, worker.batch_items);
        }
    }

    /// Looks for work, and takes it; or searches for a while, or parks.
    fn look(&mut self, host: &mut Host, index: usize) -> Next {
        if let Some(item) = self.take(host, index, true) {
            return Next::Begin(item);
        }
        let worker = &self.workers[index];
        let occupied = self.board.is_occupied(worker.cpu);
        let search_ns = worker.search.search_ns(occupied);
        let near = &self.layout.rings(worker.cpu)[0];
        if search_ns > 0 && !self.board.searching.intersects(near) {
            self.board.searching.insert(worker.cpu);
            let until_ns = self.board.now_ns + search_ns;
            self.workers[index].state = State::Searching(until_ns);
            return Next::Look(SEARCH_STEP_NS);
        }
        self.park(host, index)
    }

    fn search(&mut self, host: &mut Host, index: usize, until_ns: u64) -> Next {
        if self.board.total() > 0 {
            self.board.look_closely();
            let worker = &self.workers[index];
            let (cpu, idle) = (worker.cpu, worker.idle);
            let next = before_park(&self.layout, &self.board, cpu, idle, &Shares::NONE);
            if matches!(next, Decision::Take { .. }) {
                self.board.searching.remove(cpu);
                let worker = &mut self.workers[index];
                worker.state = State::Awake;
                worker.search.ended(Some(self.board.now_ns - worker.idle_since_ns));
                if let Some(item) = self.take(host, index, false) {
                    return Next::Begin(item);
                }
            }
        }
        if self.board.now_ns < until_ns {
            return Next::Look(SEARCH_STEP_NS);
        }
        self.board.searching.remove(self.workers[index].cpu);
        self.workers[index].search.ended(None);
        self.park(host, index)
    }

    /// Announces itself, looks again at the facts as they are, and parks.
    fn park(&mut self, host: &mut Host, index: usize) -> Next {
        let cpu = self.workers[index].cpu;
        self.board.idle.insert(cpu);
        self.spare.parks();
        if let Some(item) = self.take(host, index, false) {
            self.board.idle.remove(cpu);
            return Next::Begin(item);
        }
        let worker = &mut self.workers[index];
        worker.state = State::Parked;
        worker.parks += 1;
        let (parks, thread, idle) = (worker.parks, worker.thread, worker.idle);
        host.charge(thread, host.costs.look_ns.value + self.look_everywhere_ns(host));
        let next = before_park(&self.layout, &self.board, cpu, idle, &Shares::NONE);
        if let Decision::Park { until_ns: Some(until_ns) } = next {
            let token = UNPARK | (parks & 0xffff_ffff) << 16 | index as u64;
            host.after(until_ns.saturating_sub(self.board.now_ns), token);
        }
        Next::Rest
    }

    /// Takes a batch, wakes the next worker, and gives the first item.
    fn take(&mut self, host: &mut Host, index: usize, as_seen: bool) -> Option<Item> {
        if self.board.total() == 0 {
            return None;
        }
        if as_seen {
            self.board.look_as_seen();
        } else {
            self.board.look_closely();
        }
        let worker = &self.workers[index];
        let (cpu, idle, thread) = (worker.cpu, worker.idle, worker.thread);
        let (queue, reach, mut batch) = loop {
            match before_park(&self.layout, &self.board, cpu, idle, &Shares::NONE) {
                Decision::Take { queue, reach } => {
                    let batch = self.board.take(queue, reach != Reach::Home);
                    if !batch.is_empty() {
                        break (queue, reach, batch);
                    }
                    // The stale facts showed items that are gone.
                    self.board.look_closely();
                }
                Decision::Park { .. } => return None,
            }
        };
        self.exposure.note(batch.iter().copied(), self.board.now_ns);
        self.workers[index].search.takes();
        host.charge(thread, host.costs.take_ns.value);
        if reach != Reach::Home {
            host.charge(thread, self.look_everywhere_ns(host));
            self.counts.pulled += batch.len() as u64;
        }
        if let Some(chooser) = &mut self.chooser {
            chooser.taken(&batch, self.board.now_ns);
        }
        if !self.board.idle.is_empty() {
            let from = host.cpu_of(thread);
            self.wake_one(host, from, Some(thread), Some(queue), |layout, board| {
                start(layout, board, queue, cpu)
            });
        }
        self.board.begin(cpu);
        let worker = &mut self.workers[index];
        worker.state = State::Busy;
        worker.queue = Some(queue);
        worker.batch_items = batch.len() as u32;
        worker.reach = reach;
        worker.began_ns = self.board.now_ns;
        let first = batch.pop_front();
        worker.hand = batch;
        first
    }

    /// The cost of looking at every queue.
    fn look_everywhere_ns(&self, host: &Host) -> u64 {
        host.costs.look_queue_ns.value * self.board.queue_count()
    }

    fn tick_on(&mut self, host: &mut Host) {
        if !self.ticking {
            self.ticking = true;
            host.after(TICK_NS, TICK);
        }
    }

    pub(super) fn event(&mut self, host: &mut Host, token: u64) {
        self.board.now_ns = host.now_ns().max(1);
        if token & UNPARK == UNPARK {
            let (index, park) = ((token & 0xffff) as usize, (token >> 16) & 0xffff_ffff);
            let worker = &self.workers[index];
            let due = worker.state == State::Parked && worker.parks & 0xffff_ffff == park;
            if due && self.board.idle.contains(worker.cpu) {
                self.board.idle.remove(worker.cpu);
                let cpu = host.cpu_of(worker.thread);
                host.wake_from(worker.thread, cpu, None);
            }
            return;
        }
        self.board.forget_occupied();
        self.spare.tick(!self.board.idle.is_empty(), host.idle_count());
        self.choose_scope();
        self.note_lost_wakes(host);
        let idle = self.board.idle;
        self.board.look_closely();
        if self.settings.broken.is_none() && self.board.total() > 0 && !idle.is_empty() {
            self.wake_one(host, 0, None, None, overdue);
        }
        // Waits that have not ended count, too.
        self.exposure.note(self.board.heads(), self.board.now_ns);
        self.note_exposure();
        host.after(TICK_NS, TICK);
    }

    /// `affinity_scope=auto`.
    fn choose_scope(&mut self) {
        let Some(chooser) = &mut self.chooser else { return };
        let cpus = self.workers.len() as u64;
        let Some((scope, pull_cost)) = chooser.choose(self.board.now_ns, cpus) else { return };
        self.board.attributes.pull_cost = pull_cost;
        if scope == self.board.attributes.affinity.scope {
            return;
        }
        let affinity = Affinity { scope, ..self.board.attributes.affinity };
        let attributes = Attributes { affinity, ..self.board.attributes };
        for (cpu, item) in self.board.lay_out(&self.layout, attributes) {
            let queue = home(&self.layout, &self.board, cpu, POOL);
            self.board.push(queue, item);
        }
        for worker in &mut self.workers {
            worker.queue = worker.queue.map(|_| QueueId {
                pool: POOL,
                leader: self.layout.leader(attributes.level(), worker.cpu),
            });
        }
    }
}
