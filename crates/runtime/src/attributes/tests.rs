use std::thread;
use std::time::Duration;

use homing_control::{AttributeError, AttributeTree};
use homing_sched::DecisionLog;
use homing_topology::Machine;

use crate::{Nice, Runtime, Scope};

fn runtime() -> Runtime {
    Runtime::builder().on_machine(Machine::from_grid("1x2x2x2").unwrap()).build().unwrap()
}

#[test]
fn everything_that_is_listed_can_be_read_and_what_is_writable_takes_its_own_value() {
    let runtime = runtime();
    let _kinds = [
        runtime.workqueue("plain").build().unwrap(),
        runtime.workqueue("percpu").per_cpu().cpu_intensive().build().unwrap(),
        runtime.workqueue("ordered").ordered().mem_reclaim().build().unwrap(),
        runtime.workqueue("files").blocking().build().unwrap(),
        runtime.workqueue("frozen").freezable().max_active(7).highpri().build().unwrap(),
    ];
    let tree = runtime.attributes();
    let all = tree.list();
    assert!(all.is_sorted_by(|one, other| one.path < other.path));
    for attribute in &all {
        let Ok(value) = tree.get(&attribute.path) else {
            // Threads come and go.
            assert!(attribute.path.starts_with("thread/"), "{attribute:?}");
            continue;
        };
        let set = tree.set(&attribute.path, &value);
        let expected = if attribute.writable {
            Ok(())
        } else {
            Err(AttributeError::ReadOnly { path: attribute.path.clone() })
        };
        assert!(set == expected || attribute.path.starts_with("thread/"), "{attribute:?}: {set:?}");
        assert!(attribute.writable || attribute.path != "workqueue/plain/nice");
    }
    for path in
        ["", "workqueue", "workqueue/plain", "workqueue/none/nice", "pool/77", "pod/llc/cpus"]
    {
        assert_eq!(tree.get(path), Err(AttributeError::not_found(path)));
        assert_eq!(tree.set(path, "1"), Err(AttributeError::not_found(path)));
    }
}

#[test]
fn a_pool_tells_whether_its_items_block() {
    let runtime = runtime();
    let [_plain, _files] = [
        runtime.workqueue("plain").build().unwrap(),
        runtime.workqueue("files").blocking().build().unwrap(),
    ];
    let tree = runtime.attributes();
    for (workqueue, blocking) in [("plain", "blocking 0"), ("files", "blocking 1")] {
        let pool = tree.get(&format!("workqueue/{workqueue}/pool")).unwrap();
        let pool = tree.get(&format!("pool/{pool}")).unwrap();
        assert!(pool.lines().any(|line| line == blocking), "{workqueue}: {pool}");
    }
}

#[test]
fn each_cpu_tells_what_its_workers_have_done() {
    let runtime = runtime();
    let cpus = runtime.cpus();
    let first = cpus.first().unwrap();
    runtime.events().queue_on(first, || {}).unwrap().join().unwrap();
    let tree = runtime.attributes();
    let paths = tree.list().into_iter().filter(|of| of.path.starts_with("cpu/")).count();
    assert_eq!(paths, cpus.len());
    let sum_of = |key: &str| -> u64 {
        let texts = cpus.iter().map(|cpu| tree.get(&format!("cpu/{cpu}")).unwrap());
        let lines: Vec<String> =
            texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let numbers =
            lines.iter().filter_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
        numbers.sum()
    };
    // A worker counts what it has run for a CPU when its batch is over, which is after the handle
    // knows. And while threads start, another pod may be faster.
    let pulls =
        || ["home", "llc", "node", "remote"].map(|reach| sum_of(&format!("pulls_{reach} ")));
    while (sum_of("items "), pulls().iter().sum::<u64>()) != (1, 1) {
        std::thread::yield_now();
    }
    assert_eq!(sum_of("started "), 1);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let item = runtime.queue(move || ended.recv());
    while sum_of("started ") != 2 {
        std::thread::yield_now();
    }
    assert_eq!(sum_of("items "), 1);
    drop(end);
    _ = item.join();
    assert_eq!(tree.get("cpu/77"), Err(AttributeError::NotFound { path: "cpu/77".to_owned() }));
}

#[test]
fn what_is_set_is_in_force_and_reads_back() {
    let runtime = runtime();
    let queue = runtime.workqueue("q").freezable().build().unwrap();
    let tree = runtime.attributes();
    for (name, value, reads) in [
        ("affinity_scope", "smt\n", "smt"),
        ("affinity_scope", "auto", "auto (smt)"),
        ("affinity_scope", "default", "default (cache_shard)"),
        ("affinity_strict", "1", "1"),
        ("cpumask", "1-3", "1-3"),
        ("cpumask", "all", "0-7"),
        ("nice", "-20", "-20"),
        ("localize", "1", "1"),
        ("pull_cost", "400", "400"),
        ("max_active", "12", "12"),
        ("min_active", "3", "3"),
        ("max_active", "max", "max"),
        ("frozen", "1", "1"),
        ("frozen", "0", "0"),
    ] {
        let path = format!("workqueue/q/{name}");
        tree.set(&path, value).unwrap();
        assert_eq!(tree.get(&path).unwrap(), reads, "{name}");
    }
    assert_eq!((queue.nice(), queue.localize()), (Nice::HIGHPRI, true));
    assert_eq!(tree.get("workqueue/q/type").unwrap(), "unbound,S");
    assert_eq!(tree.get("workqueue/q/flags").unwrap(), "freezable highpri");
    tree.set("module/default_affinity_scope", "numa").unwrap();
    assert_eq!(runtime.events().affinity().scope, Scope::Numa);
    tree.set("module/watchdog_thresh", "2.5").unwrap();
    assert_eq!(tree.get("module/watchdog_thresh").unwrap(), "2.5");
    tree.set("module/features", "SWQUEUE").unwrap();
    assert_eq!(tree.get("module/features").unwrap(), "SWQUEUE");
    assert_eq!(tree.get("pod/cache/cpus").unwrap(), "0-3\n4-7");
    assert_eq!(tree.get("pod/system/node").unwrap(), "0");
}

