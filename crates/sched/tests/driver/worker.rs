//! A worker: it looks for work, runs a batch, announces that it is idle, looks again, parks.
//!
//! For one wake-up or batch it looks in vain at most once before it announces that it is idle and
//! once after, and once more if it searched, which it does at most once.

use std::collections::VecDeque;

use homing_sched::{Facts, Idle, Next, QueueId, Search, Shares, before_park, reach, start};
use homing_topology::CpuId;

use super::board::Item;
use super::sim::{Event, Sim};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Busy,
    Searching,
    /// Announced, and asleep.
    Parked,
    /// Woken, and not yet running.
    Waking,
    /// Its CPU is meant to have no worker.
    Off,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) state: State,
    pub(crate) hand: VecDeque<Item>,
    pub(crate) queue: Option<QueueId>,
    pub(crate) batch_items: u32,
    pub(crate) item_began_ns: u64,
    /// The queue for which it was woken.
    pub(crate) called_for: Option<QueueId>,
    batch_began_ns: u64,
    shares: Shares,
    idle: Idle,
    slept_ns: u64,
    parks: u64,
    search: Search,
    /// How often it has searched since it had a batch or slept.
    searches: u32,
    looks_in_vain: u32,
}

impl Worker {
    pub(crate) fn parked(gap_ns: u64) -> Self {
        let mut search = Search::UNKNOWN;
        (0..200).for_each(|_| search.woken(gap_ns));
        Self {
            state: State::Parked,
            hand: VecDeque::new(),
            queue: None,
            batch_items: 0,
            item_began_ns: 0,
            called_for: None,
            batch_began_ns: 0,
            shares: Shares::NONE,
            idle: Idle::Any,
            slept_ns: 0,
            parks: 0,
            search,
            searches: 0,
            looks_in_vain: 0,
        }
    }
}

