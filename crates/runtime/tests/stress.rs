//! Real threads, real sleeping and waking: every item runs exactly once and nobody is left asleep
//! beside waiting work. A lost wake-up shows as a hang, which the time limit turns into a failure.
//!
//! `HOMING_STRESS_SECONDS` makes it longer (default 2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{Runtime, Scope};

fn seconds() -> u64 {
    std::env::var("HOMING_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

#[test]
fn no_wake_up_is_lost_between_bursts() {
    let runtime = Runtime::new().unwrap();
    let queues: Vec<_> = Scope::ALL
        .into_iter()
        .map(|scope| {
            let builder = runtime.workqueue("stress").affinity_scope(scope);
            builder.affinity_strict(scope == Scope::Numa).build().unwrap()
        })
        .collect();
    let ran = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(seconds());
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
                    let deadline = Instant::now() + Duration::from_secs(20);
                    for handle in handles {
                        while !handle.is_finished() {
                            assert!(Instant::now() < deadline, "an item was left waiting for 20 s");
                            thread::yield_now();
                        }
                        handle.join().unwrap();
                    }
                    issued += burst;
                }
                issued
            })
        })
        .collect();
    let issued: usize = issuers.into_iter().map(|issuer| issuer.join().unwrap()).sum();
    assert_eq!(ran.load(Ordering::Relaxed), issued);
    println!("{issued} items in {} s", seconds());
}
