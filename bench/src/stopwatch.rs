//! How long something took, what it cost this process, and how busy the machine was with others.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use crate::procfs::MachineTime;

/// A moment from which on time counts.
pub(crate) struct Stopwatch {
    machine: MachineTime,
    cpu: f64,
    began: Instant,
}

/// The time since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed {
    /// Seconds.
    pub(crate) seconds: f64,
    /// CPU seconds of this process.
    pub(crate) cpu: f64,
    /// The share of the machine's CPU time that went to others, in percent.
    pub(crate) others_percent: f64,
}

impl Stopwatch {
    /// From now on.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let machine = MachineTime::now()?;
        Ok(Self { machine, cpu: cpu_time(), began: Instant::now() })
    }

    /// Up to now.
    pub(crate) fn stop(&self) -> anyhow::Result<Elapsed> {
        let seconds = self.began.elapsed().as_secs_f64();
        let cpu = cpu_time() - self.cpu;
        let machine = MachineTime::now()?;
        let total = machine.total - self.machine.total;
        let others = (machine.busy - self.machine.busy - cpu).max(0.0);
        Ok(Elapsed { seconds, cpu, others_percent: 100.0 * others / total })
    }
}

/// The CPU seconds of this process so far, to the nanosecond, threads that ended included.
pub(crate) fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn sleep_takes_time() {
        let watch = Stopwatch::start().unwrap();
        thread::sleep(Duration::from_millis(50));
        let elapsed = watch.stop().unwrap();
        // No more is checked of the CPU time: other tests of the process run meanwhile.
        assert!(elapsed.seconds >= 0.05 && elapsed.cpu >= 0.0, "{elapsed:?}");
    }
}
