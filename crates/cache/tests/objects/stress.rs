//! Real threads, all calls, few keys.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Barrier};
use std::thread;

use homing_cache::Cache;

/// A value that knows its key.
#[derive(Clone)]
struct Value {
    key: u64,
    counted: Arc<Counted>,
}

/// Counts the values that exist.
struct Counted(Arc<AtomicU64>);

impl Counted {
    fn new(live: &Arc<AtomicU64>) -> Arc<Self> {
        live.fetch_add(1, Relaxed);
        Arc::new(Self(Arc::clone(live)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn nothing_is_mixed_up_or_leaked() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 60_000;
    let live = Arc::new(AtomicU64::new(0));
    let cache: Cache<u64, Value> = Cache::builder().capacity(400).shards(2).build().unwrap();
    let group = cache.group("tenant");
    group.set_max(150);
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, live, start, group) = (&cache, &live, &start, &group);
            scope.spawn(move || {
                let mut state = 0x9e37_79b9 + thread;
                let value = |key| Value { key, counted: Counted::new(live) };
                let mut pins = Vec::new();
                start.wait();
                for call in 0..CALLS {
                    let key = next(&mut state) % 1000;
                    let found = match next(&mut state) % 16 {
                        0..=5 => cache.get(&key),
                        6..=9 => Some(cache.get_or_insert_with(&key, || value(key))),
                        10 => cache.insert(key, value(key)),
                        11 => cache.insert_in(group, key, value(key)),
                        12 => cache.remove(&key),
                        13 => {
                            pins.extend(cache.pin(&key));
                            pins.truncate(8);
                            None
                        }
                        14 => {
                            pins.pop();
                            None
                        }
                        _ if call % 512 == 0 => {
                            cache.set_capacity(200 + key);
                            None
                        }
                        _ => None,
                    };
                    if let Some(found) = found {
                        assert_eq!(found.key, key);
                        assert!(Arc::strong_count(&found.counted) > 0);
                    }
                }
            });
        }
    });
    cache.set_capacity(100);
    assert_eq!(cache.len(), 100);
    assert_eq!(live.load(Relaxed), 100);
    let stats = cache.stats();
    assert_eq!(stats.entries, 100);
    cache.clear();
    assert_eq!((live.load(Relaxed), group.stats().weight), (0, 0));
}

/// There are so many hits between two writes that readers do without locks, and the cache rests.
#[test]
fn whoever_reads_sees_what_was_written_before() {
    const READERS: usize = 2;
    const KEYS: u64 = 64;
    const VERSIONS: u64 = 20;
    let cache: Cache<u64, Arc<(u64, u64)>> =
        Cache::builder().capacity(1000).shards(1).build().unwrap();
    (0..KEYS).for_each(|key| _ = cache.insert(key, Arc::new((key, 0))));
    let published: [AtomicU64; KEYS as usize] = std::array::from_fn(|_| AtomicU64::new(0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..READERS {
            let (cache, published, done) = (&cache, &published, &done);
            scope.spawn(move || {
                let mut state = 0x517c_c1b7 + reader as u64;
                while !done.load(Relaxed) {
                    let key = next(&mut state) % KEYS;
                    let least = published[key as usize].load(Acquire);
                    let value = cache.get(&key).expect("nothing is evicted");
                    assert!(value.0 == key && value.1 >= least, "{value:?} after {least} of {key}");
                }
            });
        }
        for version in 1..=VERSIONS {
            let before = cache.stats().hits;
            // On one CPU, readers may have to wait for their turn, so they need not reach this
            // number.
            let turns = (0..1000).take_while(|_| cache.stats().hits < before + 5000);
            turns.for_each(|_| thread::yield_now());
            for key in (0..KEYS).step_by(7) {
                cache.insert(key, Arc::new((key, version)));
                published[key as usize].store(version, Release);
            }
        }
        done.store(true, Relaxed);
    });
    (0..KEYS).for_each(|key| assert_eq!(Arc::strong_count(&cache.get(&key).unwrap()), 2));
}
