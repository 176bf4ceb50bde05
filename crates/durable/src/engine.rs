//! The engine: begins, carries out and ends jobs, and tells the waiting callers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use homing_runtime::{JoinHandle, Runtime, Workqueue, WorkqueueError, blocking};

use crate::backend::{Chosen, Ring};
use crate::commit::{self, Committed};
use crate::commits::Commits;
use crate::counters::{Counts, add};
use crate::description::Description;
use crate::durable::Kind;
use crate::entry::Sync;
use crate::error::{DurabilityError, Loss};
use crate::failures::Failures;
use crate::file_id::{FileId, Is};
use crate::files::{Asked, Ended, Files, Job};
use crate::filesystem::Work;
use crate::policy::{Crowd, Policy, Settings};
use crate::replace::Turns;
use crate::sync::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait_briefly,
};
use crate::synced::{Synced, Verdict};
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

    fn hand_over(self: &Arc<Self>, job: Job) {
        let ring = self.chosen().ring();
        match (job, ring) {
            // After the sync, other descriptions and directories are asked, too. That may take
            // long, so it is not for the ring's thread.
            (Job::File(sync), Some(ring))
                if sync.id.is != Is::Directory && sync.others.is_empty() =>
            {
                self.sync_by(&ring, sync);
            }
            (job, _) => {
                let run = Run { engine: Arc::clone(self), job: Some(job) };
                self.execute(move || run.run());
            }
        }
    }

    fn sync_by(self: &Arc<Self>, ring: &Ring, sync: Sync) {
        let (engine, began) = (Arc::clone(self), Instant::now());
        let (file, kind) = (Arc::clone(&sync.file), sync.kind);
        let done = move |synced: io::Result<()>| {
            let errno = synced.as_ref().err().and_then(io::Error::raw_os_error);
            if matches!(errno, Some(libc::ECANCELED | libc::EINTR)) {
                // The kernel has not even begun, because it had no worker for it or the ring is
                // broken. Or the sync was interrupted.
                let run = Run { engine: Arc::clone(&engine), job: Some(Job::File(sync)) };
                return engine.execute(move || run.run());
            }
            engine.ended_by_ring(sync, synced, began);
        };
        ring.sync(file, kind, Box::new(done));
    }

    /// Ends a sync that the ring has done.
    fn ended_by_ring(self: &Arc<Self>, sync: Sync, synced: io::Result<()>, began: Instant) {
        add(&self.counts.files, 1);
        let operation = "fsync by io_uring";
        let synced = synced.map_err(|error| Failure { operation, error });
        let verdict = commit::verdict(&*self.system, &sync, synced);
        let work = (vec![sync], vec![verdict], false);
        if let Some(job) = self.end(work, began.elapsed(), true) {
            self.hand_over(job);
        }
    }

    /// Does a job. Returns another one, if there is one, for the same thread.
    fn run(self: &Arc<Self>, job: Job) -> Option<Job> {
        let began = Instant::now();
        let (syncs, verdicts, was_commit) = match job {
            Job::File(sync) => {
                add(&self.counts.files, 1);
                let verdict = commit::one(&*self.system, &sync);
                (vec![sync], vec![verdict], false)
            }
            Job::Commit(syncs, early) => {
                let (syncs, verdicts) = self.commit(syncs, early);
                (syncs, verdicts, true)
            }
            Job::WriteBack(device, files) => {
                add(&self.counts.early, files.len() as u64);
                for (id, file) in &files {
                    if let Err(failure) = self.system.begin_write_back(file) {
                        // Its sync, which is still to come, ends with this.
                        let verdict = Err(commit::error(*id, file, Kind::Data, &failure));
                        self.files().note_failure(*id, &verdict, file);
                    }
                }
                self.files().end_beginning(device);
                return self.go_on_but_for_one();
            }
            Job::Gather(device, limit) => {
                let gathered = |files: &Files| files.has_gathered(device);
                self.gather(began + limit, gathered).end_gather(device);
                return self.go_on_but_for_one();
            }
            Job::GatherFile(id, limit) => {
                self.gather(began + limit, |files| files.has_gathered_of(id)).end_gather_of(id);
                return self.go_on_but_for_one();
            }
        };
        self.end((syncs, verdicts, was_commit), began.elapsed(), false)
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

    /// Commits the filesystem of these files, if it still can be committed: the device number may
    /// by now belong to another filesystem, which is then noted.
    ///
    /// If the flush of the device fails, the files that wait for the next commit have failed as
    /// well, and so have those whose syncs are under way ([`commit::unless_lost`]): this commit may
    /// have written their data back, and the next flush may succeed without what the device has
    /// lost.
    fn commit(&self, mut syncs: Vec<Sync>, early: bool) -> (Vec<Sync>, Vec<Verdict>) {
        let Some(first) = syncs.first() else { return (syncs, Vec::new()) };
        let device = first.id.device;
        let commits = self.system.commits(&first.file);
        if commits == Commits::Unknown {
            self.note_commits(device, false, true);
            for sync in &mut syncs {
                sync.is_known = false;
            }
            add(&self.counts.files, syncs.len() as u64);
            let verdicts = syncs.iter().map(|sync| commit::one(&*self.system, sync)).collect();
            return (syncs, verdicts);
        }
        add(&self.counts.commits, 1);
        let Committed { verdicts, is_forbidden, one_by_one, lost } =
            commit::all(&*self.system, &syncs, early, commits);
        if one_by_one {
            add(&self.counts.files, syncs.len() as u64);
        } else if lost.is_none() {
            // What has failed was not made durable by it.
            let durable = verdicts.iter().filter(|verdict| verdict.is_ok()).count();
            add(&self.counts.committed, durable as u64);
        }
        if is_forbidden {
            self.note_commits(device, false, false);
        }
        let Some(failure) = lost.map(Arc::new) else { return (syncs, verdicts) };
        // Before anything else, because a sync that ends before this reports that all is well.
        let waiting = {
            let mut files = self.files();
            self.losses.store(files.note_lost(device, &failure), Ordering::Relaxed);
            files.begin_waiting(device)
        };
        syncs.extend(waiting);
        let own = verdicts.into_iter().chain(std::iter::repeat(Ok(())));
        let of = |sync: &Sync| Err(commit::error(sync.id, &sync.file, sync.kind, &failure));
        let verdicts = syncs.iter().zip(own).map(|(sync, own)| own.and_then(|()| of(sync)));
        let verdicts = verdicts.collect();
        (syncs, verdicts)
    }

    /// Ends a job that has run, syncs of files or a commit: notes the verdicts, and tells the
    /// callers that waited. One of the jobs that can begin now is left to the calling thread, which
    /// may be the ring's.
    pub(crate) fn end(
        self: &Arc<Self>,
        (syncs, verdicts, was_commit): (Vec<Sync>, Vec<Verdict>, bool),
        took: Duration,
        by_ring: bool,
    ) -> Option<Job> {
        let mut told = Vec::with_capacity(syncs.len());
        let policy = self.policy();
        let gathers = {
            let mut files = self.files();
            if let ([only], false) = (&*syncs, was_commit) {
                files.note_ended(only.id, only.askers, took);
            }
            for (sync, verdict) in syncs.iter().zip(verdicts) {
                // `heard` counts even if somebody has acknowledged that failure meanwhile.
                let verdict = sync.heard.as_ref().map_or(verdict, |heard| Err((**heard).clone()));
                let of = (sync.id, &*sync.file, sync.kind);
                let verdict = commit::unless_lost(&files, sync.since, of, verdict);
                told.push(files.end(sync.id, verdict, || Some(Arc::clone(&sync.file))));
            }
            end_job(&mut files, &syncs, was_commit, took, policy);
            let device = syncs.first().map(|sync| sync.id.device);
            device.and_then(|device| files.begin_gather(device, policy))
        };
        self.counts.batches.note(syncs.iter().map(|sync| sync.askers).sum());
        // Before a commit is decided on, which might be of others' data.
        self.crowd.look(&*self.system);
        // Jobs for other threads begin before the waiting callers are woken.
        let mut mine = gathers.or_else(|| self.next_job());
        self.go_on();
        let ended = Instant::now();
        let (mut all, mut calls) = (Vec::with_capacity(syncs.len()), false);
        for (sync, Ended { verdict, in_vain }) in syncs.into_iter().zip(told) {
            let took = ended.saturating_duration_since(sync.asked_at);
            self.counts.latency_ns.note(nanoseconds(took));
            let verdict = self.failed(verdict);
            calls |= sync.outcome.note(&verdict);
            all.push((sync, verdict, in_vain));
        }
        let telling = Telling { engine: Arc::clone(self), all };
        if calls {
            // The functions called may wait for somebody who waits for the next job.
            mine.take().into_iter().for_each(|job| self.hand_over(job));
        }
        if calls && (by_ring || self.is_limited()) {
            // The functions called may take long, and others wait for the ring's thread, or for
            // this one to be done.
            self.execute_calls(move || drop(telling));
        } else {
            drop(telling);
        }
        mine
    }

    /// Gives up a job that will not run because the runtime has ended, and those that wait.
    fn give_up(self: &Arc<Self>, job: Job) {
        self.ended.store(true, Ordering::Release);
        self.give_up_one(job);
        self.go_on();
    }

    fn give_up_one(&self, job: Job) {
        let (syncs, was_commit) = match job {
            Job::File(sync) => (vec![sync], false),
            Job::Commit(syncs, _) => (syncs, true),
            Job::WriteBack(device, _) => return self.files().end_beginning(device),
            Job::Gather(device, _) => return self.files().end_gather(device),
            Job::GatherFile(id, _) => return self.files().end_gather_of(id),
        };
        let policy = self.policy();
        let mut files = self.files();
        end_job(&mut files, &syncs, was_commit, Duration::ZERO, policy);
        let next: Vec<_> = syncs.iter().map(|sync| files.give_up(sync.id)).collect();
        drop(files);
        for (sync, next) in syncs.into_iter().zip(next) {
            let verdict = Err(runtime_ended(sync.id, &sync.file, sync.kind));
            self.tell(next, &verdict);
            sync.outcome.set(&self.failed(verdict));
        }
    }
}

