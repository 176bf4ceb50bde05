//! The cache of objects: what programs call.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::resume_unwind;

use super::builder::Builder;
use super::common::Common;
use super::group::Group;
use super::hash::RandomState;
use super::pin::Pinned;
use super::removal::Cause;
use super::requests::over;
use super::shard::Shard;
use super::stats::Stats;
use crate::panics;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Arc, BiasedRwLock, lock};

/// The fewest entries that are worth a lock of their own.
pub(super) const MIN_SHARD: u64 = 256;

/// Room is made in advance only for caches of at most this many entries. A larger capacity may
/// stand for "no limit", so room is made as entries come.
const EXPECTED_MAX: u64 = 1 << 20;

/// The most bytes of keys and values for which room is made in advance.
const EXPECTED_BYTES_MAX: u64 = 64 << 20;

/// The most counters of hits.
const FINDS_MAX: usize = 64;

/// A concurrent cache of objects that learns which of them to keep.
///
/// Cheap to clone: all clones are the same cache. Values are cloned out of it, so large values are
/// best kept in an `Arc`.
///
/// ```
/// use homing_cache::Cache;
///
/// let cache: Cache<String, usize> = Cache::new(1000); // entries
/// cache.insert("one".to_owned(), 1);
/// assert_eq!(cache.get("one"), Some(1));
/// let two = cache.get_or_load("two", || Ok::<_, std::io::Error>(2)).unwrap();
/// assert_eq!(two, 2);
/// ```
///
/// The equality, hash and clones of keys and values, and the [clock](Builder::clock), run under
/// locks of the cache: they must not use it. Listeners, loaders and drops run without locks, and
/// may use it. So do weighers, except in [`compute`](Self::compute): there, and in the functions
/// given to `compute`, [`remove_if`](Self::remove_if) and [`retain`](Self::retain), the cache must
/// not be used.
pub struct Cache<K, V, S = RandomState> {
    pub(super) inner: Arc<Inner<K, V, S>>,
}

impl<K, V, S> Clone for Cache<K, V, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// Takes no lock.
impl<K, V, S> fmt::Debug for Cache<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.inner.common.capacity.load(Relaxed);
        f.debug_struct("Cache").field("capacity", &capacity).finish_non_exhaustive()
    }
}

pub(super) struct Inner<K, V, S> {
    pub(super) common: Common<K, V, S>,
    pub(super) shards: Box<[Part<K, V>]>,
    /// Indexed by the numbers of threads. Their count is a power of two.
    pub(super) finds: Box<[Finds]>,
    /// The most that [`Cache::stats`] has told of both.
    told: Finds,
    pub(super) number: usize,
}

/// A shard and its lock, on lines of their own.
#[repr(align(128))]
pub(super) struct Part<K, V> {
    pub(super) shard: BiasedRwLock<Shard<K, V>>,
}

