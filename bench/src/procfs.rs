//! CPU time and memory of processes and of the machine, from `/proc`.

use std::fs;

use anyhow::{Context, anyhow};

/// CPU time in seconds, user and system, of all threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProcessTime {
    /// The process's own.
    pub(crate) own: f64,
    /// That of the children it has waited for, and of theirs.
    pub(crate) children: f64,
}

impl ProcessTime {
    /// The times of the process numbered `id`.
    pub(crate) fn of(id: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{id}/stat");
        Self::parse(&read(&path)?).ok_or_else(|| anyhow!("{path} is not as expected"))
    }

    fn parse(stat: &str) -> Option<Self> {
        // The second field is a name in parentheses, which may hold spaces and parentheses.
        let (_, rest) = stat.rsplit_once(')')?;
        // The rest starts with the third field; utime, stime, cutime, cstime are 14 to 17.
        let mut ticks = rest.split_whitespace().skip(11).map_while(|field| field.parse().ok());
        let mut pair = || Some(seconds(ticks.next()?) + seconds(ticks.next()?));
        Some(Self { own: pair()?, children: pair()? })
    }
}

/// CPU time in seconds since boot, over all CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MachineTime {
    /// Time spent on anything, or taken away by the hypervisor.
    pub(crate) busy: f64,
    /// All time, idle or not.
    pub(crate) total: f64,
}

impl MachineTime {
    /// Of this machine.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let path = "/proc/stat";
        Self::parse(&read(path)?).ok_or_else(|| anyhow!("{path} is not as expected"))
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user nice system idle iowait irq softirq steal; guest time after these is in user.
        let fields: Vec<u64> =
            line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
        let [_, _, _, idle, iowait, ..] = fields[..] else {
            return None;
        };
        let total: u64 = fields.iter().sum();
        Some(Self { busy: seconds(total - idle - iowait), total: seconds(total) })
    }
}

/// Forgets the peak so far of the resident memory of process `id`. Returns `false` if we may not do
/// that: then the peak is that of the process's whole life.
pub(crate) fn reset_peak_memory(id: u32) -> bool {
    fs::write(format!("/proc/{id}/clear_refs"), "5").is_ok()
}

/// The peak resident memory of process `id` in bytes.
pub(crate) fn peak_memory(id: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{id}/status");
    parse_memory(&read(&path)?, "VmHWM:").ok_or_else(|| anyhow!("{path} has no VmHWM in kB"))
}

/// The resident memory of process `id` in bytes, at present.
pub(crate) fn memory(id: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{id}/status");
    parse_memory(&read(&path)?, "VmRSS:").ok_or_else(|| anyhow!("{path} has no VmRSS in kB"))
}

fn parse_memory(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("{path} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "4211 (a) b (c) S 1 4211 4211 0 -1 4194560 9 8 7 6 150 50 1000 200 20 0 \
                        19 0 77 12345 678 18446744073709551615 0 0\n";

    #[test]
    fn process_time_is_found_behind_a_name_with_parentheses() {
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let time = ProcessTime::parse(STAT).unwrap();
        assert_eq!(time, ProcessTime { own: 200.0 / per_second, children: 1200.0 / per_second });
        assert_eq!(ProcessTime::parse("4211 (short) S 1 2 3"), None);
        assert_eq!(ProcessTime::parse(""), None);
    }

    #[test]
    fn waiting_for_io_is_idle_and_stolen_time_is_busy() {
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let stat = "cpu  10 20 30 400 500 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n";
        let time = MachineTime::parse(stat).unwrap();
        assert_eq!(time, MachineTime { busy: 81.0 / per_second, total: 981.0 / per_second });
        assert_eq!(MachineTime::parse("cpu 1 2 3\n"), None);
    }

    #[test]
    fn the_peak_and_the_present_are_told_apart() {
        let status = "Name:\tx\nVmPeak:\t  9000 kB\nVmHWM:\t    5124 kB\nVmRSS:\t 4000 kB\n";
        assert_eq!(parse_memory(status, "VmHWM:"), Some(5124 * 1024));
        assert_eq!(parse_memory(status, "VmRSS:"), Some(4000 * 1024));
        assert_eq!(parse_memory("Name:\tkthread\n", "VmHWM:"), None);
    }

    #[test]
    fn this_process_has_all_of_them() {
        let id = std::process::id();
        assert!(ProcessTime::of(id).unwrap().own >= 0.0);
        assert!(MachineTime::now().unwrap().total > 0.0);
        // The order matters: other tests of the process use memory meanwhile.
        let now = memory(id).unwrap();
        assert!(now > 0 && peak_memory(id).unwrap() >= now);
        let error = peak_memory(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("/proc/4294967295/status"), "{error}");
    }
}
