//! Reads and writes of an encrypted volume, many at a time: the published workqueue tables
//! (`fio --rw=randrw --verify=sha512` on dm-crypt).
//!
//! ```text
//! write: issuer fills and hashes ─▶ crypt item ─▶ write thread ─▶ disk ─▶ interrupt ─▶ issuer
//! read:  issuer ─▶ disk ─▶ interrupt ─▶ crypt item ─▶ issuer, which may use what it has read
//! ```
//!
//! fio verifies what a job has written once that job is over (its manual, `verify_backlog`). Of
//! what a mixed job reads meanwhile it looks at nothing (`do_io`: only at reads of its verify list,
//! or of a job that does not write).

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use homing_sched::HandOff;
use homing_topology::Machine;

use super::{Before, Report, Trial};
use crate::agenda::Ns;
use crate::crew::{CREW_TOKEN, Crew, Item, Next, Policy};
use crate::device::Ssd;
use crate::geometry::CpuIndex;
use crate::host::{Host, Kind, Model, Step, ThreadId};

/// Where issuers begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuerPlaces {
    /// Spread over the caches, as a new process is placed.
    Even,
    /// Anywhere.
    Random,
    /// All on one CPU, which they may not leave.
    Pinned(CpuIndex),
}

/// What is asked of the volume.
#[derive(Clone, Debug, PartialEq)]
pub struct CryptLoad {
    /// Issuing threads,
    pub jobs: usize,
    /// each with this many requests in flight,
    pub depth: usize,
    /// of this size.
    pub bytes: u64,
    /// How long an issuer fills and hashes what it writes,
    pub fill_ns: Ns,
    /// and uses what it has read; 0: it does not look at it.
    pub use_ns: Ns,
    /// How long a request is encrypted or decrypted.
    pub crypt_ns: Ns,
    /// How much these lengths vary, in per cent.
    pub spread_pct: u64,
    /// How many of a hundred requests are writes.
    pub writes_pct: u64,
    /// What moving its data from another cache costs, per mille of the costs table's 32 KiB.
    pub cold_per_mille: u64,
    /// Where issuers begin.
    pub places: IssuerPlaces,
    /// How many volumes the issuers use, by turns: each has a disk and one thread that hands all of
    /// its writes to it.
    pub volumes: usize,
    /// The disks.
    pub ssd: Ssd,
}

impl CryptLoad {
    /// 32 KiB requests, 64 in flight, half of them writes: the published load. The two lengths are
    /// fitted on the rows SYSTEM of the published tables.
    pub const fn published(jobs: usize) -> Self {
        Self {
            jobs,
            depth: 64,
            bytes: 32 << 10,
            fill_ns: 160_000,
            use_ns: 0,
            crypt_ns: 274_000,
            spread_pct: 5,
            writes_pct: 50,
            cold_per_mille: 1000,
            places: IssuerPlaces::Even,
            volumes: 1,
            ssd: Ssd::nvme(),
        }
    }
}

impl CryptLoad {
    /// The loads of the published tables: for how many CPUs each there is one job.
    pub const LOADS: [(&str, usize); 3] = [("HIGH", 1), ("MED", 3), ("LOW", 6)];

    /// The same load for a machine of `cpus` CPUs, with a job for every `each` of them. There are
    /// as many volumes for its CPUs as on the published machine: with one volume, its only writer
    /// or its disk would limit a large machine.
    #[must_use]
    pub fn on(self, cpus: usize, each: usize) -> Self {
        Self { jobs: (cpus / each).max(1), volumes: cpus.div_ceil(24), ..self }
    }
}

/// A load, and the policy that runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct DmCrypt {
    /// The load.
    pub load: CryptLoad,
    /// The policy by which requests are encrypted.
    pub policy: Policy,
    /// The least time at the beginning that is not measured.
    pub warm_up_ns: Ns,
    /// The time that is measured.
    pub measured_ns: Ns,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    issuer: usize,
    write: bool,
    /// The CPU that used its data last; `None`: the data comes from the disk.
    data_at: Option<CpuIndex>,
    submitted_ns: Ns,
    /// The CPU that gets its interrupt.
    irq_cpu: CpuIndex,
}

#[derive(Debug)]
struct Issuer {
    thread: ThreadId,
    /// Requests that have ended, reads and writes, in this order.
    ended: VecDeque<u32>,
    /// Reads that have arrived and are still encrypted.
    arrived: Vec<u32>,
    /// Requests that may be issued again.
    free: Vec<u32>,
    doing: Doing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Filling(u32),
    /// The issuer encrypts or decrypts the request itself.
    Crypting(u32),
    Using(u32),
}

