//! Peers that take closures.

use super::Pool;

/// A rayon pool of its own. `spawn` pushes to the worker's deque if the caller is a worker. Its
/// parallel iterators and its scopes make their caller wait, and other roots then begin on the
/// caller's stack: with those the stack overflowed.
pub(crate) struct Rayon(rayon::ThreadPool);

impl Pool for Rayon {
    fn start(workers: usize) -> anyhow::Result<Self> {
        Ok(Self(rayon::ThreadPoolBuilder::new().num_threads(workers).build()?))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        self.0.spawn(work);
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
