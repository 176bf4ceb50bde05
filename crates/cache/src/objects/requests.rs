//! What requests do to a shard, and what they report to the policy.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::cache::{Finds, Inner, Part};
use super::common::{Common, Terms};
use super::group::Group;
use super::removal::{Cause, Departures};
use super::shard::{Insertion, Shard};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::thread_number;

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Inner<K, V, S> {
    #[inline]
    pub(super) fn part(&self, hash: u64) -> &Part<K, V> {
        // The middle bits choose the shard: its index uses the lowest and the highest ones.
        let bits = u64::from((hash >> 16) as u32);
        &self.shards[((bits * self.shards.len() as u64) >> 32) as usize]
    }

    pub(super) fn check(&self, group: &Group) {
        assert!(group.cache == self.number, "{} is a group of another cache", group.name);
    }

    /// The value of a key. `group` is the group that the value will be put in if it is missed, if
    /// that is known.
    #[inline]
    pub(super) fn get<Q>(&self, hash: u64, key: &Q, group: Option<usize>) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let finds = self.finds();
        let shard = self.part(hash).shard.read();
        let found = shard.find_entry(hash, key).filter(|&(frame, _)| {
            !(self.common.expires || shard.counts_groups) || self.hit_with_care(&shard, frame)
        });
        let Some((frame, entry)) = found else {
            shard.prefetch(hash);
            drop(shard);
            return self.missed(finds, hash, group);
        };
        let value = entry.value.clone();
        let first = self.common.habits.hit(entry.mark).then(|| shard.group_of(frame));
        drop(shard);
        self.count_hit(finds, hash, first);
        Some(value)
    }

    /// The counters of the calling thread.
    #[inline]
    pub(super) fn finds(&self) -> &Finds {
        &self.finds[thread_number() & (self.finds.len() - 1)]
    }

    /// Counts a hit. `first` is the entry's group if the hit is the entry's first in this epoch.
    #[inline]
    pub(super) fn count_hit(&self, finds: &Finds, hash: u64, first: Option<usize>) {
        if first.is_some() {
            self.common.habits.used(hash, first, false);
        }
        let hits = finds.hits.load(Relaxed) + 1;
        finds.hits.store(hits, Relaxed);
        if self.is_batch(hits) {
            self.common.habits.passed(self.common.habits.batch() as u64);
        }
    }

    /// Does for a hit what only few caches need. Returns whether it is a hit: the entry has not
    /// expired.
    #[cold]
    pub(super) fn hit_with_care(&self, shard: &Shard<K, V>, frame: u32) -> bool {
        if let Some(now) = self.common.now() {
            if shard.times.is_over(frame, now, self.common.lifetimes.idle) {
                return false;
            }
            shard.times.read(frame, now);
        }
        if let Some(group) = shard.counted(shard.group_of(frame)) {
            group.hits.fetch_add(1, Relaxed);
        }
        true
    }

    #[cold]
    pub(super) fn missed(&self, finds: &Finds, hash: u64, group: Option<usize>) -> Option<V> {
        let misses = finds.misses.load(Relaxed) + 1;
        finds.misses.store(misses, Relaxed);
        self.common.habits.used(hash, group, false);
        if self.is_batch(misses) {
            self.common.habits.missed(self.common.habits.batch() as u64);
        }
        None
    }

    /// Counts a miss for a group, or for the default one.
    pub(super) fn missed_for(&self, group: Option<&Group>) {
        let groups = &self.common.groups;
        if groups.are_counted() {
            groups.of(group).missed();
        }
    }

    /// Whether the last of this many requests completes a batch, which is to be reported to the
    /// clock.
    #[inline]
    fn is_batch(&self, requests: u64) -> bool {
        requests & (self.common.habits.batch() as u64 - 1) == 0
    }

    pub(super) fn insert(&self, key: K, value: V, group: Option<&Group>) -> Option<V> {
        let hash = self.common.hash(&key);
        let terms = self.common.terms(&key, &value);
        let now = self.common.now();
        let mut gone = self.common.departures();
        let part = self.part(hash);
        // Declared before the guard, so that they are dropped after it, even if the program's code
        // panics.
        let mut insertion = Insertion::new(hash, key, value, terms, group);
        let _detached;
        let mut shard = part.shard.write();
        _detached = shard.detach(hash, insertion.key());
        let old = self.put(&mut shard, &mut insertion, now, &mut gone);
        drop(shard);
        self.common.habits.met(hash, Shard::<K, V>::number_of(group), true);
        let old = old.map(|at| gone.value(at).clone());
        // Before the value is returned: if a listener panicked afterwards, the value would not be
        // dropped.
        drop(gone);
        old
    }

    /// Gives a key its value, whether it had one or not. Returns the place in `gone` of the value
    /// that it had.
    pub(super) fn put(
        &self,
        shard: &mut Shard<K, V>,
        insertion: &mut Insertion<'_, K, V>,
        now: Option<Duration>,
        gone: &mut Departures<K, V>,
    ) -> Option<usize> {
        let common = &self.common;
        shard.catch_up(common);
        if let Some(now) = now {
            // First, so that the new entry can have their places.
            shard.expire_some(now, common, gone);
        }
        let mut frame = shard.find(insertion.hash, insertion.key());
        if let (Some(at), Some(now)) = (frame, now)
            && shard.times.is_over(at, now, common.lifetimes.idle)
        {
            shard.expire(at, now, common, gone);
            frame = None;
        }
        let Some(at) = frame else {
            frame = shard.insert(insertion, common, gone);
            if let (Some(at), Some(now)) = (frame, now) {
                shard.times.write(at, now, insertion.terms.lives);
            }
            return None;
        };
        let Insertion { hash, terms: Terms { weight, lives }, .. } = *insertion;
        let (key, value) = insertion.take();
        let old = if shard.may_hold(weight) {
            let was = shard.replace(at, value, weight, common);
            shard.entry(at).mark.used(common.habits.epoch());
            let old = gone.push(key, was, Cause::Replaced);
            if let Some(now) = now {
                shard.times.write(at, now, lives);
            }
            // Whichever group it was inserted for, it counts for the group that the entry is in.
            shard.shrink_to_fit(shard.group_of(at), common, gone);
            old
        } else {
            let (key_was, was) = shard.remove(hash, at);
            let old = gone.push(key_was, was, Cause::Replaced);
            gone.push(key, value, Cause::Capacity);
            shard.counts.rejections += 1;
            old
        };
        Some(old)
    }
}

/// Whether the entry in this frame has expired, if entries expire at all.
#[inline]
pub(super) fn over<K: Hash + Eq, V, S>(
    shard: &Shard<K, V>,
    frame: u32,
    now: Option<Duration>,
    common: &Common<K, V, S>,
) -> bool {
    now.is_some_and(|now| shard.times.is_over(frame, now, common.lifetimes.idle))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::Cache;

    #[test]
    fn a_cache_that_never_missed_rests() {
        let cache = Cache::new(1280);
        (0..100).for_each(|key| _ = cache.insert(key, key));
        let epoch = || cache.inner.common.habits.epoch();
        let hits = |count| (0..count).for_each(|hit| assert!(cache.get(&(hit % 100)).is_some()));
        hits(50_000);
        let rests = epoch();
        hits(50_000);
        // It wakes by itself for a ninth of the time.
        assert!(epoch() - rests < 1000, "{} epochs", epoch() - rests);
    }
}
