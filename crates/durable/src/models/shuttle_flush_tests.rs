//! Flushes that fail beside others, acknowledged losses and batches, under a randomized scheduler:
//! `cargo xtask shuttle`. The device here keeps what is written in memory until it is flushed. A
//! flush that fails forgets it, and the next one says that all is well.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use crate::engine::Engine;
use crate::models::shuttle_tests::{check, descriptions, runtime, wait};
use crate::{
    Commits, DurabilityError, Durable, Failure, Kind, SharedFile, Strategy, System, WriteBack,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Dirty,
    /// In the memory of the device.
    Volatile,
    Durable,
    /// Lost with the flush of this number, among those that failed.
    Lost(u64),
}

#[derive(Default)]
struct State {
    /// What was written to each inode, one page after the other.
    files: HashMap<u64, Vec<Page>>,
    flushes: u64,
    failed: u64,
    /// Files whose own flush began after one had failed, and before the engine had noted that.
    in_gap: Vec<u64>,
    /// The engine, which counts the failures that are known.
    engine: Option<std::sync::Weak<Engine>>,
}

#[derive(Clone)]
struct Device {
    state: Arc<Mutex<State>>,
    commits: Commits,
    /// Which of the flushes of commits fails, counted from 1.
    fails: u64,
}

fn eio(operation: &'static str) -> Failure {
    Failure { operation, error: io::Error::from_raw_os_error(5) }
}

fn inode(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

impl Device {
    fn new(commits: Commits, fails: u64) -> Self {
        Self { state: Arc::default(), commits, fails }
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    fn write(&self, file: &File) -> usize {
        self.state(|state| {
            let pages = state.files.entry(inode(file)).or_default();
            pages.push(Page::Dirty);
            pages.len() - 1
        })
    }

    fn page(&self, file: &File, page: usize) -> Page {
        self.state(|state| state.files[&inode(file)][page])
    }

    /// A flush of a commit, which may be the one that fails.
    fn flush_of_commit(&self, operation: &'static str) -> Result<(), Failure> {
        thread::yield_now();
        self.state(|state| {
            state.flushes += 1;
            let fails = state.flushes == self.fails;
            state.failed += u64::from(fails);
            let becomes = if fails { Page::Lost(state.failed) } else { Page::Durable };
            state.flush(becomes);
            if fails { Err(eio(operation)) } else { Ok(()) }
        })
    }
}

impl State {
    fn write_back(&mut self, inode: u64) {
        let pages = self.files.entry(inode).or_default().iter_mut();
        pages.filter(|page| **page == Page::Dirty).for_each(|page| *page = Page::Volatile);
    }

    fn flush(&mut self, becomes: Page) {
        let pages = self.files.values_mut().flatten();
        pages.filter(|page| **page == Page::Volatile).for_each(|page| *page = becomes);
    }
}

impl System for Device {
    fn sync(&self, file: &File, _: Kind) -> Result<(), Failure> {
        let inode = inode(file);
        self.state(|state| state.write_back(inode));
        thread::yield_now();
        self.state(|state| {
            let known = state.engine.as_ref().and_then(std::sync::Weak::upgrade);
            if known.is_some_and(|engine| engine.losses() < state.failed) {
                state.in_gap.push(inode);
            }
            state.flush(Page::Durable);
        });
        thread::yield_now();
        Ok(())
    }

    fn commits(&self, _: &File) -> Commits {
        self.commits
    }

    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        let inodes = self.state(|state| state.files.keys().copied().collect::<Vec<_>>());
        for inode in inodes {
            self.state(|state| state.write_back(inode));
            thread::yield_now();
        }
        if self.commits == Commits::ThenFlush { Ok(()) } else { self.flush_of_commit("syncfs") }
    }

    fn check(&self, file: &File) -> Result<(), Failure> {
        // This waits for the write-back that is under way, and flushes nothing.
        self.state(|state| state.write_back(inode(file)));
        Ok(())
    }

    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        self.state(|state| state.write_back(inode(file)));
        self.flush_of_commit("fdatasync")
    }

    fn begin_write_back(&self, file: &File) -> Result<(), Failure> {
        self.state(|state| state.write_back(inode(file)));
        Ok(())
    }
}

