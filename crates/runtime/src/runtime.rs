//! The runtime as its users see it: they make workqueues from it and shut it down.

use std::any::Any;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use homing_sched::{Facts, Features, Layout, Record};
use homing_topology::{CpuId, CpuSet, Machine, Scope};

use crate::builder::{Builder, RuntimeError};
use crate::extensions::Extensions;
use crate::handles::handle::JoinHandle;
use crate::handles::scope::WorkScope;
use crate::measure::books::CpuCounters;
use crate::measure::clock::nanoseconds;
use crate::shared::Shared;
use crate::sync::{self, thread};
use crate::threads::lend::blocking;
use crate::threads::local;
use crate::workqueues::builder::{WorkqueueBuilder, WorkqueueError};
use crate::workqueues::workqueue::Workqueue;

/// Worker threads and their queues. One process can have several runtimes.
///
/// Dropping a runtime waits until everything that is queued has run and the items that run have
/// ended. Frozen workqueues are thawed. Once the drop has begun, what threads outside the runtime
/// queue is refused. What its own items queue still runs, so an item that queues itself without end
/// keeps the drop waiting. Futures that wait for something outside are dropped, and work items that
/// wait for a timer are cancelled. [`Runtime::shutdown`] does the same with a deadline;
/// [`Runtime::shutdown_now`] runs nothing more. If an item drops the runtime that runs it, the drop
/// does not wait: the runtime's threads end when there is nothing left to do.
///
/// What has not ended by then is dropped, one after the other. If a `Drop` among these waits for
/// another item or future of the same runtime, or for its end, it may wait for ever. After a fork,
/// the child has none of the workers: make runtimes after `fork`, or have the child do nothing but
/// `exec`.
pub struct Runtime {
    shared: Arc<Shared>,
    /// Its thread, and the lock of whoever waits for the end of all threads.
    monitor: sync::Mutex<Option<thread::JoinHandle<()>>>,
    events: Workqueue,
    extensions: Extensions,
    /// All threads have ended, or are not to be waited for.
    stopped: AtomicBool,
}

/// The deadline passed before everything had run.
///
/// ```
/// # use std::{sync::mpsc::channel, time::Duration};
/// # let runtime = homing_runtime::Runtime::new()?;
/// use homing_runtime::ShutdownError;
///
/// let ((begin, begun), (end, ended)) = (channel(), channel::<()>());
/// runtime.events().execute(move || {
///     _ = begin.send(());
///     _ = ended.recv();
/// });
/// begun.recv()?;
/// let error = runtime.shutdown(Duration::ZERO).unwrap_err();
/// assert_eq!(error, ShutdownError { cancelled: 0, running: 1 });
/// drop(end); // its thread ends by itself
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the deadline passed: {cancelled} items that were queued, or futures that waited, were cancelled, {running} still \
     run and end by themselves"
)]
pub struct ShutdownError {
    /// Items that had not begun and futures that had not ended. They were cancelled. The count
    /// includes those that had been aborted.
    pub cancelled: u64,
    /// Items that still run. The thread of each ends with its item.
    pub running: u64,
}

/// The name of the workqueue of [`Runtime::queue`] and [`Runtime::spawn`]: the kernel's.
const EVENTS: &str = "events";

/// When a deadline has passed, threads that run nothing may take so long to end.
const THREADS_GRACE: Duration = Duration::from_secs(1);

static GLOBAL: OnceLock<Runtime> = OnceLock::new();
static GLOBAL_STARTING: Mutex<()> = Mutex::new(());

impl Runtime {
    /// Starts a runtime with a worker on every CPU that this process may use.
    ///
    /// # Errors
    /// As for [`Builder::build`].
    pub fn new() -> Result<Self, RuntimeError> {
        Self::builder().build()
    }