fn end_job(files: &mut Files, syncs: &[Sync], was_commit: bool, took: Duration, policy: Policy) {
    if let Some(first) = syncs.first() {
        let waved = syncs.iter().filter(|sync| sync.in_wave).count();
        let askers = syncs.iter().map(|sync| sync.askers as usize).sum();
        let callers = syncs.iter().map(|sync| sync.callers).sum();
        let (count, by_caller) = (syncs.len(), false);
        let work = Work { was_commit, files: count, askers, callers, waved, by_caller };
        files.end_job(first.id.device, work, took, policy);
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

/// Callers that are to be told their verdicts. Dropping this tells them.
struct Telling {
    engine: Arc<Engine>,
    /// Each with the next sync of the file, if its callers wait in vain.
    all: Vec<(Sync, Verdict, Option<Box<Sync>>)>,
}

impl Drop for Telling {
    fn drop(&mut self) {
        for (sync, verdict, in_vain) in self.all.drain(..) {
            self.engine.tell(in_vain, &verdict);
            sync.outcome.tell(&verdict);
        }
    }
}

/// A job on its way to a worker. If this is dropped before the job has run, the callers that wait
/// for it are told that it will not.
struct Run {
    engine: Arc<Engine>,
    job: Option<Job>,
}

/// How many jobs a worker does one after the other. Then it looks for other work, and whether the
/// runtime ends.
pub(crate) const TURNS_MAX: usize = 16;

impl Run {
    fn run(mut self) {
        blocking(|| {
            for _ in 0..TURNS_MAX {
                let Some(job) = self.job.take() else { return };
                // The next job stays here, so that no other thread has to be woken for it.
                self.job = self.engine.run(job);
            }
        });
        if let Some(job) = self.job.take() {
            self.engine.hand_over(job);
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
