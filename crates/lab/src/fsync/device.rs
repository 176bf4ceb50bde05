//! What the block device below a folder was asked to do, as the kernel counts it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Writes and flushes: since boot, or since others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Requests that write, after the kernel has merged them.
    pub writes: u64,
    /// Flushes of the device's cache. Since Linux 5.5; of whole disks only.
    pub flushes: Option<u64>,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    /// Its file in `/sys`, and that of the disk that it is a part of.
    stat: PathBuf,
    flush_stat: PathBuf,
}

impl Device {
    /// The device of the filesystem that `folder` is in; `None` if that has no device of its own,
    /// as on tmpfs, overlays and btrfs.
    pub fn below(folder: &Path) -> Option<Self> {
        let number = fs::metadata(folder).ok()?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let is_part = device.join("partition").exists();
        let disk = if is_part { device.parent()? } else { &device };
        Some(Self { flush_stat: disk.join("stat"), stat: device.join("stat") })
    }

    /// The counts up to now; `None` if `/sys` does not tell them.
    pub fn counts(&self) -> Option<Counts> {
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
    /// The counts from `before` until now.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let flushes = self.flushes.zip(before.flushes);
        Self {
            writes: self.writes.saturating_sub(before.writes),
            flushes: flushes.map(|(now, before)| now.saturating_sub(before)),
        }
    }

    /// How many of `files` files each flush made durable; `None` without a flush.
    pub fn aggregation(self, files: usize) -> Option<f64> {
        self.flushes.filter(|flushes| *flushes > 0).map(|flushes| files as f64 / flushes as f64)
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
        let done = counts(30, Some(12)).since(counts(10, Some(2)));
        assert_eq!(done, counts(20, Some(10)));
        assert_eq!(done.aggregation(50), Some(5.0));
        let unknown = counts(30, None).since(counts(10, None));
        assert_eq!((unknown, unknown.aggregation(50)), (counts(20, None), None));
        // Without a flush there is nothing to divide by.
        assert_eq!(counts(30, Some(0)).aggregation(50), None);
    }

    #[test]
    fn a_filesystem_without_a_device_has_none() {
        assert!(Device::below(Path::new("/proc")).is_none());
        assert!(Device::below(Path::new("/no/such/folder")).is_none());
    }
}
