//! The problems that a monitor finds when it looks at the workers now and then.

use homing_topology::{CpuId, CpuSet};
use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::layout::{Layout, QueueId};
use crate::mask::Pod;
use crate::place::{OCCUPIED_ITEM_MAX_NS, pullers};

/// How long a worker's CPU clock must stand still before its item counts as blocked, in
/// nanoseconds.
pub const BLOCKED_NS: u64 = 2_000_000;

/// How long an item may use its CPU before it counts as CPU-intensive: the kernel's default of
/// `workqueue.cpu_intensive_thresh_us`.
pub const CPU_INTENSIVE_NS: u64 = 10_000_000;

/// How long items may wait while a CPU is idle before a tick wakes it, in nanoseconds.
pub const TICK_AGE_NS: u64 = 500_000;

/// How long they may wait if an issuer runs on that CPU: holding up the issuer delays all items to
/// come.
pub const OCCUPIED_TICK_AGE_NS: u64 = 4 * TICK_AGE_NS;

/// What is known about a worker that has been running an item for `running_for_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// How long ago the item began.
    pub running_for_ns: u64,
    /// About how long the item has used a CPU since.
    pub used_ns: u64,
    /// The time between the last tick and this one.
    pub elapsed_ns: u64,
    /// How long the thread was on a CPU in that time.
    pub on_cpu_ns: u64,
    /// How long it was ready to run in that time while something else ran.
    pub ready_ns: u64,
    /// Whether it sleeps at this moment. What the kernel counts stands still while the thread runs.
    pub asleep_now: bool,
    /// The threshold for CPU-intensive items; 0 if there is none.
    pub cpu_intensive_ns: u64,
}

/// How a tick judges a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Nothing to do.
    Fine,
    /// Its item uses the CPU for long: count it, and let other workers have what it holds.
    CpuIntensive,
    /// Its item waits for something without having announced it: give its CPU to a spare thread.
    Blocked,
}

/// Decides how to judge a worker.
///
/// ```
/// use homing_sched::{Running, Verdict, tick};
///
/// // In the last millisecond the thread was on no CPU, did not want one, and sleeps now.
/// let asleep = Running {
///     running_for_ns: 3_000_000,
///     used_ns: 2_000_000,
///     elapsed_ns: 1_000_000,
///     on_cpu_ns: 0,
///     ready_ns: 0,
///     asleep_now: true,
///     cpu_intensive_ns: 10_000_000,
/// };
/// assert_eq!(tick(&asleep), Verdict::Blocked);
/// let busy = Running { on_cpu_ns: 1_000_000, asleep_now: false, ..asleep };
/// assert_eq!(tick(&busy), Verdict::Fine);
/// assert_eq!(tick(&Running { used_ns: 10_000_000, ..busy }), Verdict::CpuIntensive);
/// ```
pub fn tick(running: &Running) -> Verdict {
    let awake_ns = running.on_cpu_ns.saturating_add(running.ready_ns);
    let asleep_ns = running.elapsed_ns.saturating_sub(awake_ns);
    // Nine tenths of an interval: the clocks are not read at one instant.
    let still = running.asleep_now && asleep_ns >= running.elapsed_ns / 10 * 9;
    if still && running.running_for_ns >= BLOCKED_NS {
        return Verdict::Blocked;
    }
    if running.cpu_intensive_ns > 0 && running.used_ns >= running.cpu_intensive_ns {
        return Verdict::CpuIntensive;
    }
    Verdict::Fine
}

/// Decides which CPU a tick wakes: an idle one that may serve a queue whose items have waited for
/// [`TICK_AGE_NS`] or longer. The other rules make this rare. It bounds the cost of a stale fact or
/// a wrong estimate.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, Snapshot, TICK_AGE_NS, overdue};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// facts.idle = "3".parse()?;
/// let cpu = CpuId::new(0).ok_or("?")?;
/// facts.queue_items(&layout, PoolId(0), cpu, 1, facts.now_ns);
/// assert_eq!(overdue(&layout, &facts), None, "it has just come");
/// facts.now_ns += TICK_AGE_NS;
/// assert_eq!(overdue(&layout, &facts), CpuId::new(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn overdue(layout: &Layout, facts: &impl Facts) -> Option<CpuId> {
    let idle = facts.idle();
    if idle.is_empty() {
        return None;
    }
    let now_ns = facts.now_ns();
    facts.pools().iter().find_map(|pool| {
        let attributes = facts.attributes(pool);
        layout.leaders(attributes.level()).iter().find_map(|leader| {
            let queue = QueueId { pool, leader };
            if facts.waiting(queue) == 0 {
                return None;
            }
            let age_ns = now_ns.saturating_sub(facts.head_since_ns(queue));
            if age_ns < TICK_AGE_NS {
                return None;
            }
            let item_ns = facts.item_ns(queue);
            let short = item_ns < OCCUPIED_ITEM_MAX_NS;
            let spares = short && age_ns < OCCUPIED_TICK_AGE_NS;
            let idle = if spares { idle.minus(&facts.occupied(item_ns)) } else { idle };
            let pod = Pod::of(layout, facts, queue);
            let nearest = |among: &CpuSet| {
                layout.rings(leader).iter().find_map(|ring| ring.and(among).first_from(leader))
            };
            let at_home = nearest(&idle.and(pod.cpus()));
            at_home.or_else(|| nearest(&pullers(layout, facts, queue, &pod, &idle)))
        })
    })
}

