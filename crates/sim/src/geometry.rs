//! A machine with its CPUs numbered from 0 without gaps, and its scheduling domains.

use std::sync::Arc;

use homing_topology::{CpuId, Distance, Machine};

/// The position of a CPU in [`Machine::cpus`].
pub type CpuIndex = usize;

/// How far two CPUs are from each other, as far as costs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Far {
    /// The same core.
    Core,
    /// The same last-level cache.
    Llc,
    /// Another cache of the same node.
    Node,
    /// Another node.
    Remote,
}

/// One level at which the host balances.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    /// All of its CPUs.
    pub(crate) span: Vec<CpuIndex>,
    /// The groups between which load is moved.
    pub(crate) groups: Vec<Vec<CpuIndex>>,
    pub(crate) kind: DomainKind,
    /// Whether the domain below wants its work spread (`SD_PREFER_SIBLING`).
    pub(crate) prefers_siblings: bool,
    /// Whether it is the highest domain.
    pub(crate) is_top: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainKind {
    Smt,
    Llc,
    Package,
    Numa,
}

impl DomainKind {
    /// By how many per cent one group must have more than another (`imbalance_pct`).
    pub(crate) fn imbalance_pct(self) -> u64 {
        match self {
            Self::Smt => 110,
            Self::Llc | Self::Package | Self::Numa => 117,
        }
    }

