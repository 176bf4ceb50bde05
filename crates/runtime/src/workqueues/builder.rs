//! How a workqueue is made.

use std::io;
use std::sync::Arc;

use homing_sched::{Affinity, Attributes, MAX_ACTIVE_MAX, Nice, PullCost};
use homing_topology::{CpuId, CpuSet, Scope};

use crate::shared::Shared;
use crate::threads::rescuer::Rescuer;
use crate::workqueues::gate::is_max_active;
use crate::workqueues::state::{Chosen, Kinds};
use crate::workqueues::workqueue::Workqueue;

/// Longest name, in bytes: the kernel's array, which has to hold a NUL too.
const NAME_LEN_MAX: usize = 32;

/// Why a workqueue refused a request.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::WorkqueueError;
///
/// let error = runtime.workqueue("a/b").build().unwrap_err();
/// assert!(matches!(error, WorkqueueError::Name { .. }));
/// let error = runtime.workqueue("logs").ordered().max_active(4).build().unwrap_err();
/// assert!(error.to_string().contains("cannot be both ordered and limited by max_active"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkqueueError {
    /// The name is not valid in the attribute tree.
    #[error(
        "{name:?} cannot be a workqueue name: use 1 to {NAME_LEN_MAX} letters, digits, '_', \
         '-' or '.', not beginning with '.'"
    )]
    Name {
        /// The name given.
        name: String,
    },
    /// There is no such CPU.
    #[error("CPU {cpu} is not online: use one of {online}")]
    Cpu {
        /// The CPU named.
        cpu: CpuId,
        /// The CPUs that there are.
        online: String,
    },
    /// There is no such NUMA node, or it has no CPU.
    #[error("NUMA node {node} has no CPU online: use one of {nodes:?}")]
    Node {
        /// The node named.
        node: u32,
        /// The nodes that there are.
        nodes: Vec<u32>,
    },
    /// None of the CPUs of a mask is online.
    #[error("none of the CPUs {cpus:?} of workqueue {name} is online: use some of {online}")]
    Cpumask {
        /// The workqueue.
        name: String,
        /// The CPUs named.
        cpus: String,
        /// The CPUs that there are.
        online: String,
    },
    /// `max_active` or `min_active` is out of range.
    #[error("{attribute} of workqueue {name} cannot be {value}: use {accepted}")]
    Limit {
        /// The workqueue.
        name: String,
        /// Which one of the two.
        attribute: &'static str,
        /// The value given.
        value: u32,
        /// The values that are accepted.
        accepted: String,
    },
    /// This kind of workqueue has no such attribute to set.
    #[error("workqueue {name} is {kind}: it has no {attribute} to set")]
    Fixed {
        /// The workqueue.
        name: String,
        /// What it is.
        kind: &'static str,
        /// The attribute.
        attribute: &'static str,
    },
    /// A workqueue cannot be both.
    #[error("workqueue {name} cannot be both {one} and {other}: leave out one of them")]
    Both {
        /// The workqueue.
        name: String,
        /// The first.
        one: &'static str,
        /// The second.
        other: &'static str,
    },
    /// More combinations of attributes have been in use than the runtime can tell apart.
    #[error(
        "workqueue {name} cannot have these attributes: this runtime has used 255 combinations of \
         scope, pull cost, strictness, nice, localization, mask and whether items block, and cannot \
         have more; use one of them"
    )]
    TooManyPools {
        /// The workqueue.
        name: String,
    },
    /// The rescuer of a `mem_reclaim` workqueue could not be created.
    #[error("the rescuer of workqueue {name} could not be created: {source}")]
    Rescuer {
        /// The workqueue.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// Items still ran at the deadline; the workqueue has been thawed.
    #[error(
        "workqueue {name} was not frozen in time, and has been thawed: {active} items still ran"
    )]
    FreezeTimeout {
        /// The workqueue.
        name: String,
        /// How many items had not ended.
        active: u64,
    },
    /// The runtime is shutting down: what is queued is to run first.
    #[error(
        "workqueue {name} cannot be frozen: its runtime is shutting down, and runs what is queued"
    )]
    ShuttingDown {
        /// The workqueue.
        name: String,
    },
}

