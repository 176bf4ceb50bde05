//! The whole runtime under a randomized scheduler: `cargo xtask shuttle`. Threads are simulated and
//! time passes only in short sleeps, so a thread that sleeps without being woken is a deadlock,
//! which is reported.

use std::sync::atomic::AtomicUsize as Plain;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use homing_topology::{Machine, Scope};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex, mpsc};
use shuttle::thread;

use crate::{JoinError, Runtime, blocking};

/// How many schedules are tried for each test. `HOMING_SHUTTLE_ITERATIONS` raises it.
fn iterations() -> usize {
    let given = std::env::var("HOMING_SHUTTLE_ITERATIONS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(3000)
}

pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    // Priorities that change a few times find what pure randomness seldom does.
    shuttle::check_pct(model, iterations(), 4);
}

pub(crate) fn runtime(grid: &str) -> Runtime {
    let machine = Machine::from_grid(grid).unwrap();
    Runtime::builder().on_machine(machine).keep_alive(Duration::ZERO).build().unwrap()
}

#[test]
fn everything_that_is_queued_runs_and_the_runtime_ends() {
    check(|| everything_runs("1x2x1"));
}

#[test]
fn everything_runs_that_waits_in_another_cache() {
    check(|| everything_runs("2x1x1"));
}

#[test]
fn everything_runs_that_waits_on_another_node() {
    check(|| everything_runs("2x1x1x1"));
}

/// All items run on the CPUs of this grid, whoever is awake, and strict work on its own CPUs.
fn everything_runs(grid: &str) {
    let runtime = runtime(grid);
    let ran = Arc::new(AtomicUsize::new(0));
    let queues = [(Scope::Cpu, false), (Scope::System, false), (Scope::Cache, true)];
    let queues = queues.map(|(scope, strict)| {
        runtime.workqueue("test").affinity_scope(scope).affinity_strict(strict).build().unwrap()
    });
    let cpus: Vec<_> = runtime.cpus().iter().collect();
    let issuers = [0, 1].map(|issuer: usize| {
        let (queues, ran, cpu) = (queues.clone(), Arc::clone(&ran), cpus[issuer]);
        thread::spawn(move || {
            for item in 0..3 {
                let ran = Arc::clone(&ran);
                let run = move || _ = ran.fetch_add(1, Ordering::SeqCst);
                let queue = &queues[(issuer + item) % queues.len()];
                drop(queue.queue_on(cpu, run).unwrap());
            }
        })
    });
    issuers.into_iter().for_each(|issuer| issuer.join().unwrap());
    drop(runtime);
    assert_eq!(ran.load(Ordering::SeqCst), 6);
}

#[test]
fn results_arrive_whether_the_item_is_fast_or_the_handle() {
    check(|| {
        let runtime = runtime("1x2x1");
        let inner = runtime.events().clone();
        let outer = runtime.queue(move || inner.queue(|| 20).join().unwrap() + 1);
        let future = {
            let events = runtime.events().clone();
            runtime.spawn(async move { events.queue(|| 20).await.unwrap() + 1 })
        };
        assert_eq!(outer.join().unwrap() + future.join().unwrap(), 42);
    });
}

#[test]
fn an_item_that_blocks_lets_the_next_one_run() {
    check(|| {
        let runtime = runtime("1x1x1");
        let (sender, receiver) = mpsc::channel::<u32>();
        let receiver = Mutex::new(receiver);
        let waits = runtime.queue(move || blocking(|| receiver.lock().unwrap().recv().unwrap()));
        let sends = runtime.queue(move || sender.send(7).unwrap());
        assert_eq!(waits.join().unwrap(), 7);
        sends.join().unwrap();
    });
}

/// Whoever comes back, and whoever has the CPU meanwhile.
#[test]
fn items_of_a_blocking_workqueue_run_once_and_others_beside_them() {
    check(|| {
        let runtime = runtime("1x1x1");
        let blocks = runtime.workqueue("blocks").blocking().build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for item in 0..4 {
            let ran = Arc::clone(&ran);
            let run = move || {
                thread::yield_now();
                ran.fetch_add(1, Ordering::SeqCst);
            };
            if item % 2 == 0 { blocks.execute(run) } else { runtime.events().execute(run) }
        }
        let last = blocks.queue(|| thread::yield_now());
        last.join().unwrap();
        drop(runtime);
        assert_eq!(ran.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn aborting_and_shutting_down_race_with_running_and_nothing_hangs() {
    check(|| {
        let runtime = runtime("1x2x1");
        let ran = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..3)
            .map(|_| {
                let ran = Arc::clone(&ran);
                runtime.queue(move || ran.fetch_add(1, Ordering::SeqCst))
            })
            .collect();
        let never = runtime.spawn(std::future::pending::<()>());
        let events = runtime.events().clone();
        let waits = runtime.queue(move || drop(events.spawn(async { 1 }).join()));
        let aborted = handles[1].abort();
        let stopper = thread::spawn(move || runtime.shutdown_now());
        let mut cancelled = 0;
        for (index, handle) in handles.into_iter().enumerate() {
            match handle.join() {
                Ok(_) => assert!(index != 1 || !aborted),
                Err(JoinError::Cancelled) => cancelled += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(never.join().is_err());
        drop(waits.join());
        stopper.join().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst) + cancelled, 3);
    });
}

#[test]
fn a_scope_ends_after_its_items() {
    check(|| {
        let runtime = runtime("1x2x1");
        let mut numbers = [1, 2, 3];
        runtime.scope(|scope| {
            for number in &mut numbers {
                scope.queue(move || *number *= 2);
            }
        });
        assert_eq!(numbers, [2, 4, 6]);
    });
}

#[test]
fn refused_threads_degrade_and_never_hang() {
    check(|| {
        let refuse = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let machine = Machine::from_grid("1x1x1").unwrap();
        let runtime = Runtime::builder()
            .on_machine(machine)
            .refuse_threads(std::sync::Arc::clone(&refuse))
            .build()
            .unwrap();
        refuse.store(true, Relaxed);
        let runs = Plain::new(0);
        runtime.scope(|scope| {
            for _ in 0..2 {
                scope.queue(|| blocking(|| _ = runs.fetch_add(1, Relaxed)));
            }
        });
        assert_eq!(runs.load(Relaxed), 2);
        // An item that does not block has a thread to run it, too.
        let set = Arc::new(AtomicBool::new(false));
        let setter = Arc::clone(&set);
        runtime.queue(move || setter.store(true, Ordering::SeqCst)).join().unwrap();
        assert!(set.load(Ordering::SeqCst));
    });
}

#[test]
fn a_thread_that_waits_runs_what_it_waits_for_where_there_is_no_other() {
    check(|| {
        let refuse = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let machine = Machine::from_grid("1x1x1").unwrap();
        let runtime =
            Runtime::builder().on_machine(machine).refuse_threads(std::sync::Arc::clone(&refuse));
        let runtime = runtime.build().unwrap();
        refuse.store(true, Relaxed);
        let events = runtime.events().clone();
        let waits = runtime.queue(move || {
            let inner = events.clone();
            let future = async move { inner.queue(|| 20).await.unwrap() + 1 };
            events.spawn(future).join().unwrap() + 1
        });
        let other = runtime.queue(|| 1);
        assert_eq!((waits.join().unwrap(), other.join().unwrap()), (22, 1));
    });
}