/// What a caller may find that is told of a sync: it had written `page`, and `known` failures were
/// known when it asked.
struct Asked<'a> {
    device: &'a Device,
    file: &'a File,
    page: usize,
    known: u64,
}

impl<'a> Asked<'a> {
    fn write(device: &'a Device, durable: &Durable, file: &'a File) -> Self {
        Self { device, file, page: device.write(file), known: durable.engine.losses() }
    }

    fn is_told(&self, verdict: Result<(), DurabilityError>) {
        let page = self.device.page(self.file, self.page);
        let (failed, in_gap) =
            self.device.state(|state| (state.failed, state.in_gap.contains(&inode(self.file))));
        match verdict {
            Ok(()) => match page {
                Page::Durable => {}
                // The failure was known before the caller asked, or not yet when its own flush
                // ended: the README says so.
                Page::Lost(by) if by <= self.known || in_gap => {}
                _ => panic!("a lie: {page:?}, of {failed} failures {} were known", self.known),
            },
            Err(error) => assert!(failed > 0 && error.errno == 5, "{error}"),
        }
    }
}

fn durable(runtime: &homing_runtime::Runtime, device: &Device, write_back: WriteBack) -> Durable {
    let durable = Durable::with_system(runtime, device.clone()).unwrap();
    durable.set_strategy(Strategy::Filesystem);
    durable.set_write_back(write_back);
    device.state(|state| state.engine = Some(std::sync::Arc::downgrade(&durable.engine)));
    durable
}

/// Three callers ask at a time: by commits, by themselves and through a shared file.
fn nobody_is_lied_to(commits: Commits, write_back: WriteBack, fails: u64) {
    check(move || {
        let runtime = runtime();
        let device = Device::new(commits, fails);
        let durable = durable(&runtime, &device, write_back);
        let files = [(); 3].map(|()| Arc::new(tempfile::tempfile().unwrap()));
        let shared = SharedFile::new(descriptions(&files[2], 2)).unwrap();
        let askers = [0, 1, 2].map(|asker: usize| {
            let (durable, device, shared) = (durable.clone(), device.clone(), shared.clone());
            let files = files.clone();
            thread::spawn(move || {
                for round in 0..2 {
                    let file = &*files[asker];
                    let asked = Asked::write(&device, &durable, file);
                    let verdict = match (asker, round) {
                        (0, _) => durable.fsync(file).wait(),
                        (1, _) => {
                            // A commit that has begun goes on beside it.
                            durable.set_strategy(Strategy::Files);
                            let verdict = match round {
                                0 => durable.fdatasync(file).wait(),
                                _ => durable.fdatasync_and_wait(file),
                            };
                            durable.set_strategy(Strategy::Filesystem);
                            verdict
                        }
                        _ => wait(&durable, &shared),
                    };
                    asked.is_told(verdict);
                }
            })
        });
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        drop(runtime);
    });
}

#[test]
fn a_flush_after_a_commit_fails_beside_others() {
    for write_back in [WriteBack::Early, WriteBack::Late] {
        nobody_is_lied_to(Commits::ThenFlush, write_back, 1);
    }
    nobody_is_lied_to(Commits::ThenFlush, WriteBack::Late, 2);
}

#[test]
fn a_flush_within_a_commit_fails_beside_others() {
    nobody_is_lied_to(Commits::Flushed, WriteBack::Late, 1);
    nobody_is_lied_to(Commits::MayFlush, WriteBack::Late, 1);
}

