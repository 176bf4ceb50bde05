//! What becomes of the cache, and of callers that wait, if the program's code panics.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use homing_cache::{Cache, Cause};

/// A value whose second clone panics, and no other.
#[derive(Debug)]
struct Frail(Arc<AtomicUsize>);

impl Clone for Frail {
    fn clone(&self) -> Self {
        assert!(self.0.fetch_add(1, SeqCst) != 1, "the second clone");
        Self(Arc::clone(&self.0))
    }
}

#[test]
fn those_who_wait_go_on_where_cloning_the_value_for_them_panics() {
    let cache: Cache<u32, Frail> = Cache::new(10);
    let (began, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let loader = thread::spawn({
        let cache = cache.clone();
        move || {
            cache.get_or_insert_with(&1, || {
                began.send(()).unwrap();
                ended.recv().unwrap();
                Frail(Arc::default())
            })
        }
    });
    begun.recv().unwrap();
    let (done, over) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let mut context = Context::from_waker(Waker::noop());
        let load = std::future::pending::<Result<Frail, ()>>();
        let mut waiting = std::pin::pin!(cache.get_or_load_async(&1, load));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        end.send(()).unwrap();
        // A caller that is woken looks again.
        while waiting.as_mut().poll(&mut context).is_pending() {
            thread::yield_now();
        }
        done.send(()).unwrap();
    });
    over.recv_timeout(Duration::from_secs(60)).expect("an end of the wait");
    waiter.join().unwrap();
    assert!(loader.join().is_err());
}

/// A waker that panics when it is called, or counts its calls.
struct Wakes(bool, AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        assert!(!self.0, "a waker that panics");
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_waker_that_panics_is_no_matter_of_others_nor_of_the_loader() {
    for loader_panics in [false, true] {
        let cache: Cache<u32, u32> = Cache::new(10);
        let wakes = [true, false].map(|panics| Arc::new(Wakes(panics, AtomicUsize::new(0))));
        let never = std::future::pending::<Result<u32, ()>>;
        let mut waiting = Vec::new();
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            cache.get_or_insert_with(&1, || {
                for waker in &wakes {
                    let mut future = Box::pin(cache.get_or_load_async(&1, never()));
                    let waker = Waker::from(Arc::clone(waker));
                    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                    waiting.push(future);
                }
                // A second panic within this one would end the process.
                assert!(!loader_panics, "a loader that panics");
                7
            })
        }));
        let value = (!loader_panics).then_some(7);
        assert_eq!((loaded.ok(), cache.get(&1)), (value, value));
        assert_eq!(wakes[1].1.load(SeqCst), 1);
    }
}

// How many keys below 100 can still be hashed.
thread_local!(static HASHES: Cell<u32> = const { Cell::new(u32::MAX) });

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key(u32);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.0 < 100 {
            HASHES.set(HASHES.get().checked_sub(1).expect("a key that can be hashed"));
        }
        self.0.hash(state);
    }
}

#[test]
fn a_victim_that_cannot_be_hashed_stays() {
    let cache: Cache<Key, u32> = Cache::builder().capacity(10).shards(1).build().unwrap();
    (0..10).for_each(|key| _ = cache.insert(Key(key), key));
    HASHES.set(0);
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(Key(100), 100))).is_err());
    HASHES.set(u32::MAX);
    assert_eq!((cache.len(), cache.weight()), (10, 10));
    assert!((0..10).all(|key| cache.remove(&Key(key)) == Some(key)));
    (0..20).for_each(|key| _ = cache.insert(Key(key), key));
    assert_eq!(cache.len(), 10);
    cache.clear();
    assert!(cache.is_empty());
}

