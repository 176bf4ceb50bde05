//! Per-CPU workqueues, rescuers, the watchdog.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, Runtime, Scope, blocking};

use crate::helpers::{Crowd, Door, SOON, all_but_one_blocked, on, until, with_a_rescuer};

#[test]
fn a_per_cpu_item_runs_one_at_a_time_until_it_blocks_or_uses_its_cpu_for_long() {
    let runtime = on("1x4x1").cpu_intensive_thresh(Duration::from_millis(3)).build().unwrap();
    let queue = runtime.workqueue("percpu").per_cpu().build().unwrap();
    let cpu = CpuId::new(2).unwrap();
    let (crowd, stop) = (Crowd::default(), Arc::new(AtomicBool::new(false)));
    for _ in 0..200 {
        let crowd = crowd.clone();
        let item = move || {
            crowd.enter();
            thread::yield_now();
            crowd.leave();
        };
        queue.queue_on(cpu, item).unwrap().detach();
    }
    queue.flush();
    // On a loaded machine an item that waits for its CPU may look as if it blocked or used it.
    let counters = queue.counters();
    assert!(crowd.most() as u64 <= 1 + counters.blocked + counters.cpu_intensive);
    let door = Door::default();
    let at = door.clone();
    let blocked = queue.queue_on(cpu, move || at.pass()).unwrap();
    queue.queue_on(cpu, || ()).unwrap().join().unwrap();
    assert!(!blocked.is_finished(), "the next one did not wait for it");
    door.open();
    blocked.join().unwrap();
    let until_stopped = Arc::clone(&stop);
    let busy = queue.queue_on(cpu, move || {
        while !until_stopped.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    queue.queue_on(cpu, || ()).unwrap().join().unwrap();
    assert!(queue.counters().cpu_intensive > counters.cpu_intensive);
    stop.store(true, Ordering::Relaxed);
    busy.unwrap().join().unwrap();
    assert!(queue.set_affinity_scope(homing_runtime::Scope::Cache).is_err());
}

#[test]
fn what_may_run_on_one_cpu_only_does_not_wait_for_an_item_that_keeps_it() {
    let runtime = on("1x2x1").cpu_intensive_thresh(Duration::from_millis(3)).build().unwrap();
    let hog = runtime.workqueue("hog").build().unwrap();
    let percpu = runtime.workqueue("percpu").per_cpu().build().unwrap();
    let strict = runtime.workqueue("strict").affinity_scope(Scope::Smt).affinity_strict(true);
    let strict = strict.build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..2)
        .map(|cpu| {
            let until_stopped = Arc::clone(&stop);
            let spin = move || {
                while !until_stopped.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            hog.queue_on(CpuId::new(cpu).unwrap(), spin).unwrap()
        })
        .collect();
    until("both run", || hog.counters().started == 2);
    for cpu in 0..2 {
        percpu.queue_on(CpuId::new(cpu).unwrap(), || ()).unwrap().join().unwrap();
        strict.queue_on(CpuId::new(cpu).unwrap(), || ()).unwrap().join().unwrap();
    }
    assert_eq!(hog.counters().blocked, 0, "it computes");
    stop.store(true, Ordering::Relaxed);
    for hog in hogs {
        hog.join().unwrap();
    }
}

#[test]
fn a_cpu_intensive_workqueue_leaves_its_cpu_to_others_from_the_start() {
    let runtime = on("1x2x1").cpu_intensive_thresh(Duration::ZERO).build().unwrap();
    let queue = runtime.workqueue("hogs").per_cpu().cpu_intensive().build().unwrap();
    let other = runtime.workqueue("others").per_cpu().build().unwrap();
    let cpu = CpuId::new(1).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let until_stopped = Arc::clone(&stop);
    let busy = queue.queue_on(cpu, move || {
        while !until_stopped.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    until("it runs", || queue.counters().started == 1);
    other.queue_on(cpu, || ()).unwrap().join().unwrap();
    stop.store(true, Ordering::Relaxed);
    busy.unwrap().join().unwrap();
}

/// Every thread waits for an item of the workqueue, and none can be created.
#[test]
fn a_mem_reclaim_workqueue_gets_on_when_no_thread_can_be_created() {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on("1x1x1").refuse_threads(Arc::clone(&refuse)).build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    let plain = runtime.workqueue("plain").build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    let (door, others) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let at = door.clone();
    let blocked: Vec<_> = (0..4)
        .map(|_| {
            let at = at.clone();
            runtime.queue(move || at.pass())
        })
        .collect();
    until("no thread is left", || runtime.threads_refused() > 0);
    for number in 0..100 {
        let others = Arc::clone(&others);
        plain.execute(move || _ = others.fetch_add(1, Ordering::Relaxed));
        let door = door.clone();
        reclaim.execute(move || {
            if number == 99 {
                door.open();
            }
        });
    }
    reclaim.flush();
    let counters = reclaim.counters();
    assert!(counters.mayday >= 1 && counters.rescued >= 1, "{counters:?}");
    for handle in blocked {
        handle.join().unwrap();
    }
    plain.flush();
    assert_eq!(others.load(Ordering::Relaxed), 100);
    assert_eq!(plain.counters().rescued, 0, "nobody else's are rescued");
    let error = runtime.workqueue("late").mem_reclaim().build().unwrap_err();
    assert!(error.to_string().contains("rescuer of workqueue late"), "{error}");
    refuse.store(false, Ordering::Relaxed);
}

/// One thread is left for two CPUs, and items that may run nowhere else wait at both by turns.
#[test]
fn where_threads_are_refused_one_that_is_idle_serves_the_cpu_where_items_wait() {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on("1x2x1").refuse_threads(Arc::clone(&refuse)).build().unwrap();
    let bound = runtime.workqueue("bound").per_cpu().build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    let (door, blocked) = all_but_one_blocked(&runtime);
    for cpu in (0..8).map(|turn| CpuId::new(turn % 2).unwrap()) {
        let item = bound.queue_on(cpu, || ()).unwrap();
        until("the one that is left comes", || item.is_finished());
    }
    assert!(runtime.threads_refused() > 0, "or this shows nothing");
    door.open();
    for handle in blocked {
        handle.join().unwrap();
    }
    refuse.store(false, Ordering::Relaxed);
}

/// It may be impossible to create spares again that have retired.
#[test]
fn as_many_threads_stay_as_there_are_cpus() {
    let refuse = Arc::new(AtomicBool::new(false));
    let builder = on("1x2x1").keep_alive(Duration::ZERO).refuse_threads(Arc::clone(&refuse));
    let runtime = builder.build().unwrap();
    let bound = runtime.workqueue("bound").per_cpu().build().unwrap();
    let cpus = || [0, 1].map(|cpu| CpuId::new(cpu).unwrap());
    let sleep = || std::thread::sleep(Duration::from_millis(50));
    // They do not say that they block: the monitor gives their CPUs to others.
    let sleeping = cpus().map(|cpu| bound.queue_on(cpu, sleep).unwrap());
    for item in sleeping {
        item.join().unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(runtime.thread_count() >= 2, "{}", runtime.thread_count());
    refuse.store(true, Ordering::Relaxed);
    for cpu in cpus() {
        let item = bound.queue_on(cpu, || ()).unwrap();
        until("it runs", || item.is_finished());
    }
    refuse.store(false, Ordering::Relaxed);
}

#[test]
fn a_rescuer_works_through_limits_and_orders() {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on("1x1x1").refuse_threads(Arc::clone(&refuse)).build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().ordered().build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    let (door, order) = (Door::default(), Arc::new(Mutex::new(Vec::new())));
    let at = door.clone();
    let blocked = runtime.queue(move || at.pass());
    until("it blocks", || runtime.events().counters().started == 1);
    // Two of those behind the first are cancelled: the rescuer comes to them and runs nothing.
    let first = Door::default();
    let at = first.clone();
    reclaim.execute(move || at.pass());
    let husk = reclaim.work(|_| ());
    assert!(husk.queue() && husk.cancel());
    assert!(reclaim.queue(|| ()).abort());
    for number in 0..50 {
        let order = Arc::clone(&order);
        reclaim.execute(move || order.lock().unwrap().push(number));
    }
    first.open();
    reclaim.flush();
    assert!(order.lock().unwrap().iter().copied().eq(0..50));
    assert_eq!(reclaim.counters().rescued, 51);
    door.open();
    blocked.join().unwrap();
    refuse.store(false, Ordering::Relaxed);
}

#[test]
fn the_watchdog_reports_a_queue_that_stands_still_and_what_everybody_does() {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let (into, refuse) = (Arc::clone(&reports), Arc::new(AtomicBool::new(false)));
    let runtime = on("1x1x1")
        .refuse_threads(Arc::clone(&refuse))
        .watchdog_thresh(Duration::from_millis(80))
        .on_stall(move |stall| into.lock().unwrap().push(stall.to_string()))
        .build()
        .unwrap();
    let hog = runtime.workqueue("hog").build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    let stop = Arc::new(AtomicBool::new(false));
    let until_stopped = Arc::clone(&stop);
    let busy = hog.queue(move || {
        while !until_stopped.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    until("it runs", || hog.counters().started == 1);
    let began = Instant::now();
    let waits = runtime.queue(|| ());
    until("it is reported", || runtime.stalls() > 0);
    assert!(began.elapsed() >= Duration::from_millis(80), "not before its time");
    until("somebody hears of it", || !reports.lock().unwrap().is_empty());
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    waits.join().unwrap();
    let report = reports.lock().unwrap()[0].clone();
    assert!(report.contains("1 items wait") && report.contains("CPUs 0"), "{report}");
    assert!(report.contains("an item of hog for 0."), "{report}");
    refuse.store(false, Ordering::Relaxed);
}

/// Its reader may be slow: timers fire all the same.
#[test]
fn who_is_told_of_a_stall_may_wait() {
    let (told, door) = (Arc::new(AtomicUsize::new(0)), Door::default());
    let (count, at) = (Arc::clone(&told), door.clone());
    let runtime = on("1x1x2")
        .watchdog_thresh(Duration::from_millis(20))
        .on_stall(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            at.pass();
        })
        .build()
        .unwrap();
    let own = runtime.workqueue("own").affinity_scope(Scope::Cpu).affinity_strict(true);
    let (own, cpu) = (own.build().unwrap(), CpuId::new(0).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let until_stopped = Arc::clone(&stop);
    let busy = own.queue_on(cpu, move || {
        while !until_stopped.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    let waiting = own.queue_on(cpu, || ());
    until("somebody is told", || told.load(Ordering::Relaxed) == 1);
    let fired = Arc::new(AtomicBool::new(false));
    let fires = Arc::clone(&fired);
    let work = runtime.events().work(move |_| fires.store(true, Ordering::Relaxed));
    assert!(work.queue_delayed(Duration::from_millis(1)));
    until("the timer fires", || fired.load(Ordering::Relaxed));
    until("it is found again", || runtime.stalls() > 2);
    assert_eq!(told.load(Ordering::Relaxed), 1, "one call at a time");
    stop.store(true, Ordering::Relaxed);
    door.open();
    busy.unwrap().join().unwrap();
    waiting.unwrap().join().unwrap();
}

#[test]
fn who_is_told_of_a_stall_may_end_the_runtime() {
    let slot = Arc::new(Mutex::new(None::<Runtime>));
    let (ended, ends) = std::sync::mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let (of, stops) = (Arc::clone(&slot), Arc::clone(&stop));
    let runtime = on("1x1x1")
        .watchdog_thresh(Duration::from_millis(20))
        .on_stall(move |_| {
            let Some(runtime) = of.lock().unwrap().take() else { return };
            stops.store(true, Ordering::Relaxed);
            drop(runtime);
            ended.send(()).unwrap();
        })
        .build()
        .unwrap();
    let until_stopped = Arc::clone(&stop);
    let busy = runtime.queue(move || {
        while !until_stopped.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    let waits = runtime.queue(|| ());
    *slot.lock().unwrap() = Some(runtime);
    ends.recv_timeout(Duration::from_secs(60)).expect("the runtime's end waits for who ends it");
    let _ = (busy.join(), waits.join());
}

#[test]
fn a_runtime_that_is_not_stuck_is_not_reported() {
    let runtime = Runtime::builder().watchdog_thresh(Duration::from_millis(200)).build().unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        let handles: Vec<_> = (0..100).map(|_| runtime.queue(|| ())).collect();
        for handle in handles {
            handle.join().unwrap();
        }
        blocking(|| thread::sleep(Duration::from_millis(1)));
    }
    assert_eq!(runtime.stalls(), 0);
}

/// A future that sleeps when the last handle goes is rescued when it is woken.
#[test]
fn a_rescuer_stays_for_the_futures_of_its_workqueue() {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on("1x1x1").refuse_threads(Arc::clone(&refuse)).build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    let sleeper: Arc<Mutex<Option<Waker>>> = Arc::default();
    let asleep = Arc::clone(&sleeper);
    let mut polls = 0..3;
    let future = reclaim.spawn(std::future::poll_fn(move |context| {
        *asleep.lock().unwrap() = Some(context.waker().clone());
        polls.next().filter(|poll| *poll > 0).map_or(Poll::Pending, Poll::Ready)
    }));
    reclaim.flush();
    drop(reclaim);
    // For longer than it takes a rescuer to see that nothing is in flight.
    thread::sleep(Duration::from_millis(300));
    refuse.store(true, Ordering::Relaxed);
    let door = Door::default();
    let at = door.clone();
    let blocked = runtime.queue(move || at.pass());
    until("it blocks", || runtime.events().counters().started == 1);
    sleeper.lock().unwrap().take().unwrap().wake();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !future.is_finished() && Instant::now() < deadline {
        thread::yield_now();
    }
    let rescued = future.is_finished();
    door.open();
    assert!(rescued, "nobody went on with it");
    assert_eq!(future.join().unwrap(), 1);
    blocked.join().unwrap();
    refuse.store(false, Ordering::Relaxed);
}

/// Items that compute keep their CPUs. A rescuer runs what waits behind them, and nothing else.
#[test]
fn what_waits_behind_items_that_compute_is_rescued() {
    const TOO_LATE: Duration = Duration::from_secs(60);
    let runtime = on("1x2x1").build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let compute = |_| {
        let stop = Arc::clone(&stop);
        runtime.queue(move || {
            while !stop.load(Ordering::Relaxed) && began.elapsed() < TOO_LATE {
                std::hint::spin_loop();
            }
        })
    };
    let computing: Vec<_> = (0..6).map(compute).collect();
    let others = || runtime.events().counters();
    until("both CPUs compute", || others().started >= 2);
    for _ in 0..5 {
        reclaim.queue(|| ()).join().unwrap();
    }
    assert!(began.elapsed() < TOO_LATE, "they have waited until nobody computed");
    assert!(reclaim.counters().rescued > 0, "{:?}", reclaim.counters());
    // On a loaded machine an item that waits for its CPU may look as if it blocked.
    assert!(others().started <= 2 + others().blocked, "{:?}", others());
    stop.store(true, Ordering::Relaxed);
    for item in computing {
        item.join().unwrap();
    }
}

/// Here somebody takes an item from the queue every few milliseconds.
#[test]
fn what_waits_behind_a_long_line_of_items_is_rescued() {
    const LINE: u64 = 800;
    let runtime = on("1x2x1").build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let compute = |_| {
        let stop = Arc::clone(&stop);
        runtime.queue(move || {
            let began = Instant::now();
            while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_millis(15) {
                std::hint::spin_loop();
            }
        })
    };
    let line: Vec<_> = (0..LINE).map(compute).collect();
    for _ in 0..3 {
        reclaim.queue(|| ()).join().unwrap();
    }
    let completed = runtime.events().counters().completed;
    stop.store(true, Ordering::Relaxed);
    assert!(completed < LINE, "it was the last of all");
    assert!(reclaim.counters().rescued > 0, "{:?}", reclaim.counters());
    for item in line {
        item.join().unwrap();
    }
}

/// The first of two items that a rescuer could take waits for the second.
#[test]
fn what_a_rescuer_runs_may_wait_for_what_is_behind_it() {
    let (runtime, reclaim, refuse) = with_a_rescuer();
    let door = Door::default();
    let at = door.clone();
    let blocked = runtime.queue(move || at.pass());
    until("it blocks", || runtime.events().counters().started == 1);
    let second = Arc::new(Mutex::new(None));
    let waited_for = Arc::clone(&second);
    let first = reclaim.queue(move || {
        loop {
            let handle: Option<homing_runtime::JoinHandle<u32>> = waited_for.lock().unwrap().take();
            match handle {
                Some(handle) => return handle.join().unwrap(),
                None => thread::yield_now(),
            }
        }
    });
    *second.lock().unwrap() = Some(reclaim.queue(|| 7));
    assert_eq!(first.join().unwrap(), 7);
    door.open();
    blocked.join().unwrap();
    refuse.store(false, Ordering::Relaxed);
}

/// Otherwise it would wait for ever, and so would those who need the rescuer.
#[test]
fn what_a_rescuer_runs_is_told_if_it_waits_for_itself() {
    let (runtime, reclaim, refuse) = with_a_rescuer();
    let door = Door::default();
    let at = door.clone();
    let blocked = runtime.queue(move || at.pass());
    until("it blocks", || runtime.events().counters().started == 1);
    let panics = |wait: &dyn Fn()| catch_unwind(AssertUnwindSafe(wait)).is_err();
    let (say, said) = mpsc::channel();
    let (inner, tell) = (reclaim.clone(), say.clone());
    reclaim.execute(move || tell.send(panics(&|| inner.flush())).unwrap());
    assert_eq!(said.recv_timeout(SOON), Ok(true), "a flush");
    let own = Arc::new(Mutex::new(None::<homing_runtime::JoinHandle<()>>));
    let handle = Arc::clone(&own);
    let item = reclaim.queue(move || {
        let own = loop {
            if let Some(own) = handle.lock().unwrap().take() {
                break own;
            }
            thread::yield_now();
        };
        say.send(catch_unwind(AssertUnwindSafe(|| own.join())).is_err()).unwrap();
    });
    *own.lock().unwrap() = Some(item);
    assert_eq!(said.recv_timeout(SOON), Ok(true), "a join");
    until("both are counted", || reclaim.counters().rescued == 2);
    door.open();
    blocked.join().unwrap();
    refuse.store(false, Ordering::Relaxed);
}

/// It is run by the thread that runs the one before it.
#[test]
fn a_flush_waits_for_a_run_that_a_rescuer_could_not_begin() {
    let (_runtime, reclaim, refuse) = with_a_rescuer();
    let (first, second) = (Door::default(), Door::default());
    let (at, runs) = ([first.clone(), second.clone()], Arc::new(AtomicUsize::new(0)));
    let begun = Arc::clone(&runs);
    let work = reclaim.work(move |_| at[begun.fetch_add(1, Ordering::SeqCst)].pass());
    assert!(work.queue());
    until("it runs", || runs.load(Ordering::SeqCst) == 1);
    assert!(work.queue());
    until("the rescuer is called", || reclaim.counters().mayday > 0);
    thread::sleep(Duration::from_millis(20)); // mostly it has found the second one by then
    let flushes = thread::spawn({
        let reclaim = reclaim.clone();
        move || reclaim.flush()
    });
    first.open();
    until("it runs again", || runs.load(Ordering::SeqCst) == 2);
    thread::sleep(Duration::from_millis(20));
    let early = flushes.is_finished();
    second.open();
    flushes.join().unwrap();
    assert!(!early);
    refuse.store(false, Ordering::Relaxed);
}
