//! fsync of many files on a file system with a log: how many commits one log write carries. The
//! model needs only how long a log write takes (`fs_mark` on XFS, the `aio_fsync` posting of 2015).
//!
//! An fsync takes CPU time of its issuer, writes the file's data, takes CPU time of the thread that
//! commits, and joins the log's buffer. A buffer that is not full is written once the one before is
//! on disk; a full one is written at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::agenda::{Agenda, Ns};
use crate::rng::Rng;

/// The time that is not measured at the beginning: by then 32 issuers have in flight as much as
/// they may.
const WARM_UP_NS: Ns = 1_000_000_000;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupCommit {
    /// Threads that issue.
    pub issuers: usize,
    /// Whether each waits for its fsync, or goes on at once.
    pub waits: bool,
    /// CPU time of an issuer for each file. Fitted: one issuer that goes on.
    pub issuer_ns: Ns,
    /// CPU time of the thread that commits; published: 8 CPUs for 32,000 files a second.
    pub worker_ns: Ns,
    /// CPUs.
    pub cpus: usize,
    /// What writing the data takes, in addition to the device's own pace.
    pub data_ns: Ns,
    /// The device's requests a second. Fitted: the plateau.
    pub iops: u64,
    /// Requests that the device takes at a time.
    pub tags: usize,
    /// What a log write takes with its flush. Fitted: one issuer that waits.
    pub log_ns: Ns,
    /// Commits that fit into a log buffer: 32 KiB of some 320 bytes.
    pub buffer_commits: usize,
    /// Log writes at a time.
    pub buffers: usize,
    /// How many files an issuer that goes on may have in flight.
    pub in_flight: usize,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupCommitReport {
    /// Files made durable a second.
    pub files_per_s: f64,
    /// Commits that a log write carried, on average.
    pub aggregation: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Issued(usize),
    DataDone(usize),
    Committed(usize),
    LogDone,
}

struct Run<'a> {
    setup: &'a GroupCommit,
    agenda: Agenda<Event>,
    rng: Rng,
    /// Requests wait here for a tag; each is for the data of an issuer's file or for the log.
    waiting: VecDeque<(Ns, Event)>,
    in_device: usize,
    device_free_ns: Ns,
    cpu_free_ns: Vec<Ns>,
    /// The issuers of the commits in the open buffer.
    open: Vec<usize>,
    /// Buffers that are being written.
    writing: VecDeque<Vec<usize>>,
    on_way: Vec<usize>,
    /// Issuers that wait for room.
    stopped: Vec<bool>,
    done: u64,
    log_writes: u64,
    logged: u64,
}

impl GroupCommit {
    /// The published machine.
    pub const fn published(issuers: usize, waits: bool) -> Self {
        Self {
            issuers,
            waits,
            issuer_ns: 132_000,
            worker_ns: 250_000,
            cpus: 16,
            data_ns: 300_000,
            iops: 32_500,
            tags: 128,
            log_ns: 1_130_000,
            buffer_commits: 100,
            buffers: 8,
            in_flight: 400,
        }
    }

    /// Runs it for so long; `None` where `stop` was set before it ended.
    pub fn run(&self, measured_ns: Ns, seed: u64, stop: &AtomicBool) -> Option<GroupCommitReport> {
        let mut run = Run {
            setup: self,
            agenda: Agenda::default(),
            rng: Rng::new(seed),
            waiting: VecDeque::new(),
            in_device: 0,
            device_free_ns: 0,
            cpu_free_ns: vec![0; self.cpus],
            open: Vec::new(),
            writing: VecDeque::new(),
            on_way: vec![0; self.issuers],
            stopped: vec![false; self.issuers],
            done: 0,
            log_writes: 0,
            logged: 0,
        };
        (0..self.issuers).for_each(|issuer| run.issue(issuer));
        let warm_up_ns = (measured_ns / 5).max(WARM_UP_NS);
        run.until(warm_up_ns, stop)?;
        let before = (run.done, run.log_writes, run.logged);
        run.until(warm_up_ns + measured_ns, stop)?;
        let writes = (run.log_writes - before.1).max(1);
        Some(GroupCommitReport {
            files_per_s: (run.done - before.0) as f64 * 1e9 / measured_ns as f64,
            aggregation: (run.logged - before.2) as f64 / writes as f64,
        })
    }
}

