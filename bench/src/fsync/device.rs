//! What the block device below a folder was asked to do, as the kernel counts it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cell::Figures;

/// Writes and flushes since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    writes: u64,
    /// Since Linux 5.5; of whole disks only.
    flushes: Option<u64>,
}

/// The device.
pub(crate) struct Device {
    /// Its folder in `/sys`, and that of the disk that it is a part of.
    stat: PathBuf,
    flush_stat: PathBuf,
}

impl Device {
    /// That of the filesystem in which `folder` stands; `None` where that has none of its own, as
    /// on tmpfs and btrfs.
    pub(crate) fn below(folder: &Path) -> Option<Self> {
        let number = fs::metadata(folder).ok()?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let is_part = device.join("partition").exists();
        let disk = if is_part { device.parent()? } else { &device };
        Some(Self { flush_stat: disk.join("stat"), stat: device.join("stat") })
    }

    /// Up to now.
    pub(crate) fn counts(&self) -> Option<Counts> {
        let writes = parse(&fs::read_to_string(&self.stat).ok()?)?.writes;
        let flushes = parse(&fs::read_to_string(&self.flush_stat).ok()?)?.flushes;
        Some(Counts { writes, flushes })
    }
}

/// Columns as in the kernel's `Documentation/block/stat.rst`.
fn parse(stat: &str) -> Option<Counts> {
    let columns: Vec<u64> =
        stat.split_whitespace().map_while(|column| column.parse().ok()).collect();
    Some(Counts { writes: *columns.get(4)?, flushes: columns.get(15).copied() })
}

impl Counts {
    /// Adds to `figures` what was done from `before` until now for so many files.
    pub(crate) fn add_since(self, before: Self, files: f64, figures: &mut Figures) {
        let mut add = |key: &str, value: f64| figures.insert(key.to_owned(), value);
        add("device_writes", (self.writes - before.writes) as f64);
        if let (Some(now), Some(before)) = (self.flushes, before.flushes) {
            let flushes = (now - before) as f64;
            add("device_flushes", flushes);
            // Without a flush there is no such figure.
            add("aggregation", files / flushes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_flushes_are_found_and_old_kernels_have_no_flushes() {
        let stat = " 1 2 3 4 500 6 7 8 9 10 11 12 13 14 15 160 17\n";
        assert_eq!(parse(stat), Some(Counts { writes: 500, flushes: Some(160) }));
        let old = "1 2 3 4 500 6 7 8 9 10 11";
        assert_eq!(parse(old), Some(Counts { writes: 500, flushes: None }));
        assert_eq!(parse("1 2"), None);
    }

    #[test]
    fn what_was_done_is_told_by_file() {
        let counts = |writes, flushes| Counts { writes, flushes };
        let mut figures = Figures::new();
        counts(30, Some(12)).add_since(counts(10, Some(2)), 50.0, &mut figures);
        let found: Vec<_> = figures.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let expected = [("aggregation", 5.0), ("device_flushes", 10.0), ("device_writes", 20.0)];
        assert_eq!(found, expected);
        figures.clear();
        counts(30, None).add_since(counts(10, None), 50.0, &mut figures);
        assert_eq!(figures.len(), 1);
    }
}
