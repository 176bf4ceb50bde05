//! The kernel's contract under a randomized scheduler: `cargo xtask shuttle`. Whole runtimes, whose
//! work items, flushes, limits and ends are used by several threads at a time. Timers of a few
//! nanoseconds come here, others never do.

use std::time::Duration;

use homing_topology::{CpuId, Scope};
use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use crate::models::shuttle_tests::{check, runtime};
use crate::{JoinError, Runtime, Work, Workqueue, blocking};

#[derive(Default)]
struct Counts {
    queued: AtomicUsize,
    cancelled: AtomicUsize,
    runs: AtomicUsize,
    inside: AtomicUsize,
}

impl Counts {
    fn enter(&self, most: usize) {
        assert!(self.inside.fetch_add(1, SeqCst) < most, "more than {most} at a time");
        self.runs.fetch_add(1, SeqCst);
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, SeqCst);
    }

    fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }
}

/// A work item that counts what becomes of it.
#[derive(Clone)]
struct Counted {
    work: Work,
    counts: Arc<Counts>,
}

impl Counted {
    /// A work item whose first `again` runs queue it again.
    fn new(queue: &Workqueue, again: usize) -> Self {
        let counts = Arc::new(Counts::default());
        let of = Arc::clone(&counts);
        let work = queue.work(move |work| {
            of.enter(1);
            if of.runs() <= again && work.queue() {
                of.queued.fetch_add(1, SeqCst);
            }
            of.leave();
        });
        Self { work, counts }
    }

    fn count_queued(&self, queued: bool) {
        self.counts.queued.fetch_add(usize::from(queued), SeqCst);
    }

    fn count_cancelled(&self, cancelled: bool) {
        self.counts.cancelled.fetch_add(usize::from(cancelled), SeqCst);
    }

    fn queue_on(&self, cpu: usize) {
        self.count_queued(self.work.queue_on(CpuId::new(cpu).unwrap()).unwrap());
    }

    /// For a work item that is never disabled.
    fn mod_delayed(&self, ns: u64) {
        self.count_queued(true);
        self.count_cancelled(self.work.mod_delayed(Duration::from_nanos(ns)));
    }

    fn spawn(&self, go: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let counted = self.clone();
        thread::spawn(move || go(&counted))
    }

    /// Every instance that was accepted has run once, or was cancelled once.
    fn check_end(&self) {
        while self.work.flush() {}
        let Counts { queued, cancelled, .. } = &*self.counts;
        assert_eq!(queued.load(SeqCst), self.counts.runs() + cancelled.load(SeqCst));
        assert!(!self.work.is_pending() && !self.work.is_running());
    }
}

/// A workqueue whose CPUs are each a pod, so that instances of a work item meet its run.
fn by_cpu(runtime: &Runtime) -> Workqueue {
    runtime.workqueue("test").affinity_scope(Scope::Cpu).build().unwrap()
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// An item that gives others a turn, and counts.
fn counting(counts: &Arc<Counts>, most: usize) -> impl FnOnce() + Send + 'static {
    let counts = Arc::clone(counts);
    move || {
        counts.enter(most);
        blocking(thread::yield_now);
        counts.leave();
    }
}

#[test]
fn what_is_queued_from_everywhere_runs_once_or_is_cancelled_once() {
    check(|| {
        let runtime = runtime("1x2x1");
        let work = Counted::new(&by_cpu(&runtime), 1);
        let others = [
            work.spawn(|work| (0..3).for_each(|cpu| work.queue_on(cpu % 2))),
            work.spawn(|work| {
                work.mod_delayed(0);
                work.count_cancelled(work.work.cancel());
            }),
        ];
        work.queue_on(1);
        work.mod_delayed(0);
        join(others);
        work.check_end();
        assert_eq!(work.work.workqueue().counters().panicked, 0);
        let queue = work.work.workqueue().clone();
        queue.flush();
        assert_eq!(queue.counters().in_flight(), 0);
    });
}

#[test]
fn after_cancel_sync_it_neither_runs_nor_is_pending() {
    check(|| {
        let runtime = runtime("1x2x1");
        let work = Counted::new(&by_cpu(&runtime), 3);
        let other = work.spawn(|work| work.queue_on(0));
        work.queue_on(1);
        other.join().unwrap();
        work.count_cancelled(work.work.cancel_sync());
        assert!(!work.work.is_pending() && !work.work.is_running());
        assert_eq!(work.counts.inside.load(SeqCst), 0);
        work.queue_on(0);
        work.check_end();
    });
}

#[test]
fn two_cancel_at_once_and_one_queues() {
    check(|| {
        let runtime = runtime("1x2x1");
        let work = Counted::new(&by_cpu(&runtime), 1);
        let others = [
            work.spawn(|work| work.count_cancelled(work.work.cancel_sync())),
            work.spawn(|work| (0..2).for_each(|cpu| work.queue_on(cpu))),
        ];
        work.queue_on(0);
        work.count_cancelled(work.work.cancel_sync());
        join(others);
        work.check_end();
        assert!(!work.work.is_disabled());
    });
}

