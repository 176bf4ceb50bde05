//! From a workqueue to a home queue: counting, refusing, the gate, and the end of items that do not
//! run.

use std::sync::atomic::Ordering;

use homing_sched::{Facts, PoolId};
use homing_topology::{CpuId, Scope};

use crate::item::{Batch, Item, Unrun, lone};
use crate::shared::Shared;
use crate::threads::local;
use crate::workqueues::builder::WorkqueueError;
use crate::workqueues::state::{Chosen, Kinds, Mode, WorkqueueState};

/// Where an item comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Any thread queues a new item.
    New,
    /// A future that was accepted goes on, or the time of a work item has come: accepted even while
    /// its workqueue drains.
    GoesOn,
}

impl Shared {
    /// Puts an item of `workqueue` into its home queue: that of `cpu`, or of the issuing CPU.
    /// Returns `false` if it was refused and has been cancelled. If somebody has taken it back by
    /// then, it counts as accepted: whoever did that was told that it was queued.
    pub(crate) fn push(
        &self,
        workqueue: &WorkqueueState,
        cpu: Option<CpuId>,
        item: Item,
        origin: Origin,
    ) -> bool {
        let cpu = cpu.unwrap_or_else(|| local::issuing_cpu(self));
        workqueue.queued.add(cpu, item.tag(), 1);
        let mode = workqueue.mode();
        if mode.is_plain() {
            return self.put(workqueue, cpu, mode.pool(), item);
        }
        self.push_with_care(workqueue, cpu, mode, item, origin)
    }

    /// [`Shared::push`] for many items, which stand in the queue one behind the other.
    pub(crate) fn push_all(&self, workqueue: &WorkqueueState, items: &mut Batch) {
        let Some(items) = items.seal() else { return };
        let cpu = local::issuing_cpu(self);
        workqueue.queued.add(cpu, items.tag(), items.len().into());
        let mode = workqueue.mode();
        if !mode.is_plain() {
            for item in items {
                self.push_with_care(workqueue, cpu, mode, item, Origin::New);
            }
            return;
        }
        match self.dispatch.put_all(self, cpu, mode.pool(), items) {
            Ok(woken) => workqueue.count_woken(woken),
            Err(refused) => refused.into_iter().for_each(|item| self.cancel(item)),
        }
    }

    #[cold]
    fn push_with_care(
        &self,
        workqueue: &WorkqueueState,
        cpu: CpuId,
        mode: Mode,
        item: Item,
        origin: Origin,
    ) -> bool {
        if self.refuses(workqueue, mode, origin) {
            tracing_event!(
                workqueue = &*workqueue.name,
                "refused: the workqueue drains, or it or its runtime ends"
            );
            return self.end_unrun(item, false) == Unrun::Aborted;
        }
        let Some(gate) = workqueue.gate().filter(|_| mode.has(Mode::GATED)) else {
            return self.put(workqueue, cpu, mode.pool(), item);
        };
        let layout = self.dispatch.layout();
        let home = self.dispatch.home(cpu, mode.pool()).leader;
        let slot = workqueue.gate_slot(gate, layout, home, cpu);
        match gate.admit(slot, home, cpu, item) {
            Some(item) => self.put(workqueue, cpu, mode.pool(), item),
            None if self.is_closed() => {
                // The item came in after the gate was emptied for good. If others did, too, this
                // may end them.
                let mut taken_back = true;
                for item in gate.close() {
                    taken_back &= self.end_unrun(item, true) == Unrun::Aborted;
                }
                taken_back
            }
            None => true,
        }
    }

    fn put(&self, workqueue: &WorkqueueState, cpu: CpuId, pool: PoolId, item: Item) -> bool {
        match self.dispatch.put(self, cpu, pool, item) {
            Ok(woken) => {
                workqueue.count_woken(woken);
                true
            }
            Err(refused) => self.end_unrun(refused, true) == Unrun::Aborted,
        }
    }

    /// Has a worker do what the calling thread must not: it may wait, or run the user's code.
    pub(crate) fn finish(&self, rest: impl FnOnce() + Send + 'static) {
        let Some(events) = self.workqueues.first() else { return rest() };
        self.push(&events, None, lone(events.tag(), rest), Origin::GoesOn);
    }

    /// An item that had a slot of the workqueue's gate has ended. The next one goes to the home
    /// queue that the present attributes give it.
    pub(crate) fn release(&self, workqueue: &WorkqueueState, slot: u16) {
        let next = workqueue.gate().and_then(|gate| gate.release(slot.into()));
        if let Some((cpu, item)) = next {
            self.put(workqueue, cpu, workqueue.mode().pool(), item);
        }
    }

    /// Limits have risen: items that may be active now go to their home queues.
    pub(crate) fn activate(&self, workqueue: &WorkqueueState) {
        let Some(gate) = workqueue.gate() else { return };
        self.holding_items(|| {
            while let Some((cpu, item)) = gate.activate() {
                self.put(workqueue, cpu, workqueue.mode().pool(), item);
            }
        });
    }

    /// Refuses from now on what threads queue that are not the runtime's own, also to workqueues
    /// that are made later. Otherwise a thread that waits for the end would wait for as long as
    /// there are clients.
    pub(crate) fn refuse_outsiders(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.workqueues
            .with_items()
            .iter()
            .for_each(|state| self.refuse_outsiders_if_ending(state));
    }

