//! The runtime: starts the workers, makes workqueues, stops the workers.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use homing_sched::Layout;
use homing_topology::{Allowed, CpuId, CpuSet, Machine, TopologyError};

use crate::queues::Queues;
use crate::spare::SpareCpus;
use crate::worker::{Shared, Worker};
use crate::workqueue::WorkqueueBuilder;

/// Why a runtime could not be started.
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
    /// Not a single worker thread could be created.
    #[error("no worker thread could be created: {0}")]
    Thread(#[source] io::Error),
}

/// How to start a runtime.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    cpus: Option<CpuSet>,
    pinned: bool,
    thread_name: String,
}

impl Default for Builder {
    fn default() -> Self {
        Self { cpus: None, pinned: true, thread_name: "homing".to_owned() }
    }
}

impl Builder {
    /// The CPUs that get workers. Default: those that the affinity mask and the cgroup's cpuset
    /// allow, and no more of them than its quota keeps busy.
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Whether each worker stays on its CPU (the default), or the kernel may move it.
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// What worker threads are called, before `/` and their CPU. Default: `homing`.
    pub fn thread_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.thread_name);
        self
    }

    /// Starts the workers.
    ///
    /// Where the system refuses some of the threads the runtime works with the others.
    ///
    /// # Errors
    /// [`RuntimeError`] where the machine cannot be read, no CPU may be used, or no thread at all
    /// can be created.
    pub fn build(self) -> Result<Runtime, RuntimeError> {
        let root = Path::new("/");
        let machine = Machine::read(root)?;
        let allowed = Allowed::read(root, &machine)?;
        let cpus = match self.cpus {
            Some(wanted) => wanted.and(&allowed.cpus),
            None => allowed.worker_cpus(&machine),
        };
        if cpus.is_empty() {
            let wanted = self.cpus.unwrap_or(CpuSet::EMPTY).to_string();
            return Err(RuntimeError::NoCpu { wanted, usable: allowed.cpus.to_string() });
        }
        self.start(&machine, &cpus)
    }

    /// Threads first, layout after: the layout must name only CPUs whose worker exists.
    fn start(self, machine: &Machine, cpus: &CpuSet) -> Result<Runtime, RuntimeError> {
        let mut started = Vec::new();
        let mut refused = None;
        for cpu in cpus.iter() {
            let (go, wait) = mpsc::channel::<Arc<Shared>>();
            let pinned = self.pinned;
            let body = move || {
                // The runtime was not built after all if nothing comes.
                let Ok(shared) = wait.recv() else { return };
                if pinned {
                    // Refused where the CPU has just gone offline: then the kernel places us.
                    let _ = pin_to(cpu);
                }
                Worker::new(shared, cpu).run();
            };
            let name = format!("{}/{cpu}", self.thread_name);
            match thread::Builder::new().name(name).spawn(body) {
                Ok(thread) => started.push((cpu, go, thread)),
                Err(error) => refused = Some(error),
            }
        }
        let workers: CpuSet = started.iter().map(|(cpu, ..)| *cpu).collect();
        let Some(layout) = Layout::new(machine, &workers) else {
            let error = refused.unwrap_or_else(|| io::Error::other("no CPU to put one on"));
            return Err(RuntimeError::Thread(error));
        };
        let shared = Arc::new(Shared {
            queues: Queues::new(layout),
            stopping: AtomicBool::new(false),
            stopping_now: AtomicBool::new(false),
            alive: AtomicUsize::new(workers.len()),
        });
        let threads = started.into_iter().map(|(_, go, thread)| {
            // The receiver lives until it has received.
            let _ = go.send(Arc::clone(&shared));
            thread
        });
        let threads = threads.collect();
        Ok(Runtime { shared, spare: Arc::new(SpareCpus::new(workers)), threads })
    }
}

pub(crate) fn pin_to(cpu: CpuId) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu.index());
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Worker threads and their queues. Several runtimes can stand side by side in one process.
///
/// Dropping it waits for everything that is queued; [`Runtime::shutdown_now`] does not.
pub struct Runtime {
    shared: Arc<Shared>,
    spare: Arc<SpareCpus>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Runtime {
    /// Starts a runtime with a worker on every CPU that this process may use.
    pub fn new() -> Result<Self, RuntimeError> {
        Self::builder().build()
    }

    /// Starts with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Begins a workqueue called `name`.
    pub fn workqueue(&self, name: &str) -> WorkqueueBuilder {
        WorkqueueBuilder::new(Arc::clone(&self.shared), Arc::clone(&self.spare), name)
    }

    /// The CPUs that have workers.
    pub fn cpus(&self) -> &CpuSet {
        self.shared.queues.layout().workers()
    }

    /// Ends the workers after the items they run at present; what is still queued is cancelled.
    pub fn shutdown_now(mut self) {
        self.shared.stopping_now.store(true, Ordering::Release);
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.queues.wake_all();
        // An item may own the runtime: its own worker cannot wait for itself.
        let me = thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
            // Workers do not panic; if one did, the others must still be waited for.
            let _ = thread.join();
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("cpus", self.cpus()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
