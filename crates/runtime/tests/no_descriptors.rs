//! A process that can no longer open any file. This is a program of its own, because the limit is
//! the whole process's.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use homing_runtime::Runtime;
use homing_topology::{Allowed, Machine, Memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits what is opened from now on.
fn limit_descriptors(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[test]
fn without_descriptors_a_runtime_works_on() {
    let before = getrlimit(Resource::Nofile).current;
    let builder = || Runtime::builder().on_machine(Machine::from_grid("1x1x1").unwrap());
    // Before anybody has started a reactor.
    #[cfg(feature = "async-io")]
    {
        limit_descriptors(Some(0));
        let error = builder().build().unwrap_err();
        limit_descriptors(before);
        assert!(error.to_string().contains("file descriptors"), "{error}");
    }
    let runtime = builder().build().unwrap();
    limit_descriptors(Some(0));
    assert!(std::fs::File::open("/").is_err(), "or this shows nothing");
    works_on(&runtime);
    // With async-io, the reactor has its descriptors since the first one.
    let built_without = builder().build().unwrap();
    works_on(&built_without);
    limit_descriptors(before);
}

fn works_on(runtime: &Runtime) {
    assert_eq!(runtime.queue(|| 1).join().unwrap(), 1);
    // A limit that cannot be read now is not taken for none.
    let (root, machine) = (std::path::Path::new("/"), Machine::from_grid("1x1x1").unwrap());
    assert!(Allowed::read(root, &machine).is_err() && Memory::read(root).is_err());
    // The item does not say that it blocks, and is found out nevertheless: the other one has no
    // other CPU.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let blocks = runtime.queue(move || wait.recv());
    while runtime.events().counters().started < 2 {
        std::thread::yield_now();
    }
    let other = runtime.queue(|| 2);
    let began = Instant::now();
    while !other.is_finished() && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let found_out = other.is_finished();
    go.send(()).unwrap();
    blocks.join().unwrap().unwrap();
    assert!(found_out, "the item that blocks has kept its CPU");
    assert_eq!(runtime.events().counters().blocked, 1);
}
