//! Requests and responses of many pairs, each of a client and a server that mostly wait for each
//! other: netperf's `UDP_RR` on the loopback device.

use super::{Before, Report, Trial};
use crate::agenda::Ns;
use crate::host::{Host, Kind, Model, Step, ThreadId};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// How many pairs.
    pub pairs: usize,
    /// What a client or a server does for a message, the system calls included.
    pub message_ns: Ns,
    /// The time at the beginning that is not measured.
    pub warm_up_ns: Ns,
    /// The time that is measured.
    pub measured_ns: Ns,
}

struct Run {
    message_ns: Ns,
    /// Clients have even numbers, their servers the odd ones that follow.
    threads: Vec<ThreadId>,
    /// Messages that wait for a thread, and whether it is about to answer one.
    inbox: Vec<u32>,
    busy: Vec<bool>,
    sent_ns: Vec<Ns>,
    done: u64,
    latencies_ns: Vec<Ns>,
    measuring: bool,
}

impl Pairs {
    /// This many pairs, with messages as long as fits the published rate of a pair on Ice Lake.
    pub const fn new(pairs: usize) -> Self {
        Self { pairs, message_ns: 6_000, warm_up_ns: 20_000_000, measured_ns: 200_000_000 }
    }

    /// Runs it; `None` where `stop` was set before it ended.
    pub fn run(&self, trial: &Trial<'_>) -> Option<Report> {
        let mut host = trial.host();
        let cpus = host.geometry().len();
        let count = self.pairs * 2;
        let spread = |number: usize| number * cpus / count % cpus;
        let all = *trial.machine.online();
        let threads = (0..count).map(|number| host.spawn(Kind::Issuer, spread(number), all));
        let threads: Vec<ThreadId> = threads.collect();
        let mut inbox = vec![0; count];
        for number in (0..count).step_by(2) {
            inbox[number] = 1;
            let delay_ns = host.rng.below(1_000_000);
            host.after(delay_ns, number as u64);
        }
        let mut run = Run {
            message_ns: self.message_ns,
            threads,
            inbox,
            busy: vec![false; count],
            sent_ns: vec![0; count],
            done: 0,
            latencies_ns: Vec::new(),
            measuring: false,
        };
        host.run(&mut run, self.warm_up_ns, trial.stop)?;
        let before = Before::of(&mut host);
        let done_before = run.done;
        run.measuring = true;
        host.run(&mut run, self.warm_up_ns + self.measured_ns, trial.stop)?;
        Some(before.report(&mut host, run.done - done_before, &mut run.latencies_ns))
    }
}

impl Model for Run {
    fn step(&mut self, host: &mut Host, thread: ThreadId) -> Step {
        let number = (thread.0 - self.threads[0].0) as usize;
        if std::mem::take(&mut self.busy[number]) {
            let other = number ^ 1;
            let now_ns = host.now_ns();
            if number.is_multiple_of(2) {
                if self.measuring && self.sent_ns[number] > 0 {
                    self.latencies_ns.push(now_ns - self.sent_ns[number]);
                }
                self.done += 1;
                self.sent_ns[number] = now_ns;
            }
            self.inbox[other] += 1;
            host.wake(self.threads[other], thread);
        }
        if self.inbox[number] == 0 {
            return Step::Sleep;
        }
        self.inbox[number] -= 1;
        self.busy[number] = true;
        Step::Run(host.rng.about(self.message_ns, 20))
    }

    fn event(&mut self, host: &mut Host, token: u64) {
        let thread = self.threads[token as usize];
        let cpu = host.cpu_of(thread);
        host.wake_from(thread, cpu, None);
    }
}
