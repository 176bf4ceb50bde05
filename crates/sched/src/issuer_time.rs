//! Whether issuers use all of their time. If they do, it does not matter to them how long an item
//! takes to begin. What holds them up is the CPU time that each item costs them: in wake-ups, and
//! in data that comes back from afar.

/// A wait is remembered for this many looks of the monitor. Simulated with looks of 1 ms.
const LOOKS: u32 = 16;

/// An issuer that was off its CPU for no more than this part of the time has not waited. Guessed:
/// other threads and interrupts take as much.
const SHARE: u64 = 16;

/// What is known about the issuers' waits, look by look.
///
/// ```
/// use homing_sched::IssuerTime;
///
/// let busy = IssuerTime::default().note(8_000_000, 7_900_000);
/// assert!(busy.is_all_used(), "of 8 ms it was on its CPU for 7.9");
/// let waited = busy.note(8_000_000, 5_000_000);
/// assert!(!waited.is_all_used());
/// assert_eq!(IssuerTime::from_bits(waited.bits()), waited, "an atomic can hold it");
/// let later = (0..16).fold(waited, |known, _| known.pass());
/// assert!(later.is_all_used(), "that was long ago, and nobody has waited since");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssuerTime(u32);

impl IssuerTime {
    /// From [`IssuerTime::bits`], for use in an atomic.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// As a number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Notes how much CPU time a thread that issues has had since it was last asked, in
    /// nanoseconds.
    #[must_use]
    pub const fn note(self, elapsed_ns: u64, on_cpu_ns: u64) -> Self {
        let waited = elapsed_ns.saturating_sub(on_cpu_ns) > elapsed_ns / SHARE;
        Self(self.0 | waited as u32)
    }

    /// Notes that the monitor looks.
    #[must_use]
    pub const fn pass(self) -> Self {
        Self((self.0 << 1) & ((1 << LOOKS) - 1))
    }

    /// Whether no issuer is known to have waited lately.
    pub const fn is_all_used(self) -> bool {
        self.0 == 0
    }
}

/// A thread is not asked twice within this time: the little that it was off its CPU would be a
/// large part of it.
const ASKED_EVERY_NS: u64 = 500_000;

/// When a thread that issues was last asked for its CPU time, and what it was.
///
/// ```
/// use homing_sched::IssuerClock;
///
/// let mut clock = IssuerClock::default();
/// assert_eq!(clock.ask(1_000_000, || 900_000), Some((1_000_000, 900_000)), "since both clocks began");
/// assert_eq!(clock.ask(1_000_100, || unreachable!()), None, "too soon");
/// assert_eq!(clock.ask(3_000_000, || 1_200_000), Some((2_000_000, 300_000)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssuerClock {
    at_ns: u64,
    on_cpu_ns: u64,
}

impl IssuerClock {
    /// How much time has passed since the thread was last asked, and how much of that it was on a
    /// CPU, in nanoseconds: for [`IssuerTime::note`]. `on_cpu_ns` gives the CPU time that it has
    /// used in total. `None` if it was asked just now.
    pub fn ask(&mut self, now_ns: u64, on_cpu_ns: impl FnOnce() -> u64) -> Option<(u64, u64)> {
        if now_ns.saturating_sub(self.at_ns) < ASKED_EVERY_NS {
            return None;
        }
        let before = std::mem::replace(self, Self { at_ns: now_ns, on_cpu_ns: on_cpu_ns() });
        // In a process that was forked off, the clock of CPU time has begun anew.
        let used_ns = self.on_cpu_ns.saturating_sub(before.on_cpu_ns);
        Some((now_ns - before.at_ns, used_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_remembered_for_some_looks() {
        let waited = IssuerTime::default().note(1_600, 1_499);
        assert!(!waited.is_all_used());
        let looks = |count| (0..count).fold(waited, |known, _| known.pass());
        assert!(!looks(LOOKS - 1).is_all_used() && looks(LOOKS).is_all_used());
        assert!(!looks(3).note(1_600, 1_600).is_all_used(), "another one does not");
        assert_eq!(IssuerTime::from_bits(looks(3).bits()), looks(3));
    }

    #[test]
    fn little_is_no_wait() {
        assert!(IssuerTime::default().note(1_600, 1_500).is_all_used());
        assert!(IssuerTime::default().note(0, 0).is_all_used());
        assert!(IssuerTime::default().note(100, u64::MAX).is_all_used(), "clocks differ");
    }
}
