//! Lower bounds for any cache: nothing at all, and one cache line for each request.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::requests::{key, number, value};
use super::super::workload::KEYS;
use super::Peer;

/// Has everything without looking: the cost of reading the requests.
pub(crate) struct Nothing;

impl Peer for Nothing {
    const NAME: &'static str = "nothing";
    const IS_BASELINE: bool = true;

    fn with_capacity(_entries: usize) -> Self {
        Self
    }

    fn get(&self, key: u64) -> Option<u64> {
        Some(value(key))
    }

    fn insert(&self, _key: u64, _value: u64) {}

    fn remove(&self, _key: u64) {}

    fn len(&self) -> usize {
        0
    }
}

/// All keys in an array, each in a place that follows from the key: no search, no bound, no lock,
/// and a read writes nothing. The memory cost of a hit.
pub(crate) struct Array(Box<[Slot]>);

/// What no cache can do without: key and value.
struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

impl Array {
    fn slot(&self, key: u64) -> Option<&Slot> {
        self.0.get(usize::try_from(number(key)).ok()?)
    }
}

impl Peer for Array {
    const NAME: &'static str = "array";
    const IS_BASELINE: bool = true;

    fn with_capacity(_entries: usize) -> Self {
        let slot = |key| Slot { key: AtomicU64::new(key), value: AtomicU64::new(value(key)) };
        Self((0..KEYS).map(|number| slot(key(number))).collect())
    }

    fn get(&self, key: u64) -> Option<u64> {
        let slot = self.slot(key)?;
        let found = slot.key.load(Ordering::Relaxed) == key;
        found.then(|| slot.value.load(Ordering::Relaxed))
    }

    fn insert(&self, key: u64, value: u64) {
        if let Some(slot) = self.slot(key) {
            slot.value.store(value, Ordering::Relaxed);
            slot.key.store(key, Ordering::Relaxed);
        }
    }

    fn remove(&self, key: u64) {
        if let Some(slot) = self.slot(key) {
            slot.key.store(!key, Ordering::Relaxed);
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
