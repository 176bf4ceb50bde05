//! What is known before the first item: which queues there can be, and what is near what.

use std::iter;

use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet, Distance, Machine, Pods, Scope};
use serde::{Deserialize, Serialize};

use crate::attributes::{Attributes, Level};

/// A pool: the queues of all workqueues with equal attributes. Numbered in the order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId(pub u8);

/// A set of pools.
///
/// ```
/// use homing_sched::{PoolId, PoolSet};
///
/// let mut set = PoolSet::first(2);
/// set.insert(PoolId(70));
/// assert!(set.contains(PoolId(70)) && !set.contains(PoolId(2)));
/// assert_eq!(set.iter().map(|pool| pool.0).collect::<Vec<_>>(), [0, 1, 70]);
/// // As words, where threads share one.
/// let (word, bit) = PoolSet::place(PoolId(70));
/// let mut words = [0; PoolSet::WORDS];
/// words[word] |= bit;
/// assert_eq!(PoolSet::from_words(words).iter().collect::<Vec<_>>(), [PoolId(70)]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSet([u64; PoolSet::WORDS]);

impl PoolSet {
    /// The number of words in a set, with 64 pools in each.
    pub const WORDS: usize = 4;

    /// The pools whose bits are set.
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self(words)
    }

    /// The word and the bit in it that stand for a pool.
    pub const fn place(pool: PoolId) -> (usize, u64) {
        (pool.0 as usize / 64, 1 << (pool.0 % 64))
    }

    /// The pools below `count`.
    pub fn first(count: u8) -> Self {
        let mut set = Self::default();
        (0..count).for_each(|pool| set.insert(PoolId(pool)));
        set
    }

    /// Adds a pool.
    pub fn insert(&mut self, pool: PoolId) {
        let (word, bit) = Self::place(pool);
        self.0[word] |= bit;
    }

    /// Whether a pool is in the set.
    pub fn contains(&self, pool: PoolId) -> bool {
        let (word, bit) = Self::place(pool);
        self.0[word] & bit != 0
    }

    /// The pools, by number.
    pub fn iter(self) -> impl Iterator<Item = PoolId> {
        self.0.into_iter().enumerate().flat_map(|(index, word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then(|| PoolId((index * 64) as u8 + bit as u8))
            })
        })
    }
}

/// One queue of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueId {
    /// The pool it belongs to.
    pub pool: PoolId,
    /// The lowest of the CPUs that share it.
    pub leader: CpuId,
}

/// The machine as the decisions see it: every CPU that is online, built once, never changed.
/// Which of them have workers at present is a fact ([`crate::Facts::active`]).
///
/// ```
/// use homing_sched::{Layout, Level};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x2")?).ok_or("no CPU")?;
/// let five = CpuId::new(5).ok_or("?")?;
/// assert_eq!(layout.pod(Scope::Cache, five).to_string(), "4-7");
/// assert_eq!(layout.leader(Level::Shard, five).index(), 4);
/// let rings: Vec<_> = layout.rings(five).iter().map(ToString::to_string).collect();
/// assert_eq!(rings, ["4-7", "0-3"], "nearest first");
/// // For CPUs that have no workers, or are busy.
/// assert_eq!(layout.nearest_active(five, &"0,7".parse()?).index(), 7);
/// assert_eq!(layout.leaders(Level::Shard).to_string(), "0,4");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Layout {
    machine: Machine,
    pods: [Pods; Scope::ALL.len()],
    /// For each level and each possible CPU: the leader of its queue.
    leader_of: [Vec<CpuId>; Level::ALL.len()],
    /// For each level: the leaders.
    leaders: [CpuSet; Level::ALL.len()],
    /// For each possible CPU: the index of its rings in `rings`. CPUs of one cache and the same
    /// nodes share their rings.
    rings_of: Vec<u16>,
    /// CPUs by distance: those of the LLC, of the rest of the node, then node by node.
    rings: Vec<Vec<CpuSet>>,
    /// For each CPU and each of its rings: where the CPU begins to search the ring.
    starts: Vec<Vec<CpuId>>,
    /// For each possible CPU: the CPUs of its core.
    cores: Vec<Box<[CpuId]>>,
}

