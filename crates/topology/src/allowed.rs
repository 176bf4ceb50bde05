//! What this process may use of the machine: affinity mask, cgroup cpuset, cgroup quota.

use std::path::{Path, PathBuf};

use crate::cpu_set::CpuSet;
use crate::error::TopologyError;
use crate::machine::Machine;
use crate::sysfs::{cpu_list, text};

/// The CPU time that a cgroup may use: `quota_us` in each `period_us`.
///
/// ```
/// use homing_topology::CpuQuota;
///
/// let quota = CpuQuota { quota_us: 250_000, period_us: 100_000 };
/// assert_eq!(quota.cpu_count(), 3, "two and a half");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time per period, over all CPUs.
    pub quota_us: u64,
    /// The period in microseconds.
    pub period_us: u64,
}

impl CpuQuota {
    /// How many CPUs the quota keeps busy, rounded up, at least one.
    pub fn cpu_count(&self) -> usize {
        (self.quota_us.div_ceil(self.period_us.max(1)) as usize).max(1)
    }
}

/// The CPUs this process may run on, and for how much of the time.
///
/// ```
/// use homing_topology::{Allowed, CpuQuota, Machine};
///
/// let machine = Machine::from_grid("2x2x2")?; // two caches of four CPUs
/// let quota = CpuQuota { quota_us: 300_000, period_us: 100_000 };
/// let allowed = Allowed { cpus: *machine.online(), quota: Some(quota) };
/// assert_eq!(allowed.cpu_count(), 3);
/// assert_eq!(allowed.worker_cpus(&machine).to_string(), "0-2", "of one cache");
/// # Ok::<(), homing_topology::TopologyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The affinity mask and the cgroup's cpuset, both applied.
    pub cpus: CpuSet,
    /// The tightest quota of the cgroups this process is in.
    pub quota: Option<CpuQuota>,
}

impl Allowed {
    /// Reads what is allowed on `machine`, below the folder that stands for `/`.
    ///
    /// If `root` is `/` and the system is Linux, the affinity mask is the calling thread's.
    /// Otherwise it is the one recorded in `proc/self/status`. If a file is absent, it restricts
    /// nothing.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use homing_topology::{Allowed, Machine};
    ///
    /// let machine = Machine::read(Path::new("/"))?;
    /// let allowed = Allowed::read(Path::new("/"), &machine)?;
    /// assert!(!allowed.cpus.is_empty() && allowed.cpus.is_subset(machine.online()));
    /// # Ok::<(), homing_topology::TopologyError>(())
    /// ```
    pub fn read(root: &Path, machine: &Machine) -> Result<Self, TopologyError> {
        let mut cpus = *machine.online();
        let mut narrow = |by: Option<CpuSet>| {
            // A mask that shares no CPU with those online cannot be meant.
            let both = by.map(|by| cpus.and(&by)).filter(|both| !both.is_empty());
            cpus = both.unwrap_or(cpus);
        };
        narrow(affinity(root)?);
        let groups = Cgroups::read(root)?;
        for folder in groups.folders("cpuset") {
            for name in ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus"] {
                narrow(cpu_list(&folder.join(name))?.filter(|set| !set.is_empty()));
            }
        }
        let mut quota: Option<CpuQuota> = None;
        for found in groups.folders("cpu").iter().map(|folder| read_quota(folder)) {
            let found = found?;
            // The smaller share wins: a/b < c/d is ad < cb.
            let tighter = |a: &CpuQuota, b: &CpuQuota| {
                a.quota_us.saturating_mul(b.period_us) < b.quota_us.saturating_mul(a.period_us)
            };
            quota = match (quota, found) {
                (Some(a), Some(b)) => Some(if tighter(&b, &a) { b } else { a }),
                (a, b) => a.or(b),
            };
        }
        Ok(Self { cpus, quota })
    }

    /// How many CPUs' worth of work may run at once.
    pub fn cpu_count(&self) -> usize {
        self.quota.map_or(usize::MAX, |quota| quota.cpu_count()).min(self.cpus.len())
    }

    /// The CPUs to put workers on: all that are allowed, or as many of them as the quota keeps
    /// busy. They are chosen close together: cache by cache, one thread of each core first.
    pub fn worker_cpus(&self, machine: &Machine) -> CpuSet {
        // In the restricted machine, a core goes by the lowest of its allowed CPUs.
        let Some(allowed) = machine.restricted(&self.cpus) else { return CpuSet::EMPTY };
        let mut places: Vec<_> = allowed.cpus().iter().collect();
        places.sort_by_key(|place| (place.cache_domain(), place.cpu != place.core, place.cpu));
        places.iter().take(self.cpu_count()).map(|place| place.cpu).collect()
    }
}

