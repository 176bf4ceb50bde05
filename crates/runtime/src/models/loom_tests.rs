//! The wake protocol and the items under the model checker: `cargo xtask loom`.

use std::sync::atomic::Ordering::SeqCst;
use std::task::{Poll, Waker};

use homing_sched::{Affinity, Attributes, Idle, Layout, PoolId, Shares};
use homing_topology::{CpuId, Machine, Scope};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread;

use crate::dispatch::{Announced, Dispatch, Fill};
use crate::item::{self, Batch, Books, Hand, Item, JoinError, Ran, Tag};
use crate::models::loom_bed::check;
use crate::threads::sleeper::Sleeper;
use crate::threads::slot::ThreadId;

const SYSTEM: Affinity = Affinity { scope: Scope::System, strict: false };
const OWN_CPU: Affinity = Affinity { scope: Scope::Cpu, strict: false };

struct NoBooks;

impl Books for NoBooks {
    fn started(&self) {}
    fn completed(&self, _: bool) {}
    fn aborted(&self) {}
}

/// All slots have an owner in these models.
struct NobodySpare;

impl Fill for NobodySpare {
    fn fill(&self, _: CpuId) -> bool {
        panic!("no slot is vacant here");
    }
}

fn cpu(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}

/// The owner of a CPU's slot in these models.
fn owner(cpu: CpuId) -> ThreadId {
    ThreadId(cpu.index() as u32 + 1)
}

/// Two pools, one of CPUs and one of the whole machine, whose CPUs share a cache.
fn dispatch(cpus: usize) -> Dispatch {
    let machine = Machine::from_grid(&format!("1x{cpus}x1")).unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    for affinity in [OWN_CPU, SYSTEM] {
        assert!(dispatch.pool_with(Attributes::new(affinity), None, false).is_some());
    }
    for cpu in machine.online().iter() {
        assert!(dispatch.slot(cpu).assign(owner(cpu)));
    }
    dispatch
}

const OF_CPU: PoolId = PoolId(0);
const OF_SYSTEM: PoolId = PoolId(1);

fn counting(count: &Arc<AtomicUsize>) -> Item {
    let count = Arc::clone(count);
    item::lone(Tag::new(0, 0), move || {
        count.fetch_add(1, SeqCst);
    })
}

fn put(dispatch: &Dispatch, fill: &impl Fill, cpu: CpuId, pool: PoolId, item: Item) {
    assert!(dispatch.put(fill, cpu, pool, item).is_ok(), "the queues are open");
}

/// A worker that ends when `target` items have run anywhere. It sleeps only where the protocol lets
/// it, so a lost wake-up is a deadlock, which loom reports.
fn work(dispatch: &Dispatch, fill: &impl Fill, own: CpuId, ran: &AtomicUsize, target: usize) {
    let done = || ran.load(SeqCst) >= target;
    while !done() {
        // Without a clock, everything is ripe.
        if let Ok(taken) = dispatch.take(fill, own, Idle::Any, &Shares::NONE) {
            taken.batch.into_iter().for_each(|item| drop(item.run(&NoBooks)));
            if done() {
                dispatch.wake_all(fill);
            }
        } else if let Announced::Sleep { .. } = dispatch.announce(own, owner(own), Idle::Any, done)
        {
            dispatch.slot(own).sleep(None);
            dispatch.slot(own).rise(owner(own));
        }
    }
}

#[test]
fn a_worker_going_idle_sees_what_two_producers_insert() {
    check(3, || {
        let (dispatch, ran) = (Arc::new(dispatch(1)), Arc::new(AtomicUsize::new(0)));
        let producers = [OF_SYSTEM, OF_CPU].map(|pool| {
            let (dispatch, ran) = (Arc::clone(&dispatch), Arc::clone(&ran));
            thread::spawn(move || {
                put(&dispatch, &NobodySpare, cpu(0), pool, counting(&ran));
            })
        });
        work(&dispatch, &NobodySpare, cpu(0), &ran, 2);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(ran.load(SeqCst), 2);
    });
}