/// How to make a workqueue. For each attribute that can be changed afterwards, [`Workqueue`] has a
/// setter of the same name.
///
/// ```
/// use homing_runtime::{Nice, PullCost, Runtime, Scope};
///
/// let runtime = Runtime::new()?;
/// let crypt = runtime
///     .workqueue("crypt")
///     .affinity_scope(Scope::Cache)
///     .affinity_strict(false)
///     .localize(true)
///     .pull_cost(PullCost::USUAL)
///     .nice(Nice::HIGHPRI)
///     .max_active(512)
///     .build()?;
/// assert_eq!(crypt.name(), "crypt");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct WorkqueueBuilder {
    shared: Arc<Shared>,
    name: String,
    kinds: Kinds,
    chosen: Chosen,
    auto: bool,
}

impl WorkqueueBuilder {
    pub(crate) fn new(shared: Arc<Shared>, name: &str) -> Self {
        let attributes = Attributes::new(Affinity { scope: Scope::CacheShard, strict: false });
        let chosen = Chosen { attributes, scope_is_default: true, cpumask: None, max_active: None };
        let (name, kinds) = (name.to_owned(), Kinds::default());
        Self { shared, name, kinds, chosen, auto: false }
    }

    /// How far items may spread before they leave home. Default: the runtime's
    /// [`default_affinity_scope`](crate::Runtime::set_default_affinity_scope), and each change of
    /// it.
    pub fn affinity_scope(mut self, scope: Scope) -> Self {
        self.chosen.attributes.affinity.scope = scope;
        self.chosen.scope_is_default = false;
        self
    }

