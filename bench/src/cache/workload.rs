//! The workloads, their names, and the figures they yield.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::requests::Law;
use crate::metric::{Better, Metric, metric};

/// How many keys are asked for, except those of a scan.
pub(crate) const KEYS: u32 = 1_000_000;

/// How many in a hundred requests belong to a scan, if there is one.
const SCANNED: u8 = 20;

/// How many in a hundred requests remove, if some do.
const REMOVALS: u8 = 5;

/// For how many of the keys a cache has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// One in ten.
    Tenth,
    /// All.
    All,
}

impl Room {
    const BOTH: [Self; 2] = [Self::Tenth, Self::All];

    /// How many of `keys`.
    pub(crate) const fn entries(self, keys: u32) -> u32 {
        match self {
            Self::Tenth => keys / 10,
            Self::All => keys,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tenth => "100k",
            Self::All => "1M",
        }
    }
}

/// Zipf's exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skew {
    /// 0.8.
    Flat,
    /// 0.99.
    Steep,
}

impl Skew {
    const fn exponent(self) -> f64 {
        match self {
            Self::Flat => 0.8,
            Self::Steep => 0.99,
        }
    }
}

/// A workload, as a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Reads, and an insertion for each that misses.
    Read(Skew, Room),
    /// This many in a hundred requests overwrite.
    Write(u8, Room),
    /// Some remove, as programs do whose data has changed elsewhere.
    Remove(Room),
    /// Some read keys that nobody reads again.
    Scan(Room),
    /// Nothing but filling: what an entry takes.
    Memory,
}

impl Workload {
    /// All of them, in the order of the report, with these numbers of writes in a hundred requests.
    pub(crate) fn all(writes: &[u8]) -> Vec<Self> {
        let reads = [Skew::Steep, Skew::Flat]
            .into_iter()
            .flat_map(|skew| Room::BOTH.map(|room| Self::Read(skew, room)));
        let writes =
            writes.iter().flat_map(|percent| Room::BOTH.map(|room| Self::Write(*percent, room)));
        let others = [Self::Remove(Room::All), Self::Scan(Room::Tenth), Self::Memory];
        reads.chain(writes).chain(others).collect()
    }

    /// The workloads of `all` that `names` name, alone or as groups; all of them if there is no
    /// name.
    pub(crate) fn select(all: &[Self], names: &[String]) -> Result<Vec<Self>, String> {
        let matches = |name: &str, load: &Self| load.to_string() == name || load.group() == name;
        for name in names {
            if !all.iter().any(|load| matches(name, load)) {
                let known: Vec<String> = all.iter().map(Self::to_string).collect();
                let known = known.join(", ");
                return Err(format!("{name:?} is no workload and no group of them: use {known}"));
            }
        }
        let wanted =
            |load: &&Self| names.is_empty() || names.iter().any(|name| matches(name, load));
        Ok(all.iter().filter(wanted).copied().collect())
    }

    /// The name of its group.
    pub(crate) const fn group(self) -> &'static str {
        match self {
            Self::Read(..) => "read",
            Self::Write(..) => "write",
            Self::Remove(_) => "remove",
            Self::Scan(_) => "scan",
            Self::Memory => "memory",
        }
    }

    /// The law from which its requests are drawn.
    pub(crate) const fn law(self, keys: u32) -> Law {
        let steep = Skew::Steep.exponent();
        let plain = Law { keys, skew: steep, writes: 0, removals: 0, scanned: 0 };
        match self {
            Self::Read(skew, _) => Law { skew: skew.exponent(), ..plain },
            Self::Write(percent, _) => Law { writes: percent, ..plain },
            Self::Remove(_) => Law { removals: REMOVALS, ..plain },
            Self::Scan(_) => Law { scanned: SCANNED, ..plain },
            Self::Memory => plain,
        }
    }

    /// For how many of the keys caches have room.
    pub(crate) const fn room(self) -> Room {
        match self {
            Self::Read(_, room) | Self::Write(_, room) | Self::Remove(room) | Self::Scan(room) => {
                room
            }
            Self::Memory => Room::All,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, room) = (self.group(), self.room().name());
        match self {
            Self::Read(skew, _) => write!(f, "{group}-{}-{room}", skew.exponent()),
            Self::Write(percent, _) => write!(f, "{group}-{percent}-{room}"),
            Self::Remove(_) => write!(f, "{group}-{REMOVALS}-{room}"),
            Self::Scan(_) => write!(f, "{group}-{SCANNED}-{room}"),
            Self::Memory => f.write_str(group),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        // The share of writes is whatever was asked for.
        let percent = name.split('-').nth(1).and_then(|percent| percent.parse().ok());
        let all = Self::all(percent.as_slice());
        let found = all.into_iter().find(|load| load.to_string() == name);
        found.ok_or_else(|| format!("{name:?} is no workload"))
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// All figures of the tables, in the order of their columns.
pub(crate) const METRICS: [Metric; 9] = [
    metric("cpu_ns_per_op", "CPU ns/op", 1.0, Better::Less),
    metric("ops_per_s", "M ops/s", 1e6, Better::More),
    metric("hit_percent", "hits %", 1.0, Better::More),
    metric("p50_ns", "p50 ns", 1.0, Better::Less),
    metric("p99_ns", "p99 ns", 1.0, Better::Less),
    metric("p999_ns", "p99.9 ns", 1.0, Better::Less),
    metric("bytes_per_entry", "bytes/entry", 1.0, Better::Less),
    metric("bytes_above_payload", "above its 16", 1.0, Better::Less),
    metric("held_percent", "held, % of capacity", 1.0, Better::More),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_round_trip() {
        let all = Workload::all(&[5, 25]);
        for load in &all {
            assert_eq!(load.to_string().parse(), Ok(*load));
        }
        assert_eq!(Workload::Read(Skew::Steep, Room::Tenth).to_string(), "read-0.99-100k");
        assert_eq!("write-40-1M".parse(), Ok(Workload::Write(40, Room::All)));
        for wrong in ["", "read", "read-0.9-100k", "write-x-1M", "write-1000-1M", "scan-5-100k"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_group_stands_for_its_workloads() {
        let all = Workload::all(&[5, 25]);
        assert_eq!(all.len(), 11);
        let names = ["write".to_owned(), "memory".to_owned()];
        assert_eq!(Workload::select(&all, &names).unwrap().len(), 5);
        assert_eq!(Workload::select(&all, &[]).unwrap(), all);
        let error = Workload::select(&all, &["pong".to_owned()]).unwrap_err();
        assert!(error.contains("\"pong\"") && error.contains("write-25-1M"), "{error}");
    }

    #[test]
    fn the_shares_of_a_law_are_the_workloads() {
        let law = Workload::Write(25, Room::All).law(KEYS);
        assert_eq!((law.writes, law.removals, law.scanned), (25, 0, 0));
        assert_eq!(Workload::Scan(Room::Tenth).law(KEYS).scanned, SCANNED);
        assert_eq!(Workload::Scan(Room::Tenth).room().entries(KEYS), 100_000);
    }
}
