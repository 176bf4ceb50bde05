//! A build: as many compilers at a time as there are CPUs, each of which computes and now and then
//! waits for a moment: `make -j$(nproc)`.

use super::{Before, Report, Trial};
use crate::agenda::Ns;
use crate::geometry::CpuIndex;
use crate::host::{Host, Kind, Model, Step, ThreadId};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// Compilers at a time.
    pub jobs: usize,
    /// How long one computes between two waits, on average,
    pub compute_ns: Ns,
    /// and how long it waits: for its input, for `make`.
    pub wait_ns: Ns,
    /// How much of what it works on is in its core's cache, and has to be fetched from there if it
    /// goes on elsewhere.
    pub warm_bytes: u64,
    /// The time at the beginning that is not measured.
    pub warm_up_ns: Ns,
    /// The time that is measured.
    pub measured_ns: Ns,
}

struct Run {
    threads: Vec<ThreadId>,
    compute_ns: Ns,
    wait_ns: Ns,
    warm_bytes: u64,
    /// The CPU on which each compiler computed last.
    at: Vec<Option<CpuIndex>>,
    /// Whether each compiler has computed, and waits next.
    computed: Vec<bool>,
    waiting: Vec<bool>,
    done_ns: Vec<Ns>,
    length_ns: Vec<Ns>,
}

impl Build {
    /// `make -j` with so many CPUs. Guessed, so that utilisation is near the published 90 to 97 %:
    /// an eighth more processes than CPUs (a job is a shell, a driver, a compiler and an assembler,
    /// and `make` runs too) that compute for 1 ms and wait for 200 us. How much is warm is fitted:
    /// with it `SIS_NODE` loses as published on the largest of the machines, whose second-level
    /// caches hold 1 MiB.
    pub const fn new(cpus: usize) -> Self {
        Self {
            jobs: cpus + cpus / 8,
            compute_ns: 1_000_000,
            wait_ns: 200_000,
            warm_bytes: 272 << 10,
            warm_up_ns: 100_000_000,
            measured_ns: 1_000_000_000,
        }
    }

    /// Runs it: the rate is milliseconds of computing done a second. `None` where `stop` was set
    /// before it ended.
    pub fn run(&self, trial: &Trial<'_>) -> Option<Report> {
        let mut host = trial.host();
        let cpus = host.geometry().len();
        let all = *trial.machine.online();
        let threads = (0..self.jobs).map(|number| host.spawn(Kind::Issuer, number % cpus, all));
        let threads: Vec<ThreadId> = threads.collect();
        for number in 0..self.jobs {
            let delay_ns = host.rng.below(2_000_000);
            host.after(delay_ns, number as u64);
        }
        let mut run = Run {
            threads,
            compute_ns: self.compute_ns,
            wait_ns: self.wait_ns,
            warm_bytes: self.warm_bytes,
            at: vec![None; self.jobs],
            computed: vec![false; self.jobs],
            waiting: vec![true; self.jobs],
            done_ns: vec![0; self.jobs],
            length_ns: vec![0; self.jobs],
        };
        host.run(&mut run, self.warm_up_ns, trial.stop)?;
        let before = Before::of(&mut host);
        let done_before: Ns = run.done_ns.iter().sum();
        host.run(&mut run, self.warm_up_ns + self.measured_ns, trial.stop)?;
        let done_ns = run.done_ns.iter().sum::<Ns>() - done_before;
        Some(before.report(&mut host, done_ns / 1_000_000, &mut []))
    }
}

impl Model for Run {
    fn step(&mut self, host: &mut Host, thread: ThreadId) -> Step {
        let number = (thread.0 - self.threads[0].0) as usize;
        if std::mem::take(&mut self.computed[number]) {
            self.done_ns[number] += self.length_ns[number];
            self.waiting[number] = true;
            let wait_ns = host.rng.about(self.wait_ns, 90);
            host.after(wait_ns, number as u64);
        }
        if self.waiting[number] {
            return Step::Sleep;
        }
        self.computed[number] = true;
        self.length_ns[number] = host.rng.about(self.compute_ns, 90);
        let here = host.cpu_of(thread);
        let far = self.at[number].replace(here).map(|at| host.geometry().far(at, here));
        let cold_ns = far.map_or(0, |far| host.costs.cold(far)) * self.warm_bytes / (32 << 10);
        Step::Run(self.length_ns[number] + cold_ns)
    }

    fn event(&mut self, host: &mut Host, token: u64) {
        let number = token as usize;
        self.waiting[number] = false;
        let thread = self.threads[number];
        let cpu = host.cpu_of(thread);
        host.wake_from(thread, cpu, None);
    }
}