    /// `affinity_scope=auto`: begins with the scope given, and switches to others that turn out to
    /// be better: see [`Workqueue::set_affinity_auto`]. Default: false.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let crypt = runtime.workqueue("crypt").affinity_auto(true).build()?;
    /// assert!(crypt.affinity_auto());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn affinity_auto(mut self, auto: bool) -> Self {
        self.auto = auto;
        self
    }

    /// Whether items never run outside their home pod, even if CPUs are idle. Default: false.
    pub fn affinity_strict(mut self, strict: bool) -> Self {
        self.chosen.attributes.affinity.strict = strict;
        self
    }

    /// The CPUs that items may run on. Those without a worker do not count; if none of them has a
    /// worker, items may run on any CPU. Default: all.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let first = homing_runtime::CpuSet::of(runtime.cpus().first().ok_or("no CPU")?);
    /// let logs = runtime.workqueue("logs").cpumask(first).build()?;
    /// assert_eq!(logs.cpumask(), Some(first));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cpumask(mut self, cpus: CpuSet) -> Self {
        self.chosen.cpumask = Some(cpus);
        self
    }

    /// Whether the issuing CPU comes before the rest of its pod: items wait at that CPU, and it is
    /// woken first if it is idle, unless the issuer is not a worker and runs there. Default: false.
    pub fn localize(mut self, localize: bool) -> Self {
        self.chosen.attributes.localize = localize;
        self
    }

    /// How expensive it is assumed to be to fetch an item from another pod: see
    /// [`Workqueue::set_pull_cost`]. Default: [`PullCost::USUAL`].
    pub fn pull_cost(mut self, cost: PullCost) -> Self {
        self.chosen.attributes.pull_cost = cost;
        self
    }

    /// The workqueue's share of a CPU's time when items of several workqueues wait for that CPU. No
    /// running item is interrupted: if all CPUs are busy, an item may wait as long as the longest
    /// of these runs, whatever its level. Default: [`Nice::NORMAL`].
    pub fn nice(mut self, nice: Nice) -> Self {
        self.chosen.attributes.nice = nice;
        self
    }

    /// [`Nice::HIGHPRI`]: the kernel's `WQ_HIGHPRI`. It interrupts nothing: see [`Self::nice`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let urgent = runtime.workqueue("urgent").highpri().build()?;
    /// assert_eq!(urgent.nice(), homing_runtime::Nice::HIGHPRI);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn highpri(self) -> Self {
        self.nice(Nice::HIGHPRI)
    }

    /// How many items may be active at a time: queued for a worker, or running. The limit is 1 to
    /// 2048. Other items wait, and become active in the order in which they were queued; home
    /// queues take turns. The NUMA nodes share the number in proportion to their CPUs, but each
    /// node has at least [`min_active`](Workqueue::set_min_active). In a [per-CPU](Self::per_cpu)
    /// workqueue, it is the number for each CPU. Default: no limit.
    ///
    /// An item that waits for others of its own workqueue ([`join`](crate::JoinHandle::join), a
    /// scope, a flush) keeps its place meanwhile. If as many such items wait as may be active, they
    /// wait for ever.
    pub fn max_active(mut self, max_active: u32) -> Self {
        self.chosen.max_active = Some(max_active);
        self
    }

    /// Runs one item at a time, in the order in which they were queued, whatever their CPU.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let log = runtime.workqueue("log").ordered().build()?;
    /// let (send, receive) = std::sync::mpsc::channel();
    /// for number in 0..100 {
    ///     let send = send.clone();
    ///     log.execute(move || _ = send.send(number));
    /// }
    /// drop(send);
    /// assert!(receive.iter().eq(0..100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ordered(mut self) -> Self {
        self.kinds.ordered = true;
        self
    }

    /// Items run on the CPU that they are issued from (or queued for), and nowhere else. They run
    /// one at a time, unless one blocks or uses its CPU for long. If a [work item](crate::Work) is
    /// queued for another CPU while it runs, it runs once more where it is. The kernel's
    /// `WQ_PERCPU`.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let rings = runtime.workqueue("rings").per_cpu().build()?;
    /// for cpu in runtime.cpus().iter() {
    ///     let here = rings.queue_on(cpu, rustix::thread::sched_getcpu)?;
    ///     assert_eq!(here.join()?, cpu.index());
    /// }
    /// assert!(rings.affinity().strict);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_cpu(mut self) -> Self {
        self.kinds.per_cpu = true;
        self
    }

    /// Items of a [per-CPU](Self::per_cpu) workqueue let other items use their CPU while they run.
    /// For items that are known to take long. The kernel's `WQ_CPU_INTENSIVE`.
    ///
    /// ```
    /// # let machine = homing_topology::Machine::from_grid("1x1x1")?;
    /// # let runtime = homing_runtime::Runtime::builder().on_machine(machine).build()?;
    /// let compress = runtime.workqueue("compress").per_cpu().cpu_intensive().build()?;
    /// let (end, ended) = std::sync::mpsc::channel();
    /// let long = compress.queue(move || while ended.try_recv().is_err() {});
    /// runtime.queue(move || end.send(())).join()??; // runs on the same CPU meanwhile
    /// long.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cpu_intensive(mut self) -> Self {
        self.kinds.cpu_intensive = true;
        self
    }

    /// For items that block: they wait for files, locks, names or other programs. Each runs as in
    /// [`blocking`](crate::blocking), whose limits hold: the number of threads has no bound without
    /// [`max_active`](Self::max_active). They wait in queues of their own. So they begin early if
    /// they use little of their CPU, and those that compute are taken in batches that are not cut
    /// short by items that block. One that computes shares its CPU with the thread that has got it
    /// meanwhile, also where others are idle.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let files = runtime.workqueue("files").blocking().max_active(64).build()?;
    /// let there = files.queue(|| std::fs::exists("/"));
    /// assert!(there.join()??);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocking(mut self) -> Self {
        self.kinds.blocking = true;
        self
    }

    /// The workqueue can be [frozen](Workqueue::freeze). The kernel's `WQ_FREEZABLE`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let scrub = runtime.workqueue("scrub").freezable().build()?;
    /// scrub.freeze(Duration::from_secs(1))?; // at most so long for the items that run
    /// let item = scrub.queue(|| 7); // waits
    /// scrub.thaw();
    /// assert_eq!(item.join()?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn freezable(mut self) -> Self {
        self.kinds.freezable = true;
        self
    }

    /// The workqueue makes progress even when no thread can be created, or when its items wait
    /// behind others that compute for long. It has a thread of its own, a rescuer, which is idle
    /// until then. For items that free memory or threads that others wait for. The kernel's
    /// `WQ_MEM_RECLAIM`.
    ///
    /// ```
    /// # use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
    /// # let machine = homing_topology::Machine::from_grid("1x1x1")?;
    /// # let refuse = Arc::new(AtomicBool::new(false));
    /// # let builder = homing_runtime::Runtime::builder().refuse_threads(Arc::clone(&refuse));
    /// # let runtime = builder.on_machine(machine).build()?;
    /// let writeback = runtime.workqueue("writeback").mem_reclaim().build()?;
    /// # refuse.store(true, Ordering::Relaxed);
    /// // The only worker waits for memory, and the system has no more threads:
    /// let (free, memory) = std::sync::mpsc::channel();
    /// let waits = runtime.queue(move || memory.recv());
    /// # while runtime.events().counters().started == 0 { std::thread::yield_now(); }
    /// writeback.queue(move || free.send("4 KiB")).join()??;
    /// assert_eq!(waits.join()??, "4 KiB");
    /// assert_eq!(writeback.counters().rescued, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mem_reclaim(mut self) -> Self {
        self.kinds.mem_reclaim = true;
        self
    }

    /// Makes the workqueue. If another workqueue has the name, a number is appended to it.
    ///
    /// # Errors
    /// [`WorkqueueError::Name`] if the name is empty, too long, begins with `.` or has other
    /// characters than ASCII letters, digits, `_`, `-` and `.`;
    /// [`WorkqueueError::Limit`], [`WorkqueueError::Cpumask`] and [`WorkqueueError::Both`] if
    /// values or kinds are not accepted; [`WorkqueueError::TooManyPools`] if too many different
    /// attributes are in use; [`WorkqueueError::Rescuer`] if the rescuer cannot be created.
    pub fn build(mut self) -> Result<Workqueue, WorkqueueError> {
        let fits = (1..=NAME_LEN_MAX).contains(&self.name.len())
            && !self.name.starts_with('.')
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if !fits {
            return Err(WorkqueueError::Name { name: self.name });
        }
        self.check_kinds()?;
        let shared = self.shared;
        if let Some(value) = self.chosen.max_active.filter(|max| !is_max_active(*max)) {
            return Err(bad_max_active(self.name, value));
        }
        if let Some(cpus) = self.chosen.cpumask {
            check_cpumask(&shared, &self.name, &cpus)?;
        }
        let Kinds { ordered, per_cpu, freezable, mem_reclaim, .. } = self.kinds;
        if per_cpu {
            self.chosen.attributes.affinity = Affinity { scope: Scope::Cpu, strict: true };
            self.chosen.scope_is_default = false;
        }
        if ordered {
            self.chosen.max_active = Some(1);
        }
        let gated = freezable || self.chosen.max_active.is_some();
        let pool_with = |chosen: &Chosen| shared.pool_with(self.kinds, chosen);
        let state = shared.workqueues.add(&self.name, self.kinds, self.chosen, pool_with);
        let Some(state) = state else {
            return Err(WorkqueueError::TooManyPools { name: self.name });
        };
        let workqueue = Workqueue::new(Arc::clone(&shared), Arc::clone(&state));
        shared.refuse_outsiders_if_ending(&state);
        if gated {
            workqueue.gate();
        }
        if freezable {
            shared.freeze_if_all_are(&state);
        }
        if mem_reclaim {
            let rescuer = Rescuer::start(&shared, &state)
                .map_err(|source| WorkqueueError::Rescuer { name: self.name.clone(), source })?;
            let rescuer = state.rescuer.get_or_init(|| rescuer);
            // Only the rescuers that existed when the runtime ended have been told.
            if shared.is_closed() {
                rescuer.stop();
            }
        }
        if self.auto {
            workqueue.set_affinity_auto(true)?;
        }
        Ok(workqueue)
    }

    fn check_kinds(&self) -> Result<(), WorkqueueError> {
        let Kinds { ordered, per_cpu, .. } = self.kinds;
        let both = [
            (ordered, "ordered", per_cpu, "per-CPU"),
            (ordered, "ordered", self.chosen.max_active.is_some(), "limited by max_active"),
            (per_cpu, "per-CPU", !self.chosen.scope_is_default, "of another affinity scope"),
            (per_cpu, "per-CPU", self.chosen.cpumask.is_some(), "limited to a cpumask"),
            (per_cpu, "per-CPU", self.auto, "of an automatic affinity scope"),
        ];
        let wrong = both.into_iter().find(|(one, _, other, _)| *one && *other);
        wrong.map_or(Ok(()), |(_, one, _, other)| {
            Err(WorkqueueError::Both { name: self.name.clone(), one, other })
        })
    }
}

pub(crate) fn bad_max_active(name: String, value: u32) -> WorkqueueError {
    let accepted = format!("1 to {MAX_ACTIVE_MAX}, or no limit");
    WorkqueueError::Limit { name, attribute: "max_active", value, accepted }
}

pub(crate) fn check_cpumask(
    shared: &Shared,
    name: &str,
    cpus: &CpuSet,
) -> Result<(), WorkqueueError> {
    let online = shared.dispatch.layout().machine().online();
    if online.intersects(cpus) {
        return Ok(());
    }
    Err(WorkqueueError::Cpumask {
        name: name.to_owned(),
        cpus: cpus.to_string(),
        online: online.to_string(),
    })
}
