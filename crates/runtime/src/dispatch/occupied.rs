//! The CPUs on which threads that are not workers issue items: a worker woken there competes with
//! them.
//!
//! Nothing tells when such a thread goes away. So time passes in intervals, and a CPU is occupied
//! if something was issued there in this interval or in the one before. An interval lasts from one
//! look of the monitor to the next: some milliseconds while workers work, up to a quarter of a
//! second while they mostly sleep. A thread that waits for its items says so: until it issues
//! again, its CPU is as free as any other, for items that take no longer than issuers usually wait.
//!
//! All of this is estimated: what is lost in a race comes back with the next item.

use homing_topology::{CpuId, CpuSet};

use crate::dispatch::cpu_bits::CpuBits;

#[derive(Debug)]
pub(crate) struct Occupied {
    now: CpuBits,
    before: CpuBits,
    /// The CPUs whose issuer waits.
    waiting: CpuBits,
}

impl Occupied {
    pub(crate) fn new(online: &CpuSet) -> Self {
        let bits = || CpuBits::for_range_of(online);
        Self { now: bits(), before: bits(), waiting: bits() }
    }

    /// Notes that something is issued on `cpu`.
    pub(crate) fn insert(&self, cpu: CpuId) {
        // Reading first: mostly there is nothing to change, and all issuers share the lines.
        if !self.now.contains(cpu) {
            self.now.insert(cpu);
        }
        if self.waiting.contains(cpu) {
            self.waiting.remove(cpu);
        }
    }

    /// Notes that the issuer on `cpu` waits. Returns whether it had issued anything lately.
    pub(crate) fn begin_wait(&self, cpu: CpuId) -> bool {
        let there = self.contains(cpu);
        if there {
            self.waiting.insert(cpu);
            // If the CPU has just been forgotten, nobody else would take this back.
            if !self.contains(cpu) {
                self.waiting.remove(cpu);
            }
        }
        there
    }

    /// Whether somebody issues on `cpu`, even if that thread waits at present.
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        self.now.contains(cpu) || self.before.contains(cpu)
    }

    /// Whether somebody issues anywhere.
    pub(crate) fn any(&self) -> bool {
        !(self.now.is_empty() && self.before.is_empty())
    }

    /// Whether any issuer waits at present.
    pub(crate) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The CPUs where somebody issues.
    pub(crate) fn all(&self) -> CpuSet {
        self.now.snapshot().or(&self.before.snapshot())
    }

    /// The CPUs where somebody issues and does not wait.
    pub(crate) fn snapshot(&self) -> CpuSet {
        self.all().minus(&self.waiting.snapshot())
    }

    /// Begins the next interval.
    pub(crate) fn pass(&self) {
        let (now, before) = (self.now.snapshot(), self.before.snapshot());
        for cpu in before.minus(&now).iter() {
            self.before.remove(cpu);
            self.waiting.remove(cpu);
        }
        for cpu in now.iter() {
            self.before.insert(cpu);
            self.now.remove(cpu);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_occupied_for_one_to_two_intervals_but_not_while_its_issuer_waits() {
        let online: CpuSet = "0-99".parse().unwrap();
        let occupied = Occupied::new(&online);
        let cpu = CpuId::new(70).unwrap();
        assert!(!occupied.begin_wait(cpu), "nobody is there");
        occupied.insert(cpu);
        assert_eq!(occupied.snapshot(), CpuSet::of(cpu));
        occupied.pass();
        assert_eq!(occupied.snapshot(), CpuSet::of(cpu), "an interval is not over at once");
        assert!(occupied.begin_wait(cpu));
        assert!(occupied.snapshot().is_empty() && occupied.contains(cpu));
        assert_eq!(occupied.all(), CpuSet::of(cpu));
        occupied.insert(cpu);
        assert_eq!(occupied.snapshot(), CpuSet::of(cpu), "it goes on");
        occupied.pass();
        occupied.pass();
        assert!(!occupied.contains(cpu));
        occupied.insert(cpu);
        assert_eq!(occupied.snapshot(), CpuSet::of(cpu), "and nothing of its waiting is left");
    }
}
