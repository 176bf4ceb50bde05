//! How often queueing and running an item allocates: at most once, and not at all if its memory is
//! kept for the next item, or the item is the caller's own.

#[path = "../../sched/tests/counting/mod.rs"]
mod counting;

use std::sync::mpsc;
use std::thread;

use homing_runtime::{Runtime, Scope, Workqueue};

const ITEMS: u64 = 10_000;

/// The number of allocations that 10,000 items take at least, on the thread that issues them and on
/// the one worker that runs them. At least, because a worker that does not get its CPU gives no
/// memory back.
fn allocated(workqueue: &Workqueue, issue: impl Fn(&Workqueue)) -> (u64, u64) {
    // Not by joining a handle, which may run the item here.
    let on_the_worker = || {
        let (tell, told) = mpsc::sync_channel(1);
        workqueue.execute(move || tell.send((thread::current().id(), counting::count())).unwrap());
        told.recv().unwrap()
    };
    // Tables that grow with the first items, such as those of counters, do not count.
    issue(workqueue);
    workqueue.flush();
    let once = || {
        let (worker, before) = on_the_worker();
        let issuing = counting::during(|| issue(workqueue));
        workqueue.flush();
        let (same, after) = on_the_worker();
        // If the worker was taken to be blocked, another thread has its CPU.
        (same == worker).then(|| (issuing, after - before))
    };
    let counted = std::iter::repeat_with(once).flatten();
    counted.take(5).min().unwrap()
}

#[test]
fn an_item_is_allocated_once_and_nothing_else_is() {
    let first = Runtime::new().unwrap().cpus().first().unwrap();
    let one = homing_runtime::CpuSet::of(first);
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let items = runtime.workqueue("items").affinity_scope(Scope::Cache).build().unwrap();
    let several = |issue: &dyn Fn(&Workqueue)| (0..ITEMS).for_each(|_| issue(&items));
    // Allocations that come by themselves, and a handful for the threads' own needs.
    let few = |count: u64| count < ITEMS / 100;

    let (issuing, running) = allocated(&items, |q| several(&|_| q.execute(|| ())));
    // Most items of a usual size are in the memory of earlier ones, so not each of them allocates.
    let most_kept = |count: u64| count < ITEMS * 9 / 10;
    assert!(most_kept(issuing) && few(running), "execute: {issuing} and {running}");
    let (issuing, running) = allocated(&items, |q| several(&|_| drop(q.queue(|| [1_u64; 4]))));
    assert!(most_kept(issuing) && few(running), "queue: {issuing} and {running}");
    let (issuing, running) = allocated(&items, |q| several(&|_| drop(q.queue(|| [1_u64; 400]))));
    assert!(issuing <= ITEMS && few(running), "queue of long ones: {issuing} and {running}");
    let (issuing, running) = allocated(&items, |q| several(&|_| drop(q.spawn(async { 1 }))));
    assert!(issuing <= ITEMS + 10 && few(running), "spawn: {issuing} and {running}");
    let (issuing, running) =
        allocated(&items, |q| several(&|_| drop(q.queue_on(first, || ()).unwrap())));
    assert!(most_kept(issuing) && few(running), "queue_on: {issuing} and {running}");
    let (issuing, running) = allocated(&items, |q| q.execute_batch((0..ITEMS).map(|_| || ())));
    assert!(issuing <= ITEMS + 10 && few(running), "execute_batch: {issuing} and {running}");
    let (issuing, running) = allocated(&items, |q| {
        q.scope(|scope| (0..ITEMS).for_each(|_| scope.queue(|| ())));
    });
    assert!(issuing <= ITEMS + 10 && few(running), "scope: {issuing} and {running}");
}

/// In a future of the runtime: what another executor does when it is woken is not known.
#[test]
fn who_awaits_a_future_allocates_nothing_for_it() {
    let first = Runtime::new().unwrap().cpus().first().unwrap();
    let runtime = Runtime::builder().cpus(homing_runtime::CpuSet::of(first)).build().unwrap();
    let items = runtime.workqueue("items").build().unwrap();
    let awaiting = items.clone();
    let allocated = runtime.spawn(async move {
        let mut before = 0;
        for number in 0..2 * ITEMS {
            // Tables that grow with the first items do not count.
            if number == ITEMS {
                before = counting::count();
            }
            awaiting.spawn(async {}).await.unwrap();
        }
        counting::count() - before
    });
    let allocated = allocated.join().unwrap();
    assert!(allocated <= ITEMS + ITEMS / 100, "{allocated}");
}

/// A work item is made once and queued again and again.
#[test]
fn a_work_item_takes_nothing_when_it_is_queued_again() {
    let runtime = Runtime::new().unwrap();
    let items = runtime.workqueue("items").build().unwrap();
    let (ran, runs) = mpsc::sync_channel(1);
    let work = items.work(move |_| ran.send(()).unwrap());
    let mut allocated = 0;
    for _ in 0..1_000 {
        allocated += counting::during(|| assert!(work.queue()));
        runs.recv().unwrap();
        work.flush();
    }
    assert!(allocated < 10, "{allocated}");
}