/// Whether none of the CPUs of `staffed`, which have a thread, may take the items of a queue. If
/// no thread can be had for the other CPUs, one of these has to leave its CPU for them.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Features, Layout, PoolId, QueueId, Snapshot, is_stranded};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("1x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cpu, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// let queue = QueueId { pool: PoolId(0), leader: CpuId::new(0).ok_or("?")? };
/// assert!(!is_stranded(&layout, &facts, queue, &"1".parse()?), "CPU 1 pulls");
/// facts.features = Features::ALL.without(Features::SWQUEUE);
/// assert!(is_stranded(&layout, &facts, queue, &"1".parse()?));
/// assert!(!is_stranded(&layout, &facts, queue, &"0-1".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn is_stranded(layout: &Layout, facts: &impl Facts, queue: QueueId, staffed: &CpuSet) -> bool {
    let pod = Pod::of(layout, facts, queue);
    !pod.cpus().intersects(staffed) && pullers(layout, facts, queue, &pod, staffed).is_empty()
}

#[cfg(test)]
mod tests {
    use homing_topology::Scope;

    use super::*;
    use crate::features::Features;
    use crate::test_facts::{Given, cpus, layout, loose, strict};

    #[test]
    fn wakes_the_nearest_idle_cpu_for_what_waits_too_long() {
        let layout = layout("2x2x2x2");
        let mut facts = Given::new(&layout, &[strict(Scope::Cache), loose(Scope::Cache)]);
        facts.idle = cpus("0,5,9");
        let late = facts.now_ns - TICK_AGE_NS;
        let woken = |facts: &Given| overdue(&layout, facts).map(CpuId::index);
        facts.put(&layout, 1, 12, 1, late + 1);
        assert_eq!(woken(&facts), None, "not yet");
        facts.waiting[0].since_ns = late;
        assert_eq!(woken(&facts), Some(9), "its node");
        facts.put(&layout, 1, 4, 1, late);
        assert_eq!(woken(&facts), Some(5), "its pod");
        facts.idle = CpuSet::EMPTY;
        assert_eq!(woken(&facts), None);
    }

    #[test]
    fn an_issuer_is_held_up_only_for_what_is_very_late() {
        let layout = layout("1x2x2x1");
        let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
        facts.idle = cpus("0,3");
        facts.occupied = cpus("0");
        facts.now_ns = 10_000_000;
        facts.put(&layout, 0, 0, 1, facts.now_ns - TICK_AGE_NS);
        let woken = |facts: &Given| overdue(&layout, facts).map(CpuId::index);
        assert_eq!(woken(&facts), Some(3), "farther away, but free");
        facts.idle = cpus("0");
        assert_eq!(woken(&facts), None);
        facts.waiting[0].since_ns = facts.now_ns - OCCUPIED_TICK_AGE_NS;
        assert_eq!(woken(&facts), Some(0));
    }

    #[test]
    fn wakes_only_who_may_take_the_work() {
        let layout = layout("2x2x2x2");
        let mut facts = Given::new(&layout, &[strict(Scope::Cache), loose(Scope::Cache)]);
        facts.idle = cpus("0,9");
        facts.put(&layout, 0, 4, 1, 0);
        let woken = |facts: &Given| overdue(&layout, facts).map(CpuId::index);
        assert_eq!(woken(&facts), None, "strict");
        facts.active = cpus("0-3,8-15");
        assert_eq!(woken(&facts), Some(0), "orphaned");
        facts.active = *layout.machine().online();
        facts.put(&layout, 1, 4, 1, 0);
        assert_eq!(woken(&facts), Some(0));
        facts.features = Features::ALL.without(Features::XSTEAL);
        assert_eq!(woken(&facts), None, "0 would not pull from there");
        // A queue that cannot be helped does not hide one that can.
        facts.put(&layout, 1, 8, 1, 0);
        assert_eq!(woken(&facts), Some(9));
    }

