//! XFS, ext4 and btrfs on a disk of which some sectors, or the flushes, fail. A caller that syncs a
//! file of which something is lost is told, by every way there is. A caller that syncs another file
//! is not told that this one is lost, too. Needs root, FUSE and loop devices; says why if it skips.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use homing_durable::{Backend, DurabilityError, Durable, SharedFile, Sharing, Strategy, WriteBack};
use homing_faultdisk::{BAD, Disk, Filesystem, Image, Served, Volume, available, unavailable};
use homing_runtime::Runtime;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const EIO: i32 = 5;
const LENGTH: usize = 256 << 10;

/// Runs a test on a filesystem of each kind, with an engine of its own for each way.
fn on_each(mut test: impl FnMut(&Disk, &Volume, &Durable)) {
    for filesystem in available() {
        for (strategy, write_back, backend) in ways() {
            eprintln!("{} by {strategy:?}, {write_back:?}, {backend:?}", filesystem.name());
            let disk = Arc::new(Disk::new(Image::new(filesystem.size_min()), Duration::ZERO));
            let volume = Volume::make(&disk, filesystem, "").unwrap();
            let runtime = Runtime::new().unwrap();
            let durable = Durable::new(&runtime).unwrap();
            durable.set_strategy(strategy);
            durable.set_write_back(write_back);
            if let Err(error) = durable.set_backend(backend) {
                eprintln!("skipped: no {} here: {error}", backend.name());
                continue;
            }
            test(&disk, &volume, &durable);
            disk.set_bad_sectors(false);
            disk.set_bad_flushes(false);
            drop((durable, runtime));
            volume.unmount().unwrap();
        }
    }
}

fn ways() -> impl Iterator<Item = (Strategy, WriteBack, Backend)> {
    Strategy::ALL.into_iter().flat_map(|strategy| {
        Backend::ALL.into_iter().flat_map(move |backend| {
            [WriteBack::Early, WriteBack::Late].map(|write_back| (strategy, write_back, backend))
        })
    })
}

fn open(volume: &Volume, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(volume.path().join(name)).unwrap()
}

fn dirty(file: &File, byte: u8) {
    file.write_all_at(&vec![byte; LENGTH], 0).unwrap();
}

fn is_lost(verdict: Result<(), DurabilityError>) {
    let error = verdict.unwrap_err();
    assert_eq!(error.errno, EIO, "{error}");
    assert!(error.file.ends_with("/bad"), "{error}");
}

#[test]
fn a_file_on_bad_sectors_fails_and_no_other() {
    on_each(|disk, volume, durable| {
        let good: Vec<File> =
            (0..8).map(|number| open(volume, &format!("good-{number}"))).collect();
        let bad = open(volume, "bad");
        // The kernel writes neighbours on the disk together, and then they fail together.
        let around = [open(volume, "before"), open(volume, "after")];
        for file in good.iter().chain([&around[0], &bad, &around[1]]) {
            dirty(file, 1);
            file.sync_all().unwrap();
        }
        drop(around);
        disk.set_bad_sectors(true);
        for round in 2..4 {
            for file in &good {
                dirty(file, round);
            }
            dirty(&bad, BAD);
            let later = open(volume, "bad");
            // The bad file is in the middle.
            let (before, after) = good.split_at(4);
            let all = before.iter().chain([&bad]).chain(after);
            let verdicts = durable.fsync_many(all).wait();
            for (place, verdict) in verdicts.into_iter().enumerate() {
                if place == 4 { is_lost(verdict) } else { verdict.unwrap() }
            }
            // It stays lost for every caller, through every descriptor, however often they ask.
            is_lost(durable.fsync_and_wait(&bad));
            is_lost(durable.fdatasync(&later).wait());
            is_lost(durable.fsync(&open(volume, "bad")).wait());
            durable.acknowledge_loss(&bad).unwrap();
        }
        // The disk is whole again, and so is what is written anew.
        disk.set_bad_sectors(false);
        dirty(&bad, 4);
        durable.fsync(&bad).wait().unwrap();
    });
}

#[test]
fn sharers_of_a_file_on_bad_sectors_are_all_told() {
    on_each(|disk, volume, durable| {
        let all: Vec<_> = (0..3).map(|_| Arc::new(open(volume, "bad"))).collect();
        durable.set_sharing(Sharing::Beside);
        let shared = SharedFile::new(all.clone()).unwrap();
        dirty(&all[0], 1);
        durable.fsync(&*all[0]).wait().unwrap();
        disk.set_bad_sectors(true);
        dirty(&all[1], BAD);
        let (sender, receiver) = mpsc::channel();
        for _ in 0..12 {
            let sender = sender.clone();
            durable.fdatasync_shared(&shared, move |verdict| sender.send(verdict).unwrap());
        }
        (0..12).for_each(|_| is_lost(receiver.recv().unwrap()));
    });
}

/// ext4 reports what failed while nobody looked to the next commit, even if it was a stranger's
/// data.
#[test]
fn what_a_stranger_has_lost_is_nobody_elses() {
    on_each(|disk, volume, durable| {
        let files: Vec<File> = (0..40).map(|number| open(volume, &number.to_string())).collect();
        let around = ["before", "stranger", "after"].map(|name| open(volume, name));
        for file in files.iter().chain(&around) {
            dirty(file, 1);
            file.sync_all().unwrap();
        }
        disk.set_bad_sectors(true);
        dirty(&around[1], BAD);
        around[1].sync_all().unwrap_err();
        let write_and_sync = |byte| {
            for file in &files {
                dirty(file, byte);
            }
            durable.fsync_many(&files).wait().into_iter().for_each(Result::unwrap);
        };
        write_and_sync(2);
        // Nor is what a commit itself finds to be lost of it.
        dirty(&around[1], BAD);
        write_and_sync(3);
        disk.set_bad_sectors(false);
        write_and_sync(4);
    });
}

