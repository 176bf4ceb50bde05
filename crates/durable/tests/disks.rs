//! Several disks, of which one hangs.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use homing_durable::{Durable, Failure, Kind, System};
use homing_runtime::Runtime;
use rustix::fs::{MemfdFlags, memfd_create};

/// Disks of which one, by its device number, answers nothing.
#[derive(Clone, Default)]
struct Disks(Arc<(Mutex<Option<u64>>, Condvar)>);

impl Disks {
    fn hang(&self, disk: Option<u64>) {
        *self.0.0.lock().unwrap() = disk;
        self.0.1.notify_all();
    }

    fn answer(&self, file: &File) {
        let device = file.metadata().unwrap().dev();
        let hung = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(hung, |hung| *hung == Some(device)).unwrap());
    }
}

impl System for Disks {
    fn sync(&self, file: &File, _: Kind) -> Result<(), Failure> {
        self.answer(file);
        Ok(())
    }
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        self.answer(file);
        Ok(())
    }
    fn check(&self, file: &File) -> Result<(), Failure> {
        self.answer(file);
        Ok(())
    }
    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        self.answer(file);
        Ok(())
    }
}

#[test]
fn a_disk_that_hangs_stops_no_other() {
    let (runtime, disks) = (Runtime::new().unwrap(), Disks::default());
    let durable = Durable::with_system(&runtime, disks.clone()).unwrap();
    let hung: Vec<_> = (0..200).map(|_| tempfile::tempfile().unwrap()).collect();
    // The kernel keeps these on a filesystem of their own.
    let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
    let device = |file: &File| file.metadata().unwrap().dev();
    assert_ne!(device(&hung[0]), device(&other));
    disks.hang(Some(device(&hung[0])));
    let waiting: Vec<_> = hung.iter().map(|file| durable.fsync(file)).collect();
    let (tell, told) = mpsc::channel();
    let for_others = durable.clone();
    let asker = thread::spawn(move || {
        tell.send(for_others.fsync(&other).wait()).unwrap();
        tell.send(for_others.fsync_and_wait(&other)).unwrap();
        for verdict in for_others.fsync_many([&other]).wait() {
            tell.send(verdict).unwrap();
        }
    });
    let told: Vec<_> = (0..3).map(|_| told.recv_timeout(Duration::from_secs(60))).collect();
    disks.hang(None);
    assert!(told.iter().all(|told| matches!(told, Ok(Ok(())))), "{told:?}");
    asker.join().unwrap();
    for synced in waiting {
        synced.wait().unwrap();
    }
}
