//! Work items, and those who wait for them, under the model checker: `cargo xtask loom`.
//!
//! A thread that makes an instance here is also the worker that comes to it, at once. So two
//! threads meet at a run, its end and what is kept behind it in every way there is. What is only
//! counted is counted by the standard library's atomics, which the checker does not see.

use std::sync::atomic::{AtomicBool as PlainBool, AtomicUsize as Plain};
use std::sync::{Arc, Mutex as PlainMutex};

use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use loom::sync::atomic::{AtomicUsize, fence};
use loom::thread;

use crate::handles::waits::Waits;
use crate::item::{Awaited, Books, Context, Instance, Item, Node, Ran, SharedNode, Tag};
use crate::models::loom_bed::{block, check};

const TAG: Tag = Tag::new(1, 0);

#[derive(Default)]
struct Counts {
    queued: Plain,
    cancelled: Plain,
    runs: Plain,
    items: Plain,
    ended: Plain,
}

impl Books for Counts {
    fn started(&self) {
        self.runs.fetch_add(1, SeqCst);
    }
    fn completed(&self, panicked: bool) {
        assert!(!panicked);
        self.ended.fetch_add(1, SeqCst);
    }
    fn aborted(&self) {
        self.ended.fetch_add(1, SeqCst);
    }
}

/// A work item and all that the models note about it.
struct World {
    counts: Counts,
    waits: Waits,
    /// Every run adds one, with no ordering of its own: a run that overlaps another one, or does
    /// not see it, loses one.
    sum: AtomicUsize,
    inside: PlainBool,
    /// What issuers write before they queue, and the runs' view of it.
    events: [AtomicUsize; 2],
    seen: [Plain; 2],
    /// Instances that the item itself has made.
    left: PlainMutex<Vec<Item>>,
}

struct Target(Arc<World>);

impl Context for Target {
    fn wake(&self, _in_hand: Option<(usize, u32)>) {
        self.0.waits.wake();
    }
    fn cancel(&self, item: Item) {
        self.0.counts.ended.fetch_add(1, SeqCst);
        item.cancel();
    }
}

#[derive(Clone)]
struct Work {
    world: Arc<World>,
    node: SharedNode<Target>,
}

impl Work {
    /// A work item whose first `again` runs queue it again.
    fn new(again: usize) -> Self {
        let world = Arc::new(World {
            counts: Counts::default(),
            waits: Waits::default(),
            sum: AtomicUsize::new(0),
            inside: PlainBool::new(false),
            events: [0, 0].map(AtomicUsize::new),
            seen: [const { Plain::new(0) }; 2],
            left: PlainMutex::default(),
        });
        let (of, mut runs) = (Arc::clone(&world), 0);
        let call = move |node: &SharedNode<Target>| {
            let world = &of;
            assert!(!world.inside.swap(true, SeqCst), "two run it at a time");
            let sum = world.sum.load(Relaxed);
            world.sum.store(sum + 1, Relaxed);
            for (event, seen) in world.events.iter().zip(&world.seen) {
                seen.fetch_max(event.load(Relaxed), SeqCst);
            }
            world.inside.store(false, SeqCst);
            runs += 1;
            if runs <= again {
                let work = Self { world: Arc::clone(world), node: Arc::clone(node) };
                let item = work.node.pending.queue(false).map(|instance| work.made(instance));
                world.left.lock().unwrap().extend(item);
            }
        };
        Self { node: Node::new(TAG, Target(Arc::clone(&world)), call), world }
    }

    /// The item of an instance.
    fn made(&self, instance: Instance) -> Item {
        self.world.counts.queued.fetch_add(1, SeqCst);
        self.world.counts.items.fetch_add(1, SeqCst);
        self.node.item(TAG, instance)
    }

    fn queue(&self) -> Option<Item> {
        self.node.pending.queue(false).map(|instance| self.made(instance))
    }

    fn queue_and_run(&self) {
        self.queue().into_iter().for_each(|item| self.run(item));
    }

    fn requeue_and_run(&self) {
        let requeued = self.node.pending.requeue(false).unwrap();
        if let Some(before) = requeued.before {
            self.world.counts.cancelled.fetch_add(1, SeqCst);
            self.wake_if(before.waiters);
        }
        let item = self.made(requeued.instance);
        self.run(item);
    }

