//! A workqueue: a name with attributes. It owns no threads; queues are shared by equal attributes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use homing_sched::{Affinity, Attributes, Auto, HandOff, HandOffFacts, Priority, hand_off};
use homing_topology::{CpuId, NodeId, Scope};

use crate::books::Counters;
use crate::futures;
use crate::handle::JoinHandle;
use crate::item::{self, Batch, Item};
use crate::registry::WorkqueueState;
use crate::shared::Shared;
use crate::spare::SpareCpus;

/// Longest name, in bytes: the kernel's.
const NAME_LEN_MAX: usize = 32;

/// What a workqueue does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkqueueError {
    /// The name does not do as a name in the attribute tree.
    #[error(
        "{name:?} does not do as a workqueue name: use 1 to {NAME_LEN_MAX} letters, digits, '_', \
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
        /// Those there are.
        online: String,
    },
    /// There is no such NUMA node, or it has no CPU.
    #[error("NUMA node {node} has no CPU online: use one of {nodes:?}")]
    Node {
        /// The node named.
        node: u32,
        /// Those there are.
        nodes: Vec<u32>,
    },
}

/// How to make a workqueue. All but the name can be changed afterwards.
///
/// ```
/// use homing_runtime::{Priority, Runtime, Scope};
///
/// let runtime = Runtime::new()?;
/// let crypt = runtime
///     .workqueue("crypt")
///     .affinity_scope(Scope::Cache)
///     .affinity_strict(false)
///     .localize(true)
///     .priority(Priority::High)
///     .build()?;
/// assert_eq!(crypt.name(), "crypt");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct WorkqueueBuilder {
    shared: Arc<Shared>,
    spare: Arc<SpareCpus>,
    name: String,
    attributes: Attributes,
    auto: bool,
}

impl WorkqueueBuilder {
    pub(crate) fn new(shared: Arc<Shared>, spare: Arc<SpareCpus>, name: &str) -> Self {
        // The kernel's default since 7.1.
        let attributes = Attributes::new(Affinity { scope: Scope::CacheShard, strict: false });
        Self { shared, spare, name: name.to_owned(), attributes, auto: false }
    }

    /// How far items may spread before they leave home. Default: [`Scope::CacheShard`].
    pub fn affinity_scope(mut self, scope: Scope) -> Self {
        self.attributes.affinity.scope = scope;
        self
    }

    /// `affinity_scope=auto`: begins with the scope given, and goes over to others that turn out
    /// better: see [`Workqueue::set_affinity_auto`]. Default: false.
    pub fn affinity_auto(mut self, auto: bool) -> Self {
        self.auto = auto;
        self
    }

    /// Whether items never run outside their home pod, even where CPUs are idle. Default: false.
    pub fn affinity_strict(mut self, strict: bool) -> Self {
        self.attributes.affinity.strict = strict;
        self
    }

    /// Whether items wait at the issuing CPU before the rest of their pod. Default: false.
    pub fn localize(mut self, localize: bool) -> Self {
        self.attributes.localize = localize;
        self
    }

    /// Which workqueues a worker looks at first. Default: [`Priority::Normal`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.attributes.priority = priority;
        self
    }

    /// Makes the workqueue.
    ///
    /// # Errors
    /// [`WorkqueueError::Name`] where the name is empty, too long or has other characters.
    pub fn build(self) -> Result<Workqueue, WorkqueueError> {
        let fits = (1..=NAME_LEN_MAX).contains(&self.name.len())
            && !self.name.starts_with('.')
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if !fits {
            return Err(WorkqueueError::Name { name: self.name });
        }
        let shared = self.shared;
        let pool = shared.dispatch.pool_with(self.attributes);
        let state = shared.workqueues.add(&self.name, self.attributes, pool);
        let workqueue = Workqueue { of: Arc::new(Of { shared, spare: self.spare, state }) };
        workqueue.set_affinity_auto(self.auto);
        Ok(workqueue)
    }
}

/// A named stream of work with attributes. Cheap to clone; clones are the same workqueue.
///
/// Every function that queues may be called from any thread and never blocks. What the issuer did
/// before is visible to the item. Items run once each, in no promised order, on a worker; a panic
/// in one goes to its handle. After a shutdown handles return [`crate::JoinError::Cancelled`].
#[derive(Clone)]
pub struct Workqueue {
    of: Arc<Of>,
}

struct Of {
    shared: Arc<Shared>,
    spare: Arc<SpareCpus>,
    state: Arc<WorkqueueState>,
}

impl Drop for Of {
    fn drop(&mut self) {
        self.state.let_go.store(true, Ordering::Release);
    }
}

