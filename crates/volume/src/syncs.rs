//! Through which descriptor the kernel is asked to make data durable, and what follows if that
//! fails.
//!
//! The kernel reports a failed write-back once to each open file description and then forgets it.
//! If two threads synced through one description at the same time, both might depend on the data
//! that was lost, and only one would be told. So:
//!
//! * `SYNC-1` A sync has its description to itself. Each description is told of a write-back that
//!   failed before, so it does not matter which one is used. Some are for flushes that go through
//!   an engine, which gives one to each of its syncs; the others are for syncs outside the engine:
//!   durable writes, and flushes without an engine. The engine is told of those.
//! * `SYNC-2` A failure poisons the device before the description is let go, so the next sync
//!   through it finds the device poisoned. The engine keeps this rule for its own descriptions.
//! * `SYNC-3` A sync that succeeds looks for the poison again when it ends. A disk that fails a
//!   flush may have lost what was written for others, too, and unlike a write-back that failed, it
//!   says so once: the next flush may succeed without that data. What remains open: the thread that
//!   was told may not have come to set the poison when a flush that began after its own has ended.
//!
//! The engine gets references to the files, never duplicates: a duplicate would share the
//! description, and with it what that is told.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use homing_durable::{DurabilityError, Durable, SharedFile};
use rustix::fs::OFlags;

use crate::block::{BlockError, Done};
use crate::descriptions::Descriptions;

/// How many syncs run at the same time, in the engine and outside it; more wait. Guessed: more than
/// any disk gains from.
const DESCRIPTION_COUNT: usize = 16;

/// How many files a volume has open at most: those descriptions, the one that reads and writes, and
/// one that is asked what others may have been told.
pub const FILES_EACH: usize = 2 * DESCRIPTION_COUNT + 2;

/// The descriptions of a file to sync through, and whether one of them ever failed.
#[derive(Debug)]
pub(crate) struct Syncs {
    /// The engine's descriptions; `None` if the file could not be opened anew.
    shared: Option<SharedFile>,
    descriptions: Descriptions,
    /// Asked what one of `descriptions` may have been told; locked after that one. `None` if the
    /// file could not be opened anew.
    asked: Option<Mutex<Arc<fs::File>>>,
    poisoned: Arc<AtomicBool>,
    /// The engine that counts the syncs outside it, and keeps their failures.
    told: OnceLock<Durable>,
}

impl Syncs {
    /// Nothing else may sync through `file`.
    pub(crate) fn new(file: &Arc<fs::File>) -> Self {
        let more = || std::iter::from_fn(|| reopened(file).ok().map(Arc::new));
        let mut descriptions: Vec<_> = more().take(DESCRIPTION_COUNT).collect();
        let mut shared = vec![Arc::clone(file)];
        let shared = if descriptions.is_empty() {
            descriptions = shared;
            None
        } else {
            shared.extend(more().take(DESCRIPTION_COUNT));
            // A file that cannot be examined is flushed outside the engine.
            SharedFile::new(shared).ok()
        };
        Self {
            shared,
            descriptions: Descriptions::new(descriptions),
            asked: more().next().map(Mutex::new),
            poisoned: Arc::default(),
            told: OnceLock::new(),
        }
    }

    /// From now on, tells the engine of syncs outside it. There is one engine in a program, so this
    /// does nothing when it has been called before.
    pub(crate) fn report_to(&self, durable: &Durable) {
        self.told.get_or_init(|| durable.clone());
    }

    /// Makes all of the file durable by a sync of the engine, and calls `done`.
    pub(crate) fn run_shared(&self, durable: &Durable, done: Done) {
        if let Err(error) = self.check_health() {
            return done(Err(error));
        }
        let Some(file) = &self.shared else {
            return done(self.run(|file| file.sync_data().map_err(SyncError::Lost)));
        };
        let poisoned = Arc::clone(&self.poisoned);
        durable.fdatasync_shared(file, move |verdict| {
            if verdict.is_err() {
                poisoned.store(true, Ordering::Release);
            } else if poisoned.load(Ordering::Acquire) {
                // A sync outside the engine failed meanwhile.
                return done(Err(BlockError::Poisoned));
            }
            // The rest of what the engine says, and how to go on with it, is not for the device's
            // users.
            let system = |error: DurabilityError| io::Error::from_raw_os_error(error.errno);
            done(verdict.map_err(|error| BlockError::Flush(system(error))));
        });
    }

