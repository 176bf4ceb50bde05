//! The cache of objects under a randomized scheduler: `cargo xtask shuttle`. A thread that waits
//! without being woken is a deadlock, which is reported.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize};
use shuttle::{future, thread};

use super::Cache;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let given = std::env::var("HOMING_SHUTTLE_ITERATIONS").ok();
    let iterations = given.and_then(|text| text.parse().ok()).unwrap_or(2000);
    // Priorities that change a few times find what plain randomness seldom does.
    shuttle::check_pct(model, iterations, 4);
}

/// A schedule can be replayed only if hashes are the same.
type Unseeded = foldhash::quality::FixedState;

fn cache(capacity: u64) -> Cache<u32, u32, Unseeded> {
    let builder = Cache::builder().capacity(capacity).shards(1).clock(|| Duration::ZERO);
    builder.hasher(Unseeded::default()).build().unwrap()
}

#[test]
fn one_loads_and_all_who_wait_are_told() {
    check(|| {
        let cache = cache(10);
        let loads = Arc::new(AtomicUsize::new(0));
        let threads = [0; 3].map(|_| {
            let (cache, loads) = (cache.clone(), Arc::clone(&loads));
            thread::spawn(move || {
                let value = cache.get_or_load(&1, || {
                    loads.fetch_add(1, SeqCst);
                    thread::yield_now();
                    Ok::<_, ()>(7)
                });
                assert_eq!(value, Ok(7));
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(loads.load(SeqCst), 1);
    });
}

#[test]
fn after_an_error_or_a_cancelled_load_nobody_waits_for_ever() {
    check(|| {
        let cache = cache(10);
        let (failing, waiting) = (cache.clone(), cache.clone());
        let failing = thread::spawn(move || _ = failing.get_or_load(&1, || Err::<u32, _>(())));
        let cancelled = {
            let cache = cache.clone();
            thread::spawn(move || {
                let pending = std::future::pending::<Result<u32, ()>>();
                let load = Box::pin(cache.get_or_load_async(&1, pending));
                let once = future::block_on(poll_once(load));
                thread::yield_now();
                drop(once);
            })
        };
        let waiting = thread::spawn(move || {
            let load = waiting.get_or_load_async(&1, async { Ok::<_, ()>(7) });
            // The error of another caller may be its answer, too.
            assert!(matches!(future::block_on(load), Ok(7) | Err(_)));
        });
        [failing, cancelled, waiting].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(cache.get_or_load(&1, || Ok::<_, ()>(7)), Ok(7));
    });
}

/// Polls a future once and gives it back.
async fn poll_once<F: Future + Unpin>(mut future: F) -> F {
    let mut polled = false;
    std::future::poll_fn(|context| {
        if !polled {
            polled = true;
            _ = std::pin::Pin::new(&mut future).poll(context);
        }
        std::task::Poll::Ready(())
    })
    .await;
    future
}

#[test]
fn what_was_stale_when_its_load_ended_is_not_found_later() {
    check(|| {
        let cache = cache(10);
        let changed = Arc::new(AtomicBool::new(false));
        let loader = {
            let (cache, changed) = (cache.clone(), Arc::clone(&changed));
            thread::spawn(move || {
                _ = cache.get_or_load(&1, || {
                    let read = u32::from(changed.load(SeqCst));
                    thread::yield_now();
                    Ok::<_, ()>(read)
                });
            })
        };
        // What the cache was loaded from changes, and then the cache is told.
        changed.store(true, SeqCst);
        cache.remove(&1);
        let read = || Ok::<_, ()>(u32::from(changed.load(SeqCst)));
        assert_ne!(cache.get(&1), Some(0));
        loader.join().unwrap();
        assert_eq!(cache.get_or_load(&1, read), Ok(1));
    });
}

#[test]
fn it_holds_what_it_may_while_all_insert_pin_and_resize() {
    check(|| {
        let cache = cache(2);
        let threads = [0u32, 1, 2].map(|thread| {
            let cache = cache.clone();
            thread::spawn(move || {
                for key in [thread, thread + 1, 0] {
                    cache.insert(key, key);
                    let pin = cache.pin(&key);
                    if thread == 2 {
                        cache.set_capacity(1 + key as u64 % 2);
                    }
                    assert!(pin.is_none_or(|pin| *pin == key));
                    assert!(cache.get(&key).is_none_or(|value| value == key));
                }
                cache.remove(&thread);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        cache.set_capacity(1);
        assert!(cache.len() <= 1);
        cache.clear();
        assert!(cache.is_empty());
    });
}

#[test]
fn the_capacity_may_change_while_room_is_made() {
    check(|| {
        let builder = Cache::builder().capacity(1000).shards(1).weigher(|_, &value: &u32| value);
        let cache = builder.clock(|| Duration::ZERO).hasher(Unseeded::default()).build().unwrap();
        let resizing = {
            let cache = cache.clone();
            thread::spawn(move || cache.set_capacity(10))
        };
        (0..3).for_each(|key| _ = cache.insert(key, 900));
        resizing.join().unwrap();
        cache.insert(4, 1);
        assert!(cache.weight() <= 10);
    });
}

#[test]
fn no_entry_is_lost_to_a_group_that_goes() {
    check(|| {
        let cache = cache(4);
        let gone = cache.group("gone");
        let threads = [
            {
                let (cache, gone) = (cache.clone(), gone.clone());
                thread::spawn(move || {
                    (0..3).for_each(|key| _ = cache.insert_in(&gone, key, key));
                    assert_eq!(cache.get_or_load_in(&gone, &3, || Ok::<_, ()>(3)), Ok(3));
                })
            },
            {
                let (cache, gone) = (cache.clone(), gone.clone());
                thread::spawn(move || {
                    assert!(cache.remove_group(&gone));
                    assert!(!cache.remove_group(&gone));
                })
            },
            {
                let cache = cache.clone();
                thread::spawn(move || {
                    // It may get the number of the group that goes.
                    let new = cache.group("new");
                    assert!(Arc::ptr_eq(&new, &cache.group("new")));
                    (10..12).for_each(|key| _ = cache.insert_in(&new, key, key));
                })
            },
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let weight = |name| cache.group(name).stats().weight;
        assert_eq!(gone.stats().weight, 0);
        assert_eq!(weight("default") + weight("new"), cache.weight());
        assert_eq!(cache.weight(), 4);
    });
}
