//! Engines that are wrong on purpose: what they lose must be found.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use homing_durable::{Commits, Failure, Kind, Linux, System};

/// Commits of filesystems without the flush of the device that has to follow them (`DURABLE-4`).
pub(crate) struct NoFlush;

impl System for NoFlush {
    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        Linux.sync(file, kind)
    }
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        Linux.sync_filesystem(file)
    }
    fn check(&self, file: &File) -> Result<(), Failure> {
        Linux.check(file)
    }
    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
}

/// Says that all is well and does nothing.
pub(crate) struct Nothing;

impl System for Nothing {
    fn sync(&self, _: &File, _: Kind) -> Result<(), Failure> {
        Ok(())
    }
    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
    fn check(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        Ok(())
    }
}

/// Commits once, and takes everything to be durable from then on: as if a bulk ended with what it
/// began with.
#[derive(Default)]
pub(crate) struct OneCommit(AtomicBool);

impl System for OneCommit {
    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        Linux.sync(file, kind)
    }
    fn commits(&self, file: &File) -> Commits {
        Linux.commits(file)
    }
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        if self.0.swap(true, Ordering::Relaxed) { Ok(()) } else { Linux.sync_filesystem(file) }
    }
    fn check(&self, file: &File) -> Result<(), Failure> {
        Linux.check(file)
    }
    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        Linux.flush_device(file)
    }
}
