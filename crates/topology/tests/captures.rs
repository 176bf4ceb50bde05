//! Captures of real machines give the tables that hwloc reads from them. `support/captures.rs` says
//! where they are.

#[path = "support/captures.rs"]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use homing_topology::{CpuSet, Machine, Scope};

use support::{folder, unpack};

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.to_str().is_some_and(|p| p.ends_with(suffix))).collect();
    files.sort();
    files
}

fn table(machine: &Machine) -> String {
    let mut csv = "cpu,core_first_cpu,llc_first_cpu,numa_nodes,package_first_cpu\n".to_owned();
    for cpu in machine.cpus() {
        let llc = cpu.llc.map(|llc| llc.to_string()).unwrap_or_default();
        let nodes: Vec<String> = cpu.numa_nodes.iter().map(|node| node.0.to_string()).collect();
        writeln!(csv, "{},{},{llc},{},{}", cpu.cpu, cpu.core, nodes.join(" "), cpu.package)
            .unwrap();
    }
    csv
}

/// The oracle lists the nodes of a CPU in hwloc's order; ours is ascending.
fn with_sorted_nodes(csv: &str) -> String {
    let line = |line: &str| {
        let mut fields: Vec<String> = line.split(',').map(str::to_owned).collect();
        let mut nodes: Vec<&str> = line.split(',').nth(3).unwrap().split(' ').collect();
        nodes.sort_by_key(|node| node.parse::<u32>().ok());
        fields[3] = nodes.join(" ");
        fields.join(",") + "\n"
    };
    csv.lines().map(line).collect()
}

#[test]
fn every_capture_gives_its_expected_table() {
    let Some(folder) = folder() else { return };
    let archives = files(&folder, ".tar.bz2");
    assert!(!archives.is_empty(), "no capture in {}", folder.display());
    for archive in archives {
        let scratch = tempfile::tempdir().unwrap();
        let machine = Machine::read(&unpack(&archive, scratch.path(), |_| true)).unwrap();
        let name = archive.to_str().unwrap().replace(".tar.bz2", ".expected.csv");
        let expected = fs::read_to_string(name).unwrap();
        assert_eq!(table(&machine), with_sorted_nodes(&expected), "{}", archive.display());
        for scope in Scope::ALL {
            let pods = machine.pods(scope);
            let union = pods.iter().fold(CpuSet::EMPTY, |set, pod| set.or(pod));
            assert_eq!(union, *machine.online(), "{}: {scope}", archive.display());
        }
    }
}

#[test]
fn hwloc_exports_are_read() {
    let Some(folder) = folder() else { return };
    let sizes = |xml: &str, scope| {
        let text = fs::read_to_string(folder.join(xml)).unwrap();
        let pods = Machine::from_hwloc_xml(&text).unwrap().pods(scope);
        pods.iter().map(CpuSet::len).collect::<Vec<_>>()
    };
    let epyc = "AMD-19h-Zen3-2xEpyc-7763.xml";
    assert_eq!(sizes(epyc, Scope::Cache), [8; 16]);
    assert_eq!(sizes(epyc, Scope::Cpu).len(), 128);
    let strix = "AMD-1Ah-Zen5StrixPoint-RyzenAI9HX370.xml";
    assert_eq!(sizes(strix, Scope::Cache), [8, 16]);
    assert_eq!(sizes(strix, Scope::Smt), [2; 12]);
}

#[test]
fn this_machine_is_read() {
    let root = Path::new("/");
    let machine = Machine::read(root).unwrap();
    let allowed = homing_topology::Allowed::read(root, &machine).unwrap();
    assert!(!allowed.cpus.is_empty() && allowed.cpus.is_subset(machine.online()));
}

#[test]
fn a_folder_that_is_no_root_is_refused_by_name() {
    let empty = tempfile::tempdir().unwrap();
    let error = Machine::read(empty.path()).unwrap_err().to_string();
    assert!(error.contains(empty.path().to_str().unwrap()), "{error}");
}
