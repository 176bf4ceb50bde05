//! The loads of the simulated machines: the published experiments.

mod build;
mod dm_crypt;
mod group_commit;
mod items;
mod pairs;
mod tenants;

pub use build::Build;
pub use dm_crypt::{CryptLoad, DmCrypt, IssuerPlaces};
pub use group_commit::{GroupCommit, GroupCommitReport};
pub use items::Items;
pub use pairs::Pairs;
pub use tenants::{Tenants, TenantsReport};

use std::sync::atomic::AtomicBool;

use homing_topology::Machine;

use crate::agenda::Ns;
use crate::costs::Costs;
use crate::crew::CrewCounts;
use crate::host::{Host, Rules};

/// One run of a workload: where, and until when at most.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The machine,
    pub machine: &'a Machine,
    /// what things cost there,
    pub costs: &'a Costs,
    /// and how its scheduler behaves.
    pub rules: &'a Rules,
    /// The same seed gives the same run.
    pub seed: u64,
    /// Once set, the run ends with nothing.
    pub stop: &'a AtomicBool,
}

impl Trial<'_> {
    fn host(&self) -> Host {
        Host::new(self.machine, self.costs.clone(), self.rules.clone(), self.seed)
    }
}

/// The result of a run. Rates are over the time that was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Operations a second; the workload defines what an operation is.
    pub rate: f64,
    /// How much of its time the average CPU was busy, in per cent.
    pub util_pct: f64,
    /// CPU time an operation took, in microseconds.
    pub cpu_us: f64,
    /// Latencies of operations, in microseconds: the median and the 99th percentile.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// How long threads waited for locks of shared wakequeues, all together.
    pub lock_wait_ns: Ns,
    /// What the crew did while measured.
    pub crew: CrewCounts,
    /// Items that their issuers ran themselves.
    pub inline: u64,
    /// Events that were simulated.
    pub events: u64,
}

/// What a host had done when measuring began.
struct Before {
    busy_ns: Ns,
    lock_wait_ns: Ns,
    at_ns: Ns,
}

impl Before {
    fn of(host: &mut Host) -> Self {
        let busy_ns = host.busy_ns().iter().sum();
        Self { busy_ns, lock_wait_ns: host.lock_wait_ns, at_ns: host.now_ns() }
    }

    /// Reports what was done since, in `operations` with these latencies.
    fn report(&self, host: &mut Host, operations: u64, latencies_ns: &mut [Ns]) -> Report {
        let busy_ns = host.busy_ns().iter().sum::<Ns>() - self.busy_ns;
        let elapsed_ns = host.now_ns() - self.at_ns;
        latencies_ns.sort_unstable();
        let at = |percent: usize| {
            let index = latencies_ns.len() * percent / 100;
            latencies_ns.get(index).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        Report {
            rate: operations as f64 * 1e9 / elapsed_ns as f64,
            util_pct: busy_ns as f64 * 100.0 / (elapsed_ns * host.geometry().len() as u64) as f64,
            cpu_us: busy_ns as f64 / 1e3 / operations.max(1) as f64,
            p50_us: at(50),
            p99_us: at(99),
            lock_wait_ns: host.lock_wait_ns - self.lock_wait_ns,
            crew: CrewCounts::default(),
            inline: 0,
            events: host.events(),
        }
    }
}
