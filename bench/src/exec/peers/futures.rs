//! Peers that take futures, or hand one out for each closure. A closure becomes a future that is
//! ready at its first poll.

use std::future;
use std::mem;
use std::thread;

use super::Pool;

/// tokio's multi-threaded runtime and `spawn`.
pub(crate) struct Tokio(tokio::runtime::Runtime);

impl Pool for Tokio {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build()?))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        drop(self.0.spawn(async move { work() }));
    }
}

/// The same, with `spawn_blocking` for items that block: the number of those threads is tokio's
/// default.
pub(crate) struct TokioDeclared(Tokio);

impl Pool for TokioDeclared {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(Tokio::start(workers)?))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.submit(work);
    }

    fn submit_blocking(&'static self, work: impl FnOnce() + Send + 'static) {
        drop(self.0.0.spawn_blocking(work));
    }
}

/// tokio's threads for blocking work, as many as the others have workers.
pub(crate) struct TokioBlocking(tokio::runtime::Runtime);

impl Pool for TokioBlocking {
    fn start(workers: usize) -> anyhow::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        // tokio's one worker has nothing to do.
        Ok(Self(builder.worker_threads(1).max_blocking_threads(workers).build()?))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        drop(self.0.spawn_blocking(work));
    }
}

/// async-executor, run by plain threads as its documentation has it.
pub(crate) struct AsyncExecutor(&'static async_executor::StaticExecutor);

impl Pool for AsyncExecutor {
    fn start(workers: usize) -> anyhow::Result<Self> {
        let executor = async_executor::Executor::new().leak();
        for _ in 0..workers {
            let run = || futures_lite::future::block_on(executor.run(future::pending::<()>()));
            thread::Builder::new().spawn(run)?;
        }
        Ok(Self(executor))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.spawn(async move { work() }).detach();
    }
}

/// bevy's task pool.
pub(crate) struct BevyTasks(bevy_tasks::TaskPool);

impl Pool for BevyTasks {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(bevy_tasks::TaskPoolBuilder::new().num_threads(workers).build()))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.spawn(async move { work() }).detach();
    }
}

/// affinitypool. Dropping its future would cancel the item and there is no way to detach it, so the
/// future is forgotten: the item's memory is never given back, which its peak RSS shows.
pub(crate) struct Affinitypool(affinitypool::Threadpool);

impl Pool for Affinitypool {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(affinitypool::Threadpool::new(workers)))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        mem::forget(self.0.spawn(work));
    }
}
