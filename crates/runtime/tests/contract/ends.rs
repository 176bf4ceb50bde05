//! Ends: of the runtime, of what panics when it is dropped. Nothing hangs, nothing is forgotten.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{Nice, Runtime, Workqueue, blocking};

use crate::helpers::{Door, SOON, on, panic_of, until, with_a_rescuer};

/// How many futures await one another: more than fit on a stack of 2 MiB one within the other.
const CHAIN: usize = 20_000;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(thread::panicking(), "on purpose, when dropped");
    }
}

#[test]
fn a_work_item_that_panics_when_it_is_dropped_takes_no_thread_with_it() {
    let runtime = on("1x1x1").build().unwrap();
    let gone = runtime.workqueue("gone").build().unwrap();
    for delay in [Duration::from_millis(20), SOON * 100] {
        let bomb = Bomb;
        let work = gone.work(move |_| _ = &bomb);
        assert!(work.queue_delayed(delay));
        // The timer has the last reference now.
    }
    gone.destroy();
    thread::sleep(Duration::from_millis(60));
    let other = runtime.workqueue("other").build().unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    let work = other.work(move |_| runs.store(true, Ordering::Relaxed));
    assert!(work.queue_delayed(Duration::from_millis(1)));
    until("timers fire on", || ran.load(Ordering::Relaxed));
    // The other bomb goes off here.
    drop(runtime);
}

#[test]
fn what_is_queued_after_the_end_is_refused_whatever_its_attributes() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("queue").build().unwrap();
    let builder = runtime.workqueue("late").highpri().mem_reclaim();
    drop(runtime);
    queue.set_nice(Nice::new(7).unwrap()).unwrap();
    assert!(queue.queue(|| ()).join().is_err());
    let late = builder.build().unwrap();
    assert!(late.queue(|| ()).join().is_err());
    late.flush();
    late.destroy();
}

/// Queues an item that queues the next one, and so on.
fn link(queue: &Workqueue, left: usize, counts: Arc<AtomicUsize>) {
    let next = queue.clone();
    counts.fetch_add(1, Ordering::Relaxed);
    if left > 0 {
        queue.execute(move || link(&next, left - 1, counts));
    }
}

/// Clients do not stop because the server is about to.
#[test]
fn a_runtime_ends_beside_threads_that_go_on_queueing() {
    for has_deadline in [false, true] {
        let runtime = on("1x2x1").build().unwrap();
        let queue = runtime.workqueue("requests").build().unwrap();
        let (ran, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        let request = queue.queue(|| blocking(|| thread::sleep(SOON / 20)));
                        ran.fetch_add(usize::from(request.join().is_ok()), Ordering::Relaxed);
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            until("they are at it", || ran.load(Ordering::Relaxed) > 20);
            // What its own items queue is accepted all the while.
            let (chain, chained) = (queue.clone(), Arc::new(AtomicUsize::new(0)));
            let counts = Arc::clone(&chained);
            runtime.events().execute(move || link(&chain, 200, counts));
            if has_deadline {
                runtime.shutdown(Duration::from_secs(60)).unwrap();
            } else {
                drop(runtime);
            }
            assert_eq!(chained.load(Ordering::Relaxed), 201);
            let before = told.load(Ordering::Relaxed);
            until("they are refused", || told.load(Ordering::Relaxed) > before + 20);
            end.store(true, Ordering::Relaxed);
        });
        let counters = queue.counters();
        assert_eq!(counters.completed, ran.load(Ordering::Relaxed) as u64 + 200);
    }
}

#[test]
fn a_runtime_ends_beside_threads_that_set_timers_of_work_items() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("timed").build().unwrap();
    let (ran, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    let work = queue.work(|_| blocking(|| thread::sleep(Duration::from_millis(1))));
                    work.queue_delayed(Duration::from_secs(100));
                    work.flush_delayed();
                    ran.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("they are at it", || ran.load(Ordering::Relaxed) > 50);
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        end.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_destroyed_workqueue_takes_nothing_for_later_either() {
    let runtime = on("1x1x1").build().unwrap();
    let gone = runtime.workqueue("gone").build().unwrap();
    let work = gone.work(|_| unreachable!());
    gone.destroy();
    assert!(!work.queue() && !work.queue_delayed(Duration::from_millis(1)));
    assert!(!work.mod_delayed(SOON) && !work.is_pending());
    work.flush_delayed();
}

#[test]
fn thresholds_have_no_largest_value() {
    let stalls = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&stalls);
    let runtime = on("1x1x1")
        .watchdog_thresh(Duration::MAX)
        .cpu_intensive_thresh(Duration::MAX)
        .on_stall(move |_| _ = heard.fetch_add(1, Ordering::Relaxed))
        .build()
        .unwrap();
    let door = Door::default();
    let spins = Arc::new(AtomicBool::new(true));
    let (at, spinning) = (door.clone(), Arc::clone(&spins));
    let hog = runtime.queue(move || {
        while spinning.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        at.open();
    });
    let waits = runtime.queue(|| ());
    thread::sleep(Duration::from_millis(1200));
    spins.store(false, Ordering::Relaxed);
    door.pass();
    hog.join().unwrap();
    waits.join().unwrap();
    let work = runtime.events().work(|_| ());
    assert!(work.queue_delayed(Duration::MAX) && work.flush_delayed());
    assert_eq!(stalls.load(Ordering::Relaxed), 0);
}