    /// What a worker does with an item.
    fn run(&self, item: Item) {
        let mut next = Some(item);
        while let Some(item) = next.take() {
            next = match item.run(&self.world.counts) {
                Ran::Over => None,
                Ran::Then(item) => Some(item),
                Ran::Kept(item) => item,
            };
        }
    }

    fn run_what_is_left(&self) {
        loop {
            let next = self.world.left.lock().unwrap().pop();
            let Some(item) = next else { return };
            self.run(item);
        }
    }

    fn cancel(&self) {
        if let Some(cancelled) = self.node.pending.cancel() {
            self.world.counts.cancelled.fetch_add(1, SeqCst);
            self.wake_if(cancelled.waiters);
        }
    }

    fn wake_if(&self, waiters: bool) {
        if waiters {
            self.world.waits.wake();
        }
    }

    fn wait(&self, awaited: Awaited) {
        while let Some(wait) = self.world.waits.begin(&self.node.pending, awaited) {
            block(&wait);
        }
    }

    fn runs(&self) -> usize {
        self.world.counts.runs.load(SeqCst)
    }

    /// To be called when nothing is going on any more: every instance was run or cancelled, once.
    fn check_end(self) {
        let Counts { queued, cancelled, runs, items, ended } = &self.world.counts;
        let [queued, cancelled, runs, items, ended] =
            [queued, cancelled, runs, items, ended].map(|count| count.load(SeqCst));
        assert!(!self.node.pending.is_pending() && !self.node.pending.is_running());
        assert_eq!(queued, runs + cancelled);
        assert_eq!(items, ended);
        assert_eq!(self.world.sum.load(Relaxed), runs, "a run did not see the one before");
        assert_eq!(Arc::strong_count(&self.node), 1);
    }

