//! What runs between items, or when they are over, is not part of any: wakers, and what results do
//! when they are dropped. And an item that would wait for itself is told so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use homing_runtime::{JoinHandle, Runtime, Workqueue};

use crate::helpers::{Door, SOON, on, panic_of, until, with_a_rescuer};

/// Calls a function when it is dropped or woken, and says so.
struct Calls<F: FnMut() + Send>(Mutex<F>, mpsc::SyncSender<()>);

impl<F: FnMut() + Send> Calls<F> {
    fn call(&self) {
        (self.0.lock().unwrap())();
        let _ = self.1.try_send(());
    }
}

struct WhenDropped<F: FnMut() + Send>(Calls<F>);

impl<F: FnMut() + Send> Drop for WhenDropped<F> {
    fn drop(&mut self) {
        self.0.call();
    }
}

impl<F: FnMut() + Send> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

fn padded<const WORDS: usize>(queue: &Workqueue) -> usize {
    let padding = [1_usize; WORDS];
    queue.queue(move || padding.iter().sum()).join().unwrap()
}

#[test]
fn a_result_that_nobody_takes_may_wait_for_others_as_it_goes() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("dropped").build().unwrap();
    for _ in 0..200 {
        let (tell, told) = mpsc::sync_channel(1);
        let inner = queue.clone();
        // Items of all sizes, so that one of them has the place that this one had.
        let call = move || {
            let sums = [padded::<0>(&inner), padded::<2>(&inner), padded::<4>(&inner)];
            let more = [padded::<6>(&inner), padded::<8>(&inner), padded::<10>(&inner)];
            assert_eq!((sums, more), ([0, 2, 4], [6, 8, 10]));
        };
        queue.queue(move || WhenDropped(Calls(Mutex::new(call), tell))).detach();
        told.recv_timeout(SOON).expect("it has run to its end");
    }
}

#[test]
fn whoever_is_woken_may_queue_join_and_flush() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("flushed").build().unwrap();
    for _ in 0..200 {
        let (tell, told) = mpsc::sync_channel(1);
        let (door, inner) = (Door::default(), queue.clone());
        let at = door.clone();
        queue.execute(move || at.pass());
        let mut flushed = Box::pin(queue.flushed());
        let call = move || {
            assert_eq!(padded::<1>(&inner), 1);
            inner.flush();
        };
        let waker = Waker::from(Arc::new(Calls(Mutex::new(call), tell)));
        assert!(flushed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        door.open();
        told.recv_timeout(SOON).expect("it has run to its end");
    }
}

