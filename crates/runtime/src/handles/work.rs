//! Work items that are queued again and again: the kernel's `work_struct` and `delayed_work`.

use std::any::type_name;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use homing_topology::{CpuId, NodeId};

use crate::handles::waits::Waits;
use crate::item::{Awaited, Call, Cancelled, Context, Instance, Item, Node, SharedNode, place_of};
use crate::measure::clock::{nanoseconds, now_ns};
use crate::monitor::timers::{Fire, Rest, Timer, TimerKey};
use crate::sync::{Mutex, lock};
use crate::threads::local::{self, Nested};
use crate::workqueues::builder::WorkqueueError;
use crate::workqueues::flushing::Waiting;
use crate::workqueues::queueing::Origin;
use crate::workqueues::state::Mode;
use crate::workqueues::workqueue::Workqueue;

/// A function that a workqueue runs each time it has been queued. Cheap to clone; clones are the
/// same work item.
///
/// * At most one instance is pending: queueing a pending item again does nothing. Even then, what
///   the issuer did before it queued the item is visible to the run that follows.
/// * When the function begins, the item is no longer pending. If it is queued meanwhile, by itself
///   or by others, it runs exactly once more.
/// * It never runs twice at a time, anywhere. So the function may be an `FnMut` with state of its
///   own.
/// * The last reference may be dropped while the item is pending or runs. The item then ends by
///   itself.
///
/// ```
/// use homing_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// let writeback = runtime.workqueue("writeback").build()?;
/// let mut rounds = 0;
/// let work = writeback.work(move |work| {
///     rounds += 1;
///     if rounds < 3 {
///         work.queue();
///     }
/// });
/// assert!(work.queue());
/// while work.flush() {}
/// assert_eq!(writeback.counters().completed, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Work {
    node: SharedNode<Target>,
}

/// What a work item belongs to, and those who wait for it.
pub(crate) struct Target {
    workqueue: Workqueue,
    /// The type of its function, for messages.
    name: &'static str,
    waits: Waits,
    timer: Mutex<Option<TimerKey>>,
}

impl Context for Target {
    fn wake(&self, in_hand: Option<(usize, u32)>) {
        match in_hand {
            Some((place, next)) => local::nest(Nested::Next(place, next), || self.waits.wake()),
            None => self.waits.wake(),
        }
    }

    fn cancel(&self, item: Item) {
        self.workqueue.shared().cancel(item);
    }
}

impl Fire for Work {
    fn fire(self: Box<Self>, generation: u32, cpu: CpuId) -> Option<Rest> {
        let workqueue = self.workqueue().clone();
        let (shared, state) = (workqueue.shared(), workqueue.state());
        // The instance was accepted before, even if the workqueue drains by now.
        if shared.refuses(state, state.mode(), Origin::GoesOn) {
            return Some(Box::new(move || {
                if let Some(instance) = self.node.pending.fire(generation) {
                    self.put_as(instance, Some(cpu), Origin::GoesOn);
                }
            }));
        }
        let Some(instance) = self.node.pending.fire(generation) else {
            return Some(Box::new(move || drop(self)));
        };
        // The item takes over the reference: nothing is left to be dropped here.
        let item = self.node.into_item_of(workqueue.tag(), instance);
        shared.push(state, Some(cpu), item, Origin::GoesOn);
        None
    }

    fn abandon(&self, generation: u32) {
        self.cancelled(self.node.pending.cancel_instance(generation));
    }
}

struct Function<F>(F);

impl<F: FnMut(&Work) + Send + 'static> Call<Target> for Function<F> {
    fn call(&mut self, node: SharedNode<Target>) -> (SharedNode<Target>, thread::Result<()>) {
        let work = Work { node };
        let run = || local::nest(work.nested(), || (self.0)(&work));
        // The state of the function is its own business: it runs again even after a panic.
        let result = catch_unwind(AssertUnwindSafe(run));
        (work.node, result)
    }
}

