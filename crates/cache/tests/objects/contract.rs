//! Each call by itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homing_cache::{BuildError, Cache, Cause};

type Told = Arc<Mutex<Vec<(u32, &'static str, Cause)>>>;

fn listened(capacity: u64) -> (Cache<u32, &'static str>, Told) {
    let told = Told::default();
    let tell = Arc::clone(&told);
    let listener = move |key, value, cause| tell.lock().unwrap().push((key, value, cause));
    let cache = Cache::builder().capacity(capacity).listener(listener).build().unwrap();
    (cache, told)
}

#[test]
fn what_is_inserted_is_found_until_it_is_removed() {
    let (cache, told) = listened(10);
    assert_eq!(cache.get(&1), None);
    assert_eq!(cache.insert(1, "one"), None);
    assert_eq!(cache.insert(1, "uno"), Some("one"));
    assert_eq!(cache.get(&1), Some("uno"));
    assert!(cache.contains_key(&1) && !cache.contains_key(&2));
    assert_eq!(cache.remove_if(&1, |value| *value == "one"), None);
    assert_eq!(cache.remove(&1), Some("uno"));
    assert_eq!(cache.remove(&1), None);
    assert!(cache.is_empty());
    let told = told.lock().unwrap();
    assert_eq!(*told, [(1, "one", Cause::Replaced), (1, "uno", Cause::Removed)]);
}

#[test]
fn it_never_holds_more_than_its_capacity() {
    for capacity in [1, 2, 3, 7, 100, 1000, 5001] {
        let cache = Cache::new(capacity);
        for key in 0..capacity * 3 {
            cache.insert(key, key);
            assert!(cache.weight() <= capacity);
        }
        assert_eq!(cache.len() as u64, capacity);
        let stats = cache.stats();
        assert_eq!(stats.evictions + stats.declined, capacity * 2);
    }
}

/// Entries become 1,024 times as heavy. There is room for few of them then, and those that are used
/// again are kept.
#[test]
fn what_is_worth_keeping_is_learnt_again_when_entries_become_heavier() {
    const HEAVY: u64 = 1 << 10;
    // The mean over some hashers, the same in each run: with one in ten, a used cache is a little
    // further behind.
    let new = |seed| {
        let builder = Cache::builder().capacity(HEAVY << 10).shards(1);
        let hasher = foldhash::quality::FixedState::with_seed(seed);
        builder.weigher(|_, &weight: &u32| weight).hasher(hasher).build().unwrap()
    };
    // Half of the requests are for 700 keys, which change every 8,000 requests. The rest are for
    // keys that do not come again.
    let hits_of = |cache: &Cache<u64, u32, foldhash::quality::FixedState>| {
        let (mut random, mut hits) = (7_u64, 0);
        for request in 0..400_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let hot = request % 2 == 0;
            let key =
                if hot { (random >> 33) % 700 + request / 8000 * 700 } else { (1 << 40) + request };
            let hit = cache.get(&key).is_some();
            hits += u64::from(hit && request >= 200_000);
            if !hit {
                cache.insert(key, HEAVY as u32);
            }
        }
        hits
    };
    let (mut as_new, mut again) = (0, 0);
    for seed in 0..6 {
        let (fresh, used) = (new(seed), new(seed));
        for key in 0..3 * (HEAVY << 10) {
            used.insert((1 << 50) + key, 1);
        }
        (as_new, again) = (as_new + hits_of(&fresh), again + hits_of(&used));
        let ghosts = [&fresh, &used].map(|cache| cache.stats().ghost_bytes);
        assert!(ghosts[1] <= 2 * ghosts[0], "{ghosts:?}");
    }
    assert!(again > as_new * 95 / 100, "{again} hits where a new cache has {as_new}");
}