impl Layout {
    /// Lays out `machine`. `None` if no CPU is online.
    pub fn new(machine: &Machine) -> Option<Self> {
        let first = machine.online().first()?;
        let pods = Scope::ALL.map(|scope| machine.pods(scope));
        let mut layout = Self {
            leader_of: Level::ALL.map(|_| vec![first; CPU_COUNT_MAX]),
            leaders: Level::ALL.map(|_| CpuSet::EMPTY),
            rings_of: vec![0; CPU_COUNT_MAX],
            rings: Vec::new(),
            starts: vec![Vec::new(); CPU_COUNT_MAX],
            cores: vec![Box::default(); CPU_COUNT_MAX],
            machine: machine.clone(),
            pods,
        };
        layout.fill_leaders();
        layout.fill_cores();
        layout.fill_rings();
        Some(layout)
    }

    fn fill_leaders(&mut self) {
        let numa = self.pods(Scope::Numa).clone();
        for level in Level::ALL {
            for pod in self.pods(level.scope()).clone().iter() {
                // A cache may span nodes (sub-NUMA clustering): a queue does not.
                let mut rest = *pod;
                while let Some(leader) = rest.first() {
                    let node = numa.pod_of(leader).map_or(*pod, |index| *numa.cpus(index));
                    let share = rest.and(&node).or(&CpuSet::of(leader));
                    self.leaders[level as usize].insert(leader);
                    share.iter().for_each(|cpu| {
                        self.leader_of[level as usize][cpu.index()] = leader;
                    });
                    rest = rest.minus(&share);
                }
            }
        }
    }

    fn fill_cores(&mut self) {
        for core in self.pods(Scope::Smt).clone().iter() {
            core.iter().for_each(|cpu| self.cores[cpu.index()] = core.iter().collect());
        }
    }

    fn fill_rings(&mut self) {
        for cache in self.pods(Scope::Cache).clone().iter() {
            // Core by core: siblings may have numbers far apart, and most queues have a core's
            // first CPU as leader.
            let core = |cpu: &CpuId| (self.cores[cpu.index()].first().copied(), *cpu);
            let mut cpus: Vec<CpuId> = cache.iter().collect();
            cpus.sort_unstable_by_key(core);
            // The cache may span nodes from which others are not equally far.
            let mut rest = *cache;
            while let Some(center) = rest.first() {
                let nodes = |cpu: CpuId| self.machine.cpu(cpu).map(|place| &place.numa_nodes);
                let share = rest.iter().filter(|cpu| nodes(*cpu) == nodes(center)).collect();
                self.fill_rings_of(center, &share, &cpus);
                rest = rest.minus(&share);
            }
        }
    }

    /// Fills the rings of `share`, the CPUs of a cache that are of the same nodes as `center`.
    /// `cache` holds all CPUs of the cache, in the order in which they begin to search.
    fn fill_rings_of(&mut self, center: CpuId, share: &CpuSet, cache: &[CpuId]) {
        let mut by_distance: Vec<(Distance, CpuSet)> = Vec::new();
        for cpu in self.machine.online().iter() {
            let distance = self.machine.distance(center, cpu).max(Distance::SameLlc);
            match by_distance.iter_mut().find(|(known, _)| *known == distance) {
                Some((_, ring)) => ring.insert(cpu),
                None => by_distance.push((distance, CpuSet::of(cpu))),
            }
        }
        by_distance.sort_by_key(|(distance, _)| *distance);
        let index = self.rings.len() as u16;
        let rings: Vec<CpuSet> = by_distance.into_iter().map(|(_, ring)| ring).collect();
        let first_cpus = *self.leaders(Level::Smt);
        for (rank, cpu) in cache.iter().copied().enumerate().filter(|(_, cpu)| share.contains(*cpu))
        {
            self.rings_of[cpu.index()] = index;
            let others = rings[1..].iter().map(|ring| ring.and(&first_cpus));
            let starts = others.map(|ring| spread(&ring, center, rank, cache.len()));
            self.starts[cpu.index()] = iter::once(cpu).chain(starts).collect();
        }
        self.rings.push(rings);
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The pods of a scope.
    ///
    /// ```
    /// use homing_sched::Layout;
    /// use homing_topology::{Machine, Scope};
    ///
    /// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
    /// assert_eq!(layout.pods(Scope::Cache).len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pods(&self, scope: Scope) -> &Pods {
        &self.pods[scope.index()]
    }

    /// The pod of `cpu` in a scope; the first pod if `cpu` is not online.
    pub fn pod(&self, scope: Scope, cpu: CpuId) -> &CpuSet {
        let pods = self.pods(scope);
        pods.cpus(pods.pod_of(cpu).unwrap_or(0))
    }

