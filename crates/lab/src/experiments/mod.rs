//! The published experiments, run on simulated machines.
//!
//! ```text
//! Plan ─▶ cells, one for each policy, host, seed ─▶ run (homing's runtime) ─▶ measures
//!                                                      shards: lines of JSON ─▶ merge
//! measures ─▶ summary: mean, spread, against the baseline ─▶ beside what was published
//! ```

pub(crate) mod commit;
mod compare_machines;
mod comparison;
mod costs;
mod items;
mod machine;
mod published;
mod recommend;
mod report;
mod report_compared;
mod report_loads;
mod run;
mod shard;
mod standing;
mod summary;
mod sweep;
mod tenants;
mod wakequeue;
mod words;
mod workqueue;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use homing_sim::Features;
use serde::{Deserialize, Serialize};

pub use homing_sim::{Cost, HostModel, PRESETS, Preset};

pub use compare_machines::{Described, MachineSet, PolicyChoice};
pub use comparison::{COMPARED, Comparison, NOISE_PCT, Worst};
pub use costs::{CostError, GivenCost, GivenCosts};
pub use machine::{MachineError, NamedMachine};
pub use published::{Kind, PUBLISHED, Published, SOURCES, kind_of};
pub use recommend::{Advice, Load, LoadError, Trial, recommend};
pub use report::report;
pub use run::{Progress, run};
pub use shard::{Merged, Part, Shard, ShardError, merge};
pub use standing::{Figure, STANDARD, Standing, figures, standings};
pub use summary::{Beside, Row, Stat, bracket, error, hosts, is_published, places, policies, rows};
pub use sweep::Sweep;
pub use words::words;

/// The models of the host's scheduler.
pub const HOSTS: [HostModel; 5] = HostModel::ALL;

/// Which run a measure is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The experiment.
    pub experiment: String,
    /// The machine.
    pub machine: String,
    /// Which part of the experiment: a load, mostly.
    pub scenario: String,
    /// What is compared.
    pub policy: String,
    /// The model of the host's scheduler.
    pub host: String,
    /// The seed.
    pub seed: u64,
}

/// A run and its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Which run.
    #[serde(flatten)]
    pub key: Key,
    /// Its figures, by name.
    pub values: BTreeMap<String, f64>,
}

/// Runs, and returns its figures; `None` if it was told to stop before its end.
type Run = dyn Fn(&AtomicBool) -> Option<BTreeMap<String, f64>> + Send + Sync;

/// A run to come.
#[derive(Clone)]
pub struct Cell {
    /// Which run.
    pub key: Key,
    /// Whether the run measures this machine, so that nothing else may run meanwhile.
    alone: bool,
    run: Arc<Run>,
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The machine; the published ones where this is `None`.
    pub machine: Option<NamedMachine>,
    /// The models of the host's scheduler.
    pub hosts: Vec<HostModel>,
    /// How many seeds, from 0 on.
    pub seeds: u64,
    /// How much simulated time is measured, in nanoseconds.
    pub measured_ns: u64,
    /// If homing takes part, it also runs with only these parts of its policy.
    pub features: Vec<Features>,
    /// How old the facts that homing's workers see of each other may be, in nanoseconds.
    pub stale_ns: u64,
    /// What things cost, where not as usual. What was drawn for a machine gives way to these, too.
    pub costs: GivenCosts,
}

/// What all runs of a report have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How much simulated time was measured, in nanoseconds.
    pub measured_ns: u64,
    /// What things cost, where not as usual.
    pub costs: GivenCosts,
}

impl Plan {
    /// What a report has to tell of this plan.
    pub fn settings(&self) -> Settings {
        Settings { measured_ns: self.measured_ns, costs: self.costs.clone() }
    }
}

/// An experiment by name.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The policy that the others are compared with.
    pub baseline: &'static str,
    /// The figure that is compared, and its unit.
    pub metric: (&'static str, &'static str),
    /// Whether the figure itself is to be as published, not only its change against the baseline.
    pub is_absolute: bool,
    /// Figures that are shown next to it, and what they are.
    pub beside: &'static [(&'static str, &'static str)],
    /// Which parts of a plan it follows, in addition to seeds and times.
    pub follows: Follows,
    cells: fn(&Plan) -> Vec<Cell>,
}

/// Which parts of a [`Plan`] an experiment follows, in addition to seeds and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follows {
    /// Nothing: it has a machine of its own.
    Nothing,
    /// The machine.
    Machine,
    /// The machine, the models of the host's scheduler, and how homing is set.
    All,
}

/// The share of all the CPUs' time that is used.
const CPU_USE: (&str, &str) = ("util_pct", "CPU use, %");

/// Only homing's runtime is asked for it.
const EXPOSED: (&str, &str) = ("exposed_max_us", "longest wait beside an idle CPU, us");

