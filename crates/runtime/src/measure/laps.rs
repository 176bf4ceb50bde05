//! Divides the time of a batch among the workqueues that the batch has items of. It leaves out what
//! its thread slept in `blocking`, or spent on other items that it ran on top of one of these.

use std::sync::atomic::{AtomicU64, Ordering};

use homing_sched::PoolId;

use crate::measure::clock::{now_ns, thread_cpu_ns};

/// The CPU time of items at least this long is read from the thread's own clock, which is a system
/// call. For shorter ones the elapsed time counts.
const CPU_CLOCK_ITEM_NS: u64 = 50_000;

/// For items at least this long that clock is always read, unless the batch turns out to be short.
/// For shorter ones it is read once in so many batches, for all of these.
const CPU_CLOCK_ALWAYS_NS: u64 = 500_000;
const CPU_CLOCK_EVERY: u64 = 8;

/// What a thread did since its last lap that was not work of its batch, in nanoseconds. Only the
/// thread itself writes and reads this.
#[derive(Debug, Default)]
pub(crate) struct Away {
    asleep_ns: AtomicU64,
    beneath_ns: AtomicU64,
}

/// The elapsed time and the thread's CPU time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ns: u64,
    cpu_ns: u64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { ns: now_ns(), cpu_ns: thread_cpu_ns() }
    }
}

impl Away {
    /// The thread has lent its CPU since then. It slept for as long as it has not run.
    pub(crate) fn slept_since(&self, then: Moment) {
        let now = Moment::now();
        let ran_ns = now.cpu_ns.saturating_sub(then.cpu_ns);
        add(&self.asleep_ns, now.ns.saturating_sub(then.ns).saturating_sub(ran_ns));
    }

    /// Does `work` for other items, on top of the present one.
    pub(crate) fn beneath<T>(&self, work: impl FnOnce() -> T) -> T {
        let (began_ns, before) = (now_ns(), self.take());
        let result = work();
        self.asleep_ns.store(before.0, Ordering::Relaxed);
        self.beneath_ns.store(before.1 + now_ns().saturating_sub(began_ns), Ordering::Relaxed);
        result
    }

    fn take(&self) -> (u64, u64) {
        let take = |counter: &AtomicU64| {
            let found = counter.load(Ordering::Relaxed);
            if found > 0 {
                counter.store(0, Ordering::Relaxed);
            }
            found
        };
        (take(&self.asleep_ns), take(&self.beneath_ns))
    }
}

fn add(counter: &AtomicU64, ns: u64) {
    counter.store(counter.load(Ordering::Relaxed) + ns, Ordering::Relaxed);
}

/// A thread's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTime {
    ns: u64,
    /// The workqueue whose short laps it contains as if they had not slept; 0: none, it was read.
    guessed_for: u32,
}

impl CpuTime {
    fn read() -> Self {
        Self { ns: thread_cpu_ns(), guessed_for: 0 }
    }
}

/// The clocks of a batch.
#[derive(Debug)]
pub(crate) struct Laps {
    /// How long the batch's items usually are.
    usual_ns: u64,
    /// For how many batches like this one its CPU time stands; `None`: the elapsed time is used.
    weight: Option<u64>,
    /// The end of the last lap, and the thread's CPU time by then.
    pub(crate) ns: u64,
    cpu: Option<CpuTime>,
    /// How long the thread was away in all.
    pub(crate) away_ns: u64,
}

/// How much of the elapsed time a worker has had its CPU: other threads may have had it, or an item
/// may have slept. The thread's own clock, which is a system call, is read after long batches, and
/// where another pool's batch begins some time after it was read.
#[derive(Debug, Default)]
pub(crate) struct OnCpu {
    /// When the clock was read last, if the worker has not parked since.
    last: Option<Moment>,
    /// How long it was away since then, lending the CPU.
    away_ns: u64,
    /// The pool of the last batch.
    pool: Option<PoolId>,
}

/// A batch of this length is long, and a reading of this age is old.
const LONG_NS: u64 = 100_000;

impl OnCpu {
    /// A batch of a pool begins. What was lost before is not to count as lost by this pool.
    pub(crate) fn begin_batch(&mut self, pool: PoolId, now_ns: u64) {
        let changes = self.pool.replace(pool) != Some(pool);
        let is_old = |last: Moment| now_ns.saturating_sub(last.ns) >= LONG_NS;
        if self.last.is_none_or(|last| changes && is_old(last)) {
            (self.last, self.away_ns) = (Some(Moment::now()), 0);
        }
    }

