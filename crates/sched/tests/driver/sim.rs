//! The clock, the events, the issuers and the tick. `worker.rs` has what workers do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;

use homing_sched::{Layout, PoolId, QueueId, calls_for_decision, home, overdue, start, submit};
use homing_topology::CpuId;

use super::board::{Board, Item, cpu_id};
use super::checks::{Checks, Report};
use super::rng::Rng;
use super::worker::{State, Worker};
use super::{Scenario, TICK_NS};

/// Items that a worker holds for longer than this go back to their queue.
const RESCUE_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// An issuer issues its next burst.
    Issue(u32),
    /// A worker that was woken begins to look.
    Awake(CpuId),
    /// A park times out, if it is still the same park.
    Timeout(CpuId, u64),
    /// An item ends.
    Done(CpuId),
    /// A worker has searched for long enough.
    SearchOver(CpuId),
    /// The CPUs with workers change.
    Mask(usize),
    Tick,
}

/// A simulated machine at work.
pub(crate) struct Sim<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) scenario: &'a Scenario,
    pub(crate) board: Board,
    pub(crate) workers: Vec<Worker>,
    pub(crate) checks: Checks,
    pub(crate) log: String,
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    issued: u32,
}

/// Runs a scenario to its end and checks what must hold on the way.
pub(crate) fn run(layout: &Layout, scenario: &Scenario) -> Report {
    let online = *layout.machine().online();
    let mut board = Board::new(layout, &scenario.pools, &scenario.cpumasks, scenario.stale_ns);
    board.issuers_are_busy = scenario.issuers_are_busy;
    board.delay_ns = if scenario.knows_delay { scenario.wake_ns } else { 0 };
    board.features = scenario.features;
    board.idle = online;
    let last = online.iter().last().map_or(0, CpuId::index);
    let mut sim = Sim {
        layout,
        scenario,
        checks: Checks::new(scenario, &board),
        board,
        workers: (0..=last).map(|_| Worker::parked(scenario.gap_ns)).collect(),
        log: String::new(),
        rng: Rng::new(scenario.seed),
        events: BinaryHeap::new(),
        sequence: 0,
        issued: 0,
    };
    for issuer in 0..scenario.issuers {
        sim.after(u64::from(issuer) * 100, Event::Issue(issuer));
    }
    for (index, (at_ns, _)) in scenario.masks.iter().enumerate() {
        sim.after(*at_ns, Event::Mask(index));
    }
    sim.after(TICK_NS, Event::Tick);
    while !(sim.issued == scenario.items && sim.checks.all_ran()) {
        let Reverse((at_ns, _, event)) = sim.events.pop().expect("ticks go on");
        if let Err(problem) = sim.checks.before(at_ns, layout, &sim.board) {
            panic!("{problem}, after\n{}\nin {scenario:?}", sim.last_decisions());
        }
        sim.board.now_ns = at_ns;
        sim.happen(event);
        sim.checks.after(layout, &sim.board);
    }
    sim.checks.report(&sim.board, sim.log)
}

