//! A sandbox without `/sys`. Only root can take it away, and only in a process of its own.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use homing_runtime::Runtime;
use homing_topology::Machine;
use rustix::process::getuid;

const NAME: &str = "a_machine_that_cannot_be_read_has_one_cache";
const CHILD: &str = "HOMING_TEST_NO_SYS";

#[test]
fn a_machine_that_cannot_be_read_has_one_cache() {
    if std::env::var_os(CHILD).is_some() {
        return without_sys();
    }
    if !getuid().is_root() {
        return println!("skipped: only root can take /sys away");
    }
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        return println!("skipped: `unshare --mount` does not work here");
    }
    let mut child = Command::new("unshare");
    child.args(["--mount", "sh", "-c", r#"mount -t tmpfs none /sys || exit 77; exec "$0" "$@""#]);
    child.arg(std::env::current_exe().unwrap()).args([NAME, "--exact"]).env(CHILD, "1");
    let status = child.status().unwrap();
    if status.code() == Some(77) {
        return println!("skipped: nothing can be mounted here");
    }
    assert!(status.success(), "{status}");
}

fn without_sys() {
    assert!(Machine::read(Path::new("/")).is_err(), "or this shows nothing");
    let machine = Machine::here().unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(machine.online().len() >= cpus, "{machine:?} has not the {cpus} CPUs");
    let runtime = Runtime::new().unwrap();
    let handles: Vec<_> = (0..100).map(|n| runtime.queue(move || n)).collect();
    let sum: u32 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    assert_eq!(sum, 4950);
}
