//! The engine and the log on a whole runtime, under a randomized scheduler: `cargo xtask shuttle`.
//! A thread that waits and is never told is a deadlock, which is reported.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use homing_runtime::Runtime;
use homing_topology::Machine;
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use crate::{
    DurabilityError, Durable, Failure, Kind, Log, Sequence, SharedFile, Sharing, Strategy, System,
    WriteBack,
};

/// How many schedules of each test are tried. `HOMING_SHUTTLE_ITERATIONS` sets another number.
fn iterations() -> usize {
    let given = std::env::var("HOMING_SHUTTLE_ITERATIONS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(1000)
}

pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_pct(model, iterations(), 4);
}

pub(crate) fn runtime() -> Runtime {
    let machine = Machine::from_grid("1x2x1").unwrap();
    Runtime::builder().on_machine(machine).keep_alive(Duration::ZERO).build().unwrap()
}

/// A disk on which each file has a count of writes, some of which are durable.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<HashMap<u64, Pages>>>);

#[derive(Clone, Default)]
struct Pages {
    /// The descriptions that have heard of the failure, if each hears of it by itself, once.
    heard: Option<Vec<RawFd>>,
    written: u64,
    durable: u64,
    /// The sync that fails, counted from 1. As with the kernel, the next one says that all is well.
    fails: u64,
    syncs: u64,
    /// The commit of the filesystem that loses the file's data, or the write-back before one,
    /// counted from 1.
    lost_by: Option<(Loser, u64)>,
    commits: u64,
    write_backs: u64,
    /// Data is lost, and nobody has heard of it.
    news: bool,
    lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Loser {
    Commit,
    WriteBack,
}

impl Pages {
    /// Makes the writes up to `written` durable, or loses them if this is the commit or write-back
    /// that does.
    fn write_out(&mut self, by: Loser, count: u64, written: u64) {
        if self.lost_by == Some((by, count)) {
            (self.lost, self.news) = (true, true);
        }
        if !self.lost {
            self.durable = self.durable.max(written);
        }
    }

    /// The kernel reports a loss once.
    fn hear(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.news) { Err(eio()) } else { Ok(()) }
    }
}

fn eio() -> Failure {
    Failure { operation: "fsync", error: io::Error::from_raw_os_error(5) }
}

impl Disk {
    fn pages<T>(&self, file: &File, change: impl FnOnce(&mut Pages) -> T) -> T {
        let inode = file.metadata().unwrap().ino();
        change(self.0.lock().unwrap().entry(inode).or_default())
    }

    fn write(&self, file: &File) -> u64 {
        self.pages(file, |pages| {
            pages.written += 1;
            pages.written
        })
    }

    fn durable(&self, file: &File) -> u64 {
        self.pages(file, |pages| pages.durable)
    }
}

impl System for Disk {
    fn sync(&self, file: &File, _: Kind) -> Result<(), Failure> {
        // What is written while it runs is not covered.
        let written = self.pages(file, |pages| pages.written);
        thread::yield_now();
        self.pages(file, |pages| {
            pages.syncs += 1;
            pages.lost |= pages.syncs == pages.fails;
            let number = file.as_raw_fd();
            let hears = match &mut pages.heard {
                None => pages.syncs == pages.fails,
                Some(heard) if pages.lost && !heard.contains(&number) => {
                    heard.push(number);
                    true
                }
                Some(_) => false,
            };
            pages.hear()?;
            if hears {
                return Err(eio());
            }
            // What was lost stays lost.
            if !pages.lost {
                pages.durable = pages.durable.max(written);
            }
            Ok(())
        })
    }

    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        let all: Vec<_> =
            self.0.lock().unwrap().iter().map(|(inode, p)| (*inode, p.written)).collect();
        thread::yield_now();
        for (inode, written) in all {
            let mut pages = self.0.lock().unwrap();
            let pages = pages.get_mut(&inode).unwrap();
            pages.commits += 1;
            pages.write_out(Loser::Commit, pages.commits, written);
        }
        Ok(())
    }

    fn check(&self, file: &File) -> Result<(), Failure> {
        thread::yield_now();
        self.pages(file, Pages::hear)
    }

    fn begin_write_back(&self, file: &File) -> Result<(), Failure> {
        self.pages(file, |pages| {
            pages.write_backs += 1;
            if pages.lost_by == Some((Loser::WriteBack, pages.write_backs)) {
                pages.lost = true;
                // The call itself hears of the loss, and nobody after it.
                return Err(eio());
            }
            Ok(())
        })
    }

    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
}

/// A caller that is told that all is well finds durable what it had written before it asked; and
/// every caller is told something.
fn nobody_is_lied_to(strategy: Strategy, fails: u64) {
    nobody_is_lied_to_where(strategy, WriteBack::Early, move |pages| pages.fails = fails);
}

