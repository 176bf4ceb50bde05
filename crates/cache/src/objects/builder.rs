//! How a cache of objects is made.

use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::Cache;
use super::cache::MIN_SHARD;
use super::common::{Common, Time, Weigher};
use super::expiry::Lifetimes;
use super::group::{Group, Groups};
use super::removal::{Cause, Listener};
use crate::habits::Habits;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// Shards of a large cache, for each CPU.
const SHARDS: u64 = 4;
/// Entries of an unknown weight that room is made for in advance.
const EXPECTED_WEIGHED: u64 = 1 << 16;

/// Makes a [`Cache`]: [`Cache::builder`].
#[must_use]
pub struct Builder<K, V, S = foldhash::quality::RandomState> {
    capacity: u64,
    shards: Option<usize>,
    hasher: S,
    weigher: Option<Box<Weigher<K, V>>>,
    listener: Option<Box<Listener<K, V>>>,
    lifetimes: Lifetimes,
    error_lifetime: Option<Duration>,
    time: Option<Box<dyn Fn() -> Duration + Send + Sync>>,
    of: PhantomData<fn(K) -> V>,
}

/// Why a cache could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// It would hold nothing.
    #[error("a cache of capacity 0 holds nothing: set `capacity` to how much it may hold")]
    NoCapacity,
    /// There must be a shard.
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
            hasher: foldhash::quality::RandomState::default(),
            weigher: None,
            listener: None,
            lifetimes: Lifetimes::default(),
            error_lifetime: None,
            time: None,
            of: PhantomData,
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// What the cache may hold: entries, or what the [`weigher`](Self::weigher) says that they weigh.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// What entries weigh, in units of the capacity: their bytes, often. It is asked once for each
    /// value, without any lock. What weighs more than a shard holds is turned away.
    pub fn weigher(mut self, weigher: impl Fn(&K, &V) -> u32 + Send + Sync + 'static) -> Self {
        self.weigher = Some(Box::new(weigher));
        self
    }

    /// Is told of each entry that leaves, on the thread that caused it, after all locks are let go: it
    /// may use the cache.
    pub fn listener(mut self, listener: impl Fn(K, V, Cause) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Entries expire so long after they were written. They are gone for readers at once, and from
    /// memory soon: insertions look for them, and [`Cache::remove_expired`] finds all.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.lifetimes.live = Some(time);
        self
    }

    /// Entries expire so long after they were last read or written.
    pub fn time_to_idle(mut self, time: Duration) -> Self {
        self.lifetimes.idle = Some(time);
        self
    }

    /// Failed loads are remembered so long, and told to whoever asks. Without this they are told only
    /// to those who waited for the same load. Each shard remembers about a thousand; more are not
    /// remembered.
    pub fn error_time_to_live(mut self, time: Duration) -> Self {
        self.error_lifetime = Some(time);
        self
    }

    /// How many parts with a lock of their own the cache has. By default up to 4 for each CPU, each of
    /// some hundred entries.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// How keys are hashed. All 64 bits must be good.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, V, T> {
        let Self {
            capacity, shards, weigher, listener, lifetimes, error_lifetime, time, of, ..
        } = self;
        Builder { capacity, shards, hasher, weigher, listener, lifetimes, error_lifetime, time, of }
    }

    /// The time since some moment, by which entries expire: for tests of programs.
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
        // Not a model checker's: models that run at the same time share it.
        static CACHES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let capacity = self.capacity;
        if capacity == 0 {
            return Err(BuildError::NoCapacity);
        }
        let expected = match self.weigher {
            Some(_) => capacity.min(EXPECTED_WEIGHED),
            None => capacity,
        };
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        let shards = (expected / MIN_SHARD).clamp(1, SHARDS * cpus) as usize;
        let shards = self.shards.unwrap_or(shards);
        if shards == 0 || shards as u64 > capacity {
            return Err(BuildError::Shards { shards, capacity });
        }
        let number = CACHES.fetch_add(1, Relaxed);
        let groups = Groups::new(Arc::new(Group::new("default".to_owned(), 0, number)));
        let common = Common {
            habits: Habits::new(expected as usize),
            hasher: self.hasher,
            weigher: self.weigher,
            listener: self.listener,
            lifetimes: self.lifetimes,
            error_lifetime: self.error_lifetime,
            groups,
            capacity: AtomicU64::new(capacity),
            shards,
            expected: AtomicUsize::new(expected as usize),
            time: self.time.map_or_else(|| Time::Real(Instant::now()), Time::Given),
        };
        Ok(Cache::from_common(common, number))
    }
}
