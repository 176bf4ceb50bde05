//! A system that refuses most threads. Its limit is that of a user other than root, so this needs
//! root, and a process of its own.
#![cfg(target_os = "linux")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use homing_runtime::Runtime;
use homing_topology::Machine;
use rustix::process::{Resource, Rlimit, getuid, setrlimit};

/// A user that nobody is.
const USER: u32 = 61_234;
const NAME: &str = "one_worker_and_the_monitor_are_enough";

#[test]
fn one_worker_and_the_monitor_are_enough() {
    if getuid().as_raw() == USER {
        return with_few_threads();
    }
    if !getuid().is_root() {
        return println!("skipped: only root can become another user");
    }
    let itself = std::env::current_exe().unwrap();
    let mut child = Command::new(itself);
    match child.args([NAME, "--exact"]).uid(USER).current_dir("/").status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => println!("skipped: another user cannot run this test: {error}"),
    }
}

fn with_few_threads() {
    // The test and the thread that waits for it, a worker and the monitor; and async-io's own.
    let limit = Some(if cfg!(feature = "async-io") { 5 } else { 4 });
    setrlimit(Resource::Nproc, Rlimit { current: limit, maximum: limit }).unwrap();
    let runtime = Runtime::builder().on_machine(Machine::from_grid("1x8x1").unwrap());
    let runtime = runtime.build().unwrap();
    let spawned = std::thread::Builder::new().spawn(|| ());
    assert!(spawned.is_err(), "or this shows nothing");
    let handles: Vec<_> = (0..100).map(|n| runtime.queue(move || n)).collect();
    let sum: u32 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    assert_eq!(sum, 4950);
}
