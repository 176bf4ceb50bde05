//! The files that are being synced, or wait to be: one entry for each, by device and inode. Every
//! request and every end of a sync goes through here, under one lock. The only system calls made
//! under it are those that duplicate a descriptor, compare two, or name a file that a failed flush
//! has lost.

pub(crate) mod entry;
pub(crate) mod failures;
pub(crate) mod file_id;
pub(crate) mod filesystem;
pub(crate) mod gather;
mod gathers;
mod ready;
#[cfg(all(test, not(shuttle)))]
mod tests;

use std::collections::{BTreeMap, HashMap, hash_map};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::BULK;
use crate::choices::group::Service;
use crate::choices::policy::Policy;
use crate::choices::strategy::Strategy;
use crate::durable::Kind;
use crate::error::{DurabilityError, Loss};
use crate::files::entry::{By, Entry, Sync};
use crate::files::failures::{Failed, Failures};
use crate::files::file_id::FileId;
use crate::files::filesystem::{Alone, Filesystem, Work};
use crate::files::gathers::Gathers;
use crate::synced::{Outcome, Verdict};
use crate::system::Failure;

/// Beyond this many filesystems, those of which nothing is wanted are forgotten: device numbers
/// come and go with mounts, and each job looks at all filesystems. Chosen: more than most machines
/// have mounted.
pub(crate) const FILESYSTEMS_MAX: usize = 64;

/// If this many times the depth are under way on all filesystems together, each may have one job:
/// the threads stay bounded, and even then no disk waits for another one. Chosen: more disks than
/// hang at the same time.
pub(crate) const DEPTHS_MAX: usize = 8;

/// What to do next.
#[derive(Debug)]
pub(crate) enum Job {
    File(Sync),
    /// All that wait on one filesystem. `true`: their data is to be written back first, early.
    Commit(Vec<Sync>, bool),
    /// Files of one filesystem whose write-back is to begin, before they are synced.
    WriteBack(u64, Vec<(FileId, Arc<File>)>),
    /// The next group of a filesystem is put off, for at most this long (`group`).
    Gather(u64, Duration),
    /// The next sync of a file is put off, for at most this long (`gather`).
    GatherFile(FileId, Duration),
}

/// The answer to a request for a sync.
pub(crate) enum Asked {
    /// There is a verdict already.
    Failed(DurabilityError),
    /// The sync was asked for before and has not begun: this caller shares it.
    Shares(Arc<Outcome>),
    New(Arc<Outcome>),
}

/// What came of a sync.
pub(crate) struct Ended {
    /// An error also if another sync of the file has failed meanwhile: that one may have covered
    /// data that this one did not find any more.
    pub(crate) verdict: Verdict,
    /// The next sync, if its callers would wait in vain: they are to be told the same.
    pub(crate) in_vain: Option<Box<Sync>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Files {
    entries: HashMap<FileId, Entry>,
    failures: Failures,
    filesystems: BTreeMap<u64, Filesystem>,
    /// How many jobs that use a disk are under way, on all filesystems.
    running: usize,
    /// The filesystem of the last job.
    served: u64,
    /// How many flushes of devices have failed.
    losses: u64,
    /// Files of which several callers ask for the same sync.
    gathers: Gathers,
}

impl Files {
    /// For an engine that shares its failures with others.
    pub(crate) fn with(failures: Failures) -> Self {
        Self { failures, ..Self::default() }
    }

