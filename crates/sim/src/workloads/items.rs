//! Threads that queue items, and wait for the oldest when enough are in flight: a load that any
//! machine can also run for real.

use std::collections::VecDeque;

use super::{Before, Report, Trial};
use crate::agenda::Ns;
use crate::crew::{CREW_TOKEN, Crew, Item, Next, Policy};
use crate::host::{Host, Kind, Model, Step, ThreadId};

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Items {
    /// Threads that queue.
    pub issuers: usize,
    /// Items that each has on the way at a time.
    pub depth: usize,
    /// How long an item runs,
    pub item_ns: Ns,
    /// and how long an issuer works for each.
    pub issuer_ns: Ns,
    /// The policy that runs them.
    pub policy: Policy,
    /// The time at the beginning that is not measured.
    pub warm_up_ns: Ns,
    /// The time that is measured.
    pub measured_ns: Ns,
}

struct Issuer {
    thread: ThreadId,
    on_way: VecDeque<Item>,
    preparing: bool,
}

struct Run<'a> {
    setup: &'a Items,
    crew: Crew,
    issuers: Vec<Issuer>,
    /// For each item, whether it is over. Numbers are used again.
    over: Vec<bool>,
    issuer_of: Vec<usize>,
    free: Vec<Item>,
    running: Vec<Option<Item>>,
    done: u64,
}

impl Items {
    /// Runs it; `None` where `stop` was set before it ended.
    pub fn run(&self, trial: &Trial<'_>) -> Option<Report> {
        let mut host = trial.host();
        let crew = Crew::new(&self.policy, &mut host, trial.machine);
        let cpus = host.geometry().len();
        let all = *trial.machine.online();
        let issuers = (0..self.issuers).map(|number| Issuer {
            thread: host.spawn(Kind::Issuer, number % cpus, all),
            on_way: VecDeque::new(),
            preparing: false,
        });
        let issuers: Vec<Issuer> = issuers.collect();
        for (number, _) in issuers.iter().enumerate() {
            let delay_ns = host.rng.below(100_000);
            host.after(delay_ns, number as u64);
        }
        let items = self.issuers * self.depth;
        let mut run = Run {
            setup: self,
            crew,
            issuers,
            over: vec![false; items],
            issuer_of: vec![0; items],
            free: (0..items as Item).collect(),
            running: Vec::new(),
            done: 0,
        };
        host.run(&mut run, self.warm_up_ns, trial.stop)?;
        let before = Before::of(&mut host);
        let (crew_before, done_before) = (run.crew.counts(), run.done);
        host.run(&mut run, self.warm_up_ns + self.measured_ns, trial.stop)?;
        let report = before.report(&mut host, run.done - done_before, &mut []);
        Some(Report { crew: run.crew.counts().since(&crew_before), ..report })
    }
}

impl Run<'_> {
    fn step_issuer(&mut self, host: &mut Host, number: usize) -> Step {
        let thread = self.issuers[number].thread;
        if std::mem::take(&mut self.issuers[number].preparing) {
            let item = self.free.pop().expect("there are as many as may be on the way");
            self.over[item as usize] = false;
            self.issuer_of[item as usize] = number;
            self.issuers[number].on_way.push_back(item);
            let here = host.cpu_of(thread);
            self.crew.queue(host, item, here, Some(thread));
        }
        let issuer = &mut self.issuers[number];
        if issuer.on_way.len() == self.setup.depth {
            let oldest = issuer.on_way[0];
            if !self.over[oldest as usize] {
                self.crew.issuer_waits(host, thread);
                return Step::Sleep;
            }
            issuer.on_way.pop_front();
            self.free.push(oldest);
        }
        issuer.preparing = true;
        Step::Run(host.rng.about(self.setup.issuer_ns, 2))
    }

    fn step_worker(&mut self, host: &mut Host, worker: ThreadId) -> Step {
        let index = worker.0 as usize;
        self.running.resize(self.running.len().max(index + 1), None);
        if let Some(item) = self.running[index].take() {
            self.done += 1;
            self.over[item as usize] = true;
            let issuer = &self.issuers[self.issuer_of[item as usize]];
            if issuer.on_way.len() == self.setup.depth && issuer.on_way[0] == item {
                self.crew.issuer_is_called(host, issuer.thread);
                host.wake(issuer.thread, worker);
            }
        }
        match self.crew.next(host, worker) {
            Next::Rest => Step::Sleep,
            Next::Look(ns) => Step::Run(ns),
            Next::Begin(item) => {
                self.running[index] = Some(item);
                Step::Run(host.rng.about(self.setup.item_ns, 2))
            }
        }
    }
}

impl Model for Run<'_> {
    fn step(&mut self, host: &mut Host, thread: ThreadId) -> Step {
        if self.crew.owns(thread) {
            return self.step_worker(host, thread);
        }
        let first = self.issuers[0].thread.0;
        self.step_issuer(host, (thread.0 - first) as usize)
    }

    fn event(&mut self, host: &mut Host, token: u64) {
        if token & CREW_TOKEN != 0 {
            self.crew.event(host, token);
            return;
        }
        let thread = self.issuers[token as usize].thread;
        let cpu = host.cpu_of(thread);
        host.wake_from(thread, cpu, None);
    }
}
