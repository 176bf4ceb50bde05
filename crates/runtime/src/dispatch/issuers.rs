//! How many threads that are not workers issue items. If there is one for each CPU, queueing what
//! they could do themselves only costs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use homing_sched::{ISSUERS_OF_LATE, IssuersPlaces};
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::dispatch::cpu_bits::CpuBits;

/// How many numbers threads get before they repeat: more issuers than that may be counted as fewer.
const NUMBERS: usize = if cfg!(any(loom, shuttle)) { 64 } else { CPU_COUNT_MAX };

/// An interval, at least. A thread that has not issued for two of them is no issuer.
const INTERVAL_NS: u64 = 8_000_000;

/// Where an issuer gets its CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On any CPU of a cache, which this CPU of it names.
    Cache(CpuId),
    /// On this CPU only. Issuers that are pinned to one CPU together leave the others alone.
    Cpu(CpuId),
}

impl Place {
    const COUNT: usize = 2 * CPU_COUNT_MAX;

    fn number(self) -> usize {
        match self {
            Self::Cache(cpu) => cpu.index(),
            Self::Cpu(cpu) => CPU_COUNT_MAX + cpu.index(),
        }
    }

    fn of_number(number: usize) -> Option<Self> {
        let cpu = CpuId::new(number % CPU_COUNT_MAX)?;
        Some(if number < CPU_COUNT_MAX { Self::Cache(cpu) } else { Self::Cpu(cpu) })
    }
}

/// The threads that issue, remembered for a short time and for a long one, and the place from which
/// each did last.
#[derive(Debug)]
pub(crate) struct Issuers {
    short: Memory,
    long: Memory,
    /// By the issuer's number: its place, as a number.
    places: Box<[AtomicU16]>,
}

/// The issuers of this interval and of the one before. Time passes only when somebody looks: if
/// nobody does, nothing depends on it.
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
            places: (0..NUMBERS).map(|_| AtomicU16::new(0)).collect(),
        }
    }

    /// Notes that this thread issues, or would, from this place.
    pub(crate) fn note(&self, place: Place, now_ns: u64) {
        let number = NUMBER.get().unwrap_or_else(|| {
            let next = LAST.fetch_add(1, Ordering::Relaxed) as usize % NUMBERS;
            let number = CpuId::new(next).expect("it is below the maximum");
            NUMBER.set(Some(number));
            number
        });
        self.short.note(number, now_ns);
        self.long.note(number, now_ns);
        let (last, place) = (&self.places[number.index()], place.number() as u16);
        if last.load(Ordering::Relaxed) != place {
            last.store(place, Ordering::Relaxed);
        }
    }

    /// How many issuers there are.
    pub(crate) fn count(&self, now_ns: u64) -> usize {
        self.short.count(now_ns)
    }

    /// How many issuers there were of late: [`ISSUERS_OF_LATE`].
    pub(crate) fn count_of_late(&self, now_ns: u64) -> usize {
        self.long.count(now_ns)
    }

    /// The places from which they issued of late. `cpus_of` says how many CPUs of a place are in
    /// use.
    pub(crate) fn places_of_late(
        &self,
        now_ns: u64,
        cpus_of: impl Fn(Place) -> usize,
    ) -> IssuersPlaces {
        let mut places = IssuersPlaces::default();
        // For each place, how many issuers and how many CPUs there are.
        let mut known = [(0_u16, 0_u16); Place::COUNT];
        for number in self.long.all(now_ns).iter() {
            let number = usize::from(self.places[number.index()].load(Ordering::Relaxed));
            let Some(place) = Place::of_number(number) else { continue };
            let (issuers, cpus) = &mut known[number];
            if *issuers == 0 {
                *cpus = cpus_of(place) as u16;
            }
            places.add((*cpus).into(), (*issuers).into());
            *issuers += 1;
        }
        places
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
        // One of the threads that find the interval over ends it.
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
        for cache in [0, 1, 1] {
            let issuers = Arc::clone(&issuers);
            let place = Place::Cache(CpuId::new(64 * cache).unwrap());
            thread::spawn(move || (0..5).for_each(|_| issuers.note(place, 1))).join().unwrap();
        }
        assert_eq!(issuers.count(INTERVAL_NS - 1), 3);
        assert_eq!(issuers.count(INTERVAL_NS), 3, "one interval later");
        issuers.note(Place::Cache(CpuId::new(0).unwrap()), INTERVAL_NS);
        assert_eq!(issuers.count(2 * INTERVAL_NS), 1, "two");
        assert_eq!(issuers.count_of_late(2 * INTERVAL_NS), 4);
        // Two issuers behind a cache of 64 CPUs, this thread one of them, and two behind a cache
        // with one CPU.
        let cpus_of = |place| match place {
            Place::Cache(cpu) if cpu.index() == 64 => 1,
            Place::Cache(_) => 64,
            Place::Cpu(_) => 1,
        };
        let places = issuers.places_of_late(2 * INTERVAL_NS, cpus_of);
        assert_eq!((places.beside, places.seated), (65, 3));
        // This thread is pinned to a CPU with a number of its own, and another one to the same.
        let pinned = Place::Cpu(CpuId::new(CPU_COUNT_MAX - 1).unwrap());
        issuers.note(pinned, 2 * INTERVAL_NS);
        let issuers = &issuers;
        thread::scope(|scope| scope.spawn(|| issuers.note(pinned, 2 * INTERVAL_NS)).join())
            .unwrap();
        let places = issuers.places_of_late(2 * INTERVAL_NS, cpus_of);
        assert_eq!((places.beside, places.seated), (66, 3), "one for both of them");
        let late_ns = 2 * INTERVAL_NS * ISSUERS_OF_LATE;
        assert_eq!(issuers.count_of_late(late_ns), 0, "nobody has issued for so long");
        assert_eq!(issuers.count(60_000_000_000), 0, "however long nobody has looked");
    }
}