#[test]
fn two_workers_take_everything_and_both_end() {
    check(2, || {
        let (dispatch, ran) = (Arc::new(dispatch(2)), Arc::new(AtomicUsize::new(0)));
        let other = {
            let (dispatch, ran) = (Arc::clone(&dispatch), Arc::clone(&ran));
            thread::spawn(move || work(&dispatch, &NobodySpare, cpu(1), &ran, 2))
        };
        put(&dispatch, &NobodySpare, cpu(0), OF_CPU, counting(&ran));
        put(&dispatch, &NobodySpare, cpu(0), OF_CPU, counting(&ran));
        work(&dispatch, &NobodySpare, cpu(0), &ran, 2);
        other.join().unwrap();
        assert_eq!(ran.load(SeqCst), 2);
    });
}

#[test]
fn nobody_sleeps_through_a_shutdown() {
    check(3, || {
        let (dispatch, stop) = (Arc::new(dispatch(1)), Arc::new(AtomicBool::new(false)));
        let worker = {
            let (dispatch, stop) = (Arc::clone(&dispatch), Arc::clone(&stop));
            thread::spawn(move || {
                let stopping = || stop.load(SeqCst);
                while !stopping() {
                    let announced = dispatch.announce(cpu(0), owner(cpu(0)), Idle::Any, stopping);
                    if let Announced::Sleep { .. } = announced {
                        dispatch.slot(cpu(0)).sleep(None);
                        dispatch.slot(cpu(0)).rise(owner(cpu(0)));
                    }
                }
            })
        };
        stop.store(true, SeqCst);
        dispatch.wake_all(&NobodySpare);
        worker.join().unwrap();
    });
}

/// A spare thread that waits for the slot of CPU 0.
struct OneSpare {
    dispatch: Arc<Dispatch>,
    bed: Arc<Sleeper>,
}

const SPARE: ThreadId = ThreadId(9);

impl Fill for OneSpare {
    fn fill(&self, cpu: CpuId) -> bool {
        let assigned = self.dispatch.slot(cpu).assign(SPARE);
        if assigned {
            self.bed.wake();
        }
        assigned
    }
}

/// An item blocks until the next one has run: its CPU must go to the spare, or the owner must
/// find the item when it takes its slot back.
#[test]
fn what_is_queued_while_an_item_blocks_finds_the_spare_or_the_owner() {
    check(3, || {
        let (dispatch, ran) = (Arc::new(dispatch(1)), Arc::new(AtomicUsize::new(0)));
        let bed = Arc::new(Sleeper::new());
        let fill = || OneSpare { dispatch: Arc::clone(&dispatch), bed: Arc::clone(&bed) };
        let producer = {
            let (dispatch, ran, fill) = (Arc::clone(&dispatch), Arc::clone(&ran), fill());
            thread::spawn(move || put(&dispatch, &fill, cpu(0), OF_CPU, counting(&ran)))
        };
        let spare = {
            let (dispatch, ran, fill) = (Arc::clone(&dispatch), Arc::clone(&ran), fill());
            thread::spawn(move || {
                fill.bed.sleep(None);
                // Woken at the end, or because it got the slot.
                if dispatch.slot(cpu(0)).is_owned_by(SPARE) {
                    while let Ok(taken) = dispatch.take(&fill, cpu(0), Idle::Any, &Shares::NONE) {
                        taken.batch.into_iter().for_each(|item| drop(item.run(&NoBooks)));
                    }
                    assert_eq!(ran.load(SeqCst), 1);
                }
            })
        };
        // The owner's item blocks, ...
        let slot = dispatch.slot(cpu(0));
        assert!(slot.vacate(owner(cpu(0))));
        dispatch.offer(&fill(), cpu(0));
        // ... and goes on.
        if dispatch.take_offer_back(&fill(), cpu(0), owner(cpu(0))) {
            work(&dispatch, &fill(), cpu(0), &ran, 1);
            fill().bed.wake();
        }
        producer.join().unwrap();
        spare.join().unwrap();
        assert_eq!(ran.load(SeqCst), 1);
    });
}

