//! The engine: what is asked of it, and what it begins.

pub(crate) mod backend;
mod by_caller;
pub(crate) mod calls;
pub(crate) mod commit;
pub(crate) mod commits;
mod crowd;
pub(crate) mod jobs;
mod noted;
#[cfg(target_os = "linux")]
mod ring;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use homing_runtime::{JoinHandle, Runtime, Workqueue, WorkqueueError};

use crate::choices::policy::{Policy, Settings};
use crate::counters::{Counts, add};
use crate::durable::Kind;
use crate::engine::backend::Chosen;
use crate::engine::commits::Commits;
use crate::engine::crowd::Crowd;
use crate::error::{DurabilityError, Loss};
use crate::files::entry::Sync;
use crate::files::failures::Failures;
use crate::files::file_id::{FileId, Is};
use crate::files::{Asked, Files, Job};
use crate::replace::Turns;
use crate::sync::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait_briefly,
};
use crate::synced::{Synced, Verdict};
use crate::system::description::Description;
use crate::system::{Failure, System};

/// What all clones of a [`Durable`](crate::Durable) share.
pub(crate) struct Engine {
    files: Mutex<Files>,
    /// Notified when a group, or a file's next sync, need not be put off any longer.
    gathered: Condvar,
    pub(crate) system: Box<dyn System>,
    workqueue: Workqueue,
    /// Where functions of callers are called if the other one may have few items at a time: they
    /// may wait for its next item.
    events: Workqueue,
    pub(crate) turns: Turns,
    pub(crate) settings: Settings,
    pub(crate) crowd: Crowd,
    /// The device that [`Engine::meet`] met last, if its filesystem can be committed: it need not
    /// be asked again. Otherwise `u64::MAX`.
    met: AtomicU64,
    backend: Mutex<Chosen>,
    /// How many flushes of devices have failed: a copy of the count in `files`, to be read without
    /// the lock.
    losses: AtomicU64,
    pub(crate) counts: Counts,
    /// How logs failed, by their folders, which the errors name, until they are opened again.
    failed_logs: Mutex<HashMap<FileId, DurabilityError>>,
    /// The runtime has ended.
    ended: AtomicBool,
}

impl Engine {
    /// The name of its workqueue.
    pub(crate) const NAME: &str = "durable";

    /// Makes the workqueue of an engine. It has a rescuer, so that syncs which items wait for go on
    /// even if no thread can be created, and do not wait for items that compute for long.
    pub(crate) fn workqueue(runtime: &Runtime) -> Result<Workqueue, WorkqueueError> {
        runtime.workqueue(Self::NAME).mem_reclaim().build()
    }

    pub(crate) fn new(
        (workqueue, events): (Workqueue, Workqueue),
        system: impl System,
    ) -> Arc<Self> {
        let failures = if system.is_real() { Failures::of_process() } else { Failures::default() };
        Arc::new(Self {
            files: Mutex::new(Files::with(failures)),
            gathered: Condvar::new(),
            system: Box::new(system),
            workqueue,
            events,
            turns: Turns::default(),
            settings: Settings::default(),
            crowd: Crowd::default(),
            met: AtomicU64::new(u64::MAX),
            backend: Mutex::default(),
            losses: AtomicU64::new(0),
            counts: Counts::default(),
            failed_logs: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        lock(&self.files)
    }

    /// What may be done now.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            strategy: self.settings.strategy(),
            write_back: self.settings.write_back(),
            depth: self.settings.depth(),
            unwritten: self.crowd.unwritten(),
        }
    }

    pub(crate) fn set_depth(self: &Arc<Self>, depth: Option<usize>) {
        self.settings.set_depth(depth);
        self.chosen().set_depth(self.settings.depth());
        self.go_on();
    }