/// The hits and misses of some of the threads. If two of these count at the same time, some are
/// lost.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Finds {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    /// Makes a cache of this many entries. [`builder`](Self::builder) makes caches with other
    /// settings.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn new(capacity: u64) -> Self {
        Self::builder().capacity(capacity).build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Makes a cache with more settings than its capacity.
    pub fn builder() -> Builder<K, V> {
        Builder::new()
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Cache<K, V, S> {
    /// Makes a cache for a machine with this many CPUs.
    pub(super) fn from_common(common: Common<K, V, S>, number: usize, cpus: usize) -> Self {
        let capacity = common.capacity.load(Relaxed);
        let bytes = capacity.saturating_mul(size_of::<(K, V)>() as u64);
        let few = capacity <= EXPECTED_MAX && bytes <= EXPECTED_BYTES_MAX;
        let expects = few && common.weigher.is_none();
        let entries = if expects { common.shard_capacity(common.shards - 1) as usize } else { 0 };
        let part = |number| Part {
            shard: BiasedRwLock::new(Shard::new(common.shard_capacity(number), entries)),
        };
        let shards = (0..common.shards).map(part).collect();
        let finds = (0..cpus.next_power_of_two().min(FINDS_MAX)).map(|_| Finds::default());
        Self {
            inner: Arc::new(Inner {
                common,
                shards,
                finds: finds.collect(),
                told: Finds::default(),
                number,
            }),
        }
    }

    /// The value of a key.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.inner.get(self.inner.common.hash(key), key, None)
    }

    /// The value of a key, as it is now. This is not a use of it: neither the policy nor
    /// [`stats`](Self::stats) notice it.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// cache.insert("one", 1);
    /// assert_eq!((cache.peek("one"), cache.peek("two")), (Some(1), None));
    /// assert_eq!(cache.stats().hits + cache.stats().misses, 0);
    /// ```
    pub fn peek<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, V::clone)
    }

    /// Whether a key has a value now. This is not a use of it: the policy does not notice it.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look(key, |_| ()).is_some()
    }

    /// What `at` returns for the value of a key. This is not a use of it.
    fn look<Q, T>(&self, key: &Q, at: impl FnOnce(&V) -> T) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let common = &self.inner.common;
        let hash = common.hash(key);
        let shard = self.inner.part(hash).shard.read();
        let frame =
            shard.find(hash, key).filter(|&frame| !over(&shard, frame, common.now(), common))?;
        Some(at(shard.entry(frame).value))
    }

    /// Gives a key a value, and returns the one that it had. A load of the key that is under way is
    /// no longer cached.
    ///
    /// A full cache may turn a new key away if it expects the key to win too few hits in the place
    /// of another one. It remembers the key, so the next insertion may succeed. It tells the
    /// listener as if the entry had been evicted for lack of room. [`Stats::declined`] counts
    /// these. While the cache does [not learn](Self::set_learning), it accepts all keys.
    ///
    /// Inserting a heavy entry evicts as many light ones as make room for it: a million took 0.4 s.
    /// Entries that weigh nothing are evicted in their turn, although that makes no room.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// assert_eq!(cache.insert("one", 1), None);
    /// assert_eq!(cache.insert("one", 11), Some(1));
    /// assert!(cache.contains_key("one") && cache.stats().hits == 0); // this was not a use
    /// assert_eq!(cache.remove("one"), Some(11));
    /// assert_eq!(cache.get("one"), None);
    /// ```
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        self.inner.insert(key, value, None)
    }

    /// [`insert`](Self::insert) for a group. An entry that is already there stays in its group.
    ///
    /// # Panics
    ///
    /// If the group belongs to another cache.
    pub fn insert_in(&self, group: &Group, key: K, value: V) -> Option<V> {
        self.inner.check(group);
        self.inner.insert(key, value, Some(group))
    }

    /// Removes a value and returns it. A load of the key that is under way is no longer cached.
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.remove_if(key, |_| true)
    }

    /// Removes a value and returns it if the condition holds, which is called under the lock.
    /// Unless the condition returns false, a load of the key that is under way is no longer cached,
    /// and a remembered error is forgotten.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// cache.insert("generation", 3);
    /// assert_eq!(cache.remove_if("generation", |it| *it < 3), None);
    /// assert_eq!(cache.remove_if("generation", |it| *it == 3), Some(3));
    /// ```
    pub fn remove_if<Q>(&self, key: &Q, condition: impl FnOnce(&V) -> bool) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let common = &self.inner.common;
        let hash = common.hash(key);
        let mut gone = common.departures();
        // What is declared before the guard is dropped after it, even if the program's code panics.
        let _detached;
        let mut shard = self.inner.part(hash).shard.write();
        let found = shard.find(hash, key);
        // The condition is not called for an expired entry, which is not there any more.
        let expired = found.is_some_and(|frame| over(&shard, frame, common.now(), common));
        if !expired && found.is_some_and(|frame| !condition(shard.entry(frame).value)) {
            return None;
        }
        _detached = shard.detach(hash, key);
        let frame = found?;
        let (key, value) = shard.remove(hash, frame);
        shard.counts.expirations += u64::from(expired);
        // The entry goes to the listener first, because cloning the value may panic.
        let at = gone.push(key, value, if expired { Cause::Expired } else { Cause::Removed });
        let value = (!expired).then(|| gone.value(at).clone());
        // Before the value is returned: if a listener panicked afterwards, the value would not be
        // dropped.
        drop(shard);
        drop(gone);
        value
    }

    /// Keeps the entry of a key from eviction until the guard is dropped. It can still be removed
    /// and replaced meanwhile. This counts as a use and a hit, as [`Cache::get`] does, or as a
    /// miss.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(1);
    /// cache.insert("pinned", 1);
    /// let pinned = cache.pin("pinned").unwrap();
    /// cache.insert("other", 2); // finds no room
    /// assert!(cache.contains_key("pinned") && !cache.contains_key("other"));
    /// assert_eq!(*pinned, 1);
    /// ```
    pub fn pin<Q>(&self, key: &Q) -> Option<Pinned<K, V, S>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.inner;
        let hash = inner.common.hash(key);
        let finds = inner.finds();
        let mut shard = inner.part(hash).shard.write();
        let found = shard.find(hash, key).filter(|&frame| inner.hit_with_care(&shard, frame));
        let Some(frame) = found else {
            drop(shard);
            inner.missed(finds, hash, None);
            return None;
        };
        let first = inner.common.habits.hit(shard.entry(frame).mark);
        let first = first.then(|| shard.group_of(frame));
        let value = shard.entry(frame).value.clone();
        let id = shard.pin(frame);
        drop(shard);
        inner.count_hit(finds, hash, first);
        Some(Pinned::new(self.clone(), hash, frame, id, value))
    }

    /// Removes all entries, and gives their memory back. Loads under way are no longer cached.
    pub fn clear(&self) {
        self.for_each_part(|part| {
            let mut gone = self.inner.common.departures();
            let _flights;
            let mut shard = part.shard.write();
            _flights = std::mem::take(&mut shard.flights);
            shard.retain(None, &mut |_, _| false, &self.inner.common, &mut gone);
            shard.compact(&self.inner.common);
        });
    }

    /// Removes all entries for which `keep` returns false. `keep` is called under the lock of a
    /// shard: it must not use this cache. This takes as long as looking at all entries. Other
    /// threads can use the cache meanwhile, and `keep` may not be asked about what they insert.
    /// Loads under way are cached.
    ///
    /// # Panics
    ///
    /// If `keep` or a listener does: entries that had not been looked at by then stay.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// (0..10).for_each(|key| _ = cache.insert(key, key));
    /// cache.retain(|key, _| key % 2 == 0);
    /// assert_eq!((cache.len(), cache.peek(&3), cache.peek(&4)), (5, None, Some(4)));
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) {
        let common = &self.inner.common;
        let now = common.now();
        for part in &self.inner.shards {
            let mut gone = common.departures();
            part.shard.write().retain(now, &mut keep, common, &mut gone);
        }
    }

    /// Does this for each shard, even after one for which a listener panics.
    fn for_each_part(&self, each: impl Fn(&Part<K, V>)) {
        if let Some(panicked) = panics::each(&self.inner.shards, each) {
            resume_unwind(panicked);
        }
    }

    /// Removes all entries whose lifetime is over, and forgets errors whose time is over. Call it
    /// now and then if nobody inserts.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// # use std::time::Duration;
    /// # use homing_cache::Cache;
    /// # static NOW: AtomicU64 = AtomicU64::new(0);
    /// # let clock = || Duration::from_secs(NOW.load(Relaxed));
    /// # let builder = Cache::builder().capacity(100).clock(clock);
    /// let cache = builder.time_to_live(Duration::from_secs(60)).build()?;
    /// cache.insert("token", 7);
    /// NOW.store(60, Relaxed);
    /// assert_eq!((cache.get("token"), cache.len()), (None, 1)); // still in memory
    /// cache.remove_expired();
    /// assert_eq!(cache.len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_expired(&self) {
        let now = self.inner.common.time();
        self.for_each_part(|part| {
            let mut gone = self.inner.common.departures();
            let mut forgotten = Vec::new();
            let mut shard = part.shard.write();
            if self.inner.common.now().is_some() {
                let frames: Vec<u32> = shard.entries().map(|(frame, _)| frame).collect();
                for frame in frames {
                    shard.expire(frame, now, &self.inner.common, &mut gone);
                }
            }
            shard.forget_errors(now, &mut forgotten);
        });
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.inner.shards.iter().map(|part| part.shard.read().len()).sum()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The weight of all entries.
    pub fn weight(&self) -> u64 {
        self.inner.shards.iter().map(|part| part.shard.read().weight()).sum()
    }

    /// What the cache may hold.
    pub fn capacity(&self) -> u64 {
        self.inner.common.capacity.load(Relaxed)
    }

    /// Sets what the cache may hold. Entries beyond that are evicted before this returns, even
    /// those that groups are guaranteed, unless they are pinned. This goes shard by shard, so other
    /// threads can use the cache meanwhile. A shard without pinned entries gives back the memory of
    /// the evicted ones if that is at least an eighth of its own.
    ///
    /// # Panics
    ///
    /// If the capacity is less than one for each shard.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// (0..100).for_each(|key| _ = cache.insert(key, key));
    /// cache.set_capacity(40);
    /// assert_eq!((cache.capacity(), cache.weight(), cache.len()), (40, 40, 40));
    /// ```
    pub fn set_capacity(&self, capacity: u64) {
        let common = &self.inner.common;
        let shards = common.shards as u64;
        assert!(
            capacity >= shards,
            "a capacity of {capacity}: at least {shards}, one for each shard"
        );
        common.capacity.store(capacity, Relaxed);
        if common.weigher.is_none() {
            common.habits.set_capacity(capacity as usize);
        }
        for (number, part) in self.inner.shards.iter().enumerate() {
            // The capacity as it is now, whichever thread has set it. All shards get it before
            // listeners are called, because these may panic.
            part.shard.write().set_capacity(common.shard_capacity(number));
        }
        self.for_each_part(|part| {
            let mut gone = common.departures();
            let mut shard = part.shard.write();
            shard.catch_up(common);
            shard.shrink_to_fit(0, common, &mut gone);
            shard.shrink_in_any_case(common, &mut gone);
            shard.compact(common);
        });
    }

    /// The entries, each with its key, as they are when the iterator reaches their shard. This is
    /// not a use of them.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// cache.insert("one", 1);
    /// cache.insert("two", 2);
    /// let mut all: Vec<_> = cache.iter().collect(); // in no order
    /// all.sort_unstable();
    /// assert_eq!(all, [("one", 1), ("two", 2)]);
    /// cache.clear();
    /// assert!(cache.is_empty());
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (K, V)> + '_
    where
        K: Clone,
    {
        self.inner.shards.iter().flat_map(|part| {
            let (shard, now) = (part.shard.read(), self.inner.common.now());
            let live =
                shard.entries().filter(|&(frame, _)| !over(&shard, frame, now, &self.inner.common));
            live.map(|(_, entry)| (entry.key.clone(), entry.value.clone())).collect::<Vec<_>>()
        })
    }

    /// The group of this name, which is made if there is none: entries that share limits. Entries
    /// that are in no other group are in the group `default`.
    pub fn group(&self, name: &str) -> Arc<Group> {
        let common = &self.inner.common;
        let group = common.groups.named(name).unwrap_or_else(|| self.add_group(name));
        if common.groups.start_counting() {
            // From now on entries are counted by group, including those that are already there.
            for part in &self.inner.shards {
                part.shard.write().catch_up(common);
            }
        }
        group
    }

    fn add_group(&self, name: &str) -> Arc<Group> {
        let common = &self.inner.common;
        let mut free = lock(&common.groups.free);
        if let Some(group) = common.groups.named(name) {
            return group;
        }
        let count = common.groups.count();
        let number = free.pop().unwrap_or(count);
        let group = Arc::new(Group::new(name.to_owned(), number, self.inner.number));
        if number < count {
            // Shards may still know a removed group by this number.
            for part in &self.inner.shards {
                part.shard.write().replace_group(&group);
            }
        }
        common.habits.add_group(number);
        common.groups.publish(&group);
        group
    }

    /// Removes a group, and gives back the memory that it took. Its entries stay, and belong to the
    /// `default` group from then on, as does everything inserted or loaded for the removed group
    /// afterwards. A new group may get its name. Returns whether there was a group to remove: the
    /// `default` group stays.
    ///
    /// Other threads can use the cache meanwhile. This takes as long as looking at all entries.
    ///
    /// # Panics
    ///
    /// If the group belongs to another cache.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(100);
    /// let tenant = cache.group("tenant");
    /// cache.insert_in(&tenant, "key", 1);
    /// assert!(cache.remove_group(&tenant));
    /// assert_eq!((cache.get("key"), cache.group("default").stats().weight), (Some(1), 1));
    /// ```
    pub fn remove_group(&self, group: &Group) -> bool {
        let common = &self.inner.common;
        self.inner.check(group);
        let mut free = lock(&common.groups.free);
        if group.number == 0 || !group.set_removed() {
            return false;
        }
        common.groups.forget(group);
        for part in &self.inner.shards {
            // A thread that gets the lock after this sees that the group is removed.
            let mut shard = part.shard.write();
            shard.catch_up(common);
            shard.disband(group.number, common);
        }
        common.habits.forget_group(group.number);
        free.push(group.number);
        true
    }

    /// Switches between the policy that learns which entries to keep (the default), and evicting
    /// what was used longest ago, within about a hundredth of all entries. Use it to rule out the
    /// policy as a cause: nothing is moved or lost. While almost nothing is missed, only a ninth of
    /// all uses is noted. If much is evicted at once after that, for example by a smaller capacity,
    /// recently used entries may go with the rest.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache = Cache::new(200);
    /// cache.set_learning(false);
    /// let read = |key: u32| _ = cache.get_or_insert_with(&key, || key);
    /// (0..200).for_each(read);
    /// (0..100).for_each(read);
    /// (200..280).for_each(read); // in place of the other half, which was used longest ago
    /// assert!((0..100).all(|key| cache.contains_key(&key)));
    /// ```
    pub fn set_learning(&self, learning: bool) {
        self.inner.common.habits.set_learning(learning);
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for part in &self.inner.shards {
            stats.add(&part.shard.read());
        }
        let sum = |of: fn(&Finds) -> &AtomicU64| {
            self.inner.finds.iter().map(|finds| of(finds).load(Relaxed)).sum::<u64>()
        };
        // A thread that was interrupted while it counted takes back what others counted meanwhile.
        // Nobody is to see that.
        let grown = |told: &AtomicU64, sum: u64| told.fetch_max(sum, Relaxed).max(sum);
        stats.hits = grown(&self.inner.told.hits, sum(|finds| &finds.hits));
        stats.misses = grown(&self.inner.told.misses, sum(|finds| &finds.misses));
        stats
    }
}
