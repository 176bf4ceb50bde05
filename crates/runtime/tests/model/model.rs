//! The contract as simply as it can be said: one thread, no time, maps and lists. Whatever may
//! happen has happened when [`Model::settle`] returns; an item that has begun runs until it is told
//! to end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) type ItemId = usize;

/// Whose function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Closure(ItemId),
    Work(usize),
}

/// What a closure's handle returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Returned,
    Panicked,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Held back by the gate.
    Inactive,
    /// A worker will come to it.
    Active,
    Running,
    /// Left to the thread that runs its work item.
    Kept,
}

#[derive(Debug)]
pub(crate) struct Item {
    queue: usize,
    who: Who,
    /// For a work item: which instance.
    pub(crate) generation: u32,
    aborted: bool,
    /// Whether it counts towards the limit.
    counts: bool,
    state: State,
    /// How many flushes had begun before it was queued.
    flushes_before: u32,
}

/// Limits, order, freezing.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) active: u32,
    pub(crate) frozen: bool,
    /// The lines by home, which take turns.
    lines: VecDeque<(usize, VecDeque<ItemId>)>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ordered: bool,
    pub(crate) max_active: Option<u32>,
    pub(crate) gate: Option<Gate>,
    /// Whether each CPU is a home of its own.
    pub(crate) homes_are_cpus: bool,
    pub(crate) drains: u32,
    pub(crate) queued: u64,
    pub(crate) completed: u64,
    pub(crate) panicked: u64,
    pub(crate) cancelled: u64,
    pub(crate) begun: Vec<Who>,
    pub(crate) flushes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) generation: u32,
    pub(crate) on_timer: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) queue: usize,
    pub(crate) generation: u32,
    pub(crate) pending: Option<Instance>,
    pub(crate) running: Option<ItemId>,
    kept: Option<ItemId>,
    pub(crate) disabled: u32,
    /// How many wait in `cancel_sync` and `disable_sync`. Nobody else enables the work item
    /// meanwhile: otherwise nobody could tell whether they see the end of the one run or the
    /// beginning of the next.
    pub(crate) waited_for: u32,
}

impl Work {
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) queues: Vec<Queue>,
    pub(crate) works: Vec<Work>,
    pub(crate) outcomes: BTreeMap<ItemId, Outcome>,
    pub(crate) items: BTreeMap<ItemId, Item>,
    pub(crate) last_id: ItemId,
}

impl Model {
    pub(crate) fn add_queue(&mut self, ordered: bool, max_active: Option<u32>, freezable: bool) {
        let max_active = if ordered { Some(1) } else { max_active };
        let gate = (freezable || max_active.is_some()).then(Gate::default);
        self.queues.push(Queue { ordered, max_active, gate, ..Queue::default() });
    }

    pub(crate) fn add_work(&mut self, queue: usize) {
        self.works.push(Work { queue, ..Work::default() });
    }

    pub(crate) fn queue_of_work(&self, work: usize) -> usize {
        self.works[work].queue
    }

    /// Items that run, in the order of their making.
    pub(crate) fn running(&self) -> Vec<(ItemId, Who)> {
        let runs = |(_, item): &(&ItemId, &Item)| item.state == State::Running;
        self.items.iter().filter(runs).map(|(id, item)| (*id, item.who)).collect()
    }

    pub(crate) fn queue_of(&self, item: ItemId) -> usize {
        self.items[&item].queue
    }

    pub(crate) fn in_flight(&self, queue: usize) -> BTreeSet<ItemId> {
        let items = self.items.iter().filter(|(_, item)| item.queue == queue);
        items.map(|(id, _)| *id).collect()
    }