    /// Whether a workqueue refuses what the calling thread queues.
    pub(crate) fn refuses(&self, workqueue: &WorkqueueState, mode: Mode, origin: Origin) -> bool {
        let chained = || local::innermost() == Some(workqueue.number);
        let refuses_new = || mode.has(Mode::DRAINING) && !chained() || self.ends_for_caller(mode);
        mode.has(Mode::DESTROYED) || origin == Origin::New && refuses_new()
    }

    /// Whether the runtime ends, and the calling thread is not one of its own.
    pub(crate) fn ends_for_caller(&self, mode: Mode) -> bool {
        mode.has(Mode::ENDING) && !local::belongs_to(self)
    }

    /// To be called when a workqueue has been made.
    pub(crate) fn refuse_outsiders_if_ending(&self, workqueue: &WorkqueueState) {
        if self.ending.load(Ordering::SeqCst) {
            workqueue.set_mode(Mode::ENDING, true);
        }
    }

    /// Ends an item that will not run, or notes the end of one that somebody has run before. If the
    /// queues are closed, also ends the items that would take its slot.
    pub(crate) fn cancel(&self, item: Item) {
        self.end_unrun(item, true);
    }

    /// [`Shared::cancel`]; with `was_accepted`, the item counts among those that the runtime has
    /// cancelled. Returns how the item ended.
    fn end_unrun(&self, item: Item, was_accepted: bool) -> Unrun {
        let (mut left, mut was_accepted, mut first) = (Some(item), was_accepted, None);
        while let Some(item) = left.take() {
            let is_accepted = std::mem::replace(&mut was_accepted, true);
            let (tag, slot) = (item.tag(), item.slot());
            let workqueue = self.workqueues.find(tag.workqueue());
            let ended = item.cancel();
            first.get_or_insert(ended);
            let counts = ended != Unrun::Ran;
            let Some(workqueue) = workqueue else { continue };
            if counts && is_accepted {
                self.cancelled.fetch_add(1, Ordering::Relaxed);
            }
            workqueue.count_unrun(tag, counts);
            let gate = workqueue.gate().zip(slot);
            let next = gate.and_then(|(gate, slot)| gate.release(slot.into()));
            if let Some((cpu, item)) = next {
                let put = self.dispatch.put(self, cpu, workqueue.mode().pool(), item);
                left = put.err();
            }
        }
        first.unwrap_or(Unrun::Cancelled)
    }

    /// Lets items of a frozen workqueue begin again.
    pub(crate) fn thaw(&self, workqueue: &WorkqueueState) {
        if let Some(gate) = workqueue.gate() {
            gate.thaw();
            self.activate(workqueue);
        }
    }

    /// [`Shared::thaw`] for all workqueues, also those that only have items left.
    pub(crate) fn thaw_all(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        for workqueue in self.workqueues.with_items() {
            self.thaw(&workqueue);
        }
    }

    /// To be called when a freezable workqueue has been made.
    pub(crate) fn freeze_if_all_are(&self, workqueue: &WorkqueueState) {
        if let Some(gate) = workqueue.gate().filter(|_| self.frozen.load(Ordering::SeqCst)) {
            gate.freeze(|| self.may_freeze());
            // A thread that has thawed all meanwhile may have been too early for this one.
            if !self.frozen.load(Ordering::SeqCst) {
                self.thaw(workqueue);
            }
        }
    }

    pub(crate) fn may_freeze(&self) -> bool {
        !self.ending.load(Ordering::SeqCst)
    }

    /// How many CPUs each node has for a workqueue: its limits are shared in this proportion.
    pub(crate) fn cpus_by_node(&self, chosen: &Chosen) -> Vec<usize> {
        let active = self.dispatch.active();
        let allowed = chosen.cpumask.map_or(active, |mask| mask.and(&active));
        let nodes = self.dispatch.layout().pods(Scope::Numa);
        nodes.iter().map(|node| node.and(&allowed).len()).collect()
    }

    /// Divides the limits of a workqueue anew, after they or its CPUs have changed.
    pub(crate) fn share_limits(&self, workqueue: &WorkqueueState) {
        if let Some(gate) = workqueue.gate() {
            gate.take_over(|| {
                let chosen = workqueue.chosen();
                (chosen.max_active, self.cpus_by_node(&chosen))
            });
            self.activate(workqueue);
        }
    }

    /// Changes the scope of all workqueues that follow the default. If there are too many pools for
    /// one of them, nothing changes.
    pub(crate) fn set_default_scope(&self, scope: Scope) -> Result<(), WorkqueueError> {
        let set = |chosen: &mut Chosen| {
            if chosen.scope_is_default {
                chosen.attributes.affinity.scope = scope;
            }
        };
        // A pool that has been made stays.
        let can = |state: &WorkqueueState| {
            let mut chosen = state.chosen();
            set(&mut chosen);
            self.pool_with(state.kinds, &chosen).is_some()
        };
        let follow = |state: &WorkqueueState| {
            // Only if its owner changes something else at the same time, there is no pool for it.
            let _ = state.change(set, |chosen| self.pool_with(state.kinds, chosen));
        };
        let changed = self.workqueues.set_default_scope(scope, can, follow);
        changed.map_err(|name| WorkqueueError::TooManyPools { name })
    }

    /// The pool with the chosen attributes; `None` if there are too many pools.
    pub(crate) fn pool_with(&self, kinds: Kinds, chosen: &Chosen) -> Option<PoolId> {
        self.dispatch.pool_with(chosen.attributes, chosen.cpumask, kinds.blocking)
    }
}
