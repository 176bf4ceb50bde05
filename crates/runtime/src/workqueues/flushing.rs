//! Waiting for a workqueue's items, emptying it, freezing it, and its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::handles::handle::{block_on, block_on_until};
use crate::runtime::Runtime;
use crate::sync::Ordering;
use crate::threads::lend::blocking;
use crate::threads::local;
use crate::threads::rescuer::Rescuer;
use crate::workqueues::builder::WorkqueueError;
use crate::workqueues::flush::Wait;
use crate::workqueues::state::Mode;
use crate::workqueues::workqueue::Workqueue;

/// A [`Wait`] as a future.
pub(crate) struct Waiting(pub(crate) Arc<Wait>);

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll(context)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.forget();
    }
}

impl Waiting {
    /// Blocks the thread. A worker lets its CPU go meanwhile.
    pub(crate) fn block(mut self) {
        blocking(|| block_on(&mut self));
    }
}

/// A drain that has not ended after this many flushes is complained of.
const DRAIN_COMPLAINT: u32 = 10;

impl Workqueue {
    /// Waits until everything queued before the call has ended: items, and the present steps of
    /// futures. What is queued later does not hold it up. Any number of callers may flush at a
    /// time.
    ///
    /// # Panics
    /// In an item of this workqueue, because it would wait for itself. Also in an item of a
    /// `mem_reclaim` workqueue if this one is not `mem_reclaim`, because the rescuer would wait for
    /// threads.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    ///
    /// let logs = runtime.workqueue("logs").build()?;
    /// let written = Arc::new(AtomicU32::new(0));
    /// for _ in 0..100 {
    ///     let written = Arc::clone(&written);
    ///     logs.execute(move || _ = written.fetch_add(1, Relaxed));
    /// }
    /// logs.flush();
    /// assert_eq!(written.load(Relaxed), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) {
        self.check_may_wait("flush");
        self.begin_flush().into_iter().for_each(Waiting::block);
    }

    /// [`Workqueue::flush`] as a future. If a future of the same workqueue awaits it, it does not
    /// wait for that future, only for the step that began the flush. Dropping it loses nothing.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// let flushing = logs.clone();
    /// runtime.spawn(async move { flushing.flushed().await }).join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flushed(&self) -> impl Future<Output = ()> + Send + Unpin + use<> {
        Flushed(self.begin_flush())
    }

    fn begin_flush(&self) -> Option<Waiting> {
        let state = self.state();
        let waiting = state.flushes.begin(|| state.in_flight()).map(Waiting)?;
        // So that the monitor looks, too.
        self.shared().flushing.add(state);
        Some(waiting)
    }

    /// Waits until the workqueue is empty. Meanwhile only its own items may queue more; what others
    /// queue is refused. Futures that have been accepted go on, and work items run when their time
    /// comes. As long as a future or a work item waits, the drain does not wait for it.
    ///
    /// # Panics
    /// As [`Workqueue::flush`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let chain = runtime.workqueue("chain").build()?;
    /// let next = chain.clone();
    /// chain.execute(move || next.execute(|| ()));
    /// chain.drain();
    /// assert_eq!(chain.counters().completed, 2);
    /// assert_eq!(chain.queue(|| 1).join()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self) {
        self.check_may_wait("drain");
        let state = self.state();
        state.set_draining(true);
        let _end = Draining(self);
        let mut round: u32 = 0;
        while !state.is_empty() {
            self.begin_flush().into_iter().for_each(Waiting::block);
            round += 1;
            if round == DRAIN_COMPLAINT || (round.is_multiple_of(100) && round <= 1000) {
                tracing_event!(workqueue = self.name(), round, "draining does not come to its end");
            }
        }
    }

    /// Drains the workqueue and ends it. From then on everything is refused, and the workqueue is
    /// no longer in the attribute tree; until then it keeps its name. If it is frozen and has
    /// items, this waits until somebody thaws it. This does not wait for work items that wait for a
    /// timer; cancel them first. A future that waits is dropped when it is woken next, and its
    /// handle returns `Cancelled`.
    ///
    /// # Panics
    /// As [`Workqueue::flush`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// logs.destroy();
    /// assert!(logs.queue(|| ()).join().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn destroy(&self) {
        self.check_may_wait("destroy");
        let state = self.state();
        state.set_draining(true);
        self.drain();
        state.set_mode(Mode::DESTROYED, true);
        state.set_draining(false);
        // An item whose issuer has read the mode before this was counted before that.
        while !state.is_empty() {
            self.begin_flush().into_iter().for_each(Waiting::block);
        }
        // Not before, so that who finds it frozen can thaw it by its attribute.
        self.shared().workqueues.let_go(state);
        if let Some(rescuer) = state.rescuer.get() {
            rescuer.stop();
            blocking(|| Rescuer::join(rescuer));
        }
    }

    /// Lets no more items begin, and waits until the active ones have ended. New items are
    /// accepted, and wait for [`Workqueue::thaw`]. An item stays active a moment longer than its
    /// handle says: right after a join, this may fail if `at_most` is 0.
    ///
    /// # Errors
    /// [`WorkqueueError::Fixed`] if it is not freezable. [`WorkqueueError::FreezeTimeout`] if items
    /// are still active after `at_most`, or if somebody thaws it meanwhile; it is thawed then.
    /// [`WorkqueueError::ShuttingDown`] once [`Runtime::shutdown`] has begun, which thaws all
    /// workqueues.
    ///
    /// # Panics
    /// As [`Workqueue::flush`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let disk = runtime.workqueue("disk").freezable().build()?;
    /// disk.freeze(Duration::from_secs(1))?;
    /// let waits = disk.queue(|| 1);
    /// assert!(!waits.is_finished());
    /// disk.thaw();
    /// assert_eq!(waits.join()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn freeze(&self, at_most: Duration) -> Result<(), WorkqueueError> {
        self.check_may_wait("freeze");
        let name = || self.name().to_owned();
        if !self.state().kinds.freezable {
            let (kind, attribute) = ("not freezable", "frozen");
            return Err(WorkqueueError::Fixed { name: name(), kind, attribute });
        }
        let gate = self.gate();
        if !gate.freeze(|| self.shared().may_freeze()) {
            return Err(WorkqueueError::ShuttingDown { name: name() });
        }
        let deadline = Instant::now().checked_add(at_most);
        loop {
            let mut idle = Waiting(gate.wait_idle());
            let over = blocking(|| block_on_until(&mut idle, deadline)).is_some();
            if !over || !gate.is_frozen() {
                break;
            }
            // The gate may have been thawed and frozen again meanwhile.
            if gate.active() == 0 {
                return Ok(());
            }
        }
        let active = gate.active();
        self.thaw();
        Err(WorkqueueError::FreezeTimeout { name: name(), active })
    }

    /// Lets items begin again.
    pub fn thaw(&self) {
        self.shared().thaw(self.state());
    }

    /// Whether it is frozen, or being frozen.
    pub fn is_frozen(&self) -> bool {
        self.state().gate().is_some_and(crate::workqueues::gate::Gate::is_frozen)
    }

    /// Whether items wait because of `max_active`, or because it is frozen. This is advice: it was
    /// true a moment ago.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").ordered().build()?;
    /// let (go, wait) = std::sync::mpsc::channel();
    /// let first = logs.queue(move || wait.recv());
    /// let second = logs.queue(|| ());
    /// assert!(logs.is_congested(), "the second waits for the first");
    /// go.send(())?;
    /// first.join()??;
    /// second.join()?;
    /// assert!(!logs.is_congested());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_congested(&self) -> bool {
        self.state().gate().is_some_and(|gate| gate.inactive() > 0)
    }

    /// Panics if the caller may not wait for this workqueue because that may wait for the caller.
    pub(crate) fn check_may_wait(&self, what: &str) {
        let name = self.name();
        assert!(
            !local::runs_item_of(self.state().number),
            "{what} of workqueue {name} from one of its own items: it would wait for itself{}",
            local::beneath_note()
        );
        if self.state().kinds.mem_reclaim {
            return;
        }
        let from = local::innermost().and_then(|number| self.shared().workqueues.find(number));
        if let Some(reclaim) = from.filter(|state| state.kinds.mem_reclaim) {
            panic!(
                "{what} of workqueue {name}, which is not mem_reclaim, from an item of {}, which \
                 is: its rescuer would wait for threads that cannot be created",
                reclaim.name
            );
        }
    }
}

