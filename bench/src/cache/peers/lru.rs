//! The crate lru, which has no locks of its own, in shards behind mutexes: what many programs do.

use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::{DefaultHasher, LruCache};

use super::Peer;

const SHARDS: usize = 16;

/// Shards, each of which has its part of the capacity.
pub(crate) struct Lru {
    shards: Box<[Mutex<LruCache<u64, u64>>]>,
    /// Another hasher than the shards' own: the keys of one shard must not be alike within it.
    hasher: DefaultHasher,
}

impl Lru {
    fn shard(&self, key: u64) -> MutexGuard<'_, LruCache<u64, u64>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer for Lru {
    const NAME: &'static str = "lru-16-mutexes";

    fn with_capacity(entries: usize) -> Self {
        let entries = NonZeroUsize::new(entries.div_ceil(SHARDS)).unwrap_or(NonZeroUsize::MIN);
        let shard = |_| Mutex::new(LruCache::new(entries));
        Self { shards: (0..SHARDS).map(shard).collect(), hasher: DefaultHasher::default() }
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.shard(key).get(&key).copied()
    }

    fn insert(&self, key: u64, value: u64) {
        self.shard(key).put(key, value);
    }

    fn remove(&self, key: u64) {
        self.shard(key).pop(&key);
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().map_or(0, |shard| shard.len())).sum()
    }
}
