//! Flush, drain, destroy: who waits for what, and what is refused meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use homing_runtime::{JoinError, Runtime, Workqueue};

use crate::helpers::{Door, on, until};

const MOMENT: Duration = Duration::from_millis(2);
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn flush_waits_for_what_was_queued_before_and_not_for_newcomers() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("flushed").build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let newcomers = {
        let (queue, stop) = (queue.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                queue.execute(|| ());
                thread::yield_now();
            }
        })
    };
    let ran = Arc::new(AtomicUsize::new(0));
    for round in 1..=100 {
        for _ in 0..20 {
            let ran = Arc::clone(&ran);
            queue.execute(move || _ = ran.fetch_add(1, Ordering::Relaxed));
        }
        queue.flush();
        assert_eq!(ran.load(Ordering::Relaxed), round * 20);
    }
    stop.store(true, Ordering::Relaxed);
    newcomers.join().unwrap();
}

/// While the item runs, the other worker comes to what is left of it in the queue.
#[test]
fn flush_waits_for_what_somebody_runs_because_he_waits_for_it() {
    let runtime = on("1x2x1").build().unwrap();
    let [outer, inner] = ["outer", "inner"].map(|name| runtime.workqueue(name).build().unwrap());
    for _ in 0..20 {
        let (door, ended) = (Door::default(), Arc::new(AtomicBool::new(false)));
        let (at, ending, queue) = (door.clone(), Arc::clone(&ended), inner.clone());
        let before = inner.counters().started;
        let handle = outer.queue(move || {
            let item = queue.queue(move || {
                at.pass();
                ending.store(true, Ordering::Relaxed);
            });
            item.join().unwrap();
        });
        until("it runs", || inner.counters().started > before);
        let flusher = {
            let (queue, ended) = (inner.clone(), Arc::clone(&ended));
            thread::spawn(move || {
                queue.flush();
                ended.load(Ordering::Relaxed)
            })
        };
        thread::sleep(Duration::from_millis(5));
        door.open();
        assert!(flusher.join().unwrap(), "flushed before it had ended");
        handle.join().unwrap();
    }
    runtime.shutdown(Duration::from_secs(10)).unwrap();
}

/// An item queued after a flush began may wait for the thread that flushes.
#[test]
fn a_newcomer_that_waits_for_the_flusher_does_not_hold_it_up() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("flushed").build().unwrap();
    let (first, second) = (Door::default(), Door::default());
    let at = first.clone();
    queue.execute(move || at.pass());
    let flusher = {
        let (queue, second) = (queue.clone(), second.clone());
        thread::spawn(move || {
            queue.flush();
            second.open();
        })
    };
    thread::sleep(Duration::from_millis(10));
    let at = second.clone();
    let newcomer = queue.queue(move || at.pass());
    first.open();
    flusher.join().unwrap();
    newcomer.join().unwrap();
}

#[test]
fn more_flushers_than_colours_all_return() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("flushed").build().unwrap();
    let doors: Vec<_> = (0..40).map(|_| Door::default()).collect();
    let flushers: Vec<_> = doors
        .iter()
        .map(|door| {
            let (at, queue) = (door.clone(), queue.clone());
            queue.clone().execute(move || at.pass());
            let begun = queue.flushed();
            thread::spawn(move || {
                queue.flush();
                runtime_of(&queue).spawn(begun).join().unwrap();
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    assert!(flushers.iter().all(|flusher| !flusher.is_finished()));
    doors.iter().rev().for_each(Door::open);
    for flusher in flushers {
        flusher.join().unwrap();
    }
}

/// A workqueue of another runtime to spawn on, so that nothing here waits for itself.
fn runtime_of(_: &Workqueue) -> &'static Workqueue {
    Runtime::global().unwrap().events()
}

#[test]
fn drain_accepts_chains_and_refuses_others() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("drained").build().unwrap();
    let (door, ran) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let at = door.clone();
    let (chain, count) = (queue.clone(), Arc::clone(&ran));
    queue.execute(move || {
        at.pass();
        link(&chain, &count, 50);
    });
    let fired = Arc::new(AtomicBool::new(false));
    let firing = Arc::clone(&fired);
    let late = queue.work(move |_| firing.store(true, Ordering::Relaxed));
    assert!(late.queue_delayed(Duration::from_millis(30)));
    let drainer = {
        let queue = queue.clone();
        thread::spawn(move || queue.drain())
    };
    until("others are refused", || matches!(queue.queue(|| ()).join(), Err(JoinError::Cancelled)));
    let work = queue.work(|_| ());
    assert!(!work.queue() && !work.is_pending(), "PENDING is given back");
    // The counters do not show this: until the drainer came, other items were accepted, and have
    // completed as well.
    until("what had been accepted runs when its time comes", || fired.load(Ordering::Relaxed));
    assert!(late.flush() || !late.is_pending());
    door.open();
    drainer.join().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 50);
    assert!(queue.queue(|| ()).join().is_ok() && work.queue());
    work.flush();
}

