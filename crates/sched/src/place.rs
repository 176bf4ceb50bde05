//! Where an item waits, and which CPU to wake for it.

use homing_topology::{CpuId, CpuSet};

use crate::facts::Facts;
use crate::features::Features;
use crate::layout::{Layout, PoolId, QueueId};
use crate::length::BACKLOG_BATCH_NS;
use crate::mask::Pod;
use crate::patience::{nearest_reach, patience_ns};
use crate::pick::Search;

/// From this item length on, a whole idle core elsewhere is better than the SMT sibling of a busy
/// core at home, in nanoseconds. Simulated: worth 2 to 3 % at partial load with items of 300 us.
/// Derived: 20 us are several times what fetching 32 KiB from another cache costs.
pub const WHOLE_CORE_ITEM_NS: u64 = 20_000;

/// How much work must wait in a queue before a worker is woken on a CPU that an issuer occupies,
/// in nanoseconds. Derived: ten times a context switch each way.
pub const OCCUPIED_BACKLOG_NS: u64 = 50_000;

/// In addition, this many items must wait for each awake worker that may take them. Simulated: with
/// 1, issuers at partial load lose several per cent on small machines; with 4, low depths leave
/// CPUs unused.
pub const OCCUPIED_BACKLOG_ITEMS: usize = 2;

/// Only items shorter than this wait for that: for longer ones, waiting for workers that are awake
/// is expensive, and it is not known whether the issuer still runs. Simulated: with half of this
/// value, items of 300 us, which take 500 and more beside a busy sibling, took issuers' CPUs one by
/// one: 5 % in the worst cases. Twice as much gains nothing.
pub const OCCUPIED_ITEM_MAX_NS: u64 = 1_000_000;

/// If a worker that was woken on an issuer's CPU begins within this many times what it takes
/// elsewhere, issuers there mostly wait soon, and the worker is in nobody's way. Measured with
/// clients that wait for their items, and with one that does not: with 1, the former are not told
/// apart; with 10, the latter loses.
const OCCUPIED_WAKE_TIMES: u64 = 3;

/// Or within this time, in nanoseconds, where each CPU is an issuer's: there nothing is learned of
/// wake-ups elsewhere, or what was learned is old. Measured with four such clients on 2 CPUs:
/// workers begin there after 3 to 11 us; with 10 or 50 us in the place of 15, the same.
const OCCUPIED_WAKE_SOON_NS: u64 = 15_000;

/// Items shorter than this are left to the awake workers of the pod until [`TINY_BACKLOG_NS`] of
/// them wait, in nanoseconds: waking another CPU takes longer than running several of them. But one
/// of these workers must have begun what it runs within twice [`BACKLOG_BATCH_NS`].
pub const TINY_ITEM_NS: u64 = 1_000;

/// See [`TINY_ITEM_NS`]. Derived: the cost of a wake-up itself.
pub const TINY_BACKLOG_NS: u64 = 5_000;

/// What to do with a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The queue to put it in.
    pub queue: QueueId,
    /// The idle CPU to wake for it, once it is in the queue.
    pub wake: Option<CpuId>,
}

/// The queue in which an item for `cpu` waits. `cpu` is that of its issuer, or the one that was
/// named (`SCHED-1`). If `cpu` has no worker, this is the queue of the nearest CPU that has one, in
/// its pod if possible.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, Snapshot, home};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x2")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Smt, strict: true });
/// let facts = Snapshot::new(&layout, &[attributes]);
/// let queue = home(&layout, &facts, CpuId::new(5).ok_or("?")?, PoolId(0));
/// assert_eq!(queue.leader.index(), 4, "of the core of the CPUs 4-5");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn home(layout: &Layout, facts: &impl Facts, cpu: CpuId, pool: PoolId) -> QueueId {
    let mut active = facts.active();
    if let Some(mask) = facts.cpumask(pool).filter(|mask| mask.intersects(&active)) {
        active = active.and(mask);
    }
    let attributes = facts.attributes(pool);
    let pod = layout.pod(attributes.affinity.scope, cpu);
    if !active.contains(cpu) && pod.intersects(&active) {
        active = active.and(pod);
    }
    layout.queue(pool, attributes, layout.nearest_active(cpu, &active))
}