/// There are so many files that they begin with a commit before the bad one has been asked for.
#[test]
fn one_bad_file_of_thousands_fails_alone() {
    const FILES: usize = 4100;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < 3 * FILES as u64) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(3 * FILES as u64), ..limit }).unwrap();
    }
    for filesystem in available() {
        let disk = Arc::new(Disk::new(Image::new(filesystem.size_min()), Duration::ZERO));
        let volume = Volume::make(&disk, filesystem, "").unwrap();
        let (runtime, bad) = (Runtime::new().unwrap(), open(&volume, "bad"));
        let durable = Durable::new(&runtime).unwrap();
        let mut files: Vec<File> =
            (0..FILES).map(|number| open(&volume, &number.to_string())).collect();
        dirty(&bad, 1);
        rustix::fs::syncfs(&bad).unwrap();
        disk.set_bad_sectors(true);
        dirty(&bad, BAD);
        for file in &files {
            file.write_all_at(&[2; 4096], 0).unwrap();
        }
        files.insert(FILES / 2, bad);
        for (place, verdict) in durable.fsync_many(&files).wait().into_iter().enumerate() {
            if place == FILES / 2 { is_lost(verdict) } else { verdict.unwrap() }
        }
        disk.set_bad_sectors(false);
        drop((files, durable, runtime));
        volume.unmount().unwrap();
    }
}

/// Also through another description: what it has not heard of is old when the file is written anew.
#[test]
fn an_acknowledged_loss_is_heard_of_no_more() {
    on_each(|disk, volume, durable| {
        let both = [open(volume, "bad"), open(volume, "bad")];
        dirty(&both[0], 1);
        durable.fsync(&both[0]).wait().unwrap();
        disk.set_bad_sectors(true);
        dirty(&both[0], BAD);
        durable.fsync_many(&both).wait().into_iter().for_each(is_lost);
        durable.acknowledge_loss(&both[1]).unwrap();
        disk.set_bad_sectors(false);
        dirty(&both[0], 2);
        for file in &both {
            durable.fsync(file).wait().unwrap();
        }
    });
}

/// If a flush fails, nobody can tell whose data was lost, so no caller is told that all is well.
#[test]
fn a_flush_that_fails_is_everybodys() {
    on_each(|disk, volume, durable| {
        let files: Vec<File> = (0..8).map(|number| open(volume, &number.to_string())).collect();
        for file in &files {
            dirty(file, 1);
        }
        durable.fsync_many(&files).wait().into_iter().for_each(Result::unwrap);
        for file in &files {
            dirty(file, 2);
        }
        disk.set_bad_flushes(true);
        for verdict in durable.fsync_many(&files).wait() {
            verdict.unwrap_err();
        }
        // Nor are they told so later, when the disk says that it is well.
        disk.set_bad_flushes(false);
        for file in &files {
            durable.fsync(file).wait().unwrap_err();
            durable.fsync_and_wait(file).unwrap_err();
        }
    });
}

/// XFS reports that all is well with a directory; so does ext4 once somebody has been told that its
/// journal has failed, until it is read-only because of that.
#[test]
fn names_are_lost_with_the_flush() {
    on_each(|disk, volume, durable| {
        let folder = File::open(volume.path()).unwrap();
        durable.fsync_dir(&folder).wait().unwrap();
        disk.set_bad_flushes(true);
        let files: Vec<File> = (0..8).map(|number| open(volume, &number.to_string())).collect();
        files.iter().skip(1).for_each(|file| dirty(file, 1));
        let mut verdicts = durable.fsync_many(files.iter().chain([&folder])).wait();
        let of_folder = verdicts.pop().unwrap();
        for verdict in verdicts {
            verdict.unwrap_err();
        }
        let is_xfs = disk.size() == Filesystem::Xfs.size_min();
        if is_xfs || durable.strategy() == Strategy::Filesystem {
            of_folder.unwrap_err();
            disk.set_bad_flushes(false);
            durable.fsync_dir(&folder).wait().unwrap_err();
            durable.fsync_and_wait(&folder).unwrap_err();
        }
    });
}

/// This happens over a network, or with a FUSE server, as here: nothing has failed.
#[test]
fn a_sync_that_is_interrupted_is_asked_for_again() {
    if let Some(reason) = unavailable(Filesystem::Ext4) {
        eprintln!("skipped: {reason}");
        return;
    }
    let served = tempfile::NamedTempFile::new().unwrap();
    let disk = Arc::new(Disk::new(Image::new(1 << 20), Duration::ZERO));
    let _served = Served::start(&disk, served.path()).unwrap();
    let file = OpenOptions::new().write(true).open(served.path()).unwrap();
    let runtime = Runtime::new().unwrap();
    for backend in Backend::ALL {
        let durable = Durable::new(&runtime).unwrap();
        if let Err(error) = durable.set_backend(backend) {
            eprintln!("skipped: no {} here: {error}", backend.name());
            continue;
        }
        disk.interrupt_flushes(3);
        durable.fsync_and_wait(&file).unwrap();
        disk.interrupt_flushes(3);
        durable.fsync(&file).wait().unwrap();
        durable.fdatasync(&file).wait().unwrap();
    }
}
