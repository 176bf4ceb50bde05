//! The engine: who asks, and what runs.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use homing_runtime::{Runtime, Workqueue, WorkqueueError, blocking};

use crate::commit;
use crate::counters::{Counters, Counts, add};
use crate::description::Description;
use crate::error::DurabilityError;
use crate::files::{Asked, FileId, Files, Job};
use crate::strategy::Strategy;
use crate::synced::{Outcome, Synced, SyncedMany, Verdict};
use crate::system::{Failure, Linux, System};

/// What of a file is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The data, and of the metadata what reading it needs: `fdatasync`.
    Data,
    /// All: `fsync`.
    All,
}

/// Syncs under way at a time, unless told otherwise: beyond that the disks measured gained little.
const DEPTH: usize = 64;

/// Makes files durable without blocking who asks. Cheap to clone; clones are the same engine.
///
/// The syncs run on a workqueue of the runtime, `durable`. A file may be asked for through any of
/// its descriptions; of each the error that the kernel has for it is heard, and kept for the file.
#[derive(Clone)]
pub struct Durable {
    engine: Arc<Engine>,
}

struct Engine {
    files: Mutex<Files>,
    system: Box<dyn System>,
    workqueue: Workqueue,
    strategy: AtomicU8,
    depth: AtomicUsize,
    counts: Counts,
    /// The runtime has.
    ended: AtomicBool,
}

impl Durable {
    /// An engine on this runtime.
    ///
    /// # Errors
    /// As for a workqueue that is built.
    pub fn new(runtime: &Runtime) -> Result<Self, WorkqueueError> {
        Self::with_system(runtime, Linux)
    }

    /// With other system calls: for tests of faults.
    #[doc(hidden)]
    pub fn with_system(runtime: &Runtime, system: impl System) -> Result<Self, WorkqueueError> {
        let engine = Engine {
            files: Mutex::default(),
            system: Box::new(system),
            workqueue: runtime.workqueue("durable").build()?,
            strategy: AtomicU8::new(Strategy::Auto as u8),
            depth: AtomicUsize::new(DEPTH),
            counts: Counts::default(),
            ended: AtomicBool::new(false),
        };
        Ok(Self { engine: Arc::new(engine) })
    }

    /// Begins to make all of a file durable, as it is now. A new file is found after a crash only
    /// if its directory has been synced, too.
    pub fn fsync(&self, file: &impl Description) -> Synced {
        self.begin(file, Kind::All)
    }

    /// Begins to make a file's data durable, and of its metadata what reading it needs.
    pub fn fdatasync(&self, file: &impl Description) -> Synced {
        self.begin(file, Kind::Data)
    }

    /// Begins to make the names in a directory durable: of files that were made, renamed or
    /// removed there.
    pub fn fsync_dir(&self, directory: &impl Description) -> Synced {
        self.begin(directory, Kind::All)
    }

    /// [`Durable::fsync`] of many files; what becomes of each, in their order.
    pub fn fsync_many<'a, D: Description + 'a>(
        &self,
        files: impl IntoIterator<Item = &'a D>,
    ) -> SyncedMany {
        let all: Vec<Synced> = files.into_iter().map(|file| self.ask(file, Kind::All)).collect();
        // Once for all of them: so that they are seen to be many.
        self.engine.go_on();
        SyncedMany { all, done: Vec::new() }
    }

    /// [`Durable::fsync`], and waits. Where nothing else is under way the caller's own thread does
    /// it: it takes no longer than the system call.
    ///
    /// # Errors
    /// [`DurabilityError`] where the file did not become durable.
    pub fn fsync_and_wait(&self, file: &File) -> Result<(), DurabilityError> {
        self.wait_for(file, Kind::All)
    }

    /// [`Durable::fdatasync`], and waits, as [`Durable::fsync_and_wait`].
    ///
    /// # Errors
    /// As there.
    pub fn fdatasync_and_wait(&self, file: &File) -> Result<(), DurabilityError> {
        self.wait_for(file, Kind::Data)
    }