    /// The leader of the queue that `cpu` uses at a level; `cpu` need not be online.
    pub fn leader(&self, level: Level, cpu: CpuId) -> CpuId {
        self.leader_of[level as usize][cpu.index()]
    }

    /// The leaders of all queues of a level: one queue each.
    pub fn leaders(&self, level: Level) -> &CpuSet {
        &self.leaders[level as usize]
    }

    /// The CPUs around `cpu` in rings, the nearest ring first. The rings are disjoint and hold all
    /// CPUs that are online. The first ring is that of the last-level cache.
    pub fn rings(&self, cpu: CpuId) -> &[CpuSet] {
        &self.rings[usize::from(self.rings_of[cpu.index()])]
    }

    /// The rings of `cpu`, each with the CPU at which `cpu` begins to search it, always the same
    /// one. CPUs of one cache begin all around a ring, so that they do not stampede for the same
    /// work.
    pub(crate) fn searches(&self, cpu: CpuId) -> impl Iterator<Item = (&CpuSet, CpuId)> {
        let starts = self.starts[cpu.index()].iter().copied().chain(iter::repeat(cpu));
        self.rings(cpu).iter().zip(starts)
    }

    /// The home of an item named for `cpu`: `cpu` itself, or the nearest CPU with a worker.
    pub fn nearest_active(&self, cpu: CpuId, active: &CpuSet) -> CpuId {
        if active.contains(cpu) {
            return cpu;
        }
        let nearest = |ring: &CpuSet| ring.and(active).first_from(cpu);
        self.rings(cpu).iter().find_map(nearest).unwrap_or(cpu)
    }

    /// The first of `cpus`, from `from` on, whose core has only CPUs that fit.
    pub(crate) fn first_core(
        &self,
        cpus: &CpuSet,
        from: CpuId,
        fits: impl Fn(CpuId) -> bool,
    ) -> Option<CpuId> {
        let mut rest = *cpus;
        while let Some(cpu) = rest.first_from(from) {
            let core = &self.cores[cpu.index()];
            if core.iter().all(|sibling| fits(*sibling)) {
                return Some(cpu);
            }
            core.iter().for_each(|sibling| rest.remove(*sibling));
        }
        None
    }

    /// The queue of a pool that `cpu` uses.
    pub fn queue(&self, pool: PoolId, attributes: Attributes, cpu: CpuId) -> QueueId {
        QueueId { pool, leader: self.leader(attributes.level(), cpu) }
    }
}

