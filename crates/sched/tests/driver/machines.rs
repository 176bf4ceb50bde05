//! The machines to drive: regular ones of 1 to 1,024 CPUs, and captures of real ones. The tests of
//! `homing-topology` use these captures too; the shared file `support/captures.rs` says where they
//! are.

#[path = "../../../topology/tests/support/captures.rs"]
mod support;

use std::fs;

use homing_sched::Layout;
use homing_topology::Machine;

use support::{folder, unpack};

/// From one CPU to many: one queue, several shards, siblings, several caches, nodes and packages.
pub(crate) const GRIDS: [&str; 10] = [
    "1x1x1",
    "1x1x2",
    "1x4x1",
    "3x1x1",
    "4x3x2",
    "1x20x2",
    "2x2x2x2",
    "2x2x9x2",
    "2x2x2x4x2",
    "16x1x1",
];

/// The largest machine there can be.
pub(crate) const LARGEST: &str = "2x2x8x16x2";

pub(crate) fn grid(grid: &str) -> Layout {
    Layout::new(&Machine::from_grid(grid).unwrap()).unwrap()
}

/// Every capture, with its name.
pub(crate) fn captures() -> Vec<(String, Layout)> {
    let Some(folder) = folder() else { return Vec::new() };
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    let machines = paths.iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        let kind = path.extension()?.to_str()?;
        let machine = if kind == "bz2" {
            let scratch = tempfile::tempdir().unwrap();
            let wanted = |name: &str| NEEDED.contains(&name);
            let machine = Machine::read(&unpack(path, scratch.path(), wanted)).unwrap();
            let expected = name.replace(".tar.bz2", ".expected.csv");
            let expected = fs::read_to_string(folder.join(expected)).unwrap();
            for (cpu, line) in machine.cpus().iter().zip(expected.lines().skip(1)) {
                let llc = cpu.llc.map(|llc| llc.to_string()).unwrap_or_default();
                let start = format!("{},{},{llc},", cpu.cpu, cpu.core);
                assert!(line.starts_with(&start), "{name}: {start} is {line}");
                let nodes = line.split(',').nth(3).unwrap_or_default().split_whitespace().count();
                assert_eq!(cpu.numa_nodes.len(), nodes, "{name}: {line}");
            }
            machine
        } else if kind == "xml" {
            Machine::from_hwloc_xml(&fs::read_to_string(path).unwrap()).unwrap()
        } else {
            return None;
        };
        Some((name, Layout::new(&machine).unwrap()))
    });
    let machines: Vec<_> = machines.collect();
    assert!(!machines.is_empty(), "no capture in {}", folder.display());
    machines
}

/// The files of a capture that are worth unpacking; the rest only costs time.
const NEEDED: [&str; 13] = [
    "cpuinfo",
    "level",
    "type",
    "shared_cpu_map",
    "online",
    "core_id",
    "core_cpus",
    "core_siblings",
    "thread_siblings",
    "package_cpus",
    "cpumap",
    "cpulist",
    "distance",
];