    /// Asks for a file to be durable as it is now. `keep` gives the asker's description, and
    /// `number` is what the asker knows it by: `None` if it was opened for this alone, and so has
    /// heard of nothing that others have not. `callers` counts callers that have not asked for
    /// another file just now.
    pub(crate) fn ask(
        &mut self,
        id: FileId,
        kind: Kind,
        callers: usize,
        number: Option<RawFd>,
        keep: impl FnOnce() -> io::Result<Arc<File>>,
    ) -> io::Result<Asked> {
        if let Some(error) = self.failures.of(id) {
            return Ok(Asked::Failed(error));
        }
        let entry = self.entries.entry(id).or_default();
        if let Some(next) = &mut entry.next {
            next.kind = next.kind.max(kind);
            if let Some(number) = number.filter(|number| !next.knows(*number)) {
                next.learn(number, keep()?);
            }
            next.askers += 1;
            let outcome = Arc::clone(&next.outcome);
            self.gathers.note_come(entry.has_just_gathered());
            return Ok(Asked::Shares(outcome));
        }
        let file = match keep() {
            Ok(file) => file,
            Err(error) => {
                self.sweep(id);
                return Err(error);
            }
        };
        let mut sync = Sync::new(id, file, kind);
        (sync.callers, sync.number, sync.since) = (callers, number, self.losses);
        let asked = Asked::New(Arc::clone(&sync.outcome));
        if entry.by == By::Nobody {
            self.filesystems.entry(id.device).or_default().note_idle(sync.asked_at);
        }
        entry.next = Some(Box::new(sync));
        self.go_on_with(id, By::Nobody);
        Ok(asked)
    }

    /// Counts the caller that asked for this file, if its sync is still to begin, as one that syncs
    /// a few files.
    pub(crate) fn note_caller(&mut self, id: FileId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(next) = &mut entry.next else { return };
        next.callers += 1;
        if entry.is_ready {
            self.filesystems.entry(id.device).or_default().callers += 1;
        }
    }

    /// Lets the caller sync a file at once, if nobody syncs that file and nothing is under way that
    /// this sync should not be beside. Unless the caller `waits` anyway, nothing at all may be
    /// there. For one that waits, files that wait are no obstacle. There may be `depth` such syncs
    /// on a filesystem, beside as many jobs.
    pub(crate) fn begin_alone(
        &mut self,
        id: FileId,
        policy: Policy,
        waits: bool,
    ) -> Result<Option<Alone>, DurabilityError> {
        if let Some(error) = self.failures.of(id) {
            return Err(error);
        }
        let entry = self.entries.entry(id).or_default();
        let filesystem = self.filesystems.entry(id.device).or_default();
        let idle = filesystem.note_idle(Instant::now());
        let commits = policy.strategy == Strategy::Filesystem && filesystem.may_commit();
        let alone = entry.is_free()
            && !entry.would_gather(1)
            && entry.next.is_none()
            && !commits
            && (idle || (waits && filesystem.may_begin_beside(policy)))
            && filesystem.alone < filesystem.depth(policy);
        if alone {
            entry.by = By::Turn;
            filesystem.alone += 1;
            filesystem.begin_alone();
        }
        self.sweep(id);
        Ok(alone.then_some(Alone { beside: !idle, since: self.losses }))
    }

    /// Whether it is known if a filesystem can be committed.
    pub(crate) fn knows(&self, device: u64) -> bool {
        self.filesystems.get(&device).is_some_and(Filesystem::is_known)
    }

    /// Notes whether a filesystem can be committed; for good, if nothing `may_change` that.
    pub(crate) fn note_commits(&mut self, device: u64, commits: bool, may_change: bool) {
        if self.filesystems.len() >= FILESYSTEMS_MAX && !self.filesystems.contains_key(&device) {
            self.filesystems.retain(|_, filesystem| !filesystem.is_idle());
        }
        self.filesystems.entry(device).or_default().note_commits(commits, may_change);
    }