impl Runtime {
    /// [Freezes](Workqueue::freeze) all freezable workqueues, and those that are made until they
    /// are thawed, as the kernel does before it suspends.
    ///
    /// # Errors
    /// [`WorkqueueError::FreezeTimeout`] of the first workqueue whose items still run after
    /// `at_most`, which is the time for all of them together. Then all are thawed again.
    ///
    /// # Panics
    /// In an item of one of them. In an item of a `mem_reclaim` workqueue, if one of them is not
    /// `mem_reclaim`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let disk = runtime.workqueue("disk").freezable().build()?;
    /// runtime.freeze_workqueues(Duration::from_secs(1))?;
    /// assert!(disk.is_frozen());
    /// runtime.thaw_workqueues();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn freeze_workqueues(&self, at_most: Duration) -> Result<(), WorkqueueError> {
        let began = Instant::now();
        for workqueue in self.freezable() {
            workqueue.check_may_wait("freeze");
        }
        // This also freezes workqueues that are made from now on. All stop taking items before any
        // is waited for.
        self.shared().frozen.store(true, Ordering::SeqCst);
        let all = self.freezable();
        for workqueue in &all {
            workqueue.gate().freeze(|| self.shared().may_freeze());
        }
        for workqueue in &all {
            let frozen = workqueue.freeze(at_most.saturating_sub(began.elapsed()));
            if frozen.is_err() {
                self.thaw_workqueues();
                return frozen;
            }
        }
        Ok(())
    }

    /// Lets items of all freezable workqueues begin again.
    pub fn thaw_workqueues(&self) {
        self.shared().thaw_all();
    }

    fn freezable(&self) -> Vec<Workqueue> {
        let shared = self.shared();
        let all = shared.workqueues.with_items().into_iter().filter(|state| state.kinds.freezable);
        all.map(|state| Workqueue::looked_at(Arc::clone(shared), state)).collect()
    }
}

struct Draining<'a>(&'a Workqueue);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.state().set_draining(false);
    }
}

struct Flushed(Option<Waiting>);

impl Future for Flushed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(waiting) => Pin::new(waiting).poll(context),
            None => Poll::Ready(()),
        }
    }
}
