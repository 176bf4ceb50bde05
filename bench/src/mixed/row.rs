//! What is compared: how one memory is shared, and under which load.

use std::fmt;

use clap::ValueEnum;
use homing::pages::{Group, PageCache};
use serde::Serialize;

/// How the two tenants share the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Row {
    /// One group, and what was used longest ago goes.
    Lru,
    /// One group: reclaim does not know of tenants.
    OneGroup,
    /// A group for each tenant.
    TwoGroups,
    /// Likewise, and the dirty one's working set is its `min`.
    TwoGroupsMin,
}

impl Row {
    /// All, in the order of the tables.
    pub(crate) const ALL: [Self; 4] =
        [Self::Lru, Self::OneGroup, Self::TwoGroups, Self::TwoGroupsMin];

    /// Its name on command lines.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::OneGroup => "one-group",
            Self::TwoGroups => "two-groups",
            Self::TwoGroupsMin => "two-groups-min",
        }
    }

    /// The groups of the reader and of the dirty tenant, whose set has `dirty_set` bytes.
    pub(crate) fn groups(self, cache: &PageCache, dirty_set: u64) -> [Group; 2] {
        cache.set_learning(self != Self::Lru);
        let reader = cache.group("reader").build();
        let dirty = match self {
            Self::Lru | Self::OneGroup => reader.clone(),
            Self::TwoGroups => cache.group("dirty").build(),
            Self::TwoGroupsMin => cache.group("dirty").min(dirty_set).build(),
        };
        [reader, dirty]
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lru => "lru",
            Self::OneGroup => "one group",
            Self::TwoGroups => "two groups",
            Self::TwoGroupsMin => "two groups, min",
        })
    }
}

/// The load under which the rows are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    /// What a request of a disk takes on top, as asked for.
    pub(crate) disk_us: u64,
    /// How many reads the reader has under way for each of the dirty tenant's threads.
    pub(crate) depth: usize,
}

impl Case {
    /// All combinations that differ: without a disk to wait for, the depth does not matter.
    pub(crate) fn all(disk_us: &[u64], depths: &[usize]) -> Vec<Self> {
        let of_disk = |&disk_us: &u64| {
            let depths = if disk_us == 0 { &[1][..] } else { depths };
            depths.iter().map(move |&depth| Self { disk_us, depth })
        };
        disk_us.iter().flat_map(of_disk).collect()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.disk_us {
            0 => f.write_str("files in memory"),
            micros => write!(f, "disks of {micros} us, reader's depth {}", self.depth),
        }
    }
}

/// The published figures: "mm: multi-gen LRU: optimize multiple memcgs".
pub(crate) struct Published {
    /// What was compared with the patch, and which version of the patch.
    pub(crate) without: &'static str,
    /// Thousands of reads a second of fio, without and with the patch.
    pub(crate) reader_k: [f64; 2],
    /// Operations a second of memcached, likewise.
    pub(crate) dirty: [f64; 2],
}

/// All comparisons: the first posting of the patch (8 March 2022), and the version that was merged.
pub(crate) const PUBLISHED: [Published; 4] = [
    Published {
        without: "the series without it",
        reader_k: [3117.0, 2217.0],
        dirty: [563_772.0, 1_968_344.0],
    },
    Published {
        without: "Linux 5.17-rc2",
        reader_k: [2338.0, 2217.0],
        dirty: [313_822.0, 1_968_344.0],
    },
    Published {
        without: "as merged (v14): the series without it",
        reader_k: [1880.0, 2252.0],
        dirty: [862_769.0, 1_911_022.0],
    },
    Published {
        without: "as merged (v14): Linux 5.19-rc1",
        reader_k: [1279.0, 2252.0],
        dirty: [1_673_524.0, 1_911_022.0],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_for_disks_that_are_waited_for() {
        let told: Vec<_> = Case::all(&[0, 100], &[1, 32]).iter().map(Case::to_string).collect();
        let disks = ["disks of 100 us, reader's depth 1", "disks of 100 us, reader's depth 32"];
        assert_eq!(told, ["files in memory", disks[0], disks[1]]);
    }

    #[test]
    fn rows_have_the_groups_that_they_are_called_after() {
        for row in Row::ALL {
            assert_eq!(Row::from_str(row.name(), false), Ok(row));
            let cache = PageCache::builder(8 << 20).build().unwrap();
            let [reader, dirty] = row.groups(&cache, 1 << 20);
            let shared = reader.name() == dirty.name();
            assert_eq!(shared, matches!(row, Row::Lru | Row::OneGroup), "{row}");
        }
    }
}
