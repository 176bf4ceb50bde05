//! Groups of entries that share the memory of a cache: tenants.

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Arc, RwLock, read, write};

/// A group of entries, and what is guaranteed and allowed to it. All limits are in the unit of the
/// cache's capacity, and may be changed at any time; what is too much goes with the next insertions.
///
/// As in the kernel's memory controller: what is below `min` is never taken for another group; what is
/// below `low` only where every group is; what is above `max` goes first.
#[derive(Debug)]
pub struct Group {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) cache: usize,
    min: AtomicU64,
    low: AtomicU64,
    max: AtomicU64,
    weight: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) evictions: AtomicU64,
}

/// What a group has and how it fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats {
    /// The weight of its entries.
    pub weight: u64,
    /// Reads that found an entry of the group.
    pub hits: u64,
    /// Entries that were inserted into it anew.
    pub misses: u64,
    /// Entries that were evicted.
    pub evictions: u64,
}

impl Group {
    pub(super) fn new(name: String, number: usize, cache: usize) -> Self {
        Self {
            name,
            number,
            cache,
            min: AtomicU64::new(0),
            low: AtomicU64::new(0),
            max: AtomicU64::new(u64::MAX),
            weight: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Guarantees it so much: other groups never take it.
    pub fn set_min(&self, weight: u64) {
        self.min.store(weight, Relaxed);
    }

    /// Spares it so much as long as others have more than their own `low`.
    pub fn set_low(&self, weight: u64) {
        self.low.store(weight, Relaxed);
    }

    /// Allows it so much. As shards evict on their own, it may be exceeded by one entry for each shard.
    pub fn set_max(&self, weight: u64) {
        self.max.store(weight, Relaxed);
    }

    /// What it has and how it fares.
    pub fn stats(&self) -> GroupStats {
        GroupStats {
            weight: self.weight.load(Relaxed),
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
        }
    }

    pub(super) fn add(&self, weight: u64) {
        self.weight.fetch_add(weight, Relaxed);
    }

    pub(super) fn subtract(&self, weight: u64) {
        self.weight.fetch_sub(weight, Relaxed);
    }

    pub(super) fn has_room_for(&self, weight: u64) -> bool {
        self.weight.load(Relaxed).saturating_add(weight) <= self.max.load(Relaxed)
    }

    /// How willingly it gives something for another group: less is sooner. `None` where it must not.
    pub(super) fn reluctance(&self, same: bool) -> Option<u32> {
        let weight = self.weight.load(Relaxed);
        if weight > self.max.load(Relaxed) {
            Some(0)
        } else if weight <= self.min.load(Relaxed) {
            same.then_some(3)
        } else if weight > self.low.load(Relaxed) {
            Some(1)
        } else {
            Some(2)
        }
    }
}

/// The groups of a cache; the first one is there from the beginning.
#[derive(Debug)]
pub(super) struct Groups {
    all: RwLock<Vec<Arc<Group>>>,
    count: AtomicUsize,
}

impl Groups {
    pub(super) fn new(first: Arc<Group>) -> Self {
        Self { all: RwLock::new(vec![first]), count: AtomicUsize::new(1) }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub(super) fn get(&self, number: usize) -> Arc<Group> {
        Arc::clone(&read(&self.all)[number])
    }

    /// Adds one, made with its number, or returns the one that has the name.
    pub(super) fn add(&self, name: &str, cache: usize) -> Arc<Group> {
        let mut all = write(&self.all);
        if let Some(group) = all.iter().find(|group| group.name == name) {
            return Arc::clone(group);
        }
        let group = Arc::new(Group::new(name.to_owned(), all.len(), cache));
        all.push(Arc::clone(&group));
        self.count.store(all.len(), Relaxed);
        group
    }
}
