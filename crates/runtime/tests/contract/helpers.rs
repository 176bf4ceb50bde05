//! What the tests share: runtimes of machines that are not here, items that wait, counts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use homing_runtime::{Builder, JoinHandle, Runtime, Workqueue, blocking};
use homing_topology::Machine;

/// How long something may take on a machine that others use too.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A runtime that decides as if it had this machine.
pub(crate) fn on(grid: &str) -> Builder {
    Runtime::builder().on_machine(Machine::from_grid(grid).unwrap())
}

/// A runtime of one CPU that gets no more threads, and a workqueue of it that has a rescuer.
/// Threads are to be had again once the flag is cleared.
pub(crate) fn with_a_rescuer() -> (Runtime, Workqueue, Arc<AtomicBool>) {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on("1x1x1").refuse_threads(Arc::clone(&refuse)).build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    refuse.store(true, Ordering::SeqCst);
    (runtime, reclaim, refuse)
}

/// A door that items wait at.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open; a worker lets its CPU go meanwhile.
    pub(crate) fn pass(&self) {
        blocking(|| {
            let open = self.0.0.lock().unwrap();
            let waited = self.0.1.wait_timeout_while(open, SOON, |open| !*open).unwrap();
            assert!(!waited.1.timed_out(), "the door was never opened");
        });
    }
}

/// How many are inside at present, and the most that ever were at a time.
#[derive(Clone, Default)]
pub(crate) struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Crowd {
    pub(crate) fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

/// Waits until `so` returns `true`.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The message that `run` panics with.
pub(crate) fn panic_of(run: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap()
}

/// Blocks all threads but one of a runtime that gets no more, until the door opens.
pub(crate) fn all_but_one_blocked(runtime: &Runtime) -> (Door, Vec<JoinHandle<()>>) {
    let (door, first) = (Door::default(), Door::default());
    let mut blocked = Vec::new();
    while blocked.len() < runtime.thread_count() {
        let at = if blocked.is_empty() { first.clone() } else { door.clone() };
        blocked.push(runtime.queue(move || at.pass()));
        until("it blocks", || runtime.events().counters().started == blocked.len() as u64);
    }
    first.open();
    blocked.swap_remove(0).join().unwrap();
    (door, blocked)
}