    fn spawn(&self, go: impl FnOnce(&Self) + 'static) -> thread::JoinHandle<()> {
        let work = self.clone();
        thread::spawn(move || go(&work))
    }
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_two_queue_and_a_third_takes_back_is_run_once_or_cancelled_once() {
    check(3, || {
        let work = Work::new(0);
        let others = [work.spawn(Work::queue_and_run), work.spawn(Work::queue_and_run)];
        work.cancel();
        join(others);
        work.check_end();
    });
}

#[test]
fn what_comes_up_during_a_run_is_run_after_it_and_not_beside_it() {
    check(3, || {
        let work = Work::new(0);
        let first = work.queue().unwrap();
        let others = [work.spawn(|work| work.run(first)), work.spawn(Work::queue_and_run)];
        work.queue_and_run();
        join(others);
        work.check_end();
    });
}

#[test]
fn what_is_kept_behind_a_run_may_be_cancelled_and_replaced() {
    check(4, || {
        let work = Work::new(0);
        let first = work.queue().unwrap();
        let others = [work.spawn(|work| work.run(first))];
        work.queue_and_run();
        work.cancel();
        work.queue_and_run();
        join(others);
        work.check_end();
    });
}

#[test]
fn two_workers_that_come_by_a_run_with_instances_that_follow_each_other_lose_none() {
    check(3, || {
        let work = Work::new(0);
        let first = work.queue().unwrap();
        let others = [work.spawn(|work| work.run(first)), work.spawn(Work::requeue_and_run)];
        work.requeue_and_run();
        join(others);
        work.check_end();
    });
}

#[test]
fn an_item_that_queues_itself_loses_nothing_to_who_queues_or_cancels_it() {
    check(4, || {
        let work = Work::new(1);
        let others = [work.spawn(|work| {
            work.queue_and_run();
            work.run_what_is_left();
        })];
        work.queue_and_run();
        work.run_what_is_left();
        work.cancel();
        join(others);
        work.run_what_is_left();
        work.check_end();
    });
}

#[test]
fn a_timer_fires_once_or_is_moved_or_is_cancelled() {
    check(3, || {
        let work = Work::new(0);
        let set = work.node.pending.queue(true).unwrap();
        work.world.counts.queued.fetch_add(1, SeqCst);
        let fire = move |work: &Work| {
            if let Some(instance) = work.node.pending.fire(set.generation) {
                work.world.counts.items.fetch_add(1, SeqCst);
                let item = work.node.item(TAG, instance);
                work.run(item);
            }
        };
        let others = [work.spawn(fire), work.spawn(Work::requeue_and_run)];
        work.cancel();
        join(others);
        work.check_end();
    });
}

/// What follows is an issuer's own instance, or the one because of which it was refused.
#[test]
fn what_was_written_before_a_refused_queueing_is_seen_by_the_run_that_follows() {
    check(3, || {
        let work = Work::new(0);
        let issue = |event: usize| {
            move |work: &Work| {
                work.world.events[event].store(1, Relaxed);
                work.queue_and_run();
            }
        };
        let first = work.queue().unwrap();
        let others = [work.spawn(|work| work.run(first)), work.spawn(issue(0))];
        issue(1)(&work);
        join(others);
        assert_eq!(work.world.seen.each_ref().map(|seen| seen.load(SeqCst)), [1, 1]);
        work.check_end();
    });
}

#[test]
fn who_flushes_is_told_whether_the_instance_runs_or_is_cancelled() {
    check(3, || {
        let work = Work::new(0);
        let first = work.queue().unwrap();
        let others = [work.spawn(|work| work.run(first)), work.spawn(Work::cancel)];
        let queued = work.node.pending.queued();
        queued.into_iter().flatten().for_each(|awaited| work.wait(awaited));
        if queued != [None, None] {
            // What the run has written is visible: no run that was waited for goes on.
            assert_eq!(work.world.sum.load(Relaxed), work.runs());
        }
        join(others);
        work.check_end();
    });
}

#[test]
fn who_flushes_is_told_although_the_next_instance_takes_over() {
    check(3, || {
        let work = Work::new(0);
        let first = work.queue().unwrap();
        let others = [work.spawn(|work| work.run(first)), work.spawn(Work::requeue_and_run)];
        work.node.pending.queued().into_iter().flatten().for_each(|awaited| work.wait(awaited));
        join(others);
        work.check_end();
    });
}

#[test]
fn two_who_wait_are_both_told() {
    check(3, || {
        let work = Work::new(0);
        let first = work.queue().unwrap();
        let flush = |work: &Work| {
            work.node.pending.queued().into_iter().flatten().for_each(|awaited| work.wait(awaited));
        };
        let others = [work.spawn(|work| work.run(first)), work.spawn(flush)];
        flush(&work);
        join(others);
        work.check_end();
    });
}

/// The whole of `cancel_sync`, against an item that queues itself.
#[test]
fn after_cancel_sync_it_neither_runs_nor_is_pending() {
    check(4, || {
        let work = Work::new(1);
        let others = [work.spawn(|work| {
            work.queue_and_run();
            work.run_what_is_left();
        })];
        if let Some(cancelled) = work.node.pending.disable().unwrap() {
            work.world.counts.cancelled.fetch_add(1, SeqCst);
            work.wake_if(cancelled.waiters);
        }
        work.node.pending.running().into_iter().for_each(|run| work.wait(run));
        assert!(!work.node.pending.is_pending() && !work.world.inside.load(SeqCst));
        assert_eq!(work.world.sum.load(Relaxed), work.runs(), "it runs, or its run is not seen");
        assert_eq!(work.node.pending.enable(), Ok(true));
        join(others);
        work.run_what_is_left();
        work.check_end();
    });
}

/// The canary: an issuer that only looks before it goes away loses its event.
#[test]
#[should_panic(expected = "an event was lost")]
fn an_issuer_that_is_refused_and_writes_nothing_loses_its_event() {
    const PENDING: usize = 1;
    check(4, || {
        let state = Arc::new(AtomicUsize::new(PENDING));
        let event = Arc::new(AtomicUsize::new(0));
        let worker = {
            let (state, event) = (Arc::clone(&state), Arc::clone(&event));
            thread::spawn(move || {
                state.fetch_and(!PENDING, AcqRel);
                fence(SeqCst);
                event.load(Relaxed)
            })
        };
        event.store(1, Relaxed);
        let refused = state.load(Acquire) & PENDING != 0;
        let seen = worker.join().unwrap();
        assert!(!refused || seen == 1, "an event was lost");
    });
}