/// A caller that acknowledges a loss goes on; what is written after that is lost no more.
#[test]
fn an_acknowledged_loss_is_over() {
    check(|| {
        let runtime = runtime();
        let device = Device::new(Commits::ThenFlush, 1);
        let durable = durable(&runtime, &device, WriteBack::Late);
        let files = [(); 2].map(|()| Arc::new(tempfile::tempfile().unwrap()));
        let askers = [0, 1].map(|asker: usize| {
            let (durable, device, file) = (durable.clone(), device.clone(), files[asker].clone());
            thread::spawn(move || {
                for _ in 0..3 {
                    let asked = Asked::write(&device, &durable, &file);
                    let verdict = durable.fsync(&*file).wait();
                    if let Err(error) = &verdict {
                        // The failure is the file's own until it is acknowledged.
                        assert_eq!(durable.fsync(&*file).wait().unwrap_err().errno, error.errno);
                        assert!(durable.acknowledge(error).is_some(), "{error}");
                        assert!(durable.acknowledge_loss(&file).is_none(), "twice");
                    }
                    asked.is_told(verdict);
                }
                // Only one flush fails.
                let asked = Asked::write(&device, &durable, &file);
                let verdict = durable.fsync_and_wait(&*file);
                let _ = verdict.as_ref().map_err(|error| durable.acknowledge(error));
                asked.is_told(verdict);
            })
        });
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        assert_eq!(durable.failures().len(), 0);
        drop(runtime);
    });
}

/// Two batches with files in common, and a caller by itself: each file has a verdict, of a sync
/// that covers it.
#[test]
fn batches_beside_each_other() {
    for fails in [0, 1] {
        check(move || {
            let runtime = runtime();
            let device = Device::new(Commits::ThenFlush, fails);
            let durable = durable(&runtime, &device, WriteBack::Late);
            let files = [(); 2].map(|()| Arc::new(tempfile::tempfile().unwrap()));
            let askers = [0, 1, 2].map(|asker: usize| {
                let (durable, device, files) = (durable.clone(), device.clone(), files.clone());
                thread::spawn(move || {
                    if asker == 2 {
                        let asked = Asked::write(&device, &durable, &files[0]);
                        return asked.is_told(durable.fsync_and_wait(&*files[0]));
                    }
                    let mut asked = [&files[asker], &files[1 - asker]]
                        .map(|file| Asked::write(&device, &durable, file));
                    let mut batch = durable.batch();
                    for asked in &mut asked {
                        batch.fsync(asked.file);
                    }
                    let verdicts = batch.begin().wait();
                    assert_eq!(verdicts.len(), asked.len());
                    for (asked, verdict) in asked.iter().zip(verdicts) {
                        asked.is_told(verdict);
                    }
                })
            });
            askers.into_iter().for_each(|asker| asker.join().unwrap());
            drop(runtime);
        });
    }
}

/// A batch that begins before all of it was asked for, as bulks do: if its first commit loses data,
/// all of the batch has failed.
#[test]
fn a_bulk_whose_first_commit_fails_to_flush() {
    check(|| {
        let runtime = runtime();
        let device = Device::new(Commits::ThenFlush, 1);
        let durable = durable(&runtime, &device, WriteBack::Late);
        let files = [(); crate::batch::BULK + 1].map(|()| tempfile::tempfile().unwrap());
        let asked: Vec<_> =
            files.iter().map(|file| Asked::write(&device, &durable, file)).collect();
        let mut batch = durable.batch();
        batch.expect(crate::batch::BEGINS_EARLY);
        for asked in &asked {
            batch.fsync(asked.file);
            // The first commit may fail before the others are asked for; but the bulk is one.
            for _ in 0..50 {
                thread::yield_now();
            }
        }
        let verdicts = batch.begin().wait();
        for (asked, verdict) in asked.iter().zip(verdicts) {
            assert!(verdict.is_err(), "a file of the bulk was told that all is well");
            asked.is_told(verdict);
        }
        drop(runtime);
    });
}