/// `spoil` says what becomes of the first of two files.
fn nobody_is_lied_to_where(
    strategy: Strategy,
    write_back: WriteBack,
    spoil: impl Fn(&mut Pages) + Send + Sync + 'static,
) {
    check(move || {
        let runtime = runtime();
        let disk = Disk::default();
        let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
        durable.set_strategy(strategy);
        durable.set_write_back(write_back);
        let files = [(); 2].map(|()| Arc::new(tempfile::tempfile().unwrap()));
        disk.pages(&files[0], &spoil);
        let askers = [0, 1, 2].map(|asker: usize| {
            let (durable, disk) = (durable.clone(), disk.clone());
            let file = Arc::clone(&files[asker / 2]);
            thread::spawn(move || {
                for round in 0..2 {
                    let written = disk.write(&file);
                    let verdict = if (asker + round) % 2 == 0 {
                        durable.fsync_and_wait(&*file)
                    } else {
                        durable.fdatasync(&*file).wait()
                    };
                    let was_lost = disk.pages(&file, |pages| pages.lost);
                    match verdict {
                        Ok(()) => assert!(disk.durable(&file) >= written, "a lie"),
                        Err(error) => assert!(was_lost && error.errno == 5, "{error}"),
                    }
                }
            })
        });
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        drop(runtime);
    });
}

#[test]
fn files_by_themselves() {
    nobody_is_lied_to(Strategy::Files, 0);
}

#[test]
fn files_one_of_which_fails() {
    nobody_is_lied_to(Strategy::Files, 2);
}

#[test]
fn commits_of_the_filesystem() {
    nobody_is_lied_to(Strategy::Filesystem, 0);
}

/// The commit says that all is well; only the file itself tells what became of it.
#[test]
fn commits_in_which_one_file_is_lost() {
    for by in [Loser::Commit, Loser::WriteBack] {
        for write_back in [WriteBack::Early, WriteBack::Late] {
            nobody_is_lied_to_where(Strategy::Filesystem, write_back, move |pages| {
                pages.lost_by = Some((by, 2));
            });
        }
    }
}

/// A callback may wait for the file's next sync before it returns.
#[test]
fn a_callback_that_waits_for_the_next_sync() {
    for strategy in [Strategy::Files, Strategy::Filesystem] {
        check(move || {
            let runtime = runtime();
            let durable = Durable::with_system(&runtime, Disk::default()).unwrap();
            durable.set_strategy(strategy);
            let file = Arc::new(tempfile::tempfile().unwrap());
            durable.set_sharing(Sharing::Together);
            let shared = SharedFile::new(descriptions(&file, 2)).unwrap();
            let told = Arc::new((Mutex::new(None), Condvar::new()));
            let teller = (Arc::clone(&told), durable.clone(), shared.clone());
            durable.fdatasync_shared(&shared, move |verdict| {
                let (told, durable, shared) = &teller;
                let next = wait(durable, shared);
                *told.0.lock().unwrap() = Some(verdict.and(next));
                told.1.notify_all();
            });
            let mut verdict = told.0.lock().unwrap();
            while verdict.is_none() {
                verdict = told.1.wait(verdict).unwrap();
            }
            verdict.take().unwrap().unwrap();
            drop((verdict, runtime));
        });
    }
}

/// This many descriptions of the file, each opened by itself.
pub(crate) fn descriptions(file: &Arc<File>, count: usize) -> Vec<std::sync::Arc<File>> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (0..count).map(|_| std::sync::Arc::new(File::open(&path).unwrap())).collect()
}

pub(crate) fn wait(durable: &Durable, file: &SharedFile) -> Result<(), DurabilityError> {
    let told = Arc::new((Mutex::new(None), Condvar::new()));
    let teller = Arc::clone(&told);
    durable.fdatasync_shared(file, move |verdict| {
        *teller.0.lock().unwrap() = Some(verdict);
        teller.1.notify_all();
    });
    let mut verdict = told.0.lock().unwrap();
    loop {
        match verdict.take() {
            Some(verdict) => return verdict,
            None => verdict = told.1.wait(verdict).unwrap(),
        }
    }
}

/// As [`nobody_is_lied_to`], for callers that share a file.
fn nobody_who_shares_is_lied_to(sharing: [Sharing; 2], fails: u64) {
    check(move || {
        let runtime = runtime();
        let disk = Disk::default();
        let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
        durable.set_strategy(Strategy::Files);
        let file = Arc::new(tempfile::tempfile().unwrap());
        let shared = SharedFile::new(descriptions(&file, 2)).unwrap();
        disk.pages(&file, |pages| (pages.fails, pages.heard) = (fails, Some(Vec::new())));
        let askers = [0, 1, 2, 3].map(|asker: usize| {
            let (durable, disk) = (durable.clone(), disk.clone());
            let (file, shared) = (Arc::clone(&file), shared.clone());
            thread::spawn(move || {
                for sharing in sharing {
                    durable.set_sharing(sharing);
                    let written = disk.write(&file);
                    let verdict = match asker {
                        // A caller that has nothing to do with the others.
                        0 => durable.fsync_and_wait(&*file),
                        _ => wait(&durable, &shared),
                    };
                    let was_lost = disk.pages(&file, |pages| pages.lost);
                    match verdict {
                        Ok(()) => assert!(disk.durable(&file) >= written, "a lie"),
                        Err(error) => assert!(was_lost && error.errno == 5, "{error}"),
                    }
                }
            })
        });
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        drop(runtime);
    });
}

