//! Filesystems that have given up: shut down, or read-only after an error. `syncfs` of older
//! kernels says that all is well there, and that of btrfs does (`src/engine/commits.rs`). Needs
//! root, FUSE and loop devices, and `xfs_io` (Debian package xfsprogs) to shut one down; says why
//! if it skips.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use homing_durable::{
    Commits, Durable, Failure, Kind, Linux, Log, SharedFile, Strategy, System, WriteBack,
};
use homing_faultdisk::{Disk, Filesystem, Image, Volume, missing, unavailable};
use homing_runtime::Runtime;

/// How a filesystem gives up.
type GivesUp = fn(&Path, &Disk);

fn is_shut_down(mount: &Path, _: &Disk) {
    let mut command = Command::new("xfs_io");
    command.args(["-x", "-c", "shutdown"]).arg(mount);
    assert!(command.status().unwrap().success());
}

/// Puts an error into ext4, mounted with `errors=remount-ro`.
fn has_an_error(mount: &Path, _: &Disk) {
    let device = fs::metadata(mount).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).unwrap();
    let name = link.file_name().unwrap().to_str().unwrap();
    fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "by a test").unwrap();
}

/// Lets a stranger's commit fail, after which nothing is wrong with the disk.
fn fails_to_commit(mount: &Path, disk: &Disk) {
    disk.set_bad_flushes(true);
    rustix::fs::syncfs(File::open(mount).unwrap()).unwrap_err();
    disk.set_bad_flushes(false);
}

/// Every sync fails once the filesystem has given up, with commits and without.
fn nobody_is_told_that_all_is_well(filesystem: Filesystem, options: &str, gives_up: GivesUp) {
    let disk = Arc::new(Disk::new(Image::new(filesystem.size_min()), Duration::ZERO));
    for strategy in [Strategy::Filesystem, Strategy::Files] {
        for write_back in [WriteBack::Late, WriteBack::Early] {
            let volume = Volume::make(&disk, filesystem, options).unwrap();
            let runtime = Runtime::new().unwrap();
            let durable = Durable::new(&runtime).unwrap();
            durable.set_strategy(strategy);
            durable.set_write_back(write_back);
            let make = |number| File::create(volume.path().join(number)).unwrap();
            let files: Vec<File> = (0..20).map(|number: u32| make(number.to_string())).collect();
            let write = || files.iter().for_each(|file| file.write_all_at(&[1; 4096], 0).unwrap());
            write();
            assert!(durable.fsync_many(&files).wait().into_iter().all(|verdict| verdict.is_ok()));
            let commits = durable.counters().commits;
            assert_eq!(commits > 0, strategy == Strategy::Filesystem);
            write();
            gives_up(&volume.path(), &disk);
            for verdict in durable.fsync_many(&files).wait() {
                verdict.expect_err(&format!("{filesystem:?}, {strategy:?}, {write_back:?}"));
            }
            drop((durable, runtime, files));
            volume.unmount().unwrap();
        }
    }
}

fn try_with(filesystem: Filesystem, missing: Option<String>, test: impl FnOnce()) {
    match unavailable(filesystem).or(missing) {
        Some(reason) => eprintln!("skipped: no {} here: {reason}", filesystem.name()),
        None => test(),
    }
}

/// Shuts the filesystem down when a sync has ended well, once that is asked for.
struct ThenShutDown {
    mount: PathBuf,
    disk: Arc<Disk>,
    now: Arc<AtomicBool>,
}

impl System for ThenShutDown {
    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        Linux.sync(file, kind)?;
        if self.now.load(Ordering::SeqCst) {
            is_shut_down(&self.mount, &self.disk);
        }
        Ok(())
    }

    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        Linux.sync_filesystem(file)
    }

    fn check(&self, file: &File) -> Result<(), Failure> {
        Linux.check(file)
    }

    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        Linux.flush_device(file)
    }
}