impl Workqueue {
    /// Makes a work item of this workqueue; it is not queued yet.
    pub fn work<F: FnMut(&Work) + Send + 'static>(&self, function: F) -> Work {
        let target = Target {
            workqueue: self.clone(),
            name: type_name::<F>(),
            waits: Waits::default(),
            timer: Mutex::new(None),
        };
        Work { node: Node::new(self.tag(), target, Function(function)) }
    }
}

impl Work {
    /// The workqueue it belongs to.
    pub fn workqueue(&self) -> &Workqueue {
        &self.node.context.workqueue
    }

    /// Queues it for the pod of the issuing CPU. Returns whether this call did so. It does not if
    /// the item is pending or disabled, or if its workqueue refuses it: it drains or was destroyed,
    /// or the runtime has ended, or is ending and the caller is none of its items.
    pub fn queue(&self) -> bool {
        self.node.pending.queue(false).is_some_and(|instance| self.put(instance, None))
    }

    /// [`Work::queue`] for the pod of `cpu`. If the item is running, it runs again where it runs
    /// now, whatever this call says, as in the kernel: it must not run twice at a time.
    ///
    /// # Errors
    /// [`WorkqueueError::Cpu`] where the machine has no such CPU online; nothing is queued.
    pub fn queue_on(&self, cpu: CpuId) -> Result<bool, WorkqueueError> {
        self.workqueue().check_cpu(cpu)?;
        let instance = self.node.pending.queue(false);
        Ok(instance.is_some_and(|instance| self.put(instance, Some(cpu))))
    }

