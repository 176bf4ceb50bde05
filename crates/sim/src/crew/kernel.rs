//! The kernel's unbound workqueues, as of the posting that brought affinity scopes (May 2023): a
//! pool of workers for each pod, one list and one wake-up per insertion, chained from there.

use std::collections::VecDeque;
use std::fmt;

use homing_topology::{CpuSet, Machine, Scope};

use super::{CrewCounts, Item, Next};
use crate::geometry::CpuIndex;
use crate::host::{Host, Kind, ThreadId};

/// A workqueue's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSettings {
    /// Which CPUs share a pool.
    pub scope: Scope,
    /// Whether the pool's workers may not leave its pod.
    pub strict: bool,
    /// Whether each item is assigned to a worker of its own as soon as it is queued, and that one
    /// sent to the issuer's CPU: `+LOCAL` of the posting (its patch 24).
    pub local: bool,
    /// How many items of each issuing CPU are active at a time; as many as there are CPUs, as
    /// dm-crypt says, where this is `None`.
    pub max_active: Option<usize>,
}

impl KernelSettings {
    /// Plain attributes.
    pub const fn new(scope: Scope, strict: bool, local: bool) -> Self {
        Self { scope, strict, local, max_active: None }
    }

    /// The five configurations of the published tables, in their order.
    pub const PUBLISHED: [Self; 5] = [
        Self::new(Scope::System, false, false),
        Self::new(Scope::Cache, false, false),
        Self::new(Scope::Cache, true, false),
        Self::new(Scope::System, false, true),
        Self::new(Scope::Cache, false, true),
    ];
}

/// As in the published tables: `CACHE+STRICT`.
impl fmt::Display for KernelSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scope.to_string().to_uppercase())?;
        f.write_str(if self.strict { "+STRICT" } else { "" })?;
        f.write_str(if self.local { "+LOCAL" } else { "" })
    }
}

/// See the module.
#[derive(Debug)]
pub struct Kernel {
    settings: KernelSettings,
    pools: Vec<Pool>,
    pool_of: Vec<usize>,
    workers: Vec<Option<Worker>>,
    issuing: Vec<Issuing>,
    max_active: usize,
    spread: usize,
    pub(super) counts: CrewCounts,
}

#[derive(Debug)]
struct Pool {
    pod: CpuSet,
    allowed: CpuSet,
    list: VecDeque<(Item, CpuIndex)>,
    /// The worker that was busy last is the last.
    idle: Vec<ThreadId>,
}

#[derive(Debug)]
struct Worker {
    pool: usize,
    is_idle: bool,
    /// The item that it was woken for, and the CPU that issued it.
    assigned: Option<(Item, CpuIndex)>,
    /// The issuing CPU of the item that it runs.
    running: Option<CpuIndex>,
}

#[derive(Debug, Default)]
struct Issuing {
    active: usize,
    inactive: VecDeque<Item>,
}

impl Kernel {
    pub(super) fn new(settings: KernelSettings, machine: &Machine) -> Self {
        let pods = machine.pods(settings.scope);
        let pool = |pod: &CpuSet| Pool {
            pod: *pod,
            allowed: if settings.strict { *pod } else { *machine.online() },
            list: VecDeque::new(),
            idle: Vec::new(),
        };
        let count = machine.cpus().len();
        let pod_of = |cpu: &homing_topology::Cpu| pods.pod_of(cpu.cpu).unwrap_or(0);
        Self {
            pools: pods.iter().map(pool).collect(),
            pool_of: machine.cpus().iter().map(pod_of).collect(),
            workers: Vec::new(),
            issuing: (0..count).map(|_| Issuing::default()).collect(),
            max_active: settings.max_active.unwrap_or(count),
            settings,
            spread: 0,
            counts: CrewCounts::default(),
        }
    }

    pub(super) fn owns(&self, thread: ThreadId) -> bool {
        self.workers.get(thread.0 as usize).is_some_and(Option::is_some)
    }

    fn worker(&mut self, thread: ThreadId) -> &mut Worker {
        self.workers[thread.0 as usize].as_mut().expect("it is a worker")
    }

