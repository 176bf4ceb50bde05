//! How a thread spends its time, according to the kernel.

use std::fs;
use std::str::SplitAsciiWhitespace;

/// If only the CPU clock of a thread is known, and it stands still for so long, the thread is taken
/// to sleep. It may be that others have its CPU, but their turns are shorter.
const SILENT_NS: u64 = 10_000_000;

/// A tick of `stat`: a hundredth of a second, in the interface of all systems that we run on.
const TICK_NS: u64 = 10_000_000;

/// A thread's use of CPUs since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) on_cpu_ns: u64,
    /// `None`: only its CPU clock could be read.
    told: Option<Told>,
}

/// What `/proc` tells in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    ready_ns: u64,
    asleep_now: bool,
}

/// What a thread did between two moments.
pub(super) struct Since {
    pub(super) on_cpu_ns: u64,
    pub(super) ready_ns: u64,
    pub(super) asleep_now: bool,
}

impl Usage {
    /// Reads `schedstat`, which counts nanoseconds but stands still while the thread runs, and the
    /// state in `stat`, which tells whether the thread runs. If neither can be opened (there is no
    /// `/proc`, or this process has no descriptor left), reads the thread's CPU clock.
    pub(super) fn read(tid: u32) -> Option<Self> {
        let stat = told(tid, "stat")
            .and_then(|stat| Self::parse(told(tid, "schedstat").as_deref(), &stat));
        stat.or_else(|| Some(Self { on_cpu_ns: cpu_clock_ns(tid)?, told: None }))
    }

    /// What the thread has done since `before`, which was `elapsed_ns` ago.
    pub(super) fn since(&self, before: &Self, elapsed_ns: u64) -> Since {
        let on_cpu_ns = self.on_cpu_ns.saturating_sub(before.on_cpu_ns);
        let ready_ns = |usage: &Self| usage.told.map_or(0, |told| told.ready_ns);
        let asleep_now = match self.told {
            Some(told) => told.asleep_now,
            None => on_cpu_ns == 0 && elapsed_ns >= SILENT_NS,
        };
        let ready_ns = ready_ns(self).saturating_sub(ready_ns(before));
        Since { on_cpu_ns, ready_ns, asleep_now }
    }

    /// Whether this is to replace `before`. A CPU clock that stands still is measured from when it
    /// began to.
    pub(super) fn tells_more(&self, before: &Self) -> bool {
        self.told.is_some() || self != before
    }

    fn parse(schedstat: Option<&str>, stat: &str) -> Option<Self> {
        let (asleep_now, words) = state(stat)?;
        let mut numbers = schedstat.unwrap_or_default().split_ascii_whitespace();
        let mut number = || numbers.next()?.parse().ok();
        let nanoseconds = number().zip(number()).filter(|(on_cpu_ns, _)| *on_cpu_ns > 0);
        // Kernels without CONFIG_SCHED_INFO have zeroes there. Then user and system time in ticks
        // are used, and nothing is known of the time when the thread was ready but did not run, in
        // which it does not sleep.
        let (on_cpu_ns, ready_ns) = nanoseconds.or_else(|| {
            let mut ticks = words.skip(10).map_while(|word| word.parse::<u64>().ok());
            Some(((ticks.next()? + ticks.next()?) * TICK_NS, 0))
        })?;
        Some(Self { on_cpu_ns, told: Some(Told { ready_ns, asleep_now }) })
    }
}

/// Whether a thread sleeps at this moment. `None`: its state cannot be read.
pub(super) fn sleeps(tid: u32) -> Option<bool> {
    state(&told(tid, "stat")?).map(|(asleep_now, _)| asleep_now)
}

fn told(tid: u32, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).ok()
}

/// Whether a thread sleeps, according to its `stat`, and the words that follow its state there.
fn state(stat: &str) -> Option<(bool, SplitAsciiWhitespace<'_>)> {
    // The name before the state may hold anything, even brackets.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut words = after_name.split_ascii_whitespace();
    Some((matches!(words.next()?, "S" | "D" | "T"), words))
}

/// The CPU time of a thread of this process, by the thread's number.
#[cfg(target_os = "linux")]
pub(super) fn cpu_clock_ns(tid: u32) -> Option<u64> {
    // As of `pthread_getcpuclockid`: the scheduler's clock (2) of a thread (4).
    let clock = (!i32::try_from(tid).ok()?) << 3 | 2 | 4;
    let time = nix::time::clock_gettime(nix::time::ClockId::from_raw(clock)).ok()?;
    Some(time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn cpu_clock_ns(_tid: u32) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_count_no_nanoseconds_have_ticks() {
        let stat = "7 (a) b) S 1 7 7 0 -1 64 19 0 0 0 250 30 0 0 20 0 1 0 99";
        let read = |schedstat| {
            let usage = Usage::parse(schedstat, stat).unwrap();
            let told = usage.told.unwrap();
            assert!(told.asleep_now);
            (usage.on_cpu_ns, told.ready_ns)
        };
        assert_eq!(read(Some("1234 56 7\n")), (1234, 56));
        assert_eq!(read(Some("0 0 0\n")), (2_800_000_000, 0));
        assert_eq!(read(None), (2_800_000_000, 0));
        assert!(Usage::parse(None, "7 (a) R 1").is_none());
        assert!(!Usage::parse(Some("1 2 3"), "7 (a) R 1").unwrap().told.unwrap().asleep_now);
    }

    #[test]
    fn a_clock_that_stands_still_for_long_is_a_thread_that_sleeps() {
        let clock = |on_cpu_ns| Usage { on_cpu_ns, told: None };
        assert!(!clock(5).since(&clock(5), SILENT_NS - 1).asleep_now);
        assert!(clock(5).since(&clock(5), SILENT_NS).asleep_now);
        assert!(!clock(6).since(&clock(5), SILENT_NS).asleep_now);
        assert!(clock(6).tells_more(&clock(5)) && !clock(5).tells_more(&clock(5)));
    }

    #[cfg(all(target_os = "linux", not(any(miri, shuttle, loom))))]
    #[test]
    fn the_cpu_clock_of_a_thread_is_that_of_the_thread() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let (before, other) = (crate::measure::clock::thread_cpu_ns(), cpu_clock_ns(tid).unwrap());
        assert!((before..=crate::measure::clock::thread_cpu_ns()).contains(&other));
        assert_eq!(cpu_clock_ns(u32::MAX), None);
    }
}