#[test]
fn entries_weigh_what_the_weigher_says() {
    let weigher = |_: &u32, value: &String| value.len() as u32;
    let cache = Cache::builder().capacity(100).shards(1).weigher(weigher).build().unwrap();
    for key in 0..50 {
        cache.insert(key, "x".repeat(key as usize % 17));
        assert!(cache.weight() <= 100);
        let weight: usize = cache.iter().map(|(_, value)| value.len()).sum();
        assert_eq!(cache.weight(), weight as u64);
    }
    // This entry is too heavy for the cache: it is turned away, and takes no other entry's place.
    let held = cache.len();
    cache.insert(1000, "x".repeat(101));
    assert!(!cache.contains_key(&1000));
    assert_eq!((cache.len(), cache.stats().rejections), (held, 1));
    // An entry is made heavier in its place.
    cache.clear();
    (0..10).for_each(|key| _ = cache.insert(key, "x".repeat(10)));
    cache.insert(3, "x".repeat(95));
    assert!(cache.weight() <= 100);
}

#[test]
fn a_pinned_entry_stays_and_can_be_removed() {
    let cache = Cache::builder().capacity(4).shards(1).build().unwrap();
    cache.insert(0, "kept");
    let pin = cache.pin(&0).unwrap();
    let again = cache.pin(&0).unwrap();
    (1..100).for_each(|key| _ = cache.insert(key, "passing"));
    assert_eq!((*pin, cache.get(&0)), ("kept", Some("kept")));
    drop(pin);
    (100..200).for_each(|key| _ = cache.insert(key, "passing"));
    assert_eq!(cache.get(&0), Some("kept"));
    cache.remove(&0);
    cache.insert(0, "another");
    // The guard of the removed entry has nothing to do with this one.
    drop(again);
    assert_eq!(cache.get(&0), Some("another"));
    assert!(cache.pin(&7777).is_none());
}

#[test]
fn where_all_is_pinned_what_is_new_is_turned_away() {
    let (cache, told) = listened(2);
    // If the cache learnt, it might turn the new entry away later, too: the others have been used.
    cache.set_learning(false);
    cache.insert(1, "one");
    cache.insert(2, "two");
    let pins = [cache.pin(&1), cache.pin(&2)];
    cache.insert(3, "three");
    assert_eq!((cache.get(&1), cache.get(&2), cache.get(&3)), (Some("one"), Some("two"), None));
    assert_eq!(*told.lock().unwrap(), [(3, "three", Cause::Capacity)]);
    drop(pins);
    cache.insert(3, "three");
    assert_eq!(cache.get(&3), Some("three"));
}

#[test]
fn what_is_too_much_while_entries_are_pinned_goes_with_the_last_guard() {
    // The capacity becomes less than what is pinned.
    let (cache, told) = listened(4);
    (0..4).for_each(|key| _ = cache.insert(key, "pinned"));
    let mut pins: Vec<_> = (0..4).map(|key| cache.pin(&key).unwrap()).collect();
    let again = cache.pin(&3).unwrap();
    cache.set_capacity(1);
    assert_eq!((cache.weight(), told.lock().unwrap().len()), (4, 0));
    drop(pins.pop());
    assert_eq!(cache.weight(), 4, "it has a guard still");
    drop(again);
    assert_eq!((cache.weight(), cache.get(&3)), (3, None));
    assert_eq!(*told.lock().unwrap(), [(3, "pinned", Cause::Capacity)]);
    drop(pins);
    assert_eq!((cache.weight(), cache.stats().evictions), (1, 3));

    // A pinned entry is made heavier.
    let builder = Cache::builder().capacity(10).shards(1);
    let cache = builder.weigher(|_, &weight: &u32| weight).build().unwrap();
    cache.insert(1, 5);
    cache.insert(2, 5);
    let pins = [cache.pin(&1), cache.pin(&2)];
    cache.insert(1, 10);
    assert_eq!(cache.weight(), 15);
    drop(pins);
    assert!(cache.weight() <= 10);
}

#[test]
fn a_listener_may_use_the_cache() {
    let slot: Arc<Mutex<Option<Cache<u32, u32>>>> = Arc::default();
    let inner = Arc::clone(&slot);
    let listener = move |key: u32, value: u32, cause| {
        let cache = inner.lock().unwrap().clone();
        if let Some(cache) = cache.filter(|_| cause == Cause::Capacity && value > 0) {
            cache.insert(key, value - 1);
        }
    };
    let cache = Cache::builder().capacity(10).shards(1).listener(listener).build().unwrap();
    *slot.lock().unwrap() = Some(cache.clone());
    (0..100).for_each(|key| _ = cache.insert(key, 2));
    assert_eq!(cache.len(), 10);
    slot.lock().unwrap().take();
}

