//! The figures that were published, and by whom.

use homing_sim::HostModel;

/// The sources of the published figures.
pub const SOURCES: [(&str, &str); 8] = [
    (
        "workqueue",
        "Tejun Heo, \"[PATCHSET v1 wq/for-6.5] workqueue: Improve unbound workqueue execution \
         locality\", 18 May 2023, 20230519001709.2563-1-tj@kernel.org",
    ),
    (
        "latency",
        "Tejun Heo, answer in the same thread (dm-crypt on a loop device in memory, one pinned \
         issuer)",
    ),
    (
        "netperf",
        "David Vernet, \"Re: [RFC PATCH 3/3] sched: Implement shared wakequeue in CFS\", 14 June \
         2023, 20230615000103.GC2883716@maniforge",
    ),
    (
        "compile",
        "David Vernet, quoted by Vincent Guittot, 16 June 2023, \
         CAKfTPtCT==N_r1Vp-e_cFtVmcdo_YN1aD45AfbLMSpGpu1oU=w@mail.gmail.com",
    ),
    (
        "fsync",
        "Dave Chinner, \"Re: Triggering non-integrity writeback from userspace\", 29 October 2015, \
         20151028232641.GS8773@dastard",
    ),
    (
        "tenants",
        "Yu Zhao, \"[PATCH v8 09/14] mm: multi-gen LRU: optimize multiple memcgs\", 8 March 2022, \
         20220308234723.3834941-10-yuzhao@google.com",
    ),
    ("core to core", "AnandTech's review of Zen 2, core-to-core latencies: costs of cold data"),
    (
        "new-idle balance",
        "Vincent Guittot on max_newidle_lb_cost, lkml, 27 October 2021: what a balance of an idle \
         CPU costs",
    ),
];

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// As in a [`super::Key`].
    pub experiment: &'static str,
    /// As in a [`super::Key`].
    pub machine: &'static str,
    /// As in a [`super::Key`].
    pub scenario: &'static str,
    /// As in a [`super::Key`].
    pub policy: &'static str,
    /// Which figure.
    pub metric: &'static str,
    /// The figure.
    pub value: f64,
}

/// How a simulated figure relates to the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Parameters were chosen so that it fits.
    Fitted,
    /// It comes out of the model.
    Predicted,
    /// Nobody has published it.
    New,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::New => "",
        }
    }
}

const RYZEN: &str = "ryzen-9-3900x";

const fn wq(
    scenario: &'static str,
    policy: &'static str,
    metric: &'static str,
    value: f64,
) -> Published {
    Published { experiment: "wq", machine: RYZEN, scenario, policy, metric, value }
}

const fn latency(scenario: &'static str, policy: &'static str, value: f64) -> Published {
    let experiment = "wq-latency";
    Published { experiment, machine: RYZEN, scenario, policy, metric: "mib_s", value }
}

/// As a change against `off`, in per cent: the machines' absolute figures are not simulated.
const fn change(
    experiment: &'static str,
    machine: &'static str,
    scenario: &'static str,
    policy: &'static str,
    value: f64,
) -> Published {
    Published { experiment, machine, scenario, policy, metric: "delta_pct", value }
}

const fn fsync(
    scenario: &'static str,
    policy: &'static str,
    metric: &'static str,
    value: f64,
) -> Published {
    Published { experiment: "aio-fsync", machine: "16 CPUs, SSD", scenario, policy, metric, value }
}

const fn mixed(policy: &'static str, metric: &'static str, value: f64) -> Published {
    let (experiment, machine) = ("mglru-mixed", "36 CPUs, RAM disks");
    Published { experiment, machine, scenario: "memcached just fits", policy, metric, value }
}

const LOCK_8358: Published = Published {
    experiment: "udp-rr",
    machine: "xeon-8358-2s",
    scenario: "128 pairs",
    policy: "swqueue",
    metric: "lock_pct",
    value: 83.39,
};