impl Sim<'_> {
    pub(crate) fn awake(&mut self, cpu: CpuId) {
        self.rise(cpu);
        self.look(cpu);
    }

    fn rise(&mut self, cpu: CpuId) {
        let worker = &mut self.workers[cpu.index()];
        worker.idle = worker.called_for.map_or(Idle::Any, |queue| {
            Idle::Called(reach(self.layout, &self.board, queue, cpu), self.board.now_ns)
        });
        worker.slept_ns = self.board.now_ns;
        worker.search.slept();
        (worker.searches, worker.looks_in_vain) = (0, 0);
    }

    pub(crate) fn time_out(&mut self, cpu: CpuId, park: u64) {
        let worker = &mut self.workers[cpu.index()];
        if worker.state == State::Parked && worker.parks == park {
            self.board.idle.remove(cpu);
            self.rise(cpu);
            self.look(cpu);
        }
    }

    pub(crate) fn done(&mut self, cpu: CpuId) {
        let worker = &mut self.workers[cpu.index()];
        self.checks.ran();
        if let Some(next) = worker.hand.pop_front() {
            self.begin(cpu, next);
            return;
        }
        let elapsed_ns = self.board.now_ns - worker.batch_began_ns;
        let queue = worker.queue.take().expect("it was busy");
        worker.idle = Idle::out_of_work(self.board.now_ns, worker.slept_ns);
        worker.shares.ran(queue.pool, self.board.attributes(queue.pool).nice, elapsed_ns);
        let length = &mut self.board.queue_mut(queue).length;
        *length = length.complete(elapsed_ns, worker.batch_items);
        self.look(cpu);
    }

    pub(crate) fn end_search(&mut self, cpu: CpuId) {
        self.board.searching.remove(cpu);
        self.workers[cpu.index()].search.ended(None);
        self.look(cpu);
    }

    /// Looks for work and runs it; if there is none, searches for a while, or parks.
    fn look(&mut self, cpu: CpuId) {
        if !self.board.active.contains(cpu) {
            self.workers[cpu.index()].state = State::Off;
            return;
        }
        self.board.look_as_seen();
        loop {
            let worker = &mut self.workers[cpu.index()];
            let next = before_park(self.layout, &self.board, cpu, worker.idle, &worker.shares);
            match next {
                Next::Take { queue, .. } if self.take(cpu, queue) => return,
                // The items were there a moment ago.
                Next::Take { .. } => {
                    self.checks.extra_looks += 1;
                    self.board.look_closely();
                }
                Next::Park { .. } => break,
            }
        }
        self.looked_in_vain(cpu);
        let near = &self.layout.rings(cpu)[0];
        let worker = &mut self.workers[cpu.index()];
        let search_ns = worker.search.search_ns(false);
        if search_ns > 0 && !self.board.searching.intersects(near) {
            worker.searches += 1;
            assert!(worker.searches <= 1, "CPU {cpu} searches twice for one wake-up");
            self.board.searching.insert(cpu);
            worker.state = State::Searching;
            self.after(search_ns, Event::SearchOver(cpu));
            return;
        }
        self.park_after_look(cpu);
    }

    fn looked_in_vain(&mut self, cpu: CpuId) {
        let worker = &mut self.workers[cpu.index()];
        worker.looks_in_vain += 1;
        let looks = worker.looks_in_vain;
        assert!(looks <= 2 + worker.searches, "CPU {cpu} looks for the {looks}th time");
    }

    /// Announces that the worker is idle, looks again at the facts as they are, and parks.
    pub(crate) fn park_after_look(&mut self, cpu: CpuId) {
        self.board.idle.insert(cpu);
        self.board.look_closely();
        let worker = &mut self.workers[cpu.index()];
        let called_for = worker.called_for.take();
        match before_park(self.layout, &self.board, cpu, worker.idle, &Shares::NONE) {
            Next::Take { queue, .. } => {
                self.board.idle.remove(cpu);
                assert!(self.take(cpu, queue), "CPU {cpu} saw items that are not there");
            }
            Next::Park { until_ns } => {
                self.looked_in_vain(cpu);
                let worker = &mut self.workers[cpu.index()];
                worker.state = State::Parked;
                worker.parks += 1;
                let park = worker.parks;
                let in_vain = called_for.filter(|queue| !self.board.queue(*queue).items.is_empty());
                assert!(
                    in_vain.is_none() || !self.scenario.masks.is_empty(),
                    "CPU {cpu} was woken for {in_vain:?}, which it may not serve"
                );
                self.note(format_args!("park {cpu} {until_ns:?}"));
                if let Some(until_ns) = until_ns {
                    let now_ns = self.board.now_ns;
                    assert!(until_ns > now_ns, "CPU {cpu} parks until a time that is past");
                    self.after(until_ns - now_ns, Event::Timeout(cpu, park));
                }
            }
        }
    }

    /// Takes a batch, wakes the next worker, and begins. Returns whether there was anything to
    /// take.
    fn take(&mut self, cpu: CpuId, queue: QueueId) -> bool {
        let mut batch = self.board.take(queue);
        let Some(first) = batch.pop_front() else { return false };
        self.checks.taken(self.layout, &self.board, cpu, queue);
        self.board.begin(cpu);
        let woken = self.wake_one(queue, |layout, board| start(layout, board, queue, cpu));
        let items = batch.len() + 1;
        self.note(format_args!("take {cpu} {}/{} {items} {woken:?}", queue.pool.0, queue.leader));
        let worker = &mut self.workers[cpu.index()];
        worker.state = State::Busy;
        worker.search.takes();
        (worker.searches, worker.looks_in_vain) = (0, 0);
        worker.called_for = None;
        worker.queue = Some(queue);
        worker.batch_items = items as u32;
        worker.batch_began_ns = self.board.now_ns;
        worker.hand = batch;
        self.begin(cpu, first);
        true
    }

    fn begin(&mut self, cpu: CpuId, item: Item) {
        let worker = &mut self.workers[cpu.index()];
        worker.item_began_ns = self.board.now_ns;
        self.checks.begins(item);
        self.after(item.length_ns, Event::Done(cpu));
        self.put_children(cpu, item.children);
    }
}