#[test]
fn an_instance_that_waits_behind_a_run_does_not_begin_after_shutdown_now() {
    let runtime = on("1x1x2").build().unwrap();
    let (runs, door) = (Arc::new(AtomicUsize::new(0)), Door::default());
    let (count, at) = (Arc::clone(&runs), door.clone());
    let work = runtime.events().work(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        at.pass();
    });
    work.queue();
    until("it runs", || work.is_running());
    work.queue();
    let opens = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        door.open();
    });
    runtime.shutdown_now();
    opens.join().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(!work.is_pending());
}

#[test]
fn a_rescuer_begins_nothing_after_shutdown_now() {
    let (runtime, reclaim, _) = with_a_rescuer();
    let (held, door) = (Door::default(), Door::default());
    let at = held.clone();
    runtime.queue(move || at.pass()).detach();
    let begun = Arc::new(AtomicUsize::new(0));
    for _ in 0..16 {
        let (begun, at) = (Arc::clone(&begun), door.clone());
        reclaim.execute(move || {
            begun.fetch_add(1, Ordering::SeqCst);
            at.pass();
        });
    }
    until("the rescuer runs one", || begun.load(Ordering::SeqCst) > 0);
    let opens = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        door.open();
        held.open();
    });
    runtime.shutdown_now();
    opens.join().unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    assert_eq!(reclaim.counters().in_flight(), 0);
}

#[test]
fn an_ordered_item_that_joins_a_later_future_of_its_workqueue_panics() {
    let runtime = on("1x1x2").build().unwrap();
    let queue = runtime.workqueue("ordered").ordered().build().unwrap();
    let inner = queue.clone();
    let message = queue.queue(move || panic_of(|| _ = inner.spawn(async { 1 }).join()));
    assert!(message.join().unwrap().contains("ordered workqueue ordered"));
}

#[test]
fn workqueues_that_are_built_while_the_runtime_ends_do_not_hold_it_up() {
    for _ in 0..20 {
        let runtime = on("1x1x1").build().unwrap();
        let builders: Vec<_> =
            (0..20).map(|n| runtime.workqueue(&format!("r{n}")).mem_reclaim()).collect();
        let builds = thread::spawn(move || {
            let build = |builder: homing_runtime::WorkqueueBuilder| builder.build().unwrap();
            builders.into_iter().map(build).collect::<Vec<_>>()
        });
        let began = Instant::now();
        drop(runtime);
        assert!(began.elapsed() < SOON);
        drop(builds.join().unwrap());
    }
}

#[test]
fn a_runtime_that_a_timer_drops_ends() {
    let runtime = Arc::new(on("1x1x1").build().unwrap());
    let ended = Arc::new(());
    let (own, held) = (Arc::clone(&runtime), Arc::clone(&ended));
    let work = runtime.events().work(move |_| _ = (&own, &held));
    work.queue_delayed(Duration::from_millis(20));
    drop((work, runtime));
    until("it is gone", || Arc::strong_count(&ended) == 1);
}