    /// The next thing to do, if there is anything on a filesystem with fewer than `depth` under
    /// way.
    pub(crate) fn next_job(&mut self, policy: Policy) -> Option<Job> {
        if let Some((id, limit)) = self.gathers.next_job() {
            return Some(Job::GatherFile(id, limit));
        }
        let Policy { strategy, write_back, .. } = policy;
        let one_each = self.are_many(policy);
        // Filesystems take turns.
        let devices: Vec<u64> = self.filesystems.keys().copied().collect();
        let turn = devices.partition_point(|device| *device <= self.served);
        let (before, after) = devices.split_at(turn);
        for device in after.iter().chain(before).copied() {
            let Some(filesystem) = self.filesystems.get_mut(&device) else { continue };
            let waiting = filesystem.ready.len();
            if waiting == 0 || filesystem.beginning || filesystem.group.gathers() {
                continue;
            }
            if !filesystem.has_room(policy, one_each) {
                continue;
            }
            let depth = filesystem.depth(policy);
            let service = filesystem.service(policy);
            if service != Service::Beside && filesystem.committing {
                continue;
            }
            // The wait is limited, so that a slow sync holds nobody up for long.
            let holds = if service == Service::Beside { None } else { filesystem.hold() };
            if let Some(limit) = holds {
                return Some(Job::Gather(device, limit));
            }
            self.served = device;
            // While a commit runs, other files gather for the next one, unless they are few.
            let commits = match service {
                Service::Beside => filesystem.prefers_commit(policy, depth),
                _ => waiting > 1 || strategy == Strategy::Filesystem,
            };
            let next = if filesystem.committing && commits {
                filesystem.take_single(policy, depth)
            } else {
                let early = service == Service::EarlyCommits;
                if commits && let Some(commit) = self.commit(device, early) {
                    return Some(commit);
                }
                let Some(filesystem) = self.filesystems.get_mut(&device) else { continue };
                let wave = filesystem.waves.begin(write_back, waiting, depth, Instant::now());
                if let Some(early) = wave {
                    let files = self.begin_wave(device, early);
                    if early {
                        self.begin_job(device);
                        return Some(Job::WriteBack(device, files));
                    }
                }
                self.filesystems.get_mut(&device).and_then(|filesystem| filesystem.ready.pop())
            };
            if let Some(sync) = next.and_then(|id| self.begin(id)) {
                self.begin_job(device);
                return Some(Job::File(*sync));
            }
        }
        None
    }

    /// Whether so many jobs are under way on all filesystems that each may have only one. A disk
    /// that hangs keeps its jobs, but takes none from the others.
    fn are_many(&self, policy: Policy) -> bool {
        let depths = self.filesystems.values().map(|filesystem| filesystem.depth(policy));
        self.running >= depths.max().unwrap_or(1).saturating_mul(DEPTHS_MAX)
    }

    /// Counts a job that uses a filesystem's disk.
    fn begin_job(&mut self, device: u64) {
        self.running += 1;
        self.filesystems.entry(device).or_default().running += 1;
    }

    /// A commit of all files that wait on a filesystem.
    fn commit(&mut self, device: u64, early: bool) -> Option<Job> {
        let syncs = self.begin_waiting(device);
        if syncs.is_empty() {
            return None;
        }
        self.filesystems.get_mut(&device)?.committing = true;
        self.begin_job(device);
        Some(Job::Commit(syncs, early))
    }

    /// Begins all files that wait on a filesystem, for a job that has begun, or begins.
    pub(crate) fn begin_waiting(&mut self, device: u64) -> Vec<Sync> {
        let filesystem = self.filesystems.get_mut(&device);
        let ids = filesystem.map(|filesystem| filesystem.ready.take_plain()).unwrap_or_default();
        let mut syncs = Vec::with_capacity(ids.len());
        syncs.extend(ids.into_iter().filter_map(|id| self.begin(id)).map(|sync| *sync));
        syncs
    }

    /// Notes that the flush of a filesystem's device has failed. Returns how many flushes of all
    /// devices have failed by now.
    pub(crate) fn note_lost(&mut self, device: u64, failure: &Arc<Failure>) -> u64 {
        self.losses += 1;
        let lost = Some((self.losses, Arc::clone(failure)));
        self.filesystems.entry(device).or_default().lost = lost;
        self.losses
    }

