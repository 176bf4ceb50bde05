//! moka and its smaller sister: W-TinyLFU over a concurrent hash table, with logs of reads and
//! writes that any thread works off as it comes by. They hash with `SipHash` unless told otherwise;
//! here they have the faster hashes that the other peers have by default.

use foldhash::fast::RandomState;
use mini_moka::sync::ConcurrentCacheExt;

use super::Peer;

/// moka's cache for threads.
pub(crate) struct Moka(moka::sync::Cache<u64, u64, RandomState>);

impl Peer for Moka {
    const NAME: &'static str = "moka";

    fn with_capacity(entries: usize) -> Self {
        let builder = moka::sync::Cache::builder().max_capacity(entries as u64);
        Self(builder.build_with_hasher(RandomState::default()))
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
pub(crate) struct MiniMoka(mini_moka::sync::Cache<u64, u64, RandomState>);

impl Peer for MiniMoka {
    const NAME: &'static str = "mini-moka";

    fn with_capacity(entries: usize) -> Self {
        let builder = mini_moka::sync::Cache::builder().max_capacity(entries as u64);
        Self(builder.build_with_hasher(RandomState::default()))
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
