//! Groups of entries, such as those of tenants, that share the memory of a cache.

use std::collections::HashMap;

use crate::limits::{Claim, Limits};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Arc, Mutex, RwLock, read, write};

/// A group of entries, with what the cache guarantees and allows it. All limits are in the unit of
/// the cache's capacity, and can be changed at any time. If a group then has too much, the next
/// insertions evict the excess.
///
/// The limits work as in the kernel's memory controller. What a group has below `min` is never
/// taken for another group. What it has below `low` is taken only if every group is below its
/// `low`. What it has above `high` goes before that, and what it has above `max` goes first.
///
/// The cache learns from a group's own requests what its entries are worth, so a group that never
/// asks for anything twice does not affect what is learnt about the others. It learns about the
/// first groups separately: one for each 16,384 entries that the cache was built for, up to eight.
/// The last of these and all further groups are learnt together. Each group that is learnt
/// separately takes 115 KB. In addition, a group with entries takes about 7 KB, more with more
/// CPUs. Part of that stays after the group is removed, for the next group.
///
/// ```
/// use homing_cache::Cache;
///
/// let cache = Cache::new(8);
/// let (web, batch) = (cache.group("web"), cache.group("batch"));
/// web.set_min(2); // two of its entries are never taken for others
/// web.set_low(4); // nor two more, as long as others have more than their own `low`
/// batch.set_high(6); // what it has above six goes before what others have
/// batch.set_max(7); // and more than seven it never has
/// (0..4).for_each(|key| _ = cache.insert_in(&web, key, "page"));
/// (10..99).for_each(|key| _ = cache.insert_in(&batch, key, "report"));
/// assert_eq!((web.stats().weight, batch.stats().weight), (4, 4));
/// assert_eq!((web.name(), batch.name()), ("web", "batch"));
/// ```
#[derive(Debug)]
pub struct Group {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) cache: usize,
    removed: AtomicBool,
    limits: Limits,
    weight: AtomicU64,
    pub(super) hits: AtomicU64,
    misses: AtomicU64,
    pub(super) insertions: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) declined: AtomicU64,
}

/// What a group has, and its statistics.
///
/// ```
/// use homing_cache::{Cache, GroupStats};
///
/// let cache = Cache::new(100);
/// let tenant = cache.group("tenant");
/// for _ in 0..3 {
///     cache.get_or_load_in(&tenant, "key", || Ok::<_, std::io::Error>(1))?;
/// }
/// let GroupStats { weight, hits, misses, insertions, evictions, .. } = tenant.stats();
/// assert_eq!((weight, hits, misses, insertions, evictions), (1, 2, 1, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats {
    /// The weight of its entries.
    pub weight: u64,
    /// Reads that found an entry of the group.
    pub hits: u64,
    /// Reads that load for the group what they do not find, also those that shared another's load.
    /// Of loads for no group, and for one that was removed, it is the default group's. A read that
    /// loads nothing is a miss of no group: nobody knows whose entry it would have been.
    pub misses: u64,
    /// Entries inserted whose keys were not in the cache.
    pub insertions: u64,
    /// Entries that were evicted.
    pub evictions: u64,
    /// New entries that were not put in, because they were not worth the place of another entry of
    /// the group.
    pub declined: u64,
}

