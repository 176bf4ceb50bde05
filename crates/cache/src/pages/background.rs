//! What runs in the background, and when. At most one job of each kind runs at a time: one that
//! reclaims and, for each group, one that reads ahead and one that writes back. The thread that
//! notices that there is work asks for the job.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::panics::drop_quietly;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::{Condvar, Mutex, lock};

/// A piece of work that may take long, and may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs the background work of a cache: writing back and reclaiming ahead of need, reading ahead.
///
/// Dropping a job instead of running it does no harm: requests then do the urgent work themselves,
/// and the next request that notices work asks for a job again. There is one exception: a [smaller
/// size](super::PageCache::set_size) is refused if dirty pages are in its way and no job runs.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use homing_cache::pages::{Background, Job, PageCache};
///
/// /// Sends jobs to a thread of the program.
/// struct Jobs(Sender<Job>);
///
/// impl Background for Jobs {
///     fn spawn(&self, job: Job) {
///         let _ = self.0.send(job);
///     }
/// }
///
/// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
/// # struct Disk(File);
/// # impl homing_cache::pages::Backing for Disk {
/// #     fn size(&self) -> u64 { 1 << 20 }
/// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
/// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
/// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
/// # }
/// # let temporary = tempfile::tempfile()?;
/// # temporary.set_len(1 << 20)?;
/// # let disk = Arc::new(Disk(temporary));
/// let (jobs, thread) = channel();
/// let cache = PageCache::builder(4 << 20).background(Jobs(jobs)).build()?;
/// let group = cache.group("tenant").build();
/// let file = cache.open(disk, &group)?;
/// file.prefetch(0, 8192); // asks for a job, and continues
/// thread.recv()?(); // as that thread does
/// assert_eq!(group.usage(), 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Background: Send + Sync {
    /// Runs the job elsewhere and soon. It must neither run the job in place nor wait for another
    /// job to end, because the caller is in the middle of a request or of a job. The cache holds no
    /// lock during this call. So `spawn` may look at the cache, and may change its size unless that
    /// is what the caller is doing.
    fn spawn(&self, job: Job);
}

/// The cache's own threads: as many as there are jobs, so that no job waits for another group's
/// disk. A thread ends when the cache does, or when there was nothing to do for a while.
#[derive(Default)]
pub(super) struct OwnThreads(Arc<Pool>);

/// How much memory must be left to the process for a thread to be created, in bytes.
const ROOM: usize = 1 << 20;

/// The most threads: if there are more jobs at a time, some wait for others.
const THREADS_MAX: usize = 64;
/// How long a thread waits for the next job.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Pool {
    state: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Background for OwnThreads {
    fn spawn(&self, job: Job) {
        let mut jobs = lock(&self.0.state);
        jobs.waiting.push_back(job);
        if jobs.idle >= jobs.waiting.len() || jobs.threads == THREADS_MAX {
            self.0.changed.notify_one();
            return;
        }
        jobs.threads += 1;
        drop(jobs);
        let pool = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("page-cache".to_owned());
        // A thread that begins without memory for its signal stack ends the process.
        let room = memmap2::MmapMut::map_anon(ROOM);
        if room.and_then(|_| thread.spawn(move || pool.run())).is_ok() {
            return;
        }
        let mut jobs = lock(&self.0.state);
        jobs.threads -= 1;
        // If there can be no thread at all, the jobs are dropped; without the lock, as they ask for
        // others.
        let dropped =
            if jobs.threads == 0 { std::mem::take(&mut jobs.waiting) } else { VecDeque::new() };
        drop(jobs);
        drop(dropped);
    }
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_all();
    }
}

impl Pool {
    fn run(&self) {
        // It is begun by whoever needs it first.
        crate::cpus::unpin();
        while let Some(job) = self.next() {
            // A backing's panic has been reported by now, and this thread is to go on with other
            // jobs.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(job)) {
                drop_quietly(payload);
            }
        }
    }

    /// The next job. `None` if there was none for a while, or the cache is gone: then the thread
    /// does not count any more.
    fn next(&self) -> Option<Job> {
        let mut jobs = lock(&self.state);
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.closed {
                break;
            }
            jobs.idle += 1;
            let waited = self.changed.wait_timeout(jobs, IDLE);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            jobs = now;
            jobs.idle -= 1;
            if timeout.timed_out() && jobs.waiting.is_empty() {
                break;
            }
        }
        jobs.threads -= 1;
        None
    }
}

/// Asks for jobs of one kind.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// Whether there is a job, waiting or running.
    present: AtomicBool,
    /// Whether there is something to do that no job has begun.
    wanted: AtomicBool,
}

/// What a job holds until it ends, so that another one can be asked for however it ends.
pub(super) struct Present(Option<Arc<Service>>);

impl Service {
    /// Notes that there is something to do. Returns whether there is no job for it: then the caller
    /// has to call [`want`](Self::want).
    pub(super) fn say(&self) -> bool {
        // Usually it is noted already; then nothing is written.
        if !self.wanted.load(SeqCst) {
            self.wanted.store(true, SeqCst);
        }
        !self.present.load(SeqCst)
    }

    /// Notes that there is something to do. Returns whether the caller has to spawn a job for it.
    pub(super) fn want(&self) -> bool {
        self.say() && !self.present.swap(true, SeqCst)
    }
}

impl Present {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Self(Some(Arc::clone(service)))
    }

    /// Works until nothing is wanted.
    pub(super) fn serve(mut self, mut work: impl FnMut()) {
        while let Some(service) = &self.0 {
            while service.wanted.swap(false, SeqCst) {
                work();
            }
            service.present.store(false, SeqCst);
            // A thread that wanted something before this store saw the job present.
            if !service.wanted.load(SeqCst) || service.present.swap(true, SeqCst) {
                // Another job may be present by now, so dropping this must not change that.
                self.0 = None;
            }
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if let Some(service) = &self.0 {
            service.present.store(false, SeqCst);
        }
    }
}
