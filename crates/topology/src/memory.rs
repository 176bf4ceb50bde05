//! How much memory this process may use: what the machine has, and what its cgroups allow.

use std::path::{Path, PathBuf};

use crate::allowed::Cgroups;
use crate::error::TopologyError;
use crate::sysfs::text;

/// How much memory there is, in bytes.
///
/// ```
/// use homing_topology::Memory;
///
/// let limit = Some((4 << 30, "/sys/fs/cgroup/memory.max".into()));
/// let memory = Memory { installed: Some(64 << 30), limit };
/// assert_eq!(memory.available(), Some(4 << 30));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What the machine has, as far as the system uses it; `None` if the system does not say.
    pub installed: Option<u64>,
    /// The tightest limit of the cgroups this process is in, and the file that sets it.
    pub limit: Option<(u64, PathBuf)>,
}

impl Memory {
    /// Reads what there is, below the folder that stands for `/`. If a file is absent, it restricts
    /// nothing.
    ///
    /// # Errors
    /// [`TopologyError`], which names a file that exists and cannot be read.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use homing_topology::Memory;
    ///
    /// let memory = Memory::read(Path::new("/"))?;
    /// println!("{:?} bytes to have", memory.available());
    /// assert_eq!(Memory::read(Path::new("/nowhere"))?, Memory::default());
    /// # Ok::<(), homing_topology::TopologyError>(())
    /// ```
    pub fn read(root: &Path) -> Result<Self, TopologyError> {
        let meminfo = text(&root.join("proc/meminfo"))?.unwrap_or_default();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let mut limit: Option<(u64, PathBuf)> = None;
        for folder in Cgroups::read(root)?.folders("memory") {
            // Version 2, and version 1; "max" and the largest number that there is mean no limit.
            for name in ["memory.max", "memory.limit_in_bytes"] {
                let path = folder.join(name);
                let bytes = text(&path)?.and_then(|text| text.parse().ok());
                let tighter = |bytes: &u64| limit.as_ref().is_none_or(|(least, _)| bytes < least);
                if let Some(bytes) = bytes.filter(|bytes| *bytes < 1 << 62).filter(tighter) {
                    limit = Some((bytes, path));
                }
            }
        }
        Ok(Self { installed: kib.map(|kib| kib.saturating_mul(1024)), limit })
    }

    /// The most that this process can have.
    pub fn available(&self) -> Option<u64> {
        let limit = self.limit.as_ref().map(|(bytes, _)| *bytes);
        self.installed.into_iter().chain(limit).min()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn memory(files: &[(&str, &str)]) -> (Memory, tempfile::TempDir) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        (Memory::read(root.path()).unwrap(), root)
    }

    #[test]
    fn the_tightest_limit_of_version_2_on_the_way_up_counts() {
        let (found, root) = memory(&[
            ("proc/meminfo", "MemTotal:       24576000 kB\nMemFree: 1 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"),
            ("sys/fs/cgroup/a/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(found.installed, Some(24_576_000 << 10));
        let path = root.path().join("sys/fs/cgroup/a/memory.max");
        assert_eq!((found.available(), found.limit), (Some(4 << 30), Some((4 << 30, path))));
    }

    #[test]
    fn version_1_counts_and_its_largest_number_is_no_limit() {
        let version_1 = |limit| {
            memory(&[
                ("proc/meminfo", "MemTotal: 1024 kB\n"),
                ("proc/self/cgroup", "7:memory:/docker/x\n0::/\n"),
                ("proc/mounts", "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
            ])
            .0
        };
        assert_eq!(version_1("65536\n").available(), Some(65536));
        let none = version_1("9223372036854771712\n");
        assert_eq!((none.available(), none.limit), (Some(1 << 20), None));
    }

    #[test]
    fn where_nothing_is_told_nothing_is_known() {
        let (found, _root) = memory(&[("proc/meminfo", "garbage\nMemTotal: x\n")]);
        assert_eq!((found.available(), found), (None, Memory::default()));
    }
}
