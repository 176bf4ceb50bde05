//! Real filesystems on such disks.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::sync::Arc;
use std::time::{Duration, Instant};

use homing_faultdisk::{Disk, Filesystem, Image, Volume, available};

fn disk(filesystem: Filesystem, flush_delay: Duration) -> Arc<Disk> {
    Arc::new(Disk::new(Image::new(filesystem.size_min()), flush_delay))
}

#[test]
fn files_are_kept_from_one_mount_to_the_next() {
    available().for_each(|filesystem| {
        let disk = disk(filesystem, Duration::ZERO);
        let volume = Volume::make(&disk, filesystem, "").unwrap();
        let contents: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        fs::write(volume.path().join("file"), &contents).unwrap();
        volume.unmount().unwrap();
        let volume = Volume::open(&disk, filesystem, "").unwrap();
        assert!(fs::read(volume.path().join("file")).unwrap() == contents);
    });
}

#[test]
fn a_sync_waits_for_the_flush_and_is_recorded() {
    available().for_each(|filesystem| {
        let disk = disk(filesystem, Duration::from_millis(30));
        let volume = Volume::make(&disk, filesystem, "").unwrap();
        disk.start_recording();
        let file = File::create(volume.path().join("file")).unwrap();
        let began = Instant::now();
        file.sync_all().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(30), "{}", filesystem.name());
        assert!(disk.moment() > 0);
    });
}

#[test]
fn nothing_is_left_behind() {
    available().for_each(|filesystem| {
        let volume = Volume::make(&disk(filesystem, Duration::ZERO), filesystem, "").unwrap();
        let path = volume.path();
        drop(volume);
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(path.to_str().unwrap()), "{mounts}");
        assert!(!path.exists());
    });
}