/// An instance that was accepted keeps its place, moved or not. A new one is refused, at once or
/// for later.
#[test]
fn a_work_item_that_is_moved_while_its_workqueue_drains_is_not_lost() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("drained").build().unwrap();
    let (door, runs) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let at = door.clone();
    queue.execute(move || at.pass());
    let work = |delay| {
        let runs = Arc::clone(&runs);
        let work = queue.work(move |_| _ = runs.fetch_add(1, Ordering::Relaxed));
        assert!(work.queue_delayed(delay));
        work
    };
    let accepted = [DAY; 2].map(work);
    let drainer = {
        let queue = queue.clone();
        thread::spawn(move || queue.drain())
    };
    until("it drains", || queue.queue(|| ()).join().is_err());
    assert!(accepted[0].mod_delayed(Duration::ZERO) && accepted[1].mod_delayed(MOMENT));
    until("they run", || runs.load(Ordering::Relaxed) == 2);
    let new = queue.work(|_| unreachable!("it was refused"));
    for delay in [Duration::ZERO, MOMENT, DAY] {
        assert!(!new.queue_delayed(delay) && !new.mod_delayed(delay) && !new.is_pending());
    }
    door.open();
    drainer.join().unwrap();
    assert!(new.queue_delayed(DAY) && new.cancel());
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[test]
fn a_work_item_of_a_destroyed_workqueue_is_refused_whatever_it_is_asked() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("gone").build().unwrap();
    let work = queue.work(|_| unreachable!("it was refused"));
    assert!(work.queue_delayed(DAY));
    queue.destroy();
    for delay in [Duration::ZERO, MOMENT] {
        assert!(!work.mod_delayed(delay) && !work.queue_delayed(delay) && !work.queue());
    }
}

#[test]
fn what_is_queued_when_the_runtime_ends_runs_though_somebody_would_move_it() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("ends").ordered().build().unwrap();
    let (door, runs) = (Door::default(), Arc::new(AtomicUsize::new(0)));
    let at = door.clone();
    queue.execute(move || at.pass());
    let (count, other) = (Arc::clone(&runs), runtime.workqueue("other").build().unwrap());
    let work = queue.work(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
    assert!(work.queue());
    let ends = thread::spawn(move || drop(runtime));
    until("others are refused", || other.queue(|| ()).join().is_err());
    for delay in [Duration::ZERO, MOMENT] {
        assert!(!work.mod_delayed(delay) && work.is_pending());
    }
    door.open();
    ends.join().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// Whether an item runs on top of the one that waits for it is chance.
#[test]
fn what_an_item_may_do_does_not_depend_on_who_waits_for_it() {
    let runtime = on("1x1x1").build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    let drained = runtime.workqueue("drained").build().unwrap();
    let [other, flushed] =
        ["other", "flushed"].map(|name| runtime.workqueue(name).build().unwrap());
    let (inner, to) = (other.clone(), flushed.clone());
    let outer = reclaim.queue(move || inner.queue(move || to.flush()).join());
    assert_eq!(outer.join().unwrap().map_err(|error| error.to_string()), Ok(()));
    let door = Door::default();
    let (at, to) = (door.clone(), drained.clone());
    let outer = drained.queue(move || {
        at.pass();
        let own = to.queue(|| ()).join();
        (own.is_ok(), other.queue(move || to.queue(|| ()).join()).join().unwrap())
    });
    let drainer = {
        let drained = drained.clone();
        thread::spawn(move || drained.drain())
    };
    until("it drains", || drained.queue(|| ()).join().is_err());
    door.open();
    assert!(matches!(outer.join().unwrap(), (true, Err(JoinError::Cancelled))));
    drainer.join().unwrap();
}

fn link(queue: &Workqueue, count: &Arc<AtomicUsize>, left: usize) {
    if left == 0 {
        return;
    }
    count.fetch_add(1, Ordering::Relaxed);
    let (chain, count) = (queue.clone(), Arc::clone(count));
    queue.execute(move || link(&chain, &count, left - 1));
}

#[test]
fn a_future_that_was_accepted_goes_on_while_its_workqueue_drains() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("drained").build().unwrap();
    let other = runtime.workqueue("other").build().unwrap();
    let (door, drained) = (Door::default(), Arc::new(AtomicBool::new(false)));
    let (at, waits) = (door.clone(), other.clone());
    let hold = door.clone();
    let future = queue.spawn(async move {
        waits.queue(move || at.pass()).await.unwrap();
        1
    });
    queue.execute(move || hold.pass());
    let drainer = {
        let (queue, drained) = (queue.clone(), Arc::clone(&drained));
        thread::spawn(move || {
            queue.drain();
            drained.store(true, Ordering::Relaxed);
        })
    };
    until("it drains", || queue.queue(|| ()).join().is_err());
    assert!(!drained.load(Ordering::Relaxed));
    door.open();
    assert_eq!(future.join().unwrap(), 1);
    drainer.join().unwrap();
}

