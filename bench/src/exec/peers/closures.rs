//! Peers that take closures.

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::Pool;

/// A rayon pool of its own. `spawn` goes to the worker's deque where the caller is one.
pub(crate) struct Rayon(rayon::ThreadPool);

impl Pool for Rayon {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(rayon::ThreadPoolBuilder::new().num_threads(workers).build()?))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.spawn(work);
    }

    /// Called on a worker, which runs some of them and waits for the others.
    fn fan_out(&'static self, items: impl Iterator<Item = impl FnOnce() + Send + 'static>) {
        items.collect::<Vec<_>>().into_par_iter().for_each(|item| item());
    }
}

/// The crate threadpool. Its last release is old, but it is what many programs still use.
pub(crate) struct Threadpool(threadpool::ThreadPool);

impl Pool for Threadpool {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(threadpool::ThreadPool::new(workers)))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.execute(work);
    }
}
