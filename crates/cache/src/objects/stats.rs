//! The statistics of a cache of objects.

use super::shard::Shard;

/// What happened in a cache since it was made, and what it holds now.
///
/// ```
/// use homing_cache::Cache;
///
/// let cache = Cache::new(100);
/// assert_eq!(cache.get("one"), None);
/// cache.insert("one", 1);
/// (0..3).for_each(|_| assert_eq!(cache.get("one"), Some(1)));
/// let stats = cache.stats();
/// assert_eq!((stats.hits, stats.misses, stats.entries), (3, 1, 1));
/// assert_eq!(stats.hit_ratio(), 0.75);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads that found a value. Where there are more threads than CPUs, some are not counted.
    pub hits: u64,
    /// Reads that found none. The same holds.
    pub misses: u64,
    /// Insertions of keys that were not in the cache.
    pub insertions: u64,
    /// Entries that were evicted for lack of room.
    pub evictions: u64,
    /// Entries whose lifetime was over.
    pub expirations: u64,
    /// Insertions of keys that had been evicted not long ago.
    pub refaults: u64,
    /// Entries that found no room.
    pub rejections: u64,
    /// New entries that were not put in, because they were not worth the place of another one: see
    /// [`Cache::insert`](super::Cache::insert).
    pub declined: u64,
    /// Entries in the cache.
    pub entries: u64,
    /// The weight of these entries.
    pub weight: u64,
    /// Bytes used to remember evicted entries.
    pub ghost_bytes: u64,
}

impl Stats {
    pub(super) fn add<K: std::hash::Hash + Eq, V>(&mut self, shard: &Shard<K, V>) {
        self.insertions += shard.counts.insertions;
        self.evictions += shard.counts.evictions;
        self.expirations += shard.counts.expirations;
        self.refaults += shard.counts.refaults;
        self.rejections += shard.counts.rejections;
        self.declined += shard.counts.declined;
        self.entries += shard.len() as u64;
        self.weight += shard.weight();
        self.ghost_bytes += shard.ghost_memory() as u64;
    }

    /// Everything that only grows, with the names of attributes and metrics.
    #[cfg(any(feature = "control", feature = "metrics"))]
    pub(super) fn counters(self) -> [(&'static str, u64); 8] {
        [
            ("hits", self.hits),
            ("misses", self.misses),
            ("insertions", self.insertions),
            ("evictions", self.evictions),
            ("expirations", self.expirations),
            ("refaults", self.refaults),
            ("rejections", self.rejections),
            ("declined", self.declined),
        ]
    }

    /// What the cache holds now.
    #[cfg(any(feature = "control", feature = "metrics"))]
    pub(super) fn held(self) -> [(&'static str, u64); 3] {
        [("entries", self.entries), ("weight", self.weight), ("ghost_bytes", self.ghost_bytes)]
    }

    /// The share of reads that found a value; 0 if there were no reads.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}
