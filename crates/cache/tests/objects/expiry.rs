//! Entries that expire, on a clock that the test sets.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homing_cache::{Builder, Cache, Cause};

#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, SeqCst);
    }

    fn cache(&self, builder: Builder<u32, u32>) -> Cache<u32, u32> {
        let clock = Arc::clone(&self.0);
        let now = move || Duration::from_secs(clock.load(SeqCst));
        builder.capacity(100).shards(1).clock(now).build().unwrap()
    }
}

#[test]
fn entries_live_for_so_long_after_they_were_written() {
    let clock = Clock::default();
    let cache = clock.cache(Cache::builder().time_to_live(Duration::from_secs(10)));
    cache.insert(1, 1);
    clock.advance(9);
    assert_eq!(cache.get(&1), Some(1));
    clock.advance(1);
    assert_eq!((cache.get(&1), cache.contains_key(&1), cache.iter().count()), (None, false, 0));
    assert_eq!((cache.remove(&1), cache.len()), (None, 0));
    cache.insert(2, 2);
    clock.advance(9);
    cache.insert(2, 3);
    clock.advance(9);
    assert_eq!(cache.get(&2), Some(3));
}

#[test]
fn entries_live_for_so_long_after_they_were_used() {
    let clock = Clock::default();
    let cache = clock.cache(Cache::builder().time_to_idle(Duration::from_secs(10)));
    cache.insert(1, 1);
    for _ in 0..5 {
        clock.advance(9);
        assert_eq!(cache.get(&1), Some(1));
        clock.advance(9);
        assert_eq!(cache.pin(&1).as_deref(), Some(&1), "that is a use, too");
    }
    clock.advance(10);
    assert_eq!(cache.get(&1), None);
    assert_eq!(cache.insert(1, 2), None);
    assert_eq!(cache.get(&1), Some(2));
}

/// However it was written: an even value lives for as many seconds as it says.
#[test]
fn entries_may_have_times_of_their_own() {
    let clock = Clock::default();
    let own = |_: &u32, value: &u32| {
        value.is_multiple_of(2).then(|| Duration::from_secs(u64::from(*value)))
    };
    let is_there = |cache: &Cache<u32, u32>| [1, 2, 3, 4].map(|key| cache.contains_key(&key));
    let fill = |cache: &Cache<u32, u32>| {
        cache.insert(1, 6);
        cache.compute(2, |_| Some(4));
        cache.get_or_load(&3, || Ok::<_, &str>(20)).unwrap();
        cache.insert(4, 1);
    };
    let cache = clock.cache(Cache::builder().expire_after(own));
    fill(&cache);
    clock.advance(4);
    assert_eq!(is_there(&cache), [true, false, true, true]);
    cache.insert(1, 8);
    clock.advance(7);
    assert_eq!(is_there(&cache), [true, false, true, true], "written anew, with another time");
    clock.advance(1);
    assert_eq!((cache.get(&1), cache.get(&4)), (None, Some(1)));
    clock.advance(1 << 30);
    assert_eq!(is_there(&cache), [false, false, false, true]);

    let builder = Cache::builder().time_to_live(Duration::from_secs(10)).expire_after(own);
    let cache = clock.cache(builder.time_to_idle(Duration::from_secs(9)));
    fill(&cache);
    clock.advance(6);
    assert_eq!(is_there(&cache), [false, false, true, true]);
    assert_eq!((cache.get(&3), cache.get(&4)), (Some(20), Some(1)));
    clock.advance(3);
    assert_eq!(is_there(&cache), [false, false, true, true]);
    clock.advance(1);
    assert_eq!(is_there(&cache), [false; 4], "the shorter time counts");
}

#[test]
fn what_is_over_and_has_to_go_has_not_gone_for_want_of_room() {
    let told = Arc::new(Mutex::new([0; 2]));
    let clock = Clock::default();
    let tell = Arc::clone(&told);
    let lifetime = Cache::builder().time_to_live(Duration::from_secs(10));
    let cache = clock.cache(lifetime.listener(move |_, _, cause| match cause {
        Cause::Expired => tell.lock().unwrap()[0] += 1,
        Cause::Capacity => tell.lock().unwrap()[1] += 1,
        other => panic!("{other:?}"),
    }));
    (0..50).for_each(|key| _ = cache.insert(key, key));
    clock.advance(9);
    (50..100).for_each(|key| _ = cache.insert(key, key));
    clock.advance(1);
    cache.set_capacity(20);
    let stats = cache.stats();
    let counted = [stats.expirations, stats.evictions];
    assert_eq!(*told.lock().unwrap(), counted);
    assert_eq!((counted[0] + counted[1], cache.len()), (80, 20));
    // Some of the fifty expired entries may be left.
    assert!((30..=50).contains(&counted[0]), "{counted:?}");
}

