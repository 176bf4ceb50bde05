//! A machine as it was read: immutable, every CPU with its place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu_set::{CpuId, CpuSet};
use crate::error::TopologyError;

/// The operating system's number of a NUMA node.
///
/// ```
/// use homing_topology::{Machine, NodeId};
///
/// let machine = Machine::from_grid("2x1x1x1")?; // two nodes of one CPU
/// assert_eq!(machine.cpus()[1].numa_nodes, [NodeId(1)]);
/// assert_eq!(machine.node_distance(NodeId(0), NodeId(0)), 10);
/// assert_eq!(machine.node_distance(NodeId(0), NodeId(1)), 12);
/// # Ok::<(), homing_topology::TopologyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// One online hardware thread and its place. Groups are named by their lowest online CPU.
///
/// ```
/// use homing_topology::{CpuId, Machine};
///
/// let machine = Machine::from_grid("2x2x2")?; // two caches of two cores of two threads
/// let seven = machine.cpu(CpuId::new(7).ok_or("?")?).ok_or("not online")?;
/// assert_eq!(seven.core.index(), 6);
/// assert_eq!(seven.llc.map(CpuId::index), Some(4));
/// assert_eq!(seven.package.index(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The CPU's own number.
    pub cpu: CpuId,
    /// The core: its SMT siblings share it.
    pub core: CpuId,
    /// The last-level cache; `None` if the machine reports no data cache for this CPU.
    pub llc: Option<CpuId>,
    /// The NUMA nodes that list this CPU, in rising order; none and several are both legal.
    pub numa_nodes: Vec<NodeId>,
    /// The package (socket).
    pub package: CpuId,
}

/// How far two CPUs are from each other, nearest first.
///
/// ```
/// use homing_topology::{Distance, Machine};
///
/// let machine = Machine::from_grid("2x2x2x2")?; // nodes, caches, cores, threads
/// let cpus: Vec<_> = machine.online().iter().collect();
/// assert_eq!(machine.distance(cpus[0], cpus[1]), Distance::SameCore);
/// assert_eq!(machine.distance(cpus[0], cpus[2]), Distance::SameLlc);
/// assert_eq!(machine.distance(cpus[0], cpus[4]), Distance::SameNode);
/// assert_eq!(machine.distance(cpus[0], cpus[8]), Distance::OtherNode(12));
/// assert!(Distance::SameNode < Distance::OtherNode(12));
/// # Ok::<(), homing_topology::TopologyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// The same hardware thread.
    SameCpu,
    /// SMT siblings.
    SameCore,
    /// Cores behind the same last-level cache.
    SameLlc,
    /// Another cache of the same NUMA node.
    SameNode,
    /// Another node, with the firmware's SLIT distance (10 is local, 20 twice as far).
    OtherNode(u32),
}

/// All online CPUs of a machine, with their cores, caches, nodes, packages and distances.
///
/// It can be sent elsewhere with `serde`. A machine that is read this way is checked as closely as
/// one that is read from a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Machine {
    cpus: Vec<Cpu>,
    online: CpuSet,
    node_distances: BTreeMap<(NodeId, NodeId), u32>,
}

impl Machine {
    /// Builds a machine from its CPUs (sorted here) and the distances between its nodes.
    ///
    /// Panics if there is no CPU or one is given twice: readers check first.
    pub(crate) fn new(mut cpus: Vec<Cpu>, node_distances: BTreeMap<(NodeId, NodeId), u32>) -> Self {
        cpus.sort_by_key(|cpu| cpu.cpu);
        let online: CpuSet = cpus.iter().map(|cpu| cpu.cpu).collect();
        assert!(!cpus.is_empty(), "a machine has a CPU");
        assert_eq!(online.len(), cpus.len(), "a CPU was given twice");
        Self { cpus, online, node_distances }
    }

    /// The online CPUs, in rising order.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The online CPUs as a set.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The place of `cpu`; `None` if it is not online.
    pub fn cpu(&self, cpu: CpuId) -> Option<&Cpu> {
        let index = self.cpus.binary_search_by_key(&cpu, |entry| entry.cpu).ok()?;
        Some(&self.cpus[index])
    }

