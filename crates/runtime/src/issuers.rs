//! How many threads that are no workers issue items: where there is one for each CPU, queueing
//! what they could do themselves only costs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::cpu_bits::CpuBits;

/// Threads have numbers, which repeat: more than so many issuers may be counted as fewer.
const NUMBERS: usize = CPU_COUNT_MAX;

/// Issuers of this interval and of the one before.
#[derive(Debug)]
pub(crate) struct Issuers {
    now: CpuBits,
    before: CpuBits,
}

static LAST: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    static NUMBER: Cell<Option<CpuId>> = const { Cell::new(None) };
}

impl Issuers {
    pub(crate) fn new() -> Self {
        let last = CpuId::new(NUMBERS - 1).expect("it is below the maximum");
        let bits = || CpuBits::for_range_of(&CpuSet::of(last));
        Self { now: bits(), before: bits() }
    }

    /// This thread issues, or would.
    pub(crate) fn note(&self) {
        let number = NUMBER.get().unwrap_or_else(|| {
            let next = LAST.fetch_add(1, Ordering::Relaxed) as usize % NUMBERS;
            let number = CpuId::new(next).expect("it is below the maximum");
            NUMBER.set(Some(number));
            number
        });
        if !self.now.contains(number) {
            self.now.insert(number);
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.now.snapshot().or(&self.before.snapshot()).len()
    }

    /// An interval is over.
    pub(crate) fn pass(&self) {
        let (now, before) = (self.now.snapshot(), self.before.snapshot());
        before.minus(&now).iter().for_each(|number| {
            self.before.remove(number);
        });
        for number in now.iter() {
            self.before.insert(number);
            self.now.remove(number);
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
        for _ in 0..3 {
            let issuers = Arc::clone(&issuers);
            thread::spawn(move || (0..5).for_each(|_| issuers.note())).join().unwrap();
        }
        assert_eq!(issuers.count(), 3);
        issuers.pass();
        assert_eq!(issuers.count(), 3);
        issuers.pass();
        assert_eq!(issuers.count(), 0);
    }
}
