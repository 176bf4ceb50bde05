//! A captured `/sys` and `/proc`: an error, or a machine and the CPUs of it that may be used.
#![no_main]

use std::fs;

use homing_topology::{Allowed, Machine};
use libfuzzer_sys::fuzz_target;

const CPU: &str = "sys/devices/system/cpu/";
const NODE: &str = "sys/devices/system/node/";

/// The folder of a file, by the first byte of its part of the input.
fn folder(kind: u8) -> String {
    match kind % 8 {
        0 => CPU.to_owned(),
        1 | 2 => format!("{CPU}cpu{}/topology/", kind / 8 % 4),
        3 | 4 => format!("{CPU}cpu{}/cache/index{}/", kind / 8 % 4, kind / 32 % 4),
        5 => format!("{NODE}node{}/", kind / 8 % 4),
        6 => "sys/fs/cgroup/".to_owned(),
        _ => "proc/self/".to_owned(),
    }
}

// Each part of the input is a file: a byte for the folder, its name, a line feed, its contents, and
// a 0.
fuzz_target!(|input: &[u8]| {
    let root = tempfile::tempdir_in(homing_fuzz::memory()).expect("a folder");
    for cpu in 0..2 {
        fs::create_dir_all(root.path().join(format!("{CPU}cpu{cpu}/topology"))).expect("a folder");
    }
    for part in input.split(|&byte| byte == 0).take(32) {
        let Some((&kind, part)) = part.split_first() else { continue };
        let Some(end) = part.iter().position(|&byte| byte == b'\n') else { continue };
        let Ok(name) = std::str::from_utf8(&part[..end]) else { continue };
        if name.is_empty() || name.contains(['/', '.']) && name != "cpu.max" {
            continue;
        }
        let folder = root.path().join(folder(kind));
        let _ = fs::create_dir_all(&folder);
        let _ = fs::write(folder.join(name), &part[end + 1..]);
    }
    let Ok(machine) = Machine::read(root.path()) else { return };
    homing_fuzz::check_machine(&machine);
    if let Ok(allowed) = Allowed::read(root.path(), &machine) {
        assert!(!allowed.cpus.is_empty() && allowed.cpus.is_subset(machine.online()));
        assert!(allowed.worker_cpus(&machine).is_subset(&allowed.cpus));
    }
});
