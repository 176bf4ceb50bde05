//! Divides the time of a batch among the workqueues that the batch has items of. It leaves out what
//! its thread slept in `blocking`, or spent on other items that it ran on top of one of these.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{now_ns, thread_cpu_ns};

/// The CPU time of items at least this long is read from the thread's own clock, which is a system
/// call. For shorter ones the elapsed time counts.
const CPU_CLOCK_ITEM_NS: u64 = 50_000;

/// For items at least this long that clock is always read. For shorter ones it is read once in so
/// many batches, for all of these.
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

/// The clocks of a batch.
#[derive(Debug)]
pub(crate) struct Laps {
    /// How long the batch's items usually are.
    usual_ns: u64,
    /// For how many batches like this one its CPU time stands; `None`: the elapsed time is used.
    weight: Option<u64>,
    /// The end of the last lap.
    pub(crate) ns: u64,
    cpu_ns: Option<u64>,
    /// How long the thread was away in all.
    pub(crate) away_ns: u64,
}

impl Laps {
    /// The clocks of the batch of this number, which began at `began_ns`.
    pub(crate) fn begin(usual_ns: u64, number: u64, began_ns: u64) -> Self {
        let weight = match usual_ns {
            _ if cfg!(homing_uncounted) => None,
            0 | CPU_CLOCK_ALWAYS_NS.. => Some(1),
            CPU_CLOCK_ITEM_NS.. if number.is_multiple_of(CPU_CLOCK_EVERY) => Some(CPU_CLOCK_EVERY),
            CPU_CLOCK_ITEM_NS.. => Some(0),
            _ => None,
        };
        let cpu_ns = weight.filter(|weight| *weight > 0).map(|_| thread_cpu_ns());
        Self { usual_ns, weight, ns: began_ns, cpu_ns, away_ns: 0 }
    }

    /// The CPU time of the `items` items that have run since the last lap. If the CPU was `lost`,
    /// and not by `blocking`, one of them slept for an unknown time. Then they are taken to be as
    /// long as they usually are.
    pub(crate) fn lap(&mut self, away: &Away, items: u32, lost: bool) -> u64 {
        let now_ns = now_ns();
        let elapsed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.ns, now_ns));
        let (asleep_ns, beneath_ns) = away.take();
        self.away_ns += asleep_ns + beneath_ns;
        match (self.weight, &mut self.cpu_ns) {
            (Some(weight), Some(before_ns)) => {
                let cpu_ns = thread_cpu_ns();
                let ran_ns = cpu_ns.saturating_sub(std::mem::replace(before_ns, cpu_ns));
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