#[derive(Debug)]
struct Volume {
    ssd: Ssd,
    /// The thread that hands writes to the disk, and the writes that wait for it.
    writer: ThreadId,
    to_write: VecDeque<u32>,
    writing: bool,
}

struct Run<'a> {
    load: &'a CryptLoad,
    crew: Crew,
    issuers: Vec<Issuer>,
    requests: Vec<Request>,
    volumes: Vec<Volume>,
    /// For each thread the item that it runs.
    running: Vec<Option<Item>>,
    done: u64,
    inline: u64,
    latencies: Vec<Ns>,
    measuring: bool,
}

/// How often all requests in flight are done before measuring begins. Measured with the published
/// load at high depth: the rate rises by half a per cent between 12 and 40 times, and no more up to
/// 160.
const WARM_UP_TURNS: u64 = 40;

/// The cost of handing a write to the disk.
const WRITER_NS: Ns = 1_500;
/// The cost of submitting a read, in addition to the issuer's own work.
const SUBMIT_NS: Ns = 2_000;

impl DmCrypt {
    /// Runs it; `None` where `stop` was set before it ended.
    pub fn run(&self, trial: &Trial<'_>) -> Option<Report> {
        let mut host = trial.host();
        let crew = Crew::new(&self.policy, &mut host, trial.machine);
        let mut run = Run::new(&self.load, crew, &mut host, trial.machine);
        let began_ns = self.warm_up(&mut host, &mut run, trial.stop)?;
        let before = Before::of(&mut host);
        let (crew_before, done_before) = (run.crew.counts(), run.done);
        let inline_before = run.inline;
        run.measuring = true;
        host.run(&mut run, began_ns + self.measured_ns, trial.stop)?;
        let report = before.report(&mut host, run.done - done_before, &mut run.latencies);
        let inline = run.inline - inline_before;
        Some(Report { crew: run.crew.counts().since(&crew_before), inline, ..report })
    }

    /// Runs until all that the issuers have in flight has been done many times. At first, requests
    /// in flight are distributed in another way than later. Returns the time.
    fn warm_up(&self, host: &mut Host, run: &mut Run<'_>, stop: &AtomicBool) -> Option<Ns> {
        let turns = WARM_UP_TURNS * (self.load.jobs * self.load.depth) as u64;
        let mut now_ns = 0;
        // If nothing gets done, there is nothing to wait for.
        while now_ns < self.warm_up_ns || run.done < turns && now_ns < 100 * self.warm_up_ns {
            now_ns += (self.warm_up_ns / 10).max(1_000_000);
            host.run(run, now_ns, stop)?;
        }
        Some(now_ns)
    }
}

impl<'a> Run<'a> {
    fn new(load: &'a CryptLoad, crew: Crew, host: &mut Host, machine: &Machine) -> Self {
        let all = *machine.online();
        let cpus = host.geometry().len();
        let volume = |_| Volume {
            ssd: load.ssd.clone(),
            writer: host.spawn(Kind::Worker, 0, all),
            to_write: VecDeque::new(),
            writing: false,
        };
        let volumes = (0..load.volumes.max(1)).map(volume).collect();
        let mut issuers = Vec::new();
        let mut requests = Vec::new();
        for number in 0..load.jobs {
            let (cpu, allowed) = match load.places {
                IssuerPlaces::Even => (even_place(host, number), all),
                IssuerPlaces::Random => (host.rng.below(cpus as u64) as usize, all),
                IssuerPlaces::Pinned(cpu) => {
                    (cpu, homing_topology::CpuSet::of(host.geometry().id(cpu)))
                }
            };
            let thread = host.spawn(Kind::Issuer, cpu, allowed);
            let first = requests.len() as u32;
            let request = Request {
                issuer: number,
                write: false,
                data_at: None,
                submitted_ns: 0,
                irq_cpu: cpu,
            };
            requests.extend(std::iter::repeat_n(request, load.depth));
            let free = (first..requests.len() as u32).rev().collect();
            issuers.push(Issuer {
                thread,
                ended: VecDeque::new(),
                arrived: Vec::new(),
                free,
                doing: Doing::Nothing,
            });
            // Issuers do not all begin at one instant.
            let delay_ns = host.rng.below(1_000_000);
            host.after(delay_ns, START | number as u64);
        }
        Self {
            load,
            crew,
            issuers,
            requests,
            volumes,
            running: Vec::new(),
            done: 0,
            inline: 0,
            latencies: Vec::new(),
            measuring: false,
        }
    }

