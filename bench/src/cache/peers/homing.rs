//! `homing`: the cache that learns what to keep.

use super::Peer;

/// Its cache of objects.
pub(crate) struct Homing(homing::Cache<u64, u64>);

impl Peer for Homing {
    const NAME: &'static str = "homing";

    fn with_capacity(entries: usize) -> Self {
        Self(homing::Cache::new(entries as u64))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn remove(&self, key: u64) {
        self.0.remove(&key);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
