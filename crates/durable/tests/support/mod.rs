//! A disk that does as a test says.
#![allow(dead_code, unreachable_pub, missing_docs)] // no test uses all of it

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use homing_durable::{Commits, Durable, Failure, Kind, Log, Recovery, Strategy, System};
use homing_runtime::Runtime;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Sync(Kind),
    Filesystem,
    Check,
    Flush,
    WriteBack,
}

/// A disk that records what it is asked, holds calls up, and lets some fail.
#[derive(Clone, Default)]
pub struct Disk(Arc<(Mutex<Book>, Condvar)>);

#[derive(Default)]
pub struct Book {
    pub calls: Vec<(Call, u64)>,
    /// By inode: whether the next calls of this kind fail.
    fails: HashMap<(Call, u64), Vec<bool>>,
    errno: Option<i32>,
    held: bool,
    /// Files of which calls are held up.
    held_files: HashSet<u64>,
    /// How often it says that it can be committed; after that it says that it cannot.
    commits: Option<usize>,
    /// What a commit is worth, if not [`Commits::ThenFlush`].
    worth: Option<Commits>,
    asked: usize,
    /// Whether removals are held up, whether one waits because of that, and how many will fail.
    holds_removals: bool,
    removing: bool,
    fails_removals: usize,
    /// How many renames will find no room for a name.
    fails_renames: usize,
    /// Writes fail with this error, after half of the data has been written.
    fails_writes: Option<i32>,
    /// How many calls for anything but directories will fail.
    fails_files: usize,
    /// The longest write that there is room for, if there is a limit.
    room: Option<usize>,
}

impl Disk {
    pub fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.0.lock().unwrap()
    }

    pub fn hold(&self, held: bool) {
        self.book().held = held;
        self.0.1.notify_all();
    }

    /// Holds up calls for one file only, or no longer.
    pub fn hold_file(&self, file: &File, held: bool) {
        let mut book = self.book();
        if held {
            book.held_files.insert(inode(file));
        } else {
            book.held_files.remove(&inode(file));
        }
        self.0.1.notify_all();
    }

    pub fn hold_removals(&self, held: bool) {
        self.book().holds_removals = held;
        self.0.1.notify_all();
    }

    pub fn fill(&self, full: bool) {
        self.book().fails_writes = full.then_some(28);
    }

    /// From now on there is room for writes of at most so many bytes.
    pub fn leave_room(&self, most: usize) {
        self.book().room = Some(most);
    }

    pub fn until_removing(&self) {
        let is_not = |book: &mut Book| !book.removing;
        let waited = self.0.1.wait_timeout_while(self.book(), Duration::from_secs(20), is_not);
        assert!(!waited.unwrap().1.timed_out(), "nothing is removed");
    }

    pub fn fail_removals(&self, times: usize) {
        self.book().fails_removals = times;
    }

    pub fn fail_renames(&self, times: usize) {
        self.book().fails_renames = times;
    }

    /// From now on it says this often that it can be committed, and then that it cannot.
    pub fn commits(&self, times: usize) {
        self.book().commits = Some(times);
    }

    /// From now on it says that its commits are worth this.
    pub fn commits_are(&self, worth: Commits) {
        self.book().worth = Some(worth);
    }

    pub fn fail(&self, call: Call, file: &File, times: usize) {
        self.book().fails.insert((call, inode(file)), vec![true; times]);
    }

    /// The error that failing calls return from now on, instead of EIO.
    pub fn say(&self, errno: i32) {
        self.book().errno = Some(errno);
    }

    /// Fails the next calls for files, whichever, but not those for directories.
    pub fn fail_files(&self, times: usize) {
        self.book().fails_files = times;
    }

    /// Fails the one call of this kind that comes after `calls` more.
    pub fn fail_after(&self, call: Call, file: &File, calls: usize) {
        self.book().fails.insert((call, inode(file)), vec![false; calls]);
        self.book().fails.get_mut(&(call, inode(file))).unwrap().push(true);
    }

    /// What has been asked of a file.
    pub fn calls(&self, file: &File) -> Vec<Call> {
        let inode = inode(file);
        self.book().calls.iter().filter(|(_, of)| *of == inode).map(|(call, _)| *call).collect()
    }

    /// Forgets which calls were made.
    pub fn forget_calls(&self) {
        self.book().calls.clear();
    }

    pub fn until_asked(&self, count: usize) {
        let book = self.book();
        let waited = self
            .0
            .1
            .wait_timeout_while(book, Duration::from_secs(20), |book| book.calls.len() < count);
        assert!(!waited.unwrap().1.timed_out(), "the disk was not asked");
    }

    fn call(&self, call: Call, file: &File) -> Result<(), Failure> {
        let mut book = self.book();
        book.calls.push((call, inode(file)));
        self.0.1.notify_all();
        let is_held = |book: &mut Book| book.held || book.held_files.contains(&inode(file));
        let mut book = self.0.1.wait_while(book, is_held).unwrap();
        let of_files = book.fails_files > 0 && !file.metadata().unwrap().is_dir();
        book.fails_files -= usize::from(of_files);
        let fails = book.fails.get_mut(&(call, inode(file))).filter(|fails| !fails.is_empty());
        if !fails.is_some_and(|fails| fails.remove(0)) && !of_files {
            return Ok(());
        }
        let operation = match call {
            Call::Sync(Kind::All) => "fsync",
            Call::Sync(Kind::Data) | Call::Flush => "fdatasync",
            Call::Filesystem => "syncfs",
            Call::Check | Call::WriteBack => "sync_file_range",
        };
        let errno = book.errno.unwrap_or(5);
        Err(Failure { operation, error: io::Error::from_raw_os_error(errno) })
    }
}

