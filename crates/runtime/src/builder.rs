//! How a runtime is started.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use homing_sched::{CPU_INTENSIVE_NS, Layout};
use homing_topology::{Allowed, CpuSet, Machine, TopologyError};

use crate::dispatch::Dispatch;
use crate::measure::clock::nanoseconds;
use crate::monitor::looks;
use crate::monitor::stall::{OnStall, Stall};
use crate::runtime::Runtime;
use crate::shared::{Hooks, Settings, Shared};
use crate::sync::thread;
use crate::threads::affinity::Unpinned;
use crate::threads::crew::Crew;

/// Why a runtime could not be started.
///
/// ```
/// use homing_runtime::{CpuSet, Runtime, RuntimeError};
///
/// let error = Runtime::builder().cpus(CpuSet::EMPTY).build().unwrap_err();
/// assert!(matches!(error, RuntimeError::NoCpu { .. }));
/// let error = Runtime::builder().thread_name("a\0b").build().unwrap_err();
/// assert!(error.to_string().contains("leave out the NUL"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The machine could not be read.
    #[error("the machine's topology cannot be read: {0}")]
    Topology(#[from] TopologyError),
    /// None of the CPUs asked for may be used.
    #[error("none of the CPUs {wanted} is online and allowed (those are {usable})")]
    NoCpu {
        /// The CPUs asked for.
        wanted: String,
        /// The CPUs that could have been asked for.
        usable: String,
    },
    /// No worker thread at all could be created, or the monitor's could not.
    #[error("no worker thread, or no monitor thread, could be created: {0}")]
    Thread(#[source] io::Error),
    /// The system does not accept this name for a thread.
    #[error("{name:?} cannot be a thread name: leave out the NUL")]
    Name {
        /// The name given.
        name: String,
    },
    /// The reactor of async-io could not be started. It needs a thread of its own and file
    /// descriptors.
    #[cfg(feature = "async-io")]
    #[error(
        "async-io's reactor cannot be started ({0}): let this process have more threads or file descriptors, or do \
         without it: Builder::drive_io(false)"
    )]
    Reactor(String),
    /// [`Builder::build_global`] was called too late.
    #[error("the process-wide runtime has been started already")]
    GlobalStarted,
}

/// How to start a runtime.
///
/// ```
/// use std::time::Duration;
///
/// use homing_runtime::Runtime;
///
/// let runtime = Runtime::builder()
///     .thread_name("storage")
///     .pinned(true)
///     .keep_alive(Duration::from_secs(1))
///     .stack_size(4 << 20)
///     .cpu_intensive_thresh(Duration::from_millis(30))
///     .build()?;
/// assert!(!runtime.cpus().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    cpus: Option<CpuSet>,
    stack_size: usize,
    pinned: bool,
    thread_name: String,
    keep_alive: Duration,
    cpu_intensive: Duration,
    watchdog: Duration,
    on_stall: Option<StallHandler>,
    machine: Option<Machine>,
    refuse_threads: Option<Arc<AtomicBool>>,
    recorded: usize,
    #[cfg(feature = "async-io")]
    drives_io: bool,
    #[cfg(feature = "tokio")]
    tokio: Option<tokio::runtime::Handle>,
}

/// How long a queue may stand still: the kernel's `workqueue.watchdog_thresh`.
const WATCHDOG: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct StallHandler(OnStall);

impl fmt::Debug for StallHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StallHandler")
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            cpus: None,
            stack_size: default_stack_size(),
            pinned: true,
            thread_name: "homing".to_owned(),
            keep_alive: Duration::from_secs(10),
            cpu_intensive: Duration::from_nanos(CPU_INTENSIVE_NS),
            watchdog: WATCHDOG,
            on_stall: None,
            machine: None,
            refuse_threads: None,
            recorded: 0,
            #[cfg(feature = "async-io")]
            drives_io: true,
            #[cfg(feature = "tokio")]
            tokio: None,
        }
    }
}