/// Decides where an item for `cpu` waits, and which CPU to wake for it (`SCHED-1`, `SCHED-2`).
///
/// With a real queue, the caller must read the facts after the insertion. It can learn the queue
/// before that from [`home`], from which this function gets it, too.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, Placement, PoolId, Snapshot, start, submit};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// let cpu = CpuId::new(3).ok_or("?")?;
/// facts.queue_items(&layout, PoolId(0), cpu, 1, facts.now_ns);
/// facts.idle = "0-2".parse()?;
/// let Placement { queue, wake } = submit(&layout, &facts, cpu, PoolId(0));
/// assert_eq!(queue.leader.index(), 2, "at home in the cache of the CPUs 2-3");
/// assert_eq!(wake, CpuId::new(2), "the idle CPU that is nearest");
/// facts.idle = "".parse()?;
/// let placement = submit(&layout, &facts, cpu, PoolId(0));
/// assert_eq!(placement.wake, None, "nobody is idle, so somebody will come by");
/// // A worker that begins an item wakes the next one while more wait.
/// let cpu = CpuId::new(2).ok_or("?")?;
/// facts.idle = "0-1,3".parse()?;
/// assert_eq!(start(&layout, &facts, queue, cpu), CpuId::new(3));
/// facts.waiting.clear();
/// assert_eq!(start(&layout, &facts, queue, cpu), None, "it was the last one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn submit(layout: &Layout, facts: &impl Facts, cpu: CpuId, pool: PoolId) -> Placement {
    let queue = home(layout, facts, cpu, pool);
    Placement { queue, wake: wake_for(layout, facts, queue, cpu, None) }
}

/// Whether an insertion requires a decision. `waiting` is the number of items in the queue,
/// including the new one.
///
/// Insertions of tiny items into a queue that already had some require none: the thread that put
/// the first one in has decided, and a worker that takes some of them decides again. All that has
/// changed since is how many wait, which is looked at each time that the number has doubled.
///
/// ```
/// use homing_sched::calls_for_decision;
///
/// let asked = (1..=1000).filter(|&waiting| calls_for_decision(50, waiting)).count();
/// assert_eq!(asked, 10, "of a thousand items of 50 ns that come while nobody takes one");
/// assert!(calls_for_decision(50_000, 3), "long ones are worth it each");
/// ```
pub const fn calls_for_decision(item_ns: u64, waiting: u32) -> bool {
    item_ns == 0 || item_ns >= TINY_ITEM_NS || waiting.is_power_of_two()
}

/// Decides which CPU a worker on `cpu` that begins an item of `queue` wakes for the next one: none
/// if no item is left (`SCHED-3`). [`submit`] has an example.
pub fn start(layout: &Layout, facts: &impl Facts, queue: QueueId, cpu: CpuId) -> Option<CpuId> {
    if facts.waiting(queue) == 0 {
        return None;
    }
    wake_for(layout, facts, queue, cpu, Some(cpu))
}

/// Those of `cpus` outside the pod of a queue whose workers may pull from it. None if it is strict,
/// unless no CPU of the pod has a worker left (`SCHED-5`); otherwise the features decide.
pub(crate) fn pullers(
    layout: &Layout,
    facts: &impl Facts,
    queue: QueueId,
    pod: &Pod<'_>,
    cpus: &CpuSet,
) -> CpuSet {
    let away = pod.allowed(cpus).minus(pod.cpus());
    if pod.is_orphaned(facts) {
        return away;
    }
    if facts.attributes(queue.pool).affinity.strict {
        return CpuSet::EMPTY;
    }
    let near = &layout.rings(queue.leader)[0];
    let features = facts.features();
    match (features.has(Features::SWQUEUE), features.has(Features::XSTEAL)) {
        (true, true) => away,
        (true, false) => away.and(near),
        (false, true) => away.minus(near),
        (false, false) => CpuSet::EMPTY,
    }
}

