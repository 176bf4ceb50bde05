//! Through which descriptor the kernel is asked to make data durable, and what becomes of a no.
//!
//! The kernel reports a failed write-back once to each open file description and then forgets it.
//! Were two threads to sync through one at the same time, both might depend on the data that was
//! lost, and only one would be told. So:
//!
//! * `SYNC-1` A sync has its description to itself. One that failed before is known to each
//!   description, so it does not matter which is used.
//! * `SYNC-2` A failure poisons the device before the description is let go, so whoever syncs
//!   through it next finds the device poisoned.
//!
//! Descriptions are never closed before all of them are: closing one takes the process's record
//! lock off the file.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use rustix::fs::OFlags;

use crate::block::BlockError;

/// Syncs that run at the same time; more wait. Guessed: beyond any disk's gain.
const DESCRIPTION_COUNT: usize = 16;

/// The descriptions of a file to sync through, and whether one of them ever failed.
#[derive(Debug)]
pub(crate) struct Syncs {
    descriptions: Vec<Mutex<Arc<fs::File>>>,
    poisoned: AtomicBool,
}

impl Syncs {
    /// Nothing else may sync through `file`.
    pub(crate) fn new(file: &Arc<fs::File>) -> Self {
        let more = std::iter::from_fn(|| reopened(file).ok()).take(DESCRIPTION_COUNT - 1);
        let descriptions = std::iter::once(Arc::clone(file)).chain(more.map(Arc::new));
        Self {
            descriptions: descriptions.map(Mutex::new).collect(),
            poisoned: AtomicBool::new(false),
        }
    }

    /// An earlier sync failed: see [`BlockError::Poisoned`].
    pub(crate) fn check_health(&self) -> Result<(), BlockError> {
        if self.poisoned.load(Ordering::Acquire) { Err(BlockError::Poisoned) } else { Ok(()) }
    }

    /// Runs a sync on a description that is its own meanwhile. An error is for ever.
    pub(crate) fn run<T>(
        &self,
        sync: impl FnOnce(&fs::File) -> Result<T, SyncError>,
    ) -> Result<T, BlockError> {
        let free = self.descriptions.iter().find_map(|one| match one.try_lock() {
            Ok(file) => Some(file),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        let last = || self.descriptions.last().expect("there is one at least");
        let file = free.unwrap_or_else(|| last().lock().unwrap_or_else(PoisonError::into_inner));
        self.check_health()?;
        sync(&file).map_err(|error| match error {
            SyncError::Lost(source) => {
                self.poisoned.store(true, Ordering::Release);
                BlockError::Flush(source)
            }
            SyncError::NotBegun(error) => error,
        })
    }
}

/// Why a sync did not make its data durable.
pub(crate) enum SyncError {
    /// The kernel could not write what it had accepted; it may have dropped it.
    Lost(io::Error),
    /// Nothing that was accepted before is in doubt.
    NotBegun(BlockError),
}

/// The same file anew, whatever has become of its name.
fn reopened(file: &fs::File) -> io::Result<fs::File> {
    let writable = rustix::fs::fcntl_getfl(file)?.contains(OFlags::RDWR);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::OpenOptions::new().read(true).write(writable).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;

    #[test]
    fn each_sync_has_a_description_of_its_own_also_of_a_file_without_a_name() {
        let syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        assert_eq!(syncs.descriptions.len(), DESCRIPTION_COUNT);
        let sync = |file: &fs::File| file.sync_data().map_err(SyncError::Lost);
        let outer = syncs.run(|mut one| {
            one.seek(SeekFrom::Start(4096)).unwrap();
            let inner = syncs.run(|mut other| {
                assert_eq!(other.stream_position().unwrap(), 0, "one description for two syncs");
                sync(other)
            });
            inner.unwrap();
            sync(one)
        });
        outer.unwrap();
    }

    #[test]
    fn a_failure_is_known_before_the_next_sync_begins() {
        let syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        let full = || BlockError::Flush(io::ErrorKind::StorageFull.into());
        assert!(syncs.run(|_| Err::<(), _>(SyncError::NotBegun(full()))).is_err());
        syncs.check_health().unwrap();
        assert!(syncs.run(|_| Err::<(), _>(SyncError::Lost(io::Error::other("no")))).is_err());
        let next = syncs.run(|_| -> Result<(), _> { panic!("a sync after one that failed") });
        assert!(matches!(next, Err(BlockError::Poisoned)));
    }
}
