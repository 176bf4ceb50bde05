//! How many threads each CPU, and each group of CPUs, has to run. Kept up to date as it changes,
//! since each look of the balance asks for it.

use crate::geometry::{CpuIndex, Geometry};

/// What a group's CPUs have to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Threads that run or wait.
    pub(super) running: u32,
    /// CPUs without any.
    pub(super) idle: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tallies {
    runnable: Vec<u32>,
    /// The groups of all domains, one domain after the other.
    groups: Vec<Tally>,
    /// For each domain, the index of its first group.
    first_of: Vec<usize>,
    /// For each CPU, the indices of its groups.
    of: Vec<Box<[usize]>>,
    idle: usize,
    /// CPUs with more than one thread to run.
    crowded: usize,
}

impl Tallies {
    /// The tallies of CPUs with no thread to run.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let cpus = geometry.len();
        let (mut groups, mut first_of) = (Vec::new(), Vec::new());
        for domain in geometry.domains() {
            first_of.push(groups.len());
            let idle = |group: &Vec<CpuIndex>| Tally { running: 0, idle: group.len() as u32 };
            groups.extend(domain.groups.iter().map(idle));
        }
        let own = |(domain, position): &(usize, usize)| first_of[*domain] + position;
        let of = |cpu| geometry.domains_of(cpu).iter().map(own).collect();
        let of = (0..cpus).map(of).collect();
        Self { runnable: vec![0; cpus], groups, first_of, of, idle: cpus, crowded: 0 }
    }

    /// How many threads a CPU has to run.
    pub(super) fn runnable(&self, cpu: CpuIndex) -> usize {
        self.runnable[cpu] as usize
    }

    /// One of the groups of a domain.
    pub(super) fn group(&self, domain: usize, position: usize) -> Tally {
        self.groups[self.first_of[domain] + position]
    }

    /// How many CPUs have nothing to run.
    pub(super) fn idle(&self) -> usize {
        self.idle
    }

    /// Whether any CPU has more than one thread to run.
    pub(super) fn is_any_crowded(&self) -> bool {
        self.crowded > 0
    }

    /// A CPU has one more to run.
    pub(super) fn add(&mut self, cpu: CpuIndex) {
        let had = self.runnable[cpu];
        self.runnable[cpu] += 1;
        self.idle -= usize::from(had == 0);
        self.crowded += usize::from(had == 1);
        for group in &self.of[cpu] {
            let group = &mut self.groups[*group];
            group.running += 1;
            group.idle -= u32::from(had == 0);
        }
    }

    /// A CPU has one less to run.
    pub(super) fn remove(&mut self, cpu: CpuIndex) {
        self.runnable[cpu] -= 1;
        let left = self.runnable[cpu];
        self.idle += usize::from(left == 0);
        self.crowded -= usize::from(left == 1);
        for group in &self.of[cpu] {
            let group = &mut self.groups[*group];
            group.running -= 1;
            group.idle += u32::from(left == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use homing_topology::Machine;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn groups_are_what_their_cpus_are() {
        let geometry = Geometry::new(&Machine::from_grid("2x2x3x2").unwrap());
        let (mut tallies, mut rng) = (Tallies::new(&geometry), Rng::new(1));
        let mut runnable = vec![0_usize; geometry.len()];
        for _ in 0..2_000 {
            let cpu = rng.below(runnable.len() as u64) as usize;
            if rng.below(2) == 0 {
                tallies.add(cpu);
                runnable[cpu] += 1;
            } else if runnable[cpu] > 0 {
                tallies.remove(cpu);
                runnable[cpu] -= 1;
            }
            for (number, domain) in geometry.domains().iter().enumerate() {
                for (position, group) in domain.groups.iter().enumerate() {
                    let running = group.iter().map(|at| runnable[*at]).sum::<usize>() as u32;
                    let idle = group.iter().filter(|at| runnable[**at] == 0).count() as u32;
                    assert_eq!(tallies.group(number, position), Tally { running, idle });
                }
            }
            assert!((0..runnable.len()).all(|at| tallies.runnable(at) == runnable[at]));
            assert_eq!(tallies.idle(), runnable.iter().filter(|at| **at == 0).count());
            assert_eq!(tallies.is_any_crowded(), runnable.iter().any(|at| *at > 1));
        }
    }
}
