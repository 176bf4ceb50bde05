//! What the simulated machines are put to: the published experiments.

mod dm_crypt;

pub use dm_crypt::{CryptLoad, DmCrypt, IssuerPlaces};

use crate::crew::CrewCounts;
use crate::host::HostCounts;

/// What a run amounts to. Rates are over the time that was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Operations a second: what an operation is, is the workload's.
    pub rate: f64,
    /// How much of its time the average CPU was busy, in per cent.
    pub util_pct: f64,
    /// CPU time an operation took, in microseconds.
    pub cpu_us: f64,
    /// Latencies of operations, in microseconds: the median and the 99th percentile.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// What the host did while measured.
    pub host: HostCounts,
    /// What the crew did while measured.
    pub crew: CrewCounts,
    /// Events that were simulated.
    pub events: u64,
}