/// All of them.
pub const PUBLISHED: &[Published] = &[
    wq("HIGH", "SYSTEM", "mib_s", 1159.40),
    wq("HIGH", "CACHE", "mib_s", 1166.40),
    wq("HIGH", "CACHE+STRICT", "mib_s", 1166.00),
    wq("HIGH", "SYSTEM+LOCAL", "mib_s", 1157.40),
    wq("HIGH", "CACHE+LOCAL", "mib_s", 1160.40),
    wq("MED", "SYSTEM", "mib_s", 1155.40),
    wq("MED", "CACHE", "mib_s", 1154.40),
    wq("MED", "CACHE+STRICT", "mib_s", 1112.00),
    wq("MED", "SYSTEM+LOCAL", "mib_s", 1066.80),
    wq("MED", "CACHE+LOCAL", "mib_s", 1034.60),
    wq("LOW", "SYSTEM", "mib_s", 993.60),
    wq("LOW", "CACHE", "mib_s", 973.40),
    wq("LOW", "CACHE+STRICT", "mib_s", 828.20),
    wq("LOW", "SYSTEM+LOCAL", "mib_s", 884.20),
    wq("LOW", "CACHE+LOCAL", "mib_s", 860.60),
    wq("HIGH", "SYSTEM", "util_pct", 99.31),
    wq("HIGH", "CACHE", "util_pct", 99.34),
    wq("HIGH", "CACHE+STRICT", "util_pct", 99.35),
    wq("HIGH", "SYSTEM+LOCAL", "util_pct", 99.50),
    wq("HIGH", "CACHE+LOCAL", "util_pct", 99.50),
    wq("MED", "SYSTEM", "util_pct", 97.41),
    wq("MED", "CACHE", "util_pct", 96.15),
    wq("MED", "CACHE+STRICT", "util_pct", 93.26),
    wq("MED", "SYSTEM+LOCAL", "util_pct", 86.70),
    wq("MED", "CACHE+LOCAL", "util_pct", 83.00),
    wq("LOW", "SYSTEM", "util_pct", 75.49),
    wq("LOW", "CACHE", "util_pct", 74.90),
    wq("LOW", "CACHE+STRICT", "util_pct", 66.84),
    wq("LOW", "SYSTEM+LOCAL", "util_pct", 64.14),
    wq("LOW", "CACHE+LOCAL", "util_pct", 61.46),
    latency("LLOW", "SYSTEM", 55.08),
    latency("LLOW", "CACHE", 64.42),
    latency("LLOW", "CACHE+STRICT", 65.18),
    latency("LLOW", "CPU+STRICT", 32.86),
    latency("LLOW", "SYSTEM+LOCAL", 56.76),
    latency("LLOW", "CACHE+LOCAL", 57.74),
    latency("SYNC", "SYSTEM", 18.64),
    latency("SYNC", "CACHE", 21.46),
    latency("SYNC", "CACHE+STRICT", 20.80),
    latency("SYNC", "CPU+STRICT", 21.12),
    latency("SYNC", "SYSTEM+LOCAL", 20.80),
    latency("SYNC", "CACHE+LOCAL", 21.46),
    change("udp-rr", "xeon-cooper-lake-26c", "1 pair", "swqueue", -4.97),
    change("udp-rr", "xeon-skylake-2s", "1 pair", "swqueue", -0.92),
    change("udp-rr", "ryzen-9-7950x", "1 pair", "swqueue", 0.0),
    change("udp-rr", "epyc-milan-36c", "1 pair", "swqueue", -1.39),
    change("compile", "xeon-cooper-lake-26c", "make -j", "swqueue", 0.20),
    change("compile", "xeon-skylake-2s", "make -j", "swqueue", -0.17),
    change("compile", "ryzen-9-7950x", "make -j", "swqueue", 0.15),
    change("compile", "epyc-milan-36c", "make -j", "swqueue", 0.18),
    change("compile", "epyc-bergamo-88c", "make -j", "swqueue", 0.28),
    change("compile", "ryzen-9-7950x", "make -j", "sis_node", -0.05),
    change("compile", "epyc-milan-36c", "make -j", "sis_node", -0.10),
    change("compile", "epyc-bergamo-88c", "make -j", "sis_node", -0.60),
    change("compile", "ryzen-9-7950x", "make -j", "swqueue+sis_node", 0.09),
    change("compile", "epyc-milan-36c", "make -j", "swqueue+sis_node", 0.11),
    change("compile", "epyc-bergamo-88c", "make -j", "swqueue+sis_node", 0.17),
    LOCK_8358,
    fsync("1 issuer", "sync", "files_per_s", 530.0),
    fsync("4 issuers", "sync", "files_per_s", 1_850.0),
    fsync("1 issuer", "async", "files_per_s", 7_000.0),
    fsync("4 issuers", "async", "files_per_s", 24_000.0),
    fsync("8 issuers", "async", "files_per_s", 32_000.0),
    fsync("16 issuers", "async", "files_per_s", 33_000.0),
    fsync("32 issuers", "async", "files_per_s", 30_000.0),
    fsync("1 issuer", "sync", "aggregation", 1.0),
    fsync("4 issuers", "sync", "aggregation", 2.0),
    fsync("1 issuer", "async", "aggregation", 10.0),
    fsync("4 issuers", "async", "aggregation", 35.0),
    fsync("8 issuers", "async", "aggregation", 100.0),
    fsync("16 issuers", "async", "aggregation", 100.0),
    fsync("32 issuers", "async", "aggregation", 90.0),
    mixed("patch 1-7", "uses_per_s", 563_772.35),
    mixed("patch 1-8", "uses_per_s", 1_968_343.76),
    mixed("patch 1-7", "reads_per_s", 3_117_000.0),
    mixed("patch 1-8", "reads_per_s", 2_217_000.0),
];

impl Published {
    /// The figure for a run, if there is one.
    pub fn find(key: &super::Key, metric: &str) -> Option<&'static Self> {
        PUBLISHED.iter().find(|published| {
            published.experiment == key.experiment
                && published.machine == key.machine
                && published.scenario == key.scenario
                && published.policy == key.policy
                && published.metric == metric
        })
    }
}

/// How a simulated figure relates to the published one.
pub fn kind_of(key: &super::Key, metric: &str) -> Kind {
    if Published::find(key, metric).is_none() {
        return Kind::New;
    }
    // The model was fitted on one host: on the others the same figures are predicted.
    let on_cfs = key.host == HostModel::Cfs.name();
    let fitted = match (key.experiment.as_str(), key.policy.as_str(), key.scenario.as_str()) {
        ("compile", "sis_node", _) => on_cfs && key.machine == "epyc-bergamo-88c",
        ("wq", "SYSTEM", "HIGH") => on_cfs && metric == "mib_s",
        ("wq", "SYSTEM", "LOW") => on_cfs,
        // One device's pace and one log buffer's size were chosen for this plateau.
        ("aio-fsync", _, "8 issuers" | "16 issuers" | "32 issuers")
        | ("mglru-mixed", "patch 1-7", _) => true,
        ("aio-fsync", _, "1 issuer") => metric == "files_per_s",
        ("mglru-mixed", "patch 1-8", _) => metric == "uses_per_s",
        _ => false,
    };
    if fitted { Kind::Fitted } else { Kind::Predicted }
}