    #[test]
    fn tells_blocked_from_starved_from_busy() {
        let base = Running {
            running_for_ns: 3_000_000,
            used_ns: 2_000_000,
            elapsed_ns: 1_000_000,
            on_cpu_ns: 0,
            ready_ns: 0,
            asleep_now: true,
            cpu_intensive_ns: CPU_INTENSIVE_NS,
        };
        assert_eq!(tick(&base), Verdict::Blocked);
        assert_eq!(tick(&Running { running_for_ns: 1_000_000, ..base }), Verdict::Fine);
        assert_eq!(tick(&Running { ready_ns: 900_000, ..base }), Verdict::Fine, "starved");
        assert_eq!(tick(&Running { asleep_now: false, ..base }), Verdict::Fine, "it runs");
        let busy = Running { on_cpu_ns: 990_000, ..base };
        assert_eq!(tick(&busy), Verdict::Fine);
        let long = Running { used_ns: 10_000_000, ..busy };
        assert_eq!(tick(&long), Verdict::CpuIntensive);
        let mostly_starved = Running { running_for_ns: 60_000_000, ..busy };
        assert_eq!(tick(&mostly_starved), Verdict::Fine);
        assert_eq!(tick(&Running { cpu_intensive_ns: 0, ..long }), Verdict::Fine);
    }

    #[test]
    fn an_issuer_is_held_up_at_once_for_what_is_long_and_not_while_it_waits_briefly() {
        let layout = layout("1x2x2x1");
        let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
        (facts.idle, facts.now_ns) = (cpus("0"), 10_000_000);
        facts.put(&layout, 0, 0, 1, facts.now_ns - TICK_AGE_NS);
        let woken = |facts: &Given| overdue(&layout, facts).map(CpuId::index);
        facts.occupied = cpus("0");
        facts.item_ns = OCCUPIED_ITEM_MAX_NS - 1;
        assert_eq!(woken(&facts), None);
        facts.item_ns = OCCUPIED_ITEM_MAX_NS;
        assert_eq!(woken(&facts), Some(0));
        (facts.occupied, facts.waits, facts.item_ns) = (CpuSet::EMPTY, cpus("0"), 50_000);
        assert_eq!(woken(&facts), Some(0), "nothing is known");
        facts.issuer_wait = crate::IssuerWait::from_ns(10_000);
        assert_eq!(woken(&facts), None);
    }

    #[test]
    fn a_mask_is_kept_to_and_the_own_pod_comes_first() {
        let machine = homing_topology::Machine::from_grid_siblings_last("1x1x4x2").unwrap();
        let layout = Layout::new(&machine).unwrap();
        let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
        facts.put(&layout, 0, 0, 1, 0);
        let woken = |facts: &Given| overdue(&layout, facts).map(CpuId::index);
        facts.idle = cpus("1,4");
        assert_eq!(woken(&facts), Some(4), "the sibling of 0");
        facts.masks = vec![Some(cpus("0,2"))];
        assert_eq!(woken(&facts), None, "neither may");
        facts.idle = cpus("1,2,4");
        assert_eq!(woken(&facts), Some(2));
    }

    #[test]
    fn blocked_is_who_has_slept_for_nine_tenths_and_runs_an_item_for_long_enough() {
        let at = |running_for_ns, on_cpu_ns, ready_ns| {
            let elapsed_ns = 1_000_000;
            let cpu_intensive_ns = CPU_INTENSIVE_NS;
            let asleep_now = true;
            let used_ns = 0;
            let running = Running {
                running_for_ns,
                used_ns,
                elapsed_ns,
                on_cpu_ns,
                ready_ns,
                asleep_now,
                cpu_intensive_ns,
            };
            tick(&running)
        };
        assert_eq!(at(BLOCKED_NS, 0, 0), Verdict::Blocked);
        assert_eq!(at(BLOCKED_NS - 1, 0, 0), Verdict::Fine);
        assert_eq!(at(BLOCKED_NS, 50_000, 50_000), Verdict::Blocked);
        assert_eq!(at(BLOCKED_NS, 60_000, 60_000), Verdict::Fine);
    }
}
