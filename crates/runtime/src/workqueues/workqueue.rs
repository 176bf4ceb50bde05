//! A workqueue: a name with attributes. It owns no threads. Workqueues with equal attributes share
//! queues.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use homing_sched::{Asked, Decided, Facts, HandOff, HandOffFacts, hand_off};
use homing_topology::{CpuId, NodeId};

use crate::dispatch::issuers::Place;
use crate::handles::futures;
use crate::handles::handle::JoinHandle;
use crate::item::{self, Batch, Item, Tag};
use crate::measure::books::Counters;
use crate::measure::clock::now_ns;
use crate::shared::Shared;
use crate::threads::affinity;
use crate::threads::local;
use crate::threads::rescuer::Rescuer;
#[cfg(doc)]
use crate::workqueues::builder::WorkqueueBuilder;
use crate::workqueues::builder::WorkqueueError;
use crate::workqueues::queueing::Origin;
use crate::workqueues::state::WorkqueueState;

/// A named stream of work with attributes. Cheap to clone; clones are the same workqueue.
///
/// Every function that queues may be called from any thread and never blocks. What the issuer did
/// before is visible to the item. Each item runs once, on a worker, in no promised order unless the
/// workqueue is [ordered](WorkqueueBuilder::ordered). A panic in an item goes to its handle. After
/// a shutdown, and while somebody else drains the workqueue, items are refused: their handles
/// return [`crate::JoinError::Cancelled`].
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::Workqueue;
///
/// let logs: Workqueue = runtime.workqueue("logs").build()?;
/// let same = logs.clone();
/// same.queue(|| ()).join()?;
/// assert_eq!((logs.name(), logs.counters().completed), ("logs", 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Workqueue {
    of: Arc<Of>,
}

struct Of {
    shared: Arc<Shared>,
    state: Arc<WorkqueueState>,
    /// Whether this keeps the workqueue in use, and does not only look at it.
    owns: bool,
}

impl Drop for Of {
    fn drop(&mut self) {
        if !self.owns {
            return;
        }
        self.shared.workqueues.let_go(&self.state);
        self.state.rescuer.get().into_iter().for_each(Rescuer::let_go);
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
        let (item, joined) = item::joined(self.tag(), work);
        self.push(None, item);
        JoinHandle::of_closure(joined)
    }

