//! A set of CPUs that many threads read and change: who is idle, who is searching.
//!
//! Orderings: every change is `SeqCst`-fenced by the caller where the wake protocol needs it; see
//! `README.md`, table of pairs.

use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::sync::{AtomicU64, Ordering};

/// For [`CPU_COUNT_MAX`] CPUs; the models have few.
const WORDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { CPU_COUNT_MAX / 64 };

/// A [`CpuSet`] of atomics, as long as the highest CPU needs.
///
/// The words have lines of their own: issuers read some sets with each item, while workers that go
/// to sleep and wake change others.
#[derive(Debug)]
#[repr(align(128))] // two cache lines: neighbors are fetched in pairs
pub(crate) struct CpuBits {
    words: [AtomicU64; WORDS],
    count: usize,
}

impl CpuBits {
    /// An empty set that can hold the CPUs of `range`.
    pub(crate) fn for_range_of(range: &CpuSet) -> Self {
        let highest = range.iter().last().map_or(0, CpuId::index);
        assert!(highest / 64 < WORDS, "there are as many words as CPUs need");
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)), count: highest / 64 + 1 }
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words[..self.count]
    }

    /// Adds `cpu`.
    pub(crate) fn insert(&self, cpu: CpuId) {
        let (index, bit) = place(cpu);
        self.words()[index].fetch_or(bit, Ordering::AcqRel);
    }

    /// Takes `cpu` out. Returns whether this call did it.
    pub(crate) fn remove(&self, cpu: CpuId) -> bool {
        let (index, bit) = place(cpu);
        self.words()[index].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Whether `cpu` is in the set. CPUs beyond the range are not.
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        let (index, bit) = place(cpu);
        self.words().get(index).is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Whether all CPUs of `others`, a set for the same range, are in this one, read word by word.
    pub(crate) fn contains_all(&self, others: &Self) -> bool {
        let bits = |word: &AtomicU64| word.load(Ordering::Acquire);
        self.words().iter().zip(others.words()).all(|(own, others)| bits(others) & !bits(own) == 0)
    }

    /// Whether the set is empty, read word by word.
    pub(crate) fn is_empty(&self) -> bool {
        self.words().iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// The members now, read word by word: the set need never have existed as a whole.
    pub(crate) fn snapshot(&self) -> CpuSet {
        let mut set = CpuSet::EMPTY;
        for (index, word) in self.words().iter().enumerate() {
            set.set_word(index, word.load(Ordering::Acquire));
        }
        set
    }
}

fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / 64, 1 << (cpu.index() % 64))
}
