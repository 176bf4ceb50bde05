//! A solid-state disk: a latency for each kind of request, and a bus that carries one at a time.

use crate::agenda::Ns;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssd {
    /// The time from a read's submission to its end, without the transfer.
    pub read_ns: Ns,
    /// The same for a write.
    pub write_ns: Ns,
    /// What the bus carries, in bytes a microsecond.
    pub bytes_per_us: u64,
    bus_free_at_ns: Ns,
}

impl Ssd {
    /// Guessed from data sheets of `PCIe` 4.0 disks: 80 and 50 us, 5 GB/s.
    pub const fn nvme() -> Self {
        Self { read_ns: 80_000, write_ns: 50_000, bytes_per_us: 5_000, bus_free_at_ns: 0 }
    }

    /// Guessed: a loop device whose file is in memory, a hop to its thread and a copy.
    pub const fn in_memory() -> Self {
        Self { read_ns: 6_000, write_ns: 6_000, bytes_per_us: 10_000, bus_free_at_ns: 0 }
    }

    /// No disk: requests end as soon as they are made.
    pub const fn none() -> Self {
        Self { read_ns: 0, write_ns: 0, bytes_per_us: u64::MAX, bus_free_at_ns: 0 }
    }

    /// When a request that is submitted now will have ended.
    pub fn submit(&mut self, now_ns: Ns, write: bool, bytes: u64) -> Ns {
        let begins_ns = now_ns.max(self.bus_free_at_ns);
        self.bus_free_at_ns = begins_ns + bytes * 1_000 / self.bytes_per_us;
        self.bus_free_at_ns + if write { self.write_ns } else { self.read_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_overlap_but_for_the_bus() {
        let mut ssd = Ssd::nvme();
        assert_eq!(ssd.submit(1_000, false, 50_000), 1_000 + 10_000 + 80_000);
        assert_eq!(ssd.submit(1_000, true, 50_000), 1_000 + 20_000 + 50_000);
        assert_eq!(ssd.submit(90_000, true, 5_000), 90_000 + 1_000 + 50_000);
    }
}