    fn cold_ns(&self, host: &Host, data_at: Option<CpuIndex>, here: CpuIndex) -> Ns {
        let far = data_at.map(|at| host.geometry().far(at, here));
        far.map_or(0, |far| host.costs.cold(far)) * self.load.cold_per_mille / 1000
    }

    fn step_issuer(&mut self, host: &mut Host, number: usize) -> Step {
        let thread = self.issuers[number].thread;
        let here = host.cpu_of(thread);
        match std::mem::replace(&mut self.issuers[number].doing, Doing::Nothing) {
            Doing::Nothing => {}
            Doing::Filling(id) => {
                self.requests[id as usize].data_at = Some(here);
                if self.crew.hand_off(host, self.load.crypt_ns, thread) == HandOff::Inline {
                    return self.crypt_inline(host, number, id);
                }
                self.crew.queue(host, id, here, Some(thread));
            }
            Doing::Crypting(id) => {
                self.requests[id as usize].data_at = Some(here);
                self.crypted(host, id, thread);
            }
            Doing::Using(id) => self.over(host, id),
        }
        loop {
            if let Some(id) = self.issuers[number].arrived.pop() {
                // A worker may be idle by now.
                if self.crew.hand_off(host, self.load.crypt_ns, thread) == HandOff::Inline {
                    return self.crypt_inline(host, number, id);
                }
                self.crew.queue(host, id, here, Some(thread));
                continue;
            }
            // As in fio: no request that has ended is looked at before all that may be in flight
            // are.
            if let Some(id) = self.issuers[number].free.pop() {
                match self.begin(host, number, id) {
                    Some(step) => return step,
                    None => continue,
                }
            }
            let Some(id) = self.issuers[number].ended.pop_front() else {
                self.crew.issuer_waits(host, thread);
                return Step::Sleep;
            };
            let request = self.requests[id as usize];
            if request.write || self.load.use_ns == 0 {
                self.over(host, id);
                continue;
            }
            self.issuers[number].doing = Doing::Using(id);
            let cold_ns = self.cold_ns(host, request.data_at, here);
            let ns = host.rng.about(self.load.use_ns, self.load.spread_pct);
            return Step::Run(ns + cold_ns);
        }
    }

    /// An issuer makes a request. If it is a write, the issuer has to fill it first.
    fn begin(&mut self, host: &mut Host, number: usize, id: u32) -> Option<Step> {
        let thread = self.issuers[number].thread;
        let here = host.cpu_of(thread);
        let write = host.rng.below(100) < self.load.writes_pct;
        let now_ns = host.now_ns();
        let request = &mut self.requests[id as usize];
        request.write = write;
        request.submitted_ns = now_ns;
        request.irq_cpu = here;
        // A request always has the same buffer. What the disk writes into it comes from no cache.
        let was_at = request.data_at.take();
        if write {
            self.issuers[number].doing = Doing::Filling(id);
            let ns = host.rng.about(self.load.fill_ns, self.load.spread_pct);
            return Some(Step::Run(ns + self.cold_ns(host, was_at, here)));
        }
        host.charge(thread, SUBMIT_NS);
        self.submit(host, id, here);
        None
    }

    /// The issuer does the work itself: when every CPU is busy, queueing would only cost.
    fn crypt_inline(&mut self, host: &mut Host, number: usize, id: u32) -> Step {
        self.issuers[number].doing = Doing::Crypting(id);
        self.inline += 1;
        let here = host.cpu_of(self.issuers[number].thread);
        let cold_ns = self.cold_ns(host, self.requests[id as usize].data_at, here);
        Step::Run(host.rng.about(self.load.crypt_ns, self.load.spread_pct) + cold_ns)
    }

    fn submit(&mut self, host: &mut Host, id: u32, cpu: CpuIndex) {
        let request = &mut self.requests[id as usize];
        request.irq_cpu = cpu;
        let now_ns = host.now_ns();
        let volume = request.issuer % self.volumes.len();
        let ssd = &mut self.volumes[volume].ssd;
        let ends_ns = ssd.submit(now_ns, request.write, self.load.bytes);
        host.after(ends_ns - now_ns, u64::from(id));
    }