    /// Says that the data lost by a failure has been written again, or given up. Syncs of the file
    /// are tried again from then on. What the failure was, if there was one.
    pub fn acknowledge_loss(&self, file: &File) -> Option<DurabilityError> {
        self.engine.files().acknowledge(identify(file).ok()?)
    }

    /// How files are made durable; live.
    pub fn set_strategy(&self, strategy: Strategy) {
        self.engine.strategy.store(strategy as u8, Ordering::Relaxed);
    }

    /// How files are made durable.
    pub fn strategy(&self) -> Strategy {
        self.engine.strategy()
    }

    /// How many syncs may be under way at a time, at least 1; live. Default: 64.
    pub fn set_depth(&self, depth: usize) {
        self.engine.depth.store(depth.max(1), Ordering::Relaxed);
        self.engine.go_on();
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.engine.counts.read()
    }

    fn begin(&self, file: &impl Description, kind: Kind) -> Synced {
        let synced = self.ask(file, kind);
        self.engine.go_on();
        synced
    }

    fn ask(&self, file: &impl Description, kind: Kind) -> Synced {
        let engine = &self.engine;
        add(&engine.counts.asked, 1);
        let asked = identify(file.file()).and_then(|id| {
            // The number that the asker knows it by: of the same description, unless it has been
            // closed and opened since, and then it has heard of nothing yet.
            let number = file.file().as_raw_fd();
            engine.files().ask(id, kind, number, || file.keep())
        });
        match asked {
            Ok(Asked::New(outcome)) => Synced::of(outcome),
            Ok(Asked::Shares(outcome)) => {
                add(&engine.counts.shared, 1);
                Synced::of(outcome)
            }
            Ok(Asked::Failed(error)) => Synced::done(engine.failed(Err(error))),
            // Out of descriptors, for one: then the asker's own will do, and the asker waits.
            Err(_) => Synced::done(self.sync_here(file.file(), kind)),
        }
    }

    fn wait_for(&self, file: &File, kind: Kind) -> Result<(), DurabilityError> {
        let engine = &self.engine;
        let Ok(id) = identify(file) else { return self.sync_here(file, kind) };
        let alone = engine.files().begin_alone(id, engine.depth.load(Ordering::Relaxed));
        match alone {
            Err(error) => engine.failed(Err(error)),
            Ok(false) => self.begin(file, kind).wait(),
            Ok(true) => {
                add(&engine.counts.asked, 1);
                add(&engine.counts.files, 1);
                let began = Instant::now();
                let synced = blocking(|| engine.system.sync(file, kind));
                let verdict = synced.map_err(|failure| commit::error(id, file, kind, &failure));
                let mut files = engine.files();
                files.end_job(id.device, false, began.elapsed());
                let keep = || file.try_clone().ok().map(Arc::new);
                let in_vain = files.end(id, &verdict, keep);
                drop(files);
                engine.tell(in_vain, &verdict);
                engine.go_on();
                engine.failed(verdict)
            }
        }
    }
}

impl Durable {
    /// Syncs a file that the engine cannot keep, on the caller's thread. A failure is sticky all
    /// the same.
    fn sync_here(&self, file: &File, kind: Kind) -> Verdict {
        let engine = &self.engine;
        add(&engine.counts.files, 1);
        let synced = blocking(|| engine.system.sync(file, kind));
        let Err(failure) = synced else { return Ok(()) };
        let id = identify(file).unwrap_or(FileId { device: 0, inode: 0 });
        let verdict = Err(commit::error(id, file, kind, &failure));
        engine.files().note_failure(id, &verdict);
        engine.failed(verdict)
    }
}

impl Engine {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strategy(&self) -> Strategy {
        match self.strategy.load(Ordering::Relaxed) {
            1 => Strategy::Files,
            2 => Strategy::Filesystem,
            _ => Strategy::Auto,
        }
    }

