//! The workloads, their names, and the figures that each of them yields.

use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::metric::{Better, Metric, metric};

/// A workload, as a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One thread that is not a worker submits items of this many nanoseconds.
    Outside(u64),
    /// Items fan out into items of this many nanoseconds.
    Inside(u64),
    /// One item each millisecond, from outside, on an idle pool.
    Ping,
    /// This many clients submit an item and wait for it.
    Pairs(usize),
    /// This many issuers keep items of encryption and hashing in flight.
    Crypt(usize),
    /// Short items among which some block.
    BlockingMix,
    /// Nothing, after a burst.
    IdleBurn,
    /// A million queued items with this many bytes captured.
    Memory(usize),
    /// homing compared with itself: ways to run items of this many nanoseconds, one at a time.
    Issue(Side, u64),
    /// homing compared with itself: kinds of workqueues that hold items back.
    Gate(Side),
    /// homing compared with itself: items of this many nanoseconds while attributes change.
    Live(u64),
}

/// Where items come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// From one thread that is not a worker.
    Outside,
    /// From items.
    Inside,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Inside => "inside",
        }
    }
}

impl Workload {
    /// All of them, in the order of the report.
    pub(crate) const ALL: [Self; 30] = [
        Self::Outside(50),
        Self::Outside(1_000),
        Self::Outside(10_000),
        Self::Outside(100_000),
        Self::Inside(50),
        Self::Inside(1_000),
        Self::Inside(10_000),
        Self::Inside(100_000),
        Self::Ping,
        Self::Pairs(1),
        Self::Pairs(4),
        Self::Pairs(16),
        Self::Pairs(32),
        Self::Crypt(1),
        Self::Crypt(4),
        Self::Crypt(8),
        Self::Crypt(24),
        Self::BlockingMix,
        Self::IdleBurn,
        Self::Memory(0),
        Self::Memory(16),
        Self::Memory(64),
        Self::Issue(Side::Outside, 0),
        Self::Issue(Side::Outside, 1_000),
        Self::Issue(Side::Inside, 0),
        Self::Issue(Side::Inside, 1_000),
        Self::Gate(Side::Outside),
        Self::Gate(Side::Inside),
        Self::Live(50),
        Self::Live(1_000),
    ];

    /// The name in the results.
    pub(crate) fn name(self) -> String {
        let group = self.group();
        match self {
            Self::Outside(ns) | Self::Inside(ns) | Self::Live(ns) => {
                format!("{group}-{}", length(ns))
            }
            Self::Issue(side, ns) => format!("{group}-{}-{}", side.name(), length(ns)),
            Self::Gate(side) => format!("{group}-{}", side.name()),
            Self::Pairs(count) | Self::Crypt(count) => format!("{group}-{count}"),
            Self::Memory(bytes) => format!("{group}-{bytes}"),
            Self::Ping | Self::BlockingMix | Self::IdleBurn => group.to_owned(),
        }
    }

    /// The name of its group.
    pub(crate) const fn group(self) -> &'static str {
        match self {
            Self::Outside(_) => "outside",
            Self::Inside(_) => "inside",
            Self::Ping => "ping",
            Self::Pairs(_) => "pairs",
            Self::Crypt(_) => "crypt",
            Self::BlockingMix => "blocking-mix",
            Self::IdleBurn => "idle-burn",
            Self::Memory(_) => "memory",
            Self::Issue(..) => "issue",
            Self::Gate(_) => "gate",
            Self::Live(_) => "live",
        }
    }

    /// Whether it compares homing with itself: no peer has the feature that it measures.
    pub(crate) const fn is_of_ours(self) -> bool {
        matches!(self, Self::Issue(..) | Self::Gate(_) | Self::Live(_))
    }

    /// The workloads that `names` name, alone or as groups; all of them if there is no name.
    pub(crate) fn select(names: &[String]) -> Result<Vec<Self>, String> {
        let matches = |name: &str, load: Self| load.name() == name || load.group() == name;
        for name in names {
            if !Self::ALL.into_iter().any(|load| matches(name, load)) {
                let known: Vec<String> = Self::ALL.map(Self::name).into();
                let known = known.join(", ");
                return Err(format!("{name:?} is no workload and no group of them: use {known}"));
            }
        }
        let wanted =
            |load: &Self| names.is_empty() || names.iter().any(|name| matches(name, *load));
        Ok(Self::ALL.into_iter().filter(wanted).collect())
    }
}

fn length(ns: u64) -> String {
    if ns < 1_000 { format!("{ns}ns") } else { format!("{}us", ns / 1_000) }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|load| load.name() == name);
        found.ok_or_else(|| format!("{name:?} is no workload"))
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

/// All figures of the tables, in their order within a workload.
pub(crate) const METRICS: [Metric; 13] = [
    metric("items_per_s", "k items/s", 1e3, Better::More),
    metric("slowest_10ms_items_per_s", "k items/s, slowest 10 ms", 1e3, Better::More),
    metric("mib_per_s", "MiB/s", 1.0, Better::More),
    metric("cpu_ns_per_item", "CPU ns/item", 1.0, Better::Less),
    metric("cpu_us_per_item", "CPU us/item", 1.0, Better::Less),
    metric("trips_per_s", "k trips/s", 1e3, Better::More),
    metric("p50_us", "p50 us", 1.0, Better::Less),
    metric("p99_us", "p99 us", 1.0, Better::Less),
    metric("p999_us", "p99.9 us", 1.0, Better::Less),
    metric("cpu_us_per_trip", "CPU us/trip", 1.0, Better::Less),
    metric("idle_cpu_us_per_s", "CPU us per idle s", 1.0, Better::Less),
    metric("bytes_per_item", "bytes/item", 1.0, Better::Less),
    metric("peak_rss_mib", "peak RSS MiB", 1.0, Better::Less),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_round_trip() {
        for load in Workload::ALL {
            assert_eq!(load.name().parse(), Ok(load));
        }
        assert_eq!(Workload::Outside(50).name(), "outside-50ns");
        assert_eq!(Workload::Inside(100_000).name(), "inside-100us");
        assert_eq!(Workload::Issue(Side::Outside, 0).name(), "issue-outside-0ns");
    }

    #[test]
    fn a_group_stands_for_its_workloads() {
        let names = ["pairs".to_owned(), "ping".to_owned()];
        assert_eq!(Workload::select(&names).unwrap().len(), 5);
        assert_eq!(Workload::select(&[]).unwrap(), Workload::ALL);
        let error = Workload::select(&["pong".to_owned()]).unwrap_err();
        assert!(error.contains("\"pong\"") && error.contains("crypt-24"), "{error}");
    }
}
