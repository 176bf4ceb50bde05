//! Real threads, real sleeping and waking: every item runs exactly once and nobody is left asleep
//! while work waits.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{Builder, CpuSet, JoinHandle, Nice, Runtime, Scope, Workqueue, blocking};

use crate::{Random, duration, each_machine, quiet_panics, wait};

#[test]
fn no_wake_up_is_lost_between_bursts() {
    each_machine(|builder| bursts(&builder.build().unwrap()));
}

fn bursts(runtime: &Runtime) {
    let queues: Vec<_> = Scope::ALL
        .into_iter()
        .map(|scope| {
            let builder = runtime.workqueue("stress").affinity_scope(scope);
            builder.affinity_strict(scope == Scope::Numa).build().unwrap()
        })
        .collect();
    let ran = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + duration();
    let issuers: Vec<_> = (0..4_usize)
        .map(|issuer| {
            let (queues, ran) = (queues.clone(), Arc::clone(&ran));
            thread::spawn(move || {
                let mut issued = 0;
                while Instant::now() < end {
                    // Bursts of 1 to 8 and a wait for all: workers fall asleep in between, so
                    // each burst races with their going to sleep.
                    let burst = 1 + (issued + issuer) % 8;
                    let handles: Vec<_> = (0..burst)
                        .map(|n| {
                            let ran = Arc::clone(&ran);
                            let queue = &queues[(issued + n) % queues.len()];
                            queue.queue(move || ran.fetch_add(1, Ordering::Relaxed))
                        })
                        .collect();
                    assert!(handles.into_iter().all(|handle| wait(handle).is_ok()));
                    issued += burst;
                }
                issued
            })
        })
        .collect();
    let issued: usize = issuers.into_iter().map(|issuer| issuer.join().unwrap()).sum();
    assert_eq!(ran.load(Ordering::Relaxed), issued);
    println!("{issued} items in {:?}", duration());
}

/// Queues one of many things. Returns how many items these are.
fn queue_something(
    queue: &Workqueue,
    random: &mut Random,
    ran: &Arc<AtomicUsize>,
    handles: &mut Vec<JoinHandle<()>>,
) -> usize {
    let count = {
        let ran = Arc::clone(ran);
        move || _ = ran.fetch_add(1, Ordering::Relaxed)
    };
    match random.below(9) {
        0 => handles.push(queue.queue(move || {
            blocking(|| {
                thread::sleep(Duration::from_micros(50));
                count();
            });
        })),
        1 => handles.push(queue.queue(move || {
            // This does not say that it blocks: the monitor may or may not see it.
            thread::sleep(Duration::from_millis(3));
            count();
        })),
        2 => handles.push(queue.queue(move || {
            count();
            panic!("on purpose");
        })),
        3 => {
            let works = (0..5).map(|_| count.clone());
            handles.extend(queue.queue_batch(works));
            return 5;
        }
        4 => {
            let inner = queue.clone();
            handles.push(queue.queue(move || inner.queue(count).join().unwrap()));
        }
        5 => {
            let inner = queue.clone();
            handles.push(queue.spawn(async move { inner.queue(count).await.unwrap() }));
        }
        6 => {
            queue.scope(|scope| (0..3).for_each(|_| scope.queue(count.clone())));
            return 3;
        }
        7 => handles.push(queue.queue(move || {
            let end = Instant::now() + Duration::from_micros(200);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            count();
        })),
        _ => {
            queue.execute(count);
        }
    }
    1
}

#[test]
fn everything_at_once_loses_nothing() {
    quiet_panics();
    each_machine(everything_at_once);
}

fn everything_at_once(builder: Builder) {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = builder
        .keep_alive(Duration::from_millis(5))
        .refuse_threads(Arc::clone(&refuse))
        .thread_name("chaos")
        .build()
        .unwrap();
    let queues: Vec<_> =
        (0..4).map(|n| runtime.workqueue(&format!("stress-{n}")).build().unwrap()).collect();
    let (ran, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let chaos = {
        let (queues, stop) = (queues.clone(), Arc::clone(&stop));
        let all = runtime.cpus();
        let refuse = Arc::clone(&refuse);
        let mut random = Random(1);
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let queue = &queues[random.below(queues.len())];
                match random.below(6) {
                    0 => queue.set_affinity_scope(Scope::ALL[random.below(6)]).unwrap(),
                    1 => queue.set_affinity_strict(random.below(2) == 0).unwrap(),
                    2 => queue.set_localize(random.below(2) == 0).unwrap(),
                    3 => {
                        let levels = [Nice::HIGHPRI, Nice::NORMAL, Nice::MAX];
                        queue.set_nice(levels[random.below(3)]).unwrap();
                    }
                    4 => refuse.store(random.below(3) == 0, Ordering::Relaxed),
                    _ => repin(&all, &mut random),
                }
                thread::sleep(Duration::from_micros(500));
            }
            refuse.store(false, Ordering::Relaxed);
        })
    };
    let end = Instant::now() + duration();
    let issuers: Vec<_> = (0..3)
        .map(|issuer| {
            let (queues, ran) = (queues.clone(), Arc::clone(&ran));
            thread::spawn(move || {
                let mut random = Random(issuer);
                let (mut issued, mut handles) = (0, Vec::new());
                while Instant::now() < end {
                    let queue = &queues[random.below(queues.len())];
                    issued += queue_something(queue, &mut random, &ran, &mut handles);
                    if handles.len() > random.below(64) {
                        handles.drain(..).for_each(|handle| _ = wait(handle));
                    }
                }
                for handle in handles {
                    _ = wait(handle);
                }
                issued
            })
        })
        .collect();
    let issued: usize = issuers.into_iter().map(|issuer| issuer.join().unwrap()).sum();
    stop.store(true, Ordering::Relaxed);
    chaos.join().unwrap();
    drop(runtime);
    assert_eq!(ran.load(Ordering::Relaxed), issued);
    let in_flight: u64 = queues.iter().map(|queue| queue.counters().in_flight()).sum();
    assert_eq!(in_flight, 0);
    println!("{issued} items in {:?}", duration());
}

/// Gives a thread of the process another CPU mask, as a user with `taskset` would.
fn repin(all: &CpuSet, random: &mut Random) {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return };
    let tasks: Vec<_> = tasks.filter_map(Result::ok).collect();
    let task = &tasks[random.below(tasks.len())];
    let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { return };
    let mut set = rustix::thread::CpuSet::new();
    all.iter().filter(|_| random.below(2) == 0).for_each(|cpu| set.set(cpu.index()));
    // Refused where the set is empty or the thread has just ended.
    let _ = rustix::thread::sched_setaffinity(rustix::thread::Pid::from_raw(tid), &set);
}