#[test]
fn while_it_is_disabled_it_does_not_run() {
    check(|| {
        let runtime = runtime("1x2x1");
        let work = Counted::new(&by_cpu(&runtime), 0);
        let other = work.spawn(|work| (0..3).for_each(|cpu| work.queue_on(cpu % 2)));
        work.count_cancelled(work.work.disable_sync());
        let before = work.counts.runs();
        thread::yield_now();
        assert_eq!((work.counts.runs(), work.counts.inside.load(SeqCst)), (before, 0));
        assert!(work.work.enable());
        other.join().unwrap();
        work.check_end();
    });
}

#[test]
fn what_was_written_before_a_refused_queueing_is_seen_and_flush_waits_for_it() {
    check(|| {
        let runtime = runtime("1x2x1");
        let (written, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (from, to) = (Arc::clone(&written), Arc::clone(&seen));
        let work = by_cpu(&runtime).work(move |_| to.store(from.load(SeqCst), SeqCst));
        let issue = move |work: &Work, cpu: usize| {
            let mine = written.fetch_add(1, SeqCst) + 1;
            work.queue_on(CpuId::new(cpu).unwrap()).unwrap();
            work.flush();
            assert!(seen.load(SeqCst) >= mine, "an event was lost");
        };
        let others = [0, 1].map(|cpu| {
            let (work, issue) = (work.clone(), issue.clone());
            thread::spawn(move || issue(&work, cpu))
        });
        issue(&work, 0);
        join(others);
    });
}

#[test]
fn each_flush_waits_for_what_its_caller_has_queued() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").affinity_scope(Scope::System).build().unwrap();
        let go = move |queue: &Workqueue| {
            let ran = Arc::new(AtomicUsize::new(0));
            for round in 1..=2 {
                let count = Arc::clone(&ran);
                queue.execute(move || _ = count.fetch_add(1, SeqCst));
                queue.flush();
                assert_eq!(ran.load(SeqCst), round);
            }
        };
        let others = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || go(&queue))
        });
        go(&queue);
        join(others);
        assert_eq!(queue.counters().in_flight(), 0);
    });
}

/// The newcomer waits for the thread that flushes.
#[test]
fn newcomers_do_not_hold_a_flush_up() {
    check(|| {
        let runtime = runtime("1x1x1");
        let queue = runtime.workqueue("test").build().unwrap();
        let (open, gone) = shuttle::sync::mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        queue.execute(|| blocking(thread::yield_now));
        let flush = queue.flushed();
        let newcomer = queue.queue(move || blocking(|| gone.lock().unwrap().recv().unwrap()));
        runtime.spawn(flush).join().unwrap();
        open.send(()).unwrap();
        newcomer.join().unwrap();
    });
}

#[test]
fn a_drain_ends_after_chains_and_others_are_run_or_refused() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").affinity_scope(Scope::System).build().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let (chain, count) = (queue.clone(), Arc::clone(&ran));
        queue.execute(move || {
            let (next, again) = (chain.clone(), Arc::clone(&count));
            chain.execute(move || {
                let last = Arc::clone(&again);
                next.execute(move || _ = last.fetch_add(1, SeqCst));
                again.fetch_add(1, SeqCst);
            });
            count.fetch_add(1, SeqCst);
        });
        let other = {
            let queue = queue.clone();
            thread::spawn(move || {
                let handle = queue.queue(|| ());
                queue.drain();
                assert!(matches!(handle.join(), Ok(()) | Err(JoinError::Cancelled)));
            })
        };
        queue.drain();
        assert_eq!(ran.load(SeqCst), 3);
        other.join().unwrap();
        assert!(queue.queue(|| ()).join().is_ok(), "it takes items again");
    });
}

#[test]
fn a_destroyed_workqueue_has_run_or_refused_everything() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").max_active(1).build().unwrap();
        let other = {
            let queue = queue.clone();
            thread::spawn(move || [(); 2].map(|()| queue.queue(|| ())))
        };
        let work = queue.work(|_| ());
        work.queue();
        queue.destroy();
        assert!(!work.queue() && !work.is_pending());
        let ended = other.join().unwrap();
        assert!(
            ended
                .into_iter()
                .all(|handle| { matches!(handle.join(), Ok(()) | Err(JoinError::Cancelled)) })
        );
    });
}

/// An instance that is refused is pending for a moment. Whoever takes it back then is told so; it
/// was queued, then.
#[test]
fn what_is_taken_back_while_it_is_refused_was_queued() {
    check(|| {
        let runtime = runtime("1x1x1");
        let queue = runtime.workqueue("test").build().unwrap();
        let work = Counted::new(&queue, 0);
        queue.destroy();
        let other = work.spawn(|work| work.count_cancelled(work.work.cancel()));
        work.count_queued(work.work.queue());
        work.count_queued(work.work.queue_delayed(Duration::from_secs(3600)));
        join([other]);
        work.check_end();
    });
}