#[test]
fn its_capacity_can_be_changed() {
    let cache = Cache::builder().capacity(1000).build().unwrap();
    (0..1000).for_each(|key| _ = cache.insert(key, key));
    cache.set_capacity(100);
    assert_eq!((cache.len(), cache.capacity()), (100, 100));
    cache.set_capacity(500);
    (0..1000).for_each(|key| _ = cache.insert(key, key));
    assert_eq!(cache.len(), 500);
}

#[test]
fn another_capacity_holds_though_a_listener_panics() {
    let calm = Arc::new(AtomicBool::new(true));
    let is_calm = Arc::clone(&calm);
    let listener = move |_, (), _| assert!(is_calm.swap(true, Relaxed), "the first one panics");
    let cache = Cache::builder().capacity(4000).shards(4).listener(listener).build().unwrap();
    (0..4000u32).for_each(|key| _ = cache.insert(key, ()));
    calm.store(false, Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| cache.set_capacity(400))).is_err());
    assert_eq!(cache.len(), 400);
    (0..20_000).for_each(|key| _ = cache.insert(key, ()));
    assert_eq!((cache.len(), cache.capacity()), (400, 400));
}

#[test]
fn a_scan_does_not_push_out_what_is_in_use_unless_learning_is_off() {
    let survivors = |learning| {
        let cache = Cache::builder().capacity(1000).shards(1).build().unwrap();
        cache.set_learning(learning);
        for round in 0..40u32 {
            (0..500u32).for_each(|key| _ = cache.get_or_insert_with(&key, || key));
            let scan = (0..400).map(|at| 1_000_000 + round * 400 + at);
            scan.for_each(|key| _ = cache.get_or_insert_with(&key, || key));
        }
        (5_000_000..5_002_000).for_each(|key| _ = cache.insert(key, key));
        (0..500).filter(|key| cache.contains_key(key)).count()
    };
    assert!(survivors(true) > 450);
    assert_eq!(survivors(false), 0);
}

#[test]
fn all_entries_can_be_listed_and_taken_out() {
    let (cache, told) = listened(100);
    (0..10).for_each(|key| _ = cache.insert(key, "x"));
    let mut keys: Vec<u32> = cache.iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..10).collect::<Vec<_>>());
    cache.clear();
    assert_eq!((cache.len(), told.lock().unwrap().len()), (0, 10));
    let stats = cache.stats();
    assert_eq!((stats.insertions, stats.hits, stats.misses, stats.weight), (10, 0, 0, 0));
}

#[test]
fn what_cannot_be_built_is_said() {
    let none = Cache::<u32, u32>::builder().build().err();
    assert_eq!(none, Some(BuildError::NoCapacity));
    let many = Cache::<u32, u32>::builder().capacity(3).shards(4).build().err();
    assert_eq!(many, Some(BuildError::Shards { shards: 4, capacity: 3 }));
    assert_eq!(many.unwrap().to_string(), "a cache of 3 cannot be cut into 4 shards: use 1 to 3");
}

