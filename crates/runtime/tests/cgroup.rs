//! A control group whose quota and cpuset change: the workers follow. The group is the whole
//! process's, so this is a program of its own.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuSet, Runtime};

/// A group with this process in it, until this is dropped.
struct Group {
    folder: PathBuf,
    parent: PathBuf,
}

impl Group {
    /// A group of this controller, below the root of its hierarchy.
    fn new(controller: &str) -> io::Result<Self> {
        let parent = Path::new("/sys/fs/cgroup").join(controller);
        let folder = parent.join(format!("homing-test-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder, parent };
        if controller == "cpuset" {
            // A new group has no CPUs and no memory.
            for name in ["cpuset.mems", "cpuset.cpus"] {
                group.set(name, &fs::read_to_string(group.parent.join(name))?)?;
            }
        }
        group.set("cgroup.procs", &std::process::id().to_string())?;
        Ok(group)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        write(&self.folder.join(name), value)
    }

    /// In microseconds of every 100,000; -1: none.
    fn set_quota(&self, quota_us: i32) -> io::Result<()> {
        if self.folder.join("cpu.max").exists() {
            let quota = if quota_us < 0 { "max".to_owned() } else { quota_us.to_string() };
            return self.set("cpu.max", &format!("{quota} 100000"));
        }
        self.set("cpu.cfs_quota_us", &quota_us.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = write(&self.parent.join("cgroup.procs"), &std::process::id().to_string());
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Writes to a file that is there: where the folder is no hierarchy, none is to be made.
fn write(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// A group of the first of these controllers for which there can be one.
fn group(controllers: &[&str]) -> Option<Group> {
    let groups = controllers.iter().map(|controller| Group::new(controller));
    groups.filter_map(Result::ok).find(|group| {
        let has = |name: &str| group.folder.join(name).exists();
        has("cpu.max") || has("cpu.cfs_quota_us") || has("cpuset.cpus")
    })
}

/// Keeps the runtime at work until its CPUs are as wanted: a monitor that rests looks at nothing.
fn expect(runtime: &Runtime, is_as_wanted: impl Fn(&CpuSet) -> bool, told: &str) {
    let began = Instant::now();
    while !is_as_wanted(&runtime.cpus()) {
        assert!(began.elapsed() < Duration::from_secs(20), "{told}: still {}", runtime.cpus());
        assert_eq!(runtime.queue(|| 7).join().unwrap(), 7);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Both in one test: the group is everybody's.
#[test]
fn changes_of_the_quota_and_of_the_cpuset_are_followed() {
    let runtime = Runtime::new().unwrap();
    let all = runtime.cpus();
    if all.len() < 2 {
        println!("skipped: there is one CPU");
        return;
    }
    // Version 1 has a hierarchy for each controller, version 2 one for all.
    if let Some(group) = group(&["cpu", ""]) {
        group.set_quota(100_000).unwrap();
        expect(&runtime, |cpus| cpus.len() == 1, "a quota of one CPU");
        group.set_quota(-1).unwrap();
        expect(&runtime, |cpus| *cpus == all, "no quota");
    } else {
        println!("skipped: no group with a quota can be made (that takes root)");
    }
    if let Some(group) = group(&["cpuset"]) {
        let one = CpuSet::of(all.iter().last().unwrap());
        group.set("cpuset.cpus", &one.to_string()).unwrap();
        expect(&runtime, |cpus| *cpus == one, "a cpuset of one CPU");
        group.set("cpuset.cpus", &all.to_string()).unwrap();
        expect(&runtime, |cpus| *cpus == all, "the whole cpuset");
    } else {
        println!("skipped: no group with a cpuset can be made (that takes root, and version 1)");
    }
}
