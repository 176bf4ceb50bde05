//! What `hand_off` goes by: who issues, and whether some worker has nothing to do.

use homing_sched::{HandOffFacts, ISSUERS_OF_LATE, IssuersPlaces};
use std::collections::BTreeMap;

use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::host::ThreadId;

/// For so many ticks, up to twice as many, an issuer is counted.
const ISSUING_TICKS: u64 = 8;

/// Idle CPUs are counted over so many, as the runtime does by the kernel's clock.
const SAMPLE_TICKS: u64 = 100;

#[derive(Debug, Default)]
pub(super) struct Spare {
    issuers: Memory,
    issuers_of_late: Memory,
    /// Behind which of these caches each issued last.
    at: BTreeMap<CpuId, usize>,
    caches: Vec<CpuSet>,
    /// Whether a worker was idle in this interval, and in the one before.
    idle: [bool; 2],
    ticks: u64,
    /// CPUs that nobody uses, added up over the ticks of this sample, and in the mean of the last one.
    unused: u64,
    unused_lately: usize,
}

/// Threads that issued in an interval, and in the one before.
#[derive(Debug, Default)]
struct Memory {
    now: CpuSet,
    before: CpuSet,
}

impl Memory {
    fn all(&self) -> CpuSet {
        self.now.or(&self.before)
    }

    fn pass(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

impl Spare {
    /// This one issues, or would, from a cache of these CPUs.
    pub(super) fn note(&mut self, issuer: ThreadId, cache: &CpuSet) {
        if let Some(number) = CpuId::new(issuer.0 as usize % CPU_COUNT_MAX) {
            let at = self.caches.iter().position(|cpus| cpus == cache);
            let at = at.unwrap_or(self.caches.len());
            if at == self.caches.len() {
                self.caches.push(*cache);
            }
            self.at.insert(number, at);
            self.issuers.now.insert(number);
            self.issuers_of_late.now.insert(number);
        }
    }

    /// A worker has nothing to do.
    pub(super) fn parks(&mut self) {
        self.idle[0] = true;
    }

    /// A tick of the runtime's monitor. `idle`: whether some worker has nothing to do; `unused`: how many
    /// CPUs nobody uses.
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
            self.issuers_of_late.pass();
        }
    }

    pub(super) fn facts(&self, item_ns: u64, cpus: usize, idle: bool) -> HandOffFacts {
        let of_late = self.issuers_of_late.all();
        let mut places = IssuersPlaces::default();
        let mut counts = vec![0; self.caches.len()];
        for at in of_late.iter().filter_map(|number| self.at.get(&number)) {
            places.add(self.caches[*at].len(), counts[*at]);
            counts[*at] += 1;
        }
        let left_by = |issuers: CpuSet| {
            self.unused_lately.max(cpus.saturating_sub(places.taken(cpus, issuers.len())))
        };
        HandOffFacts {
            item_ns,
            issuer_has_more: true,
            spare_cpu_count: left_by(self.issuers.all()),
            spare_of_late: left_by(of_late),
            idle_of_late: idle || self.idle != [false; 2],
        }
    }
}