    /// Queues `work` that nobody waits for. This is cheaper than queueing it and dropping the
    /// handle. A panic in `work` is counted, and goes no further.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let log = runtime.workqueue("log").build()?;
    /// log.execute(|| println!("done some time later"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn execute<F: FnOnce() + Send + 'static>(&self, work: F) {
        self.push(None, item::lone(self.tag(), work));
    }

    /// [`Workqueue::execute`] for work that serves callers who were accepted before, whoever calls
    /// this. It is accepted even while the runtime ends or the workqueue drains. For libraries on
    /// top of the runtime, which do others' work.
    #[doc(hidden)]
    pub fn execute_for_accepted<F: FnOnce() + Send + 'static>(&self, work: F) {
        let item = item::lone(self.tag(), work);
        self.of.shared.push(&self.of.state, None, item, Origin::GoesOn);
    }

    /// Queues each of `works`, one behind the other. This is cheaper than queueing them one by one.
    /// One idle CPU is woken for the first item, and each CPU that begins an item wakes the next
    /// CPU.
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
        // One tag for all: a batch is counted in one step.
        let (mut items, tag) = (Batch::default(), self.tag());
        let handles = works.into_iter().map(|work| {
            let (item, joined) = item::joined(tag, work);
            items.push(item);
            JoinHandle::of_closure(joined)
        });
        let handles = handles.collect();
        self.of.shared.push_all(&self.of.state, &mut items);
        handles
    }

    /// [`Workqueue::queue_batch`] of work that nobody waits for.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let (send, receive) = std::sync::mpsc::channel();
    /// runtime.events().execute_batch((0..3).map(|number| {
    ///     let send = send.clone();
    ///     move || _ = send.send(number)
    /// }));
    /// drop(send);
    /// assert_eq!(receive.iter().sum::<u32>(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn execute_batch<F>(&self, works: impl IntoIterator<Item = F>)
    where
        F: FnOnce() + Send + 'static,
    {
        let (mut items, tag) = (Batch::default(), self.tag());
        works.into_iter().for_each(|work| items.push(item::lone(tag, work)));
        self.of.shared.push_all(&self.of.state, &mut items);
    }

    /// Queues `work` for the pod of `cpu`. A CPU without a worker uses the pod of its nearest
    /// neighbor.
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
        self.check_cpu(cpu)?;
        Ok(self.queue_at(cpu, work))
    }

    pub(crate) fn check_cpu(&self, cpu: CpuId) -> Result<(), WorkqueueError> {
        let online = self.of.shared.dispatch.layout().machine().online();
        if online.contains(cpu) {
            return Ok(());
        }
        Err(WorkqueueError::Cpu { cpu, online: online.to_string() })
    }

    /// Queues `work` for a CPU of a NUMA node: the issuing CPU if it is in the node, else an idle
    /// one, else the next in turn.
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
        let cpu = self.cpu_of_node(node)?;
        Ok(self.queue_at(cpu, work))
    }

    pub(crate) fn cpu_of_node(&self, node: NodeId) -> Result<CpuId, WorkqueueError> {
        self.of.shared.cpu_of_node(node).ok_or_else(|| {
            let machine = self.of.shared.dispatch.layout().machine();
            let nodes = machine.cpus().iter().flat_map(|cpu| cpu.numa_nodes.iter().map(|n| n.0));
            let nodes: BTreeSet<u32> = nodes.collect();
            WorkqueueError::Node { node: node.0, nodes: nodes.into_iter().collect() }
        })
    }

    fn queue_at<F, T>(&self, cpu: CpuId, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (item, joined) = item::joined(self.tag(), work);
        self.push(Some(cpu), item);
        JoinHandle::of_closure(joined)
    }

    /// Starts a future. Each time the future is woken, continuing it is an item of this workqueue.
    /// The item is at home where the future was woken, and is counted as an item.
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
        let (task, address) = futures::spawn(&self.of.shared, &self.of.state, future);
        JoinHandle::of_future(task, self.of.state.number, address)
    }

    /// Whether an item of about `item_ns` nanoseconds is worth queueing at present, or is better
    /// run where it arose. `issuer_has_more` says whether the issuer would do something else
    /// meanwhile.
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
        let mut facts = HandOffFacts {
            item_ns,
            issuer_has_more,
            spare_cpu_count: usize::MAX,
            spare_of_late: usize::MAX,
            idle_of_late: true,
        };
        // The machine's load is read only if the other facts speak for queueing.
        if hand_off(&facts) == HandOff::Queue {
            self.count_spare_cpus(&mut facts);
        }
        let decided = hand_off(&facts);
        if let Some(tape) = self.of.shared.dispatch.tape().running() {
            tape.note(Asked::HandOff(facts), Decided::HandOff(decided));
        }
        decided
    }

    /// CPUs that are idle, or that issuers and other processes leave to items.
    fn count_spare_cpus(&self, facts: &mut HandOffFacts) {
        let shared = &self.of.shared;
        let now_ns = now_ns();
        let (layout, active) = (shared.dispatch.layout(), shared.dispatch.active());
        if !local::is_worker_of(shared) {
            let cpu = local::running_on();
            let cache = || Place::Cache(layout.rings(cpu)[0].first().unwrap_or(cpu));
            let place = if affinity::is_pinned(now_ns) { Place::Cpu(cpu) } else { cache() };
            shared.issuers.note(place, now_ns);
        }
        let cpus = active.len();
        let items_ns = || shared.dispatch.slots().map(|(_, slot)| slot.books.busy_ns()).sum();
        let spare = shared.spare.count(items_ns);
        let places = LazyCell::new(|| {
            let cpus_of = |place| match place {
                Place::Cache(cpu) => layout.rings(cpu)[0].and(&active).len(),
                Place::Cpu(cpu) => usize::from(active.contains(cpu)),
            };
            shared.issuers.places_of_late(now_ns, cpus_of)
        });
        let left_by = |issuers: usize| {
            // If there are fewer issuers than CPUs, some CPUs are left in any case.
            let taken = if issuers < cpus { issuers } else { places.taken(cpus, issuers) };
            spare.idle.max(cpus.saturating_sub(taken).min(spare.idle_or_items))
        };
        facts.spare_cpu_count = left_by(shared.issuers.count(now_ns));
        facts.idle_of_late = spare.any_idle;
        // Asked for only if it decides, because each request comes by here.
        if facts.spare_cpu_count > 0 && !spare.any_idle {
            facts.spare_of_late = left_by(shared.issuers.count_of_late(now_ns));
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.of.state.name
    }

    /// What has happened to its items so far.
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

    pub(crate) fn new(shared: Arc<Shared>, state: Arc<WorkqueueState>) -> Self {
        Self { of: Arc::new(Of { shared, state, owns: true }) }
    }

    /// A handle that does not keep the workqueue in use.
    pub(crate) fn looked_at(shared: Arc<Shared>, state: Arc<WorkqueueState>) -> Self {
        Self { of: Arc::new(Of { shared, state, owns: false }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.of.shared
    }

    pub(crate) fn state(&self) -> &Arc<WorkqueueState> {
        &self.of.state
    }

    /// The tag of new items.
    pub(crate) fn tag(&self) -> Tag {
        self.of.state.tag()
    }

    /// Queues an item. Returns `false` if it was refused and has been cancelled.
    pub(crate) fn push(&self, cpu: Option<CpuId>, item: Item) -> bool {
        self.of.shared.push(&self.of.state, cpu, item, Origin::New)
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