    /// A request is over: its issuer may use it for another one.
    fn over(&mut self, host: &Host, id: u32) {
        let request = &self.requests[id as usize];
        self.done += 1;
        if self.measuring {
            self.latencies.push(host.now_ns() - request.submitted_ns);
        }
        self.issuers[request.issuer].free.push(id);
    }

    fn step_writer(&mut self, host: &mut Host, volume: usize) -> Step {
        let volume = &mut self.volumes[volume];
        let here = host.cpu_of(volume.writer);
        let written =
            if std::mem::take(&mut volume.writing) { volume.to_write.pop_front() } else { None };
        volume.writing = !volume.to_write.is_empty();
        let next = if volume.writing { Step::Run(WRITER_NS) } else { Step::Sleep };
        if let Some(id) = written {
            self.submit(host, id, here);
        }
        next
    }

    /// `worker` has encrypted or decrypted the request.
    fn crypted(&mut self, host: &mut Host, id: Item, worker: ThreadId) {
        let cpu = host.cpu_of(worker);
        let request = &mut self.requests[id as usize];
        request.data_at = Some(cpu);
        let woken = if request.write {
            let volume = request.issuer % self.volumes.len();
            let volume = &mut self.volumes[volume];
            volume.to_write.push_back(id);
            volume.writer
        } else {
            let issuer = &mut self.issuers[request.issuer];
            issuer.ended.push_back(id);
            let thread = issuer.thread;
            self.crew.issuer_is_called(host, thread);
            thread
        };
        host.wake(woken, worker);
    }

    fn step_worker(&mut self, host: &mut Host, worker: ThreadId) -> Step {
        let index = worker.0 as usize;
        if self.running.len() <= index {
            self.running.resize(index + 1, None);
        }
        if let Some(item) = self.running[index].take() {
            self.crypted(host, item, worker);
        }
        match self.crew.next(host, worker) {
            Next::Rest => Step::Sleep,
            Next::Look(ns) => Step::Run(ns),
            Next::Begin(item) => {
                self.running[index] = Some(item);
                let here = host.cpu_of(worker);
                let cold_ns = self.cold_ns(host, self.requests[item as usize].data_at, here);
                let ns = host.rng.about(self.load.crypt_ns, self.load.spread_pct);
                Step::Run(ns + cold_ns)
            }
        }
    }
}

/// The token with which an issuer begins.
const START: u64 = 1 << 62;

impl Model for Run<'_> {
    fn step(&mut self, host: &mut Host, thread: ThreadId) -> Step {
        if self.crew.owns(thread) {
            return self.step_worker(host, thread);
        }
        let number = (thread.0 - self.volumes[0].writer.0) as usize;
        match number.checked_sub(self.volumes.len()) {
            None => self.step_writer(host, number),
            Some(issuer) => self.step_issuer(host, issuer),
        }
    }

    fn event(&mut self, host: &mut Host, token: u64) {
        if token & CREW_TOKEN != 0 {
            self.crew.event(host, token);
            return;
        }
        if token & START != 0 {
            let thread = self.issuers[(token & !START) as usize].thread;
            let cpu = host.cpu_of(thread);
            host.wake_from(thread, cpu, None);
            return;
        }
        let id = token as u32;
        let request = self.requests[id as usize];
        host.interrupt(request.irq_cpu);
        if request.write {
            let issuer = &mut self.issuers[request.issuer];
            issuer.ended.push_back(id);
            let thread = issuer.thread;
            self.crew.issuer_is_called(host, thread);
            host.wake_from(thread, request.irq_cpu, None);
            return;
        }
        let issuer = self.issuers[request.issuer].thread;
        if self.crew.hand_off(host, self.load.crypt_ns, issuer) == HandOff::Inline {
            self.issuers[request.issuer].arrived.push(id);
            host.wake_from(issuer, request.irq_cpu, None);
        } else {
            self.crew.queue(host, id, request.irq_cpu, None);
        }
    }
}

/// The CPU on which an issuer begins, as new processes are spread: the caches in turn, whole cores
/// first.
fn even_place(host: &Host, number: usize) -> CpuIndex {
    let caches = host.geometry().llcs();
    let cache = &caches[number % caches.len()];
    let turn = number / caches.len();
    // The first threads of all cores come before the second ones.
    let mut order = cache.clone();
    let place = |cpu: &CpuIndex| host.geometry().siblings(*cpu).iter().position(|at| at == cpu);
    order.sort_by_key(|cpu| (place(cpu), *cpu));
    order[turn % order.len()]
}