    /// Counts a verdict that somebody gets without sharing it.
    fn failed(&self, verdict: Verdict) -> Verdict {
        if verdict.is_err() {
            add(&self.counts.failed, 1);
        }
        verdict
    }

    fn tell(&self, outcome: Option<Arc<Outcome>>, verdict: &Verdict) {
        if let Some(outcome) = outcome {
            outcome.set(self.failed(verdict.clone()));
        }
    }

    /// Begins whatever can be begun.
    fn go_on(self: &Arc<Self>) {
        loop {
            let depth = self.depth.load(Ordering::Relaxed);
            let Some(job) = self.files().next_job(self.strategy(), depth) else { return };
            if self.ended.load(Ordering::Acquire) {
                self.give_up_one(job);
                continue;
            }
            let run = Run { engine: Arc::clone(self), job: Some(job) };
            self.workqueue.execute(move || run.run());
        }
    }

    fn run(self: &Arc<Self>, job: Job) {
        let began = Instant::now();
        let (syncs, verdicts, was_commit) = match job {
            Job::File(sync) => {
                add(&self.counts.files, 1);
                let verdict = commit::one(&*self.system, &sync);
                (vec![sync], vec![verdict], false)
            }
            Job::Commit(syncs) => {
                add(&self.counts.commits, 1);
                add(&self.counts.committed, syncs.len() as u64);
                let verdicts = commit::all(&*self.system, &syncs);
                (syncs, verdicts, true)
            }
        };
        let mut told = Vec::with_capacity(syncs.len());
        {
            let mut files = self.files();
            if let Some(first) = syncs.first() {
                files.end_job(first.id.device, was_commit, began.elapsed());
            }
            for (sync, verdict) in syncs.iter().zip(&verdicts) {
                let in_vain = files.end(sync.id, verdict, || Some(Arc::clone(&sync.file)));
                told.push(in_vain);
            }
        }
        // What is next begins before those who wait are woken.
        self.go_on();
        for ((sync, verdict), in_vain) in syncs.into_iter().zip(verdicts).zip(told) {
            self.tell(in_vain, &verdict);
            self.tell(Some(sync.outcome), &verdict);
        }
    }

    /// A job will not run, because the runtime has ended; nor will those that wait.
    fn give_up(self: &Arc<Self>, job: Job) {
        self.ended.store(true, Ordering::Release);
        self.give_up_one(job);
        self.go_on();
    }

    fn give_up_one(&self, job: Job) {
        let (syncs, was_commit) = match job {
            Job::File(sync) => (vec![sync], false),
            Job::Commit(syncs) => (syncs, true),
        };
        let mut files = self.files();
        if let Some(first) = syncs.first() {
            files.end_job(first.id.device, was_commit, std::time::Duration::ZERO);
        }
        let next: Vec<_> = syncs.iter().map(|sync| files.give_up(sync.id)).collect();
        drop(files);
        for (sync, next) in syncs.into_iter().zip(next) {
            let error = io::Error::from(rustix::io::Errno::CANCELED);
            let failure =
                Failure { operation: "the runtime, which has ended, before the sync", error };
            let verdict = Err(commit::error(sync.id, &sync.file, sync.kind, &failure));
            self.tell(next, &verdict);
            self.tell(Some(sync.outcome), &verdict);
        }
    }
}

/// A job on its way: it runs, or those who wait for it are told that it does not.
struct Run {
    engine: Arc<Engine>,
    job: Option<Job>,
}

impl Run {
    fn run(mut self) {
        if let Some(job) = self.job.take() {
            blocking(|| self.engine.run(job));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.engine.give_up(job);
        }
    }
}

fn identify(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    Ok(FileId { device: metadata.dev(), inode: metadata.ino() })
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable")
            .field("strategy", &self.strategy())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