/// If another thread came for the next instance of a work item during a run, that instance is in no
/// queue any more: the thread of the run runs it.
#[test]
fn whoever_is_woken_and_flushes_what_his_thread_runs_next_is_told_and_may_cancel_it() {
    let runtime = on("1x2x1").build().unwrap();
    let mut told = 0;
    for cancels in (0..40).map(|round| round % 2 == 1) {
        let door = Door::default();
        let inside = door.clone();
        let work = runtime.events().work(move |_| inside.pass());
        let (say, said) = mpsc::channel();
        let again = work.clone();
        let call = move || {
            let wait = || if cancels { again.cancel_sync() } else { again.flush() };
            say.send(catch_unwind(AssertUnwindSafe(wait)).is_err()).unwrap();
        };
        let waker = Waker::from(Arc::new(Calls(Mutex::new(call), mpsc::sync_channel(1).0)));
        assert!(work.queue());
        until("it runs", || work.is_running());
        let mut flushed = Box::pin(work.flushed());
        assert!(flushed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(work.queue());
        // Mostly another worker has come for it by then.
        thread::sleep(Duration::from_millis(2));
        door.open();
        let is_told = said.recv_timeout(SOON).expect("it does not wait for its own thread");
        assert!(!(cancels && is_told), "what is taken back nobody waits for");
        told += usize::from(is_told);
        work.flush();
    }
    assert!(told > 0, "or this shows nothing");
}

#[test]
fn whoever_is_woken_and_joins_what_his_thread_runs_next_is_told_or_runs_it() {
    for limited in [false, true] {
        let runtime = on("1x1x1").build().unwrap();
        let one = runtime.workqueue("one").build().unwrap();
        let other = runtime.workqueue("other");
        let other = if limited { other.max_active(5) } else { other }.build().unwrap();
        for _ in 0..200 {
            let (door, spins) =
                (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (at, began) = (Arc::clone(&door), Arc::clone(&spins));
            let first = runtime.events().queue(move || {
                began.store(true, Ordering::SeqCst);
                while !at.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
            });
            until("it runs", || spins.load(Ordering::SeqCst));
            one.execute(|| ());
            let next = Mutex::new(Some(other.queue(|| 7)));
            let (say, said) = mpsc::channel();
            let call = move || {
                let next = next.lock().unwrap().take().unwrap();
                let joined = catch_unwind(AssertUnwindSafe(|| next.join().unwrap()));
                say.send(joined.unwrap_or(0)).unwrap();
            };
            let waker = Waker::from(Arc::new(Calls(Mutex::new(call), mpsc::sync_channel(1).0)));
            let mut flushed = Box::pin(one.flushed());
            assert!(flushed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            door.store(true, Ordering::SeqCst);
            first.join().unwrap();
            let joined = said.recv_timeout(SOON).expect("it does not wait for its own thread");
            assert!(joined == 7 || limited);
            other.flush();
        }
        assert_eq!(other.counters().completed, 200);
    }
}

/// Unless the rescuer is to run an item of that workqueue next, which it may hold alone.
#[test]
fn whoever_a_rescuer_wakes_may_flush() {
    for again in [false, true] {
        let (runtime, reclaim, refuse) = with_a_rescuer();
        let (blocks, door) = (Door::default(), Door::default());
        let at = blocks.clone();
        let blocked = runtime.queue(move || at.pass());
        until("it blocks", || runtime.events().counters().started == 1);
        let at = door.clone();
        let work = reclaim.work(move |_| at.pass());
        assert!(work.queue());
        until("it runs", || work.is_running());
        let (say, said) = mpsc::channel();
        let inner = reclaim.clone();
        let call = move || say.send(catch_unwind(AssertUnwindSafe(|| inner.flush())).is_err());
        let waker = Waker::from(Arc::new(Calls(
            Mutex::new(move || call().unwrap()),
            mpsc::sync_channel(1).0,
        )));
        let mut flushed = Box::pin(reclaim.flushed());
        assert!(flushed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        blocks.open();
        blocked.join().unwrap();
        if again {
            assert!(work.queue());
            thread::sleep(Duration::from_millis(20)); // mostly the worker has come to it by then
        }
        door.open();
        let told = said.recv_timeout(SOON).expect("it waits for nothing of its own");
        assert!(again || !told);
        work.flush();
        assert!(reclaim.counters().rescued > 0);
        refuse.store(false, Ordering::Relaxed);
    }
}

/// The new future may have the place of the one that has just ended.
#[test]
fn whoever_a_future_wakes_at_its_end_may_join_another_one() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("futures").build().unwrap();
    for _ in 0..200 {
        let (tell, told) = mpsc::sync_channel(1);
        let (go, wait) = mpsc::channel::<()>();
        let inner = queue.clone();
        let call = move || assert_eq!(inner.spawn(async { 1 }).join().unwrap(), 1);
        let waker = Waker::from(Arc::new(Calls(Mutex::new(call), tell)));
        let mut first = queue.spawn(async move { wait.recv().map_or(0, |()| 1) });
        let first = std::pin::Pin::new(&mut first);
        if first.poll(&mut Context::from_waker(&waker)).is_pending() {
            go.send(()).unwrap();
            told.recv_timeout(SOON).expect("it has run to its end");
        }
    }
}

#[test]
fn a_future_that_joins_itself_is_told() {
    let runtime = on("1x1x1").build().unwrap();
    let (give, own) = mpsc::channel::<JoinHandle<()>>();
    let (say, said) = mpsc::channel();
    let handle = runtime.spawn(async move {
        let own = own.recv().unwrap();
        _ = say.send(panic_of(|| _ = own.join()));
    });
    give.send(handle).unwrap();
    assert_eq!(said.recv_timeout(SOON).unwrap(), "an item waits for itself");
    // Another future is not mistaken for it.
    let events = runtime.events().clone();
    let sum = runtime.spawn(async move { events.spawn(async { 1 }).join().unwrap() + 1 });
    assert_eq!(sum.join().unwrap(), 2);
}