#[test]
fn an_extension_outlives_every_item_whoever_drops_the_runtime() {
    struct Told(Arc<AtomicBool>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    for by_an_item in [true, false] {
        let (runtime, gone) = (on("1x1x1").build().unwrap(), Arc::new(AtomicBool::new(false)));
        drop(runtime.extension(|| Told(Arc::clone(&gone))));
        let ((go_on, goes_on), (end, ended)) = (mpsc::channel::<()>(), mpsc::channel());
        let seen = Arc::clone(&gone);
        let last = move || {
            _ = goes_on.recv();
            _ = end.send(seen.load(Ordering::SeqCst));
        };
        let events = runtime.events().clone();
        if by_an_item {
            let own = events.clone();
            events.execute(move || {
                own.execute(last);
                drop(runtime);
            });
        } else {
            events.execute(last);
            until("it runs", || events.counters().started == 1);
            runtime.shutdown(Duration::ZERO).unwrap_err();
            drop(runtime);
        }
        go_on.send(()).unwrap();
        assert!(!ended.recv_timeout(Duration::from_secs(10)).unwrap(), "an item may use it");
        until("it is dropped in the end", || gone.load(Ordering::SeqCst));
    }
}

#[test]
fn a_chain_of_futures_ends_with_the_runtime() {
    let runtime = Runtime::new().unwrap();
    let mut last = runtime.spawn(std::future::pending::<()>());
    for _ in 0..CHAIN {
        let before = last;
        last = runtime.spawn(async move { _ = before.await });
    }
    runtime.events().flush();
    drop(runtime);
    assert!(last.is_finished());
}

#[test]
fn a_chain_of_futures_ends_with_its_workqueue() {
    let runtime = Runtime::new().unwrap();
    let chain = runtime.workqueue("chain").build().unwrap();
    let holds = runtime.workqueue("holds").freezable().build().unwrap();
    holds.freeze(Duration::from_secs(1)).unwrap();
    let first = holds.queue(|| ());
    let mut last = chain.spawn(async move { _ = first.await });
    for _ in 0..CHAIN {
        let before = last;
        last = chain.spawn(async move { _ = before.await });
    }
    chain.destroy();
    holds.thaw();
    last.join().unwrap_err();
}

#[test]
fn a_shutdown_keeps_its_deadline_beside_a_rescuer() {
    let (runtime, reclaim, _) = with_a_rescuer();
    let (go, goes) = mpsc::channel::<()>();
    let blocks = runtime.queue(move || blocking(|| _ = goes.recv()));
    thread::sleep(Duration::from_millis(20));
    let (began, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    reclaim.execute(move || {
        began.send(()).unwrap();
        _ = ends.recv_timeout(Duration::from_secs(20));
    });
    begins.recv_timeout(Duration::from_secs(10)).expect("the rescuer runs it");
    drop(go);
    blocks.join().unwrap();
    let since = Instant::now();
    let error = runtime.shutdown(Duration::from_millis(100)).unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(error.running >= 1, "{error}");
    drop(end);
}

/// Those whose items hold the runtime can still end it, and by a deadline.
#[test]
fn a_runtime_that_its_items_hold_is_shut_down_by_whoever_has_a_reference() {
    let runtime = Arc::new(on("1x2x1").build().unwrap());
    let (door, own) = (Door::default(), Arc::clone(&runtime));
    let at = door.clone();
    let item = runtime.queue(move || {
        at.pass();
        own.queue(|| ()).join().is_err()
    });
    until("it runs", || runtime.events().counters().started == 1);
    let error = runtime.shutdown(Duration::from_millis(20)).unwrap_err();
    assert_eq!((error.cancelled, error.running), (0, 1), "{error}");
    assert!(runtime.queue(|| ()).join().is_err(), "it is refused");
    let late = runtime.workqueue("late").ordered().mem_reclaim().build().unwrap();
    assert!(late.queue(|| ()).join().is_err() && late.spawn(async {}).join().is_err());
    door.open();
    assert!(item.join().unwrap());
    // Any number of threads may wait for the end.
    thread::scope(|scope| {
        for now in [false, true, false] {
            let runtime = &runtime;
            scope.spawn(
                move || {
                    if now { runtime.shutdown_now() } else { runtime.shutdown(SOON).unwrap() }
                },
            );
        }
    });
}

/// Whoever lets everything run is told if somebody else does not.
#[test]
fn a_shutdown_that_another_one_overtakes_says_what_was_left() {
    let runtime = on("1x1x1").build().unwrap();
    let (door, queue) = (Door::default(), runtime.workqueue("q").ordered().build().unwrap());
    let at = door.clone();
    let runs = queue.queue(move || at.pass());
    until("it runs", || queue.counters().started == 1);
    let waits = queue.queue(|| ());
    let error = thread::scope(|scope| {
        let in_order = scope.spawn(|| runtime.shutdown(SOON));
        until("others are refused", || runtime.queue(|| ()).join().is_err());
        let at_once = scope.spawn(|| runtime.shutdown_now());
        waits.join().unwrap_err();
        door.open();
        at_once.join().unwrap();
        in_order.join().unwrap().unwrap_err()
    });
    runs.join().unwrap();
    assert_eq!((error.cancelled, error.running), (1, 0), "{error}");
}

#[test]
fn an_item_that_shuts_its_runtime_down_leaves_the_waiting_to_the_drop() {
    for now in [false, true] {
        let runtime = Arc::new(on("1x2x1").build().unwrap());
        let (own, runs) = (Arc::clone(&runtime), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&runs);
        let (let_go, has_let_go) = mpsc::channel();
        let item = runtime.queue(move || {
            if now {
                own.shutdown_now();
            } else {
                own.shutdown(Duration::ZERO).unwrap();
            }
            drop(own);
            let_go.send(()).unwrap();
            thread::sleep(Duration::from_millis(20));
            counts.fetch_add(1, Ordering::SeqCst);
        });
        has_let_go.recv().unwrap();
        drop(runtime);
        assert_eq!(runs.load(Ordering::SeqCst), 1, "the drop has waited");
        assert!(now || item.is_finished());
    }
}

/// A library's value may be made of another library's.
#[test]
fn an_extension_may_be_made_of_another() {
    struct Inner(u32);
    struct Outer(Arc<Inner>);
    let runtime = on("1x1x1").build().unwrap();
    let (told, made) = mpsc::channel();
    thread::spawn(move || {
        let outer = runtime.extension(|| Outer(runtime.extension(|| Inner(7))));
        let same = Arc::ptr_eq(&outer.0, &runtime.extension(|| Inner(8)));
        told.send((outer.0.0, same)).unwrap();
    });
    assert_eq!(made.recv_timeout(Duration::from_secs(10)), Ok((7, true)));
}
