//! Filesystems that have given up: shut down, or read-only after an error. `syncfs` of older
//! kernels says that all is well there (`src/commits.rs`). Needs root, FUSE and loop devices, and
//! `xfs_io` (Debian package xfsprogs) to shut one down; says why if it skips.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use homing_durable::{Commits, Durable, Linux, Strategy, System, WriteBack};
use homing_faultdisk::{Disk, Filesystem, Image, Volume, missing, unavailable};
use homing_runtime::Runtime;

/// How a filesystem gives up.
type GivesUp = fn(&Path);

fn is_shut_down(mount: &Path) {
    let mut command = Command::new("xfs_io");
    command.args(["-x", "-c", "shutdown"]).arg(mount);
    assert!(command.status().unwrap().success());
}

/// Puts an error into ext4, mounted with `errors=remount-ro`.
fn has_an_error(mount: &Path) {
    let device = fs::metadata(mount).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).unwrap();
    let name = link.file_name().unwrap().to_str().unwrap();
    fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "by a test").unwrap();
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
            gives_up(&volume.path());
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

fn shut_down(filesystem: Filesystem) {
    let found = Command::new("xfs_io").arg("-V").output().err();
    let missing =
        found.map(|error| missing(&format!("xfs_io (Debian has it in xfsprogs): {error}")));
    let test = || nobody_is_told_that_all_is_well(filesystem, "", is_shut_down);
    try_with(filesystem, missing, test);
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
}