impl System for Disk {
    fn commits(&self, _: &File) -> Commits {
        let mut book = self.book();
        book.asked += 1;
        let known = book.commits.is_none_or(|times| book.asked <= times);
        if known { book.worth.unwrap_or(Commits::ThenFlush) } else { Commits::Unknown }
    }

    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        self.call(Call::Sync(kind), file)
    }
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        self.call(Call::Filesystem, file)
    }
    fn check(&self, file: &File) -> Result<(), Failure> {
        self.call(Call::Check, file)
    }
    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        self.call(Call::Flush, file)
    }
    fn begin_write_back(&self, file: &File) -> Result<(), Failure> {
        self.call(Call::WriteBack, file)
    }
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        if self.book().room.is_some_and(|most| bytes.len() > most) {
            return Err(Failure { operation: "write", error: io::Error::from_raw_os_error(28) });
        }
        let errno = self.book().fails_writes;
        let part = if errno.is_some() { &bytes[..bytes.len() / 2] } else { bytes };
        let written = file.write_all_at(part, offset);
        let written = errno.map_or(written, |errno| Err(io::Error::from_raw_os_error(errno)));
        written.map_err(|error| Failure { operation: "write", error })
    }
    fn remove(&self, path: &Path) -> Result<(), Failure> {
        let mut book = self.book();
        book.removing = true;
        self.0.1.notify_all();
        let mut book = self.0.1.wait_while(book, |book| book.holds_removals).unwrap();
        book.removing = false;
        let fails = book.fails_removals > 0;
        book.fails_removals = book.fails_removals.saturating_sub(1);
        drop(book);
        let error = io::Error::from_raw_os_error(5);
        let removed = if fails { Err(error) } else { fs::remove_file(path) };
        removed.map_err(|error| Failure { operation: "unlink", error })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let mut book = self.book();
        let fails = book.fails_renames > 0;
        book.fails_renames = book.fails_renames.saturating_sub(1);
        drop(book);
        let error = io::Error::from_raw_os_error(28);
        let renamed = if fails { Err(error) } else { fs::rename(from, to) };
        renamed.map_err(|error| Failure { operation: "rename", error })
    }
}

/// The segments of a log, oldest first.
pub fn segments(log: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = files.filter(|path| path.extension() == Some("log".as_ref())).collect();
    all.sort();
    all
}

pub fn inode(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

pub struct World {
    pub runtime: Runtime,
    pub durable: Durable,
    pub disk: Disk,
    pub folder: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let disk = Disk::default();
        let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
        Self { runtime, durable, disk, folder: tempfile::tempdir().unwrap() }
    }

    pub fn file(&self, name: &str) -> File {
        File::create(self.folder.path().join(name)).unwrap()
    }
}

/// Files of a filesystem that is committed; the flush after the first commit fails.
pub fn with_a_flush_that_fails(count: usize) -> (World, Vec<File>) {
    let world = World::new();
    let files: Vec<_> = (0..count).map(|number| world.file(&number.to_string())).collect();
    world.durable.set_strategy(Strategy::Filesystem);
    world.disk.fail(Call::Flush, &files[0], 1);
    (world, files)
}

/// All records that are kept.
pub fn read(log: &Log) -> Vec<Vec<u8>> {
    let first = log.first_sequence().get();
    let records = log.records().map(Result::unwrap).enumerate().map(|(index, record)| {
        assert_eq!(record.sequence.get(), first + index as u64);
        record.data
    });
    records.collect()
}

pub fn open(durable: &Durable, path: &Path) -> (Log, Recovery) {
    Log::open(durable, path).unwrap()
}