#[test]
fn bad_values_are_refused_with_those_accepted_and_change_nothing() {
    let runtime = runtime();
    let _queue = runtime.workqueue("q").freezable().max_active(5).build().unwrap();
    let tree = runtime.attributes();
    for (name, value, accepted) in [
        ("affinity_scope", "llc", "cache_shard"),
        ("affinity_strict", "perhaps", "0 or 1"),
        ("cpumask", "9", "0-7"),
        ("cpumask", "x", "0-7"),
        ("nice", "20", "-20 to 19"),
        ("nice", "", "-20 to 19"),
        ("localize", "2", "0 or 1"),
        ("max_active", "0", "1 to 2048"),
        ("max_active", "-1", "1 to 2048"),
        ("min_active", "6", "0 to 5"),
        ("frozen", "maybe", "0 or 1"),
    ] {
        let path = format!("workqueue/q/{name}");
        let before = tree.get(&path).unwrap();
        let error = tree.set(&path, value).unwrap_err();
        let AttributeError::Value { accepted: listed, .. } = &error else { panic!("{error}") };
        assert!(listed.contains(accepted), "{name}={value}: {error}");
        assert_eq!(tree.get(&path).unwrap(), before, "{name}={value}");
    }
    for (name, value) in [
        ("default_affinity_scope", "default"),
        ("watchdog_thresh", "-1"),
        ("watchdog_thresh", "1e-10"),
        ("watchdog_thresh", "2e10"),
        ("cpu_intensive_thresh_us", "often"),
        ("features", "MAGIC"),
        ("record_decisions", "10001"),
    ] {
        assert!(tree.set(&format!("module/{name}"), value).is_err(), "{name}={value}");
    }
}

#[test]
fn decisions_are_recorded_while_somebody_wants_them() {
    let runtime = runtime();
    let tree = runtime.attributes();
    let decisions = || {
        let log: DecisionLog = tree.get("module/decisions").unwrap().parse().unwrap();
        assert!(log.replay().all(|(record, again)| again == Ok(record.decided())));
        log.records().len()
    };
    let work = || (0..50).for_each(|_| runtime.queue(|| ()).join().unwrap());
    work();
    assert_eq!(decisions(), 0);
    tree.set("module/record_decisions", "20").unwrap();
    assert_eq!(tree.get("module/record_decisions").unwrap(), "20");
    runtime.queue(|| ()).join().unwrap();
    let refused = tree.set("module/decisions", "1").unwrap_err();
    assert!(matches!(refused, AttributeError::ReadOnly { .. }), "{refused}");
    assert!(decisions() > 0, "they are still there");
    while decisions() == 0 {
        work();
    }
    tree.set("module/record_decisions", "3").unwrap();
    work();
    assert!(decisions() <= 3);
    tree.set("module/record_decisions", "0").unwrap();
    work();
    assert_eq!(decisions(), 0);
}

#[test]
fn counters_tell_what_has_happened() {
    let runtime = runtime();
    let queue = runtime.workqueue("q").max_active(1).build().unwrap();
    (0..10).for_each(|_| queue.execute(|| ()));
    queue.flush();
    let tree = runtime.attributes();
    let counters = tree.get("workqueue/q/counters").unwrap();
    for line in [
        "queued 10",
        "completed 10",
        "infl 0",
        "inactive 0",
        "blocked 0",
        "mayday -",
        "cm_wakeup -",
    ] {
        assert!(counters.lines().any(|known| known == line), "{line} is not in {counters}");
    }
    assert!(tree.get("workqueue/q/active").unwrap().starts_with("N0 0/1 0"));
    assert_eq!(tree.get("module/threads_refused").unwrap(), "0");
    let cpu_time: u64 = tree.get("module/cpu_time_ns").unwrap().parse().unwrap();
    assert!(cpu_time > 0 && cpu_time <= tree.get("module/cpu_time_ns").unwrap().parse().unwrap());
    queue.destroy();
    assert!(tree.get("workqueue/q/counters").is_err(), "it is gone");
}

#[test]
fn a_frozen_workqueue_that_is_being_destroyed_can_be_thawed() {
    let runtime = Runtime::new().unwrap();
    let disk = runtime.workqueue("disk").freezable().build().unwrap();
    disk.freeze(Duration::from_secs(10)).unwrap();
    let waits = disk.queue(|| 1);
    thread::scope(|scope| {
        let destroyed = scope.spawn(|| disk.destroy());
        thread::sleep(Duration::from_millis(50));
        assert!(!destroyed.is_finished());
        runtime.attributes().set("workqueue/disk/frozen", "0").unwrap();
    });
    assert_eq!(waits.join().unwrap(), 1);
    assert!(runtime.attributes().get("workqueue/disk/frozen").is_err());
}