impl Workqueue {
    /// Queues `work` for the pod of the issuing CPU.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let sums = runtime.workqueue("sums").build()?;
    /// let sum = sums.queue(|| (1..=100_u32).sum::<u32>());
    /// assert_eq!(sum.join()?, 5050);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue<F, T>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (item, joined) = item::joined(self.number(), work);
        self.push(None, item);
        JoinHandle::of_closure(joined)
    }

    /// Queues `work` that nobody waits for: cheaper than a handle that is let go. A panic in it is
    /// counted, and goes no further.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let log = runtime.workqueue("log").build()?;
    /// log.execute(|| println!("done some time later"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn execute<F: FnOnce() + Send + 'static>(&self, work: F) {
        self.push(None, item::lone(self.number(), work));
    }

    /// Queues each of `works`, one behind the other: cheaper than one by one. One idle CPU is
    /// woken for the first, and each that begins one wakes the next.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let squares = runtime.workqueue("squares").build()?;
    /// let handles = squares.queue_batch((1..=3_u32).map(|number| move || number * number));
    /// let sum: u32 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    /// assert_eq!(sum, 14);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_batch<F, T>(&self, works: impl IntoIterator<Item = F>) -> Vec<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let mut items = Batch::default();
        let handles = works.into_iter().map(|work| {
            let (item, joined) = item::joined(self.number(), work);
            items.push(item);
            JoinHandle::of_closure(joined)
        });
        let handles = handles.collect();
        self.of.shared.push_all(&self.of.state, None, items);
        handles
    }

    /// [`Workqueue::queue_batch`] of work that nobody waits for.
    pub fn execute_batch<F>(&self, works: impl IntoIterator<Item = F>)
    where
        F: FnOnce() + Send + 'static,
    {
        let mut items = Batch::default();
        works.into_iter().for_each(|work| items.push(item::lone(self.number(), work)));
        self.of.shared.push_all(&self.of.state, None, items);
    }

    /// Queues `work` for the pod of `cpu`. A CPU without a worker has its nearest neighbour's.
    ///
    /// # Errors
    /// [`WorkqueueError::Cpu`] where the machine has no such CPU online; nothing is queued.
    ///
    /// ```
    /// # use homing_runtime::{CpuId, Runtime};
    /// # let runtime = Runtime::new()?;
    /// let first = runtime.cpus().first().ok_or("no CPU")?;
    /// assert_eq!(runtime.events().queue_on(first, || 1)?.join()?, 1);
    /// let error = runtime.events().queue_on(CpuId::new(1023).ok_or("?")?, || 1).unwrap_err();
    /// assert!(error.to_string().contains("1023"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_on<F, T>(&self, cpu: CpuId, work: F) -> Result<JoinHandle<T>, WorkqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let online = self.of.shared.dispatch.layout().machine().online();
        if !online.contains(cpu) {
            return Err(WorkqueueError::Cpu { cpu, online: online.to_string() });
        }
        Ok(self.queue_at(cpu, work))
    }

    /// Queues `work` for a CPU of a NUMA node: the issuing one if it is there, else one that is
    /// idle, else the next in turn.
    ///
    /// # Errors
    /// [`WorkqueueError::Node`] where no CPU of such a node is online; nothing is queued.
    ///
    /// ```
    /// # use homing_runtime::{NodeId, Runtime};
    /// # let runtime = Runtime::new()?;
    /// let node = runtime.machine().cpus()[0].numa_nodes[0];
    /// assert_eq!(runtime.events().queue_on_node(node, || 1)?.join()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_on_node<F, T>(
        &self,
        node: NodeId,
        work: F,
    ) -> Result<JoinHandle<T>, WorkqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let cpu = self.of.shared.cpu_of_node(node).ok_or_else(|| {
            let machine = self.of.shared.dispatch.layout().machine();
            let nodes = machine.cpus().iter().flat_map(|cpu| cpu.numa_nodes.iter().map(|n| n.0));
            let nodes: BTreeSet<u32> = nodes.collect();
            WorkqueueError::Node { node: node.0, nodes: nodes.into_iter().collect() }
        })?;
        Ok(self.queue_at(cpu, work))
    }

    fn queue_at<F, T>(&self, cpu: CpuId, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (item, joined) = item::joined(self.number(), work);
        self.push(Some(cpu), item);
        JoinHandle::of_closure(joined)
    }

    /// Starts a future. Each time it is woken, going on with it is an item of this workqueue, at
    /// home where it was woken, and is counted as one.
    ///
    /// A future that finds many handles finished in a row gives way to other items in between.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let requests = runtime.workqueue("requests").build()?;
    /// let inner = requests.clone();
    /// let sum = requests.spawn(async move { inner.queue(|| 40).await.unwrap_or(0) + 2 });
    /// assert_eq!(sum.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        JoinHandle::of_future(futures::spawn(&self.of.shared, &self.of.state, future))
    }

    /// Whether an item of about `item_ns` nanoseconds is worth queueing at present, or better run
    /// where it arose. `issuer_has_more`: the issuer would do something else meanwhile.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::HandOff;
    ///
    /// // An item of 1 us is never worth a hop to another CPU.
    /// assert_eq!(runtime.events().hand_off(1_000, true), HandOff::Inline);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hand_off(&self, item_ns: u64, issuer_has_more: bool) -> HandOff {
        let mut facts = HandOffFacts { item_ns, issuer_has_more, spare_cpu_count: usize::MAX };
        // The machine's load is looked at only where the rest speaks for queueing.
        if hand_off(&facts) == HandOff::Queue {
            let idle = self.of.shared.dispatch.idle_cpus().len();
            facts.spare_cpu_count = self.of.spare.count().min(idle);
        }
        hand_off(&facts)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.of.state.name
    }

    /// The scope and strictness in force.
    pub fn affinity(&self) -> Affinity {
        self.of.state.attributes().affinity
    }

    /// Whether items wait at the issuing CPU before the rest of their pod.
    pub fn localize(&self) -> bool {
        self.of.state.attributes().localize
    }

    /// Which workqueues a worker looks at first.
    pub fn priority(&self) -> Priority {
        self.of.state.attributes().priority
    }

    /// Changes the scope, for items queued from now on. Those already queued stay where they are
    /// and are served from there: none is lost or delayed.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::Scope;
    ///
    /// let crypt = runtime.workqueue("crypt").affinity_scope(Scope::Cache).build()?;
    /// crypt.set_affinity_scope(Scope::Numa);
    /// assert_eq!(crypt.affinity().scope, Scope::Numa);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_scope(&self, scope: Scope) {
        self.set_affinity_auto(false);
        self.change(|attributes| attributes.affinity.scope = scope);
    }

    /// Whether the scope is left to what is measured.
    pub fn affinity_auto(&self) -> bool {
        self.of.state.is_auto()
    }

    /// Leaves the choice of the scope to what is measured, or fixes it as it is.
    ///
    /// A tenth of a second and 256 items at a time the runtime measures how long items run and
    /// wait. One such window in 16 it tries the next wider or narrower scope, and goes over to it
    /// if items cost 5 % less in two such windows running. [`Workqueue::set_affinity_scope`] ends
    /// this.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let requests = runtime.workqueue("requests").affinity_auto(true).build()?;
    /// assert!(requests.affinity_auto());
    /// requests.set_affinity_scope(homing_runtime::Scope::Cache);
    /// assert!(!requests.affinity_auto());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_auto(&self, auto: bool) {
        let machine = self.of.shared.dispatch.layout().machine();
        self.of.state.set_auto(auto.then(|| Auto::new(machine, self.affinity().scope)));
    }

    /// Changes the strictness, for items queued from now on.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// logs.set_affinity_strict(true);
    /// assert!(logs.affinity().strict);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_strict(&self, strict: bool) {
        self.change(|attributes| attributes.affinity.strict = strict);
    }

    /// Changes localization, for items queued from now on.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// logs.set_localize(true);
    /// assert!(logs.localize());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_localize(&self, localize: bool) {
        self.change(|attributes| attributes.localize = localize);
    }

    /// Changes the priority, for items queued from now on.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::Priority;
    ///
    /// let urgent = runtime.workqueue("urgent").build()?;
    /// urgent.set_priority(Priority::High);
    /// assert_eq!(urgent.priority(), Priority::High);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_priority(&self, priority: Priority) {
        self.change(|attributes| attributes.priority = priority);
    }

    fn change(&self, change: impl FnOnce(&mut Attributes)) {
        let change = |mut attributes| {
            change(&mut attributes);
            attributes
        };
        self.of.state.change(change, |attributes| self.of.shared.dispatch.pool_with(attributes));
    }

    /// What has happened so far.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// logs.queue(|| ()).join()?;
    /// let counters = logs.counters();
    /// assert_eq!((counters.queued, counters.completed, counters.in_flight()), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.of.state.counters()
    }

    pub(crate) fn number(&self) -> u32 {
        self.of.state.number
    }

    pub(crate) fn push(&self, cpu: Option<CpuId>, item: Item) {
        self.of.shared.push(&self.of.state, cpu, item);
    }
}

impl fmt::Debug for Workqueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workqueue")
            .field("name", &self.name())
            .field("attributes", &self.of.state.attributes())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
