//! A bulk of more files than the process has descriptors left. This test is a program of its own,
//! because the limit is the whole process's.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use homing_durable::{Durable, Failure, Kind, Strategy, System};
use homing_runtime::Runtime;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A disk that counts how often somebody who needs a descriptor meanwhile gets none.
#[derive(Clone, Default)]
struct Disk {
    refused: Arc<AtomicUsize>,
    fails_flush: Arc<AtomicBool>,
}

impl Disk {
    fn open_another(&self) {
        self.refused.fetch_add(usize::from(File::open("/dev/null").is_err()), SeqCst);
    }
}

impl System for Disk {
    fn sync(&self, _: &File, _: Kind) -> Result<(), Failure> {
        self.open_another();
        Ok(())
    }
    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        self.open_another();
        Ok(())
    }
    fn check(&self, _: &File) -> Result<(), Failure> {
        self.open_another();
        Ok(())
    }
    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        self.open_another();
        let fails = self.fails_flush.swap(false, SeqCst);
        let error = io::Error::from_raw_os_error(5);
        if fails { Err(Failure { operation: "fdatasync", error }) } else { Ok(()) }
    }
}

#[test]
fn a_bulk_leaves_descriptors_to_others() {
    const FILES: usize = 300;
    let (runtime, disk) = (Runtime::new().unwrap(), Disk::default());
    let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
    durable.set_strategy(Strategy::Filesystem);
    let files: Vec<_> = (0..FILES).map(|_| tempfile::tempfile().unwrap()).collect();
    let last = files.iter().map(AsRawFd::as_raw_fd).max().unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(u64::from(last.unsigned_abs()) + 130);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();

    let verdicts = durable.fsync_many(&files).wait();
    assert!(verdicts.len() == FILES && verdicts.iter().all(Result::is_ok));
    let counters = durable.counters();
    assert_eq!(disk.refused.load(SeqCst), 0, "somebody got no descriptor");
    assert_eq!((counters.files, counters.committed), (0, FILES as u64));
    assert!((2..20).contains(&counters.commits), "{} parts", counters.commits);

    // It is one bulk all the same: the first part may have written the data of the others back.
    disk.fails_flush.store(true, SeqCst);
    let verdicts = durable.fsync_many(&files).wait();
    assert!(verdicts.len() == FILES && verdicts.iter().all(Result::is_err));
}