    /// How the flush of a file's device has failed, if it has since `since` flushes of all devices
    /// had failed.
    pub(crate) fn lost_since(&self, id: FileId, since: u64) -> Option<Arc<Failure>> {
        let filesystem = self.filesystems.get(&id.device).filter(|_| id.is.is_of_filesystem())?;
        let (_, failure) = filesystem.lost.as_ref().filter(|(count, _)| *count > since)?;
        Some(Arc::clone(failure))
    }

    /// A commit of the files that wait on a filesystem, the first of `expected`, if all of those
    /// are worth one and nothing else is under way there.
    pub(crate) fn first_commit(
        &mut self,
        device: u64,
        expected: usize,
        policy: Policy,
    ) -> Option<Job> {
        let filesystem = self.filesystems.get(&device)?;
        let has_room = filesystem.has_room(policy, self.are_many(policy));
        let busy = filesystem.syncing > 0 || filesystem.beginning || filesystem.group.gathers();
        let depth = filesystem.depth(policy);
        let worth = filesystem.costs.is_worth(policy, expected, depth);
        // A bulk over several filesystems may have only a file or two on this one.
        let few = filesystem.ready.len() < BULK;
        let begins = worth && has_room && filesystem.may_commit() && !(few || busy);
        if begins { self.commit(device, false) } else { None }
    }

    /// Makes all files that wait a wave. Returns them if their write-back is to begin `early`.
    fn begin_wave(&mut self, device: u64, early: bool) -> Vec<(FileId, Arc<File>)> {
        let Some(filesystem) = self.filesystems.get_mut(&device) else { return Vec::new() };
        filesystem.beginning = early;
        let mut files = Vec::new();
        for id in filesystem.ready.iter() {
            let Some(next) = self.entries.get_mut(id).and_then(|entry| entry.next.as_mut()) else {
                continue;
            };
            next.in_wave = true;
            if early {
                files.push((*id, Arc::clone(&next.file)));
            }
        }
        files
    }

    /// The write-back of a wave has begun, or will not.
    pub(crate) fn end_beginning(&mut self, device: u64) {
        self.running -= 1;
        if let Some(filesystem) = self.filesystems.get_mut(&device) {
            filesystem.running -= 1;
            filesystem.beginning = false;
        }
    }

    fn begin(&mut self, id: FileId) -> Option<Box<Sync>> {
        let entry = self.entries.get_mut(&id)?;
        let mut next = entry.next.take()?;
        entry.by = By::Turn;
        entry.is_ready = false;
        if let Some(filesystem) = self.filesystems.get_mut(&id.device) {
            next.is_known = filesystem.may_commit() && id.is.is_of_filesystem();
            filesystem.begin(next.callers);
        }
        Some(next)
    }

    /// A file's sync has ended: notes what came of it. See [`Ended`].
    pub(crate) fn end(
        &mut self,
        id: FileId,
        verdict: Verdict,
        keep: impl FnOnce() -> Option<Arc<File>>,
    ) -> Ended {
        let mut last = By::Nobody;
        if let hash_map::Entry::Occupied(mut entry) = self.entries.entry(id) {
            last = std::mem::take(&mut entry.get_mut().by);
            if verdict.is_ok() && entry.get().is_idle() && self.failures.of(id).is_none() {
                // Most are, and there may be thousands.
                entry.remove();
                return Ended { verdict, in_vain: None };
            }
        }
        let ended = self.end_own(id, verdict, keep);
        self.go_on_with(id, last);
        ended
    }

