//! `max_active`, order and freezing: the gate in front of the home queues of a workqueue that has
//! any of these. Items that may not be active yet wait here, first in, first out.
//!
//! The gate has slots: a single one for an ordered workqueue, one for each CPU for a per-CPU
//! workqueue, otherwise one for each node and one for pods that span nodes. The limit of a slot
//! says how many of its items may be active, that is, queued or running.
//!
//! An item waits in the line of its home queue; lines take turns, so that no pod starves another.

use std::collections::VecDeque;
use std::sync::Arc;

use homing_sched::{MAX_ACTIVE_MAX, MIN_ACTIVE, node_max_active};
use homing_topology::CpuId;

use crate::item::Item;
use crate::sync::{Mutex, lock};
use crate::workqueues::flush::{Wait, end_all};

/// Which items share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All of them, and their order is kept.
    Ordered,
    /// Those of a CPU.
    PerCpu,
    /// Those of a node, by the rules of Linux 6.9; and those of pods that span nodes.
    Nodes,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    kind: Kind,
    slots: Box<[Slot]>,
    limits: Mutex<Limits>,
}

#[derive(Debug)]
struct Limits {
    /// `None`: no limit.
    max_active: Option<u32>,
    min_active: u32,
    frozen: bool,
    /// How many CPUs the workqueue may use, for each node.
    cpus: Vec<usize>,
    /// Those who wait until nothing is active.
    idle: Vec<Arc<Wait>>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Active>);

#[derive(Debug, Default)]
struct Active {
    active: u32,
    limit: u32,
    /// The home queues' lines that have items. The next turn is the first one's.
    lines: VecDeque<Line>,
    inactive: usize,
    frozen: bool,
}

struct Line {
    home: CpuId,
    items: VecDeque<(CpuId, Item)>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("home", &self.home).field("len", &self.items.len()).finish()
    }
}

/// What a slot has, for the attribute tree.
#[cfg(feature = "control")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) active: u32,
    pub(crate) limit: u32,
    pub(crate) inactive: usize,
}