    /// The firmware's SLIT distance between two nodes: 10 to itself, 20 if the firmware does not
    /// say.
    pub fn node_distance(&self, from: NodeId, to: NodeId) -> u32 {
        let default = if from == to { 10 } else { 20 };
        self.node_distances.get(&(from, to)).copied().unwrap_or(default)
    }

    /// How far `to` is from `from`. CPUs that are not online are at the greatest distance there is.
    pub fn distance(&self, from: CpuId, to: CpuId) -> Distance {
        let (Some(a), Some(b)) = (self.cpu(from), self.cpu(to)) else {
            return Distance::OtherNode(u32::MAX);
        };
        if from == to {
            Distance::SameCpu
        } else if a.core == b.core {
            Distance::SameCore
        } else if a.cache_domain() == b.cache_domain() {
            Distance::SameLlc
        } else if a.numa_nodes == b.numa_nodes {
            Distance::SameNode
        } else {
            let pairs =
                a.numa_nodes.iter().flat_map(|x| b.numa_nodes.iter().map(move |y| (*x, *y)));
            let nearest = pairs.map(|(x, y)| self.node_distance(x, y)).min();
            Distance::OtherNode(nearest.unwrap_or(20))
        }
    }

    /// The same machine with only the CPUs of `keep`. Groups are again named by their lowest CPU.
    ///
    /// `None` if nothing would be left.
    ///
    /// ```
    /// use homing_topology::{Machine, Scope};
    ///
    /// let machine = Machine::from_grid("2x2x1")?; // caches of the CPUs 0-1 and 2-3
    /// let part = machine.restricted(&"1-3".parse()?).ok_or("nothing left")?;
    /// assert_eq!(part.online().to_string(), "1-3");
    /// assert_eq!(part.pods(Scope::Cache).cpus(0).to_string(), "1");
    /// assert!(machine.restricted(&"8".parse()?).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restricted(&self, keep: &CpuSet) -> Option<Self> {
        let kept: Vec<&Cpu> = self.cpus.iter().filter(|cpu| keep.contains(cpu.cpu)).collect();
        let cpus: Vec<Cpu> = kept.into_iter().cloned().collect();
        (!cpus.is_empty()).then(|| Self::named_anew(cpus, self.node_distances.clone()))
    }

    /// Makes a machine whose groups may go by any names: CPUs that share a name are a group, and
    /// its lowest CPU becomes the name.
    pub(crate) fn named_anew(
        cpus: Vec<Cpu>,
        node_distances: BTreeMap<(NodeId, NodeId), u32>,
    ) -> Self {
        let mut machine = Self::new(cpus, node_distances);
        let [mut cores, mut llcs, mut packages] = [(); 3].map(|()| BTreeMap::new());
        // In rising order, so the first CPU of a group is its lowest.
        for place in &mut machine.cpus {
            let cpu = place.cpu;
            place.core = *cores.entry(place.core).or_insert(cpu);
            place.llc = place.llc.map(|llc| *llcs.entry(llc).or_insert(cpu));
            place.package = *packages.entry(place.package).or_insert(cpu);
        }
        machine
    }
}

/// A machine in its serialized form.
#[derive(Serialize, Deserialize)]
struct Parts {
    cpus: Vec<Cpu>,
    /// From, to, and how far.
    node_distances: Vec<(NodeId, NodeId, u32)>,
}

impl From<Machine> for Parts {
    fn from(machine: Machine) -> Self {
        let distances = machine.node_distances.into_iter();
        let node_distances = distances.map(|((from, to), far)| (from, to, far)).collect();
        Self { cpus: machine.cpus, node_distances }
    }
}

impl TryFrom<Parts> for Machine {
    type Error = TopologyError;