/// All of them.
pub const EXPERIMENTS: [Experiment; 7] = [
    Experiment {
        name: "wq",
        about: "dm-crypt on workqueues of each affinity scope, at high, medium and low load",
        baseline: "SYSTEM",
        metric: ("mib_s", "MiB/s"),
        is_absolute: false,
        beside: &[CPU_USE, EXPOSED],
        follows: Follows::All,
        cells: workqueue::throughput,
    },
    Experiment {
        name: "wq-latency",
        about: "the same with few small requests from one pinned issuer: held out of every fit",
        baseline: "SYSTEM",
        metric: ("mib_s", "MiB/s"),
        is_absolute: false,
        beside: &[CPU_USE, EXPOSED],
        follows: Follows::All,
        cells: workqueue::latency,
    },
    Experiment {
        name: "udp-rr",
        about: "netperf UDP_RR with the shared wakequeue off, on, and sharded",
        baseline: "off",
        metric: ("rate", "transactions/s"),
        is_absolute: false,
        beside: &[("lock_pct", "waiting for the lock, % of CPU time"), CPU_USE],
        follows: Follows::Machine,
        cells: wakequeue::pairs,
    },
    Experiment {
        name: "compile",
        about: "a parallel build with the shared wakequeue and SIS_NODE off and on",
        baseline: "off",
        metric: ("rate", "ms of computing a second"),
        is_absolute: false,
        beside: &[CPU_USE],
        follows: Follows::Machine,
        cells: wakequeue::builds,
    },
    Experiment {
        name: "aio-fsync",
        about: "fs_mark with fsync waited for and queued: files a second, log aggregation",
        baseline: "sync",
        metric: ("files_per_s", "files/s"),
        is_absolute: true,
        beside: &[("aggregation", "commits that a log write carries")],
        follows: Follows::Nothing,
        cells: commit::cells,
    },
    Experiment {
        name: "mglru-mixed",
        about: "fio and memcached over one memory, with swap: the kernel's reclaim, and homing's",
        baseline: "patch 1-7",
        metric: ("uses_per_s", "memcached requests/s"),
        is_absolute: false,
        beside: &[
            ("reads_per_s", "fio reads/s"),
            ("use_hits_pct", "memcached's pages found, %"),
            ("read_hits_pct", "fio's pages found, %"),
            ("written_per_s", "pages written to swap a second"),
        ],
        follows: Follows::Nothing,
        cells: tenants::cells,
    },
    Experiment {
        name: "items",
        about: "items of known lengths on this machine: really run, and simulated on its topology",
        baseline: "real",
        metric: ("rate", "items/s"),
        is_absolute: false,
        beside: &[
            CPU_USE,
            ("cpu_us", "CPU time of an item, us"),
            ("wakes_per_item", "wake-ups for an item"),
            ("pulled_per_item", "share of items pulled"),
        ],
        follows: Follows::Nothing,
        cells: items::cells,
    },
];

impl Experiment {
    /// The one of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// Its runs.
    pub fn cells(&self, plan: &Plan) -> Vec<Cell> {
        (self.cells)(plan)
    }
}

impl Cell {
    fn new(
        key: Key,
        run: impl Fn(&AtomicBool) -> Option<BTreeMap<String, f64>> + Send + Sync + 'static,
    ) -> Self {
        Self { key, alone: false, run: Arc::new(run) }
    }

    /// Makes a cell that runs to its end even if it is told to stop.
    fn whole(key: Key, run: impl Fn() -> BTreeMap<String, f64> + Send + Sync + 'static) -> Self {
        Self::new(key, move |_| Some(run()))
    }

    fn alone(key: Key, run: impl Fn() -> BTreeMap<String, f64> + Send + Sync + 'static) -> Self {
        Self { alone: true, ..Self::whole(key, run) }
    }
}

/// The figures that runs have in common.
fn common(report: &homing_sim::Report) -> BTreeMap<String, f64> {
    let items = report.crew.done.max(1) as f64;
    let all = (report.crew.done + report.inline).max(1) as f64;
    let mut values = named([
        ("rate", report.rate),
        ("util_pct", report.util_pct),
        ("cpu_us", report.cpu_us),
        ("p50_us", report.p50_us),
        ("p99_us", report.p99_us),
        ("events", report.events as f64),
    ]);
    // Not of threads that have no workers.
    if report.crew.done + report.inline > 0 {
        values.extend(named([
            ("wakes_per_item", report.crew.wakes as f64 / items),
            ("pulled_per_item", report.crew.pulled as f64 / items),
            ("inline_share", report.inline as f64 / all),
            ("lost_wakes", report.crew.lost_wakes as f64),
        ]));
    }
    let exposed_ns = report.crew.exposed_max_ns;
    values.extend(exposed_ns.map(|ns| ("exposed_max_us".to_owned(), ns as f64 / 1e3)));
    values
}

fn named<const N: usize>(values: [(&str, f64); N]) -> BTreeMap<String, f64> {
    values.map(|(name, value)| (name.to_owned(), value)).into()
}