/// XFS then answers nothing about its files, not even that they are there.
fn a_log_there_is_not_said_to_be_gone() {
    let disk = Arc::new(Disk::new(Image::new(Filesystem::Xfs.size_min()), Duration::ZERO));
    let volume = Volume::make(&disk, Filesystem::Xfs, "").unwrap();
    let runtime = Runtime::new().unwrap();
    let now = Arc::new(AtomicBool::new(false));
    let (mount, disk) = (volume.path(), Arc::clone(&disk));
    let system = ThenShutDown { mount, disk, now: Arc::clone(&now) };
    let durable = Durable::with_system(&runtime, system).unwrap();
    let (log, _) = Log::open(&durable, volume.path().join("log")).unwrap();
    log.commit_and_wait(log.append(b"one").unwrap()).unwrap();
    now.store(true, Ordering::SeqCst);
    let error = log.commit_and_wait(log.append(b"two").unwrap()).unwrap_err().to_string();
    assert!(error.contains("open the log again") && !error.contains("removed"), "{error}");
    drop((log, durable, runtime));
    volume.unmount().unwrap();
}

/// Nor which file it is that a sync has failed for.
fn a_failure_that_is_noted_there_is_kept() {
    let disk = Arc::new(Disk::new(Image::new(Filesystem::Xfs.size_min()), Duration::ZERO));
    let volume = Volume::make(&disk, Filesystem::Xfs, "").unwrap();
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let path = volume.path().join("disk");
    let shared = SharedFile::new(vec![Arc::new(File::create(&path).unwrap())]).unwrap();
    let other = Arc::new(File::options().write(true).open(&path).unwrap());
    is_shut_down(&volume.path(), &disk);
    let (began, error) = (Instant::now(), other.sync_data().unwrap_err());
    durable.note_sync_of(&shared, &other, "fdatasync", began, Some(&error));
    let failures = durable.failures();
    assert_eq!((failures.len(), failures[0].errno), (1, error.raw_os_error().unwrap()));
    drop((durable, runtime, shared, other));
    volume.unmount().unwrap();
}

#[test]
fn a_sync_by_others_on_xfs_that_is_shut_down() {
    try_with(Filesystem::Xfs, no_shutdown(), a_failure_that_is_noted_there_is_kept);
}

/// Why nothing can be shut down here, if that is so.
fn no_shutdown() -> Option<String> {
    let found = Command::new("xfs_io").arg("-V").output().err();
    found.map(|error| missing(&format!("xfs_io (Debian has it in xfsprogs): {error}")))
}

#[test]
fn a_log_on_xfs_that_is_shut_down() {
    try_with(Filesystem::Xfs, no_shutdown(), a_log_there_is_not_said_to_be_gone);
}

fn shut_down(filesystem: Filesystem) {
    let test = || nobody_is_told_that_all_is_well(filesystem, "", is_shut_down);
    try_with(filesystem, no_shutdown(), test);
}

#[test]
fn xfs_that_is_shut_down() {
    shut_down(Filesystem::Xfs);
}

#[test]
fn ext4_that_is_shut_down() {
    shut_down(Filesystem::Ext4);
}

#[test]
fn ext4_that_is_read_only_after_an_error() {
    let (filesystem, options) = (Filesystem::Ext4, "errors=remount-ro");
    let test = || nobody_is_told_that_all_is_well(filesystem, options, has_an_error);
    try_with(filesystem, None, test);
}

/// `syncfs` says then that all is well.
#[test]
fn btrfs_that_is_read_only_after_a_commit_that_failed() {
    let filesystem = Filesystem::Btrfs;
    let test = || nobody_is_told_that_all_is_well(filesystem, "", fails_to_commit);
    try_with(filesystem, None, test);
}

/// What this kernel's `syncfs` guarantees there. The flush is left out only where that is sure.
#[test]
fn what_a_commit_is_worth() {
    let worth = |filesystem: Filesystem, options: &str| {
        let disk = Arc::new(Disk::new(Image::new(filesystem.size_min()), Duration::ZERO));
        let volume = Volume::make(&disk, filesystem, options).unwrap();
        Linux.commits(&File::create(volume.path().join("file")).unwrap())
    };
    try_with(Filesystem::Xfs, None, || assert_eq!(worth(Filesystem::Xfs, ""), Commits::ThenFlush));
    try_with(Filesystem::Ext4, None, || {
        let plain = worth(Filesystem::Ext4, "");
        eprintln!("ext4 here: {plain:?}");
        assert_ne!(plain, Commits::Unknown);
        let options = "journal_async_commit,data=writeback";
        assert_eq!(worth(Filesystem::Ext4, options), Commits::MayFlush);
    });
    try_with(Filesystem::Btrfs, None, || {
        assert_eq!(worth(Filesystem::Btrfs, ""), Commits::Flushed);
    });
}
