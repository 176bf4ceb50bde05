//! The machine a comparison runs on, as far as its figures depend on it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::Context;
use homing_lab::cpu_model;
use homing_topology::{Allowed, Machine as Topology};
use serde::Serialize;

/// The facts that every report includes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) cpu_model: String,
    /// Cores with an online CPU.
    pub(crate) cores: usize,
    /// Online CPUs: hardware threads.
    pub(crate) cpus: usize,
    /// How many CPUs' worth of work this process and its children may do at once.
    pub(crate) usable_cpus: usize,
    /// The kernel's release.
    pub(crate) kernel: String,
}

impl Machine {
    /// This machine.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let root = Path::new("/");
        let topology = Topology::read(root).context("the machine's CPUs cannot be read")?;
        let allowed = Allowed::read(root, &topology).context("the allowed CPUs cannot be read")?;
        let cores: BTreeSet<_> = topology.cpus().iter().map(|cpu| cpu.core).collect();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cpu_model: cpu_model(&info).unwrap_or_else(|| "unknown processor".to_owned()),
            cores: cores.len(),
            cpus: topology.cpus().len(),
            usable_cpus: allowed.cpu_count(),
            kernel: release.trim().to_owned(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores, {} CPUs", self.cpu_model, self.cores, self.cpus)?;
        if self.usable_cpus < self.cpus {
            write!(f, " ({} usable)", self.usable_cpus)?;
        }
        write!(f, ", Linux {}", self.kernel)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine for reports.
    pub(crate) fn some() -> Machine {
        Machine {
            cpu_model: "Some CPU".to_owned(),
            cores: 4,
            cpus: 8,
            usable_cpus: 8,
            kernel: "6.1.0".to_owned(),
        }
    }

    #[test]
    fn this_machine_is_told_in_a_line() {
        let machine = Machine::read().unwrap();
        assert!(machine.cores >= 1 && machine.cpus >= machine.cores);
        assert!(machine.to_string().contains("Linux "));
    }
}
