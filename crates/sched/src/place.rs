//! Where an item waits, and whom to wake for it.

use homing_topology::{CpuId, CpuSet};

use crate::facts::Facts;
use crate::features::Features;
use crate::layout::{Layout, PoolId, QueueId};

/// From which item length on a whole idle core elsewhere is better than the SMT sibling of a busy
/// core at home, in nanoseconds. Simulated: worth 2 to 3 % at partial load with items of 300 us;
/// derived: 20 us are several times what fetching 32 KiB from another cache costs.
pub const WHOLE_CORE_ITEM_NS: u64 = 20_000;

/// How much work must wait in a queue before a worker is woken on a CPU that an issuer occupies,
/// in nanoseconds. Derived: ten times a context switch each way.
pub const OCCUPIED_BACKLOG_NS: u64 = 50_000;

/// Items shorter than this are left to the pod's workers that are awake until [`TINY_BACKLOG_NS`]
/// of them wait, in nanoseconds: waking another CPU takes longer than running several.
pub const TINY_ITEM_NS: u64 = 1_000;

/// See [`TINY_ITEM_NS`]. Derived: a wake-up's own cost.
pub const TINY_BACKLOG_NS: u64 = 5_000;

/// What to do with a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The queue to put it in.
    pub queue: QueueId,
    /// The idle CPU to wake for it, after it is in the queue.
    pub wake: Option<CpuId>,
}

/// The queue in which an item for `cpu` waits: its issuer's CPU, or the one that was named
/// (`SCHED-1`). Where it has no worker, that of its nearest neighbour that has one.
pub fn home(layout: &Layout, facts: &impl Facts, cpu: CpuId, pool: PoolId) -> QueueId {
    let near = layout.nearest_active(cpu, &facts.active());
    layout.queue(pool, facts.attributes(pool), near)
}

/// Decides where an item for `cpu` waits, and whom to wake for it (`SCHED-1`, `SCHED-2`).
///
/// Of a real queue the caller must read the facts after the insertion; it can learn the queue
/// before that from [`home`], which is where this function has it from.
pub fn submit(layout: &Layout, facts: &impl Facts, cpu: CpuId, pool: PoolId) -> Placement {
    let queue = home(layout, facts, cpu, pool);
    Placement { queue, wake: wake_for(layout, facts, queue, cpu) }
}

/// Whether an insertion calls for a decision, where the queue has `waiting` items with it.
///
/// Not of tiny items into a queue that had some already: whoever put the first one in has decided,
/// and whoever takes some of them decides again. What has changed since is only how many wait,
/// which is looked at each time they have doubled.
pub const fn calls_for_decision(item_ns: u64, waiting: u32) -> bool {
    item_ns == 0 || item_ns >= TINY_ITEM_NS || waiting.is_power_of_two()
}

/// Decides whom a worker on `cpu` that begins an item of `queue` wakes for the next one: nobody
/// where none is left (`SCHED-3`).
pub fn start(layout: &Layout, facts: &impl Facts, queue: QueueId, cpu: CpuId) -> Option<CpuId> {
    if facts.waiting(queue) == 0 {
        return None;
    }
    wake_for(layout, facts, queue, cpu)
}

/// Whether the workers of CPUs outside `pod` may take its items: not if strict, unless no CPU of
/// the pod has a worker left (`SCHED-5`).
pub(crate) fn may_leave(facts: &impl Facts, strict: bool, pod: &CpuSet) -> bool {
    !strict || !facts.active().intersects(pod)
}

fn wake_for(layout: &Layout, facts: &impl Facts, queue: QueueId, near: CpuId) -> Option<CpuId> {
    let idle = facts.idle();
    if idle.is_empty() {
        return None;
    }
    let attributes = facts.attributes(queue.pool);
    let pod = layout.pod(attributes.affinity.scope, queue.leader);
    if facts.searching().intersects(pod) {
        return None;
    }
    let active = facts.active();
    let item_ns = facts.item_ns(queue);
    let occupied = facts.occupied();
    if active.minus(&idle).intersects(pod) {
        // Somebody of the pod is awake and will come by.
        let backlog_ns = item_ns.saturating_mul(u64::from(facts.waiting(queue)));
        let known = item_ns != 0;
        if known && item_ns < TINY_ITEM_NS && backlog_ns < TINY_BACKLOG_NS {
            return None;
        }
        let free = idle.minus(&occupied);
        let reluctant = known && backlog_ns < OCCUPIED_BACKLOG_NS;
        if free.is_empty() && reluctant {
            return None;
        }
        let search = Search { layout, facts, queue, pod, near, active: &active, item_ns };
        return search.pick(&free).or_else(|| if reluctant { None } else { search.pick(&idle) });
    }
    // An issuer that mostly waits for its items: its own CPU is the nearest, and free at once.
    let waits = item_ns < WHOLE_CORE_ITEM_NS && facts.wake_ns(true) < facts.wake_ns(false);
    if waits && idle.contains(near) && pod.contains(near) {
        return Some(near);
    }
    let search = Search { layout, facts, queue, pod, near, active: &active, item_ns };
    search.pick(&idle.minus(&occupied)).or_else(|| search.pick(&idle))
}

/// `SCHED-2`: the search of a waker for an idle CPU.
struct Search<'a, F> {
    layout: &'a Layout,
    facts: &'a F,
    queue: QueueId,
    pod: &'a CpuSet,
    near: CpuId,
    active: &'a CpuSet,
    item_ns: u64,
}

impl<F: Facts> Search<'_, F> {
    fn pick(&self, idle: &CpuSet) -> Option<CpuId> {
        if idle.is_empty() {
            return None;
        }
        let attributes = self.facts.attributes(self.queue.pool);
        let features = self.facts.features();
        if attributes.localize && idle.contains(self.near) {
            return Some(self.near);
        }
        let smt_aware = features.has(Features::SMT_AWARE);
        let whole =
            if smt_aware { self.layout.whole_cores(idle, self.active) } else { CpuSet::EMPTY };
        let rings = self.layout.rings(self.near);
        let nearest = |among: &CpuSet| {
            if among.is_empty() {
                return None;
            }
            rings.iter().find_map(|ring| ring.and(among).first_from(self.near))
        };
        if let Some(cpu) = nearest(&whole.and(self.pod)) {
            return Some(cpu);
        }
        let leaves = may_leave(self.facts, attributes.affinity.strict, self.pod);
        let beyond = features.has(Features::SIS_NODE);
        let reach = if beyond { rings } else { &rings[..1] };
        let outward = |among: &CpuSet| {
            let away = among.minus(self.pod);
            reach.iter().find_map(|ring| ring.and(&away).first_from(self.near))
        };
        if leaves
            && self.item_ns >= WHOLE_CORE_ITEM_NS
            && let Some(cpu) = outward(&whole)
        {
            return Some(cpu);
        }
        if let Some(cpu) = nearest(&idle.and(self.pod)) {
            return Some(cpu);
        }
        if !leaves {
            return None;
        }
        let away = idle.minus(self.pod);
        reach.iter().find_map(|ring| {
            let there = ring.and(&away);
            let core = there.and(&whole).first_from(self.near);
            core.or_else(|| there.first_from(self.near))
        })
    }
}
