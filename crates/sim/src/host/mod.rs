//! The host: CPUs on which threads run, one at a time, and the scheduler that says which.
//!
//! ```text
//! a device, a timer ─▶ Model::event ─┐
//!                                    ├─▶ wake ─▶ placement ─▶ a CPU's queue ─▶ it runs a segment
//! a segment is over ─▶ Model::step ──┘                ▲                            │
//!                        Run, Sleep                   └── balance: idle, tick ◀────┘
//! ```
//!
//! A thread is whatever [`Model::step`] says: run for so long, or sleep. Its segment takes longer
//! while a sibling of the core runs. What the scheduler does is Linux's fair scheduler as of 6.4,
//! from its published rules (`placement`, `balance`, `load`).

mod balance;
mod busiest;
mod load;
mod placement;
mod rules;
mod run;
mod tally;
mod wake_list;

use homing_topology::{CpuSet, Machine};

pub use rules::{HostModel, Rules};
pub use wake_list::SwQueue;

use crate::agenda::{Agenda, Ns};
use crate::costs::Costs;
use crate::geometry::{CpuIndex, Geometry};
use crate::rng::Rng;
use load::Average;
use tally::Tallies;
use wake_list::WakeLists;

/// A thread, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs for so long, alone on its core; then it is asked again.
    Run(Ns),
    /// Sleeps until somebody wakes it. One wake-up that came before is enough.
    Sleep,
}

/// What the threads of a simulation do.
pub trait Model {
    /// `thread` has run its segment, or was woken: what it does next.
    fn step(&mut self, host: &mut Host, thread: ThreadId) -> Step;

    /// An event that was entered with [`Host::after`] is due.
    fn event(&mut self, host: &mut Host, token: u64);
}

/// What a thread is to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program's thread.
    Issuer,
    /// A thread of the kernel, or of a runtime.
    Worker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The segment on this CPU is over, if nothing has changed since.
    Over(u16, u32),
    Tick(u16),
    Token(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    Queued,
    Running,
}

#[derive(Debug)]
struct Thread {
    allowed: CpuSet,
    /// The allowed CPU, if it is the only one.
    only_cpu: Option<CpuIndex>,
    state: State,
    /// The CPU that it is on, or was on last.
    cpu: CpuIndex,
    /// The CPU from which a CPU is searched for it when it is woken (`wake_cpu`).
    wake_cpu: CpuIndex,
    recent_cpu: CpuIndex,
    weight: u64,
    vruntime: i64,
    /// What is left of its segment; `None`: the model is to be asked for the next.
    left_ns: Option<Ns>,
    /// How long it has run in total.
    ran_ns: Ns,
    /// Extra work that it has to do before the model is asked.
    debt_ns: Ns,
    /// Whether it sleeps once its debt is paid.
    retires: bool,
    /// Whether it was woken while it was awake.
    wake_pending: bool,
    /// When it ran last on this CPU.
    warm_since_ns: Option<Ns>,
    average: Average,
    estimate: u64,
    /// Since when it has waited for its CPU.
    queued_ns: Ns,
    /// Its age in its queue: the lowest was there first.
    order: u64,
    last_wakee: Option<ThreadId>,
    wakee_flips: u64,
    flips_at_ns: Ns,
}

#[derive(Debug)]
struct Cpu {
    current: Option<ThreadId>,
    queue: Vec<ThreadId>,
    min_vruntime: i64,
    /// Up to when the running thread is accounted for.
    since_ns: Ns,
    /// When the current thread was picked.
    picked_ns: Ns,
    /// Per mille.
    speed: u64,
    stamp: u32,
    average: Average,
    /// The sum of the weights of the runnable threads.
    weight: u64,
    /// The sum of their estimates.
    estimate: u64,
    idle_since_ns: Option<Ns>,
    average_idle_ns: Ns,
    ticking: bool,
    busy_ns: Ns,
    /// Until when interrupts that came while it was idle use it: a picked thread begins then.
    stolen_until_ns: Ns,
    wants_schedule: bool,
    /// The state of balancing, for each of its domains.
    balance: Vec<BalanceState>,
}

#[derive(Clone, Debug)]
struct BalanceState {
    last_ns: Ns,
    interval_ns: Ns,
    failed: u32,
}

