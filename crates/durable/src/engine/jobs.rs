//! Carries out the jobs that the engine has begun, on workers or through the ring, ends them, and
//! tells the callers that waited.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use homing_runtime::blocking;

use super::{Engine, nanoseconds, runtime_ended};
use crate::choices::policy::Policy;
use crate::counters::add;
use crate::durable::Kind;
use crate::engine::backend::Ring;
use crate::engine::commit::{self, Committed};
use crate::engine::commits::Commits;
use crate::files::entry::Sync;
use crate::files::file_id::Is;
use crate::files::filesystem::Work;
use crate::files::{Ended, Files, Job};
use crate::sync::Ordering;
use crate::synced::Verdict;
use crate::system::Failure;

impl Engine {
    pub(super) fn hand_over(self: &Arc<Self>, job: Job) {
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

    pub(super) fn give_up_one(&self, job: Job) {
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