    /// Begins a runtime with other settings. It uses no CPUs that come online after it has started.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The process-wide runtime, started at the first call. It is everybody's: nothing ends it at
    /// the end of the program, and whoever shuts it down does so for all. A child of `fork(2)`
    /// whose parent had called this gets one without workers: what is queued there waits for ever.
    ///
    /// # Errors
    /// As for [`Builder::build`], at the call that starts it.
    ///
    /// ```
    /// use homing_runtime::Runtime;
    ///
    /// assert_eq!(Runtime::global()?.queue(|| 6 * 7).join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn global() -> Result<&'static Self, RuntimeError> {
        if let Some(runtime) = GLOBAL.get() {
            return Ok(runtime);
        }
        match Self::set_global(Self::builder()) {
            Err(RuntimeError::GlobalStarted) => Ok(GLOBAL.get().expect("it has been started")),
            result => result,
        }
    }

    pub(crate) fn set_global(builder: Builder) -> Result<&'static Self, RuntimeError> {
        let _one_at_a_time = GLOBAL_STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if GLOBAL.get().is_some() {
            return Err(RuntimeError::GlobalStarted);
        }
        let runtime = builder.build()?;
        Ok(GLOBAL.get_or_init(|| runtime))
    }

    /// `None` if there is not a single thread.
    pub(crate) fn around(shared: Arc<Shared>) -> Option<Self> {
        if shared.crew.count().0 == 0 {
            return None;
        }
        let events = WorkqueueBuilder::new(Arc::clone(&shared), EVENTS).build().ok()?;
        let extensions = Extensions::default();
        let (monitor, stopped) = (sync::Mutex::new(None), AtomicBool::new(false));
        Some(Self { shared, monitor, events, extensions, stopped })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn set_monitor(&self, monitor: thread::JoinHandle<()>) {
        *sync::lock(&self.monitor) = Some(monitor);
    }

    /// Begins a workqueue called `name`.
    pub fn workqueue(&self, name: &str) -> WorkqueueBuilder {
        WorkqueueBuilder::new(Arc::clone(&self.shared), name)
    }

    /// The runtime's own workqueue, `events`, for work that needs no name.
    pub fn events(&self) -> &Workqueue {
        &self.events
    }

    /// [`Workqueue::queue`] on [`Runtime::events`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// assert_eq!(runtime.queue(|| 6 * 7).join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue<F, T>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.events.queue(work)
    }

    /// [`Workqueue::spawn`] on [`Runtime::events`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// assert_eq!(runtime.spawn(async { 6 * 7 }).join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.events.spawn(future)
    }

    /// [`Workqueue::scope`] on [`Runtime::events`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let mut words = ["come", "home"].map(str::to_owned);
    /// runtime.scope(|scope| {
    ///     for word in &mut words {
    ///         scope.queue(|| word.make_ascii_uppercase());
    ///     }
    /// });
    /// assert_eq!(words, ["COME", "HOME"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope WorkScope<'scope, 'env>) -> R,
    ) -> R {
        self.events.scope(body)
    }

    /// The value of type `T` that a library keeps with this runtime. There is one value of each
    /// type, which `make` makes at the first call. It is dropped with the runtime, after all items
    /// have ended. `make` must not ask for its own type, or it waits for itself. It may ask for
    /// others; two that ask for each other wait for ever. The value must not keep the runtime
    /// alive.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    ///
    /// struct Tickets(AtomicU64); // a type of the library's own, which nobody else knows
    ///
    /// let ticket = || runtime.extension(|| Tickets(AtomicU64::new(1))).0.fetch_add(1, Relaxed);
    /// assert_eq!((ticket(), ticket()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        self.extensions.get_or_make(make)
    }

    /// Takes the decisions recorded since the last call: see [`Builder::record_decisions`]. To keep
    /// them or send them elsewhere as text, use a [`DecisionLog`](crate::recorded::DecisionLog).
    pub fn take_decisions(&self) -> Vec<Record> {
        self.shared.dispatch.tape().take()
    }

    /// The queues and distances on which decisions are based.
    pub fn layout(&self) -> &Layout {
        self.shared.dispatch.layout()
    }

    /// The CPUs that have workers at present.
    pub fn cpus(&self) -> CpuSet {
        self.shared.dispatch.active()
    }

    /// The machine as the runtime sees it.
    pub fn machine(&self) -> &Machine {
        self.shared.dispatch.layout().machine()
    }

    /// The parts of the policy that are on.
    pub fn features(&self) -> Features {
        self.shared.dispatch.features()
    }

    /// Switches parts of the policy on and off. This takes effect at once.
    ///
    /// ```
    /// # use homing_runtime::{Features, Runtime};
    /// # let runtime = Runtime::new()?;
    /// runtime.set_features("SWQUEUE SIS_NODE".parse()?);
    /// assert!(!runtime.features().has(Features::XSTEAL));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_features(&self, features: Features) {
        self.shared.dispatch.set_features(features);
    }

    /// Changes the CPU time from which an item counts as CPU-intensive. With 0, none does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # use std::sync::mpsc::{TryRecvError::Empty, channel};
    /// runtime.set_cpu_intensive_thresh(Duration::from_nanos(1));
    /// let (end, ended) = channel::<()>();
    /// let busy = runtime.queue(move || while ended.try_recv() == Err(Empty) {});
    /// while runtime.events().counters().cpu_intensive == 0 {
    ///     std::thread::yield_now();
    /// }
    /// drop(end);
    /// busy.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_cpu_intensive_thresh(&self, threshold: Duration) {
        let ns = nanoseconds(threshold);
        self.shared.settings.cpu_intensive_ns.store(ns, Ordering::Relaxed);
    }

    /// Changes how long a queue may stand still before it is reported. With 0, it never is.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// runtime.set_watchdog_thresh(Duration::ZERO);
    /// runtime.queue(|| ()).join()?;
    /// assert_eq!(runtime.stalls(), 0, "nothing is reported from now on");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_watchdog_thresh(&self, threshold: Duration) {
        self.shared.settings.watchdog_ns.store(nanoseconds(threshold), Ordering::Relaxed);
    }

    /// How often the watchdog has reported a queue.
    pub fn stalls(&self) -> u64 {
        self.shared.stalls.load(Ordering::Relaxed)
    }

    /// The scope of workqueues that follow the default.
    pub fn default_affinity_scope(&self) -> Scope {
        self.shared.workqueues.default_scope()
    }

    /// Changes the scope of all workqueues that follow the default: the kernel's
    /// `workqueue.default_affinity_scope`. Initially it is [`Scope::CacheShard`]. Where each core
    /// has a last-level cache of its own, it is [`Scope::Numa`] or a wider one
    /// ([`Affinity::default_on`](crate::Affinity::default_on)).
    ///
    /// # Errors
    /// [`WorkqueueError::TooManyPools`] names a workqueue that would need a further combination of
    /// attributes. Nothing has changed then.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::Scope;
    ///
    /// runtime.set_default_affinity_scope(Scope::Numa)?;
    /// assert_eq!(runtime.default_affinity_scope(), Scope::Numa);
    /// assert_eq!(runtime.events().affinity().scope, Scope::Numa);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_default_affinity_scope(&self, scope: Scope) -> Result<(), WorkqueueError> {
        self.shared.set_default_scope(scope)
    }

    /// What each CPU's workers have done so far.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// for (cpu, counters) in runtime.cpu_counters() {
    ///     println!("CPU {cpu}: {} items, {} us busy", counters.items, counters.busy_ns / 1000);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cpu_counters(&self) -> Vec<(CpuId, CpuCounters)> {
        self.shared.cpu_counters().collect()
    }

    /// How many threads there are: workers, threads whose item blocks, and spares, but not the
    /// monitor.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// assert!(runtime.thread_count() >= runtime.cpus().len(), "a worker for each CPU");
    /// assert_eq!(runtime.threads_refused(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thread_count(&self) -> usize {
        self.shared.crew.count().0
    }

    /// How often the system refused to create a thread.
    pub fn threads_refused(&self) -> u64 {
        self.shared.crew.refused.load(Ordering::Relaxed)
    }

    /// Ends the runtime, for all that have a reference to it. Waits until everything that is queued
    /// has run, but not for longer than `at_most`. What is left then is cancelled, and what still
    /// runs is waited for no longer, nor by the drop. Destructors are not cut short: those of items
    /// that are cancelled and, once nothing is left, of the threads' own variables. If one of the
    /// runtime's own items calls this, it does not wait, because that item would have to end first:
    /// everything that is queued runs, however long that takes.
    ///
    /// # Errors
    /// [`ShutdownError`] if something was left.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let last = runtime.queue(|| 1);
    /// runtime.shutdown(Duration::from_secs(5))?;
    /// assert_eq!(last.join()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, at_most: Duration) -> Result<(), ShutdownError> {
        let deadline = Instant::now().checked_add(at_most);
        let shared = Arc::clone(&self.shared);
        let cancelled_since = |before| shared.cancelled.load(Ordering::Relaxed) - before;
        let asked_at = cancelled_since(0);
        self.begin_stop(false);
        if self.is_own_worker() {
            return Ok(());
        }
        // It may be an item of another runtime that ends this one.
        if blocking(|| self.shared.wait_closed(deadline)) {
            self.end_stop();
            // Somebody else may have ended it meanwhile, at once.
            let overtaken = shared.is_stopping_now();
            let cancelled = if overtaken { cancelled_since(asked_at) } else { 0 };
            return if cancelled == 0 {
                Ok(())
            } else {
                Err(ShutdownError { cancelled, running: 0 })
            };
        }
        // A thread may have taken some items a moment before, and cancel them itself later.
        let late_at = cancelled_since(0);
        let cancelled = || cancelled_since(late_at);
        // This is not left to the last thread to become free, because items may go on running.
        self.begin_stop(true);
        self.stopped.store(true, Ordering::Release);
        let mut running = shared.workqueues.running();
        shared.cancel_all();
        // If nothing is cancelled and nothing runs, only threads are left that have nothing to do,
        // but may have to wait for a CPU before they end.
        let grace = Instant::now() + THREADS_GRACE;
        while cancelled() == 0 && running == 0 {
            let soon = Instant::now() + Duration::from_millis(10);
            if blocking(|| shared.wait_closed(Some(soon))) {
                self.end_stop();
                let cancelled = cancelled();
                if cancelled > 0 {
                    return Err(ShutdownError { cancelled, running });
                }
                return Ok(());
            }
            running = shared.workqueues.running() + u64::from(soon > grace);
        }
        let cancelled = cancelled();
        Err(ShutdownError { cancelled, running })
    }

    /// Ends the runtime, for all that have a reference to it: runs nothing more and cancels what is
    /// queued. Waits for the items that run at present, unless one of these calls this.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let events = runtime.events().clone();
    /// runtime.shutdown_now();
    /// assert!(events.queue(|| ()).join().is_err(), "it is refused");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown_now(&self) {
        self.begin_stop(true);
        // This is not left to the last thread to become free, because a running item may wait for
        // one that will not run.
        self.shared.cancel_all();
        self.wait_for_all();
    }

    /// Waits until all threads have ended; not on one of them.
    fn wait_for_all(&self) {
        if !self.is_own_worker() {
            // It may be an item of another runtime that ends this one.
            blocking(|| self.shared.wait_closed(None));
            self.end_stop();
        }
    }

    fn begin_stop(&self, now: bool) {
        if now {
            self.shared.stopping_now.store(true, Ordering::Release);
        }
        if !now {
            // Items that are queued are to run. So this comes before threads end that find nothing.
            self.shared.refuse_outsiders();
            self.shared.thaw_all();
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.dispatch.wake_all(&*self.shared);
        self.shared.crew.close_if_done(&self.shared);
    }

    fn end_stop(&self) {
        self.stopped.store(true, Ordering::Release);
        blocking(|| {
            // Whoever else ends the runtime waits for this one.
            let mut monitor = sync::lock(&self.monitor);
            // Workers do not panic; if one did, the others must still be waited for. The monitor
            // comes first, because it creates threads.
            for state in self.shared.workqueues.with_items() {
                if let Some(rescuer) = state.rescuer.get() {
                    rescuer.stop();
                    rescuer.join();
                }
            }
            let _ = monitor.take().map(thread::JoinHandle::join);
            for worker in self.shared.crew.handles() {
                let _ = worker.join();
            }
        });
    }

    /// Whether a thread of this runtime calls: it cannot wait for itself.
    fn is_own_worker(&self) -> bool {
        local::belongs_to(&self.shared)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.stopped.load(Ordering::Acquire) {
            self.begin_stop(false);
            self.wait_for_all();
        }
        self.shared.drop_with_the_last(mem::take(&mut self.extensions));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("cpus", &self.cpus()).finish_non_exhaustive()
    }
}
