//! The facts that `hand_off` decides by: which threads issue, and whether some worker has nothing
//! to do.

use homing_sched::{HandOffFacts, ISSUERS_OF_LATE, IssuersPlaces};
use std::collections::BTreeMap;

use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::host::ThreadId;

/// An issuer counts for this many ticks, up to twice as many.
const ISSUING_TICKS: u64 = 8;

/// Idle CPUs are counted over this many ticks, as the runtime does by the kernel's clock.
const SAMPLE_TICKS: u64 = 100;

#[derive(Debug, Default)]
pub(super) struct Spare {
    issuers: Memory,
    issuers_of_late: Memory,
    /// For each issuer, the cache behind which it issued last.
    at: BTreeMap<CpuId, usize>,
    caches: Vec<Cache>,
    /// The caches from which the issuers of late issued. They are counted only when that changes,
    /// but are asked for with each item.
    places: IssuersPlaces,
    /// Whether a worker was idle in this interval, and in the one before.
    idle: [bool; 2],
    ticks: u64,
    /// The CPUs that nobody uses, added up over the ticks of this sample, and the mean of the last
    /// sample.
    unused: u64,
    unused_lately: usize,
}

#[derive(Debug)]
struct Cache {
    cpus: CpuSet,
    cpu_count: usize,
    /// How many of the issuers of late issued last from here.
    issuers: usize,
}

/// Threads that issued in an interval, and in the one before.
#[derive(Debug, Default)]
struct Memory {
    now: CpuSet,
    before: CpuSet,
    /// How many there are in both together.
    count: usize,
}

impl Memory {
    fn contains(&self, number: CpuId) -> bool {
        self.now.contains(number) || self.before.contains(number)
    }

    fn insert(&mut self, number: CpuId) {
        self.count += usize::from(!self.contains(number));
        self.now.insert(number);
    }

    fn pass(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.count = self.before.len();
    }
}

impl Spare {
    /// Notes that `issuer` issues, or would, from a cache of these CPUs.
    pub(super) fn note(&mut self, issuer: ThreadId, cache: &CpuSet) {
        let Some(number) = CpuId::new(issuer.0 as usize % CPU_COUNT_MAX) else { return };
        self.issuers.insert(number);
        let known = self.issuers_of_late.contains(number);
        self.issuers_of_late.insert(number);
        let was = self.at.get(&number).copied();
        if known && was.is_some_and(|at| self.caches[at].cpus == *cache) {
            return;
        }
        if let Some(was) = was.filter(|_| known) {
            self.caches[was].issuers -= 1;
        }
        let at = self.caches.iter().position(|known| known.cpus == *cache);
        let at = at.unwrap_or(self.caches.len());
        if at == self.caches.len() {
            self.caches.push(Cache { cpus: *cache, cpu_count: cache.len(), issuers: 0 });
        }
        self.at.insert(number, at);
        self.caches[at].issuers += 1;
        self.count_places();
    }

    fn count_places(&mut self) {
        self.places = IssuersPlaces::default();
        for cache in &self.caches {
            (0..cache.issuers).for_each(|others| self.places.add(cache.cpu_count, others));
        }
    }

    /// Forgets issuers that have not issued of late.
    fn pass_of_late(&mut self) {
        self.issuers_of_late.pass();
        self.caches.iter_mut().for_each(|cache| cache.issuers = 0);
        for number in self.issuers_of_late.before.iter() {
            self.caches[self.at[&number]].issuers += 1;
        }
        self.count_places();
    }

    /// Notes that a worker has nothing to do.
    pub(super) fn parks(&mut self) {
        self.idle[0] = true;
    }

    /// A tick of the runtime's monitor. `idle`: whether some worker has nothing to do; `unused`:
    /// how many CPUs nobody uses.
    pub(super) fn tick(&mut self, idle: bool, unused: usize) {
        self.ticks += 1;
        self.unused += unused as u64;
        if self.ticks.is_multiple_of(SAMPLE_TICKS) {
            self.unused_lately = (std::mem::take(&mut self.unused) / SAMPLE_TICKS) as usize;
        }
        if self.ticks.is_multiple_of(ISSUING_TICKS) {
            self.issuers.pass();
            self.idle = [idle, self.idle[0]];
        }
        if self.ticks.is_multiple_of(ISSUING_TICKS * ISSUERS_OF_LATE) {
            self.pass_of_late();
        }
    }

    pub(super) fn facts(&self, item_ns: u64, cpus: usize, idle: bool) -> HandOffFacts {
        let left_by = |issuers: &Memory| {
            self.unused_lately.max(cpus.saturating_sub(self.places.taken(cpus, issuers.count)))
        };
        HandOffFacts {
            item_ns,
            issuer_has_more: true,
            spare_cpu_count: left_by(&self.issuers),
            spare_of_late: left_by(&self.issuers_of_late),
            idle_of_late: idle || self.idle != [false; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    /// Counts all issuers of late anew each time.
    #[test]
    fn places_are_counted_as_issuers_come_move_and_go() {
        let caches = ["0-1", "2-7", "8"].map(|cpus| cpus.parse::<CpuSet>().unwrap());
        let (mut spare, mut rng) = (Spare::default(), Rng::new(1));
        let (mut now, mut before) = (BTreeMap::new(), BTreeMap::new());
        let mut seen = Vec::new();
        for step in 0..50_000 {
            // Many threads and few in turn, so that some are forgotten.
            let issuer = rng.below(if step / 5_000 % 2 == 0 { 20 } else { 3 }) as u32;
            let at = rng.below(3) as usize;
            spare.note(ThreadId(issuer), &caches[at]);
            now.insert(issuer, at);
            if rng.below(10) == 0 {
                spare.tick(false, 0);
                if spare.ticks.is_multiple_of(ISSUING_TICKS * ISSUERS_OF_LATE) {
                    before = std::mem::take(&mut now);
                }
            }
            let mut all = before.clone();
            all.extend(&now);
            let mut expected = IssuersPlaces::default();
            for (at, cache) in caches.iter().enumerate() {
                let issuers = all.values().filter(|last| **last == at).count();
                (0..issuers).for_each(|others| expected.add(cache.len(), others));
            }
            assert_eq!((spare.places, spare.issuers_of_late.count), (expected, all.len()));
            seen.push(all.len());
        }
        assert!(seen.contains(&20) && seen.contains(&3));
    }
}
