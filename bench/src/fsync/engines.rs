//! The engines of the strategies, made before the clock starts.

use std::thread;

use anyhow::{Context, Result};
use homing::Durable;
use homing::Runtime;

use super::queue::{IoUring, LinuxAio, PosixAio, Queue};
use super::strategy::Strategy;

/// The engines that one measurement needs.
#[derive(Default)]
pub(crate) struct Engines {
    /// The engine is dropped before its runtime.
    durable: Option<Durable>,
    runtime: Option<Runtime>,
    tokio: Option<tokio::runtime::Runtime>,
    queue: Option<Box<dyn Queue>>,
}

impl Engines {
    /// The engines of `strategy`, for this many requests at a time.
    pub(crate) fn of(strategy: Strategy, issuers: usize) -> Result<Self> {
        let mut engines = Self::default();
        match strategy {
            Strategy::Homing | Strategy::HomingAsync | Strategy::HomingMany => {
                engines.durable()?;
            }
            Strategy::HomingFiles => {
                let durable = engines.durable()?;
                durable.set_strategy(homing::DurableStrategy::Files);
                durable.set_depth((issuers > 1).then_some(issuers));
            }
            Strategy::Tokio | Strategy::TokioAll => {
                engines.tokio()?;
            }
            Strategy::LinuxAio
            | Strategy::IoUring
            | Strategy::IoUringWorkers
            | Strategy::PosixAio => {
                engines.queue(strategy, issuers)?;
            }
            Strategy::Fsync | Strategy::Syncfs | Strategy::SyncfsOpened => {}
        }
        Ok(engines)
    }

    /// homing's engine, with its defaults.
    pub(crate) fn durable(&mut self) -> Result<&Durable> {
        if self.durable.is_none() {
            let runtime = Runtime::new()?;
            self.durable = Some(Durable::of(&runtime));
            self.runtime = Some(runtime);
        }
        self.durable.as_ref().context("no engine")
    }

    /// The runtime of homing's engine.
    pub(crate) fn runtime(&mut self) -> Result<&Runtime> {
        self.durable()?;
        self.runtime.as_ref().context("no runtime")
    }

    /// tokio's runtime, with its defaults.
    pub(crate) fn tokio(&mut self) -> Result<&tokio::runtime::Runtime> {
        if self.tokio.is_none() {
            let threads = thread::available_parallelism()?.get();
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            self.tokio = Some(builder.worker_threads(threads).build()?);
        }
        self.tokio.as_ref().context("no runtime")
    }

    /// The queue of `strategy`.
    pub(crate) fn queue(&mut self, strategy: Strategy, depth: usize) -> Result<&mut dyn Queue> {
        if self.queue.is_none() {
            let workers = u32::try_from(depth)?;
            self.queue = Some(match strategy {
                Strategy::LinuxAio => Box::new(LinuxAio::new(depth).context("no Linux AIO")?),
                Strategy::IoUring => Box::new(IoUring::new(depth, None).context("no io_uring")?),
                Strategy::IoUringWorkers => {
                    Box::new(IoUring::new(depth, Some(workers)).context("no io_uring")?)
                }
                _ => Box::new(PosixAio::new(depth)),
            });
        }
        self.queue.as_deref_mut().map(|queue| queue as &mut dyn Queue).context("no queue")
    }
}
