//! Place, wake, pull, park. See the crate's page for the rules by number.

use homing_topology::{CpuId, CpuSet, Scope};

use crate::layout::{Affinity, Layout, QueueId};

/// What a decision may know. Any of it may be stale by the time the decision is carried out.
pub trait Facts {
    /// The CPUs whose worker has announced that it is idle and has not been woken since.
    fn idle(&self) -> CpuSet;

    /// The leaders of those queues of `affinity` that have items waiting.
    fn waiting(&self, affinity: Affinity) -> CpuSet;
}

/// What to do with a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The queue to put it in.
    pub queue: QueueId,
    /// The idle CPU to wake for it, after it is in the queue.
    pub wake: Option<CpuId>,
}

/// How far a worker went for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// It is a CPU of the item's home pod.
    Home,
    /// Another pod of the same last-level cache.
    Llc,
    /// Another cache of the same node.
    Node,
    /// Another node.
    Remote,
}

impl Reach {
    /// All of them, nearest first.
    pub const ALL: [Self; 4] = [Self::Home, Self::Llc, Self::Node, Self::Remote];
}

/// A queue with work for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The queue to take from.
    pub queue: QueueId,
    /// How far away it is.
    pub reach: Reach,
}

/// Decides where an item issued on `cpu` waits, and whom to wake for it (`SCHED-1`, `SCHED-2`).
///
/// Of a real queue the caller must read the facts after the insertion; it can learn the queue
/// before that from [`Layout::home`], which is where this function has it from.
pub fn submit(layout: &Layout, facts: &impl Facts, cpu: CpuId, affinity: Affinity) -> Placement {
    let queue = layout.home(cpu, affinity);
    Placement { queue, wake: idle_cpu_for(layout, &facts.idle(), queue, cpu) }
}

/// Decides whom a worker that has just taken an item of `queue` wakes for the next one: nobody
/// where none is left (`SCHED-3`).
pub fn wake_next(layout: &Layout, facts: &impl Facts, queue: QueueId) -> Option<CpuId> {
    let more = facts.waiting(queue.affinity).contains(queue.leader);
    if !more {
        return None;
    }
    idle_cpu_for(layout, &facts.idle(), queue, queue.leader)
}

/// Decides from which queue the worker of `cpu` takes its next item; `None`: it may park
/// (`SCHED-4`, `SCHED-5`). `turn` rotates which affinity is looked at first, so that no queue
/// starves behind another: the caller counts it up.
pub fn next_queue(layout: &Layout, facts: &impl Facts, cpu: CpuId, turn: usize) -> Option<Found> {
    let count = Affinity::ALL.len();
    let mut outside = [None; Affinity::ALL.len()];
    for (step, slot) in outside.iter_mut().enumerate() {
        let affinity = Affinity::ALL[(turn + step) % count];
        let waiting = facts.waiting(affinity);
        if waiting.is_empty() {
            continue;
        }
        let own = layout.home(cpu, affinity);
        if waiting.contains(own.leader) {
            return Some(Found { queue: own, reach: Reach::Home });
        }
        *slot = (!affinity.strict).then_some((affinity, waiting));
    }
    if outside.iter().all(Option::is_none) {
        return None;
    }
    for (distance, ring) in layout.rings(cpu).iter().enumerate() {
        for (affinity, waiting) in outside.iter().flatten() {
            // Different CPUs start at different victims, so that thieves do not stampede.
            if let Some(leader) = waiting.and(ring).first_from(cpu) {
                let queue = QueueId { affinity: *affinity, leader };
                return Some(Found { queue, reach: reach(layout, cpu, leader, distance) });
            }
        }
    }
    None
}

fn reach(layout: &Layout, cpu: CpuId, leader: CpuId, ring: usize) -> Reach {
    if ring == 0 {
        return Reach::Llc;
    }
    let numa = layout.pods(Scope::Numa);
    if numa.pod_of(cpu) == numa.pod_of(leader) { Reach::Node } else { Reach::Remote }
}

/// `SCHED-2`: a whole idle core of the pod, an idle sibling of the pod, then outward.
fn idle_cpu_for(layout: &Layout, idle: &CpuSet, queue: QueueId, near: CpuId) -> Option<CpuId> {
    if idle.is_empty() {
        return None;
    }
    let whole = layout.whole_cores(idle);
    let pick = |among: &CpuSet| {
        let core = whole.and(among).first_from(near);
        core.or_else(|| idle.and(among).first_from(near))
    };
    if let Some(cpu) = pick(layout.pod(queue)) {
        return Some(cpu);
    }
    if queue.affinity.strict {
        return None;
    }
    layout.rings(queue.leader).iter().find_map(pick)
}

