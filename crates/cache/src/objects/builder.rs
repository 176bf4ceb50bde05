//! Builds a cache of objects.

use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::Cache;
use super::cache::MIN_SHARD;
use super::common::{Common, Time, Weigher};
use super::expiry::Lifetimes;
use super::group::{Group, Groups};
use super::hash::RandomState;
use super::removal::{Cause, Listener};
use crate::habits::Habits;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// The shards of a large cache, for each CPU.
const SHARDS: u64 = 4;
/// The most entries that are expected at first if they are weighed.
const EXPECTED_WEIGHED: u64 = 1 << 16;

/// Builds a [`Cache`]: see [`Cache::builder`].
///
/// ```
/// use homing_cache::Cache;
///
/// // Up to 1 MiB of bodies, by path.
/// let cache = Cache::<String, Vec<u8>>::builder()
///     .capacity(1 << 20)
///     .weigher(|path, body| (path.len() + body.len()) as u32)
///     .build()?;
/// cache.insert("/".to_owned(), b"hello".to_vec());
/// assert_eq!((cache.len(), cache.weight()), (1, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Builder<K, V, S = RandomState> {
    capacity: u64,
    shards: Option<usize>,
    hasher: S,
    weigher: Option<Box<Weigher<K, V>>>,
    listener: Option<Box<Listener<K, V>>>,
    lifetimes: Lifetimes<K, V>,
    error_lifetime: Option<Duration>,
    time: Option<Box<dyn Fn() -> Duration + Send + Sync>>,
    of: PhantomData<fn(K) -> V>,
}

/// Why a cache could not be made.
///
/// ```
/// use homing_cache::{BuildError, Cache};
///
/// let error = Cache::<u32, u32>::builder().build().err();
/// assert_eq!(error, Some(BuildError::NoCapacity));
/// let error = Cache::<u32, u32>::builder().capacity(2).shards(3).build().err();
/// assert_eq!(error, Some(BuildError::Shards { shards: 3, capacity: 2 }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The cache would hold nothing.
    #[error("a cache of capacity 0 holds nothing: set `capacity` to how much it may hold")]
    NoCapacity,
    /// There must be at least one shard, and no more shards than the capacity.
    #[error("a cache of {capacity} cannot be cut into {shards} shards: use 1 to {capacity}")]
    Shards {
        /// As asked for.
        shards: usize,
        /// As asked for.
        capacity: u64,
    },
}

impl<K, V> Builder<K, V> {
    pub(super) fn new() -> Self {
        Self {
            capacity: 0,
            shards: None,
            hasher: RandomState::default(),
            weigher: None,
            listener: None,
            lifetimes: Lifetimes::ENDLESS,
            error_lifetime: None,
            time: None,
            of: PhantomData,
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// What the cache may hold: a number of entries or, with a [`weigher`](Self::weigher), their
    /// total weight.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// What entries weigh, in units of the capacity, often their bytes. The cache calls the weigher
    /// once for each value. It holds no lock meanwhile, except in [`Cache::compute`]. An entry that
    /// weighs more than a shard holds is turned away. Entries that weigh nothing take no room, so
    /// nothing bounds their number.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let builder = Cache::<u32, &str>::builder().capacity(10);
    /// let cache = builder.weigher(|_, text| text.len() as u32).build()?;
    /// cache.insert(1, "short");
    /// cache.insert(2, "longer than the cache");
    /// assert_eq!((cache.get(&1), cache.get(&2), cache.weight()), (Some("short"), None, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn weigher(mut self, weigher: impl Fn(&K, &V) -> u32 + Send + Sync + 'static) -> Self {
        self.weigher = Some(Box::new(weigher));
        self
    }

    /// The listener is called for each entry that leaves, on the thread that caused it, after all
    /// locks are released: it may use the cache. If that makes further entries leave, it is called
    /// for them from within that call. A listener that puts back each entry that left for lack of
    /// room therefore recurses until the stack is exhausted.
    ///
    /// ```
    /// # use homing_cache::{Cache, Cause};
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let cache = Cache::builder()
    ///     .capacity(100)
    ///     .listener(move |key, value, cause| tell.send((key, value, cause)).unwrap())
    ///     .build()?;
    /// cache.insert(1, "one");
    /// cache.insert(1, "uno");
    /// assert_eq!(told.recv()?, (1, "one", Cause::Replaced));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listener(mut self, listener: impl Fn(K, V, Cause) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Entries expire this long after they were written. Readers do not see them from that moment
    /// on. Their memory is freed soon after: insertions look for expired entries, and
    /// [`Cache::remove_expired`] finds all of them.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// # use std::time::Duration;
    /// # use homing_cache::Cache;
    /// # static NOW: AtomicU64 = AtomicU64::new(0);
    /// let cache = Cache::builder()
    ///     .capacity(100)
    ///     .time_to_live(Duration::from_secs(60))
    ///     .clock(|| Duration::from_secs(NOW.load(Relaxed)))
    ///     .build()?;
    /// cache.insert("token", 7);
    /// NOW.store(59, Relaxed);
    /// assert_eq!(cache.get("token"), Some(7));
    /// NOW.store(60, Relaxed);
    /// assert_eq!(cache.get("token"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.lifetimes.live = Some(time);
        self
    }