#[test]
fn sharers_together() {
    nobody_who_shares_is_lied_to([Sharing::Together; 2], 0);
    nobody_who_shares_is_lied_to([Sharing::Together; 2], 2);
}

#[test]
fn sharers_side_by_side() {
    nobody_who_shares_is_lied_to([Sharing::Beside; 2], 0);
    nobody_who_shares_is_lied_to([Sharing::Beside; 2], 2);
}

#[test]
fn sharers_while_it_is_changed() {
    nobody_who_shares_is_lied_to([Sharing::Beside, Sharing::Together], 0);
    nobody_who_shares_is_lied_to([Sharing::Together, Sharing::Beside], 2);
}

#[test]
fn a_runtime_that_ends_leaves_no_sharer_waiting() {
    check(|| {
        let runtime = runtime();
        let durable = Durable::with_system(&runtime, Disk::default()).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        durable.set_sharing(Sharing::Together);
        let shared = SharedFile::new(descriptions(&file, 2)).unwrap();
        let sharers = [0, 1, 2].map(|_| {
            let (durable, shared) = (durable.clone(), shared.clone());
            // The sync is done or not, but the caller is told.
            thread::spawn(move || [(); 2].map(|()| wait(&durable, &shared).is_ok()))
        });
        drop(runtime);
        for sharer in sharers {
            sharer.join().unwrap();
        }
    });
}

#[test]
fn a_runtime_that_ends_leaves_nobody_waiting() {
    for strategy in [Strategy::Files, Strategy::Filesystem] {
        check(move || {
            let runtime = runtime();
            let disk = Disk::default();
            let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
            durable.set_strategy(strategy);
            let files = [(); 2].map(|()| tempfile::tempfile().unwrap());
            for file in &files {
                disk.write(file);
            }
            let asker = thread::spawn(move || {
                for _ in 0..2 {
                    let all = [&files[0], &files[0], &files[1]].map(|file| durable.fsync(file));
                    // The sync is done or not, but the caller is told.
                    let _ = all.map(|synced| synced.wait().is_ok());
                }
            });
            drop(runtime);
            asker.join().unwrap();
        });
    }
}

#[test]
fn committers_of_a_log() {
    check(|| {
        let runtime = runtime();
        let disk = Disk::default();
        let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        // Each write begins a segment.
        let (log, _) =
            Log::options().segment_length(1).open(&durable, folder.path().join("log")).unwrap();
        let committers = [0, 1, 2].map(|committer: usize| {
            let log = log.clone();
            thread::spawn(move || {
                for round in 0..2 {
                    let sequence = log.append(b"record").unwrap();
                    if (committer + round) % 2 == 0 {
                        log.commit_and_wait(sequence).unwrap();
                    } else {
                        log.commit(sequence).wait().unwrap();
                    }
                    assert!(log.durable_sequence() >= sequence);
                    if committer == 0 {
                        log.truncate_before(sequence).wait().unwrap();
                        let from =
                            |first| log.records_from(first).next().unwrap().unwrap().sequence;
                        assert_eq!(from(sequence), sequence);
                        assert_eq!(from(Sequence::default()), log.first_sequence());
                    }
                }
            })
        });
        committers.into_iter().for_each(|committer| committer.join().unwrap());
        assert_eq!(log.durable_sequence().get(), 6);
        drop(runtime);
    });
}

/// However the log ends, those who follow it are told, and never that a record is durable which is
/// not.
#[test]
fn followers_of_a_log() {
    for closes in [false, true] {
        check(move || {
            let runtime = runtime();
            let durable = Durable::with_system(&runtime, Disk::default()).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let (log, _) = Log::open(&durable, folder.path().join("log")).unwrap();
            let followed = [2, 1, 3].map(|record: u64| log.until_durable(record.into()));
            let followers = followed.map(|synced| thread::spawn(move || synced.wait()));
            let late = log.clone();
            let late = thread::spawn(move || {
                let told = late.until_durable(2.into()).wait();
                assert!(told.is_err() || late.durable_sequence().get() >= 2);
            });
            let committers = [0, 1].map(|_| {
                let log = log.clone();
                thread::spawn(move || {
                    // It may be closed.
                    let Ok(sequence) = log.append(b"record") else { return };
                    let _ = log.commit(sequence).wait();
                })
            });
            if closes {
                log.close();
            } else {
                drop(log);
            }
            committers.into_iter().for_each(|committer| committer.join().unwrap());
            late.join().unwrap();
            let told = followers.map(|follower| follower.join().unwrap());
            assert!(told[2].is_err(), "there is no third record");
            drop(runtime);
        });
    }
}