#[test]
fn a_destroyed_workqueue_has_run_everything_and_takes_nothing() {
    let runtime = Runtime::new().unwrap();
    for mem_reclaim in [false, true] {
        let queue = runtime.workqueue("doomed");
        let queue = if mem_reclaim { queue.mem_reclaim() } else { queue }.build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let ran = Arc::clone(&ran);
            queue.execute(move || _ = ran.fetch_add(1, Ordering::Relaxed));
        }
        queue.destroy();
        assert_eq!(ran.load(Ordering::Relaxed), 1000);
        assert!(queue.queue(|| ()).join().is_err());
        queue.flush();
    }
    assert_eq!(runtime.queue(|| 1).join().unwrap(), 1, "others go on");
}

/// The workqueue is forgotten, but not by its future.
#[test]
fn a_future_of_a_destroyed_workqueue_is_cancelled_when_it_would_go_on() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("doomed").build().unwrap();
    let door = Door::default();
    let at = door.clone();
    let other = runtime.queue(move || at.pass());
    let future = queue.spawn(async move { other.await.unwrap() });
    until("it waits", || queue.counters().completed == 1);
    queue.destroy();
    runtime.workqueue("next").build().unwrap();
    door.open();
    assert!(matches!(future.join(), Err(JoinError::Cancelled)));
    queue.flush();
    assert_eq!(queue.counters().in_flight(), 0);
}

#[test]
fn flushing_across_the_reclaim_boundary_panics_and_names_both() {
    let runtime = Runtime::new().unwrap();
    let plain = runtime.workqueue("plain").build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    let other = runtime.workqueue("reclaim2").mem_reclaim().build().unwrap();
    let message = Arc::new(Mutex::new(String::new()));
    let (into, to) = (Arc::clone(&message), plain.clone());
    reclaim
        .queue(move || {
            *into.lock().unwrap() = crate::helpers::panic_of(|| to.flush());
            other.flush();
        })
        .join()
        .unwrap();
    let message = message.lock().unwrap();
    assert!(message.contains("plain") && message.contains("reclaim"), "{message}");
    let to = reclaim.clone();
    plain.queue(move || to.flush()).join().unwrap();
}

#[test]
fn flush_waits_for_what_another_item_of_the_batch_has_ended_although_the_next_one_blocks() {
    let runtime = on("1x1x1").build().unwrap();
    let (short, long) =
        (runtime.workqueue("short").build().unwrap(), runtime.workqueue("long").build().unwrap());
    // Tiny items are taken many at a time.
    for _ in 0..1000 {
        short.execute(|| ());
    }
    short.flush();
    for _ in 0..50 {
        let (hold, door) = (Door::default(), Door::default());
        let at = hold.clone();
        runtime.queue(move || at.pass()).detach();
        short.execute(|| ());
        let at = door.clone();
        long.execute(move || at.pass());
        hold.open();
        short.flush();
        door.open();
        long.flush();
    }
}

/// The worker of the run has lost its CPU, so nobody looks at that worker any more.
#[test]
fn flush_waits_for_a_run_that_blocked_and_not_for_the_one_behind_it() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("flushed").build().unwrap();
    let (doors, runs) = ([Door::default(), Door::default()], Arc::new(AtomicUsize::new(0)));
    let (at, count) = (doors.clone(), Arc::clone(&runs));
    let work = queue.work(move |_| at[count.fetch_add(1, Ordering::SeqCst)].pass());
    work.queue();
    until("it runs", || work.is_running());
    let flusher = {
        let queue = queue.clone();
        let flush = queue.flushed();
        thread::spawn(move || runtime_of(&queue).spawn(flush).join().unwrap())
    };
    // Another thread gets the CPU, and leaves this instance to the one that runs.
    work.queue();
    thread::sleep(Duration::from_millis(60));
    doors[0].open();
    until("the flush ends", || flusher.is_finished());
    until("the next one runs", || work.is_running());
    doors[1].open();
    work.flush();
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

struct Counted(AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_flush_that_is_given_up_leaves_nothing() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("flushed").build().unwrap();
    let work = queue.work(|_| ());
    work.queue_delayed(Duration::from_secs(3600));
    let counted = Arc::new(Counted(AtomicUsize::new(0)));
    for _ in 0..1000 {
        let waker = Waker::from(Arc::clone(&counted));
        let mut flushed = Box::pin(work.flushed());
        assert!(flushed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let kept = Arc::strong_count(&counted) - 1;
    work.cancel();
    assert!(kept < 100, "{kept} wakers of futures that are gone");
}