impl Gate {
    /// A gate with so many slots: see [`Kind`]. Of `Nodes`, the last one is for pods that span
    /// nodes.
    pub(crate) fn new(kind: Kind, slots: usize, max_active: Option<u32>, cpus: Vec<usize>) -> Self {
        let limits =
            Limits { max_active, min_active: MIN_ACTIVE, frozen: false, cpus, idle: Vec::new() };
        let gate = Self {
            kind,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            limits: Mutex::new(limits),
        };
        gate.apply(&lock(&gate.limits));
        gate
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// How many slots there are. Of `Nodes`, the last one is for pods that span nodes.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Takes an item for `cpu` whose home queue is that of `home`. Gives it back with its slot if
    /// it may be active; otherwise keeps it.
    pub(crate) fn admit(&self, slot: usize, home: CpuId, cpu: CpuId, item: Item) -> Option<Item> {
        let mut active = lock(&self.slots[slot].0);
        if active.inactive == 0 && active.active < active.limit && !active.frozen {
            active.active += 1;
            drop(active);
            item.set_slot(Some(slot as u16));
            return Some(item);
        }
        active.inactive += 1;
        // If ordered, there is one line, whatever the home.
        let home = if self.kind == Kind::Ordered { CpuId::new(0).unwrap_or(home) } else { home };
        match active.lines.iter_mut().find(|line| line.home == home) {
            Some(line) => line.items.push_back((cpu, item)),
            None => active.lines.push_back(Line { home, items: VecDeque::from([(cpu, item)]) }),
        }
        None
    }

    /// An active item of the slot has ended. Returns the item that becomes active in its place, if
    /// any does.
    pub(crate) fn release(&self, slot: usize) -> Option<(CpuId, Item)> {
        let mut active = lock(&self.slots[slot].0);
        active.active -= 1;
        let next = active.next(slot);
        let waited_for = next.is_none() && active.frozen && active.active == 0;
        drop(active);
        if waited_for {
            self.end_waits();
        }
        next
    }

    /// Makes the next item active that may be, after limits have risen. To be called until there is
    /// none.
    pub(crate) fn activate(&self) -> Option<(CpuId, Item)> {
        let mut slots = self.slots.iter().enumerate();
        slots.find_map(|(number, slot)| lock(&slot.0).next(number))
    }

    /// Takes over what was chosen: the limit, and the CPUs of each node. `chosen` is called under
    /// the lock: if two threads have changed it, the last one to come takes over the last change.
    /// To be followed by [`Gate::activate`].
    pub(crate) fn take_over(&self, chosen: impl FnOnce() -> (Option<u32>, Vec<usize>)) {
        let mut limits = lock(&self.limits);
        (limits.max_active, limits.cpus) = chosen();
        self.apply(&limits);
    }

    pub(crate) fn set_min_active(&self, min_active: u32) {
        let mut limits = lock(&self.limits);
        limits.min_active = min_active;
        self.apply(&limits);
    }

    pub(crate) fn min_active(&self) -> u32 {
        lock(&self.limits).min_active
    }

    /// Lets nothing become active any more, if `may` allows it. That is asked under the lock: a
    /// thread that first forbids freezing and then thaws need not look again.
    pub(crate) fn freeze(&self, may: impl FnOnce() -> bool) -> bool {
        let mut limits = lock(&self.limits);
        let may = may();
        if may {
            limits.frozen = true;
            self.apply(&limits);
        }
        may
    }

    /// Lets items become active again. To be followed by [`Gate::activate`].
    pub(crate) fn thaw(&self) {
        let mut limits = lock(&self.limits);
        limits.frozen = false;
        self.apply(&limits);
        let in_vain = std::mem::take(&mut limits.idle);
        drop(limits);
        end_all(&in_vain);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        lock(&self.limits).frozen
    }

    /// A wait until nothing is active in the frozen gate, or until it is thawed.
    pub(crate) fn wait_idle(&self) -> Arc<Wait> {
        let wait = Arc::new(Wait::default());
        let mut limits = lock(&self.limits);
        let frozen = limits.frozen;
        if frozen {
            limits.idle.push(Arc::clone(&wait));
        }
        drop(limits);
        if frozen {
            self.end_waits();
        } else {
            // The gate was thawed meanwhile, so nobody else would end this wait.
            wait.end();
        }
        wait
    }

    fn end_waits(&self) {
        let mut limits = lock(&self.limits);
        let idle = if self.active() == 0 { std::mem::take(&mut limits.idle) } else { Vec::new() };
        // Not under the lock: a thread that is woken may thaw the gate.
        drop(limits);
        end_all(&idle);
    }

    /// How many items are active.
    pub(crate) fn active(&self) -> u64 {
        self.slots.iter().map(|slot| u64::from(lock(&slot.0).active)).sum()
    }

    /// How many items wait here.
    pub(crate) fn inactive(&self) -> u64 {
        self.slots.iter().map(|slot| lock(&slot.0).inactive as u64).sum()
    }

    #[cfg(feature = "control")]
    pub(crate) fn states(&self) -> Vec<SlotState> {
        let state = |slot: &Slot| {
            let active = lock(&slot.0);
            SlotState { active: active.active, limit: active.limit, inactive: active.inactive }
        };
        self.slots.iter().map(state).collect()
    }

    /// Hands out all items that wait, for the caller to cancel.
    pub(crate) fn close(&self) -> Vec<Item> {
        let mut left = Vec::new();
        for slot in &self.slots {
            let mut active = lock(&slot.0);
            active.inactive = 0;
            let lines = std::mem::take(&mut active.lines);
            left.extend(lines.into_iter().flat_map(|line| line.items).map(|(_, item)| item));
        }
        left
    }

    fn apply(&self, limits: &Limits) {
        let no_limit = limits.max_active.is_none();
        let max = limits.max_active.unwrap_or(u32::MAX);
        let all: usize = limits.cpus.iter().sum();
        let nodes = self.slots.len() - 1;
        for (number, slot) in self.slots.iter().enumerate() {
            let mut active = lock(&slot.0);
            active.frozen = limits.frozen;
            active.limit = match self.kind {
                Kind::Ordered => 1,
                Kind::Nodes if number < nodes && !no_limit => {
                    let cpus = limits.cpus.get(number).copied().unwrap_or(0);
                    let limit = node_max_active(max, limits.min_active, cpus, all);
                    // Items in the line of a node that has lost its CPUs are served elsewhere.
                    if cpus == 0 { limit.max(1) } else { limit }
                }
                Kind::PerCpu | Kind::Nodes => max,
            };
        }
    }
}

impl Active {
    /// Makes the next item active that may be.
    fn next(&mut self, slot: usize) -> Option<(CpuId, Item)> {
        if self.frozen || self.active >= self.limit {
            return None;
        }
        let mut line = self.lines.pop_front()?;
        let (cpu, item) = line.items.pop_front()?;
        if !line.items.is_empty() {
            self.lines.push_back(line);
        }
        self.inactive -= 1;
        self.active += 1;
        item.set_slot(Some(slot as u16));
        Some((cpu, item))
    }
}

/// Whether this is a valid `max_active`: 1 to [`MAX_ACTIVE_MAX`].
pub(crate) fn is_max_active(max_active: u32) -> bool {
    (1..=MAX_ACTIVE_MAX).contains(&max_active)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::item::{Tag, lone};

    fn cpu(number: usize) -> CpuId {
        CpuId::new(number).unwrap()
    }

    fn item(number: u32) -> Item {
        lone(Tag::new(number, 0), || ())
    }

    fn number(next: Option<(CpuId, Item)>) -> Option<u32> {
        next.map(|(_, item)| item.tag().workqueue())
    }

    #[test]
    fn who_waits_for_a_gate_that_was_thawed_meanwhile_goes_on() {
        let gate = Gate::new(Kind::Nodes, 2, None, vec![4]);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        gate.thaw();
        gate.admit(0, cpu(0), cpu(0), item(0)).unwrap();
        assert!(gate.wait_idle().poll(&mut context).is_ready());
        assert!(gate.freeze(|| true));
        let frozen = gate.wait_idle();
        assert!(frozen.poll(&mut context).is_pending());
        gate.thaw();
        assert!(frozen.poll(&mut context).is_ready());
    }

    #[test]
    fn lines_take_turns_and_keep_their_order() {
        let gate = Gate::new(Kind::Nodes, 2, Some(1), vec![4]);
        let active = gate.admit(0, cpu(0), cpu(0), item(0)).unwrap();
        assert_eq!(active.slot(), Some(0));
        for (home, first) in [(0, 10), (2, 20)] {
            (first..first + 3).for_each(|number| {
                assert!(gate.admit(0, cpu(home), cpu(home), item(number)).is_none());
            });
        }
        assert_eq!((gate.active(), gate.inactive()), (1, 6));
        let order: Vec<_> = (0..7).map(|_| number(gate.release(0))).collect();
        assert_eq!(order, [Some(10), Some(20), Some(11), Some(21), Some(12), Some(22), None]);
        assert_eq!((gate.active(), gate.inactive()), (0, 0));
    }

    #[test]
    fn an_ordered_gate_has_one_line() {
        let gate = Gate::new(Kind::Ordered, 1, Some(1), vec![]);
        assert!(gate.admit(0, cpu(0), cpu(0), item(0)).is_some());
        for number in 1..5 {
            let home = cpu(number as usize);
            assert!(gate.admit(0, home, home, item(number)).is_none());
        }
        let order: Vec<_> = (0..4).map(|_| number(gate.release(0)).unwrap()).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    /// Otherwise an ordered workqueue would run it before what was queued before it.
    #[test]
    fn who_comes_between_a_thaw_and_what_it_activates_does_not_overtake() {
        let gate = Gate::new(Kind::Ordered, 1, Some(1), vec![]);
        assert!(gate.freeze(|| true));
        assert!(gate.admit(0, cpu(0), cpu(0), item(1)).is_none());
        gate.thaw();
        assert!(gate.admit(0, cpu(0), cpu(0), item(2)).is_none());
        assert_eq!(number(gate.activate()), Some(1));
        assert!(gate.activate().is_none());
        assert_eq!(number(gate.release(0)), Some(2));
    }

    #[test]
    fn limits_rise_and_fall_and_freeze() {
        let gate = Gate::new(Kind::Nodes, 2, Some(2), vec![2]);
        gate.set_min_active(0);
        let queue = |n| gate.admit(0, cpu(0), cpu(0), item(n)).is_some();
        assert_eq!((0..5).map(queue).collect::<Vec<_>>(), [true, true, false, false, false]);
        gate.take_over(|| (Some(4), vec![2]));
        assert_eq!([number(gate.activate()), number(gate.activate())], [Some(2), Some(3)]);
        assert!(gate.activate().is_none());
        gate.take_over(|| (Some(1), vec![2]));
        assert!((0..3).all(|_| gate.release(0).is_none()), "4 were active");
        assert_eq!(number(gate.release(0)), Some(4));
        assert!(gate.freeze(|| true));
        assert!(!queue(5) && gate.is_frozen());
        let idle = gate.wait_idle();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(idle.poll(&mut context).is_pending());
        assert!(gate.release(0).is_none());
        assert!(idle.poll(&mut context).is_ready());
        gate.thaw();
        assert!(!gate.freeze(|| false));
        assert_eq!(number(gate.activate()), Some(5));
    }

    #[test]
    fn what_is_left_at_the_end_comes_out() {
        let gate = Gate::new(Kind::PerCpu, 2, Some(1), vec![]);
        assert!((0..4).filter_map(|n| gate.admit(1, cpu(1), cpu(1), item(n))).count() == 1);
        assert_eq!(gate.close().len(), 3);
        assert_eq!(gate.inactive(), 0);
    }
}