#[test]
fn a_table_that_cannot_grow_is_left_as_it_was() {
    // The index grows step by step, and hashes all keys again each time.
    let cache: Cache<Key, u32> =
        Cache::builder().capacity(100_000).weigher(|_, _| 1).shards(1).build().unwrap();
    (0..64).for_each(|key| _ = cache.insert(Key(key), key));
    HASHES.set(0);
    let insert = |key| catch_unwind(AssertUnwindSafe(|| cache.insert(Key(key), key))).is_err();
    let panicked = (100..100_000).find(|&key| insert(key));
    HASHES.set(u32::MAX);
    let inserted = panicked.expect("a table that grows") - 100 + 64;
    assert_eq!((cache.len() as u32, cache.weight() as u32), (inserted, inserted));
    (0..64).for_each(|key| assert_eq!(cache.remove(&Key(key)), Some(key)));
    cache.clear();
    assert!(cache.is_empty());
}

#[test]
fn a_listener_that_panics_is_told_of_the_rest() {
    let told = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&told);
    let listener = move |_, _, _| assert!(tell.fetch_add(1, SeqCst) != 0, "the first time");
    let builder = Cache::<u32, u32>::builder().capacity(1000).shards(4).listener(listener);
    let cache = builder.build().unwrap();
    (0..100).for_each(|key| _ = cache.insert(key, key));
    assert!(catch_unwind(AssertUnwindSafe(|| cache.clear())).is_err());
    assert!(cache.is_empty());
    assert_eq!(told.load(SeqCst), 100);
}

#[test]
fn a_listener_may_panic_where_a_panic_is_under_way() {
    let builder = Cache::<u32, u32>::builder().capacity(2).shards(1);
    let cache = builder.listener(|_, _, _| panic!("the listener's")).build().unwrap();
    cache.insert(1, 1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        cache.insert(2, 2);
        let _pinned = [1, 2].map(|key| cache.pin(&key).unwrap());
        cache.set_capacity(1);
        panic!("the first");
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"the first"));
    assert_eq!(cache.len(), 1);
}

#[test]
fn what_went_before_a_victim_that_cannot_be_hashed_is_told_of() {
    let told = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&told);
    let builder = Cache::<Key, u32>::builder().capacity(10).shards(1).weigher(|_, &value| value);
    let listener = move |_, _, _| _ = tell.fetch_add(1, SeqCst);
    let cache = builder.listener(listener).build().unwrap();
    (0..10).for_each(|key| _ = cache.insert(Key(key), 1));
    HASHES.set(1);
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(Key(100), 2))).is_err());
    HASHES.set(u32::MAX);
    assert_eq!((cache.len(), told.load(SeqCst)), (9, 1));
}

/// A value that uses its cache when it is dropped, which would wait forever if the cache were
/// locked. It panics when it is cloned.
struct Meddler(Cache<u32, Arc<Meddler>>, u32);

impl Drop for Meddler {
    fn drop(&mut self) {
        assert!(self.0.get(&self.1).is_none());
    }
}

struct Handle(Arc<Meddler>);

impl Clone for Handle {
    fn clone(&self) -> Self {
        panic!("it is not to be cloned");
    }
}

/// If a value that a cache is to give back cannot be cloned, the listener hears of it, nothing is
/// dropped under a lock, and the cache goes on.
#[test]
fn what_cannot_be_cloned_leaves_all_the_same() {
    let other: Cache<u32, Arc<Meddler>> = Cache::new(10);
    let (tell, told) = mpsc::channel();
    let listener = move |key: u32, _: Handle, cause| tell.send((key, cause)).unwrap();
    let weigher = |_: &u32, it: &Handle| it.0.1;
    let cache = Cache::builder().capacity(10).weigher(weigher).listener(listener).build().unwrap();
    let value = |weight| Handle(Arc::new(Meddler(other.clone(), weight)));
    let panics = |it: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(it)).is_err());
    cache.insert(1, value(1));
    panics(&|| drop(cache.insert(1, value(2))));
    assert_eq!((told.recv().unwrap(), cache.weight()), ((1, Cause::Replaced), 2));
    panics(&|| drop(cache.insert(1, value(11))));
    let heard = (told.recv().unwrap(), told.recv().unwrap());
    assert_eq!(heard, ((1, Cause::Replaced), (1, Cause::Capacity)));
    cache.insert(2, value(3));
    panics(&|| drop(cache.remove(&2)));
    assert_eq!((told.recv().unwrap(), cache.len()), ((2, Cause::Removed), 0));
}