impl Builder {
    /// The CPUs that may get workers. Default: all. Of these, those get one that the affinity mask
    /// and the cgroup's cpuset allow, and no more of them than the cgroup's quota keeps busy. While
    /// the runtime works, it follows changes of the mask of all threads (`taskset -a`), of the
    /// cpuset and of the quota. CPUs that were offline when the runtime started are never used.
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Whether each worker stays on its CPU (the default), or the kernel may move it. Then the home
    /// of what its items queue is still the CPU that it works for, wherever it runs. A thread that
    /// an item creates may run where its creator may run: only on that one CPU, unless the new
    /// thread belongs to a runtime.
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// The name of the threads; `/` and a number follow it. Default: `homing`.
    pub fn thread_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.thread_name);
        self
    }

    /// The stack of each thread that runs items, in bytes. Default: `RUST_MIN_STACK`, else 2 MiB,
    /// as for all threads. A thread that waits for an item may run that item on its own stack if
    /// less than half of it is used. If no threads can be created, it runs other items there, up to
    /// three quarters of the stack, and items that somebody waits for up to seven eighths.
    pub fn stack_size(mut self, stack_size: usize) -> Self {
        self.stack_size = stack_size.max(1);
        self
    }

    /// How long a spare thread waits for the next item that blocks before the thread ends. Default:
    /// 10 s. One spare always stays, and so do as many threads as there are CPUs.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// The CPU time from which an item counts as CPU-intensive: the kernel's
    /// `workqueue.cpu_intensive_thresh_us`. Default: 10 ms. With 0, none does.
    pub fn cpu_intensive_thresh(mut self, threshold: Duration) -> Self {
        self.cpu_intensive = threshold;
        self
    }

    /// A queue is reported if items wait in it and no worker has taken any for this long: the
    /// kernel's `workqueue.watchdog_thresh`. Default: 30 s. With 0, none is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use homing_runtime::Runtime;
    ///
    /// let runtime = Runtime::builder().watchdog_thresh(Duration::from_secs(5)).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watchdog_thresh(mut self, threshold: Duration) -> Self {
        self.watchdog = threshold;
        self
    }

    /// The function that is told of such stalls. It is called on a thread made for it, and called
    /// again each time that the threshold has passed once more. While a call lasts, other stalls
    /// are counted and not told. If there can be no thread, the monitor calls it, and does nothing
    /// else meanwhile: no timer fires, and no blocked thread is replaced. The runtime's end does
    /// not wait for a call. Default: a report on standard error. With the feature `tracing`, there
    /// is also a `tracing` event.
    ///
    /// ```
    /// use homing_runtime::Runtime;
    ///
    /// let runtime = Runtime::builder().on_stall(|stall| eprintln!("{stall}")).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_stall(mut self, on_stall: impl Fn(&Stall) + Send + Sync + 'static) -> Self {
        self.on_stall = Some(StallHandler(Arc::new(on_stall)));
        self
    }

    /// Whether a worker that would sleep drives the reactor of the crate async-io (timers, sockets,
    /// child processes) instead. A future that waits for I/O is then queued by the worker that sees
    /// it ready, without a hop through another thread. Default, with that feature: true. If this is
    /// false, and at moments when no worker sleeps, async-io's own thread drives the reactor until
    /// the next event. Of the wake-ups of 200 timers on two CPUs, that thread handled 6 to 105.
    ///
    /// The reactor belongs to the whole process, so a worker that drives it also calls wakers that
    /// have nothing to do with this runtime. The wakers of executors take only a moment. If some
    /// wakers compute, or wait for this runtime, drive the reactor elsewhere.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use homing_runtime::Runtime;
    ///
    /// let runtime = Runtime::builder().drive_io(true).build()?;
    /// let waits = runtime.spawn(async {
    ///     async_io::Timer::after(Duration::ZERO).await;
    ///     6 * 7
    /// });
    /// assert_eq!(waits.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "async-io")]
    pub fn drive_io(mut self, drives_io: bool) -> Self {
        self.drives_io = drives_io;
        self
    }

    /// Lets futures use tokio's I/O and timers: `handle` is entered whenever a future is polled or
    /// dropped. Closures and work items that want to use tokio enter it themselves.
    ///
    /// The handle's own runtime does the I/O, so it has to run: one for the current thread is idle
    /// except in its `block_on`, and then nothing here ends either.
    ///
    /// tokio creates threads where `spawn_blocking`, `tokio::fs` or a look-up of a name asks for
    /// one. If that is a future of this runtime, its worker's one CPU is theirs, too, as long as
    /// they live. So let them have all CPUs when they start:
    ///
    /// ```
    /// # use homing_runtime::Runtime;
    /// use rustix::thread::{sched_getaffinity, sched_setaffinity};
    ///
    /// let cpus = sched_getaffinity(None)?; // what this program may use
    /// let tokio = tokio::runtime::Builder::new_multi_thread()
    ///     .enable_all()
    ///     .on_thread_start(move || sched_setaffinity(None, &cpus).expect("they were allowed"))
    ///     .build()?;
    /// let runtime = Runtime::builder().tokio(tokio.handle().clone()).build()?;
    /// let of_a_thread = async { tokio::task::spawn_blocking(|| sched_getaffinity(None)).await };
    /// assert_eq!(runtime.spawn(of_a_thread).join()???, cpus);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Timers and sockets need nothing of the kind:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use homing_runtime::Runtime;
    /// use tokio::time::timeout;
    ///
    /// let tokio = tokio::runtime::Runtime::new()?;
    /// let runtime = Runtime::builder().tokio(tokio.handle().clone()).build()?;
    /// // Without a handle tokio's timer would panic.
    /// let answer = runtime.spawn(async { timeout(Duration::from_secs(60), async { 42 }).await });
    /// assert_eq!(answer.join()??, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn tokio(mut self, handle: tokio::runtime::Handle) -> Self {
        self.tokio = Some(handle);
        self
    }

    /// Decides as if the machine were this one, and leaves placement to the kernel: for tests of
    /// large machines on small ones.
    ///
    /// ```
    /// use homing_runtime::{Runtime, Scope};
    /// use homing_topology::Machine;
    ///
    /// let runtime = Runtime::builder().on_machine(Machine::from_grid("2x1x2")?).build()?;
    /// assert_eq!(runtime.cpus().len(), 4);
    /// assert_eq!(runtime.machine().pods(Scope::Cache).len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)]
    pub fn on_machine(mut self, machine: Machine) -> Self {
        self.machine = Some(machine);
        self
    }

    /// Records the last `limit` decisions, with everything that they were made from. With 0, the
    /// default, none is recorded. [`Runtime::take_decisions`] returns them, and they can be
    /// replayed elsewhere. Each recorded decision costs a lock that all threads share. While the
    /// runtime works, the attribute `module/record_decisions` changes this limit.
    ///
    /// ```
    /// use homing_runtime::Runtime;
    ///
    /// let runtime = Runtime::builder().record_decisions(1_000).build()?;
    /// runtime.queue(|| 1 + 1).join()?;
    /// for record in runtime.take_decisions() {
    ///     assert_eq!(record.replay(runtime.layout()), Ok(record.decided()));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_decisions(mut self, limit: usize) -> Self {
        self.recorded = limit;
        self
    }

    /// While this is true, no thread can be created: for tests.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::AtomicBool};
    ///
    /// use homing_runtime::{Runtime, RuntimeError};
    ///
    /// let refuse = Arc::new(AtomicBool::new(true));
    /// let refused = Runtime::builder().refuse_threads(refuse).build();
    /// assert!(matches!(refused, Err(RuntimeError::Thread(_))));
    /// ```
    #[doc(hidden)]
    pub fn refuse_threads(mut self, refuse: Arc<AtomicBool>) -> Self {
        self.refuse_threads = Some(refuse);
        self
    }

    /// Starts the threads.
    ///
    /// If the system refuses some of them, the runtime works with the others and tries again now
    /// and then.
    ///
    /// # Errors
    /// [`RuntimeError`] if the machine cannot be read, no CPU may be used, the name of the threads
    /// is not accepted, or no worker or no monitor can be created; with the feature `async-io` also
    /// if its reactor cannot be started.
    pub fn build(self) -> Result<Runtime, RuntimeError> {
        let _unpinned = Unpinned::begin();
        if self.thread_name.contains('\0') {
            return Err(RuntimeError::Name { name: self.thread_name });
        }
        if let Some(machine) = self.machine.clone() {
            let active = self.cpus.unwrap_or(*machine.online()).and(machine.online());
            return self.start(&machine, active);
        }
        let root = Path::new("/");
        let machine = Machine::here()?;
        let mut allowed = Allowed::read(root, &machine)?;
        let usable = allowed.cpus;
        allowed.cpus = self.cpus.map_or(usable, |wanted| wanted.and(&usable));
        let active = allowed.worker_cpus(&machine);
        if active.is_empty() {
            let wanted = self.cpus.filter(|cpus| !cpus.is_empty());
            let wanted = wanted.map_or("(an empty set)".to_owned(), |cpus| cpus.to_string());
            return Err(RuntimeError::NoCpu { wanted, usable: usable.to_string() });
        }
        self.start(&machine, active)
    }

    /// Starts the process-wide runtime, which [`Runtime::global`] would otherwise start with the
    /// defaults.
    ///
    /// # Errors
    /// As for [`Builder::build`], and [`RuntimeError::GlobalStarted`].
    ///
    /// ```
    /// use homing_runtime::{Runtime, RuntimeError};
    ///
    /// let runtime = Runtime::builder().thread_name("storage").build_global()?;
    /// assert!(std::ptr::eq(runtime, Runtime::global()?));
    /// let late = Runtime::builder().build_global();
    /// assert!(matches!(late, Err(RuntimeError::GlobalStarted)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_global(self) -> Result<&'static Runtime, RuntimeError> {
        Runtime::set_global(self)
    }

    fn start(self, machine: &Machine, active: CpuSet) -> Result<Runtime, RuntimeError> {
        let no_cpu = || RuntimeError::NoCpu { wanted: String::new(), usable: String::new() };
        let layout = Layout::new(machine).ok_or_else(no_cpu)?;
        let settings = Settings {
            stack_size: self.stack_size,
            pinned: self.pinned && self.machine.is_none(),
            wanted: self.cpus,
            mask_is_fixed: self.machine.is_some(),
            cpu_intensive_ns: AtomicU64::new(nanoseconds(self.cpu_intensive)),
            watchdog_ns: AtomicU64::new(nanoseconds(self.watchdog)),
            on_stall: self.on_stall.map(|StallHandler(on_stall)| on_stall),
            #[cfg(feature = "async-io")]
            drives_io: self.drives_io,
            #[cfg(feature = "tokio")]
            tokio: self.tokio,
        };
        #[cfg(feature = "async-io")]
        if settings.drives_io {
            crate::threads::sleeper::start_reactor().map_err(RuntimeError::Reactor)?;
        }
        let crew = Crew::new(self.thread_name.clone(), self.keep_alive);
        let hooks = Hooks { refuse_threads: self.refuse_threads };
        let dispatch = Dispatch::new(layout, &active);
        dispatch.tape().set_limit(self.recorded);
        let shared = Shared::new(dispatch, crew, settings, hooks);
        let (mut cpus, mut refused) = (active.iter(), None);
        let mut create = |cpu| {
            shared.crew.create(&shared, Some(cpu)).map_err(|error| refused = Some(error)).is_ok()
        };
        // A runtime needs one worker and the monitor, whatever else the system refuses.
        cpus.find(|cpu| create(*cpu));
        let Some(runtime) = Runtime::around(Arc::clone(&shared)) else {
            let error = refused.unwrap_or_else(|| io::Error::other("no CPU to put one on"));
            return Err(RuntimeError::Thread(error));
        };
        let runtime = runtime.start_monitor(&self.thread_name)?;
        cpus.for_each(|cpu| _ = create(cpu));
        if refused.is_some() {
            // It may have looked before, and rest.
            runtime.shared().call_monitor();
        }
        Ok(runtime)
    }
}

/// The standard library's default.
fn default_stack_size() -> usize {
    let chosen = std::env::var("RUST_MIN_STACK").ok().and_then(|size| size.parse().ok());
    chosen.unwrap_or(2 << 20)
}

impl Runtime {
    fn start_monitor(self, name: &str) -> Result<Self, RuntimeError> {
        let shared = Arc::clone(self.shared());
        let body = move || looks::main(&shared);
        let monitor = self
            .shared()
            .hooks
            .create_thread(|| thread::Builder::new().name(format!("{name}/monitor")).spawn(body));
        self.set_monitor(monitor.map_err(RuntimeError::Thread)?);
        Ok(self)
    }
}
