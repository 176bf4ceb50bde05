//! Flushes under the model checker: `cargo xtask loom`. The colours and the counters are those of
//! every workqueue; the code that adds them up is a few lines of `state.rs`, written here again.

use std::sync::Arc;

use homing_topology::CpuId;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;

use crate::item::{Books, Tag};
use crate::measure::books::{Spread, WorkqueueBooks};
use crate::models::loom_bed::{block, check};
use crate::threads::sleeper::Sleeper;
use crate::workqueues::flush::{Flushes, InFlight, Wait};

/// A workqueue with two workers, each with books of its own.
struct Queue {
    flushes: Flushes,
    queued: Spread,
    books: [WorkqueueBooks; 2],
}

impl Queue {
    fn new() -> Arc<Self> {
        let (flushes, queued) = (Flushes::new(1), Spread::new(1));
        Arc::new(Self { flushes, queued, books: <[WorkqueueBooks; 2]>::default() })
    }

    fn queue(&self) -> Tag {
        let tag = self.flushes.tag();
        self.queued.add(CpuId::new(0).unwrap(), tag, 1);
        tag
    }

    fn end(&self, worker: usize, tag: Tag) {
        self.books[worker].ended(tag);
        if self.flushes.awaits(1 << tag.colour()) {
            self.flushes.check(|| self.in_flight());
        }
    }

    fn in_flight(&self) -> InFlight {
        let mut ended = [0; Tag::COLOURS];
        self.books.iter().for_each(|books| books.add_ended_to(&mut ended));
        let mut in_flight = self.queued.sums();
        in_flight.iter_mut().zip(&ended).for_each(|(queued, ended)| *queued -= ended);
        in_flight
    }

    fn begin_flush(&self) -> Option<Arc<Wait>> {
        self.flushes.begin(|| self.in_flight())
    }

    fn flush(&self) {
        self.begin_flush().into_iter().for_each(|wait| block(&wait));
    }

    fn spawn(self: &Arc<Self>, go: impl FnOnce(&Self) + 'static) -> thread::JoinHandle<()> {
        let queue = Arc::clone(self);
        thread::spawn(move || go(&queue))
    }
}

#[test]
fn a_flush_ends_with_its_last_item_whoever_ends_it() {
    check(3, || {
        let queue = Queue::new();
        let ended = Arc::new(AtomicUsize::new(0));
        let workers = [0, 1].map(|worker| {
            let (tag, ended) = (queue.queue(), Arc::clone(&ended));
            queue.spawn(move |queue| {
                ended.fetch_add(1, Relaxed);
                queue.end(worker, tag);
            })
        });
        queue.flush();
        assert_eq!(ended.load(Relaxed), 2, "it ended too early, or does not see what they did");
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(queue.begin_flush().is_none());
    });
}

#[test]
fn an_item_that_is_queued_while_a_flush_begins_is_counted_before_it_ends() {
    check(4, || {
        let queue = Queue::new();
        let issuer = queue.spawn(|queue| {
            let tag = queue.queue();
            queue.end(0, tag);
        });
        queue.flush();
        issuer.join().unwrap();
        assert_eq!(queue.in_flight(), [0; Tag::COLOURS]);
    });
}

/// The newcomer ends only after the flush has.
#[test]
fn newcomers_do_not_hold_a_flush_up() {
    check(4, || {
        let queue = Queue::new();
        let tag = queue.queue();
        let worker = queue.spawn(move |queue| queue.end(0, tag));
        let flush = queue.begin_flush();
        let newcomer = queue.queue();
        flush.into_iter().for_each(|wait| block(&wait));
        queue.end(1, newcomer);
        worker.join().unwrap();
    });
}

#[test]
fn two_flushes_at_once_both_end() {
    check(3, || {
        let queue = Queue::new();
        let tag = queue.queue();
        let other = queue.spawn(Queue::flush);
        let worker = queue.spawn(move |queue| queue.end(0, tag));
        queue.flush();
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// There are three colours here, so the third flush finds none and waits for one.
#[test]
fn where_colours_have_run_out_a_flush_ends_all_the_same() {
    check(3, || {
        let queue = Queue::new();
        let mut tags = Vec::new();
        let flushes = [0; 3].map(|_| {
            tags.push(queue.queue());
            queue.begin_flush().unwrap()
        });
        assert_eq!(tags[2].colour(), (tags[0].colour() + 2) % Tag::COLOURS);
        let last = tags.pop().unwrap();
        let worker = queue.spawn(move |queue| tags.iter().for_each(|tag| queue.end(0, *tag)));
        queue.end(1, last);
        flushes.iter().for_each(|flush| block(flush));
        worker.join().unwrap();
    });
}

/// A thread that knows of the flush queues items with its new colour, however late the store of
/// that may arrive.
#[test]
fn who_knows_of_a_flush_queues_newcomers() {
    check(4, || {
        let queue = Queue::new();
        let (first, told) = (queue.queue(), Arc::new(AtomicUsize::new(0)));
        let issuer = {
            let told = Arc::clone(&told);
            queue.spawn(move |queue| {
                let knows = told.load(Acquire) == 1;
                let tag = queue.queue();
                assert!(!knows || tag.colour() != first.colour());
            })
        };
        let flush = queue.begin_flush().unwrap();
        told.store(1, Release);
        queue.end(0, first);
        issuer.join().unwrap();
        drop(flush);
    });
}

/// The canary: without the fences between what each side writes and then reads, neither sees the
/// other.
#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_a_flush_is_not_told() {
    check(4, || {
        let bed = Arc::new(Sleeper::new());
        let (ended, awaited) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let worker = {
            let (bed, ended, awaited) =
                (Arc::clone(&bed), Arc::clone(&ended), Arc::clone(&awaited));
            thread::spawn(move || {
                ended.store(1, Release);
                if awaited.load(Relaxed) != 0 {
                    bed.wake();
                }
            })
        };
        awaited.store(1, Relaxed);
        if ended.load(Acquire) == 0 {
            bed.sleep(None);
        }
        worker.join().unwrap();
    });
}
