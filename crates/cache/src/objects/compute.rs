//! Values that are computed from those they replace.

use std::hash::{BuildHasher, Hash};

use super::Cache;
use super::cache::Inner;
use super::group::Group;
use super::removal::Cause;
use super::requests::over;
use super::shard::{Insertion, Shard};

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Cache<K, V, S> {
    /// Replaces the value of a key with the one that `change` makes of it. `change` gets `None` if
    /// the key has no value. If `change` returns `None`, the entry is removed. Returns the new
    /// value. Nobody sees or changes the key's value in between. Otherwise this is like
    /// [`insert`](Self::insert) and [`remove`](Self::remove): a load of the key that is under way
    /// is no longer cached, a full cache may turn a new key away, and the call counts neither as a
    /// hit nor as a miss.
    ///
    /// `change` and the weigher run under the lock of a shard: they must not use this cache, and
    /// should be short. For values that take long to make, use [`get_or_load`](Self::get_or_load).
    ///
    /// # Panics
    ///
    /// If `change`, the weigher or the clone of a value panics; nothing has changed then. Also if
    /// the hash of a key panics that has to be evicted because the new value weighs more than the
    /// one it replaces; the new value is in the cache then.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// let count = |word| cache.compute(word, |count| Some(count.map_or(1, |count| count + 1)));
    /// assert_eq!([count("to"), count("be"), count("to")], [Some(1), Some(1), Some(2)]);
    /// assert_eq!(cache.compute("to", |_| None), None);
    /// assert_eq!((cache.get("to"), cache.get("be")), (None, Some(1)));
    /// ```
    pub fn compute(&self, key: K, change: impl FnOnce(Option<&V>) -> Option<V>) -> Option<V> {
        self.inner.compute(key, change, None)
    }

    /// [`compute`](Self::compute) for a group. An entry that is there stays in its group.
    ///
    /// # Panics
    ///
    /// As [`compute`](Self::compute), and if the group belongs to another cache.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// let tenant = cache.group("tenant");
    /// assert_eq!(cache.compute_in(&tenant, "key", |old| old.copied().or(Some(7))), Some(7));
    /// assert_eq!(tenant.stats().weight, 1);
    /// ```
    pub fn compute_in(
        &self,
        group: &Group,
        key: K,
        change: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> Option<V> {
        self.inner.check(group);
        self.inner.compute(key, change, Some(group))
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Inner<K, V, S> {
    fn compute(
        &self,
        key: K,
        change: impl FnOnce(Option<&V>) -> Option<V>,
        group: Option<&Group>,
    ) -> Option<V> {
        let common = &self.common;
        let hash = common.hash(&key);
        let mut gone = common.departures();
        // What is declared before the guard is dropped after it, even if the program's code panics.
        let _detached;
        let (value, new);
        let mut insertion;
        let mut shard = self.part(hash).shard.write();
        let found = shard.find(hash, &key);
        // Read only once: an entry that has expired by now must not be replaced as if it had not.
        let now = common.now();
        let held = found.filter(|&frame| !over(&shard, frame, now, common));
        let Some(made) = change(held.map(|frame| shard.entry(frame).value)) else {
            _detached = shard.detach(hash, &key);
            if let Some(frame) = found {
                let (key, value) = shard.remove(hash, frame);
                let cause = if held.is_some() { Cause::Removed } else { Cause::Expired };
                shard.counts.expirations += u64::from(held.is_none());
                gone.push(key, value, cause);
            }
            return None;
        };
        value = made;
        let terms = common.terms(&key, &value);
        new = value.clone();
        _detached = shard.detach(hash, &key);
        insertion = Insertion::new(hash, key, value, terms, group);
        self.put(&mut shard, &mut insertion, now, &mut gone);
        drop(shard);
        common.habits.met(hash, Shard::<K, V>::number_of(group), true);
        // Before the value is returned: if a listener panicked afterwards, the value would not be
        // dropped.
        drop(gone);
        Some(new)
    }
}
