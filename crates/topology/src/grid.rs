//! Regular machines from a string: `[PACKAGESx][NODESx]LLCSxCORESxTHREADS`.

use std::collections::BTreeMap;

use crate::cpu_set::{CPU_COUNT_MAX, CpuId};
use crate::error::TopologyError;
use crate::machine::{Cpu, Machine, NodeId};

impl Machine {
    /// Makes a regular machine. The counts are separated by `x`, and each counts within the one
    /// before: `4x3x2` is 4 LLCs of 3 cores of 2 threads, `2x4x3x2` is two NUMA nodes of that,
    /// `2x2x4x3x2` is two packages of that. CPU numbers rise, and siblings have neighboring
    /// numbers.
    ///
    /// ```
    /// use homing_topology::{Machine, Scope};
    ///
    /// let machine = Machine::from_grid("1x2x2")?;
    /// assert_eq!(*machine.pods(Scope::Smt).cpus(0), "0-1".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_grid(grid: &str) -> Result<Self, TopologyError> {
        Self::numbered(grid, false)
    }

    /// The same machine, numbered as Linux numbers most x86-64 machines: the first threads of all
    /// cores, then the second ones.
    ///
    /// ```
    /// use homing_topology::{Machine, Scope};
    ///
    /// let machine = Machine::from_grid_siblings_last("1x2x2")?;
    /// assert_eq!(*machine.pods(Scope::Smt).cpus(0), "0,2".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_grid_siblings_last(grid: &str) -> Result<Self, TopologyError> {
        Self::numbered(grid, true)
    }

    fn numbered(grid: &str, siblings_last: bool) -> Result<Self, TopologyError> {
        let bad = |problem| TopologyError::Grid { grid: grid.to_owned(), problem };
        let counts = grid.trim().split('x').map(|part| part.trim().parse::<usize>().ok());
        let counts: Vec<usize> =
            counts.collect::<Option<_>>().ok_or_else(|| bad("has a part that is no number"))?;
        let [packages, nodes, llcs, cores, threads] = match counts[..] {
            [llcs, cores, threads] => [1, 1, llcs, cores, threads],
            [nodes, llcs, cores, threads] => [1, nodes, llcs, cores, threads],
            [packages, nodes, llcs, cores, threads] => [packages, nodes, llcs, cores, threads],
            _ => return Err(bad("does not have 3, 4 or 5 parts")),
        };
        let total = counts.iter().try_fold(1_usize, |product, n| product.checked_mul(*n));
        match total {
            Some(0) => return Err(bad("has a part that is zero")),
            Some(total) if total <= CPU_COUNT_MAX => {}
            _ => return Err(bad("has more than 1024 CPUs")),
        }
        let per_llc = cores * threads;
        let per_node = llcs * per_llc;
        let all = packages * nodes * per_node;
        let last = |index: usize| index / threads + index % threads * (all / threads);
        let number = |index| CpuId::new(if siblings_last { last(index) } else { index });
        let cpus = (0..all).map(|index| {
            let first_of = |group: usize| number(index / group * group);
            Some(Cpu {
                cpu: number(index)?,
                core: first_of(threads)?,
                llc: first_of(per_llc),
                numa_nodes: vec![NodeId((index / per_node) as u32)],
                package: first_of(nodes * per_node)?,
            })
        });
        let cpus = cpus.collect::<Option<_>>().ok_or_else(|| bad("has more than 1024 CPUs"))?;
        // Nodes of one package are nearer to each other than to those of another: the figures
        // that two-socket EPYC machines print.
        let distance = |a: usize, b: usize| match (a == b, a / nodes == b / nodes) {
            (true, _) => 10,
            (false, true) => 12,
            (false, false) => 32,
        };
        let count = packages * nodes;
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        let distances: BTreeMap<_, _> =
            pairs.map(|(a, b)| ((NodeId(a as u32), NodeId(b as u32)), distance(a, b))).collect();
        Ok(Self::new(cpus, distances))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_grids_are_refused_with_the_reason() {
        for (grid, reason) in [
            ("4", "3, 4 or 5"),
            ("4xax2", "no number"),
            ("0x1x1", "zero"),
            ("64x64x2", "1024"),
            ("99999999999x99999999999x9", "1024"),
        ] {
            let error = Machine::from_grid(grid).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(grid), "{error}");
        }
        assert_eq!(Machine::from_grid("1024x1x1").unwrap().cpus().len(), 1024);
    }
}