impl Run<'_> {
    fn until(&mut self, until_ns: Ns, stop: &AtomicBool) -> Option<()> {
        while let Some(event) = self.agenda.next(until_ns) {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            match event {
                Event::Issued(issuer) => {
                    let setup = self.setup;
                    self.on_way[issuer] += 1;
                    self.request(setup.data_ns, Event::DataDone(issuer));
                    let room = if setup.waits { 1 } else { setup.in_flight };
                    if self.on_way[issuer] < room {
                        self.issue(issuer);
                    } else {
                        self.stopped[issuer] = true;
                    }
                }
                Event::DataDone(issuer) => {
                    self.leave_device();
                    let ends_ns = self.on_cpu(self.setup.worker_ns);
                    self.agenda.at(ends_ns, Event::Committed(issuer));
                }
                Event::Committed(issuer) => {
                    self.open.push(issuer);
                    self.write_log();
                }
                Event::LogDone => {
                    self.leave_device();
                    let commits = self.writing.pop_front().expect("it was being written");
                    for issuer in commits {
                        self.done += 1;
                        self.on_way[issuer] -= 1;
                        if std::mem::take(&mut self.stopped[issuer]) {
                            self.issue(issuer);
                        }
                    }
                    self.write_log();
                }
            }
        }
        Some(())
    }

    fn issue(&mut self, issuer: usize) {
        let ns = self.rng.about(self.setup.issuer_ns, 10);
        let ends_ns = self.on_cpu(ns);
        self.agenda.at(ends_ns, Event::Issued(issuer));
    }

    /// Runs on the less busy one of two CPUs, as a scheduler that does not see everything places a
    /// woken thread. Returns when that ends.
    fn on_cpu(&mut self, ns: Ns) -> Ns {
        let now_ns = self.agenda.now_ns();
        let cpus = self.cpu_free_ns.len() as u64;
        let (one, other) = (self.rng.below(cpus) as usize, self.rng.below(cpus) as usize);
        let cpu = if self.cpu_free_ns[other] < self.cpu_free_ns[one] { other } else { one };
        let free_ns = &mut self.cpu_free_ns[cpu];
        *free_ns = now_ns.max(*free_ns) + ns;
        *free_ns
    }

    /// Writes the open buffer if no other is being written, or if it is full.
    fn write_log(&mut self) {
        let setup = self.setup;
        while !self.open.is_empty() && self.writing.len() < setup.buffers {
            let full = self.open.len() >= setup.buffer_commits;
            if !full && !self.writing.is_empty() {
                return;
            }
            let rest = self.open.split_off(self.open.len().min(setup.buffer_commits));
            let buffer = std::mem::replace(&mut self.open, rest);
            self.log_writes += 1;
            self.logged += buffer.len() as u64;
            self.writing.push_back(buffer);
            self.request(setup.log_ns, Event::LogDone);
        }
    }

    fn request(&mut self, takes_ns: Ns, event: Event) {
        self.waiting.push_back((takes_ns, event));
        self.feed_device();
    }

    fn leave_device(&mut self) {
        self.in_device -= 1;
        self.feed_device();
    }

    fn feed_device(&mut self) {
        while self.in_device < self.setup.tags {
            let Some((takes_ns, event)) = self.waiting.pop_front() else { return };
            self.in_device += 1;
            let begins_ns = self.agenda.now_ns().max(self.device_free_ns);
            self.device_free_ns = begins_ns + 1_000_000_000 / self.setup.iops;
            self.agenda.at(begins_ns + takes_ns, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(setup: &GroupCommit, measured_ns: Ns) -> GroupCommitReport {
        setup.run(measured_ns, 1, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn a_short_run_comes_to_what_a_long_one_does() {
        for (issuers, waits) in [(1, true), (1, false), (8, false), (32, false)] {
            let setup = GroupCommit::published(issuers, waits);
            let [short, long] = [50_000_000, 2_000_000_000].map(|ns| run(&setup, ns));
            let ratio = short.files_per_s / long.files_per_s;
            assert!((0.9..1.1).contains(&ratio), "{issuers}: {short:?} {long:?}");
        }
    }

    /// Aggregation is within 30 % and files a second are within 15 % of the published figures. The
    /// figures that were fitted are the three named in the struct.
    #[test]
    fn log_writes_carry_as_many_commits_as_was_published() {
        for (issuers, waits, files_per_s, aggregation) in [
            (1, true, 530.0, 1.0),
            (4, true, 1_850.0, 2.0),
            (1, false, 7_000.0, 10.0),
            (4, false, 24_000.0, 35.0),
            (8, false, 32_000.0, 100.0),
            (16, false, 33_000.0, 100.0),
        ] {
            let report = run(&GroupCommit::published(issuers, waits), 1_000_000_000);
            println!("{issuers} {waits}: {report:?}");
            let off = |got: f64, want: f64| (got / want - 1.0).abs();
            assert!(off(report.files_per_s, files_per_s) <= 0.15, "{issuers} {waits} {report:?}");
            assert!(off(report.aggregation, aggregation) <= 0.30, "{issuers} {waits} {report:?}");
        }
    }

    #[test]
    fn without_group_commit_the_log_is_the_limit() {
        let alone =
            GroupCommit { buffer_commits: 1, buffers: 1, ..GroupCommit::published(8, false) };
        let report = run(&alone, 1_000_000_000);
        assert!(report.files_per_s < 1e9 / alone.log_ns as f64 * 1.01, "{report:?}");
    }
}