/// Where the `rank`th of `count` CPUs of the cache with this first CPU begins to search a ring:
/// behind that first CPU, and as far behind as spreads all of them evenly.
fn spread(ring: &CpuSet, first: CpuId, rank: usize, count: usize) -> CpuId {
    let behind = ring.iter().position(|other| other > first).unwrap_or(0);
    let at = (behind + rank * ring.len() / count) % ring.len().max(1);
    ring.iter().nth(at).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(number: usize) -> CpuId {
        CpuId::new(number).unwrap()
    }

    #[test]
    fn pools_are_found_by_number() {
        assert_eq!(PoolSet::first(70).iter().map(|pool| pool.0).collect::<Vec<_>>(), {
            (0..70).collect::<Vec<_>>()
        });
        let mut some = PoolSet::default();
        assert_eq!(some.iter().count(), 0);
        for pool in [3, 63, 64, 254, 255] {
            some.insert(PoolId(pool));
        }
        assert!(some.iter().map(|pool| pool.0).eq([3, 63, 64, 254, 255]));
        assert!(some.contains(PoolId(254)) && !some.contains(PoolId(253)));
    }

    #[test]
    fn rings_hold_every_cpu_once_nearest_first() {
        let machine = Machine::from_grid("2x2x3x2x2").unwrap();
        let layout = Layout::new(&machine).unwrap();
        for cpu in machine.online().iter() {
            let rings = layout.rings(cpu);
            assert!(rings[0].contains(cpu));
            let total: usize = rings.iter().map(CpuSet::len).sum();
            let union = rings.iter().fold(CpuSet::EMPTY, |set, ring| set.or(ring));
            assert_eq!((total, union), (machine.online().len(), *machine.online()));
        }
    }

    /// A cache of nodes 0 and 1, whose CPUs are not equally far from the others.
    #[test]
    fn rings_are_nearest_first_for_each_cpu_of_a_cache_that_spans_nodes() {
        let cpu_of = |cpu: usize, package: usize| {
            format!(
                r#"{{"cpu":{cpu},"core":{cpu},"llc":null,"numa_nodes":[{cpu}],"package":{package}}}"#
            )
        };
        let cpus = [cpu_of(0, 0), cpu_of(1, 0), cpu_of(2, 2), cpu_of(3, 3)].join(",");
        let far = "[0,1,12],[1,0,12],[0,2,17],[0,3,28],[1,2,28],[1,3,17]";
        let text = format!(r#"{{"cpus":[{cpus}],"node_distances":[{far}]}}"#);
        let layout = Layout::new(&serde_json::from_str(&text).unwrap()).unwrap();
        let rings = |number| layout.rings(cpu(number)).iter().map(ToString::to_string);
        assert!(rings(0).eq(["0,1", "2", "3"]));
        assert!(rings(1).eq(["0,1", "3", "2"]));
        assert_eq!(layout.searches(cpu(1)).next().unwrap().1, cpu(1));
        assert_eq!(layout.leaders(Level::Shard).to_string(), "0-3", "no queue spans nodes");
    }

    #[test]
    fn cpus_of_one_cache_begin_to_search_all_around() {
        for (grid, different) in [
            ("1x12x8x1", 8),
            ("1x4x8x1", 3),
            ("4x2x4x2", 6),
            ("1x2x4x1", 1),
            ("1x12x8x2", 11),
            ("1x4x8x2", 3),
        ] {
            for machine in [Machine::from_grid, Machine::from_grid_siblings_last] {
                let layout = Layout::new(&machine(grid).unwrap()).unwrap();
                for cache in layout.pods(Scope::Cache).iter() {
                    let mut victims = vec![0; CPU_COUNT_MAX];
                    for cpu in cache.iter() {
                        let (ring, start) = layout.searches(cpu).last().unwrap();
                        let victim = layout.leaders(Level::Shard).and(ring).first_from(start);
                        victims[victim.unwrap().index()] += 1;
                        assert_eq!(layout.searches(cpu).next().unwrap().1, cpu);
                    }
                    let found = victims.iter().filter(|thieves| **thieves > 0).count();
                    assert_eq!(found, different, "{grid}");
                    let most = cache.len().div_ceil(different);
                    assert!(victims.iter().all(|thieves| *thieves <= most), "{grid}: {victims:?}");
                }
                assert_eq!(layout.searches(cpu(1000)).count(), layout.rings(cpu(1000)).len());
            }
        }
    }

    #[test]
    fn an_issuer_without_a_worker_is_at_home_with_its_nearest_neighbour() {
        let layout = Layout::new(&Machine::from_grid("2x2x2").unwrap()).unwrap(); // 0-3, 4-7
        let active: CpuSet = "1,5".parse().unwrap();
        assert_eq!(layout.nearest_active(cpu(0), &active), cpu(1));
        assert_eq!(layout.nearest_active(cpu(6), &active), cpu(5));
        assert_eq!(layout.nearest_active(cpu(1000), &active), cpu(1), "not online: any will do");
        assert_eq!(layout.nearest_active(cpu(6), &CpuSet::EMPTY), cpu(6));
    }

    #[test]
    fn every_cpu_has_one_queue_at_each_level_and_it_lies_in_its_pods() {
        for grid in ["1x1x1", "2x2x9x2", "4x3x2", "2x2x2x40x2"] {
            let layout = Layout::new(&Machine::from_grid(grid).unwrap()).unwrap();
            for cpu in layout.machine().online().iter() {
                for level in Level::ALL {
                    let leader = layout.leader(level, cpu);
                    assert!(layout.leaders(level).contains(leader) && leader <= cpu);
                    let same = layout.machine().online().iter();
                    let same: CpuSet =
                        same.filter(|c| layout.leader(level, *c) == leader).collect();
                    assert!(same.is_subset(layout.pod(level.scope(), cpu)));
                    assert!(same.is_subset(layout.pod(Scope::Numa, cpu)));
                }
            }
        }
    }

    #[test]
    fn caches_begin_to_search_behind_themselves() {
        let layout = Layout::new(&Machine::from_grid("1x4x4x1").unwrap()).unwrap();
        let starts = [0, 4, 8, 12].map(|first| layout.searches(cpu(first)).last().unwrap().1);
        assert_eq!(starts, [4, 8, 12, 0].map(cpu));
    }

    #[test]
    fn of_neighbours_as_near_the_next_one_is_taken() {
        let layout = Layout::new(&Machine::from_grid("1x1x8x1").unwrap()).unwrap();
        assert_eq!(layout.nearest_active(cpu(5), &"3,6".parse().unwrap()), cpu(6));
    }
}
