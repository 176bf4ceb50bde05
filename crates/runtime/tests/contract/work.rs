//! Work items: one pending instance, no two runs at a time, nothing lost.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, NodeId, Runtime, Scope, Work};

use crate::helpers::{Door, SOON, on, panic_of, until};

#[test]
fn queueing_says_whether_this_call_did_it_and_one_instance_is_pending_at_most() {
    let runtime = on("1x1x1").build().unwrap();
    let (door, runs) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let (at, count) = (door.clone(), Arc::clone(&runs));
    let work = runtime.events().work(move |_| {
        at.pass();
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(!work.is_pending() && !work.is_running());
    let hold = Door::default();
    let held = hold.clone();
    let first = runtime.workqueue("first").max_active(1).build().unwrap();
    first.execute(move || held.pass());
    assert!(work.queue());
    until("it runs", || work.is_running());
    assert!(!work.is_pending());
    assert!(work.queue(), "it is not pending any more when it runs");
    assert!(!work.queue() && work.is_pending());
    door.open();
    work.flush();
    assert_eq!(runs.load(Ordering::Relaxed), 2, "exactly one further run");
    assert!(!work.flush(), "there is nothing to wait for");
    hold.open();
}

/// Once another instance is in its place, the one that is waited for will not run: the thread that
/// waits is told at once.
#[test]
fn who_waits_for_a_delayed_work_item_goes_on_when_it_is_moved_or_cancelled() {
    let runtime = on("1x1x1").build().unwrap();
    let changes: [fn(&Work) -> bool; 3] =
        [|work| work.mod_delayed(Duration::ZERO), |work| work.mod_delayed(SOON), Work::cancel];
    for change in changes {
        let work = runtime.events().work(|_| ());
        assert!(work.queue_delayed(Duration::from_secs(3600)));
        let (tell, told) = std::sync::mpsc::channel();
        let waits = work.clone();
        thread::spawn(move || tell.send(waits.flush()));
        // Until it waits.
        thread::sleep(Duration::from_millis(100));
        assert!(change(&work));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}

/// No lost wake-ups: an issuer writes and queues, and the item reads. What an issuer wrote is seen
/// even if it was refused.
#[test]
fn what_was_written_before_a_refused_queueing_is_seen_by_the_run_that_follows() {
    let runtime = Runtime::new().unwrap();
    let (written, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (from, to) = (Arc::clone(&written), Arc::clone(&seen));
    let work = runtime.events().work(move |_| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    let issuers: Vec<_> = (0..3)
        .map(|_| {
            let (work, written, seen) = (work.clone(), Arc::clone(&written), Arc::clone(&seen));
            thread::spawn(move || {
                for round in 0..20_000 {
                    let mine = written.fetch_add(1, Ordering::Relaxed) + 1;
                    work.queue();
                    if round % 64 == 0 {
                        work.flush();
                        assert!(seen.load(Ordering::Relaxed) >= mine, "an event was lost");
                    }
                }
            })
        })
        .collect();
    for issuer in issuers {
        issuer.join().unwrap();
    }
    work.flush();
    assert_eq!(seen.load(Ordering::Relaxed), 60_000);
}

#[test]
fn an_item_that_queues_itself_runs_once_for_each_time() {
    let runtime = Runtime::new().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let work = runtime.events().work(move |work| {
        if count.fetch_add(1, Ordering::Relaxed) < 999 {
            assert!(work.queue() && !work.queue());
        }
    });
    work.queue();
    while work.flush() {}
    assert_eq!(runs.load(Ordering::Relaxed), 1000);
}

#[test]
fn an_item_queued_from_another_pod_while_it_runs_is_not_run_twice_at_a_time() {
    let runtime = on("2x2x2").build().unwrap();
    let queue = runtime.workqueue("pods").affinity_scope(Scope::Cpu).build().unwrap();
    let (inside, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (at, count) = (Arc::clone(&inside), Arc::clone(&runs));
    let work = queue.work(move |_| {
        assert!(!at.swap(true, Ordering::SeqCst), "two workers run it at a time");
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(20) {
            std::hint::spin_loop();
        }
        at.store(false, Ordering::SeqCst);
        count.fetch_add(1, Ordering::SeqCst);
    });
    let queued = Arc::new(AtomicUsize::new(0));
    let issuers: Vec<_> = (0..4)
        .map(|issuer| {
            let (work, queued) = (work.clone(), Arc::clone(&queued));
            thread::spawn(move || {
                for round in 0..3000 {
                    let cpu = CpuId::new((issuer * 2 + round) % 8).unwrap();
                    if work.queue_on(cpu).unwrap() {
                        queued.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for issuer in issuers {
        issuer.join().unwrap();
    }
    work.flush();
    assert_eq!(runs.load(Ordering::SeqCst), queued.load(Ordering::SeqCst));
    let nowhere = CpuId::new(900).unwrap();
    assert!(work.queue_on(nowhere).is_err());
    assert!(work.queue_delayed_on(nowhere, SOON).is_err() && !work.is_pending());
    assert!(work.queue_on_node(NodeId(77)).is_err());
    assert!(work.queue_on_node(NodeId(0)).unwrap());
    work.flush();
    let cpu = CpuId::new(3).unwrap();
    assert!(work.queue_delayed_on(cpu, Duration::from_micros(50)).unwrap());
    work.flush();
    assert_eq!(queue.counters().panicked, 0);
}

#[test]
fn cancel_takes_what_is_pending_back_and_lets_what_runs_go_on() {
    let runtime = on("1x1x1").build().unwrap();
    let (door, runs) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let (at, count) = (door.clone(), Arc::clone(&runs));
    let work = runtime.events().work(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        at.pass();
    });
    assert!(!work.cancel());
    work.queue();
    until("it runs", || work.is_running());
    assert!(work.queue() && work.cancel() && !work.cancel());
    assert!(work.queue() && work.cancel(), "also beside its own husk");
    door.open();
    work.flush();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    runtime.events().flush();
    let counters = runtime.events().counters();
    assert_eq!((counters.queued, counters.completed, counters.cancelled), (3, 1, 2));
}

#[test]
fn flush_waits_for_a_run_that_is_on_also_where_the_instance_behind_it_is_taken_back() {
    let runtime = Runtime::new().unwrap();
    let (door, ended) = (Door::default(), Arc::new(AtomicBool::new(false)));
    let (at, end) = (door.clone(), Arc::clone(&ended));
    let work = runtime.events().work(move |_| {
        at.pass();
        end.store(true, Ordering::SeqCst);
    });
    assert!(work.queue());
    until("it runs", || work.is_running());
    assert!(work.queue());
    let flusher = {
        let work = work.clone();
        thread::spawn(move || work.flush())
    };
    let mut flushed = Box::pin(work.flushed());
    let mut context = Context::from_waker(Waker::noop());
    assert!(flushed.as_mut().poll(&mut context).is_pending());
    thread::sleep(Duration::from_millis(20));
    assert!(work.cancel());
    thread::sleep(Duration::from_millis(20));
    assert!(!flusher.is_finished() && flushed.as_mut().poll(&mut context).is_pending());
    door.open();
    assert!(flusher.join().unwrap() && ended.load(Ordering::SeqCst));
    // The thread was told, but the future may not have been told yet.
    until("it is told", || flushed.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_flush_as_a_future_is_of_what_was_queued_at_the_call() {
    let runtime = on("1x1x1").build().unwrap();
    let work = runtime.events().work(|_| ());
    let mut context = Context::from_waker(Waker::noop());
    let none = work.flushed();
    assert!(work.queue_delayed(SOON * 100));
    assert_eq!(Box::pin(none).as_mut().poll(&mut context), std::task::Poll::Ready(false));
    let one = work.flushed();
    assert!(work.cancel());
    assert_eq!(Box::pin(one).as_mut().poll(&mut context), std::task::Poll::Ready(true));
}

#[test]
fn cancel_sync_ends_an_item_that_queues_itself() {
    let runtime = Runtime::new().unwrap();
    for _ in 0..200 {
        let running = Arc::new(AtomicBool::new(false));
        let inside = Arc::clone(&running);
        let work = runtime.events().work(move |work| {
            inside.store(true, Ordering::SeqCst);
            work.queue();
            inside.store(false, Ordering::SeqCst);
        });
        work.queue();
        thread::yield_now();
        work.cancel_sync();
        assert!(!running.load(Ordering::SeqCst) && !work.is_pending() && !work.is_running());
        assert!(work.queue(), "it can be queued again");
        work.cancel_sync();
    }
}

#[test]
fn a_disabled_item_refuses_until_it_has_been_enabled_as_often() {
    let runtime = Runtime::new().unwrap();
    let work = runtime.events().work(|_| ());
    assert!(work.queue_delayed(SOON) && work.disable(), "it was pending");
    assert!(!work.disable_sync());
    assert!(!work.queue() && !work.queue_delayed(SOON) && !work.mod_delayed(SOON));
    assert!(!work.enable() && !work.queue() && work.is_disabled());
    assert!(work.enable() && !work.is_disabled() && !work.is_pending(), "nothing is requeued");
    assert!(work.queue());
    work.flush();
    let message = panic_of(|| _ = work.enable());
    assert!(message.contains("events") && message.contains("not disabled"), "{message}");
}

#[test]
fn a_delayed_item_comes_at_its_time_and_can_be_moved() {
    let runtime = Runtime::new().unwrap();
    let (began, ran) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let times = Arc::clone(&ran);
    let work = runtime.events().work(move |_| times.lock().unwrap().push(began.elapsed()));
    assert!(work.queue_delayed(Duration::from_millis(30)));
    assert!(!work.queue() && !work.queue_delayed(Duration::ZERO), "it is pending");
    assert!(work.flush(), "it waits for the timer, too");
    assert!(ran.lock().unwrap()[0] >= Duration::from_millis(30));
    assert!(!work.mod_delayed(SOON * 10), "it was not pending");
    assert!(work.mod_delayed(Duration::from_millis(1)), "it was");
    work.flush();
    assert!(work.queue_delayed(Duration::ZERO), "no delay: at once");
    work.flush();
    assert_eq!(ran.lock().unwrap().len(), 3);
    work.queue_delayed(SOON * 10);
    assert!(work.flush_delayed() && began.elapsed() < SOON, "queued now");
    assert_eq!(ran.lock().unwrap().len(), 4);
    assert!(work.queue_delayed(SOON * 10) && work.cancel_sync());
    assert!(!work.flush());
}

#[test]
fn many_timers_each_fire_once() {
    let runtime = Runtime::new().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let works: Vec<Work> = (0..1000)
        .map(|number: u64| {
            let count = Arc::clone(&runs);
            let work = runtime.events().work(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
            work.queue_delayed(Duration::from_micros(number * 37 % 20_000 + 1));
            work
        })
        .collect();
    let cancelled = works.iter().step_by(10).filter(|work| work.cancel()).count();
    for work in &works {
        work.flush();
    }
    assert_eq!(runs.load(Ordering::Relaxed) + cancelled, 1000);
}

#[test]
fn the_last_reference_may_go_while_it_is_pending_on_a_timer_or_runs() {
    let runtime = Runtime::new().unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    for delay in [Duration::ZERO, Duration::from_millis(5)] {
        let held = Arc::clone(&alive);
        let work = runtime.events().work(move |_| _ = held.fetch_add(1, Ordering::Relaxed));
        assert!(work.queue_delayed(delay));
    }
    // A work item that drops its last reference in its own run.
    let (held, own) = (Arc::clone(&alive), Arc::new(Mutex::new(None::<Work>)));
    let place = Arc::clone(&own);
    let work = runtime.events().work(move |_| {
        drop(place.lock().unwrap().take());
        held.fetch_add(1, Ordering::Relaxed);
    });
    *own.lock().unwrap() = Some(work);
    own.lock().unwrap().as_ref().unwrap().queue();
    until("all ran", || alive.load(Ordering::Relaxed) == 3);
    until("all are gone", || Arc::strong_count(&alive) == 1);
}

#[test]
fn waiting_for_itself_panics_and_names_both() {
    let runtime = on("1x1x1").build().unwrap();
    let messages = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&messages);
    let work = runtime.events().work(move |work| {
        let mut messages = into.lock().unwrap();
        messages.push(panic_of(|| _ = work.flush()));
        messages.push(panic_of(|| _ = work.cancel_sync()));
        messages.push(panic_of(|| _ = work.disable_sync()));
        messages.push(panic_of(|| work.workqueue().flush()));
        messages.push(panic_of(|| work.workqueue().drain()));
        messages.push(panic_of(|| work.workqueue().destroy()));
    });
    work.queue();
    work.flush();
    let messages = messages.lock().unwrap();
    assert_eq!(messages.len(), 6);
    for message in &*messages {
        assert!(message.contains("events") && message.contains("itself"), "{message}");
    }
    assert!(messages[1].contains("cancel_sync of work item"), "{}", messages[1]);
    assert!(!work.is_disabled(), "a refused cancel_sync leaves nothing behind");
}

#[test]
fn at_shutdown_pending_items_are_cancelled_and_waiters_go_on() {
    let runtime = Runtime::new().unwrap();
    let work = runtime.events().work(|_| ());
    work.queue_delayed(SOON * 100);
    let waiting = {
        let work = work.clone();
        thread::spawn(move || work.flush())
    };
    thread::sleep(Duration::from_millis(5));
    drop(runtime);
    waiting.join().unwrap();
    assert!(!work.is_pending() && !work.queue() && !work.queue_delayed(SOON));
    assert!(!work.is_pending(), "PENDING is given back");
}

#[test]
fn futures_wait_for_items_without_blocking_anybody() {
    let runtime = on("1x1x1").build().unwrap();
    let door = Door::default();
    let at = door.clone();
    let work = runtime.events().work(move |_| at.pass());
    work.queue();
    let (waits, queue) = (work.clone(), runtime.events().clone());
    let mut had = Box::pin(async move { work.flushed().await });
    // The wait begins here, whenever the spawned future gets its turn.
    assert!(had.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let waiter = runtime.spawn(async move {
        let had = had.await;
        queue.flushed().await;
        (had, waits.flushed().await)
    });
    thread::sleep(Duration::from_millis(5));
    assert!(!waiter.is_finished());
    door.open();
    assert_eq!(waiter.join().unwrap(), (true, false));
}

/// Flushes a work item of a timer when it goes, as something that writes back at its end may.
struct FlushesAtTheEnd(Work, mpsc::Sender<String>);

impl Drop for FlushesAtTheEnd {
    fn drop(&mut self) {
        self.0.queue_delayed(Duration::from_millis(1));
        self.0.flush();
        let thread = thread::current().name().unwrap_or_default().to_owned();
        let _ = self.1.send(thread);
    }
}

/// If it were dropped by the thread that fires timers, that would wait for itself.
#[test]
fn what_a_delayed_item_owns_goes_where_it_may_wait_for_a_timer() {
    let runtime = Runtime::new().unwrap();
    let (sender, receiver) = mpsc::channel();
    let other = runtime.workqueue("other").build().unwrap().work(|_| ());
    for round in 0..300 {
        let workqueue = runtime.workqueue("delayed").build().unwrap();
        let owned = FlushesAtTheEnd(other.clone(), sender.clone());
        let work = workqueue.work(move |_| {
            let _ = &owned;
        });
        work.queue_delayed(Duration::from_micros(200 * (round % 5)));
        drop(work);
        match round % 3 {
            0 => workqueue.destroy(),
            1 => drop(workqueue),
            _ => {}
        }
        let thread = receiver.recv_timeout(Duration::from_secs(20)).expect("it hangs");
        assert!(!thread.contains("monitor"), "round {round}: on {thread}");
    }
}
