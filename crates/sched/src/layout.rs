//! What is known before the first item: the queues there can be, and what is near what.

use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet, Distance, Machine, Pods, Scope};

/// Where the items of a workqueue may run: the kernel's `affinity_scope` and `affinity_strict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// The size of the home pod.
    pub scope: Scope,
    /// Whether items may never run outside their home pod.
    pub strict: bool,
}

impl Affinity {
    /// Every affinity there is.
    pub const ALL: [Self; 2 * Scope::ALL.len()] = {
        let mut all = [Self { scope: Scope::Cpu, strict: false }; 2 * Scope::ALL.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = Self { scope: Scope::ALL[index / 2], strict: index % 2 == 1 };
            index += 1;
        }
        all
    };

    /// The position in [`Affinity::ALL`].
    pub const fn index(self) -> usize {
        self.scope.index() * 2 + self.strict as usize
    }
}

/// A home queue: one pod's, for one affinity. Workqueues with the same affinity share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId {
    /// The affinity of the items in it.
    pub affinity: Affinity,
    /// The lowest CPU of the pod. It names the queue in the bit sets of [`crate::Facts`].
    pub leader: CpuId,
}

/// The machine as the decisions see it: built once, never changed.
#[derive(Clone, Debug)]
pub struct Layout {
    machine: Machine,
    workers: CpuSet,
    pods: [Pods; Scope::ALL.len()],
    /// For each possible CPU the nearest one with a worker: itself, mostly.
    nearest_worker: Vec<CpuId>,
    /// For each possible CPU the index in `rings`. CPUs of one cache share their rings.
    rings_of: Vec<u16>,
    /// Worker CPUs by distance: those of the LLC, of the rest of the node, then node by node.
    rings: Vec<Vec<CpuSet>>,
    /// For each possible CPU its core's CPUs that have workers.
    cores: Vec<CpuSet>,
    has_siblings: bool,
}

impl Layout {
    /// Lays out `machine` for one worker on each CPU of `workers`.
    ///
    /// `None` where no CPU of `workers` is online.
    pub fn new(machine: &Machine, workers: &CpuSet) -> Option<Self> {
        let workers = workers.and(machine.online());
        let inner = machine.restricted(&workers)?;
        let first = workers.first()?;
        let nearest = |cpu: CpuId| {
            workers.iter().min_by_key(|worker| (machine.distance(cpu, *worker), *worker))
        };
        let every_cpu = || (0..CPU_COUNT_MAX).filter_map(CpuId::new);
        let pods_of = |scope| inner.pods(scope);
        let mut layout = Self {
            pods: Scope::ALL.map(pods_of),
            nearest_worker: every_cpu()
                .map(|cpu| {
                    let known = workers.contains(cpu).then_some(cpu);
                    let other = || machine.online().contains(cpu).then(|| nearest(cpu)).flatten();
                    known.or_else(other).unwrap_or(first)
                })
                .collect(),
            rings_of: vec![0; CPU_COUNT_MAX],
            rings: Vec::new(),
            cores: vec![CpuSet::EMPTY; CPU_COUNT_MAX],
            has_siblings: false,
            machine: inner,
            workers,
        };
        layout.fill_cores();
        layout.fill_rings();
        Some(layout)
    }

    fn fill_cores(&mut self) {
        for core in self.pods(Scope::Smt).clone().iter() {
            self.has_siblings |= core.len() > 1;
            core.iter().for_each(|cpu| self.cores[cpu.index()] = *core);
        }
    }

    fn fill_rings(&mut self) {
        for cache in self.pods(Scope::Cache).clone().iter() {
            let Some(center) = cache.first() else {
                continue;
            };
            let mut by_distance: Vec<(Distance, CpuSet)> = Vec::new();
            for cpu in self.workers.iter() {
                let distance = self.machine.distance(center, cpu).max(Distance::SameLlc);
                match by_distance.iter_mut().find(|(known, _)| *known == distance) {
                    Some((_, ring)) => ring.insert(cpu),
                    None => by_distance.push((distance, CpuSet::of(cpu))),
                }
            }
            by_distance.sort_by_key(|(distance, _)| *distance);
            let index = self.rings.len() as u16;
            cache.iter().for_each(|cpu| self.rings_of[cpu.index()] = index);
            self.rings.push(by_distance.into_iter().map(|(_, ring)| ring).collect());
        }
    }

    /// The machine, restricted to the CPUs with workers.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The CPUs with workers.
    pub fn workers(&self) -> &CpuSet {
        &self.workers
    }

    /// The pods of a scope, of CPUs with workers only.
    pub fn pods(&self, scope: Scope) -> &Pods {
        &self.pods[scope.index()]
    }

    /// The home queue of what is issued on `cpu`; `cpu` need not have a worker, nor be online.
    pub fn home(&self, cpu: CpuId, affinity: Affinity) -> QueueId {
        let near = self.nearest_worker[cpu.index()];
        let pods = self.pods(affinity.scope);
        // A CPU with a worker is online in the restricted machine, so it is in a pod.
        let pod = pods.pod_of(near).and_then(|pod| pods.cpus(pod).first());
        QueueId { affinity, leader: pod.unwrap_or(near) }
    }

    /// The CPUs of the pod that a queue belongs to.
    pub fn pod(&self, queue: QueueId) -> &CpuSet {
        let pods = self.pods(queue.affinity.scope);
        let index = pods.pod_of(queue.leader).unwrap_or(0);
        pods.cpus(index)
    }

    /// Worker CPUs around `cpu`, nearest ring first. The rings are disjoint and hold all workers.
    pub fn rings(&self, cpu: CpuId) -> &[CpuSet] {
        let near = self.nearest_worker[cpu.index()];
        &self.rings[usize::from(self.rings_of[near.index()])]
    }

    /// Those of the idle CPUs whose whole core is idle.
    #[must_use]
    pub fn whole_cores(&self, idle: &CpuSet) -> CpuSet {
        if !self.has_siblings {
            return *idle;
        }
        idle.iter().filter(|cpu| self.cores[cpu.index()].is_subset(idle)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_every_worker_once_nearest_first() {
        let machine = Machine::from_grid("2x2x3x2x2").unwrap();
        let workers: CpuSet = "1,3-40".parse().unwrap();
        let layout = Layout::new(&machine, &workers).unwrap();
        for cpu in workers.iter() {
            let rings = layout.rings(cpu);
            assert!(rings[0].contains(cpu));
            let total: usize = rings.iter().map(CpuSet::len).sum();
            let union = rings.iter().fold(CpuSet::EMPTY, |set, ring| set.or(ring));
            assert_eq!((total, union), (workers.len(), workers));
        }
    }

    #[test]
    fn an_issuer_without_a_worker_is_at_home_with_its_nearest_neighbour() {
        let machine = Machine::from_grid("2x2x2").unwrap(); // CPUs 0-3 and 4-7
        let layout = Layout::new(&machine, &"1,5".parse().unwrap()).unwrap();
        let cpu = |n| CpuId::new(n).unwrap();
        let home = |n| layout.home(cpu(n), Affinity { scope: Scope::Cache, strict: false }).leader;
        assert_eq!(home(0), cpu(1));
        assert_eq!(home(6), cpu(5));
        assert_eq!(home(1000), cpu(1), "not online: anywhere will do");
        assert!(Layout::new(&machine, &"900".parse().unwrap()).is_none());
    }

    #[test]
    fn affinities_are_numbered_as_listed() {
        for (index, affinity) in Affinity::ALL.into_iter().enumerate() {
            assert_eq!(affinity.index(), index);
        }
    }
}
