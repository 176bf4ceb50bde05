//! Entries that must not be evicted for a while.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::ops::Deref;

use super::{Cache, RandomState};

/// The value of an entry that is not evicted until this guard is dropped: see [`Cache::pin`]. If
/// the cache then holds more than it may because entries were pinned, dropping the guard evicts
/// what can go now and tells the listener.
///
/// ```
/// use homing_cache::Cache;
///
/// let cache = Cache::new(2);
/// cache.insert("one", 1);
/// cache.insert("two", 2);
/// let (one, two) = (cache.pin("one").unwrap(), cache.pin("two").unwrap());
/// cache.set_capacity(1);
/// assert_eq!((*one + *two, cache.len()), (3, 2)); // neither can go
/// drop(one);
/// assert_eq!(cache.len(), 1);
/// ```
#[must_use = "an entry is kept until this is dropped"]
pub struct Pinned<K: Hash + Eq, V: Clone, S: BuildHasher = RandomState> {
    cache: Cache<K, V, S>,
    hash: u64,
    frame: u32,
    id: u64,
    value: V,
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Pinned<K, V, S> {
    pub(super) fn new(cache: Cache<K, V, S>, hash: u64, frame: u32, id: u64, value: V) -> Self {
        Self { cache, hash, frame, id, value }
    }
}

impl<K: Hash + Eq, V: Clone + fmt::Debug, S: BuildHasher> fmt::Debug for Pinned<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&self.value).finish()
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Deref for Pinned<K, V, S> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Drop for Pinned<K, V, S> {
    fn drop(&mut self) {
        let inner = &self.cache.inner;
        let mut gone = inner.common.departures();
        let mut shard = inner.part(self.hash).shard.write();
        shard.unpin(self.frame, self.id, &inner.common, &mut gone);
    }
}
