//! What all shards of a cache of objects share.

use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

use super::expiry::Lifetimes;
use super::group::Groups;
use super::removal::{Departures, Listener};
use crate::habits::Habits;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// What entries weigh.
pub(super) type Weigher<K, V> = dyn Fn(&K, &V) -> u32 + Send + Sync;

/// What the program says of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) weight: u32,
    /// For how long it lives once it is written; `None`: for ever.
    pub(super) lives: Option<Duration>,
}

pub(super) struct Common<K, V, S> {
    pub(super) habits: Arc<Habits>,
    pub(super) hasher: S,
    pub(super) weigher: Option<Box<Weigher<K, V>>>,
    pub(super) listener: Option<Box<Listener<K, V>>>,
    pub(super) lifetimes: Lifetimes<K, V>,
    /// Whether entries expire.
    pub(super) expires: bool,
    pub(super) error_lifetime: Option<Duration>,
    pub(super) groups: Groups,
    pub(super) capacity: AtomicU64,
    pub(super) shards: usize,
    /// The number of entries that the habits were last told there is room for.
    pub(super) expected: AtomicUsize,
    pub(super) time: Time,
}

/// The clock by which entries expire.
pub(super) enum Time {
    Real(Instant),
    Given(Box<dyn Fn() -> Duration + Send + Sync>),
}

impl<K, V, S> Common<K, V, S> {
    #[inline]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64
    where
        S: BuildHasher,
    {
        self.hasher.hash_one(key)
    }

    pub(super) fn terms(&self, key: &K, value: &V) -> Terms {
        let weight = self.weigher.as_ref().map_or(1, |weigher| weigher(key, value));
        Terms { weight, lives: self.lifetimes.of(key, value) }
    }

    /// [`Common::terms`], for which a key is made only if the program is asked.
    pub(super) fn terms_of(&self, key: impl FnOnce() -> K, value: &V) -> Terms {
        if self.weigher.is_some() || self.lifetimes.own.is_some() {
            self.terms(&key(), value)
        } else {
            Terms { weight: 1, lives: self.lifetimes.live }
        }
    }

    /// What a shard may hold.
    pub(super) fn shard_capacity(&self, shard: usize) -> u64 {
        let (capacity, shards) = (self.capacity.load(Relaxed), self.shards as u64);
        capacity / shards + (capacity % shards + shard as u64) / shards
    }

    /// The time, if entries expire.
    pub(super) fn now(&self) -> Option<Duration> {
        self.expires.then(|| self.time())
    }

    pub(super) fn time(&self) -> Duration {
        match &self.time {
            Time::Real(start) => start.elapsed(),
            Time::Given(now) => now(),
        }
    }

    /// Notes that a full shard has this many entries, far more or far fewer than expected.
    pub(super) fn entries_are(&self, of_one: usize) {
        let entries = of_one * self.shards;
        if self.weigher.is_some() && self.expected.swap(entries, Relaxed) != entries {
            self.habits.set_capacity(entries);
        }
    }

    /// Make this before taking a lock under which entries leave.
    pub(super) fn departures(&self) -> Departures<'_, K, V> {
        Departures::new(self.listener.as_deref())
    }
}