pub(crate) fn affinity(root: &Path) -> Result<Option<CpuSet>, TopologyError> {
    #[cfg(target_os = "linux")]
    if root == Path::new("/") {
        // Fails on machines with more CPUs than the call's set can hold: then all are allowed.
        let Ok(set) = rustix::thread::sched_getaffinity(None) else {
            return Ok(None);
        };
        let bits = rustix::thread::CpuSet::MAX_CPU;
        return Ok(Some(
            (0..bits).filter(|n| set.is_set(*n)).filter_map(crate::CpuId::new).collect(),
        ));
    }
    let path = root.join("proc/self/status");
    let Some(status) = text(&path)? else {
        return Ok(None);
    };
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = line.map(str::trim).filter(|list| !list.is_empty());
    let parsed = list.map(|list| {
        clipped(list).ok_or_else(|| TopologyError::Malformed {
            path,
            value: list.to_owned(),
            expected: "a list of CPUs behind Cpus_allowed_list, as in 0-3,8",
        })
    });
    parsed.transpose()
}

/// Reads a list of CPUs, and leaves out those that cannot be here: the kernel names all that are
/// possible.
fn clipped(list: &str) -> Option<CpuSet> {
    let mut set = CpuSet::EMPTY;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        let within = first..=last.min(crate::CPU_COUNT_MAX - 1);
        within.filter_map(crate::CpuId::new).for_each(|cpu| set.insert(cpu));
    }
    Some(set)
}

/// The cgroups this process is in, for each controller, from its own outward.
pub(crate) struct Cgroups {
    folders: Vec<(String, PathBuf)>,
}

impl Cgroups {
    pub(crate) fn read(root: &Path) -> Result<Self, TopologyError> {
        let memberships = text(&root.join("proc/self/cgroup"))?.unwrap_or_default();
        let mounts = match text(&root.join("proc/self/mounts"))? {
            Some(mounts) => mounts,
            None => text(&root.join("proc/mounts"))?.unwrap_or_default(),
        };
        let mut folders = Vec::new();
        // A membership is "ID:CONTROLLERS:PATH"; version 2 has no controllers there.
        for line in memberships.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            for controller in ["cpu", "cpuset", "memory"] {
                let version_2 = controllers.is_empty();
                if !version_2 && !controllers.split(',').any(|name| name == controller) {
                    continue;
                }
                for mount in mount_points(&mounts, controller, version_2) {
                    let mount = unescaped(mount);
                    let mount = root.join(mount.trim_start_matches('/'));
                    folders.extend(outward(&mount, path).map(|f| (controller.to_owned(), f)));
                }
            }
        }
        Ok(Self { folders })
    }

    pub(crate) fn folders(&self, controller: &str) -> Vec<&PathBuf> {
        self.folders.iter().filter(|(name, _)| name == controller).map(|(_, f)| f).collect()
    }
}

/// Where the hierarchy of `controller` is mounted, from lines "DEVICE POINT TYPE OPTIONS ...".
fn mount_points<'a>(
    mounts: &'a str,
    controller: &'a str,
    version_2: bool,
) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let [_, point, kind, options] = line.split(' ').take(4).collect::<Vec<_>>()[..] else {
            return None;
        };
        let matches = match kind {
            "cgroup2" => version_2,
            "cgroup" => !version_2 && options.split(',').any(|option| option == controller),
            "cpuset" => !version_2 && controller == "cpuset",
            _ => false,
        };
        matches.then_some(point)
    })
}

/// A mount point's real name: the list writes spaces and the like in octal, as `\040`.
fn unescaped(point: &str) -> String {
    let mut parts = point.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let octal = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal.filter(u8::is_ascii) {
            whole.push(byte.into());
            whole.push_str(&part[3..]);
        } else {
            whole.push('\\');
            whole.push_str(part);
        }
    }
    whole
}

/// `mount/path`, then its ancestors up to `mount`. In a container the path may be that of the host;
/// folders that do not exist are passed over, so that the mount itself remains.
fn outward(mount: &Path, path: &str) -> impl Iterator<Item = PathBuf> {
    let path = path.trim_matches('/');
    let depth = if path.is_empty() { 0 } else { path.split('/').count() };
    let own = mount.join(path);
    let chain: Vec<PathBuf> = own.ancestors().take(depth + 1).map(Path::to_owned).collect();
    chain.into_iter().filter(|folder| folder.is_dir())
}