    /// The part of `busy_ns` in which the worker had the CPU, for a batch that has just ended: if
    /// that is long, less what was lost since the last reading, in proportion. All of it, if nobody
    /// has said that the batch began.
    pub(crate) fn of_batch(&mut self, batch: &Laps, busy_ns: u64) -> u64 {
        let Some(last) = self.last else { return busy_ns };
        self.away_ns += batch.away_ns;
        if busy_ns < LONG_NS {
            return busy_ns;
        }
        let now = Moment::now();
        self.last = Some(now);
        let away_ns = std::mem::take(&mut self.away_ns);
        let there_ns = now.ns.saturating_sub(last.ns).saturating_sub(away_ns);
        let on_cpu_ns = now.cpu_ns.saturating_sub(last.cpu_ns).min(there_ns);
        let share = u128::from(busy_ns) * u128::from(on_cpu_ns) / u128::from(there_ns.max(1));
        u64::try_from(share).unwrap_or(busy_ns)
    }
}

impl Laps {
    /// The clocks of the batch of this number, which began at `began_ns`, when the thread's CPU
    /// time was `cpu`, if that is known.
    pub(crate) fn begin(usual_ns: u64, number: u64, began_ns: u64, cpu: Option<CpuTime>) -> Self {
        let weight = match usual_ns {
            _ if cfg!(homing_uncounted) => None,
            0 | CPU_CLOCK_ALWAYS_NS.. => Some(1),
            CPU_CLOCK_ITEM_NS.. if number.is_multiple_of(CPU_CLOCK_EVERY) => Some(CPU_CLOCK_EVERY),
            CPU_CLOCK_ITEM_NS.. => Some(0),
            _ => None,
        };
        let is_read = weight.is_some_and(|weight| weight > 0);
        let cpu = is_read.then(|| cpu.unwrap_or_else(CpuTime::read));
        Self { usual_ns, weight, ns: began_ns, cpu, away_ns: 0 }
    }

    /// The next lap is of this workqueue. If others slept in what was guessed, that must not be
    /// taken off what this one has used.
    pub(crate) fn turns_to(&mut self, workqueue: u32) {
        let own = if self.weight == Some(1) { workqueue } else { 0 };
        if self.cpu.is_some_and(|cpu| ![0, own].contains(&cpu.guessed_for)) {
            self.cpu = Some(CpuTime::read());
        }
    }

    /// The thread's CPU time by the end of the last lap, for the next batch: where one long item in
    /// ten makes the usual one long, the clock is read for that one.
    pub(crate) fn cpu(&self) -> Option<CpuTime> {
        self.cpu
    }