/// See the module.
pub struct Host {
    agenda: Agenda<Event>,
    geometry: Geometry,
    /// What things cost.
    pub costs: Costs,
    /// How the scheduler behaves.
    pub rules: Rules,
    /// For the model; the host itself needs none.
    pub rng: Rng,
    /// How long threads waited for locks of shared wakequeues, all together.
    pub lock_wait_ns: Ns,
    threads: Vec<Thread>,
    cpus: Vec<Cpu>,
    tallies: Tallies,
    /// CPUs that are to pick a thread anew.
    to_schedule: Vec<CpuIndex>,
    /// Whether some CPU has had more than one runnable thread lately.
    overloaded: bool,
    /// For each cache how many CPUs a search for an idle one may look at, and whether there may be
    /// an idle core.
    idle_scan: Vec<u64>,
    idle_cores: Vec<bool>,
    orders: u64,
    issuers: u64,
    next_idle_balance_ns: Ns,
    wake_lists: WakeLists,
    has_siblings: bool,
}

impl Host {
    /// A machine without threads.
    pub fn new(machine: &Machine, costs: Costs, rules: Rules, seed: u64) -> Self {
        let geometry = Geometry::new(machine);
        let cpus = (0..geometry.len()).map(|cpu| {
            let balance = |(number, _): &(usize, usize)| BalanceState {
                last_ns: 0,
                interval_ns: geometry.domain(*number).span.len() as Ns * 1_000_000,
                failed: 0,
            };
            Cpu {
                current: None,
                queue: Vec::new(),
                min_vruntime: 0,
                since_ns: 0,
                picked_ns: 0,
                speed: 1000,
                stamp: 0,
                average: Average::default(),
                weight: 0,
                estimate: 0,
                idle_since_ns: Some(0),
                average_idle_ns: rules.migration_cost_ns * 2,
                ticking: false,
                busy_ns: 0,
                stolen_until_ns: 0,
                wants_schedule: false,
                balance: geometry.domains_of(cpu).iter().map(balance).collect(),
            }
        });
        let cpus: Vec<Cpu> = cpus.collect();
        let llcs = geometry.llcs().len();
        let idle_scan = geometry.llcs().iter().map(|llc| llc.len() as u64).collect();
        let has_siblings = (0..geometry.len()).any(|cpu| geometry.siblings(cpu).len() > 1);
        let mut host = Self {
            agenda: Agenda::default(),
            wake_lists: WakeLists::default(),
            tallies: Tallies::new(&geometry),
            geometry,
            costs,
            rules,
            rng: Rng::new(seed),
            lock_wait_ns: 0,
            threads: Vec::new(),
            cpus,
            to_schedule: Vec::new(),
            overloaded: false,
            idle_scan,
            idle_cores: vec![has_siblings; llcs],
            orders: 0,
            issuers: 0,
            next_idle_balance_ns: 0,
            has_siblings,
        };
        host.lay_out_wake_lists();
        host
    }

    /// The machine.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The time.
    pub fn now_ns(&self) -> Ns {
        self.agenda.now_ns()
    }

    /// How many events have passed.
    pub fn events(&self) -> u64 {
        self.agenda.passed()
    }

    /// A new thread, asleep, that was last on `cpu` and may use `allowed`.
    ///
    /// An issuer's mask is narrowed as the rules say.
    pub fn spawn(&mut self, kind: Kind, cpu: CpuIndex, allowed: CpuSet) -> ThreadId {
        let id = ThreadId(self.threads.len() as u32);
        let confined = |cpus: &[CpuIndex]| -> CpuSet {
            cpus.iter().map(|cpu| self.geometry.id(*cpu)).collect()
        };
        let mut weight = 1024;
        let allowed = match kind {
            Kind::Issuer => {
                self.issuers += 1;
                if self.rules.issuers_weight > 0 {
                    weight = self.rules.issuers_weight;
                }
                if self.rules.pin_issuers {
                    confined(&[cpu])
                } else if self.rules.confine_issuers {
                    confined(&self.geometry.llcs()[self.geometry.llc_of(cpu)])
                } else {
                    allowed
                }
            }
            Kind::Worker => allowed,
        };
        let only_cpu = (allowed.len() == 1).then(|| allowed.first()).flatten();
        self.threads.push(Thread {
            allowed,
            only_cpu: only_cpu.map(|cpu| self.geometry.index(cpu)),
            state: State::Asleep,
            cpu,
            wake_cpu: cpu,
            recent_cpu: cpu,
            weight,
            vruntime: self.cpus[cpu].min_vruntime,
            left_ns: None,
            ran_ns: 0,
            debt_ns: 0,
            retires: false,
            wake_pending: false,
            warm_since_ns: None,
            average: Average::full(self.now_ns(), weight),
            estimate: 0,
            queued_ns: 0,
            order: 0,
            last_wakee: None,
            wakee_flips: 0,
            flips_at_ns: 0,
        });
        let average = Average::full(self.now_ns(), weight);
        self.cpus[cpu].average.attach(&average);
        id
    }

