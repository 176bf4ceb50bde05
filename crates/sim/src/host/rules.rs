//! The rules of the host's scheduler that can be changed or switched off.

use super::wake_list::SwQueue;
use crate::agenda::Ns;

/// Means of `max_newidle_lb_cost`, by Guittot (lkml, 2021-10-27).
const NEWIDLE_COSTS_NS: [Ns; 3] = [33_000, 49_000, 45_000];

/// Chosen between the published maximum (400 us) and 1 ms, which published rows of the workqueue
/// tables rule out (which of them was not written down). So this model does not quite predict those
/// tables.
const RARE_COST_NS: Ns = 800_000;

/// Which threads may move where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostModel {
    /// Linux's fair scheduler as of 6.4, without sync wake-ups, buddies and NUMA's own rules.
    Cfs,
    /// The same, but issuers never leave the last-level cache on which they began.
    Confined,
    /// The same as the first, but a CPU that becomes idle does not look beyond its cache.
    NearNewIdle,
    /// The same as the first, but it does so only where it has been idle for long lately: the cost
    /// that Linux compares with is the largest of the last minute, not the mean.
    RareNewIdle,
    /// The same as the first, but issuers stay on the CPU on which they began. Kernel workers and
    /// the volumes' writers move as before.
    Pinned,
}

impl HostModel {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Cfs, Self::RareNewIdle, Self::NearNewIdle, Self::Confined, Self::Pinned];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cfs => "cfs",
            Self::Confined => "confined",
            Self::NearNewIdle => "near-newidle",
            Self::RareNewIdle => "rare-newidle",
            Self::Pinned => "pinned",
        }
    }

    /// What it is, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Cfs => "Linux's fair scheduler as of 6.4",
            Self::Confined => "the same, with issuers that stay in the cache on which they began",
            Self::NearNewIdle => {
                "the same, where a CPU that becomes idle looks no further than its cache"
            }
            Self::RareNewIdle => {
                "the same, where it looks beyond its cache only if it was idle for long lately"
            }
            Self::Pinned => "the same, with issuers that stay on the CPU on which they began",
        }
    }
}

/// See the module. The defaults are those of Linux 6.4 with a tick of 1 ms.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own
pub struct Rules {
    /// Within this time each runnable thread runs once (`sched_latency_ns`).
    pub latency_ns: Ns,
    /// But no thread runs for less than this (`sched_min_granularity_ns`).
    pub granularity_ns: Ns,
    /// How far a woken thread must be behind to preempt (`sched_wakeup_granularity_ns`).
    pub wakeup_granularity_ns: Ns,
    /// A thread that ran within this time is warm (`sched_migration_cost_ns`).
    pub migration_cost_ns: Ns,
    /// The tick.
    pub tick_ns: Ns,
    /// Threads that wake up are given half a latency (`GENTLE_FAIR_SLEEPERS`).
    pub sleeper_credit: bool,
    /// The waker's CPU is considered in addition to the thread's last one.
    pub wake_affine: bool,
    /// The search for an idle CPU is cut short when the cache's CPUs are busy (`SIS_UTIL`).
    pub sis_util: bool,
    /// A waker that finds no idle CPU in its cache looks through its node (`SIS_NODE`).
    pub sis_node: bool,
    /// A CPU that becomes idle takes waiting threads from others.
    pub newidle: bool,
    /// A CPU that becomes idle takes waiting threads even from other caches.
    pub newidle_far: bool,
    /// What a look through a core's, a cache's and a wider domain takes (`max_newidle_lb_cost`). A
    /// CPU looks only if that takes less time than it is idle, on average.
    pub newidle_costs_ns: [Ns; 3],
    /// What looks through narrower domains really took before, per mille of that.
    pub newidle_spent_per_mille: u64,
    /// Balancing at ticks, by busy CPUs and for idle ones.
    pub periodic: bool,
    /// Threads that ran a moment ago are not moved.
    pub cache_hot: bool,
    /// What a CPU that is busy all the time counts as used, of 1,024: less where its clock stays
    /// below the highest one (frequency invariance).
    pub full_util: u64,
    /// A thread's last use of its CPU counts in addition to its average.
    pub util_est: bool,
    /// If moving waiting threads fails again and again, a running one is moved.
    pub active_balance: bool,
    /// The weight that issuers have together; 0: each has that of a thread.
    pub issuers_weight: u64,
    /// Issuers stay within the cache on which they began.
    pub confine_issuers: bool,
    /// Issuers stay on the CPU on which they began.
    pub pin_issuers: bool,
    /// Woken threads that wait are listed for each cache, and taken from there by CPUs that become
    /// idle: the shared wakequeue as posted in June 2023.
    pub swqueue: Option<SwQueue>,
}

impl Rules {
    /// The rules of a model on a machine of this many CPUs.
    pub fn new(model: HostModel, cpus: usize) -> Self {
        let factor = 1 + u64::from(cpus.clamp(1, 8).ilog2());
        let base = Self {
            latency_ns: 6_000_000 * factor,
            granularity_ns: 750_000 * factor,
            wakeup_granularity_ns: 1_000_000 * factor,
            migration_cost_ns: 500_000,
            tick_ns: 1_000_000,
            sleeper_credit: true,
            wake_affine: true,
            sis_util: true,
            sis_node: false,
            newidle: true,
            newidle_far: true,
            newidle_costs_ns: NEWIDLE_COSTS_NS,
            newidle_spent_per_mille: 1000,
            periodic: true,
            cache_hot: true,
            full_util: 1024,
            util_est: true,
            active_balance: true,
            issuers_weight: 0,
            confine_issuers: false,
            pin_issuers: false,
            swqueue: None,
        };
        match model {
            HostModel::Cfs => base,
            HostModel::Confined => Self { confine_issuers: true, ..base },
            HostModel::NearNewIdle => Self { newidle_far: false, ..base },
            HostModel::RareNewIdle => Self {
                newidle_costs_ns: [NEWIDLE_COSTS_NS[0], NEWIDLE_COSTS_NS[1], RARE_COST_NS],
                newidle_spent_per_mille: 0,
                ..base
            },
            HostModel::Pinned => Self { pin_issuers: true, ..base },
        }
    }
}
