//! How many CPUs the whole machine leaves to items: those that are idle, and those that items use
//! already. Other processes' work counts as busy, and so does that of our own issuers.
//!
//! A worker that sleeps says nothing about its CPU: the clients of a server may be running there.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use homing_topology::{CpuId, CpuSet};

/// How old a figure may be. The kernel counts in ticks of 1 to 10 ms; derived: ten of the longest.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The idle time of the workers' CPUs in the last interval, from `/proc/stat`, and what they ran
/// meanwhile.
#[derive(Debug)]
pub(crate) struct SpareCpus {
    cpus: CpuSet,
    born: Instant,
    next_sample_ms: AtomicU64,
    idle: AtomicUsize,
    any_idle: AtomicBool,
    idle_or_items: AtomicUsize,
    last: Mutex<Option<Sample>>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    times: Times,
    /// The time that workers have ever spent on items.
    items_ns: u64,
}

/// Ticks summed over all CPUs that are looked at, and how many these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    idle: u64,
    total: u64,
    cpu_count: u64,
}

impl SpareCpus {
    pub(crate) fn new(cpus: CpuSet) -> Self {
        Self {
            cpus,
            born: Instant::now(),
            next_sample_ms: AtomicU64::new(0),
            idle: AtomicUsize::new(0),
            any_idle: AtomicBool::new(true),
            idle_or_items: AtomicUsize::new(0),
            last: Mutex::new(None),
        }
    }

    /// The figures of the last interval. The counts are 0 until one has passed, and 0 if the system
    /// does not tell.
    ///
    /// `items_ns` returns the time that workers have ever spent on items.
    pub(crate) fn count(&self, items_ns: impl Fn() -> u64) -> Spare {
        let now_ms = self.born.elapsed().as_millis() as u64;
        if now_ms >= self.next_sample_ms.load(Ordering::Relaxed) {
            self.sample(now_ms, items_ns());
        }
        Spare {
            idle: self.idle.load(Ordering::Relaxed),
            any_idle: self.any_idle.load(Ordering::Relaxed),
            idle_or_items: self.idle_or_items.load(Ordering::Relaxed),
        }
    }

    fn sample(&self, now_ms: u64, items_ns: u64) {
        // One thread samples; the others go on with the old figure.
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let next = now_ms + SAMPLE_INTERVAL.as_millis() as u64;
        self.next_sample_ms.store(next, Ordering::Relaxed);
        let times = fs::read_to_string("/proc/stat").ok().map(|stat| parse(&stat, &self.cpus));
        let now = times.map(|times| Sample { at: Instant::now(), times, items_ns });
        let told = last.is_some() && now.is_some();
        let (idle, items) = last.zip(now).map_or((0, 0), |(then, now)| {
            let elapsed_ns = now.at.duration_since(then.at).as_nanos().max(1);
            let items_ns = u128::from(now.items_ns.saturating_sub(then.items_ns));
            let items = items_ns * u128::from(MILLI) / elapsed_ns;
            (idle_milli_cpus(then.times, now.times), items as u64)
        });
        // Long items are booked when they end, so a figure above the number of CPUs says nothing.
        let most = now.map_or(0, |now| now.times.cpu_count);
        let whole = |milli_cpus: u64| (milli_cpus / MILLI).min(most) as usize;
        self.idle.store(whole(idle), Ordering::Relaxed);
        // If the system does not tell, nobody is to conclude anything.
        self.any_idle.store(!told || idle >= ANY_IDLE_MILLI, Ordering::Relaxed);
        self.idle_or_items.store(whole(idle + items), Ordering::Relaxed);
        *last = now;
    }
}

/// Thousandths of a CPU are counted.
const MILLI: u64 = 1000;

/// Less than this, in all CPUs together, is as good as none.
const ANY_IDLE_MILLI: u64 = 50;

/// What the last interval left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    /// Idle CPUs.
    pub(crate) idle: usize,
    /// Whether any CPU was idle, even for a moment.
    pub(crate) any_idle: bool,
    /// Idle CPUs and those that items used.
    pub(crate) idle_or_items: usize,
}

fn idle_milli_cpus(then: Times, now: Times) -> u64 {
    let total = now.total.saturating_sub(then.total);
    let idle = now.idle.saturating_sub(then.idle);
    (idle * now.cpu_count * MILLI).checked_div(total).unwrap_or(0)
}

/// Adds up the lines `cpuN user nice system idle iowait irq softirq steal ...` of `cpus`.
fn parse(stat: &str, cpus: &CpuSet) -> Times {
    let mut times = Times { idle: 0, total: 0, cpu_count: 0 };
    for line in stat.lines() {
        let Some(rest) = line.strip_prefix("cpu") else { continue };
        let mut words = rest.split_ascii_whitespace();
        // The first line is "cpu  ...", the sum of all CPUs.
        let number = rest.starts_with(|c: char| c.is_ascii_digit()).then(|| words.next()).flatten();
        let cpu = number.and_then(|word| word.parse().ok()).and_then(CpuId::new);
        if !cpu.is_some_and(|cpu| cpus.contains(cpu)) {
            continue;
        }
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
        times.idle += ticks.get(3).copied().unwrap_or(0) + ticks.get(4).copied().unwrap_or(0);
        times.total += ticks.iter().sum::<u64>();
        times.cpu_count += 1;
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_cpus_that_were_idle_between_two_samples() {
        let cpus: CpuSet = "0,2".parse().unwrap();
        let stat = |idle0, busy0, idle2| {
            format!(
                "cpu  9 9 9 9 9 9 9 9\ncpu0 {busy0} 0 0 {idle0} 0 0 0 0 0 0\ncpu1 5 5 5 5\ncpu2 0 0 0 {idle2} 1 0 0 0\nintr 5\n"
            )
        };
        let then = parse(&stat(100, 100, 100), &cpus);
        let now = |idle0, busy0, idle2| parse(&stat(idle0, busy0, idle2), &cpus);
        assert_eq!(idle_milli_cpus(then, now(110, 100, 110)), 2000);
        assert_eq!(idle_milli_cpus(then, now(104, 106, 110)), 1400);
        assert_eq!(idle_milli_cpus(then, now(104, 106, 104)), 1142);
        assert_eq!(idle_milli_cpus(then, then), 0, "no time has passed");
        assert_eq!(parse("cpuX 1\ncpu0\n", &cpus).cpu_count, 1);
    }
}
