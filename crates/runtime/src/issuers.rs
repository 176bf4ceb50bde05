//! How many threads that are no workers issue items: where there is one for each CPU, queueing
//! what they could do themselves only costs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use homing_sched::ISSUERS_OF_LATE;
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::cpu_bits::CpuBits;

/// Threads have numbers, which repeat: more than so many issuers may be counted as fewer.
const NUMBERS: usize = CPU_COUNT_MAX;

/// An interval, at least: who has not issued for two of them is none.
const INTERVAL_NS: u64 = 8_000_000;

/// Who issues, remembered for a short time and for a long one; and from which cache each did last.
#[derive(Debug)]
pub(crate) struct Issuers {
    short: Memory,
    long: Memory,
    /// By the issuer's number: that of its cache.
    caches: Box<[AtomicU16]>,
    /// When one of them last went to another cache.
    moved_ns: AtomicU64,
}

/// How many issued from each cache.
pub(crate) type Counts = [u16; CPU_COUNT_MAX];

/// It has issued from no cache so far.
const NOWHERE: u16 = u16::MAX;

/// Issuers of this interval and of the one before. Time passes as somebody looks: where nobody does,
/// nothing depends on it.
#[derive(Debug)]
struct Memory {
    now: CpuBits,
    before: CpuBits,
    began_ns: AtomicU64,
    interval_ns: u64,
}

static LAST: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    static NUMBER: Cell<Option<CpuId>> = const { Cell::new(None) };
}

impl Issuers {
    pub(crate) fn new() -> Self {
        let long_ns = INTERVAL_NS * ISSUERS_OF_LATE;
        Self {
            short: Memory::new(INTERVAL_NS),
            long: Memory::new(long_ns),
            caches: (0..NUMBERS).map(|_| AtomicU16::new(NOWHERE)).collect(),
            moved_ns: AtomicU64::new(0),
        }
    }

    /// This thread issues, or would, from the cache of this number.
    pub(crate) fn note(&self, cache: usize, now_ns: u64) {
        let number = NUMBER.get().unwrap_or_else(|| {
            let next = LAST.fetch_add(1, Ordering::Relaxed) as usize % NUMBERS;
            let number = CpuId::new(next).expect("it is below the maximum");
            NUMBER.set(Some(number));
            number
        });
        self.short.note(number, now_ns);
        self.long.note(number, now_ns);
        let (place, cache) = (&self.caches[number.index()], cache as u16);
        let before = place.load(Ordering::Relaxed);
        if before != cache {
            place.store(cache, Ordering::Relaxed);
            if before != NOWHERE {
                self.moved_ns.store(now_ns, Ordering::Relaxed);
            }
        }
    }

    /// How many there are.
    pub(crate) fn count(&self, now_ns: u64) -> usize {
        self.short.count(now_ns)
    }

    /// How many there were of late: [`ISSUERS_OF_LATE`].
    pub(crate) fn count_of_late(&self, now_ns: u64) -> usize {
        self.long.count(now_ns)
    }

    /// From where they issued of late.
    pub(crate) fn counts_of_late(&self, now_ns: u64) -> Counts {
        let mut counts = [0; CPU_COUNT_MAX];
        for number in self.long.all(now_ns).iter() {
            let cache = self.caches[number.index()].load(Ordering::Relaxed);
            if let Some(count) = counts.get_mut(usize::from(cache)) {
                *count += 1;
            }
        }
        counts
    }

    /// Whether all of them have stayed behind their caches for as long as they are remembered.
    pub(crate) fn are_settled(&self, now_ns: u64) -> bool {
        let moved_ns = self.moved_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(moved_ns) >= 2 * self.long.interval_ns
    }
}

impl Memory {
    fn new(interval_ns: u64) -> Self {
        let last = CpuId::new(NUMBERS - 1).expect("it is below the maximum");
        let bits = || CpuBits::for_range_of(&CpuSet::of(last));
        Self { now: bits(), before: bits(), began_ns: AtomicU64::new(0), interval_ns }
    }

    fn note(&self, number: CpuId, now_ns: u64) {
        self.pass(now_ns);
        if !self.now.contains(number) {
            self.now.insert(number);
        }
    }

    fn count(&self, now_ns: u64) -> usize {
        self.all(now_ns).len()
    }

    fn all(&self, now_ns: u64) -> CpuSet {
        self.pass(now_ns);
        self.now.snapshot().or(&self.before.snapshot())
    }

    fn pass(&self, now_ns: u64) {
        let began_ns = self.began_ns.load(Ordering::Relaxed);
        let elapsed_ns = now_ns.saturating_sub(began_ns);
        if elapsed_ns < self.interval_ns {
            return;
        }
        // One of those who find it over ends it.
        let mine =
            self.began_ns.compare_exchange(began_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_err() {
            return;
        }
        let (now, before) = (self.now.snapshot(), self.before.snapshot());
        let kept = if elapsed_ns < 2 * self.interval_ns { now } else { CpuSet::EMPTY };
        for number in now.or(&before).iter() {
            self.now.remove(number);
            if kept.contains(number) {
                self.before.insert(number);
            } else {
                self.before.remove(number);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn threads_are_counted_once_and_forgotten() {
        let issuers = Arc::new(Issuers::new());
        for cache in [0, 64, 64] {
            let issuers = Arc::clone(&issuers);
            thread::spawn(move || (0..5).for_each(|_| issuers.note(cache, 1))).join().unwrap();
        }
        assert_eq!(issuers.count(INTERVAL_NS - 1), 3);
        assert_eq!(issuers.count(INTERVAL_NS), 3, "one interval later");
        issuers.note(0, INTERVAL_NS);
        assert_eq!(issuers.count(2 * INTERVAL_NS), 1, "two");
        assert_eq!(issuers.count_of_late(2 * INTERVAL_NS), 4);
        let counts = issuers.counts_of_late(2 * INTERVAL_NS);
        assert_eq!((counts[0], counts[64], counts.iter().sum::<u16>()), (2, 2, 4));
        let late_ns = 2 * INTERVAL_NS * ISSUERS_OF_LATE;
        assert_eq!(issuers.count_of_late(late_ns), 0, "nobody has issued for so long");
        assert_eq!(issuers.count(60_000_000_000), 0, "however long nobody has looked");
    }

    #[test]
    fn who_comes_is_settled_and_who_goes_to_another_cache_is_not() {
        let (issuers, begin_ns) = (Issuers::new(), 60_000_000_000);
        let (one, other) = (0, 1);
        issuers.note(one, begin_ns);
        issuers.note(one, begin_ns + 1);
        assert!(issuers.are_settled(begin_ns + 1));
        issuers.note(other, begin_ns + 2);
        let late_ns = 2 * INTERVAL_NS * ISSUERS_OF_LATE;
        assert!(!issuers.are_settled(begin_ns + 2) && !issuers.are_settled(begin_ns + 1 + late_ns));
        assert!(issuers.are_settled(begin_ns + 2 + late_ns));
    }
}
