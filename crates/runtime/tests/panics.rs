//! Panics that come from where nobody expects them: they end where they arose.

mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use homing_runtime::{JoinError, Runtime};

use waiting::wait_until;

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        // A second panic at a time would end the process.
        assert!(thread::panicking(), "a bomb was dropped");
    }
}

/// Whether every worker still works.
fn all_work(runtime: &Runtime) {
    let queue = runtime.workqueue("alive").affinity_strict(true).build().unwrap();
    queue.set_affinity_scope(homing_runtime::Scope::Cpu).unwrap();
    for cpu in runtime.cpus().iter() {
        let item = queue.queue_on(cpu, || ()).unwrap();
        wait_until("an item of a CPU", || item.is_finished());
    }
}

#[test]
fn what_an_item_panicked_with_may_panic_when_it_is_dropped() {
    let runtime = Runtime::new().unwrap();
    for _ in 0..16 {
        runtime.events().execute(|| panic_any(Bomb));
        runtime.queue(|| panic_any(Bomb)).detach();
    }
    wait_until("panicking", || runtime.events().counters().panicked == 32);
    all_work(&runtime);
}

/// A waker may be anybody's code.
#[test]
fn a_waker_may_panic_when_what_it_waits_for_ends() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic_any(Bomb);
        }
    }
    let runtime = Runtime::new().unwrap();
    for of_future in [true, false] {
        let (go, gone) = mpsc::channel();
        let mut handle = if of_future {
            runtime.spawn(async move { gone.recv().unwrap() })
        } else {
            runtime.queue(move || gone.recv().unwrap())
        };
        let waker = Waker::from(Arc::new(Panics));
        for _ in 0..2 {
            let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        go.send(7).unwrap();
        wait_until("the end", || handle.is_finished());
        assert_eq!(handle.join().unwrap(), 7);
    }
    all_work(&runtime);
}

#[test]
fn a_scope_waits_for_its_items_whatever_the_others_panicked_with() {
    let runtime = Runtime::new().unwrap();
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let body = || {
        runtime.scope(|scope| {
            scope.queue(|| {
                begun.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(100));
                ended.store(true, Ordering::SeqCst);
            });
            wait_until("beginning", || begun.load(Ordering::SeqCst));
            (0..2).for_each(|_| scope.queue(|| panic_any(Bomb)));
        });
    };
    let panic = catch_unwind(AssertUnwindSafe(body)).unwrap_err();
    assert!(ended.load(Ordering::SeqCst), "what the item borrows is gone");
    assert!(panic.is::<Bomb>());
    std::mem::forget(panic);
}

/// A future that holds a bomb, and ends at its first go or never.
struct Explosive {
    ends: bool,
    _bomb: Bomb,
}

impl Explosive {
    fn new(ends: bool) -> Self {
        Self { ends, _bomb: Bomb }
    }
}

impl Future for Explosive {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.ends { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn a_future_may_panic_when_it_is_dropped() {
    let runtime = Runtime::new().unwrap();
    let error = runtime.spawn(Explosive::new(true)).join().unwrap_err();
    assert!(matches!(error, JoinError::Panicked(_)), "as of an item: {error}");
    let [aborted, left, detached] = [(); 3].map(|()| runtime.spawn(Explosive::new(false)));
    assert!(aborted.abort());
    detached.detach();
    runtime.spawn(async { panic_any(Bomb) }).detach();
    runtime.spawn(async { Bomb }).detach();
    all_work(&runtime);
    let events = runtime.events().clone();
    drop(runtime);
    assert!(matches!(left.join(), Err(JoinError::Cancelled)));
    // This one never begins.
    assert!(events.spawn(Explosive::new(false)).join().is_err());
}

/// A future's panic goes to its handle, and where there is none it shows in the counters alone.
#[test]
fn futures_that_panic_are_counted_and_what_runs_on_top_of_them_is_not_mistaken_for_them() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("futures").build().unwrap();
    assert!(matches!(
        queue.spawn(async { panic!("in a future") }).join(),
        Err(JoinError::Panicked(_))
    ));
    queue.spawn(async { panic!("in a future nobody waits for") }).detach();
    let bomb = Bomb;
    let held = queue.spawn(async move { drop(bomb) });
    assert!(held.join().is_err());
    wait_until("counting", || queue.counters().panicked == 3);
    // The first one runs while the second waits for it, mostly on its thread.
    let inner = queue.clone();
    let outer = queue.spawn(async move { inner.spawn(async { panic!("within") }).join().is_err() });
    assert!(outer.join().unwrap());
    wait_until("counting", || queue.counters().completed == 5);
    assert_eq!(queue.counters().panicked, 4);
}