#[test]
fn values_are_dropped_once_each() {
    let value = Arc::new(());
    let cache = Cache::new(16);
    (0..100).for_each(|key| _ = cache.insert(key % 40, Arc::clone(&value)));
    assert_eq!(Arc::strong_count(&value), 17);
    drop(cache);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn a_capacity_may_stand_for_no_limit() {
    let builder = || Cache::builder().capacity(u64::MAX).shards(3);
    let weighed = builder().weigher(|_, _| u32::MAX).build().unwrap();
    for cache in [builder().build().unwrap(), weighed] {
        for key in 0..10_000_u64 {
            cache.get(&key);
            cache.insert(key, key);
        }
        assert_eq!(cache.len(), 10_000);
        cache.set_capacity(u64::MAX - 1);
        assert_eq!(cache.len(), 10_000);
    }
}

#[test]
fn a_value_that_is_too_heavy_pushes_out_nothing_but_the_one_before_it() {
    let told: Told = Told::default();
    let tell = Arc::clone(&told);
    let builder = Cache::builder().capacity(100).shards(1).weigher(|_, &weight: &u32| weight);
    let builder =
        builder.listener(move |key, _, cause| tell.lock().unwrap().push((key, "", cause)));
    let cache = builder.build().unwrap();
    (0..100).for_each(|key| _ = cache.insert(key, 1));
    assert_eq!(cache.insert(5, 101), Some(1));
    assert_eq!((cache.len(), cache.weight(), cache.get(&5)), (99, 99, None));
    assert_eq!(*told.lock().unwrap(), [(5, "", Cause::Replaced), (5, "", Cause::Capacity)]);
    assert_eq!(cache.stats().rejections, 1);
}

#[test]
fn nothing_is_evicted_for_what_does_not_fit_beside_pinned_entries() {
    let builder = Cache::builder().capacity(100).shards(1);
    let cache = builder.weigher(|_, &weight: &u32| weight).build().unwrap();
    cache.insert(0, 60);
    let pinned = cache.pin(&0).unwrap();
    (1..=40).for_each(|key| _ = cache.insert(key, 1));
    cache.insert(100, 50);
    assert_eq!((cache.len(), cache.contains_key(&100)), (41, false));
    // The weight of a pinned entry may change.
    cache.insert(0, 30);
    cache.insert(100, 50);
    assert!(cache.contains_key(&100) && cache.contains_key(&0) && cache.weight() <= 100);
    drop(pinned);
    cache.insert(101, 100);
    assert!(cache.contains_key(&101) && cache.len() == 1);
}

fn hits_of_a_loop(cache: &Cache<u64, u64>, read: impl Fn(u64) -> bool) -> usize {
    let once = |at: u64| {
        let key = at % 1500;
        let hit = read(key);
        if !hit {
            cache.insert(key, key);
        }
        hit
    };
    (0..200_000).filter(|at| once(*at)).count()
}

/// Part of a loop that does not fit stays, once that has been learnt.
#[test]
fn what_was_made_without_a_limit_learns_when_it_is_made_small() {
    let cache: Cache<u64, u64> = Cache::builder().capacity(1 << 40).shards(4).build().unwrap();
    cache.set_capacity(1000);
    let hits = hits_of_a_loop(&cache, |key| cache.get(&key).is_some());
    assert!(hits > 80_000, "{hits} of 200,000");
}

#[test]
fn reading_by_pins_is_reading() {
    let cache: Cache<u64, u64> = Cache::builder().capacity(1000).shards(1).build().unwrap();
    let hits = hits_of_a_loop(&cache, |key| cache.pin(&key).is_some());
    assert!(hits > 80_000, "{hits} of 200,000");
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (hits as u64, 200_000 - hits as u64));
}

/// Long after the last miss, the cache still knows what was not used for long.
#[test]
fn after_a_rest_a_smaller_capacity_keeps_what_was_used_last() {
    let cache: Cache<u64, u64> = Cache::builder().capacity(10_000).shards(1).build().unwrap();
    (0..10_000).for_each(|key| _ = cache.insert(key, key));
    for half in [0..5_000, 5_000..10_000] {
        for _ in 0..60 {
            half.clone().for_each(|key| assert_eq!(cache.get(&key), Some(key)));
        }
    }
    cache.set_capacity(5_000);
    let kept = (5_000..10_000).filter(|key| cache.contains_key(key)).count();
    assert!(kept > 4_900, "{kept} of 5000");
}