    /// Entries expire after a time of their own, which the cache asks for whenever they are
    /// written, or after the [`time_to_live`](Self::time_to_live), if there is one and it is
    /// shorter. `None`: this entry has no time of its own. The cache holds no lock meanwhile,
    /// except in [`Cache::compute`].
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// # use std::time::Duration;
    /// # use homing_cache::Cache;
    /// # static NOW: AtomicU64 = AtomicU64::new(0);
    /// # let clock = || Duration::from_secs(NOW.load(Relaxed));
    /// # let builder = Cache::builder().capacity(100).clock(clock);
    /// /// What a server says of how long its answer may be kept.
    /// #[derive(Clone)]
    /// struct Answer {
    ///     max_age: Option<Duration>,
    /// }
    ///
    /// let cache = builder.expire_after(|_, answer: &Answer| answer.max_age).build()?;
    /// cache.insert("news", Answer { max_age: Some(Duration::from_secs(60)) });
    /// cache.insert("logo", Answer { max_age: None });
    /// NOW.store(60, Relaxed);
    /// assert!(cache.get("news").is_none() && cache.get("logo").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expire_after(
        mut self,
        time: impl Fn(&K, &V) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.lifetimes.own = Some(Box::new(time));
        self
    }

    /// Entries expire this long after they were last read or written.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// # use std::time::Duration;
    /// # use homing_cache::Cache;
    /// # static NOW: AtomicU64 = AtomicU64::new(0);
    /// # let clock = || Duration::from_secs(NOW.load(Relaxed));
    /// # let builder = Cache::builder().capacity(100).clock(clock);
    /// let cache = builder.time_to_idle(Duration::from_secs(60)).build()?;
    /// cache.insert("session", 7);
    /// NOW.store(50, Relaxed);
    /// assert_eq!(cache.get("session"), Some(7)); // until 110 from now on
    /// NOW.store(100, Relaxed);
    /// assert!(cache.contains_key("session")); // this does not count as a read
    /// NOW.store(110, Relaxed);
    /// assert!(!cache.contains_key("session"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn time_to_idle(mut self, time: Duration) -> Self {
        self.lifetimes.idle = Some(time);
        self
    }

    /// Failed loads are remembered this long, and callers that ask for the key with the same error
    /// type get the error. Without this, only callers that waited for the same load get it. Each
    /// shard remembers about a thousand errors; further errors are not remembered.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// # use std::time::Duration;
    /// # use homing_cache::Cache;
    /// # use std::sync::Arc;
    /// # static NOW: AtomicU64 = AtomicU64::new(0);
    /// # let clock = || Duration::from_secs(NOW.load(Relaxed));
    /// # let builder = Cache::<String, u32>::builder().capacity(100).clock(clock);
    /// let cache = builder.error_time_to_live(Duration::from_secs(5)).build()?;
    /// assert!(cache.get_or_load("key", || Err("offline")).is_err());
    /// // A caller that asks within five seconds gets the same error, and nothing is loaded.
    /// let again = cache.get_or_load("key", || Ok(1));
    /// assert_eq!(again, Err(Arc::new("offline")));
    /// NOW.store(5, Relaxed);
    /// assert_eq!(cache.get_or_load("key", || Ok::<_, &str>(1)), Ok(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn error_time_to_live(mut self, time: Duration) -> Self {
        self.error_lifetime = Some(time);
        self
    }

    /// The number of parts of the cache, each with its own lock. The default is up to 4 for each
    /// CPU, each of a few hundred entries.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// // With one shard no entry goes before the cache is full, but threads wait for each other.
    /// let cache = Cache::builder().capacity(1000).shards(1).build()?;
    /// (0..1000).for_each(|key| _ = cache.insert(key, key));
    /// assert_eq!(cache.len(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// How keys are hashed. All 64 bits must be well mixed.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// use std::hash::RandomState;
    ///
    /// let builder = Cache::<String, u32>::builder().capacity(100);
    /// let cache: Cache<_, _, RandomState> = builder.hasher(RandomState::new()).build()?;
    /// cache.insert("one".to_owned(), 1);
    /// assert_eq!(cache.get("one"), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, V, T> {
        let Self {
            capacity, shards, weigher, listener, lifetimes, error_lifetime, time, of, ..
        } = self;
        Builder { capacity, shards, hasher, weigher, listener, lifetimes, error_lifetime, time, of }
    }

    /// The time since an arbitrary moment, by which entries expire. For tests of programs.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// # use std::time::Duration;
    /// # use homing_cache::Cache;
    /// static NOW: AtomicU64 = AtomicU64::new(0);
    ///
    /// let clock = || Duration::from_secs(NOW.load(Relaxed));
    /// let day = Duration::from_secs(24 * 3600);
    /// let cache = Cache::builder().capacity(100).time_to_live(day).clock(clock).build()?;
    /// cache.insert("news", 1);
    /// NOW.store(day.as_secs(), Relaxed); // nobody has to wait for it
    /// assert_eq!(cache.get("news"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock(mut self, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.time = Some(Box::new(now));
        self
    }

    /// Makes the cache.
    pub fn build(self) -> Result<Cache<K, V, S>, BuildError>
    where
        K: Hash + Eq,
        V: Clone,
        S: BuildHasher,
    {
        // The standard library's, not the model checker's: models that run at the same time share
        // it.
        static CACHES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let capacity = self.capacity;
        if capacity == 0 {
            return Err(BuildError::NoCapacity);
        }
        let expected = match self.weigher {
            Some(_) => capacity.min(EXPECTED_WEIGHED),
            None => capacity,
        };
        let cpus = crate::cpus::count();
        let shards = (expected / MIN_SHARD).clamp(1, SHARDS * cpus as u64) as usize;
        let shards = self.shards.unwrap_or(shards);
        if shards == 0 || shards as u64 > capacity {
            return Err(BuildError::Shards { shards, capacity });
        }
        let number = CACHES.fetch_add(1, Relaxed);
        let habits = Habits::new(expected as usize);
        // This cache reports its misses, even if there are none for long, so it may rest.
        habits.missed(0);
        let groups = Groups::new(Arc::new(Group::new("default".to_owned(), 0, number)));
        let common = Common {
            habits,
            hasher: self.hasher,
            weigher: self.weigher,
            listener: self.listener,
            expires: !self.lifetimes.is_endless(),
            lifetimes: self.lifetimes,
            error_lifetime: self.error_lifetime,
            groups,
            capacity: AtomicU64::new(capacity),
            shards,
            expected: AtomicUsize::new(expected as usize),
            time: self.time.map_or_else(|| Time::Real(Instant::now()), Time::Given),
        };
        Ok(Cache::from_common(common, number, cpus))
    }
}
