//! moka and its smaller sister: W-TinyLFU over a concurrent hash table, with logs of reads and
//! writes that any thread works off as it comes by.

use mini_moka::sync::ConcurrentCacheExt;

use super::Peer;

/// moka's cache for threads.
pub(crate) struct Moka(moka::sync::Cache<u64, u64>);

impl Peer for Moka {
    const NAME: &'static str = "moka";

    fn with_capacity(entries: usize) -> Self {
        Self(moka::sync::Cache::new(entries as u64))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn remove(&self, key: u64) {
        self.0.invalidate(&key);
    }

    fn len(&self) -> usize {
        self.0.run_pending_tasks();
        self.0.entry_count() as usize
    }
}

/// mini-moka's cache for threads.
pub(crate) struct MiniMoka(mini_moka::sync::Cache<u64, u64>);

impl Peer for MiniMoka {
    const NAME: &'static str = "mini-moka";

    fn with_capacity(entries: usize) -> Self {
        Self(mini_moka::sync::Cache::new(entries as u64))
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn remove(&self, key: u64) {
        self.0.invalidate(&key);
    }

    fn len(&self) -> usize {
        self.0.sync();
        self.0.entry_count() as usize
    }
}