#[test]
fn a_full_cache_turns_away_what_never_comes_back_unless_it_does_not_learn() {
    let cache = Cache::builder().capacity(1000).shards(1).build().unwrap();
    // A working set is used all the time, and there is a scan, too.
    let read = |key: u64| _ = cache.get_or_insert_with(&key, || key);
    let run = |scan: std::ops::Range<u64>| {
        for key in scan {
            read(key * key % 800);
            read(1_000_000 + key);
        }
    };
    run(0..20_000);
    let learnt = cache.stats();
    run(20_000..30_000);
    let stats = cache.stats();
    let (inserted, declined) =
        (stats.insertions - learnt.insertions, stats.declined - learnt.declined);
    assert!(declined > 9 * inserted, "{declined} of {} were declined", declined + inserted);
    cache.set_learning(false);
    run(30_000..40_000);
    assert_eq!(cache.stats().declined, stats.declined);
    // Values of keys that are there are replaced in any case.
    let held: Vec<u64> = cache.iter().map(|(key, _)| key).collect();
    cache.set_learning(true);
    assert!(held.iter().all(|&key| cache.insert(key, 0).is_some() && cache.get(&key) == Some(0)));
}

#[test]
fn no_change_is_lost_that_is_computed() {
    let cache = Cache::builder().capacity(1000).shards(2).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..20_000 {
                    cache.compute(round % 4, |count: Option<&u32>| {
                        Some(count.map_or(1, |count| count + 1))
                    });
                }
            });
        }
    });
    assert_eq!([0, 1, 2, 3].map(|key| cache.peek(&key)), [Some(20_000); 4]);
}

#[test]
fn what_computes_and_panics_changes_nothing() {
    let weigh = |_: &u32, value: &u32| if *value == 13 { panic!("thirteen") } else { 1 };
    let cache = Cache::builder().capacity(10).weigher(weigh).build().unwrap();
    cache.insert(1, 7);
    let compute = |change: fn(Option<&u32>) -> Option<u32>| {
        catch_unwind(AssertUnwindSafe(|| cache.compute(1, change)))
    };
    assert!(compute(|_| panic!("no")).is_err());
    assert!(compute(|_| Some(13)).is_err());
    assert_eq!((cache.peek(&1), cache.weight()), (Some(7), 1));
    assert_eq!(compute(|old| old.map(|old| old + 1)).unwrap(), Some(8));
}

#[test]
fn a_load_under_way_is_not_cached_over_what_is_computed() {
    let cache = Cache::new(10);
    for made in [Some(2), None] {
        let loaded = cache.get_or_insert_with(&1, || {
            assert_eq!(cache.compute(1, |held| held.copied().or(made)), made);
            1
        });
        assert_eq!((loaded, cache.peek(&1)), (1, made));
        cache.clear();
    }
}

#[test]
fn what_is_over_is_not_computed_from() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let told = Told::default();
    let tell = Arc::clone(&told);
    let cache = Cache::builder()
        .capacity(10)
        .time_to_live(Duration::from_secs(60))
        .clock(|| Duration::from_secs(NOW.load(Relaxed)))
        .listener(move |key, value, cause| tell.lock().unwrap().push((key, value, cause)))
        .build()
        .unwrap();
    for made in [Some("new"), None] {
        cache.insert(1, "old");
        told.lock().unwrap().clear();
        NOW.fetch_add(60, Relaxed);
        let change = |held: Option<&&'static str>| {
            assert_eq!(held, None);
            made
        };
        assert_eq!(cache.compute(1, change), made);
        assert_eq!(*told.lock().unwrap(), [(1, "old", Cause::Expired)]);
    }
}

/// A value that uses the cache when it is dropped.
#[derive(Clone)]
struct Uses(Cache<u32, Option<Arc<Uses>>>);

impl Drop for Uses {
    fn drop(&mut self) {
        self.0.peek(&1);
    }
}

#[test]
fn what_was_made_where_computing_panics_goes_without_the_lock() {
    let weigh = |_: &u32, value: &Option<Arc<Uses>>| if value.is_some() { panic!("no") } else { 1 };
    let cache = Cache::builder().capacity(10).shards(1).weigher(weigh).build().unwrap();
    let made = Some(Arc::new(Uses(cache.clone())));
    let computed = catch_unwind(AssertUnwindSafe(|| cache.compute(1, |_| Some(made))));
    assert!(computed.is_err());
    assert!(cache.is_empty());
}
