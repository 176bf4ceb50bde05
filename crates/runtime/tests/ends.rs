//! How things end: chains of futures, shutdowns with a deadline, flushes that are given up, freezing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{Builder, CpuId, CpuSet, Runtime, Scope, blocking};
use homing_topology::Machine;

/// More than fit on a stack of 2 MiB one in the other.
const CHAIN: usize = 20_000;

fn on(grid: &str) -> Builder {
    Runtime::builder().on_machine(Machine::from_grid(grid).unwrap())
}

fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(10), "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
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
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on("1x1x1").refuse_threads(Arc::clone(&refuse)).build().unwrap();
    let reclaim = runtime.workqueue("reclaim").mem_reclaim().build().unwrap();
    refuse.store(true, Ordering::SeqCst);
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

#[test]
fn what_waits_on_a_node_that_has_lost_its_cpus_runs() {
    let runtime = on("2x1x2x1").build().unwrap();
    let queue = runtime.workqueue("limited").max_active(2).affinity_scope(Scope::Numa);
    let queue = queue.build().unwrap();
    queue.set_min_active(0).unwrap();
    let cpu = |number| CpuId::new(number).unwrap();
    let (go, goes) = mpsc::channel::<()>();
    // Node 1 may have one at a time.
    let first = queue.queue_on(cpu(2), move || _ = goes.recv()).unwrap();
    let second = queue.queue_on(cpu(2), || ()).unwrap();
    queue.set_cpumask(Some(CpuSet::of(cpu(0)))).unwrap();
    drop(go);
    first.join().unwrap();
    queue.queue(|| ()).join().unwrap();
    until("the second one runs", || second.is_finished());
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

#[test]
fn frozen_means_that_nothing_runs_also_where_it_was_thawed_in_between() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("freezes").freezable().build().unwrap();
    let (go, goes) = mpsc::channel::<()>();
    let item = queue.queue(move || blocking(|| _ = goes.recv()));
    thread::sleep(Duration::from_millis(20));
    let froze_beside = {
        let queue = queue.clone();
        thread::spawn(move || queue.freeze(Duration::from_secs(2)))
    };
    thread::sleep(Duration::from_millis(50));
    queue.thaw();
    let again = {
        let queue = queue.clone();
        thread::spawn(move || queue.freeze(Duration::from_secs(1)))
    };
    let said = froze_beside.join().unwrap();
    assert!(said.is_err() || item.is_finished(), "it is frozen, and an item runs");
    drop(go);
    _ = again.join().unwrap();
}