    /// How many colours items in flight have, apart from the present one.
    pub(crate) fn colours(&self, queue: usize) -> usize {
        let items = self.items.values().filter(|item| item.queue == queue);
        items.map(|item| item.flushes_before).collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn is_congested(&self, queue: usize) -> bool {
        self.queues[queue].gate.as_ref().is_some_and(|gate| !gate.lines.is_empty())
    }

    /// Queues a closure, from outside or from an item of workqueue `from`. Returns its number. Its
    /// outcome tells whether it was refused.
    pub(crate) fn queue(&mut self, queue: usize, cpu: usize, from: Option<usize>) -> ItemId {
        self.last_id += 1;
        let id = self.last_id;
        if !self.push(id, queue, Who::Closure(id), 0, cpu, from) {
            self.outcomes.insert(id, Outcome::Cancelled);
        }
        id
    }

    pub(crate) fn push(
        &mut self,
        id: ItemId,
        queue: usize,
        who: Who,
        generation: u32,
        cpu: usize,
        from: Option<usize>,
    ) -> bool {
        let of = &mut self.queues[queue];
        of.queued += 1;
        if of.drains > 0 && from != Some(queue) {
            of.cancelled += 1;
            return false;
        }
        let (mut state, mut counts) = (State::Active, false);
        let home = if of.homes_are_cpus && !of.ordered { cpu } else { 0 };
        if let Some(gate) = &mut of.gate {
            let free = of.max_active.is_none_or(|max| gate.active < max);
            if free && !gate.frozen && gate.lines.is_empty() {
                gate.active += 1;
                counts = true;
            } else {
                state = State::Inactive;
                match gate.lines.iter_mut().find(|(of, _)| *of == home) {
                    Some((_, line)) => line.push_back(id),
                    None => gate.lines.push_back((home, VecDeque::from([id]))),
                }
            }
        }
        let flushes_before = of.flushes;
        let item = Item { queue, who, generation, aborted: false, counts, state, flushes_before };
        self.items.insert(id, item);
        true
    }

    /// Takes a closure back unless it has begun.
    pub(crate) fn abort(&mut self, id: ItemId) -> bool {
        let Some(item) = self.items.get_mut(&id) else { return false };
        if item.aborted || item.state == State::Running {
            return false;
        }
        item.aborted = true;
        self.outcomes.insert(id, Outcome::Cancelled);
        true
    }

    pub(crate) fn set_max_active(&mut self, queue: usize, max_active: Option<u32>) {
        self.queues[queue].max_active = max_active;
        self.queues[queue].gate.get_or_insert_default();
        self.activate(queue);
    }

    pub(crate) fn set_frozen(&mut self, queue: usize, frozen: bool) {
        self.queues[queue].gate.as_mut().unwrap().frozen = frozen;
        self.activate(queue);
    }

    /// Lets in what the limit has room for.
    fn activate(&mut self, queue: usize) {
        let of = &mut self.queues[queue];
        let Some(gate) = &mut of.gate else { return };
        while !gate.frozen && of.max_active.is_none_or(|max| gate.active < max) {
            let Some((home, mut line)) = gate.lines.pop_front() else { return };
            let item = self.items.get_mut(&line.pop_front().unwrap()).unwrap();
            (item.state, item.counts) = (State::Active, true);
            gate.active += 1;
            if !line.is_empty() {
                gate.lines.push_back((home, line));
            }
        }
    }

    /// An item is gone, for whatever reason.
    fn forget(&mut self, id: ItemId) {
        let item = self.items.remove(&id).unwrap();
        let of = &mut self.queues[item.queue];
        if let Some(gate) = of.gate.as_mut().filter(|_| item.counts) {
            gate.active -= 1;
            // An item that ends lets one in, and not more: the limit may have fallen.
            self.activate(item.queue);
        }
    }

    fn cancelled(&mut self, id: ItemId) {
        self.queues[self.items[&id].queue].cancelled += 1;
        self.forget(id);
    }

    /// The item returns, or panics.
    pub(crate) fn end(&mut self, id: ItemId, panics: bool) {
        let item = &self.items[&id];
        let who = item.who;
        let of = &mut self.queues[item.queue];
        of.completed += 1;
        of.panicked += u64::from(panics);
        self.forget(id);
        match who {
            Who::Closure(id) => {
                let outcome = if panics { Outcome::Panicked } else { Outcome::Returned };
                self.outcomes.insert(id, outcome);
            }
            Who::Work(work) => {
                self.works[work].running = None;
                if let Some(kept) = self.works[work].kept.take() {
                    self.items.get_mut(&kept).unwrap().state = State::Active;
                }
            }
        }
    }

    /// Lets everything happen that may.
    pub(crate) fn settle(&mut self) {
        let active = |(_, item): &(&ItemId, &Item)| item.state == State::Active;
        while let Some(id) = self.items.iter().find(active).map(|(id, _)| *id) {
            let item = self.items.get_mut(&id).unwrap();
            let who = item.who;
            match who {
                Who::Closure(_) if item.aborted => self.cancelled(id),
                Who::Closure(_) => self.begin(id),
                Who::Work(of) => {
                    let instance = Instance { generation: item.generation, on_timer: false };
                    let work = &mut self.works[of];
                    let is_husk = work.pending != Some(instance);
                    if work.running.is_some() && (!is_husk || work.kept.is_none()) {
                        // A husk may be kept, too: the worker that came to it saw a husk or not, as
                        // `forget_husk` finds out.
                        item.state = State::Kept;
                        if let Some(husk) = work.kept.replace(id) {
                            self.cancelled(husk);
                        }
                    } else if is_husk {
                        self.cancelled(id);
                    } else {
                        (work.pending, work.running) = (None, Some(id));
                        self.begin(id);
                    }
                }
            }
        }
    }

    /// Forgets an instance that was cancelled behind a run. Nobody can see when a worker comes to
    /// it: the instance may have been cancelled before that, and then does not wait for the end of
    /// the run.
    pub(crate) fn forget_husk(&mut self, queue: usize) {
        let items = &self.items;
        let is_husk = |work: &&mut Work| {
            let pending = work.pending.map(|pending| pending.generation);
            let kept = work.kept.map(|kept| items[&kept].generation);
            work.queue == queue && pending != kept
        };
        let kept = self.works.iter_mut().filter(is_husk).find_map(|work| work.kept.take());
        if let Some(husk) = kept {
            self.cancelled(husk);
        }
    }

    fn begin(&mut self, id: ItemId) {
        let item = self.items.get_mut(&id).unwrap();
        item.state = State::Running;
        self.queues[item.queue].begun.push(item.who);
    }
}