#[test]
fn what_is_over_leaves_memory_while_others_come_or_when_asked_to() {
    let told = Arc::new(Mutex::new(0));
    let clock = Clock::default();
    let tell = Arc::clone(&told);
    let lifetime = Cache::builder().time_to_live(Duration::from_secs(10));
    let cache = clock.cache(lifetime.listener(move |_, _, cause| {
        *tell.lock().unwrap() += u32::from(cause == Cause::Expired);
    }));
    (0..40).for_each(|key| _ = cache.insert(key, key));
    clock.advance(10);
    (100..140).for_each(|key| _ = cache.insert(key, key));
    assert_eq!((cache.len(), cache.stats().expirations, *told.lock().unwrap()), (40, 40, 40));
    clock.advance(10);
    cache.remove_expired();
    assert_eq!((cache.len(), *told.lock().unwrap()), (0, 80));
}

#[test]
fn errors_are_remembered_for_a_while_if_asked_to() {
    let clock = Clock::default();
    let cache = clock.cache(Cache::builder().error_time_to_live(Duration::from_secs(10)));
    let mut loads = 0;
    let mut load = |result| {
        cache.get_or_load(&1, || {
            loads += 1;
            result
        })
    };
    assert_eq!(*load(Err("no")).unwrap_err(), "no");
    clock.advance(9);
    assert_eq!(*load(Ok(1)).unwrap_err(), "no");
    clock.advance(1);
    assert_eq!(load(Ok(1)).unwrap(), 1);
    assert_eq!(loads, 2);
    // An error of another type is ignored.
    assert!(cache.get_or_load(&2, || Err::<u32, _>("no")).is_err());
    assert_eq!(cache.get_or_load(&2, || Ok::<_, u8>(5)).unwrap(), 5);
    // An insertion overrides an old error.
    assert!(cache.get_or_load(&3, || Err::<u32, _>("no")).is_err());
    cache.insert(3, 3);
    assert_eq!(cache.get_or_load(&3, || Err::<u32, _>("no")).unwrap(), 3);
}

#[test]
fn a_condition_that_says_no_changes_nothing() {
    let clock = Clock::default();
    let cache = clock.cache(Cache::builder().error_time_to_live(Duration::from_secs(10)));
    cache.insert(1, 1);
    assert_eq!(cache.remove_if(&1, |_| false), None);
    assert_eq!(cache.get(&1), Some(1));
    // There is no value that the condition could be called for, so the error goes, as with
    // `remove`.
    assert!(cache.get_or_load(&2, || Err::<u32, _>("no")).is_err());
    assert_eq!(cache.remove_if(&2, |_| false), None);
    assert_eq!(cache.get_or_load(&2, || Ok::<_, &str>(2)).unwrap(), 2);
}

#[test]
fn a_condition_is_not_asked_of_what_is_over() {
    let clock = Clock::default();
    let cache = clock.cache(Cache::builder().time_to_live(Duration::from_secs(10)));
    cache.insert(1, 1);
    clock.advance(10);
    assert_eq!(cache.remove_if(&1, |value| panic!("asked about {value}")), None);
    assert_eq!(cache.get(&1), None);
}

#[test]
fn errors_may_be_remembered_for_ever() {
    let clock = Clock::default();
    clock.advance(1);
    let cache = clock.cache(Cache::builder().error_time_to_live(Duration::MAX));
    assert!(cache.get_or_load(&1, || Err::<u32, _>("no")).is_err());
    assert_eq!(*cache.get_or_load(&1, || Ok::<_, &str>(1)).unwrap_err(), "no");
}

#[test]
fn no_more_errors_are_remembered_than_some() {
    let clock = Clock::default();
    let cache = clock.cache(Cache::builder().error_time_to_live(Duration::from_secs(10)));
    let mut loads = 0;
    for _ in 0..2 {
        for key in 0..5000 {
            _ = cache.get_or_load(&key, || {
                loads += 1;
                Err::<u32, _>("no")
            });
        }
    }
    assert!((5000 + 3900..5000 + 4000).contains(&loads), "{loads}");
    clock.advance(10);
    cache.remove_expired();
    assert_eq!(cache.get_or_load(&1, || Ok::<_, &str>(1)), Ok(1));
}

/// Whichever call finds that an entry has expired.
#[test]
fn each_entry_whose_time_is_over_is_counted_as_it_is_told() {
    let (clock, told) = (Clock::default(), Arc::new(Mutex::new(Vec::new())));
    let tell = Arc::clone(&told);
    let listener = move |key, _, cause| tell.lock().unwrap().push((key, cause));
    let builder = Cache::builder().time_to_live(Duration::from_secs(10)).listener(listener);
    let cache = clock.cache(builder);
    (0..4).for_each(|key| _ = cache.insert(key, key));
    clock.advance(10);
    assert_eq!(
        (cache.remove(&0), cache.compute(1, |_| None), cache.insert(2, 2)),
        (None, None, None)
    );
    cache.remove_expired();
    let mut told = told.lock().unwrap().clone();
    told.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(told, [0, 1, 2, 3].map(|key| (key, Cause::Expired)));
    assert_eq!(cache.stats().expirations, 4);
}