// Whether keys can be compared.
thread_local!(static COMPARES: Cell<bool> = const { Cell::new(true) });

#[derive(Clone, Debug)]
struct Shy(u32);

impl Hash for Shy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Shy {
    fn eq(&self, other: &Self) -> bool {
        assert!(COMPARES.get(), "a key that can be compared");
        self.0 == other.0
    }
}

impl Eq for Shy {}

/// A value that, when it is dropped, uses the cache that it was to go into. This would wait forever
/// if the cache were locked.
#[derive(Clone)]
struct Visitor(Option<Cache<Shy, Visitor>>);

impl Drop for Visitor {
    fn drop(&mut self) {
        self.0.take().map(|cache| cache.len());
    }
}

#[test]
fn what_was_not_put_in_is_dropped_without_a_lock() {
    let cache: Cache<Shy, Visitor> = Cache::builder().capacity(10).shards(1).build().unwrap();
    cache.insert(Shy(1), Visitor(None));
    let value = |cache: &Cache<Shy, Visitor>| {
        COMPARES.set(false);
        Visitor(Some(cache.clone()))
    };
    let (done, over) = mpsc::channel();
    thread::spawn(move || {
        let insert = || drop(cache.insert(Shy(1), value(&cache)));
        let compute = || drop(cache.compute(Shy(1), |_| Some(value(&cache))));
        let ways: [&dyn Fn(); 2] = [&insert, &compute];
        for way in ways {
            let panicked = catch_unwind(AssertUnwindSafe(way));
            COMPARES.set(true);
            done.send(panicked.is_err()).unwrap();
        }
    });
    for _ in 0..2 {
        assert_eq!(over.recv_timeout(Duration::from_secs(60)), Ok(true), "a lock is let go");
    }
}

/// `compute` does not return the value that it replaces. So it need not clone that value, which
/// could panic when all is done.
#[test]
fn compute_does_not_clone_what_it_replaces() {
    /// A value that cannot be cloned if it is the first.
    struct Numbered(u32);
    impl Clone for Numbered {
        fn clone(&self) -> Self {
            assert_ne!(self.0, 1, "the first cannot be cloned");
            Self(self.0)
        }
    }
    let cache: Cache<&str, Numbered> = Cache::new(10);
    cache.insert("key", Numbered(1));
    let second = cache.compute("key", |old| Some(Numbered(old.unwrap().0 + 1)));
    assert_eq!(second.map(|value| value.0), Some(2));
    let again = || cache.compute("key", |_| Some(Numbered(1)));
    assert!(catch_unwind(AssertUnwindSafe(again)).is_err());
    assert_eq!(cache.get("key").map(|value| value.0), Some(2), "then nothing has changed");
}

/// The value that was to be returned is dropped.
#[test]
fn nothing_leaks_where_the_listener_panics() {
    let value = Arc::new(());
    let listener = |_: u32, _: Arc<()>, _: Cause| panic!("a listener");
    let cache = Cache::builder().capacity(4).listener(listener).build().unwrap();
    let calls: [&dyn Fn(u32); 6] = [
        &|key| drop(cache.insert(key % 4, Arc::clone(&value))),
        &|key| drop(cache.insert(key, Arc::clone(&value))),
        &|key| drop(cache.remove(&(key % 4))),
        &|key| drop(cache.compute(key % 4, |_| Some(Arc::clone(&value)))),
        &|key| drop(cache.compute(key % 4, |_| None)),
        &|key| drop(cache.get_or_insert_with(&key, || Arc::clone(&value))),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        for key in 0..100 {
            let _ = catch_unwind(AssertUnwindSafe(|| call(key)));
            let held = cache.len();
            assert_eq!(Arc::strong_count(&value), 1 + held, "call {number}, key {key}");
        }
        for key in 0..4 {
            let _ = catch_unwind(AssertUnwindSafe(|| cache.insert(key, Arc::clone(&value))));
        }
    }
}