    /// The CPU that a thread is on, or was on last.
    pub fn cpu_of(&self, thread: ThreadId) -> CpuIndex {
        self.threads[thread.0 as usize].cpu
    }

    /// The only CPU that a thread may use, if it may use no other.
    pub fn only_cpu_of(&self, thread: ThreadId) -> Option<CpuIndex> {
        self.threads[thread.0 as usize].only_cpu
    }

    /// Says where a sleeping thread is to be looked for when it is woken, as if it had run there.
    pub fn send_to(&mut self, thread: ThreadId, cpu: CpuIndex) {
        let own = &mut self.threads[thread.0 as usize];
        if own.state == State::Asleep {
            own.wake_cpu = cpu;
        }
    }

    /// The CPU from which a CPU is searched for a thread when it is woken: that of its last run,
    /// unless it was sent elsewhere.
    pub fn wake_cpu_of(&self, thread: ThreadId) -> CpuIndex {
        self.threads[thread.0 as usize].wake_cpu
    }

    /// For how long a thread has run so far.
    pub fn ran_ns(&mut self, thread: ThreadId) -> Ns {
        self.account(self.cpu_of(thread));
        self.threads[thread.0 as usize].ran_ns
    }

    /// Whether a thread sleeps.
    pub fn is_asleep(&self, thread: ThreadId) -> bool {
        self.threads[thread.0 as usize].state == State::Asleep
    }

    /// Whether nothing runs on a CPU, and nothing waits for it.
    pub fn is_idle(&self, cpu: CpuIndex) -> bool {
        self.tallies.runnable(cpu) == 0
    }

    /// What runs on a CPU.
    pub fn current(&self, cpu: CpuIndex) -> Option<ThreadId> {
        self.cpus[cpu].current
    }

    /// How many CPUs are idle.
    pub fn idle_count(&self) -> usize {
        self.tallies.idle()
    }

    /// How many threads a CPU has to run, with the one that runs.
    pub fn runnable(&self, cpu: CpuIndex) -> usize {
        self.tallies.runnable(cpu)
    }

    /// Hands `token` to the model after a while.
    pub fn after(&mut self, delay_ns: Ns, token: u64) {
        let at_ns = self.now_ns() + delay_ns;
        self.agenda.at(at_ns, Event::Token(token));
    }

    /// Makes a thread work for this long in addition: it does something on behalf of others.
    pub fn charge(&mut self, thread: ThreadId, ns: Ns) {
        self.threads[thread.0 as usize].debt_ns += ns;
    }

    /// An interrupt on `cpu`: whatever runs there runs later.
    pub fn interrupt(&mut self, cpu: CpuIndex) {
        self.steal(cpu, self.costs.interrupt_ns.value);
    }

    /// Work for so long on behalf of a thread, or in an interrupt on `cpu`.
    pub fn spend(&mut self, by: Option<ThreadId>, cpu: CpuIndex, ns: Ns) {
        match by {
            Some(thread) => self.charge(thread, ns),
            None => self.steal(cpu, ns),
        }
    }

    fn steal(&mut self, cpu: CpuIndex, ns: Ns) {
        if let Some(thread) = self.cpus[cpu].current {
            self.account(cpu);
            self.threads[thread.0 as usize].debt_ns += ns;
            self.time_segment(cpu);
            return;
        }
        let now_ns = self.now_ns();
        let core = &mut self.cpus[cpu];
        core.stolen_until_ns = core.stolen_until_ns.max(now_ns) + ns;
        core.busy_ns += ns;
    }

    /// For how long each CPU has been busy.
    pub fn busy_ns(&mut self) -> Vec<Ns> {
        (0..self.cpus.len()).for_each(|cpu| self.account(cpu));
        self.cpus.iter().map(|cpu| cpu.busy_ns).collect()
    }
}
