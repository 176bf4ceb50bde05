//! Values are loaded once, however many callers ask, and whatever becomes of the loader.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use homing_cache::Cache;

/// Why a load failed.
#[derive(Debug, PartialEq, Eq)]
struct Failed;

/// A load that has begun, and ends when told to.
struct Begun {
    end: mpsc::Sender<Result<u32, Failed>>,
    loader: thread::JoinHandle<Result<u32, Arc<Failed>>>,
}

fn begin(cache: &Cache<u32, u32>, key: u32) -> Begun {
    let (end, told) = mpsc::channel();
    let (began, begun) = mpsc::channel();
    let cache = cache.clone();
    let loader = thread::spawn(move || {
        cache.get_or_load(&key, || {
            began.send(()).unwrap();
            told.recv().unwrap()
        })
    });
    begun.recv().unwrap();
    Begun { end, loader }
}

fn poll<T>(future: std::pin::Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

async fn never() -> Result<u32, Failed> {
    std::future::pending().await
}

#[test]
fn one_loads_and_all_get_its_value() {
    let cache = Cache::new(100);
    let loads = AtomicUsize::new(0);
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                for key in 0..50 {
                    let value = cache.get_or_load(&key, || {
                        loads.fetch_add(1, SeqCst);
                        thread::yield_now();
                        Ok::<u32, ()>(key * 2)
                    });
                    assert_eq!(value, Ok(key * 2));
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), 50);
}

#[test]
fn those_who_wait_share_the_error_and_the_next_one_loads() {
    let cache = Cache::new(100);
    let begun = begin(&cache, 1);
    let mut waiter = pin!(cache.get_or_load_async(&1, async { Ok::<u32, Failed>(7) }));
    assert!(poll(waiter.as_mut()).is_pending());
    begun.end.send(Err(Failed)).unwrap();
    assert_eq!(begun.loader.join().unwrap(), Err(Arc::new(Failed)));
    assert_eq!(poll(waiter.as_mut()), Poll::Ready(Err(Arc::new(Failed))));
    assert_eq!(cache.get_or_load(&1, || Ok::<u32, Failed>(7)), Ok(7));
}

#[test]
fn after_a_loader_that_panics_another_one_loads() {
    let cache: Cache<u32, u32> = Cache::new(100);
    let begun = begin(&cache, 1);
    let mut waiter = pin!(cache.get_or_load_async(&1, async { Ok::<u32, Failed>(7) }));
    assert!(poll(waiter.as_mut()).is_pending());
    drop(begun.end); // `recv().unwrap()` panics
    assert!(begun.loader.join().is_err());
    assert_eq!(poll(waiter.as_mut()), Poll::Ready(Ok(7)));
    assert_eq!(cache.get(&1), Some(7));
    let panic =
        AssertUnwindSafe(|| cache.get_or_insert_with(&2, || panic!("a loader's own fault")));
    assert!(std::panic::catch_unwind(panic).is_err());
    assert_eq!(cache.get_or_insert_with(&2, || 5), 5);
}

#[test]
fn after_a_loader_that_is_cancelled_another_one_loads() {
    let cache: Cache<u32, u32> = Cache::new(100);
    let mut first = Box::pin(cache.get_or_load_async(&1, never()));
    assert!(poll(first.as_mut()).is_pending());
    let mut second = pin!(cache.get_or_load_async(&1, async { Ok::<u32, Failed>(7) }));
    assert!(poll(second.as_mut()).is_pending());
    // A future that waits may be cancelled, too.
    let mut third = Box::pin(cache.get_or_load_async(&1, never()));
    assert!(poll(third.as_mut()).is_pending());
    drop(third);
    drop(first);
    assert_eq!(poll(second.as_mut()), Poll::Ready(Ok(7)));
}

#[test]
fn what_was_removed_or_overwritten_meanwhile_is_not_cached() {
    let cache = Cache::new(100);
    let begun = begin(&cache, 1);
    cache.remove(&1);
    begun.end.send(Ok(7)).unwrap();
    assert_eq!(begun.loader.join().unwrap(), Ok(7));
    assert_eq!(cache.get(&1), None, "it may be stale");

    let begun = begin(&cache, 2);
    cache.insert(2, 50);
    assert_eq!(cache.get_or_load(&2, || Ok::<u32, Failed>(99)), Ok(50));
    begun.end.send(Ok(7)).unwrap();
    assert_eq!(begun.loader.join().unwrap(), Ok(7));
    assert_eq!(cache.get(&2), Some(50));

    let begun = begin(&cache, 3);
    cache.clear();
    begun.end.send(Ok(7)).unwrap();
    assert_eq!(begun.loader.join().unwrap(), Ok(7));
    assert_eq!(cache.get(&3), None);
}

#[test]
fn a_loader_may_use_the_cache_for_other_keys() {
    let cache: Cache<u32, u32> = Cache::builder().capacity(10).shards(1).build().unwrap();
    let value = cache.get_or_insert_with(&1, || cache.get_or_insert_with(&2, || 5) + 1);
    assert_eq!((value, cache.get(&2)), (6, Some(5)));
}

#[test]
fn futures_that_wait_are_woken() {
    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let cache = Cache::new(100);
    let begun = begin(&cache, 1);
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut waiter = pin!(cache.get_or_load_async(&1, never()));
    for _ in 0..3 {
        assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    begun.end.send(Ok(7)).unwrap();
    assert_eq!(begun.loader.join().unwrap(), Ok(7));
    assert_eq!(woken.0.load(SeqCst), 1);
    assert_eq!(poll(waiter.as_mut()), Poll::Ready(Ok(7)));
}

/// Fails if `run` waits forever.
fn in_time(run: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        run();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).expect("it ends");
}