impl Sim<'_> {
    pub(crate) fn after(&mut self, delay_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.board.now_ns + delay_ns, self.sequence, event)));
    }

    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.log, "{} {what}", self.board.now_ns).unwrap();
    }

    fn last_decisions(&self) -> String {
        let lines: Vec<&str> = self.log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Issue(issuer) => self.issue(issuer),
            Event::Awake(cpu) => self.awake(cpu),
            Event::Timeout(cpu, park) => self.time_out(cpu, park),
            Event::Done(cpu) => self.done(cpu),
            Event::SearchOver(cpu) => self.end_search(cpu),
            Event::Mask(index) => self.change_mask(index),
            Event::Tick => self.tick(),
        }
    }

    /// Issues a burst from a thread that is no worker. The thread may move now and then, and its
    /// CPU may have no worker.
    fn issue(&mut self, issuer: u32) {
        let machine = self.layout.machine().cpus();
        let moved = u64::from(self.rng.below(16) == 0) * self.rng.below(machine.len() as u64);
        let cpu = machine[(issuer as usize * 7 + moved as usize) % machine.len()].cpu;
        if self.scenario.occupy && self.board.active.contains(cpu) {
            self.board.occupied.insert(cpu);
        }
        let pool = self.rng.below(self.scenario.pools.len() as u64) as u8;
        let count = 1 + self.rng.below(u64::from(self.scenario.burst_max)) as u32;
        if self.scenario.at_once {
            self.put(cpu, pool, count);
        } else {
            (0..count).for_each(|_| self.put(cpu, pool, 1));
        }
        if self.issued < self.scenario.items {
            let pause_ns = 1 + self.rng.below(self.scenario.pause_ns);
            self.after(pause_ns, Event::Issue(issuer));
        }
    }

    /// An item issues others, into any pool.
    pub(crate) fn put_children(&mut self, cpu: CpuId, count: u32) {
        for _ in 0..count {
            let pool = self.rng.below(self.scenario.pools.len() as u64) as u8;
            self.put(cpu, pool, 1);
        }
    }

    /// Puts as many of `count` items as are left into their queue, and then wakes a CPU for them.
    fn put(&mut self, cpu: CpuId, pool: u8, count: u32) {
        let count = count.min(self.scenario.items - self.issued);
        if count == 0 {
            return;
        }
        self.board.look_as_seen();
        let pool = PoolId(pool);
        let queue = home(self.layout, &self.board, cpu, pool);
        Checks::at_home(self.layout, &self.board, cpu, queue);
        let first = self.issued;
        let mut waiting = 0;
        for _ in 0..count {
            let item = self.make_item();
            waiting = self.board.push(queue, item);
        }
        let item_ns = self.board.queue(queue).length.mean_ns();
        let decide = count > 1 || calls_for_decision(item_ns, waiting);
        let submit = |layout: &Layout, board: &Board| {
            let placed = submit(layout, board, cpu, pool);
            assert_eq!(placed.queue, queue, "an item has one home");
            placed.wake
        };
        let before = self.checks.wakes;
        let woken = if decide { self.wake_one(queue, submit) } else { None };
        assert!(self.checks.wakes - before <= 1, "an insertion wakes at most one CPU");
        self.checks.occasions += 1;
        self.note(format_args!("put {first}+{count} {cpu} {}/{} {woken:?}", pool.0, queue.leader));
    }

    fn make_item(&mut self) -> Item {
        let typical_ns = *self.rng.pick(&self.scenario.lengths_ns);
        let is_parent = self.rng.below(8) < u64::from(self.scenario.parents);
        self.issued += 1;
        Item {
            number: self.issued - 1,
            issued_ns: self.board.now_ns,
            length_ns: typical_ns + self.rng.below(typical_ns / 10 + 1),
            children: if is_parent { 1 + self.rng.below(3) as u32 } else { 0 },
        }
    }

    /// Wakes the CPU that `choose` names. If that CPU has been woken meanwhile, it looks closely
    /// and chooses again.
    pub(crate) fn wake_one(
        &mut self,
        queue: QueueId,
        choose: impl Fn(&Layout, &Board) -> Option<CpuId>,
    ) -> Option<CpuId> {
        let mut closely = false;
        loop {
            let cpu = choose(self.layout, &self.board)?;
            if self.board.idle.contains(cpu) {
                self.claim(cpu, Some(queue));
                return Some(cpu);
            }
            assert!(!closely, "CPU {cpu} is not idle, and that could be seen");
            closely = true;
            self.checks.extra_looks += 1;
            self.board.look_closely();
        }
    }

    pub(crate) fn claim(&mut self, cpu: CpuId, queue: Option<QueueId>) {
        self.board.idle.remove(cpu);
        let worker = &mut self.workers[cpu.index()];
        assert_eq!(worker.state, State::Parked, "CPU {cpu} was woken twice");
        worker.state = State::Waking;
        worker.called_for = queue;
        self.checks.wakes += 1;
        self.after(self.scenario.wake_ns, Event::Awake(cpu));
    }

    fn change_mask(&mut self, index: usize) {
        let before = self.board.active;
        let active = self.scenario.masks[index].1;
        self.board.active = active;
        self.note(format_args!("active {active}"));
        for cpu in before.minus(&active).iter() {
            if self.board.idle.contains(cpu) {
                self.checks.occasions += 1;
                self.claim(cpu, None);
            }
        }
        for cpu in active.minus(&before).iter() {
            if self.workers[cpu.index()].state == State::Off {
                // This offers the CPU to whoever finds work for it. If there is work already, it
                // takes some.
                self.park_after_look(cpu);
            }
        }
    }

    fn tick(&mut self) {
        self.checks.occasions += 1;
        for number in 0..self.workers.len() {
            let worker = &mut self.workers[number];
            let long = self.board.now_ns - worker.item_began_ns >= RESCUE_NS;
            if worker.state == State::Busy && long && !worker.hand.is_empty() {
                let queue = worker.queue.expect("it is busy");
                worker.batch_items -= worker.hand.len() as u32;
                self.board.put_back(queue, &mut worker.hand);
                self.board.look_as_seen();
                let woken =
                    self.wake_one(queue, |layout, board| start(layout, board, queue, queue.leader));
                self.note(format_args!("rescue {} {woken:?}", cpu_id(number)));
            }
        }
        self.board.look_as_seen();
        let mut woken = overdue(self.layout, &self.board);
        if woken.is_some_and(|cpu| !self.board.idle.contains(cpu)) {
            self.checks.extra_looks += 1;
            self.board.look_closely();
            woken = overdue(self.layout, &self.board);
        }
        if let Some(cpu) = woken {
            self.claim(cpu, None);
            self.note(format_args!("overdue {cpu}"));
        }
        self.board.occupied = homing_topology::CpuSet::EMPTY;
        self.after(TICK_NS, Event::Tick);
    }
}
