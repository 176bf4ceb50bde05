//! Whatever text describes a machine, reading it ends in a machine or an error, never in a panic;
//! and a machine that comes of it keeps its promises.

#[path = "support/promises.rs"]
mod promises;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use homing_topology::{Allowed, CpuId, CpuSet, Machine};
use promises::check;
use proptest::prelude::*;

/// Text as the kernel, hwloc or a clumsy hand might write it.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9a-fx,:/ -]{0,24}",
        "[0-9]{0,25}",
        "[0-9]{1,4}-[0-9]{1,4}",
        any::<String>(),
        Just("\0\n".to_owned()),
    ]
}

/// Files that a machine is read from; the numbers are those of CPUs, nodes and caches.
fn file() -> impl Strategy<Value = String> {
    const NAMES: [&str; 22] = [
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/cpuN/online",
        "sys/devices/system/cpu/cpuN/topology/core_cpus",
        "sys/devices/system/cpu/cpuN/topology/core_cpus_list",
        "sys/devices/system/cpu/cpuN/topology/core_id",
        "sys/devices/system/cpu/cpuN/topology/package_cpus",
        "sys/devices/system/cpu/cpuN/topology/package_cpus_list",
        "sys/devices/system/cpu/cpuN/cache/indexN/level",
        "sys/devices/system/cpu/cpuN/cache/indexN/type",
        "sys/devices/system/cpu/cpuN/cache/indexN/shared_cpu_map",
        "sys/devices/system/cpu/cpuN/cache/indexN/shared_cpu_list",
        "sys/devices/system/node/nodeN/cpumap",
        "sys/devices/system/node/nodeN/cpulist",
        "sys/devices/system/node/nodeN/distance",
        "sys/devices/system/node/nodeN/access0/initiators/nodeN/x",
        "proc/cpuinfo",
        "proc/self/status",
        "proc/self/cgroup",
        "proc/self/mounts",
        "sys/fs/cgroup/cpu.max",
        "sys/fs/cgroup/cpuset.cpus.effective",
        "sys/fs/cgroup/cpu.cfs_quota_us",
    ];
    (prop::sample::select(&NAMES[..]), 0..4_u32, prop::sample::select(&["1", "1024", "x"][..]))
        .prop_map(|(name, number, odd)| {
            let number = if number == 3 { odd.to_owned() } else { number.to_string() };
            name.replace('N', &number)
        })
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => text(),
        1 => text().prop_map(|list| format!("Cpus_allowed_list:\t{list}\n")),
        1 => text().prop_map(|path| format!("0::/{path}\n1:cpu,cpuset:/\n")),
        1 => Just("cg /sys/fs/cgroup cgroup2 rw 0 0\ncg /sys/fs/cgroup cgroup cpu 0 0\n".to_owned()),
        1 => "(max|[0-9]{1,20}) [0-9]{1,20}",
        1 => Just("Unified".to_owned()),
        1 => Just("vendor_id\t: AuthenticAMD\ncpu family\t: 21\n".to_owned()),
    ]
}

fn read(root: &Path) {
    let Ok(machine) = Machine::read(root) else { return };
    check(&machine);
    // A machine that was recorded can be read elsewhere.
    let written = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&written).unwrap(), machine);
    if let Ok(allowed) = Allowed::read(root, &machine) {
        assert!(!allowed.cpus.is_empty() && allowed.cpus.is_subset(machine.online()));
        let workers = allowed.worker_cpus(&machine);
        assert!(!workers.is_empty() && workers.is_subset(&allowed.cpus));
    }
}

/// CPU 0 reports no cache; the others report one that CPU 0 shares.
#[test]
fn a_cache_that_its_first_cpu_does_not_know() {
    let root = tempfile::tempdir().unwrap();
    for cpu in 0..4 {
        let folder = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}"));
        fs::create_dir_all(folder.join("topology")).unwrap();
        if cpu > 0 {
            let cache = folder.join("cache/index3");
            fs::create_dir_all(&cache).unwrap();
            for (name, text) in [("level", "3"), ("type", "Unified"), ("shared_cpu_list", "0-3")] {
                fs::write(cache.join(name), text).unwrap();
            }
        }
    }
    let machine = Machine::read(root.path()).unwrap();
    let llcs: Vec<_> = machine.cpus().iter().map(|cpu| cpu.llc.map(CpuId::index)).collect();
    assert_eq!(llcs, [None, Some(1), Some(1), Some(1)]);
    read(root.path());
}

proptest! {
    #[test]
    fn any_sys_and_proc(files in prop::collection::vec((file(), content()), 0..24)) {
        let root = tempfile::tempdir().unwrap();
        for cpu in 0..3 {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::write(path, content);
        }
        read(root.path());
    }

    #[test]
    fn any_grid(grid in prop_oneof![any::<String>(), "[0-9 x+-]{0,20}", "([0-9]{1,2}x){2,5}[1-9]"]) {
        if let Ok(machine) = Machine::from_grid(&grid) {
            check(&machine);
        }
    }

    #[test]
    fn any_set_of_cpus(list in text()) {
        if let Ok(set) = list.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
        let _ = CpuSet::from_mask(&list);
    }

    #[test]
    fn any_xml(text in any::<String>(), attributes in prop::collection::vec(
        (prop::sample::select(&["PU", "Core", "Package", "NUMANode", "L3Cache", "L1iCache"][..]),
         0_u32..1030, text(), any::<bool>()), 0..12))
    {
        let _ = Machine::from_hwloc_xml(&text);
        let mut xml = String::from("<topology>");
        let mut open = 0;
        for (kind, index, set, nested) in &attributes {
            let set: String = set.chars().filter(|c| c.is_ascii_alphanumeric() || *c == ',').collect();
            let _ = write!(xml, "<object type=\"{kind}\" os_index=\"{index}\" cpuset=\"{set}\">");
            if *nested { open += 1 } else { xml += "</object>" }
        }
        xml += &"</object>".repeat(open);
        xml += "<distances2 type=\"NUMANode\"><indexes>0 1</indexes><u64values>1 2 3 4</u64values>";
        if let Ok(machine) = Machine::from_hwloc_xml(&(xml + "</distances2></topology>")) {
            check(&machine);
        }
    }
}
