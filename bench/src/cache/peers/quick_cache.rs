//! `quick_cache`: S3-FIFO in shards, each behind a lock for readers and writers.

use super::Peer;

/// Its cache for threads.
pub(crate) struct QuickCache(quick_cache::sync::Cache<u64, u64>);

impl Peer for QuickCache {
    const NAME: &'static str = "quick_cache";

    fn with_capacity(entries: usize) -> Self {
        Self(quick_cache::sync::Cache::new(entries))
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