    /// The CPU time of the `items` items of a workqueue that have run since the last lap. If the
    /// CPU was `lost`, and not by `blocking`, one of them slept for an unknown time. Then they are
    /// taken to be as long as they usually are.
    pub(crate) fn lap(&mut self, workqueue: u32, away: &Away, items: u32, lost: bool) -> u64 {
        let now_ns = now_ns();
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.ns, now_ns));
        let (asleep_ns, beneath_ns) = away.take();
        self.away_ns += asleep_ns + beneath_ns;
        match (self.weight, &mut self.cpu) {
            (Some(1), Some(before)) if elapsed_ns < CPU_CLOCK_ITEM_NS && !lost => {
                let ran_ns = elapsed_ns.saturating_sub(asleep_ns);
                *before = CpuTime { ns: before.ns + ran_ns, guessed_for: workqueue };
                ran_ns.saturating_sub(beneath_ns)
            }
            (Some(weight), Some(before)) => {
                let now = CpuTime::read();
                let ran_ns = now.ns.saturating_sub(std::mem::replace(before, now).ns);
                weight * ran_ns.saturating_sub(beneath_ns)
            }
            (Some(_), None) => 0,
            (None, _) => {
                let ran_ns = elapsed_ns.saturating_sub(asleep_ns + beneath_ns);
                let slept = lost && asleep_ns == 0;
                if slept { ran_ns.min(u64::from(items) * self.usual_ns) } else { ran_ns }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A batch of an item, and how long it took.
    fn batch(item: impl FnOnce()) -> (Laps, u64) {
        let mut laps = Laps::begin(1_000, 1, now_ns(), None);
        let began_ns = laps.ns;
        item();
        laps.ns = now_ns();
        let busy_ns = laps.ns - began_ns;
        (laps, busy_ns)
    }

    fn spin(cpu_ns: u64) {
        let began_ns = thread_cpu_ns();
        while thread_cpu_ns() - began_ns < cpu_ns {}
    }

    /// What a batch of this pool is charged, and how long it took.
    fn charged(on_cpu: &mut OnCpu, pool: u8, item: impl FnOnce()) -> (u64, u64) {
        on_cpu.begin_batch(PoolId(pool), now_ns());
        let (laps, busy_ns) = batch(item);
        (on_cpu.of_batch(&laps, busy_ns), busy_ns)
    }

    #[test]
    fn the_clock_is_read_for_long_laps_alone_and_nothing_counts_twice() {
        let began = CpuTime::read();
        let mut laps = Laps::begin(CPU_CLOCK_ALWAYS_NS, 1, now_ns(), Some(began));
        let began_ns = laps.ns;
        laps.turns_to(7);
        let short_ns = laps.lap(7, &Away::default(), 1, false);
        // On a loaded machine it may have been long.
        if laps.ns - began_ns < CPU_CLOCK_ITEM_NS {
            assert_eq!(short_ns, laps.ns - began_ns);
            assert_eq!(laps.cpu(), Some(CpuTime { ns: began.ns + short_ns, guessed_for: 7 }));
        }
        let mut next = Laps::begin(CPU_CLOCK_ALWAYS_NS, 2, laps.ns, laps.cpu());
        next.turns_to(7);
        spin(MS);
        let long_ns = next.lap(7, &Away::default(), 1, false);
        assert_eq!(next.cpu(), Some(CpuTime { ns: began.ns + short_ns + long_ns, guessed_for: 0 }));
        assert!(next.cpu().unwrap().ns <= thread_cpu_ns());
    }

    #[test]
    fn what_short_laps_slept_is_not_taken_off_what_another_workqueue_used() {
        // 7 has slept for a second in laps that were guessed.
        let guessed = || Some(CpuTime { ns: thread_cpu_ns() + 1_000 * MS, guessed_for: 7 });
        let mut laps = Laps::begin(CPU_CLOCK_ALWAYS_NS, 1, now_ns(), guessed());
        laps.turns_to(8);
        spin(MS);
        assert!(laps.lap(8, &Away::default(), 1, false) >= MS);
        // Nor off what stands for eight batches.
        let mut laps = Laps::begin(CPU_CLOCK_ITEM_NS, CPU_CLOCK_EVERY, now_ns(), guessed());
        laps.turns_to(7);
        spin(MS);
        assert!(laps.lap(7, &Away::default(), 1, false) >= CPU_CLOCK_EVERY * MS);
    }

    #[test]
    fn what_a_worker_slept_is_no_time_on_its_cpu() {
        let sleep = || thread::sleep(Duration::from_millis(20));
        let mut on_cpu = OnCpu::default();
        assert!(charged(&mut on_cpu, 0, sleep).0 < 10 * MS);
        let (on_cpu_ns, busy_ns) = charged(&mut on_cpu, 0, || spin(2 * MS));
        assert!((MS..=busy_ns).contains(&on_cpu_ns), "{on_cpu_ns} of {busy_ns}");
        let (on_cpu_ns, busy_ns) = charged(&mut on_cpu, 0, || ());
        assert!(on_cpu_ns == busy_ns || busy_ns >= LONG_NS, "it is short");
        let (laps, busy_ns) = batch(sleep);
        assert_eq!(OnCpu::default().of_batch(&laps, busy_ns), busy_ns, "it does not matter");
    }

    #[test]
    fn what_short_batches_slept_is_not_taken_off_another_pools() {
        let mut on_cpu = OnCpu::default();
        for _ in 0..20 {
            for _ in 0..10 {
                charged(&mut on_cpu, 1, || thread::sleep(Duration::from_micros(20)));
            }
            let (on_cpu_ns, _) = charged(&mut on_cpu, 2, || spin(MS / 2));
            assert!(on_cpu_ns >= MS / 3, "{on_cpu_ns} of {}", MS / 2);
        }
    }

    #[test]
    fn who_lent_the_cpu_has_lost_nothing_by_that() {
        let mut on_cpu = OnCpu::default();
        let began_ns = now_ns();
        on_cpu.begin_batch(PoolId(0), began_ns);
        let slept_ns = now_ns();
        thread::sleep(Duration::from_millis(20));
        let away_ns = now_ns() - slept_ns;
        let (mut laps, _) = batch(|| spin(2 * MS));
        laps.away_ns = away_ns;
        let on_cpu_ns = on_cpu.of_batch(&laps, 2 * MS);
        // Other threads may have had the CPU, too.
        let there_ns = now_ns() - began_ns - away_ns;
        assert!(on_cpu_ns >= 2 * MS * 2 * MS / there_ns, "{on_cpu_ns} of {there_ns}");
    }
}
