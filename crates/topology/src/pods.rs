//! Pods: the groups into which a scope cuts a machine.

use crate::cpu_set::{CPU_COUNT_MAX, CpuId, CpuSet};
use crate::machine::{Cpu, Machine};
use crate::scope::Scope;

/// The number of cores that a cache shard aims at: the kernel's `workqueue.cache_shard_size`.
///
/// With one queue for all of a large cache, the lock of that queue is the bottleneck. Three
/// independent lines of kernel work arrived at queues of 4 to 8 cores.
pub const CORES_PER_SHARD: usize = 8;

const NO_POD: u16 = u16::MAX;

/// The pods of one scope: a partition of the online CPUs, ordered by their lowest CPU.
///
/// ```
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let pods = Machine::from_grid("2x2x1")?.pods(Scope::Cache);
/// assert!(pods.len() == 2 && !pods.is_empty());
/// assert_eq!(*pods.cpus(1), "2-3".parse()?);
/// assert_eq!(pods.pod_of(CpuId::new(3).ok_or("?")?), Some(1));
/// assert_eq!(pods.iter().map(|pod| pod.len()).sum::<usize>(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    pods: Vec<CpuSet>,
    pod_of: Vec<u16>,
}

impl Pods {
    fn new(mut pods: Vec<CpuSet>) -> Self {
        pods.sort_by_key(CpuSet::first);
        let mut pod_of = vec![NO_POD; CPU_COUNT_MAX];
        for (index, pod) in pods.iter().enumerate() {
            for cpu in pod.iter() {
                assert_eq!(pod_of[cpu.index()], NO_POD, "CPU {cpu} stands in two pods");
                pod_of[cpu.index()] = index as u16;
            }
        }
        Self { pods, pod_of }
    }

    /// How many pods there are.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Always false: a machine has at least one pod in every scope.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The pods, ordered by their lowest CPU.
    pub fn iter(&self) -> impl Iterator<Item = &CpuSet> {
        self.pods.iter()
    }

    /// The CPUs of pod `index`. Panics if there is no such pod.
    pub fn cpus(&self, index: usize) -> &CpuSet {
        &self.pods[index]
    }

    /// The index of the pod that holds `cpu`; `None` if `cpu` is not online.
    pub fn pod_of(&self, cpu: CpuId) -> Option<usize> {
        let index = self.pod_of[cpu.index()];
        (index != NO_POD).then_some(usize::from(index))
    }
}

impl Machine {
    /// Cuts the machine into the pods of `scope`.
    ///
    /// If a CPU reports no cache, its cache pod is its package. CPUs with the same NUMA nodes form
    /// a numa pod, and so do the CPUs with none.
    pub fn pods(&self, scope: Scope) -> Pods {
        Pods::new(match scope {
            Scope::Cpu => self.group_by(|cpu| cpu.cpu),
            Scope::Smt => self.group_by(|cpu| cpu.core),
            Scope::CacheShard => {
                let cores = self.group_by(|cpu| cpu.core);
                let caches = self.group_by(Cpu::cache_domain);
                caches.iter().flat_map(|cache| shards(cache, &cores)).collect()
            }
            Scope::Cache => self.group_by(Cpu::cache_domain),
            Scope::Numa => self.group_by(|cpu| cpu.numa_nodes.clone()),
            Scope::System => vec![*self.online()],
        })
    }

    fn group_by<K: PartialEq>(&self, key: impl Fn(&Cpu) -> K) -> Vec<CpuSet> {
        let mut groups: Vec<(K, CpuSet)> = Vec::new();
        for cpu in self.cpus() {
            let wanted = key(cpu);
            match groups.iter_mut().find(|(key, _)| *key == wanted) {
                Some((_, group)) => group.insert(cpu.cpu),
                None => groups.push((wanted, CpuSet::of(cpu.cpu))),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }
}

/// Cuts one cache into shards as the kernel does: cores / 8 rounded half up, cores spread evenly
/// with the larger shards first, siblings together. `all_cores` are those of the machine.
fn shards(cache: &CpuSet, all_cores: &[CpuSet]) -> Vec<CpuSet> {
    let cores: Vec<&CpuSet> = all_cores.iter().filter(|core| core.intersects(cache)).collect();
    let count = ((cores.len() + CORES_PER_SHARD / 2) / CORES_PER_SHARD).max(1);
    let (base, larger) = (cores.len() / count, cores.len() % count);
    let mut rest = cores.as_slice();
    (0..count)
        .map(|index| {
            let (shard, later) = rest.split_at(base + usize::from(index < larger));
            rest = later;
            shard.iter().fold(CpuSet::EMPTY, |set, core| set.or(core)).and(cache)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cores in each shard of one cache with this many cores.
    fn shard_sizes(cores: usize, threads: usize) -> Vec<usize> {
        let machine = Machine::from_grid(&format!("1x{cores}x{threads}")).unwrap();
        machine.pods(Scope::CacheShard).iter().map(|pod| pod.len() / threads).collect()
    }

    #[test]
    fn shards_have_the_kernels_sizes() {
        assert_eq!(shard_sizes(36, 2), [8, 7, 7, 7, 7]);
        assert_eq!(shard_sizes(12, 1), [6, 6]);
        assert_eq!(shard_sizes(11, 2), [11]);
        assert_eq!(shard_sizes(8, 2), [8]);
        assert_eq!(shard_sizes(1, 1), [1]);
        assert_eq!(shard_sizes(72, 1), [8; 9]);
    }

    #[test]
    fn every_scope_is_a_partition_and_each_is_inside_the_next() {
        for grid in ["1x1x1", "4x3x2", "2x4x9x2", "2x2x2x17x2", "8x1x16x4"] {
            let machine = Machine::from_grid(grid).unwrap();
            let all = Scope::ALL.map(|scope| machine.pods(scope));
            for pods in &all {
                let union = pods.iter().fold(CpuSet::EMPTY, |set, pod| set.or(pod));
                assert_eq!(union, *machine.online(), "{grid}");
            }
            for pair in all.windows(2) {
                for pod in pair[0].iter() {
                    let outer = pair[1].pod_of(pod.first().unwrap()).unwrap();
                    assert!(pod.is_subset(pair[1].cpus(outer)), "{grid}: {pod} spans pods");
                }
            }
        }
    }
}