#[cfg(test)]
mod tests {
    use homing_topology::Machine;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug)]
    struct Given {
        idle: CpuSet,
        waiting: Vec<QueueId>,
    }

    impl Facts for Given {
        fn idle(&self) -> CpuSet {
            self.idle
        }

        fn waiting(&self, affinity: Affinity) -> CpuSet {
            let queues = self.waiting.iter().filter(|queue| queue.affinity == affinity);
            queues.map(|queue| queue.leader).collect()
        }
    }

    const GRIDS: [&str; 6] = ["1x1x1", "1x2x1", "4x3x2", "2x2x9x2", "2x2x2x4x2", "16x1x1"];

    fn layout(grid: &str, workers: &str) -> Layout {
        let machine = Machine::from_grid(grid).unwrap();
        Layout::new(&machine, &workers.parse().unwrap()).unwrap()
    }

    fn cpu(number: usize) -> CpuId {
        CpuId::new(number).unwrap()
    }

    fn wake(idle: &str, scope: Scope, strict: bool) -> Option<usize> {
        let layout = layout("2x2x2x2", "0-15"); // LLCs of 4 CPUs, nodes of 8
        let facts = Given { idle: idle.parse().unwrap(), waiting: vec![] };
        submit(&layout, &facts, cpu(0), Affinity { scope, strict }).wake.map(CpuId::index)
    }

    #[test]
    fn wakes_whole_cores_first_then_siblings_then_outward() {
        assert_eq!(wake("1,2,3,8", Scope::Cache, false), Some(2), "1 is a sibling of busy 0");
        assert_eq!(wake("1,6,7,8", Scope::Cache, false), Some(1), "home before a whole core away");
        assert_eq!(wake("5,6,7,8,9", Scope::Cache, false), Some(6), "own node, whole core");
        assert_eq!(wake("9", Scope::Cache, false), Some(9), "even another node");
        assert_eq!(wake("4-15", Scope::Cache, true), None, "strict stays");
        assert_eq!(wake("", Scope::System, false), None);
    }

    #[test]
    fn takes_from_home_first_then_nearest_and_never_strict_work_of_others() {
        let layout = layout("2x2x2x2", "0-15");
        let queue = |leader, scope, strict| QueueId {
            affinity: Affinity { scope, strict },
            leader: cpu(leader),
        };
        let next = |waiting: &[QueueId]| {
            let facts = Given { idle: CpuSet::EMPTY, waiting: waiting.to_vec() };
            next_queue(&layout, &facts, cpu(5), 0)
                .map(|found| (found.queue.leader.index(), found.reach))
        };
        let far = queue(8, Scope::Cache, false);
        let near = queue(0, Scope::Cache, false);
        let shard = queue(6, Scope::Cpu, false);
        let home = queue(4, Scope::Cache, true);
        assert_eq!(next(&[far, near, shard, home]), Some((4, Reach::Home)));
        assert_eq!(next(&[far, near, shard]), Some((6, Reach::Llc)));
        assert_eq!(next(&[far, near]), Some((0, Reach::Node)));
        assert_eq!(next(&[far]), Some((8, Reach::Remote)));
        assert_eq!(next(&[queue(8, Scope::Cache, true), queue(0, Scope::Cpu, true)]), None);
    }

    #[test]
    fn turns_visit_every_waiting_affinity() {
        let layout = layout("1x2x1", "0-1");
        let waiting: Vec<_> =
            Affinity::ALL.into_iter().map(|affinity| layout.home(cpu(0), affinity)).collect();
        let facts = Given { idle: CpuSet::EMPTY, waiting };
        let mut seen: Vec<_> = (0..Affinity::ALL.len())
            .filter_map(|turn| next_queue(&layout, &facts, cpu(0), turn))
            .map(|found| found.queue.affinity.index())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..Affinity::ALL.len()).collect::<Vec<_>>());
    }

    fn a_situation() -> impl Strategy<Value = (Layout, Given, CpuId, usize)> {
        let cpus = || prop::collection::btree_set(0_usize..36, 0..36);
        let queues = prop::collection::vec((0_usize..36, 0_usize..12), 0..6);
        (0..GRIDS.len(), cpus(), cpus(), queues, 0_usize..40, 0_usize..24).prop_map(
            |(grid, workers, idle, queues, issuer, turn)| {
                let machine = Machine::from_grid(GRIDS[grid]).unwrap();
                let wanted: CpuSet = workers.into_iter().map(cpu).collect();
                let layout = Layout::new(&machine, &wanted)
                    .unwrap_or_else(|| Layout::new(&machine, machine.online()).unwrap());
                let idle = idle.into_iter().map(cpu).collect::<CpuSet>().and(layout.workers());
                let home = |(n, a)| layout.home(cpu(n), Affinity::ALL[a]);
                let waiting = queues.into_iter().map(home).collect();
                (layout, Given { idle, waiting }, cpu(issuer), turn)
            },
        )
    }

    proptest! {
        /// `SCHED-2`: someone is woken exactly where a CPU that may run the item is idle, and
        /// nobody who is not.
        #[test]
        fn an_idle_cpu_that_may_run_an_item_is_woken(
            (layout, facts, issuer, which) in a_situation()
        ) {
            let affinity = Affinity::ALL[which % Affinity::ALL.len()];
            let placed = submit(&layout, &facts, issuer, affinity);
            let pod = layout.pod(placed.queue);
            let may = if affinity.strict { facts.idle.and(pod) } else { facts.idle };
            prop_assert_eq!(placed.wake.is_some(), !may.is_empty());
            if let Some(woken) = placed.wake {
                prop_assert!(may.contains(woken));
                let at_home = facts.idle.intersects(pod);
                prop_assert_eq!(pod.contains(woken), at_home);
            }
        }

        /// `SCHED-4` and `SCHED-5`: a worker finds work exactly where there is some that it may
        /// run, and that of its own pods first.
        #[test]
        fn no_worker_parks_while_it_may_run_something(
            (layout, facts, _, turn) in a_situation()
        ) {
            for worker in layout.workers().iter() {
                let own = |q: &QueueId| layout.pod(*q).contains(worker);
                let found = next_queue(&layout, &facts, worker, turn);
                let any = facts.waiting.iter().any(|q| own(q) || !q.affinity.strict);
                prop_assert_eq!(found.is_some(), any);
                if let Some(found) = found {
                    prop_assert!(facts.waiting.contains(&found.queue));
                    prop_assert_eq!(own(&found.queue), found.reach == Reach::Home);
                    prop_assert_eq!(own(&found.queue), facts.waiting.iter().any(own));
                }
            }
        }
    }
}
