//! Items that block, with and without saying so; items that use their CPU for long; threads that
//! are refused; what is left behind.

mod waiting;

use std::fs;
use std::future::poll_fn;
use std::io::{PipeReader, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{
    CpuId, CpuSet, JoinHandle, Nice, Runtime, ShutdownError, Workqueue, blocking,
};
use homing_topology::Machine;
use rustix::time::{ClockId, clock_gettime};

use waiting::{LONG, wait_until};

fn one_cpu() -> CpuSet {
    Runtime::new().unwrap().cpus().first().into_iter().collect()
}

fn read_one(mut from: PipeReader) -> u8 {
    let mut byte = [0];
    from.read_exact(&mut byte).unwrap();
    byte[0]
}

#[test]
fn an_idle_runtime_is_shut_down_at_once() {
    for _ in 0..20 {
        let runtime = Runtime::new().unwrap();
        runtime.queue(|| ()).join().unwrap();
        // A worker may still be on its way from the item to sleep.
        thread::sleep(Duration::from_millis(5));
        runtime.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn work_goes_on_while_an_item_says_that_it_blocks() {
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let (from, mut to) = pipe().unwrap();
    let waits = runtime.queue(move || blocking(|| read_one(from)));
    // On the only CPU, nothing runs unless the blocked item has given it up.
    for number in 0..100 {
        assert_eq!(runtime.queue(move || number).join().unwrap(), number);
    }
    to.write_all(&[7]).unwrap();
    assert_eq!(waits.join().unwrap(), 7);
    assert_eq!(runtime.events().counters().blocked, 0, "it did say so");
}

#[test]
fn an_item_that_waits_for_one_that_blocks_leaves_its_cpu_to_others() {
    let runtime = Arc::new(Runtime::builder().cpus(one_cpu()).build().unwrap());
    let files = runtime.workqueue("files").blocking().build().unwrap();
    let (from, mut to) = pipe().unwrap();
    // It runs what it waits for on its own stack.
    let waits = {
        let files = files.clone();
        runtime.queue(move || files.queue(move || read_one(from)).join().unwrap())
    };
    for number in 0..100 {
        assert_eq!(runtime.queue(move || number).join().unwrap(), number);
    }
    to.write_all(&[7]).unwrap();
    assert_eq!(waits.join().unwrap(), 7);
    assert_eq!(runtime.events().counters().blocked + files.counters().blocked, 0);
}

#[test]
fn an_item_that_blocks_without_saying_so_is_noticed() {
    if !fs::exists("/proc/self/schedstat").unwrap_or(false) {
        println!("skipped: this kernel does not tell how long threads ran (schedstat)");
        return;
    }
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let (from, mut to) = pipe().unwrap();
    let waits = runtime.queue(move || read_one(from));
    let behind = runtime.queue(|| 1);
    assert_eq!(behind.join().unwrap(), 1);
    to.write_all(&[7]).unwrap();
    assert_eq!(waits.join().unwrap(), 7);
    assert_eq!(runtime.events().counters().blocked, 1);
}

#[test]
fn an_item_that_looks_again_and_again_whether_it_may_go_on_is_noticed() {
    if !fs::exists("/proc/self/schedstat").unwrap_or(false) {
        println!("skipped: this kernel does not tell how long threads ran (schedstat)");
        return;
    }
    let runtime = Arc::new(Runtime::builder().cpus(one_cpu()).build().unwrap());
    let looks = {
        let runtime = Arc::clone(&runtime);
        runtime.clone().queue(move || {
            let deadline = Instant::now() + LONG;
            while runtime.events().counters().blocked == 0 {
                assert!(Instant::now() < deadline, "not noticed within {LONG:?}");
                // So often that its CPU clock moves from each look of the monitor to the next.
                thread::sleep(Duration::from_micros(200));
            }
        })
    };
    looks.join().unwrap();
}

/// How soon: the best of several tries, because this machine may do other things too.
#[test]
fn an_item_that_blocks_without_saying_so_is_noticed_within_milliseconds() {
    if !fs::exists("/proc/self/schedstat").unwrap_or(false) {
        println!("skipped: this kernel does not tell how long threads ran (schedstat)");
        return;
    }
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let best = (0..30).map(|_| {
        let (from, mut to) = pipe().unwrap();
        let (begun, begins) = mpsc::channel();
        let waits = runtime.queue(move || {
            begun.send(Instant::now()).unwrap();
            read_one(from)
        });
        let began = begins.recv().unwrap();
        let behind = runtime.queue(Instant::now);
        let noticed = behind.join().unwrap() - began;
        to.write_all(&[7]).unwrap();
        assert_eq!(waits.join().unwrap(), 7);
        noticed
    });
    let best = best.min().unwrap();
    assert!(best < Duration::from_millis(8), "{best:?} at best");
}

#[test]
fn an_item_that_uses_its_cpu_for_long_is_counted_once_and_keeps_it() {
    let runtime = Runtime::builder()
        .cpus(one_cpu())
        .cpu_intensive_thresh(Duration::from_millis(10))
        .build()
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let spins = {
        let stop = Arc::clone(&stop);
        runtime.queue(move || {
            let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
            let enough = used() + Duration::from_millis(10);
            // On a loaded machine, it may take long to get so much of the CPU.
            while !stop.load(Ordering::Relaxed) || used() < enough {
                std::hint::spin_loop();
            }
        })
    };
    wait_until("being counted", || runtime.events().counters().cpu_intensive > 0);
    stop.store(true, Ordering::Relaxed);
    spins.join().unwrap();
    let counters = runtime.events().counters();
    assert_eq!((counters.cpu_intensive, counters.blocked), (1, 0));
    // Booked after the result is out.
    wait_until("booking", || runtime.events().counters().cpu_time_ns >= 10_000_000);
}

#[test]
fn spares_retire_when_nothing_blocks_any_more() {
    let runtime =
        Runtime::builder().cpus(one_cpu()).keep_alive(Duration::from_millis(20)).build().unwrap();
    let pipes: Vec<_> = (0..8).map(|_| pipe().unwrap()).collect();
    let (from, to): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    let blocked: Vec<_> =
        from.into_iter().map(|from| runtime.queue(move || blocking(|| read_one(from)))).collect();
    wait_until("a thread for each that blocks", || runtime.thread_count() >= 8);
    for mut to in to {
        to.write_all(&[1]).unwrap();
    }
    for handle in blocked {
        assert_eq!(handle.join().unwrap(), 1);
    }
    wait_until("retiring", || runtime.thread_count() <= 2);
}

/// CPU time of the threads whose name begins with `prefix`, if the kernel tells.
fn on_cpu(prefix: &str) -> Duration {
    let ns_of = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let ns: u64 = schedstat.split_ascii_whitespace().next()?.parse().ok()?;
        name.starts_with(prefix).then_some(ns)
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(tasks.flatten().filter_map(ns_of).sum())
}

#[test]
fn the_last_spare_sleeps_however_short_or_long_its_patience() {
    for keep_alive in [Duration::ZERO, Duration::MAX] {
        let runtime = Runtime::builder().cpus(one_cpu()).thread_name("last").keep_alive(keep_alive);
        let runtime = runtime.build().unwrap();
        let (from, mut to) = pipe().unwrap();
        let waits = runtime.queue(move || blocking(|| read_one(from)));
        runtime.queue(|| ()).join().unwrap();
        to.write_all(&[7]).unwrap();
        waits.join().unwrap();
        wait_until("coming to rest", || runtime.thread_count() == 2);
        let before = on_cpu("last");
        thread::sleep(Duration::from_millis(300));
        let used = on_cpu("last").saturating_sub(before);
        assert!(used < Duration::from_millis(100), "{used:?} with {keep_alive:?}");
    }
}

/// A runtime of one worker that gets no further threads while the flag is set.
fn refusing() -> (Runtime, Arc<AtomicBool>) {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = Runtime::builder().cpus(one_cpu()).refuse_threads(Arc::clone(&refuse));
    let runtime = runtime.build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    (runtime, refuse)
}

#[test]
fn without_new_threads_work_is_late_but_never_lost() {
    let (runtime, refuse) = refusing();
    let (from, mut to) = pipe().unwrap();
    let waits = runtime.queue(move || blocking(|| read_one(from)));
    let ran = Arc::new(AtomicUsize::new(0));
    let behind: Vec<_> = (0..100)
        .map(|_| {
            let ran = Arc::clone(&ran);
            runtime.queue(move || ran.fetch_add(1, Ordering::Relaxed))
        })
        .collect();
    wait_until("a refusal", || runtime.threads_refused() > 0);
    assert_eq!(ran.load(Ordering::Relaxed), 0, "there is no thread to run them");
    to.write_all(&[7]).unwrap();
    assert_eq!(waits.join().unwrap(), 7);
    for handle in behind {
        handle.join().unwrap();
    }
    // And all is well again when threads can be had.
    refuse.store(false, Ordering::Relaxed);
    let (from, mut to) = pipe().unwrap();
    let waits = runtime.queue(move || blocking(|| read_one(from)));
    assert_eq!(runtime.queue(|| 1).join().unwrap(), 1);
    to.write_all(&[8]).unwrap();
    assert_eq!(waits.join().unwrap(), 8);
}

#[test]
fn a_system_that_refuses_threads_is_asked_ever_more_rarely() {
    let (runtime, refuse) = refusing();
    let (from, mut to) = pipe().unwrap();
    let waits = runtime.queue(move || blocking(|| read_one(from)));
    let behind = runtime.queue(|| 1);
    wait_until("a refusal", || runtime.threads_refused() > 0);
    let before = runtime.threads_refused();
    thread::sleep(Duration::from_secs(1));
    let asked = runtime.threads_refused() - before;
    // The monitor looks a thousand times meanwhile.
    assert!((5..100).contains(&asked), "asked {asked} times in a second");
    refuse.store(false, Ordering::Relaxed);
    assert_eq!(behind.join().unwrap(), 1, "once threads can be had, one is created soon");
    to.write_all(&[7]).unwrap();
    assert_eq!(waits.join().unwrap(), 7);
}

/// A chain of `depth` futures, each of which an item waits for.
fn chain(runtime: &Arc<Runtime>, depth: u32) -> u32 {
    if depth == 0 {
        return 0;
    }
    let next = {
        let own = Arc::clone(runtime);
        async move {
            own.queue({
                let own = Arc::clone(&own);
                move || chain(&own, depth - 1)
            })
            .await
        }
    };
    runtime.spawn(next).join().unwrap().unwrap() + 1
}

#[test]
fn without_new_threads_items_that_wait_for_others_run_them() {
    let (runtime, _) = refusing();
    let runtime = Arc::new(runtime);
    let ran = Arc::new(AtomicUsize::new(0));
    // Each future of a chain takes a thread that waits for it, and there is only one thread.
    for depth in [1, 2, 30, 200] {
        let own = Arc::clone(&runtime);
        assert_eq!(runtime.queue(move || chain(&own, depth)).join().unwrap(), depth);
    }
    // Items that nobody joins run, too.
    let other = runtime.workqueue("other").max_active(1).build().unwrap();
    let item = {
        let ran = Arc::clone(&ran);
        runtime.queue(move || {
            for _ in 0..100 {
                let ran = Arc::clone(&ran);
                other.execute(move || _ = ran.fetch_add(1, Ordering::Relaxed));
            }
            other.flush();
            assert_eq!(ran.load(Ordering::Relaxed), 100);
        })
    };
    item.join().unwrap();
    assert!(runtime.threads_refused() > 0);
    assert_eq!(runtime.thread_count(), 1);
}

#[test]
fn without_new_threads_strict_items_need_not_wait_for_who_waits_for_them() {
    let refuse = Arc::new(AtomicBool::new(false));
    let machine = Machine::from_grid("1x1x2x1").unwrap();
    let runtime = Runtime::builder().on_machine(machine).refuse_threads(Arc::clone(&refuse));
    let runtime = runtime.build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    let here = runtime.workqueue("here").per_cpu().build().unwrap();
    let cpu = CpuId::new(0).unwrap();
    let inner = here.clone();
    let waits = here.queue_on(cpu, move || inner.queue_on(cpu, || 3).unwrap().join().unwrap());
    assert_eq!(waits.unwrap().join().unwrap(), 3, "the other CPU's worker may not take it");
}

#[test]
fn a_deadline_cancels_what_is_left_and_names_what_still_runs() {
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let (stop, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let polled = Arc::new(AtomicBool::new(false));
    let asleep = {
        let polled = Arc::clone(&polled);
        runtime.spawn(std::future::poll_fn(move |_| {
            polled.store(true, Ordering::Relaxed);
            std::task::Poll::<()>::Pending
        }))
    };
    wait_until("the future to wait", || polled.load(Ordering::Relaxed));
    let spins = {
        let (stop, running) = (Arc::clone(&stop), Arc::clone(&running));
        runtime.queue(move || {
            running.store(true, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        })
    };
    wait_until("running", || running.load(Ordering::Relaxed));
    let late: Vec<_> = (0..5).map(|_| runtime.queue(|| ())).collect();
    let error = runtime.shutdown(Duration::from_millis(30)).unwrap_err();
    assert_eq!(error, ShutdownError { cancelled: 6, running: 1 });
    wait_until("the end of the future", || asleep.is_finished());
    assert!(late.into_iter().chain([asleep]).all(|handle| handle.join().is_err()));
    stop.store(true, Ordering::Relaxed);
    spins.join().unwrap();
}

/// One worker has always taken some more short items than it has begun; another one's item does not
/// end.
#[test]
fn what_a_worker_has_taken_and_not_begun_is_cancelled_at_the_deadline_too() {
    (0..4).for_each(|_| miss_a_deadline());
}

fn miss_a_deadline() {
    let machine = Machine::from_grid("1x1x2x1").unwrap();
    let runtime = Runtime::builder().on_machine(machine).build().unwrap();
    let (stop, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let spins = {
        let (stop, running) = (Arc::clone(&stop), Arc::clone(&running));
        runtime.queue(move || {
            running.store(true, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        })
    };
    wait_until("running", || running.load(Ordering::Relaxed));
    let short = || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_nanos(300) {}
    };
    // So that the runtime knows that they are short.
    for handle in runtime.events().queue_batch((0..10_000).map(|_| short)) {
        handle.join().unwrap();
    }
    let late = runtime.events().queue_batch((0..1_000_000).map(|_| short));
    let error = runtime.shutdown(Duration::from_millis(5)).unwrap_err();
    assert!(error.cancelled > 0 && error.running >= 1, "{error:?}");
    wait_until("the end of all", || late.iter().all(JoinHandle::is_finished));
    stop.store(true, Ordering::Relaxed);
    spins.join().unwrap();
}

/// The names of this process's threads that begin with `prefix`.
#[cfg(target_os = "linux")]
fn threads(prefix: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

/// Queues an item that blocks and is queued again, until `stop`.
fn again(crowd: Workqueue, stop: Arc<AtomicBool>) {
    crowd.clone().execute(move || {
        // Undeclared: the monitor has to notice each of them.
        thread::sleep(Duration::from_millis(20));
        if !stop.load(Ordering::Relaxed) {
            again(crowd, stop);
        }
    });
}

/// An item that computes for 200 us and queues itself again.
fn compute_again(queue: &Workqueue, ran: &Arc<AtomicUsize>, is_over: &Arc<AtomicBool>) {
    let (again, ran, is_over) = (queue.clone(), Arc::clone(ran), Arc::clone(is_over));
    queue.execute(move || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
        ran.fetch_add(1, Ordering::Relaxed);
        if !is_over.load(Ordering::Relaxed) {
            compute_again(&again, &ran, &is_over);
        }
    });
}

/// What they use counts, although another thread has their CPU by then.
#[test]
fn items_that_are_said_to_block_and_compute_leave_others_their_share() {
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let files = runtime.workqueue("files").blocking().build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let [ran, others] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    (0..8).for_each(|_| compute_again(&files, &ran, &is_over));
    compute_again(runtime.events(), &others, &is_over);
    wait_until("enough of them", || ran.load(Ordering::Relaxed) >= 2_000);
    is_over.store(true, Ordering::Relaxed);
    let others = others.load(Ordering::Relaxed);
    // About as many; a dozen when what those used did not count.
    assert!(others > 400, "{others}");
}

/// Each time an item blocks, another thread goes on for its CPU.
#[test]
fn items_that_block_do_not_starve_those_of_other_workqueues() {
    let runtime = Runtime::builder().cpus(one_cpu()).build().unwrap();
    let crowd = runtime.workqueue("crowd").build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    // In time, each of them has a thread. Until then, these are more than can be noticed.
    (0..1_000).for_each(|_| again(crowd.clone(), Arc::clone(&stop)));
    thread::sleep(Duration::from_millis(100));
    let kind = runtime.workqueue("kind").nice(Nice::HIGHPRI).build().unwrap();
    let began = Instant::now();
    let item = kind.queue(move || began.elapsed());
    while !item.is_finished() && began.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Relaxed);
    // Some milliseconds; before, it did not begin while the crowd went on.
    let waited = item.join().unwrap();
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    runtime.shutdown_now();
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_left_of_a_runtime() {
    let alive = Arc::new(());
    for round in 0..20 {
        let runtime = Runtime::builder().thread_name("leaktest").build().unwrap();
        let held = Arc::clone(&alive);
        runtime.queue(move || drop(held)).detach();
        let held = Arc::clone(&alive);
        let never = runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        if round % 2 == 0 {
            runtime.shutdown(LONG).unwrap();
        } else {
            let held = Arc::clone(&alive);
            runtime.queue(move || drop(held)).detach();
            runtime.shutdown_now();
        }
        assert!(never.join().is_err());
        assert_eq!(Arc::strong_count(&alive), 1, "round {round}");
        // A thread that was joined is still listed for a moment.
        wait_until("the end of all threads", || threads("leaktest") == 0);
    }
}

/// Nobody calls it any more, so it has to be told.
#[cfg(target_os = "linux")]
#[test]
fn a_rescuers_thread_ends_with_the_last_of_its_workqueue() {
    let runtime = Runtime::builder().thread_name("resc").build().unwrap();
    let is_there = |so: bool| {
        wait_until("it begins or ends", || (threads("resc/R-one") == 1) == so);
    };
    let reclaim = || runtime.workqueue("one").mem_reclaim().build().unwrap();
    let idle = reclaim();
    is_there(true);
    drop(idle);
    is_there(false);
    // It stays for a future that sleeps.
    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let (sleeps, mut polls) = (Arc::clone(&waker), 0);
    let workqueue = reclaim();
    let future = workqueue.spawn(poll_fn(move |context| {
        *sleeps.lock().unwrap() = Some(context.waker().clone());
        polls += 1;
        if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
    }));
    workqueue.flush();
    drop(workqueue);
    thread::sleep(Duration::from_millis(250));
    is_there(true);
    waker.lock().unwrap().take().unwrap().wake();
    future.join().unwrap();
    is_there(false);
    // And for an item, which does not tell it that it ends.
    let (reader, mut writer) = pipe().unwrap();
    let workqueue = reclaim();
    let item = workqueue.queue(move || blocking(|| read_one(reader)));
    drop(workqueue);
    thread::sleep(Duration::from_millis(250));
    is_there(true);
    writer.write_all(&[7]).unwrap();
    assert_eq!(item.join().unwrap(), 7);
    is_there(false);
}