fn read_quota(folder: &Path) -> Result<Option<CpuQuota>, TopologyError> {
    let path = folder.join("cpu.max");
    if let Some(line) = text(&path)? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let quota = match words[..] {
            ["max", ..] => return Ok(None),
            [quota, period] => quota.parse().ok().zip(period.parse().ok()),
            _ => None,
        };
        let (quota_us, period_us) = quota.ok_or(TopologyError::Malformed {
            path,
            value: line,
            expected: "max, or a number of microseconds, and another one",
        })?;
        return Ok(Some(CpuQuota { quota_us, period_us }));
    }
    let number = |name: &str, expected: &'static str| -> Result<Option<i64>, TopologyError> {
        let path = folder.join(name);
        let number = text(&path)?.map(|value| {
            value.parse().map_err(|_| TopologyError::Malformed { path, value, expected })
        });
        number.transpose()
    };
    // Version 1: -1 is no limit.
    let quota = number("cpu.cfs_quota_us", "a number of microseconds, or -1")?;
    let period = number("cpu.cfs_period_us", "a number of microseconds")?;
    let positive = |number: i64| u64::try_from(number).ok();
    let both = quota.and_then(positive).zip(period.and_then(positive));
    Ok(both.map(|(quota_us, period_us)| CpuQuota { quota_us, period_us }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn allowed(files: &[(&str, &str)]) -> Allowed {
        let machine = Machine::from_grid("1x8x1").unwrap();
        Allowed::read(root_with(files).path(), &machine).unwrap()
    }

    #[test]
    fn version_2_cpuset_and_the_tightest_quota_on_the_way_up_apply() {
        let found = allowed(&[
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-5\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
            ("sys/fs/cgroup/a/b/cpuset.cpus.effective", "2-7\n"),
        ]);
        assert_eq!(found.cpus.to_string(), "2-5");
        assert_eq!(found.quota, Some(CpuQuota { quota_us: 150_000, period_us: 100_000 }));
        assert_eq!(found.cpu_count(), 2);
        let machine = Machine::from_grid("2x2x2").unwrap();
        assert_eq!(found.worker_cpus(&machine).to_string(), "2,3");
    }

    #[test]
    fn version_1_applies_and_a_container_sees_its_mount_for_the_hosts_path() {
        let found = allowed(&[
            ("proc/self/cgroup", "5:cpuset:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/\n"),
            (
                "proc/mounts",
                "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                 cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n",
            ),
            ("sys/fs/cgroup/cpuset/cpuset.effective_cpus", "1,3\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(found.cpus.to_string(), "1,3");
        assert_eq!(found.cpu_count(), 1);
    }

    #[test]
    fn a_mount_whose_name_is_no_text_hides_no_limit() {
        let root = root_with(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/cpu.max", "100000 100000\n"),
        ]);
        let mounts = b"tmpfs /tmp/caf\xe9 tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        fs::write(root.path().join("proc/mounts"), mounts).unwrap();
        let found = Allowed::read(root.path(), &Machine::from_grid("1x8x1").unwrap()).unwrap();
        assert_eq!(found.cpu_count(), 1);
    }

    #[test]
    fn a_quota_takes_other_cores_before_the_siblings_of_those_it_has() {
        // Siblings are 0 and 4, 1 and 5.
        let machine = Machine::from_grid_siblings_last("1x4x2").unwrap();
        let quota = Some(CpuQuota { quota_us: 200_000, period_us: 100_000 });
        for (cpus, taken) in [("0,4,5", "0,5"), ("4-6", "4,5"), ("0-1,4-5", "0-1"), ("2,6", "2,6")]
        {
            let allowed = Allowed { cpus: cpus.parse().unwrap(), quota };
            assert_eq!(
                allowed.worker_cpus(&machine).to_string(),
                taken.parse::<CpuSet>().unwrap().to_string()
            );
        }
    }

    #[test]
    fn a_kernel_may_know_of_more_cpus_than_there_can_be() {
        let status = |list| allowed(&[("proc/self/status", list)]).cpus.to_string();
        assert_eq!(status("Cpus_allowed_list:\t2-8191\n"), "2-7");
        assert_eq!(status("Cpus_allowed_list:\t1,5,4096\n"), "1,5");
    }

    #[test]
    fn a_mount_point_may_have_spaces() {
        let found = allowed(&[
            ("proc/self/cgroup", "0::/x\n"),
            ("proc/mounts", "cgroup2 /my\\040cg\\x cgroup2 rw 0 0\n"),
            ("my cg\\x/x/cpuset.cpus.effective", "1-2\n"),
        ]);
        assert_eq!(found.cpus.to_string(), "1,2");
    }

    #[test]
    fn limits_that_cannot_be_read_are_not_taken_for_none() {
        let machine = Machine::from_grid("1x8x1").unwrap();
        let group = [
            ("proc/self/cgroup", "0::/\n1:cpu:/\n"),
            ("proc/mounts", "cgroup2 /cg cgroup2 rw 0 0\nx /v1 cgroup rw,cpu 0 0\n"),
        ];
        for (path, text) in [
            ("cg/cpu.max", "abc 100000\n"),
            ("cg/cpu.max", "100000\n"),
            ("v1/cpu.cfs_quota_us", "much\n"),
            ("proc/self/status", "Cpus_allowed_list:\t0-x\n"),
        ] {
            let files: Vec<_> = group.into_iter().chain([(path, text)]).collect();
            let error = Allowed::read(root_with(&files).path(), &machine).unwrap_err().to_string();
            let value = text.trim().rsplit('\t').next().unwrap();
            assert!(error.contains(path) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn without_any_of_these_files_everything_is_allowed() {
        let found = allowed(&[("proc/self/cgroup", "garbage\n\n1:cpu:/\n")]);
        assert_eq!(found.cpu_count(), 8);
        let unlimited = allowed(&[
            ("proc/self/cgroup", "4:cpu:/\n"),
            ("proc/mounts", "x /cg cgroup rw,cpu 0 0\n"),
            ("cg/cpu.cfs_quota_us", "-1\n"),
            ("cg/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(unlimited.quota, None);
    }

    #[test]
    fn a_set_that_has_no_cpu_of_the_machine_is_passed_over() {
        let group = [
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/mounts", "cgroup2 /cg cgroup2 rw 0 0\n"),
            ("cg/cpuset.cpus.effective", "2-5\n"),
        ];
        for none in ["8-9\n", "\n"] {
            let files = group.into_iter().chain([("cg/a/cpuset.cpus.effective", none)]);
            assert_eq!(allowed(&files.collect::<Vec<_>>()).cpus.to_string(), "2-5");
        }
        let status = [("proc/self/status", "Cpus_allowed_list:\t64-65\n")];
        assert_eq!(allowed(&status).cpus.to_string(), "0-7");
    }

    #[test]
    fn each_name_that_a_set_of_cpus_has_had_is_read() {
        for (mount, name) in [
            ("cpuset /cg cpuset rw 0 0\n", "cpus"),
            ("cgroup /cg cgroup rw,cpuset,noprefix 0 0\n", "cpus"),
            ("cgroup /cg cgroup rw,cpuset 0 0\n", "cpuset.cpus"),
            ("cgroup /cg cgroup rw,cpuset 0 0\n", "cpuset.effective_cpus"),
        ] {
            let path = format!("cg/a/{name}");
            let files =
                [("proc/self/cgroup", "3:cpuset:/a\n"), ("proc/mounts", mount), (&path, "1-2\n")];
            assert_eq!(allowed(&files).cpus.to_string(), "1,2", "{name}");
        }
    }

    #[test]
    fn the_smaller_share_wins_whatever_the_periods_are() {
        let quota = |outer, inner| {
            let found = allowed(&[
                ("proc/self/cgroup", "0::/a\n"),
                ("proc/mounts", "cgroup2 /cg cgroup2 rw 0 0\n"),
                ("cg/cpu.max", outer),
                ("cg/a/cpu.max", inner),
            ]);
            found.quota.map(|quota| (quota.quota_us, quota.period_us))
        };
        let (less, more) = ("300000 200000\n", "200000 100000\n");
        for (outer, inner) in [(less, more), (more, less)] {
            assert_eq!(quota(outer, inner), Some((300_000, 200_000)));
        }
        assert_eq!(CpuQuota { quota_us: 0, period_us: 100_000 }.cpu_count(), 1, "never none");
    }

    #[test]
    fn the_mounts_of_this_process_are_looked_at_first() {
        let found = allowed(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/mounts", "cgroup2 /other cgroup2 rw 0 0\n"),
            ("proc/self/mounts", "cgroup2 /cg cgroup2 rw 0 0\n"),
            ("other/cpuset.cpus.effective", "6-7\n"),
            ("cg/cpuset.cpus.effective", "1-2\n"),
        ]);
        assert_eq!(found.cpus.to_string(), "1,2");
    }
}
