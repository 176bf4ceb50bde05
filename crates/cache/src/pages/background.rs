//! Who works in the background, and when: at most one job of a kind at a time (writing back and
//! reclaiming, reading ahead), asked for by those who see that there is something to do.

use std::sync::Arc;

use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::lock;

/// A piece of work that may take long, and may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs the background work of a cache: writing back and reclaiming ahead of need, reading ahead.
///
/// A job that is dropped instead does no harm: requests do then what cannot wait, and the next one
/// that sees work asks again.
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
/// file.prefetch(0, 8192); // asks for a job, and goes on
/// thread.recv()?(); // as that thread does
/// assert_eq!(group.usage(), 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Background: Send + Sync {
    /// Runs the job, elsewhere and soon. Must not run it in place: the caller may be in the midst of a
    /// request.
    fn spawn(&self, job: Job);
}

/// A thread of the cache's own, begun when it is first needed.
#[derive(Debug, Default)]
pub(super) struct OwnThread(Mutex<Option<std::sync::mpsc::Sender<Job>>>);

impl Background for OwnThread {
    fn spawn(&self, job: Job) {
        let mut sender = lock(&self.0);
        if sender.is_none() {
            let (new, jobs) = std::sync::mpsc::channel::<Job>();
            let thread = std::thread::Builder::new().name("page-cache".to_owned());
            // It ends when the cache does. Where there can be no thread, the job is dropped.
            let begun = thread.spawn(move || jobs.into_iter().for_each(|job| job()));
            *sender = begun.is_ok().then_some(new);
        }
        if let Some(to) = &*sender
            && to.send(job).is_err()
        {
            // A job panicked: the next one gets a new thread.
            *sender = None;
        }
    }
}

/// Asks for jobs of one kind.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// Whether a job is there, waiting or running.
    present: AtomicBool,
    /// Whether there is something to do that no job has begun with.
    wanted: AtomicBool,
}

/// What a job holds until it ends, so that another one can be asked for whatever becomes of it.
pub(super) struct Present(Option<Arc<Service>>);

impl Service {
    /// There is something to do. Returns whether a job has to be spawned for it.
    pub(super) fn want(&self) -> bool {
        // Mostly said already: then nothing is written.
        if !self.wanted.load(SeqCst) {
            self.wanted.store(true, SeqCst);
        }
        !self.present.load(SeqCst) && !self.present.swap(true, SeqCst)
    }
}

impl Present {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Self(Some(Arc::clone(service)))
    }

    /// Does what is wanted until nothing is.
    pub(super) fn serve(mut self, mut work: impl FnMut()) {
        while let Some(service) = &self.0 {
            while service.wanted.swap(false, SeqCst) {
                work();
            }
            service.present.store(false, SeqCst);
            // Who wanted something before that saw the job present.
            if !service.wanted.load(SeqCst) || service.present.swap(true, SeqCst) {
                // Another one may be by now.
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