#[cfg(any(feature = "control", feature = "metrics"))]
impl GroupStats {
    /// Everything that only grows, with the names of attributes and metrics.
    pub(super) fn counters(self) -> [(&'static str, u64); 5] {
        let Self { weight: _, hits, misses, insertions, evictions, declined } = self;
        [
            ("hits", hits),
            ("misses", misses),
            ("insertions", insertions),
            ("evictions", evictions),
            ("declined", declined),
        ]
    }
}

impl Group {
    pub(super) fn new(name: String, number: usize, cache: usize) -> Self {
        Self {
            name,
            number,
            cache,
            removed: AtomicBool::new(false),
            limits: Limits::default(),
            weight: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            insertions: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            declined: AtomicU64::new(0),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Guarantees the group this much: other groups never take it. It is taken only if the cache is
    /// made smaller than that.
    pub fn set_min(&self, weight: u64) {
        self.limits.min.store(weight, Relaxed);
    }

    /// Spares this much of the group as long as others have more than their own `low`.
    pub fn set_low(&self, weight: u64) {
        self.limits.low.store(weight, Relaxed);
    }

    /// Above this limit, what the group has goes before what groups below their own `high` have.
    pub fn set_high(&self, weight: u64) {
        self.limits.high.store(weight, Relaxed);
    }

    /// Limits the group to this much. Shards evict independently, so the group may exceed the limit
    /// by one entry for each shard. If it has more than that, each entry that it gets evicts 16 of
    /// its entries or twice the weight of the new one, whichever is more.
    pub fn set_max(&self, weight: u64) {
        self.limits.max.store(weight, Relaxed);
    }

    /// What the group has, and its statistics.
    pub fn stats(&self) -> GroupStats {
        GroupStats {
            weight: self.weight.load(Relaxed),
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            insertions: self.insertions.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            declined: self.declined.load(Relaxed),
        }
    }

    /// Its limits, in the unit of the cache's capacity; `u64::MAX` for none.
    #[cfg(feature = "control")]
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn missed(&self) {
        self.misses.fetch_add(1, Relaxed);
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    /// Marks it as removed. Returns whether it had not been.
    pub(super) fn set_removed(&self) -> bool {
        !self.removed.swap(true, Relaxed)
    }

    pub(super) fn add(&self, weight: u64) {
        self.weight.fetch_add(weight, Relaxed);
    }

    pub(super) fn subtract(&self, weight: u64) {
        self.weight.fetch_sub(weight, Relaxed);
    }

    /// Counts an entry of this weight as given, for itself or, if it has that much to spare beyond
    /// `min`, for another group. Returns whether it did.
    pub(super) fn give(&self, weight: u64, for_itself: bool) -> bool {
        let least = if for_itself { 0 } else { self.limits.min.load(Relaxed) };
        let left = |has: u64| has.checked_sub(weight).filter(|&left| left >= least);
        self.weight.fetch_update(Relaxed, Relaxed, left).is_ok()
    }

    pub(super) fn has_room_for(&self, weight: u64) -> bool {
        self.weight.load(Relaxed).saturating_add(weight) <= self.limits.max()
    }

    /// Whether it might have this much if it had nothing else.
    pub(super) fn may_have(&self, weight: u64) -> bool {
        weight <= self.limits.max()
    }

    /// How soon it has to give what it has.
    pub(super) fn claim(&self) -> Claim {
        self.limits.claim(self.weight.load(Relaxed))
    }
}

/// The groups of a cache. The first one is there from the beginning.
///
/// A group's number is that of its lists in each shard. One that was removed keeps its place here
/// until another group gets its number, so shards that hear of it late find an empty group.
#[derive(Debug)]
pub(super) struct Groups {
    /// The default group, which stays.
    first: Arc<Group>,
    all: RwLock<Vec<Arc<Group>>>,
    /// The groups that were not removed.
    by_name: RwLock<HashMap<String, Arc<Group>>>,
    count: AtomicUsize,
    /// Whether shards keep the groups' figures: hits are cheaper without.
    counted: AtomicBool,
    /// Numbers of groups that were removed; held while groups come or go.
    pub(super) free: Mutex<Vec<usize>>,
}

impl Groups {
    pub(super) fn new(first: Arc<Group>) -> Self {
        let by_name = HashMap::from([(first.name.clone(), Arc::clone(&first))]);
        Self {
            first: Arc::clone(&first),
            all: RwLock::new(vec![first]),
            by_name: RwLock::new(by_name),
            count: AtomicUsize::new(1),
            counted: AtomicBool::new(false),
            free: Mutex::new(Vec::new()),
        }
    }

    /// The group that an entry for this one belongs to: the default one if it was removed.
    pub(super) fn of<'a>(&'a self, group: Option<&'a Group>) -> &'a Group {
        group.filter(|group| !group.is_removed()).unwrap_or(&self.first)
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub(super) fn are_counted(&self) -> bool {
        self.counted.load(Relaxed)
    }

    /// Has shards keep the groups' figures, from when they [catch
    /// up](super::shard::Shard::catch_up). Returns whether they did not before.
    pub(super) fn start_counting(&self) -> bool {
        !self.counted.swap(true, Relaxed)
    }

    pub(super) fn get(&self, number: usize) -> Arc<Group> {
        Arc::clone(&read(&self.all)[number])
    }

    /// The group that has this name.
    pub(super) fn named(&self, name: &str) -> Option<Arc<Group>> {
        read(&self.by_name).get(name).map(Arc::clone)
    }

    /// All groups that were not removed.
    #[cfg(any(feature = "control", feature = "metrics"))]
    pub(super) fn known(&self) -> Vec<Arc<Group>> {
        read(&self.by_name).values().cloned().collect()
    }

    /// Forgets the name of a removed group.
    pub(super) fn forget(&self, group: &Group) {
        let forgotten = write(&self.by_name).remove(&group.name);
        drop(forgotten);
    }

    /// Makes a group known. All shards that knew another group by its number must know this one
    /// already.
    pub(super) fn publish(&self, group: &Arc<Group>) {
        let mut all = write(&self.all);
        match all.get_mut(group.number) {
            Some(place) => *place = Arc::clone(group),
            None => all.push(Arc::clone(group)),
        }
        self.count.store(all.len(), Relaxed);
        write(&self.by_name).insert(group.name.clone(), Arc::clone(group));
    }
}