/// Uses its cache when it is dropped.
#[derive(Clone)]
struct Nosy(Cache<u32, Nosy>);

impl Drop for Nosy {
    fn drop(&mut self) {
        self.0.contains_key(&1);
    }
}

#[test]
fn a_value_that_is_not_cached_may_use_the_cache_when_it_is_dropped() {
    let cache = Cache::builder().capacity(10).shards(1).build().unwrap();
    in_time(move || {
        let load = || {
            cache.remove(&1);
            Ok::<_, ()>(Nosy(cache.clone()))
        };
        assert!(cache.get_or_load(&1, load).is_ok());
    });
}

#[test]
fn an_error_that_is_forgotten_may_use_the_cache_when_it_is_dropped() {
    struct NosyError(Cache<u32, u32>);
    impl Drop for NosyError {
        fn drop(&mut self) {
            self.0.contains_key(&1);
        }
    }
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let builder =
        Cache::builder().capacity(10).shards(1).error_time_to_live(Duration::from_secs(1));
    let builder = builder.clock(move || Duration::from_secs(clock.load(SeqCst)));
    let cache: Cache<u32, u32> = builder.build().unwrap();
    assert!(cache.get_or_load(&1, || Err(NosyError(cache.clone()))).is_err());
    let (started, is_started) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let loading = {
        let cache = cache.clone();
        thread::spawn(move || {
            cache.get_or_insert_with(&2, || {
                started.send(()).unwrap();
                may_go.recv().unwrap();
                2
            })
        })
    };
    is_started.recv().unwrap();
    now.store(2, SeqCst);
    // The caller that joins this load searches for errors to forget.
    let joined = thread::spawn(move || in_time(move || _ = cache.get_or_insert_with(&2, || 3)));
    thread::sleep(Duration::from_millis(100));
    go.send(()).unwrap();
    joined.join().unwrap();
    assert_eq!(loading.join().unwrap(), 2);
}

#[test]
fn errors_are_remembered_though_many_are_over_and_a_load_hangs() {
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let builder =
        Cache::builder().capacity(100).shards(1).error_time_to_live(Duration::from_secs(5));
    let cache = builder.clock(move || Duration::from_secs(clock.load(SeqCst))).build().unwrap();
    for key in 0..1024 {
        cache.get_or_load(&key, || Err::<u32, _>(Failed)).unwrap_err();
    }
    let hangs = begin(&cache, 999_999);
    now.store(1000, SeqCst);
    let loads = AtomicUsize::new(0);
    for _ in 0..100 {
        let failing = || {
            loads.fetch_add(1, SeqCst);
            Err::<u32, _>(Failed)
        };
        cache.get_or_load(&5_000_000, failing).unwrap_err();
    }
    assert_eq!(loads.load(SeqCst), 1);
    hangs.end.send(Ok(1)).unwrap();
    assert_eq!(hangs.loader.join().unwrap(), Ok(1));
}

#[test]
fn those_who_give_up_leave_their_places_to_others() {
    let cache: Cache<u32, u32> = Cache::new(10);
    let loading = begin(&cache, 1);
    let (mut first, mut last) =
        (pin!(cache.get_or_load_async(&1, never())), pin!(cache.get_or_load_async(&1, never())));
    assert!(poll(first.as_mut()).is_pending());
    for _ in 0..10_000 {
        let mut others = [(); 2].map(|()| Box::pin(cache.get_or_load_async(&1, never())));
        assert!(others.iter_mut().all(|other| poll(other.as_mut()).is_pending()));
    }
    assert!(poll(last.as_mut()).is_pending());
    loading.end.send(Ok(3)).unwrap();
    assert_eq!(loading.loader.join().unwrap(), Ok(3));
    assert_eq!((poll(first), poll(last)), (Poll::Ready(Ok(3)), Poll::Ready(Ok(3))));
}

#[test]
fn a_listener_may_wait_for_one_who_waits_for_the_value() {
    in_time(|| {
        let (tell, told) = mpsc::sync_channel(0);
        let listener = move |key: u32, _: u32, _| tell.send(key).unwrap();
        let cache = Cache::builder().capacity(1).shards(1).listener(listener).build().unwrap();
        cache.insert(1, 1);
        let worker = cache.clone();
        let (begin, begun) = mpsc::channel();
        let worker = thread::spawn(move || {
            begun.recv().unwrap();
            let value = worker.get_or_insert_with(&2, || 22);
            (value, told.recv().unwrap())
        });
        let value = cache.get_or_insert_with(&2, || {
            begin.send(()).unwrap();
            thread::sleep(Duration::from_millis(200)); // the worker waits for this by now
            2
        });
        assert_eq!((value, worker.join().unwrap()), (2, (2, 1)));
    });
}

#[test]
fn a_waker_may_own_another_one_who_waits() {
    type Load = std::pin::Pin<Box<dyn Future<Output = Result<u32, Arc<Failed>>> + Send>>;
    /// A task as executors have them: its future is dropped with the last of its wakers.
    struct Task(#[allow(dead_code, reason = "to be dropped")] Mutex<Load>);
    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    in_time(|| {
        let cache: Cache<u32, u32> = Cache::new(100);
        let ask = || -> Load {
            let cache = cache.clone();
            Box::pin(async move { cache.get_or_load_async(&7, never()).await })
        };
        let [mut loader, mut inner, mut moved] = [ask(), ask(), ask()];
        assert!(poll(loader.as_mut()).is_pending());
        assert!(poll(inner.as_mut()).is_pending());
        let task = Waker::from(Arc::new(Task(Mutex::new(inner))));
        // That task polls first, and its waker is the last one when another task polls.
        assert!(moved.as_mut().poll(&mut Context::from_waker(&task)).is_pending());
        drop(task);
        assert!(poll(moved.as_mut()).is_pending());
    });
}
