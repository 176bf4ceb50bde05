//! A machine from what a user may call it by.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use homing_sim::{Machine, PRESETS, Preset};

/// A machine and its name.
#[derive(Clone, Debug)]
pub struct NamedMachine {
    /// The name as it was given.
    pub name: String,
    /// The machine: many runs share it.
    pub machine: Arc<Machine>,
}

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The name is none of those that are known.
    #[error(
        "{name:?} is not a machine: give a preset ({}), a grid such as 4x3x2, an hwloc XML file, the \
         folder of a captured /sys tree, or here",
        PRESETS.map(|preset| preset.name).join(", ")
    )]
    Unknown {
        /// What was given.
        name: String,
    },
    /// Its description cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file holds something else than text.
    #[error(
        "{path} is no text, so it is not hwloc's XML: unpack a captured /sys tree, and give its folder",
        path = path.display()
    )]
    NoText {
        /// The file.
        path: PathBuf,
    },
    /// Its description does not describe one.
    #[error("{name}: {source}")]
    Topology {
        /// What was given.
        name: String,
        /// Why.
        source: homing_sim::TopologyError,
    },
}

impl NamedMachine {
    /// A preset, a grid, an hwloc XML file, a captured `/sys` tree, or `here`: of this machine the
    /// CPUs that a runtime of this process puts its workers on.
    pub fn find(name: &str) -> Result<Self, MachineError> {
        let named = |machine| Self { name: name.to_owned(), machine: Arc::new(machine) };
        let topology = |source| MachineError::Topology { name: name.to_owned(), source };
        if let Some(preset) = Preset::find(name) {
            return Ok(named(preset.machine()));
        }
        if name == "here" {
            return here(Path::new("/")).map(named).map_err(topology);
        }
        let path = Path::new(name);
        if path.is_dir() {
            // The folder that holds `sys`, or that folder itself.
            let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            let is_sys = whole.ends_with("sys") && whole.join("devices/system/cpu").is_dir();
            let path = if is_sys { whole.parent().unwrap_or(path) } else { path };
            return Machine::read(path).map(named).map_err(topology);
        }
        // A file, or a pipe.
        if path.exists() {
            let read = fs::read_to_string(path);
            let xml = read.map_err(|source| match source.kind() {
                io::ErrorKind::InvalidData => MachineError::NoText { path: path.to_owned() },
                _ => MachineError::Io { path: path.to_owned(), source },
            })?;
            return Machine::from_hwloc_xml(&xml).map(named).map_err(topology);
        }
        if name.starts_with(|first: char| first.is_ascii_digit()) {
            // Two ways to write a grid are no two machines.
            let plain =
                name.split('x').map(|part| part.parse::<u64>().map(|part| part.to_string()));
            let plain: Result<Vec<_>, _> = plain.collect();
            let name = plain.map_or_else(|_| name.to_owned(), |parts| parts.join("x"));
            let named = |machine| Self { name: name.clone(), machine: Arc::new(machine) };
            return Machine::from_grid_siblings_last(&name).map(named).map_err(topology);
        }
        Err(MachineError::Unknown { name: name.to_owned() })
    }

    /// The names of all presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.name)
    }

    /// The presets of these names.
    pub(crate) fn presets(names: &[&str]) -> Vec<Self> {
        let of = |name: &&str| {
            let machine = Preset::find(name).expect("it is a preset").machine();
            Self { name: (*name).to_owned(), machine: Arc::new(machine) }
        };
        names.iter().map(of).collect()
    }
}

/// The CPUs that workers are put on: a quota leaves fewer of them than the affinity mask does.
fn here(root: &Path) -> Result<Machine, homing_sim::TopologyError> {
    let machine = Machine::read(root)?;
    let allowed = homing::Allowed::read(root, &machine)?;
    Ok(machine.restricted(&allowed.worker_cpus(&machine)).unwrap_or(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_found_by_whatever_names_them() {
        let cpus = |name| NamedMachine::find(name).map(|found| found.machine.cpus().len());
        assert_eq!(cpus("ryzen-9-3900x").unwrap(), 24);
        assert_eq!(cpus("2x4x2").unwrap(), 16);
        assert!(cpus("here").unwrap() > 0);
        assert!(cpus("/").unwrap() > 0, "a /sys tree under a folder");
        let error = cpus("ryzen").unwrap_err().to_string();
        assert!(error.contains("\"ryzen\"") && error.contains("ryzen-9-3900x"), "{error}");
        assert!(cpus("0x1x1").unwrap_err().to_string().contains("0x1x1"));
        assert_eq!(NamedMachine::find("02x4x02").unwrap().name, "2x4x2");
        assert!(cpus("/sys").unwrap() > 0, "that tree itself");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [0xff, 0x80]).unwrap();
        let error = cpus(file.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("unpack a captured /sys tree"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(cpus(file.path().to_str().unwrap()).is_err(), "an empty file");
    }

    #[test]
    fn here_has_as_many_cpus_as_the_mask_and_the_quota_leave_to_workers() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-3\n");
        for cpu in 0..4 {
            write(
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id"),
                &format!("{cpu}\n"),
            );
        }
        write("proc/self/status", "Cpus_allowed_list:\t1-3\n");
        write("proc/self/cgroup", "0::/\n");
        write("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        for (quota, cpus) in [("max", 3), ("200000", 2), ("100000", 1), ("50000", 1)] {
            write("sys/fs/cgroup/cpu.max", &format!("{quota} 100000\n"));
            assert_eq!(here(root.path()).unwrap().cpus().len(), cpus, "a quota of {quota}");
        }
    }
}