    pub(crate) fn chosen(&self) -> MutexGuard<'_, Chosen> {
        lock(&self.backend)
    }

    /// Counts a verdict if it is a failure: once, however many callers share it.
    pub(crate) fn failed(&self, verdict: Verdict) -> Verdict {
        if verdict.is_err() {
            add(&self.counts.failed, 1);
        }
        verdict
    }

    /// Notes that a log accepts nothing any more.
    pub(crate) fn note_log_failed(&self, error: &DurabilityError) {
        lock(&self.failed_logs).entry(error.id).or_insert_with(|| error.clone());
    }

    /// A log has been opened, which found out what is there.
    pub(crate) fn forget_log_failed(&self, log: FileId) {
        lock(&self.failed_logs).remove(&log);
    }

    /// The failures that nobody has acknowledged, of files and of logs, by when they were seen.
    pub(crate) fn failures(&self) -> Vec<DurabilityError> {
        let mut all = self.files().failures();
        all.extend(lock(&self.failed_logs).values().cloned());
        all.sort_by_key(|error| error.first_seen);
        all
    }

    /// Forgets the failure of a log, if this is one. Returns it.
    pub(crate) fn acknowledge_log(&self, error: &DurabilityError) -> Option<DurabilityError> {
        let mut logs = lock(&self.failed_logs);
        if logs.get(&error.id) == Some(error) { logs.remove(&error.id) } else { None }
    }

    /// Tells the callers that wait for a sync which will not run. Not to be called under the lock,
    /// because this may close the sync's file.
    pub(crate) fn tell(&self, sync: Option<Box<Sync>>, verdict: &Verdict) {
        if let Some(sync) = sync {
            sync.outcome.set(&self.failed(verdict.clone()));
        }
    }

    /// How many flushes of devices have failed. A caller that asks for a sync now is told of those
    /// that fail before its sync ends (see [`Engine::commit`]).
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Lets a worker do this. The work is dropped if the runtime has ended.
    pub(crate) fn execute(&self, work: impl FnOnce() + Send + 'static) {
        // Any thread may hand on the work of other callers here, also an item whose runtime ends.
        self.workqueue.execute_for_accepted(work);
    }

    /// As [`Engine::execute`], for work that calls functions of callers: those may wait for a sync.
    pub(crate) fn execute_calls(&self, calls: impl FnOnce() + Send + 'static) {
        let workqueue = if self.is_limited() { &self.events } else { &self.workqueue };
        workqueue.execute_for_accepted(calls);
    }

    /// As [`Engine::execute_calls`], for a future, which may await syncs.
    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        if self.is_limited() { &self.events } else { &self.workqueue }.spawn(future)
    }

    /// Whether the workqueue may have so many items at a time and no more. A thread that runs one
    /// of them must not call a function of a caller, then.
    pub(crate) fn is_limited(&self) -> bool {
        self.workqueue.max_active().is_some()
    }

    /// Begins whatever can be begun.
    pub(crate) fn go_on(self: &Arc<Self>) {
        if self.files().have_gathered() {
            self.gathered.notify_all();
        }
        while let Some(job) = self.next_job() {
            self.hand_over(job);
        }
    }

    /// Commits what already waits on a filesystem, of a bulk of `expected` files, if all of them
    /// are worth a commit. Files of the bulk that are asked for afterwards must then be checked by
    /// [`Engine::unless_lost`], with the returned count.
    pub(crate) fn begin_bulk(self: &Arc<Self>, device: u64, expected: usize) -> Option<u64> {
        let policy = self.policy();
        let since = self.losses();
        let job = self.files().first_commit(device, expected, policy)?;
        self.hand_over(job);
        Some(since)
    }

    /// The result for a file of a bulk that was asked for after the bulk's first commit had begun.
    /// If a flush of its device has failed since, the file has failed, too: that commit may have
    /// written its data back before.
    pub(crate) fn unless_lost(
        &self,
        since: u64,
        (file, kind): (&impl Description, Kind),
        synced: Synced,
    ) -> Synced {
        // A file that was asked for, under the lock, before a loss was counted is one of those that
        // waited then.
        if self.losses() == since {
            return synced;
        }
        let Ok(id) = FileId::of(file.file()) else { return synced };
        let verdict = commit::unless_lost(&self.files(), since, (id, file.file(), kind), Ok(()));
        if verdict.is_ok() {
            return synced;
        }
        Synced::done(&self.end_own(id, verdict, || file.keep().ok()))
    }

    /// As [`Engine::go_on`], but for one job, which is left to the caller.
    fn go_on_but_for_one(self: &Arc<Self>) -> Option<Job> {
        let mine = self.next_job();
        self.go_on();
        mine
    }

    pub(crate) fn next_job(&self) -> Option<Job> {
        loop {
            let policy = self.policy();
            let job = self.files().next_job(policy)?;
            if !self.ended.load(Ordering::Acquire) {
                return Some(job);
            }
            self.give_up_one(job);
        }
    }

    /// Finds out, once, whether a filesystem can be committed.
    pub(crate) fn meet(&self, device: u64, file: &File) {
        if self.met.load(Ordering::Relaxed) == device || self.files().knows(device) {
            return;
        }
        let commits = self.system.commits(file) != Commits::Unknown;
        self.note_commits(device, commits, true);
    }

    fn note_commits(&self, device: u64, commits: bool, may_change: bool) {
        let mut files = self.files();
        files.note_commits(device, commits, may_change);
        // Under the lock, so that `met` never names a filesystem that has been forgotten.
        self.met.store(if commits { device } else { u64::MAX }, Ordering::Relaxed);
    }

    /// Puts a group off, as after a commit for `expected` callers.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn put_off(self: &Arc<Self>, device: u64, expected: usize, limit: Duration) {
        self.files().put_off(device, expected);
        self.hand_over(Job::Gather(device, limit));
    }

    /// Waits until the callers for whom a group or a file's next sync was put off have come, or
    /// until `until`.
    fn gather(&self, until: Instant, have_come: impl Fn(&Files) -> bool) -> MutexGuard<'_, Files> {
        let mut files = self.files();
        while !have_come(&files) {
            let left = until.saturating_duration_since(Instant::now());
            files = wait_briefly(&self.gathered, &self.files, files, left);
            if left.is_zero() || cfg!(shuttle) {
                break;
            }
        }
        files
    }

    /// As [`Files::ask`]. [`Engine::go_on`] must follow, to begin what there is to do.
    pub(crate) fn ask(
        &self,
        id: FileId,
        kind: Kind,
        callers: usize,
        file: &impl Description,
        is_fresh: bool,
    ) -> io::Result<Asked> {
        self.meet(id.device, file.file());
        // The number that the asker knows the file by. If it still refers to a description that is
        // kept already, that is not kept once more.
        let number = (!is_fresh).then(|| file.file().as_raw_fd());
        self.files().ask(id, kind, callers, number, || file.keep())
    }
}

/// The error for a caller that gave something else for a directory. A sync of that would tell
/// nothing of names.
pub(crate) fn no_directory(file: &File) -> Option<DurabilityError> {
    let id = FileId::of(file).ok().filter(|id| id.is != Is::Directory)?;
    let error = io::Error::from(rustix::io::Errno::NOTDIR);
    let failure = Failure { operation: "fsync_dir", error };
    Some(commit::error(id, file, Kind::All, &failure).with(Loss::NoDirectory))
}

/// The error of a sync that did not begin: nothing is known to be lost, nor to be durable.
pub(crate) fn runtime_ended(id: FileId, file: &File, kind: Kind) -> DurabilityError {
    let error = io::Error::from(rustix::io::Errno::CANCELED);
    let failure = Failure { operation: "the runtime, which has ended, before the sync", error };
    commit::error(id, file, kind, &failure).with(Loss::NotBegun)
}

pub(crate) fn nanoseconds(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}