    /// [`Work::queue`] for a CPU of a NUMA node, chosen as by [`Workqueue::queue_on_node`].
    ///
    /// # Errors
    /// [`WorkqueueError::Node`] where no CPU of such a node is online; nothing is queued.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::NodeId;
    ///
    /// let work = runtime.events().work(|_| ());
    /// let cpu = &runtime.machine().cpus()[0];
    /// assert!(work.queue_on(cpu.cpu)?);
    /// work.flush();
    /// assert!(work.queue_on_node(cpu.numa_nodes[0])?);
    /// let error = work.queue_on_node(NodeId(4096)).unwrap_err();
    /// assert!(error.to_string().contains("node 4096"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_on_node(&self, node: NodeId) -> Result<bool, WorkqueueError> {
        let cpu = self.workqueue().cpu_of_node(node)?;
        let instance = self.node.pending.queue(false);
        Ok(instance.is_some_and(|instance| self.put(instance, Some(cpu))))
    }

    /// Queues it when `delay` has passed. Until then it is pending. A delay of 0 queues it at once.
    /// Returns whether this call did so, as [`Work::queue`] does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let work = runtime.events().work(|_| println!("late"));
    /// assert!(work.queue_delayed(Duration::from_secs(3600)));
    /// assert!(!work.queue(), "it is pending");
    /// assert!(work.mod_delayed(Duration::ZERO), "sooner");
    /// work.flush();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_delayed(&self, delay: Duration) -> bool {
        self.queue_later(delay, None)
    }

    /// [`Work::queue_delayed`] for the pod of `cpu`.
    ///
    /// # Errors
    /// [`WorkqueueError::Cpu`] where the machine has no such CPU online; nothing is queued.
    pub fn queue_delayed_on(&self, cpu: CpuId, delay: Duration) -> Result<bool, WorkqueueError> {
        self.workqueue().check_cpu(cpu)?;
        Ok(self.queue_later(delay, Some(cpu)))
    }

    fn queue_later(&self, delay: Duration, cpu: Option<CpuId>) -> bool {
        if delay.is_zero() {
            let instance = self.node.pending.queue(false);
            return instance.is_some_and(|instance| self.put(instance, cpu));
        }
        let mut timer = lock(&self.node.context.timer);
        let Some(instance) = self.node.pending.queue(true) else { return false };
        let set = self.set_timer(&mut timer, instance, delay, cpu, Origin::New);
        drop(timer);
        self.wake_unless(set)
    }

    /// Queues it when `delay` has passed from now, whatever its state: pending on a timer, queued,
    /// running or idle. Returns whether it was pending. If it is disabled, or refused as by
    /// [`Work::queue`], this returns `false` and nothing happens. A pending instance had been
    /// accepted, so it is not refused while its workqueue drains. An instance that is on a timer
    /// when the runtime ends is cancelled.
    pub fn mod_delayed(&self, delay: Duration) -> bool {
        let mut timer = lock(&self.node.context.timer);
        let (shared, mode) = (self.workqueue().shared(), self.workqueue().state().mode());
        if mode.has(Mode::DESTROYED) || shared.ends_for_caller(mode) {
            // What is queued runs, and what is on a timer is cancelled with all other timers.
            return false;
        }
        let Some(requeued) = self.node.pending.requeue(!delay.is_zero()) else { return false };
        if requeued.before.is_some_and(|before| before.on_timer) {
            self.clear_timer(&mut timer);
        }
        let origin = if requeued.before.is_some() { Origin::GoesOn } else { Origin::New };
        let accepted = if delay.is_zero() {
            drop(timer);
            self.put_as(requeued.instance, None, origin)
        } else {
            let set = self.set_timer(&mut timer, requeued.instance, delay, None, origin);
            drop(timer);
            self.wake_unless(set)
        };
        if requeued.before.is_some_and(|before| before.waiters) {
            self.node.context.wake(None);
        }
        accepted && requeued.before.is_some()
    }

    /// Waits until what was queued before the call has ended: a run in progress, and the last
    /// instance unless that is taken back first. Returns whether there was anything to wait for. If
    /// the instance is on a timer, this waits as long as that takes: see [`Work::flush_delayed`].
    ///
    /// # Panics
    /// If the call would wait for itself: in this item, on the thread that runs this item next, or,
    /// while it is pending, in another item of the same ordered workqueue. Also, as
    /// [`Workqueue::flush`], in an item of a `mem_reclaim` workqueue.
    pub fn flush(&self) -> bool {
        // Looked at once: what somebody queues after the check is not waited for.
        let queued = self.node.pending.queued();
        self.check_may_flush(queued);
        queued.into_iter().flatten().for_each(|awaited| self.wait(awaited));
        queued != [None, None]
    }

    /// [`Work::flush`] as a future. Dropping the future loses nothing.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// let work = logs.work(|_| ());
    /// work.queue();
    /// runtime.spawn(work.flushed()).join()?;
    /// assert_eq!(logs.counters().completed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flushed(&self) -> impl Future<Output = bool> + Send + use<> {
        // What to wait for is fixed at the call, not at the first poll.
        let queued = self.node.pending.queued();
        let work = self.clone();
        async move {
            for awaited in queued.into_iter().flatten() {
                while let Some(waiting) = work.begin_wait(awaited) {
                    waiting.await;
                }
            }
            queued != [None, None]
        }
    }

    /// Queues it now if it waits for a timer, and then does what [`Work::flush`] does. Returns
    /// whether there was anything to queue or to wait for.
    ///
    /// # Panics
    /// As [`Work::flush`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let cpu = runtime.cpus().first().ok_or("no CPU")?;
    /// let work = runtime.events().work(|_| ());
    /// assert!(work.queue_delayed_on(cpu, Duration::from_secs(3600))?);
    /// assert!(work.flush_delayed(), "it runs now");
    /// assert_eq!(work.workqueue().counters().completed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush_delayed(&self) -> bool {
        self.check_may_flush(self.node.pending.queued());
        let fired = {
            let mut timer = lock(&self.node.context.timer);
            let fired = self.node.pending.fire_any();
            if fired.is_some() {
                self.clear_timer(&mut timer);
            }
            fired
        };
        let queued = fired.is_some_and(|instance| self.put_as(instance, None, Origin::GoesOn));
        self.flush() || queued
    }

    /// Takes the pending instance back, if there is one. A run in progress goes on. Returns whether
    /// there was a pending instance.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let work = runtime.events().work(|_| unreachable!());
    /// work.queue_delayed(Duration::from_secs(3600));
    /// assert!(work.cancel() && !work.cancel());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self) -> bool {
        let cancelled = self.node.pending.cancel();
        self.cancelled(cancelled)
    }

    /// Does what [`Work::cancel`] does, and then waits until the item no longer runs, even if it
    /// queues itself. When this returns, the item is neither pending nor running, unless somebody
    /// has queued it since.
    ///
    /// # Panics
    /// As [`Work::disable`] and [`Work::flush`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let endless = runtime.events().work(|work| _ = work.queue());
    /// endless.queue();
    /// endless.cancel_sync();
    /// assert!(!endless.is_pending() && !endless.is_running());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_sync(&self) -> bool {
        self.check_may_wait("cancel_sync");
        let was_pending = self.disable();
        self.node.pending.running().into_iter().for_each(|run| self.wait(run));
        // Whoever has enabled it once too often meanwhile is not this caller.
        let _ = self.node.pending.enable();
        was_pending
    }

    /// Makes the item refuse to be queued until [`Work::enable`] has been called as often, and
    /// takes the pending instance back. Returns whether there was one.
    ///
    /// # Panics
    /// At the 65,536th call without an `enable`.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let work = runtime.events().work(|_| ());
    /// work.disable();
    /// assert!(!work.queue());
    /// assert!(work.enable() && work.queue());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disable(&self) -> bool {
        let Ok(cancelled) = self.node.pending.disable() else {
            panic!("{self} has been disabled 65535 times and not been enabled")
        };
        self.cancelled(cancelled)
    }

    /// Does what [`Work::disable`] does, and then waits until the item no longer runs.
    ///
    /// # Panics
    /// As [`Work::disable`] and [`Work::flush`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let work = runtime.events().work(|_| ());
    /// work.queue();
    /// work.disable_sync();
    /// assert!(work.is_disabled() && !work.is_running());
    /// assert!(!work.queue(), "not until it is enabled");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disable_sync(&self) -> bool {
        self.check_may_wait("disable_sync");
        let was_pending = self.disable();
        self.node.pending.running().into_iter().for_each(|run| self.wait(run));
        was_pending
    }

    /// Takes one [`Work::disable`] back. Returns whether the item can be queued again. Calls to
    /// queue it that were refused meanwhile are not made up for.
    ///
    /// # Panics
    /// If it is not disabled.
    pub fn enable(&self) -> bool {
        let enabled = self.node.pending.enable();
        enabled.unwrap_or_else(|()| panic!("{self} was to be enabled, but is not disabled"))
    }

    /// Whether an instance is pending: queued, or on a timer. This is advice: it was true a moment
    /// ago.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let work = runtime.events().work(|_| ());
    /// assert!(!work.is_pending());
    /// work.queue_delayed(Duration::from_secs(3600));
    /// assert!(work.is_pending() && !work.is_running());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_pending(&self) -> bool {
        self.node.pending.is_pending()
    }

    /// Whether it runs. This is advice: it was true a moment ago.
    pub fn is_running(&self) -> bool {
        self.node.pending.is_running()
    }

    /// Whether it refuses to be queued.
    pub fn is_disabled(&self) -> bool {
        self.node.pending.is_disabled()
    }

    /// What a thread that runs this work item notes.
    fn nested(&self) -> Nested {
        Nested::Work(place_of(&self.node))
    }

    /// Puts a new instance, which the caller has made, into its queue.
    fn put(&self, instance: Instance, cpu: Option<CpuId>) -> bool {
        self.put_as(instance, cpu, Origin::New)
    }

    fn put_as(&self, instance: Instance, cpu: Option<CpuId>, origin: Origin) -> bool {
        let workqueue = self.workqueue();
        let item = self.node.item(workqueue.tag(), instance);
        workqueue.shared().push(workqueue.state(), cpu, item, origin)
    }

    /// Wakes those who wait for an instance that was refused; the caller has let go of the timer.
    /// Returns whether the instance was accepted, as [`Shared::push`](crate::shared::Shared::push).
    fn wake_unless(&self, set: Result<(), Option<Cancelled>>) -> bool {
        let Err(Some(cancelled)) = set else { return true };
        if cancelled.waiters {
            self.node.context.wake(None);
        }
        false
    }

    /// Sets the timer of an instance. If that is refused, returns what was cancelled: see
    /// [`Work::wake_unless`].
    fn set_timer(
        &self,
        place: &mut Option<TimerKey>,
        instance: Instance,
        delay: Duration,
        cpu: Option<CpuId>,
        origin: Origin,
    ) -> Result<(), Option<Cancelled>> {
        let (shared, workqueue) = (self.workqueue().shared(), self.workqueue().state());
        let at_ns = now_ns().saturating_add(nanoseconds(delay));
        self.clear_timer(place);
        let what = Box::new(self.clone());
        let cpu = cpu.unwrap_or_else(|| local::issuing_cpu(shared));
        let timer = Timer { what, generation: instance.generation, cpu };
        let refused = shared.refuses(workqueue, workqueue.mode(), origin);
        let set = if refused { None } else { shared.timers.set(at_ns, timer).ok() };
        let Some(key) = set else {
            // The workqueue drains or has been destroyed, or the runtime ends.
            return Err(self.node.pending.cancel_instance(instance.generation));
        };
        *place = Some(key);
        shared.monitor.timer_set(at_ns, || shared.timers.next_ns());
        Ok(())
    }

    fn clear_timer(&self, place: &mut Option<TimerKey>) {
        place.take().into_iter().for_each(|key| self.workqueue().shared().timers.remove(key));
    }

    fn cancelled(&self, cancelled: Option<Cancelled>) -> bool {
        let Some(cancelled) = cancelled else { return false };
        if cancelled.on_timer {
            // If the timer has been set again meanwhile, it is not ours to clear.
            let mut timer = lock(&self.node.context.timer);
            if !self.node.pending.is_on_timer() {
                self.clear_timer(&mut timer);
            }
        }
        if cancelled.waiters {
            self.node.context.wake(None);
        }
        true
    }

    /// Joins those who wait, unless what is awaited is over.
    fn begin_wait(&self, awaited: Awaited) -> Option<Waiting> {
        let Target { waits, .. } = &self.node.context;
        waits.begin(&self.node.pending, awaited).map(Waiting)
    }

    fn wait(&self, awaited: Awaited) {
        while let Some(waiting) = self.begin_wait(awaited) {
            waiting.block();
        }
    }

    /// Whether a flush on this thread would wait for an instance that the thread itself runs next.
    fn is_next_here(&self, queued: Awaited) -> bool {
        let Awaited::Instance(generation) = queued else { return false };
        let next = Nested::Next(place_of(&self.node), generation);
        local::runs_nested(|nested| nested == next)
    }

    fn check_may_wait(&self, what: &str) {
        self.check_may_wait_for(what, None);
    }

    /// [`Work::check_may_wait`] for a flush of a run, and of an instance that is `queued`.
    fn check_may_flush(&self, [_, queued]: [Option<Awaited>; 2]) {
        self.check_may_wait_for("flush", queued);
    }

    fn check_may_wait_for(&self, what: &str, queued: Option<Awaited>) {
        let waits_for_itself = local::runs_nested(|nested| nested == self.nested())
            || queued.is_some_and(|queued| self.is_next_here(queued));
        assert!(
            !waits_for_itself,
            "{what} of {self} from itself: it would wait for itself{}",
            local::beneath_note()
        );
        let state = self.workqueue().state();
        if !local::runs_item_of(state.number) {
            self.workqueue().check_may_wait(what);
            return;
        }
        // Other items of its workqueue may wait for it, unless it comes after them in their order.
        assert!(
            !state.kinds.ordered || queued.is_none(),
            "{what} of {self} from another item of that ordered workqueue: it would wait for itself{}",
            local::beneath_note()
        );
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { name, workqueue, .. } = &self.node.context;
        write!(f, "work item {name} of workqueue {}", workqueue.name())
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("name", &self.node.context.name)
            .field("workqueue", &self.workqueue().name())
            .field("pending", &self.is_pending())
            .field("running", &self.is_running())
            .finish_non_exhaustive()
    }
}
