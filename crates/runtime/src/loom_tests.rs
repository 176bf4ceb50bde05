//! The wake protocol under the model checker: `cargo xtask loom`.

use std::sync::atomic::Ordering::SeqCst;

use homing_sched::{Affinity, Layout};
use homing_topology::{CpuId, Machine, Scope};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread;

use crate::queues::{Announced, Queues};

const SYSTEM: Affinity = Affinity { scope: Scope::System, strict: false };
const OWN_CPU: Affinity = Affinity { scope: Scope::Cpu, strict: false };

fn cpu(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}

fn queues(cpus: usize) -> Queues<u32> {
    let machine = Machine::from_grid(&format!("1x{cpus}x1")).unwrap();
    Queues::new(Layout::new(&machine, machine.online()).unwrap())
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A worker that ends when it has seen `target` items taken by anybody. It sleeps only where the
/// protocol lets it, so a lost wake-up is a deadlock, which loom reports.
fn work(queues: &Queues<u32>, own: CpuId, taken: &AtomicUsize, target: usize) {
    loop {
        if queues.take(own, 0).is_some() {
            if taken.fetch_add(1, SeqCst) + 1 == target {
                queues.wake_all();
            }
            continue;
        }
        let done = || taken.load(SeqCst) >= target;
        match queues.announce(own, done) {
            Announced::Sleep => queues.sleep(own),
            Announced::LookAgain if done() => return,
            Announced::LookAgain => {}
        }
    }
}

#[test]
fn a_worker_going_idle_sees_what_two_producers_insert() {
    check(|| {
        let queues = Arc::new(queues(1));
        let taken = Arc::new(AtomicUsize::new(0));
        let producers: Vec<_> = [SYSTEM, OWN_CPU]
            .into_iter()
            .map(|affinity| {
                let queues = Arc::clone(&queues);
                thread::spawn(move || queues.put(cpu(0), affinity, 1).map(|_| ()).unwrap())
            })
            .collect();
        work(&queues, cpu(0), &taken, 2);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(taken.load(SeqCst), 2);
    });
}

#[test]
fn two_workers_take_everything_and_both_end() {
    check(|| {
        let queues = Arc::new(queues(2));
        let taken = Arc::new(AtomicUsize::new(0));
        let other = {
            let (queues, taken) = (Arc::clone(&queues), Arc::clone(&taken));
            thread::spawn(move || work(&queues, cpu(1), &taken, 2))
        };
        queues.put(cpu(0), OWN_CPU, 1).unwrap();
        queues.put(cpu(0), OWN_CPU, 2).unwrap();
        work(&queues, cpu(0), &taken, 2);
        other.join().unwrap();
        assert_eq!(taken.load(SeqCst), 2);
    });
}

#[test]
fn nobody_sleeps_through_shutdown() {
    check(|| {
        let queues = Arc::new(queues(1));
        let stop = Arc::new(AtomicBool::new(false));
        let worker = {
            let (queues, stop) = (Arc::clone(&queues), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    if queues.announce(cpu(0), || stop.load(SeqCst)) == Announced::Sleep {
                        queues.sleep(cpu(0));
                    }
                }
            })
        };
        stop.store(true, SeqCst);
        queues.wake_all();
        worker.join().unwrap();
        assert!(queues.close().is_empty());
        assert_eq!(queues.put(cpu(0), SYSTEM, 7), Err(7));
    });
}

/// The canary: the same protocol without the fences must be caught, or the tests above prove
/// nothing.
#[test]
#[should_panic(expected = "deadlock")]
fn without_its_fences_the_protocol_loses_a_wake_up() {
    use loom::sync::atomic::{AtomicU64, Ordering};
    check(|| {
        let sleeper = Arc::new(crate::sleeper::Sleeper::new());
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
            sleeper.sleep();
        }
        producer.join().unwrap();
    });
}
