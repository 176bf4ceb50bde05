//! One cell: a load on a server, with the CPU time and memory it took.

use std::ops::Sub;

use serde::Serialize;

use super::fio::Fio;
use super::scenario::Scenario;
use super::server::{Kind, Server};
use crate::child::Running;
use crate::interrupt::Interrupt;
use crate::procfs::{self, MachineTime, ProcessTime};

pub(crate) const MIB: f64 = 1024.0 * 1024.0;
pub(crate) const GIB: f64 = 1024.0 * MIB;

/// The resolution of the machine's clock of CPU time, in seconds.
const TICK: f64 = 0.01;

/// A verifying load has verified if its reads exceed its writes by this share.
const READ_BACK_MIN: f64 = 0.05;

/// What was measured of one load on one server in one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// The round, from 1.
    pub(crate) round: u32,
    /// The load.
    pub(crate) scenario: Scenario,
    /// The server.
    pub(crate) server: Kind,
    /// Reads and writes together.
    pub(crate) mib_per_s: f64,
    /// The 99th percentile of completion latency, of reads or writes, whichever is worse.
    pub(crate) p99_ms: f64,
    /// Requests per second.
    pub(crate) iops: f64,
    /// CPU time of the server for each GiB moved.
    pub(crate) server_cpu_s_per_gib: f64,
    /// CPU time of fio's jobs for each GiB moved.
    pub(crate) client_cpu_s_per_gib: f64,
    /// The server's peak resident memory.
    pub(crate) peak_rss_mib: f64,
    /// Whether that peak is of this load alone, rather than of the server's life so far.
    pub(crate) peak_is_of_this_load: bool,
    /// The share of the machine's CPU time that went neither to this server nor to fio.
    pub(crate) others_percent: f64,
    /// CPU time of the servers that had nothing to do, in percent of one CPU.
    pub(crate) idle_servers_percent: f64,
    /// Seconds from the first request to the last completion.
    pub(crate) seconds: f64,
    /// Bytes moved.
    pub(crate) bytes: u64,
    /// Whether the load got to reading back what it wrote; true of loads that do not.
    pub(crate) verified: bool,
}

/// Measures the server at `index`; the others should be idle.
pub(crate) fn measure(
    fio: &Fio,
    round: u32,
    scenario: Scenario,
    servers: &[(&Server, Running)],
    index: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Cell> {
    let (server, process) = &servers[index];
    let peak_is_of_this_load = procfs::reset_peak_memory(process.id());
    let before = Times::read(servers, index)?;
    let moved = fio.run(scenario, &server.socket, interrupt)?;
    let took = Times::read(servers, index)? - before;
    let gib = moved.bytes as f64 / GIB;
    Ok(Cell {
        round,
        scenario,
        server: server.kind,
        mib_per_s: moved.bytes as f64 / MIB / moved.seconds,
        p99_ms: moved.p99_ms,
        iops: moved.requests as f64 / moved.seconds,
        server_cpu_s_per_gib: took.server / gib,
        client_cpu_s_per_gib: moved.cpu_seconds / gib,
        peak_rss_mib: procfs::peak_memory(process.id())? as f64 / MIB,
        peak_is_of_this_load,
        others_percent: took.others_percent(),
        idle_servers_percent: 100.0 * took.idle_servers / moved.seconds,
        seconds: moved.seconds,
        bytes: moved.bytes,
        verified: !scenario.verifies() || moved.read_surplus >= READ_BACK_MIN,
    })
}

/// CPU seconds.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// The server under load.
    pub(crate) server: f64,
    /// The other servers.
    idle_servers: f64,
    /// Our children that have ended: between two readings, the client with its start.
    pub(crate) children: f64,
    /// Everything on the machine.
    busy: f64,
    /// All CPU time that there was.
    machine: f64,
}

impl Times {
    /// The share of the machine that went neither to the server nor to its client.
    pub(crate) fn others_percent(&self) -> f64 {
        // A value below half a tick is rounding, and may be negative as well.
        let others = (self.busy - self.server - self.children).max(0.0);
        100.0 * if others < TICK / 2.0 { 0.0 } else { others } / self.machine
    }

    /// Reads the times of the server at `index`, and of the others.
    pub(crate) fn read(servers: &[(&Server, Running)], index: usize) -> anyhow::Result<Self> {
        let times = servers.iter().map(|(_, process)| ProcessTime::of(process.id()));
        let times: Vec<ProcessTime> = times.collect::<Result<_, _>>()?;
        let all: f64 = times.iter().map(|time| time.own).sum();
        let machine = MachineTime::now()?;
        Ok(Self {
            server: times[index].own,
            idle_servers: all - times[index].own,
            children: ProcessTime::of(std::process::id())?.children,
            busy: machine.busy,
            machine: machine.total,
        })
    }
}

impl Sub for Times {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        // The clocks tick in hundredths of a second: smaller digits are errors of the subtraction.
        let since = |now: f64, then: f64| ((now - then) * 1e3).round() / 1e3;
        Self {
            server: since(self.server, before.server),
            idle_servers: since(self.idle_servers, before.idle_servers),
            children: since(self.children, before.children),
            busy: since(self.busy, before.busy),
            machine: since(self.machine, before.machine),
        }
    }
}