    fn try_from(parts: Parts) -> Result<Self, TopologyError> {
        let refuse = |problem: String| Err(TopologyError::Description { problem });
        if parts.cpus.is_empty() {
            return refuse("it has no CPU".to_owned());
        }
        if let Some(cpu) = first_twice(parts.cpus.iter().map(|place| place.cpu)) {
            return refuse(format!("CPU {cpu} is there twice"));
        }
        let distances = parts.node_distances.into_iter();
        let distances = distances.map(|(from, to, far)| ((from, to), far)).collect();
        let machine = Self::new(parts.cpus, distances);
        // The restricted machine names its groups by their lowest CPUs.
        let named = machine.restricted(machine.online());
        for (told, named) in machine.cpus.iter().zip(named.iter().flat_map(Self::cpus)) {
            for (kind, name, lowest) in [
                ("core", Some(told.core), Some(named.core)),
                ("last-level cache", told.llc, named.llc),
                ("package", Some(told.package), Some(named.package)),
            ] {
                if let Some((name, lowest)) = name.zip(lowest).filter(|(name, of)| name != of) {
                    return refuse(format!("the {kind} of CPU {lowest} goes by the name {name}"));
                }
            }
        }
        Ok(machine)
    }
}

/// The first CPU that comes a second time.
pub(crate) fn first_twice(cpus: impl IntoIterator<Item = CpuId>) -> Option<CpuId> {
    let mut known = CpuSet::EMPTY;
    cpus.into_iter().find(|cpu| {
        let again = known.contains(*cpu);
        known.insert(*cpu);
        again
    })
}

impl Cpu {
    /// What the cache scope groups by: the LLC, or the package if no cache is reported.
    pub(crate) fn cache_domain(&self) -> (Option<CpuId>, Option<CpuId>) {
        (self.llc, self.llc.is_none().then_some(self.package))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_grows_outward_and_a_restricted_machine_names_its_groups_anew() {
        let machine = Machine::from_grid("2x2x2x2").unwrap(); // nodes x LLCs x cores x threads
        let cpu = |n| CpuId::new(n).unwrap();
        let steps: Vec<Distance> =
            [0, 1, 2, 4, 8].map(|n| machine.distance(cpu(0), cpu(n))).to_vec();
        assert!(steps.is_sorted() && steps.windows(2).all(|pair| pair[0] != pair[1]), "{steps:?}");

        let half = machine.restricted(&"1,3,5,8-15".parse().unwrap()).unwrap();
        assert_eq!(half.cpus().len(), 11);
        assert_eq!(half.cpu(cpu(3)).unwrap().llc, Some(cpu(1)));
        assert_eq!(half.cpu(cpu(1)).unwrap().core, cpu(1));
        assert!(machine.restricted(&CpuSet::EMPTY).is_none());
    }

    #[test]
    fn a_machine_is_read_as_it_was_written() {
        for grid in ["1x1x1", "2x2x3x2x2"] {
            let machine = Machine::from_grid(grid).unwrap();
            let part = machine.restricted(&"0,5-90".parse().unwrap()).unwrap();
            for machine in [machine, part] {
                let text = serde_json::to_string(&machine).unwrap();
                assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine, "{text}");
            }
        }
    }

    #[test]
    fn a_machine_that_cannot_be_is_refused() {
        let text = serde_json::to_string(&Machine::from_grid("1x1x2").unwrap()).unwrap();
        for (from, to, problem) in [
            ("\"cpu\":1", "\"cpu\":0", "CPU 0 is there twice"),
            ("\"core\":0", "\"core\":1", "the core of CPU 0 goes by the name 1"),
            ("\"llc\":0", "\"llc\":7", "the last-level cache of CPU 0 goes by the name 7"),
            ("\"package\":0", "\"package\":7", "the package of CPU 0 goes by"),
            ("\"cpu\":1", "\"cpu\":1024", "beyond the 1024 CPUs"),
        ] {
            assert!(text.contains(from), "{text}");
            let error = serde_json::from_str::<Machine>(&text.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
        let error = serde_json::from_str::<Machine>(r#"{"cpus":[],"node_distances":[]}"#);
        assert!(error.unwrap_err().to_string().contains("no CPU"));
    }
}
