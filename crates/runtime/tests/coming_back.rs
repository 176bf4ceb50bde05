//! Threads that come back from blocking, and find their CPU in other hands.

mod waiting;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, CpuSet, Runtime, Scope, Workqueue, blocking};

use waiting::{LONG, wait_until};

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

/// An item that sleeps, computes, and queues itself again.
fn again(
    queue: &Workqueue,
    sleeps: Duration,
    computes: Duration,
    (ran, is_over): (&Arc<AtomicUsize>, &Arc<AtomicBool>),
) {
    let (on, ran, is_over) = (queue.clone(), Arc::clone(ran), Arc::clone(is_over));
    queue.execute(move || {
        if !sleeps.is_zero() {
            thread::sleep(sleeps);
        }
        let began = Instant::now();
        while began.elapsed() < computes {
            std::hint::spin_loop();
        }
        ran.fetch_add(1, Ordering::Relaxed);
        if !is_over.load(Ordering::Relaxed) {
            again(&on, sleeps, computes, (&ran, &is_over));
        }
    });
}

/// Runs `count` items that block again and again beside one that only computes, on one CPU, until
/// the former have run so often. Returns how often the latter has run.
fn beside(runtime: &Runtime, count: usize, computes: Duration, enough: usize) -> usize {
    let files = runtime.workqueue("files").blocking().build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let [ran, others] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (millisecond, short) = (Duration::from_millis(1), Duration::from_micros(200));
    again(runtime.events(), Duration::ZERO, short, (&others, &is_over));
    (0..count).for_each(|_| again(&files, millisecond, computes, (&ran, &is_over)));
    wait_until("enough of them", || ran.load(Ordering::Relaxed) >= enough);
    is_over.store(true, Ordering::Relaxed);
    others.load(Ordering::Relaxed)
}

fn one_cpu() -> CpuSet {
    Runtime::new().unwrap().cpus().first().into_iter().collect()
}

/// A thread that comes back may begin the next of them, without a CPU of its own.
#[test]
fn however_many_items_come_back_and_compute_others_have_their_share() {
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let others = beside(&runtime, 64, Duration::from_micros(200), 2_000);
    // About as many.
    assert!(others > 400, "{others}");
}

#[cfg(target_os = "linux")]
#[test]
fn items_that_block_again_and_again_take_no_new_threads() {
    let runtime = Runtime::builder().thread_name("again").cpus(one_cpu()).build().unwrap();
    beside(&runtime, 9, Duration::ZERO, 2_000);
    // Threads are numbered as they are made.
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let last =
        names.filter_map(|name| name.trim().strip_prefix("again/")?.parse::<u32>().ok()).max();
    // A thread for each of them, one for the CPU, the monitor, and some spares.
    assert!(last.unwrap() < 40, "{last:?}");
}

/// An item that queues itself again, and sleeps one time in twenty.
fn seldom(files: &Workqueue, ran: &Arc<AtomicUsize>, is_over: &Arc<AtomicBool>) {
    let (on, ran, is_over) = (files.clone(), Arc::clone(ran), Arc::clone(is_over));
    files.execute(move || {
        if ran.fetch_add(1, Ordering::Relaxed).is_multiple_of(20) {
            thread::sleep(Duration::from_millis(1));
        }
        if !is_over.load(Ordering::Relaxed) {
            seldom(&on, &ran, &is_over);
        }
    });
}

/// Most of them do not block, so a thread that comes back finds more and more of them.
#[test]
fn items_of_a_blocking_workqueue_that_seldom_block_leave_others_their_share() {
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let files = runtime.workqueue("files").blocking().build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let [ran, others] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    (0..64).for_each(|_| seldom(&files, &ran, &is_over));
    let short = Duration::from_micros(200);
    again(runtime.events(), Duration::ZERO, short, (&others, &is_over));
    wait_until("enough of it", || others.load(Ordering::Relaxed) >= 2_000);
    is_over.store(true, Ordering::Relaxed);
    let all: u64 = runtime.cpu_counters().iter().map(|(_, counters)| counters.cpu_time_ns).sum();
    let its = runtime.events().counters().cpu_time_ns;
    // About 0.4: the rest is what the others take, and changes of threads. A sixth when its turn
    // was overlooked while it ran.
    let share = its as f64 / all as f64;
    assert!(share > 0.27, "{share}");
}
