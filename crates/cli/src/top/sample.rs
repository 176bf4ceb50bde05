//! A program's counters at one moment.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use homing_control::ClientError;

use crate::attributes::ControlArgs;
use crate::source::{Source, keyed};

/// See the module. What the program does not have is missing.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
    values: BTreeMap<String, String>,
}

impl Sample {
    /// Asks the program. Connects anew each time, since the program hangs up on clients that say
    /// nothing for long.
    pub(super) fn read(control: &ControlArgs) -> Result<Self, ClientError> {
        let mut source = Source::connect(control, "")?;
        let mut paths = Vec::new();
        for kind in ["cpu", "thread"] {
            paths.extend(source.leaves(kind).iter().map(|id| format!("{kind}/{id}")));
        }
        for name in source.names("workqueue") {
            paths.extend(["affinity_scope", "counters"].map(|of| format!("workqueue/{name}/{of}")));
        }
        for name in source.names("export") {
            paths.extend(["stat", "latency_ns"].map(|of| format!("export/{name}/{of}")));
        }
        let groups = source.names("cache/group");
        paths.extend(groups.iter().map(|name| format!("cache/group/{name}/stat")));
        // What each cache of objects has, and nothing else has.
        let caches = source.leaves("object_cache");
        for name in caches.iter().filter_map(|path| path.strip_suffix("/capacity")) {
            paths.extend(["capacity", "stat"].map(|of| format!("object_cache/{name}/{of}")));
        }
        paths.extend(ALONE.map(str::to_owned));
        let mut values = BTreeMap::new();
        for path in paths {
            if let Some(value) = source.get(&path)? {
                values.insert(path, value);
            }
        }
        Ok(Self::of(values))
    }

    pub(super) fn of(values: BTreeMap<String, String>) -> Self {
        Self { at: Instant::now(), wall: SystemTime::now(), values }
    }

    /// The names in `KIND/NAME` and `KIND/NAME/attribute`, in the order of numbers if they are
    /// numbers.
    pub(super) fn names(&self, kind: &str, attribute: &str) -> Vec<String> {
        let below =
            self.values.keys().filter_map(|path| path.strip_prefix(kind)?.strip_prefix('/'));
        let names = below.filter_map(|rest| rest.strip_suffix(attribute));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_by_key(|name| name.parse::<u64>().unwrap_or(u64::MAX));
        names
    }

    pub(super) fn value(&self, path: &str) -> Option<&str> {
        self.values.get(path).map(String::as_str)
    }

    /// The number of a line "KEY NUMBER"; `None` if it is not known.
    pub(super) fn counter(&self, path: &str, key: &str) -> Option<u64> {
        self.word(path, key)?.parse().ok()
    }

    /// What follows KEY on its line.
    pub(super) fn word(&self, path: &str, key: &str) -> Option<&str> {
        keyed(self.value(path)?).get(key).copied()
    }
}

const ALONE: [&str; 10] = [
    "cache/size",
    "cache/memory",
    "cache/used",
    "durable/backend",
    "durable/counters",
    "durable/filesystems",
    "durable/sharing",
    "durable/strategy",
    "module/cpu_time_ns",
    "module/stalls",
];
