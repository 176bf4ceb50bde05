//! Nanoseconds of the clocks in use: one monotonic clock, never 0, and each thread's and the
//! process's CPU time.

#[cfg(not(any(loom, shuttle)))]
pub(crate) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    // 584 years fit.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// The nanoseconds of a duration, or the most there are.
pub(crate) fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Under loom, time stands still.
#[cfg(loom)]
pub(crate) fn now_ns() -> u64 {
    1
}

#[cfg(shuttle)]
pub(crate) use model::{now_ns, pass_until};

/// Under shuttle, time stands still except in sleeps: a thread that sleeps until some time finds
/// that it has come.
#[cfg(shuttle)]
mod model {
    use std::sync::atomic::{AtomicU64, Ordering};

    shuttle::lazy_static! {
        /// Each schedule has its own. Not an atomic of shuttle's: reading the clock gives nobody
        /// else a turn.
        static ref NOW_NS: AtomicU64 = AtomicU64::new(1);
    }

    pub(crate) fn now_ns() -> u64 {
        NOW_NS.load(Ordering::Relaxed)
    }

    pub(crate) fn pass_until(ns: u64) {
        NOW_NS.fetch_max(ns, Ordering::Relaxed);
    }
}

/// How long this thread has been on a CPU. This is a system call.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds_of(rustix::time::ClockId::ThreadCPUTime)
}

#[cfg(any(loom, shuttle))]
pub(crate) fn thread_cpu_ns() -> u64 {
    1
}

/// How long all threads of this process have been on CPUs. This is a system call.
pub(crate) fn process_cpu_ns() -> u64 {
    nanoseconds_of(rustix::time::ClockId::ProcessCPUTime)
}

fn nanoseconds_of(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
