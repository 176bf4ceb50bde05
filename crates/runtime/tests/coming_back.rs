//! Threads that come back from blocking, and find their CPU in other hands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, CpuSet, Runtime, Scope, blocking};

/// Far beyond what any of this takes on a busy machine; a lost wake-up takes for ever.
const LONG: Duration = Duration::from_secs(60);

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within {LONG:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn who_comes_back_to_a_cpu_that_others_have_goes_where_nobody_is() {
    let runtime = Runtime::new().unwrap();
    if runtime.cpus().len() < 2 {
        return println!("skipped: there is one CPU");
    }
    let may_use = || rustix::thread::sched_getaffinity(None).unwrap().count();
    let spin_until = |is_over: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_over() && began.elapsed() < LONG {
            std::hint::spin_loop();
        }
    };
    let (over, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_taken, other_is_over) = (Arc::clone(&taken), Arc::clone(&over));
    let events = runtime.events();
    let (tell, told) = mpsc::channel();
    let comes_back = events.queue(move || {
        let pinned = may_use();
        // Whichever CPU was faster.
        tell.send(rustix::thread::sched_getcpu()).unwrap();
        // Its CPU is another item's before it comes back.
        blocking(|| spin_until(&|| is_taken.load(Ordering::Relaxed)));
        spin_until(&|| may_use() > 1);
        over.store(true, Ordering::Relaxed);
        (pinned, may_use())
    });
    let cpu = CpuId::new(told.recv().unwrap()).unwrap();
    let stays = runtime.workqueue("stays").affinity_scope(Scope::Cpu).affinity_strict(true);
    let stays = stays.build().unwrap();
    let other = stays.queue_on(cpu, move || {
        taken.store(true, Ordering::Relaxed);
        spin_until(&|| other_is_over.load(Ordering::Relaxed));
    });
    let (before, after) = comes_back.join().unwrap();
    other.unwrap().join().unwrap();
    assert_eq!(before, 1);
    assert!(after > 1, "it shares its CPU for as long as it runs");
    for _ in 0..100 {
        assert_eq!(runtime.queue(may_use).join().unwrap(), 1, "and is pinned again");
    }
}

/// Its CPU is another item's when it comes back, and one is idle.
#[test]
fn who_comes_back_goes_nowhere_that_its_item_may_not_use() {
    let runtime = Runtime::new().unwrap();
    if runtime.cpus().len() < 2 {
        return println!("skipped: there is one CPU");
    }
    let may_use = || rustix::thread::sched_getaffinity(None).unwrap().count();
    let cpu = runtime.cpus().first().unwrap();
    let named = |name: &str| runtime.workqueue(name);
    let strict = named("strict").affinity_scope(Scope::Cpu).affinity_strict(true);
    let masked = named("masked").cpumask(CpuSet::of(cpu));
    let stays = named("stays").affinity_scope(Scope::Cpu).affinity_strict(true).build().unwrap();
    for bound in [strict, masked, named("per_cpu").per_cpu()] {
        let bound = bound.build().unwrap();
        let (over, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_taken, is_over) = (Arc::clone(&taken), Arc::clone(&over));
        let (tell, told) = mpsc::channel();
        let item = move || {
            tell.send(()).unwrap();
            blocking(|| wait_until("it is taken", || is_taken.load(Ordering::Relaxed)));
            let began = Instant::now();
            let mut most = 0;
            while began.elapsed() < Duration::from_millis(200) {
                most = most.max(may_use());
            }
            over.store(true, Ordering::Relaxed);
            most
        };
        let comes_back = bound.queue_on(cpu, item).unwrap();
        told.recv().unwrap();
        let other = stays.queue_on(cpu, move || {
            taken.store(true, Ordering::Relaxed);
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        assert_eq!(comes_back.join().unwrap(), 1, "{}", bound.name());
        other.unwrap().join().unwrap();
    }
}