    pub(super) fn queue(
        &mut self,
        host: &mut Host,
        item: Item,
        cpu: CpuIndex,
        by: Option<ThreadId>,
    ) {
        host.spend(by, cpu, host.costs.kernel_queue_ns.value);
        let issuing = &mut self.issuing[cpu];
        if issuing.active >= self.max_active || !issuing.inactive.is_empty() {
            issuing.inactive.push_back(item);
            return;
        }
        issuing.active += 1;
        let pool = self.pool_of[cpu];
        self.pools[pool].list.push_back((item, cpu));
        let from = by.map_or(cpu, |thread| host.cpu_of(thread));
        self.kick(host, pool, from, by);
    }

    /// Wakes an idle worker, if work waits.
    fn kick(&mut self, host: &mut Host, number: usize, from: CpuIndex, by: Option<ThreadId>) {
        // One idle worker has to be left.
        while self.settings.local && self.pools[number].idle.len() > 1 {
            let Some((item, issuer)) = self.pools[number].list.pop_front() else { return };
            let worker = self.pools[number].idle.pop().expect("there are several");
            let own = self.worker(worker);
            (own.assigned, own.is_idle) = (Some((item, issuer)), false);
            host.send_to(worker, issuer);
            self.wake(host, worker, from, by);
        }
        let pool = &self.pools[number];
        let Some((_, issuer)) = pool.list.front().copied() else { return };
        let worker = match pool.idle.last() {
            Some(worker) => *worker,
            None if self.workers.iter().flatten().any(|worker| worker.pool == number) => return,
            None => self.create(host, number, issuer),
        };
        let pool = &self.pools[number];
        let at = host.geometry().id(host.wake_cpu_of(worker));
        if host.is_asleep(worker) && !pool.pod.contains(at) {
            // Any CPU of the pod, in turn.
            self.spread += 1;
            let id = pool.pod.iter().nth(self.spread % pool.pod.len());
            if let Some(id) = id {
                host.send_to(worker, host.geometry().index(id));
            }
        }
        self.wake(host, worker, from, by);
    }

    fn wake(&mut self, host: &mut Host, worker: ThreadId, from: CpuIndex, by: Option<ThreadId>) {
        self.counts.wakes += u64::from(host.is_asleep(worker));
        host.wake_for(worker, by, from);
    }

    fn create(&mut self, host: &mut Host, pool: usize, cpu: CpuIndex) -> ThreadId {
        let allowed = self.pools[pool].allowed;
        let thread = host.spawn(Kind::Worker, cpu, allowed);
        let index = thread.0 as usize;
        self.workers.resize_with(self.workers.len().max(index + 1), || None);
        self.workers[index] = Some(Worker { pool, is_idle: true, assigned: None, running: None });
        self.pools[pool].idle.push(thread);
        thread
    }

    pub(super) fn next(&mut self, host: &mut Host, thread: ThreadId) -> Next {
        let worker = self.worker(thread);
        let number = worker.pool;
        let was_idle = std::mem::take(&mut worker.is_idle);
        let assigned = worker.assigned.take();
        if let Some(cpu) = worker.running.take() {
            self.counts.done += 1;
            self.activate_next(cpu);
        }
        if was_idle {
            let idle = &mut self.pools[number].idle;
            idle.retain(|id| *id != thread);
            // A worker begins only if another one is left to be woken.
            if idle.is_empty() && !self.pools[number].list.is_empty() {
                let cpu = host.cpu_of(thread);
                self.create(host, number, cpu);
                let ns = host.costs.kernel_create_ns.value;
                host.charge(thread, ns);
            }
        }
        let Some((item, cpu)) = assigned.or_else(|| self.pools[number].list.pop_front()) else {
            self.worker(thread).is_idle = true;
            self.pools[number].idle.push(thread);
            return Next::Rest;
        };
        let here = host.cpu_of(thread);
        if !self.pools[number].pod.contains(host.geometry().id(here)) {
            self.counts.pulled += 1;
        }
        self.worker(thread).running = Some(cpu);
        self.kick(host, number, here, Some(thread));
        Next::Begin(item)
    }

    /// An item of this issuing CPU is over, so the next one that was held back may run.
    fn activate_next(&mut self, cpu: CpuIndex) {
        let issuing = &mut self.issuing[cpu];
        match issuing.inactive.pop_front() {
            Some(item) => self.pools[self.pool_of[cpu]].list.push_back((item, cpu)),
            None => issuing.active -= 1,
        }
    }
}