/// `begins` is the CPU whose worker is about to begin an item.
fn wake_for(
    layout: &Layout,
    facts: &impl Facts,
    queue: QueueId,
    near: CpuId,
    begins: Option<CpuId>,
) -> Option<CpuId> {
    let idle = facts.idle();
    if idle.is_empty() {
        return None;
    }
    let home = Pod::of(layout, facts, queue);
    let (pod, idle) = (home.cpus(), home.allowed(&idle));
    if facts.searching().intersects(pod) {
        return None;
    }
    let active = facts.active();
    let item_ns = facts.item_ns(queue);
    let occupied = facts.occupied(item_ns);
    let search = Search {
        layout,
        facts,
        queue,
        pod: &home,
        near,
        active: &active,
        occupied: &occupied,
        item_ns,
    };
    let awake = home.awake(&active, &idle);
    let away = pullers(layout, facts, queue, &home, &active.minus(&idle));
    let free = idle.minus(&occupied);
    let waiting = facts.waiting(queue);
    let backlog_ns = item_ns.saturating_mul(u64::from(waiting));
    let known = item_ns != 0;
    // An issuer that is held up has less for all workers. So its CPU is not used before there is
    // enough for each worker that is awake and may come by; and never for short items, if none of
    // the issuers waits for them. But if all these workers are busy with something long, nobody
    // comes by.
    let reluctant = || {
        let others = awake.or(&away);
        let enough = others.len() * OCCUPIED_BACKLOG_ITEMS;
        let is_short = item_ns < OCCUPIED_ITEM_MAX_NS;
        let little = backlog_ns < OCCUPIED_BACKLOG_NS || is_short && (waiting as usize) < enough;
        let elsewhere_ns = OCCUPIED_WAKE_TIMES.saturating_mul(facts.wake_ns(false));
        let nowhere_else = active.is_subset(&occupied);
        let soon_ns = elsewhere_ns.max(if nowhere_else { OCCUPIED_WAKE_SOON_NS } else { 0 });
        let occupied_ns = facts.wake_ns(true);
        let worth_it = (TINY_ITEM_NS..WHOLE_CORE_ITEM_NS).contains(&item_ns);
        // At most 1: nothing is known.
        let issuers_wait = worth_it && (2..soon_ns).contains(&occupied_ns);
        let spares = little && !issuers_wait || is_short && facts.issuers_are_busy();
        known && spares && comes_soon(facts, &others, item_ns, begins)
    };
    if !awake.is_empty() {
        // A worker of the pod is awake and will come by.
        let is_little = known && item_ns < TINY_ITEM_NS && backlog_ns < TINY_BACKLOG_NS;
        if is_little && comes_soon(facts, &awake, 0, begins) {
            return None;
        }
        // How far away the CPU to be woken would be: issuers' CPUs come last.
        let reach = nearest_reach(layout, queue, pod, if free.is_empty() { &idle } else { &free });
        if patience_ns(layout, facts, queue, &home, reach) > 0 {
            return None;
        }
        if free.is_empty() && reluctant() {
            return None;
        }
        return search.pick(&free).or_else(|| if reluctant() { None } else { search.pick(&idle) });
    }
    // An issuer that mostly waits for its items: its own CPU is the nearest, and free at once.
    let waits = item_ns < WHOLE_CORE_ITEM_NS && facts.wake_ns(true) < facts.wake_ns(false);
    if waits && idle.contains(near) && pod.contains(near) {
        return Some(near);
    }
    search.pick(&free).or_else(|| {
        // For example, the pod's only CPU is an issuer's.
        let others_come_by = !away.is_empty();
        if others_come_by && reluctant() { None } else { search.pick(&idle) }
    })
}

/// Whether one of these awake workers has not been busy for long: what it runs is short, or about
/// as long as an item of `item_ns`. A batch of a backlog takes [`BACKLOG_BATCH_NS`]. Of a worker
/// that searches, or `begins` an item, only the end of its last batch is known.
fn comes_soon(facts: &impl Facts, awake: &CpuSet, item_ns: u64, begins: Option<CpuId>) -> bool {
    if begins.is_some_and(|cpu| awake.contains(cpu)) || facts.searching().intersects(awake) {
        return true;
    }
    let now_ns = facts.now_ns();
    let busy_for_ns = |cpu| now_ns.saturating_sub(facts.busy_since_ns(cpu));
    let busy_max_ns = 2 * (BACKLOG_BATCH_NS + item_ns);
    awake.iter().any(|cpu| busy_for_ns(cpu) <= busy_max_ns)
}

#[cfg(test)]
mod left_tests;
#[cfg(test)]
mod tests;