    /// Fails if an earlier sync failed: see [`BlockError::Poisoned`].
    pub(crate) fn check_health(&self) -> Result<(), BlockError> {
        if self.poisoned.load(Ordering::Acquire) { Err(BlockError::Poisoned) } else { Ok(()) }
    }

    /// Notes that data was lost in another way than by a sync that failed.
    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    /// Runs a sync on a description that no other sync has meanwhile. A loss poisons the device for
    /// ever.
    pub(crate) fn run<T>(
        &self,
        sync: impl FnOnce(&fs::File) -> Result<T, SyncError<T>>,
    ) -> Result<T, BlockError> {
        self.run_as("fdatasync", sync)
    }

    /// As [`Syncs::run`], for a sync by this system call.
    pub(crate) fn run_as<T>(
        &self,
        operation: &'static str,
        sync: impl FnOnce(&fs::File) -> Result<T, SyncError<T>>,
    ) -> Result<T, BlockError> {
        let file = self.descriptions.take();
        self.check_health()?;
        let began = Instant::now();
        // `SYNC-2`: no other sync has the description before it is known what this one was told.
        let synced = match sync(&file) {
            Ok(synced) => Ok(synced),
            Err(SyncError::Lost(source)) => Err(source),
            Err(SyncError::NotBegun(error)) => return Err(error),
            Err(SyncError::Unclear(refused)) => match (self.ask_another(), refused) {
                (Err(source), _) => Err(source),
                (Ok(()), Err(error)) => return Err(error),
                (Ok(()), Ok(done)) => Ok(done),
            },
        };
        if synced.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        if let Some(durable) = self.told.get() {
            let failure = synced.as_ref().err();
            match &self.shared {
                Some(shared) => durable.note_sync_of(shared, &file, operation, began, failure),
                None => durable.note_sync(&file, operation, began, failure),
            }
        }
        let synced = synced.map_err(BlockError::Flush)?;
        // `SYNC-3`: a failed flush of the device may have lost what this sync covers, and is told
        // to one sync only. So a sync that others failed beside counts as failed.
        self.check_health()?;
        Ok(synced)
    }

    /// Asks whether data was lost. The description of a sync may have told that already, and each
    /// tells it once, so this asks a description that no sync has.
    fn ask_another(&self) -> io::Result<()> {
        let Some(other) = &self.asked else {
            return Err(io::Error::other("a write to a full disk, or the write-back, failed"));
        };
        other.lock().unwrap_or_else(PoisonError::into_inner).sync_data()
    }
}

/// Why a sync did not make its data durable.
pub(crate) enum SyncError<T> {
    /// The kernel could not write what it had accepted; it may have dropped it.
    Lost(io::Error),
    /// Nothing that was accepted before is in doubt.
    NotBegun(BlockError),
    /// What failed is either this sync's write, or one that was accepted before.
    Unclear(Result<T, BlockError>),
}