    /// Makes the sync that waits for a file ready, or puts it off until the callers of the last one
    /// have come, if it can begin. `last` is who had the last turn.
    fn go_on_with(&mut self, id: FileId, last: By) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.can_begin(last)) else {
            return self.sweep(id);
        };
        let may = self.gathers.may_put_off();
        if let Some(limit) = may.then(|| entry.begin_gather()).flatten() {
            self.gathers.put_off(id, limit);
        } else {
            self.make_ready(id, last);
        }
    }

    /// Makes the sync that waits for a file one of those that its filesystem can begin, if it can.
    fn make_ready(&mut self, id: FileId, last: By) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.can_begin(last)) else {
            return self.sweep(id);
        };
        entry.is_ready = true;
        let callers = entry.next.as_ref().map_or(0, |next| next.callers);
        self.filesystems.entry(id.device).or_default().push(id, callers);
    }

    /// As [`Files::end`], for a sync beside all others, through a description of its own.
    pub(crate) fn end_own(
        &mut self,
        id: FileId,
        verdict: Verdict,
        keep: impl FnOnce() -> Option<Arc<File>>,
    ) -> Ended {
        let failed = self.failure(id).map_or(verdict, Err);
        // A file that cannot be synced at all is not kept open for its failure: somebody may wait
        // for a pipe's end.
        let lost = failed.as_ref().err().filter(|error| error.loss != Loss::Refused);
        let Some(error) = lost else { return Ended { verdict: failed, in_vain: None } };
        // `DURABLE-3`
        self.failures.note(id, || (error.clone(), keep()));
        let entry = self.entries.entry(id).or_default();
        let in_vain = entry.next.take();
        entry.is_ready = false;
        self.sweep(id);
        if let Some(next) = &in_vain
            && let Some(filesystem) = self.filesystems.get_mut(&id.device)
        {
            filesystem.forget(id, next.callers);
            if next.in_wave {
                filesystem.waves.end(1, false, Instant::now());
            }
        }
        Ended { verdict: failed, in_vain }
    }

    /// Whether a caller that cannot be queued for the next sync of a file has the file for itself
    /// now: nobody syncs it, or is about to. [`Files::end`] ends that. Otherwise the caller has a
    /// claim from now on, so that it is not overtaken again and again.
    pub(crate) fn begin_here(&mut self, id: FileId, has_claim: &mut bool) -> bool {
        let entry = self.entries.entry(id).or_default();
        let begins = entry.by == By::Nobody && !entry.is_ready;
        match (begins, *has_claim) {
            (true, true) => entry.claims -= 1,
            (false, false) => entry.claims += 1,
            _ => {}
        }
        *has_claim = !begins;
        if begins {
            entry.by = By::Claim;
        }
        begins
    }

    /// Notes that a sync of a file for this many askers is about to end, and how long it took.
    pub(crate) fn note_ended(&mut self, id: FileId, askers: u64, took: Duration) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let changed = entry.note_ended(askers as usize, took);
        if let Some(oldest) = changed.and_then(|is_shared| self.gathers.note(id, is_shared)) {
            self.entries.get_mut(&oldest).into_iter().for_each(Entry::forget_known);
            self.sweep(oldest);
        }
    }

    /// Whether the callers for whom a file's next sync waits have come.
    pub(crate) fn has_gathered_of(&self, id: FileId) -> bool {
        self.entries.get(&id).is_none_or(Entry::has_gathered)
    }

    /// A file's next sync waits for callers no longer.
    pub(crate) fn end_gather_of(&mut self, id: FileId) {
        self.gathers.end();
        self.entries.get_mut(&id).into_iter().for_each(Entry::end_gather);
        self.make_ready(id, By::Nobody);
    }

    /// How a file failed, if nobody has acknowledged it.
    pub(crate) fn failure(&self, id: FileId) -> Option<DurabilityError> {
        self.failures.of(id)
    }

    /// Notes that the write-back of a file has failed as it began. Its sync, which is still to
    /// come, ends with that error.
    pub(crate) fn note_failure(&mut self, id: FileId, verdict: &Verdict, file: &Arc<File>) {
        if let Err(error) = verdict {
            let entry = self.entries.entry(id).or_default();
            if let Some(next) = &mut entry.next {
                next.heard = Some(Box::new(error.clone()));
            }
            self.failures.note(id, || (error.clone(), Some(Arc::clone(file))));
            self.sweep(id);
        }
    }

    /// Gives up a sync that was never begun: nothing is known of the file. Returns the next one.
    pub(crate) fn give_up(&mut self, id: FileId) -> Option<Box<Sync>> {
        let entry = self.entries.get_mut(&id)?;
        entry.by = By::Nobody;
        entry.is_ready = false;
        let next = entry.next.take();
        self.sweep(id);
        next
    }

    /// Forgets a file if there is nothing to know of it.
    fn sweep(&mut self, id: FileId) {
        if self.entries.get(&id).is_some_and(Entry::is_idle) {
            self.entries.remove(&id);
        }
    }

    /// A job has ended, and so have its files' syncs.
    pub(crate) fn end_job(&mut self, device: u64, work: Work, took: Duration, policy: Policy) {
        // Nothing is to be learned about depths while there is one job.
        let depth = if self.are_many(policy) { Some(1) } else { policy.depth };
        let policy = Policy { depth, ..policy };
        self.running -= usize::from(!work.by_caller);
        if let Some(filesystem) = self.filesystems.get_mut(&device) {
            let running =
                if work.by_caller { &mut filesystem.alone } else { &mut filesystem.running };
            *running -= 1;
            filesystem.end_work(work, took, policy, Instant::now());
        }
    }

    /// Whether the next group of a filesystem is put off, after a job has ended.
    pub(crate) fn begin_gather(&mut self, device: u64, policy: Policy) -> Option<Job> {
        let limit = self.filesystems.get_mut(&device)?.begin_gather(policy)?;
        Some(Job::Gather(device, limit))
    }

    /// Whether a filesystem's group need not be put off any longer, as when all wait that are
    /// expected.
    pub(crate) fn has_gathered(&self, device: u64) -> bool {
        self.filesystems.get(&device).is_none_or(Filesystem::has_gathered)
    }

    /// Whether some group or file's sync need not be put off any longer, and nobody was told so
    /// far.
    pub(crate) fn have_gathered(&mut self) -> bool {
        let mut any = self.gathers.say();
        for filesystem in self.filesystems.values_mut() {
            any |= filesystem.has_gathered() && filesystem.group.say();
        }
        any
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn put_off(&mut self, device: u64, expected: usize) {
        self.filesystems.entry(device).or_default().group.put_off(expected);
    }

    /// The group of a filesystem is put off no longer.
    pub(crate) fn end_gather(&mut self, device: u64) {
        if let Some(filesystem) = self.filesystems.get_mut(&device) {
            filesystem.group.end_gather(filesystem.callers);
        }
    }

    /// Whether anything waits to be begun.
    pub(crate) fn waits(&self) -> bool {
        self.gathers.has_job()
            || self.filesystems.values().any(|filesystem| !filesystem.ready.is_empty())
    }

    /// What has failed and was not acknowledged, in no order.
    pub(crate) fn failures(&self) -> Vec<DurabilityError> {
        self.failures.all()
    }

    /// A line for each filesystem: its device, what waits, what its ways cost.
    #[cfg(feature = "control")]
    pub(crate) fn filesystems(&self, policy: Policy) -> Vec<String> {
        let line = |(device, filesystem): (&u64, &Filesystem)| filesystem.told(*device, policy);
        self.filesystems.iter().map(line).collect()
    }

    /// Forgets a failure if `is_it` says so. Returns it, and the description that was kept with it:
    /// closing that may take long, so the caller does it.
    pub(crate) fn acknowledge(
        &self,
        id: FileId,
        is_it: impl FnOnce(&DurabilityError) -> bool,
    ) -> Option<Failed> {
        self.failures.take(id, is_it)
    }
}