/// The same behind a gate that is emptied for good.
#[test]
fn what_is_taken_back_behind_a_closed_gate_was_queued() {
    check(|| {
        let runtime = runtime("1x1x1");
        let queue = runtime.workqueue("test").freezable().build().unwrap();
        queue.freeze(Duration::MAX).unwrap();
        let work = Counted::new(&queue, 0);
        let others = [
            work.spawn(|work| work.count_cancelled(work.work.cancel())),
            work.spawn(|work| work.count_queued(work.work.queue())),
        ];
        runtime.shutdown_now();
        join(others);
        let Counts { queued, cancelled, .. } = &*work.counts;
        assert!(cancelled.load(SeqCst) <= queued.load(SeqCst));
    });
}

#[test]
fn an_ordered_workqueue_keeps_each_issuers_order_while_its_scope_changes() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").ordered().build().unwrap();
        let (order, counts) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Counts::default()));
        let issuers = [0, 10].map(|first| {
            let (queue, order) = (queue.clone(), Arc::clone(&order));
            let counts = Arc::clone(&counts);
            thread::spawn(move || {
                for number in first..first + 3 {
                    let (order, counts) = (Arc::clone(&order), Arc::clone(&counts));
                    let cpu = CpuId::new(number % 2).unwrap();
                    let item = move || {
                        counts.enter(1);
                        order.lock().unwrap().push(number);
                        blocking(thread::yield_now);
                        counts.leave();
                    };
                    queue.queue_on(cpu, item).unwrap().detach();
                }
            })
        });
        queue.set_affinity_scope(Scope::Cpu).unwrap();
        queue.set_affinity_scope(Scope::System).unwrap();
        join(issuers);
        queue.flush();
        let order = order.lock().unwrap();
        let of =
            |first: usize| order.iter().copied().filter(move |number| number / 10 * 10 == first);
        assert!(of(0).eq(0..3) && of(10).eq(10..13), "{order:?}");
    });
}

#[test]
fn never_more_than_max_active_run_while_items_end_and_limits_change() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").max_active(2).build().unwrap();
        let counts = Arc::new(Counts::default());
        let issuers = [0, 1].map(|_| {
            let (queue, counts) = (queue.clone(), Arc::clone(&counts));
            thread::spawn(move || (0..3).for_each(|_| queue.execute(counting(&counts, 2))))
        });
        let work = queue.work(|_| ());
        work.queue();
        queue.set_max_active(Some(1)).unwrap();
        work.cancel();
        queue.set_max_active(Some(2)).unwrap();
        join(issuers);
        queue.flush();
        assert_eq!((counts.runs(), queue.counters().in_flight()), (6, 0));
    });
}

#[test]
fn between_freeze_and_thaw_nothing_runs_and_afterwards_everything_does() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").freezable().build().unwrap();
        let counts = Arc::new(Counts::default());
        let issuer = {
            let (queue, counts) = (queue.clone(), Arc::clone(&counts));
            thread::spawn(move || (0..4).for_each(|_| queue.execute(counting(&counts, 4))))
        };
        queue.freeze(Duration::MAX).unwrap();
        let before = counts.runs();
        thread::yield_now();
        assert_eq!((counts.runs(), counts.inside.load(SeqCst)), (before, 0));
        queue.thaw();
        issuer.join().unwrap();
        queue.flush();
        assert_eq!((counts.runs(), queue.counters().in_flight()), (4, 0));
    });
}

#[test]
fn at_shutdown_whoever_waits_for_what_is_behind_a_gate_goes_on() {
    check(|| {
        let runtime = runtime("1x2x1");
        let queue = runtime.workqueue("test").max_active(1).build().unwrap();
        let work = Counted::new(&queue, 0);
        let issuer = {
            let (queue, work) = (queue.clone(), work.clone());
            thread::spawn(move || {
                let handles = [(); 3].map(|()| queue.queue(|| blocking(thread::yield_now)));
                work.work.queue();
                work.work.flush();
                queue.flush();
                handles
            })
        };
        let later = queue.work(|_| ());
        later.queue_delayed(Duration::from_secs(1));
        let waits = {
            let later = later.clone();
            thread::spawn(move || _ = later.flush())
        };
        runtime.shutdown_now();
        let handles = issuer.join().unwrap();
        let ran = handles.into_iter().filter(|handle| handle.is_finished()).count();
        assert_eq!(ran, 3, "a handle has not ended");
        waits.join().unwrap();
        assert!(!later.is_pending() && !work.work.is_pending());
        assert_eq!(queue.counters().in_flight(), 0);
    });
}

#[test]
fn timers_that_are_moved_and_cancelled_fire_once_or_not_at_all() {
    check(|| {
        let runtime = runtime("1x2x1");
        let work = Counted::new(&by_cpu(&runtime), 0);
        let others = [
            work.spawn(|work| {
                work.count_queued(work.work.queue_delayed(Duration::from_nanos(7)));
                work.mod_delayed(3);
            }),
            work.spawn(|work| {
                work.count_cancelled(work.work.cancel());
                work.work.flush_delayed();
            }),
        ];
        work.count_queued(work.work.queue_delayed(Duration::from_nanos(5)));
        work.queue_on(1);
        work.mod_delayed(9);
        join(others);
        work.check_end();
    });
}
