//! homing: everything that the comparison knows of its interface. Each method of [`Pool`] is to use
//! what homing does best: items without a handle, batches and declared blocking belong here as soon
//! as there are such calls.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use homing::{Allowed, CpuSet, Features, Machine, Runtime, Workqueue, WorkqueueBuilder};

use super::Pool;

/// The parts of its policy that are on; all parts if it is not set.
pub(crate) static FEATURES: OnceLock<Features> = OnceLock::new();

/// One workqueue with the default attributes, on pinned workers.
pub(crate) struct Homing {
    queue: Workqueue,
    /// The workers end with it.
    runtime: Runtime,
}

impl Homing {
    /// Starts it with a workqueue of another kind.
    pub(crate) fn start_as(
        workers: usize,
        kind: impl FnOnce(WorkqueueBuilder) -> WorkqueueBuilder,
    ) -> anyhow::Result<Self> {
        let root = Path::new("/");
        let machine = Machine::read(root).context("the machine's CPUs cannot be read")?;
        let allowed = Allowed::read(root, &machine).context("the allowed CPUs cannot be read")?;
        let cpus: CpuSet = allowed.worker_cpus(&machine).iter().take(workers).collect();
        ensure!(
            cpus.len() == workers,
            "homing has a worker for each CPU, and {workers} are too many"
        );
        let runtime = Runtime::builder().cpus(cpus).build()?;
        if let Some(features) = FEATURES.get() {
            runtime.set_features(*features);
        }
        let queue = kind(runtime.workqueue("bench")).build()?;
        Ok(Self { queue, runtime })
    }

    /// The workqueue.
    pub(crate) const fn queue(&self) -> &Workqueue {
        &self.queue
    }

    /// The CPUs with workers.
    pub(crate) fn cpus(&self) -> CpuSet {
        self.runtime.cpus()
    }
}

impl Pool for Homing {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Self::start_as(workers, |builder| builder)
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.queue.execute(work);
    }

    fn fan_out(&'static self, items: impl Iterator<Item = impl FnOnce() + Send + 'static>) {
        self.queue.execute_batch(items);
    }
}

/// The same, told which items block: they have a workqueue of their own, as tokio has threads for
/// `spawn_blocking`.
pub(crate) struct HomingDeclared(Homing, Workqueue);

impl Pool for HomingDeclared {
    fn start(workers: usize) -> anyhow::Result<Self> {
        let homing = Homing::start(workers)?;
        let blocking = homing.runtime.workqueue("blocking").blocking().build()?;
        Ok(Self(homing, blocking))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.submit(work);
    }

    fn submit_blocking(&'static self, work: impl FnOnce() + Send + 'static) {
        self.1.execute(work);
    }
}