/// Opens the same file anew, whatever has become of its name.
fn reopened(file: &fs::File) -> io::Result<fs::File> {
    let writable = rustix::fs::fcntl_getfl(file)?.contains(OFlags::RDWR);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::OpenOptions::new().read(true).write(writable).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};
    use std::sync::mpsc;

    use homing_durable::{Failure, Kind, System};
    use homing_runtime::Runtime;

    use super::*;

    #[test]
    fn each_sync_has_a_description_of_its_own_also_of_a_file_without_a_name() {
        let syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        assert_eq!(syncs.descriptions.free().len(), DESCRIPTION_COUNT);
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

    /// Otherwise a flush through it would be told that all is well.
    #[test]
    fn while_it_is_unclear_what_was_lost_nobody_else_has_the_description() {
        let syncs = Arc::new(Syncs::new(&Arc::new(tempfile::tempfile().unwrap())));
        let (tell, told) = mpsc::channel();
        let full = || BlockError::Flush(io::ErrorKind::StorageFull.into());
        let held = syncs.asked.as_ref().unwrap().lock().unwrap();
        let of = Arc::clone(&syncs);
        let unclear = std::thread::spawn(move || {
            of.run(|file| {
                tell.send(file.as_raw_fd()).unwrap();
                Err::<(), _>(SyncError::Unclear(Err(full())))
            })
        });
        let heard = told.recv().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let by = syncs.run(|file| Ok(file.as_raw_fd())).unwrap();
        assert_ne!(by, heard);
        drop(held);
        assert!(unclear.join().unwrap().is_err());
        syncs.check_health().unwrap();
    }

    /// A disk may say once that a flush failed, and then succeed without what it has lost.
    #[test]
    fn a_sync_beside_one_that_failed_has_failed_too() {
        let syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        let beside = syncs.run(|file| {
            let lost = |_: &fs::File| Err::<(), _>(SyncError::Lost(io::Error::other("no")));
            assert!(matches!(syncs.run(lost), Err(BlockError::Flush(_))));
            file.sync_data().map_err(SyncError::Lost)
        });
        assert!(matches!(beside, Err(BlockError::Poisoned)), "{beside:?}");
    }

    #[test]
    fn what_was_refused_and_accepted_when_tried_again_is_durable_once_another_was_asked() {
        let syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        syncs.run(|_| Err(SyncError::Unclear(Ok(())))).unwrap();
        syncs.check_health().unwrap();
    }

    #[test]
    fn what_was_unclear_and_another_description_has_heard_of_was_a_loss() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        // A pipe cannot be synced.
        syncs.asked =
            Some(Mutex::new(Arc::new(fs::File::from(std::os::fd::OwnedFd::from(writer)))));
        let full = || BlockError::Flush(io::ErrorKind::StorageFull.into());
        let unclear = syncs.run(|_| Err::<(), _>(SyncError::Unclear(Err(full()))));
        assert!(
            matches!(&unclear, Err(BlockError::Flush(error)) if error.raw_os_error() == Some(22))
        );
        assert!(matches!(syncs.check_health(), Err(BlockError::Poisoned)));
    }

    #[test]
    fn what_is_unclear_and_cannot_be_asked_about_was_a_loss() {
        let mut syncs = Syncs::new(&Arc::new(tempfile::tempfile().unwrap()));
        syncs.asked = None;
        let accepted = syncs.run(|_| Err(SyncError::Unclear(Ok(()))));
        assert!(matches!(accepted, Err(BlockError::Flush(_))), "{accepted:?}");
        assert!(matches!(syncs.check_health(), Err(BlockError::Poisoned)));
    }

    #[test]
    fn who_waits_for_a_description_that_fails_finds_the_device_poisoned() {
        for _ in 0..200 {
            // As if the file could not be opened anew.
            let descriptions = Descriptions::new(vec![Arc::new(tempfile::tempfile().unwrap())]);
            let poisoned = Arc::default();
            let told = OnceLock::new();
            let syncs = Syncs { shared: None, descriptions, asked: None, poisoned, told };
            let begun = AtomicBool::new(false);
            let next = std::thread::scope(|scope| {
                let next = scope.spawn(|| {
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    syncs.run(|_| Ok(()))
                });
                let failed = syncs.run(|_| {
                    begun.store(true, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_micros(50));
                    Err::<(), _>(SyncError::Lost(io::Error::from_raw_os_error(5)))
                });
                assert!(failed.is_err());
                next.join().unwrap()
            });
            assert!(matches!(next, Err(BlockError::Poisoned)), "{next:?}");
        }
    }

    /// A disk on which every sync of the engine fails.
    struct Fails;

    impl System for Fails {
        fn sync(&self, _: &fs::File, _: Kind) -> Result<(), Failure> {
            let error = io::Error::from_raw_os_error(5);
            Err(Failure { operation: "fdatasync", error })
        }
        fn sync_filesystem(&self, file: &fs::File) -> Result<(), Failure> {
            self.sync(file, Kind::All)
        }
        fn check(&self, file: &fs::File) -> Result<(), Failure> {
            self.sync(file, Kind::All)
        }
        fn flush_device(&self, file: &fs::File) -> Result<(), Failure> {
            self.sync(file, Kind::All)
        }
    }

    #[test]
    fn a_failure_of_the_engine_poisons_before_anybody_is_told() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::with_system(&runtime, Fails).unwrap();
        let syncs = Arc::new(Syncs::new(&Arc::new(tempfile::tempfile().unwrap())));
        let (sender, receiver) = mpsc::channel();
        for _ in 0..2 {
            let (at_the_time, sender) = (Arc::clone(&syncs), sender.clone());
            let done = move |result| sender.send((result, at_the_time.check_health())).unwrap();
            syncs.run_shared(&durable, Box::new(done));
        }
        let (first, health) = receiver.recv().unwrap();
        assert!(
            matches!(&first, Err(BlockError::Flush(error)) if error.raw_os_error() == Some(5)),
            "{first:?}"
        );
        assert!(matches!(health, Err(BlockError::Poisoned)), "{health:?}");
        assert!(matches!(receiver.recv().unwrap().0, Err(BlockError::Poisoned)));
        assert_eq!(durable.counters().asked, 1, "the poison is asked first");
    }

    /// A disk that fails a durable write while it serves a flush of the engine, which succeeds.
    struct FailsBeside(Arc<OnceLock<Arc<Syncs>>>);

    impl System for FailsBeside {
        fn sync(&self, _: &fs::File, _: Kind) -> Result<(), Failure> {
            let syncs = self.0.get().expect("who asks has them");
            let lost = || SyncError::Lost(io::Error::from_raw_os_error(5));
            assert!(matches!(syncs.run(|_| Err::<(), _>(lost())), Err(BlockError::Flush(_))));
            Ok(())
        }
        fn sync_filesystem(&self, file: &fs::File) -> Result<(), Failure> {
            self.sync(file, Kind::All)
        }
        fn check(&self, _: &fs::File) -> Result<(), Failure> {
            Ok(())
        }
        fn flush_device(&self, _: &fs::File) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// It may have succeeded without what the disk has lost.
    #[test]
    fn a_flush_of_the_engine_beside_a_sync_that_failed_has_failed_too() {
        let runtime = Runtime::new().unwrap();
        let known = Arc::<OnceLock<Arc<Syncs>>>::default();
        let durable = Durable::with_system(&runtime, FailsBeside(Arc::clone(&known))).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let syncs = known.get_or_init(|| Arc::new(Syncs::new(&file)));
        let (sender, receiver) = mpsc::channel();
        syncs.run_shared(&durable, Box::new(move |result| sender.send(result).unwrap()));
        let beside = receiver.recv().unwrap();
        assert!(matches!(beside, Err(BlockError::Poisoned)), "{beside:?}");
    }

    #[test]
    fn the_engine_counts_syncs_outside_it_and_keeps_their_failure() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let syncs = Syncs::new(&file);
        syncs.report_to(&durable);
        syncs.run(|file| file.sync_data().map_err(SyncError::Lost)).unwrap();
        let full = || BlockError::Flush(io::ErrorKind::StorageFull.into());
        assert!(syncs.run(|_| Err::<(), _>(SyncError::NotBegun(full()))).is_err());
        let of = |counters: homing_durable::Counters| {
            let answers = (counters.latency_ns.count(), counters.batches.count());
            (counters.asked, counters.files, answers, counters.failed)
        };
        assert_eq!(of(durable.counters()), (1, 1, (1, 1), 0), "what has not begun does not count");
        let eio = || io::Error::from_raw_os_error(5);
        assert!(syncs.run_as("pwritev2", |_| Err::<(), _>(SyncError::Lost(eio()))).is_err());
        assert_eq!(of(durable.counters()), (2, 2, (2, 2), 1));
        let failure = durable.acknowledge_loss(&file).expect("it is of this file");
        assert_eq!((failure.errno, failure.operation), (5, "pwritev2"));
    }

    #[test]
    fn the_engine_keeps_no_duplicate_and_has_a_description_of_its_own() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let syncs = Syncs::new(&file);
        assert!(!syncs.descriptions.free().iter().any(|one| Arc::ptr_eq(one, &file)));
        rustix::fs::fcntl_lock(&*file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .unwrap();
        let (sender, receiver) = mpsc::channel();
        syncs.run_shared(&durable, Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().unwrap();
        assert!(is_locked(&file), "closing a duplicate has taken the lock off");
    }

    /// Whether this process has a record lock on the file, according to the kernel.
    fn is_locked(file: &fs::File) -> bool {
        use std::os::unix::fs::MetadataExt;
        let inode = format!(":{} ", file.metadata().unwrap().ino());
        // The list is read in parts, and a line is skipped if another one goes meanwhile.
        (0..100).any(|_| {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("POSIX") && line.contains(&inode))
        })
    }
}