    /// How often a balance may fail before threads that are warm are moved too.
    pub(crate) fn cache_nice_tries(self) -> u32 {
        match self {
            Self::Smt => 0,
            Self::Llc | Self::Package => 1,
            Self::Numa => 2,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Geometry {
    ids: Vec<CpuId>,
    index_of: Vec<u16>,
    siblings: Vec<Vec<CpuIndex>>,
    llc_of: Vec<usize>,
    llcs: Vec<Vec<CpuIndex>>,
    node_of: Vec<usize>,
    nodes: Vec<Vec<CpuIndex>>,
    far: Vec<Far>,
    domains: Vec<Arc<Domain>>,
    /// For each CPU its domains, narrowest first, and the position of its group in each.
    of: Vec<Vec<(usize, usize)>>,
}

impl Geometry {
    pub(crate) fn new(machine: &Machine) -> Self {
        let ids: Vec<CpuId> = machine.cpus().iter().map(|cpu| cpu.cpu).collect();
        let count = ids.len();
        let mut index_of = vec![u16::MAX; homing_topology::CPU_COUNT_MAX];
        for (index, id) in ids.iter().enumerate() {
            index_of[id.index()] = index as u16;
        }
        let mut far = vec![Far::Remote; count * count];
        for a in 0..count {
            for b in 0..count {
                far[a * count + b] = match machine.distance(ids[a], ids[b]) {
                    Distance::SameCpu | Distance::SameCore => Far::Core,
                    Distance::SameLlc => Far::Llc,
                    Distance::SameNode => Far::Node,
                    Distance::OtherNode(_) => Far::Remote,
                };
            }
        }
        let parts = |reach: Far| {
            let mut parts: Vec<Vec<CpuIndex>> = Vec::new();
            let mut part_of = vec![usize::MAX; count];
            for a in 0..count {
                if part_of[a] == usize::MAX {
                    let part: Vec<_> = (0..count).filter(|b| far[a * count + b] <= reach).collect();
                    for b in &part {
                        part_of[*b] = parts.len();
                    }
                    parts.push(part);
                }
            }
            (parts, part_of)
        };
        let (cores, core_of) = parts(Far::Core);
        let (llcs, llc_of) = parts(Far::Llc);
        let (nodes, node_of) = parts(Far::Node);
        let siblings = core_of.iter().map(|core| cores[*core].clone()).collect();
        let mut geometry = Self {
            ids,
            index_of,
            siblings,
            llc_of,
            llcs,
            node_of,
            nodes,
            far,
            domains: Vec::new(),
            of: vec![Vec::new(); count],
        };
        geometry.build_domains(&cores);
        geometry
    }

    /// Makes a domain wherever a level joins several parts of the level below.
    fn build_domains(&mut self, cores: &[Vec<CpuIndex>]) {
        let all: Vec<CpuIndex> = (0..self.len()).collect();
        let singles: Vec<Vec<CpuIndex>> = all.iter().map(|cpu| vec![*cpu]).collect();
        let levels = [
            (DomainKind::Smt, cores.to_vec()),
            (DomainKind::Llc, self.llcs.clone()),
            (DomainKind::Package, self.nodes.clone()),
            (DomainKind::Numa, vec![all]),
        ];
        let mut below = singles;
        let mut below_kind = None;
        for (kind, parts) in levels {
            for span in &parts {
                let inside = |group: &&Vec<CpuIndex>| span.contains(&group[0]);
                let groups: Vec<_> = below.iter().filter(inside).cloned().collect();
                if groups.len() < 2 {
                    continue;
                }
                // Between nodes, work is not spread for its own sake.
                let prefers_siblings = kind != DomainKind::Numa && below_kind.is_some();
                let number = self.domains.len();
                for (position, group) in groups.iter().enumerate() {
                    for cpu in group {
                        self.of[*cpu].push((number, position));
                    }
                }
                let span = span.clone();
                let is_top = span.len() == self.len();
                let domain = Domain { span, groups, kind, prefers_siblings, is_top };
                self.domains.push(Arc::new(domain));
            }
            below_kind = Some(kind);
            below = parts;
        }
    }

    /// How many CPUs there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Always false: a machine has at least one CPU.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The number of the CPU at a position.
    pub fn id(&self, cpu: CpuIndex) -> CpuId {
        self.ids[cpu]
    }

    /// The position of a CPU of this machine.
    pub fn index(&self, cpu: CpuId) -> CpuIndex {
        usize::from(self.index_of[cpu.index()])
    }

    /// How far it is from one CPU to another.
    pub fn far(&self, from: CpuIndex, to: CpuIndex) -> Far {
        self.far[from * self.len() + to]
    }

    /// The threads of a CPU's core, itself among them.
    pub fn siblings(&self, cpu: CpuIndex) -> &[CpuIndex] {
        &self.siblings[cpu]
    }

    /// The number of a CPU's last-level cache.
    pub fn llc_of(&self, cpu: CpuIndex) -> usize {
        self.llc_of[cpu]
    }

    /// The CPUs of each last-level cache.
    pub fn llcs(&self) -> &[Vec<CpuIndex>] {
        &self.llcs
    }

    /// The CPUs of a CPU's node.
    pub fn node(&self, cpu: CpuIndex) -> &[CpuIndex] {
        &self.nodes[self.node_of[cpu]]
    }

    pub(crate) fn shares_llc(&self, a: CpuIndex, b: CpuIndex) -> bool {
        self.llc_of[a] == self.llc_of[b]
    }

    pub(crate) fn domain(&self, number: usize) -> &Arc<Domain> {
        &self.domains[number]
    }

    pub(crate) fn domains(&self) -> &[Arc<Domain>] {
        &self.domains
    }

    /// A CPU's domains, narrowest first, with the position of its group.
    pub(crate) fn domains_of(&self, cpu: CpuIndex) -> &[(usize, usize)] {
        &self.of[cpu]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_there_where_a_level_joins_several_parts() {
        let geometry = Geometry::new(&Machine::from_grid("2x2x3x2").unwrap());
        let kinds = |cpu| -> Vec<(DomainKind, usize, usize)> {
            let of = |(number, own): &(usize, usize)| {
                let domain = geometry.domain(*number);
                assert!(domain.groups[*own].contains(&cpu));
                (domain.kind, domain.span.len(), domain.groups.len())
            };
            geometry.domains_of(cpu).iter().map(of).collect()
        };
        let all = [
            (DomainKind::Smt, 2, 2),
            (DomainKind::Llc, 6, 3),
            (DomainKind::Package, 12, 2),
            (DomainKind::Numa, 24, 2),
        ];
        assert_eq!(kinds(0), all);
        assert_eq!(kinds(23), all);
        let small = Geometry::new(&Machine::from_grid("1x4x1").unwrap());
        assert_eq!(small.domains_of(0).len(), 1);
        assert_eq!(geometry.far(0, 13), Far::Remote);
        assert_eq!(geometry.far(0, 7), Far::Node);
        assert_eq!((geometry.far(0, 5), geometry.far(0, 1)), (Far::Llc, Far::Core));
    }
}