/// While the owner takes its slot back, the monitor takes the slot from it, because the owner seems
/// to run its item still. The bit that the owner removes may be that of the monitor's offer of a
/// slot that then has no owner.
#[test]
fn what_is_queued_while_a_slot_is_taken_back_and_lost_again_finds_the_spare_or_the_owner() {
    check(3, || {
        let (dispatch, ran) = (Arc::new(dispatch(1)), Arc::new(AtomicUsize::new(0)));
        let bed = Arc::new(Sleeper::new());
        let fill = || OneSpare { dispatch: Arc::clone(&dispatch), bed: Arc::clone(&bed) };
        // The owner's item blocks.
        let slot = dispatch.slot(cpu(0));
        assert!(slot.vacate(owner(cpu(0))));
        dispatch.offer(&fill(), cpu(0));
        let monitor = {
            let (dispatch, fill) = (Arc::clone(&dispatch), fill());
            thread::spawn(move || {
                if dispatch.slot(cpu(0)).vacate(owner(cpu(0))) {
                    dispatch.offer(&fill, cpu(0));
                }
            })
        };
        let back = dispatch.take_offer_back(&fill(), cpu(0), owner(cpu(0)));
        assert!(back, "nobody else wants it");
        monitor.join().unwrap();
        put(&dispatch, &fill(), cpu(0), OF_CPU, counting(&ran));
        // The item is for the owner, which is awake, or for the spare, which was told.
        assert!(slot.is_owned_by(owner(cpu(0))) || slot.is_owned_by(SPARE), "nobody comes");
    });
}

#[test]
fn an_item_ends_once_and_whoever_waits_hears_of_it() {
    check(3, || {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let (item, mut handle) = item::joined(Tag::new(0, 0), move || count.fetch_add(1, SeqCst));
        let worker = thread::spawn(move || drop(item.run(&NoBooks)));
        let aborted = handle.abort();
        let result = match handle.poll(Waker::noop()) {
            Poll::Ready(result) => result,
            Poll::Pending => {
                worker.join().unwrap();
                let Poll::Ready(result) = handle.poll(Waker::noop()) else {
                    panic!("it has run, and the handle does not know");
                };
                assert!(!aborted && matches!(result, Ok(0)));
                return;
            }
        };
        drop(handle);
        worker.join().unwrap();
        assert_eq!(matches!(result, Err(JoinError::Cancelled)), aborted);
        assert_eq!(ran.load(SeqCst), usize::from(!aborted));
    });
}

/// A worker comes to the item while the thread that waits for it runs it. One of the two notes its
/// end, once it has run.
#[test]
fn the_end_of_an_item_that_its_waiter_runs_is_noted_once() {
    check(3, || {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let (item, handle) = item::joined(Tag::new(0, 0), move || count.fetch_add(1, SeqCst));
        let worker = {
            let ran = Arc::clone(&ran);
            thread::spawn(move || {
                let notes = matches!(item.run(&NoBooks), Ran::Over);
                assert!(!notes || ran.load(SeqCst) == 1);
                notes
            })
        };
        let (_, left) = handle.run_here(&NoBooks);
        let notes = left.is_some();
        assert!(!notes || ran.load(SeqCst) == 1);
        drop(left);
        assert!(notes ^ worker.join().unwrap());
        assert_eq!(ran.load(SeqCst), 1);
    });
}

#[test]
fn what_is_in_a_hand_goes_to_its_owner_or_to_who_rescues_it() {
    check(3, || {
        let (hand, ran) = (Arc::new(Hand::new()), Arc::new(AtomicUsize::new(0)));
        let mut batch = Batch::default();
        (0..3).for_each(|_| batch.push(counting(&ran)));
        hand.put(batch.seal().unwrap());
        let rescuer = {
            let hand = Arc::clone(&hand);
            thread::spawn(move || {
                hand.take().into_iter().flatten().for_each(|item| drop(item.run(&NoBooks)));
            })
        };
        while let Some(item) = hand.pop() {
            drop(item.run(&NoBooks));
        }
        rescuer.join().unwrap();
        assert_eq!(ran.load(SeqCst), 3);
    });
}

/// The canary: the same protocol without the fences must be caught, or the tests above prove
/// nothing.
#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_the_protocol_loses_a_wake_up() {
    use loom::sync::atomic::{AtomicU64, Ordering};
    check(3, || {
        let sleeper = Arc::new(Sleeper::new());
        let (waiting, idle) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let producer = {
            let (waiting, idle) = (Arc::clone(&waiting), Arc::clone(&idle));
            let sleeper = Arc::clone(&sleeper);
            thread::spawn(move || {
                waiting.store(1, Ordering::Release);
                if idle.load(Ordering::Acquire) != 0 {
                    sleeper.wake();
                }
            })
        };
        idle.store(1, Ordering::Release);
        if waiting.load(Ordering::Acquire) == 0 {
            sleeper.sleep(None);
        }
        producer.join().unwrap();
    });
}
