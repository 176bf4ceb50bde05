//! foyer's cache in memory: shards behind locks, with a choice of policies.

use foyer_memory::{Cache, CacheBuilder, EvictionConfig, LfuConfig, LruConfig, S3FifoConfig};

use super::Peer;

/// As many shards as the crate lru has mutexes. foyer's own choice is 8 on any machine.
const SHARDS: usize = 16;

fn cache(entries: usize, policy: impl Into<EvictionConfig>) -> Cache<u64, u64> {
    CacheBuilder::new(entries).with_shards(SHARDS).with_eviction_config(policy).build()
}

macro_rules! peer {
    ($(#[doc = $doc:literal])* $name:ident, $shown:literal, $policy:expr) => {
        $(#[doc = $doc])*
        pub(crate) struct $name(Cache<u64, u64>);

        impl Peer for $name {
            const NAME: &'static str = $shown;

            fn with_capacity(entries: usize) -> Self {
                Self(cache(entries, $policy))
            }

            fn get(&self, key: u64) -> Option<u64> {
                self.0.get(&key).map(|entry| *entry.value())
            }

            fn insert(&self, key: u64, value: u64) {
                self.0.insert(key, value);
            }

            fn remove(&self, key: u64) {
                self.0.remove(&key);
            }

            fn len(&self) -> usize {
                self.0.entries()
            }
        }
    };
}

peer!(
    /// LRU with a pool of high priority, which is not used here.
    Lru, "foyer-lru", LruConfig::default()
);
peer!(
    /// W-TinyLFU.
    Lfu, "foyer-lfu", LfuConfig::default()
);
peer!(
    /// S3-FIFO.
    S3Fifo, "foyer-s3fifo", S3FifoConfig::default()
);
