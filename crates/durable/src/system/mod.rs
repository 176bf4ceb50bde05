//! The system calls, behind a trait, so that tests can use a disk that fails.

pub(crate) mod description;
#[cfg(target_os = "linux")]
pub(crate) mod range;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::retry_on_intr;

use crate::durable::Kind;
use crate::engine::commits::Commits;
#[cfg(target_os = "linux")]
use crate::files::file_id::FileId;

/// A system call that failed.
#[derive(Debug)]
pub struct Failure {
    /// The name of the call.
    pub operation: &'static str,
    /// The error that it returned.
    pub error: io::Error,
}

/// Says, once, whether it was data that failed.
pub type Witness = Box<dyn FnOnce() -> bool>;

fn named(operation: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |errno| Failure { operation, error: errno.into() }
}

/// What makes files durable.
pub trait System: Send + Sync + 'static {
    /// Syncs one file, and returns what became of it.
    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure>;

    /// What [`System::sync_filesystem`] guarantees for this file's filesystem.
    fn commits(&self, file: &File) -> Commits {
        let _ = file;
        Commits::ThenFlush
    }

    /// Writes out everything of the file's filesystem, data and metadata, and waits for it. Fails
    /// if nothing can be written there any more.
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure>;

    /// Called before [`System::sync_filesystem`]. If that fails, the witness can tell whether data
    /// of the filesystem failed, even that of a stranger, and the journal lives. `None`: this
    /// cannot be told.
    fn witness(&self, file: &File) -> Option<Witness> {
        let _ = file;
        None
    }

    /// Whether write-back of this file's data has failed since its description last heard of it.
    fn check(&self, file: &File) -> Result<(), Failure>;

    /// Flushes the cache of the device below the file's filesystem. Called after
    /// [`System::sync_filesystem`] if that does not do it ([`Commits::ThenFlush`]).
    fn flush_device(&self, file: &File) -> Result<(), Failure>;

    /// Begins the write-back of a file's data, if there is a call for that. [`System::sync`] or
    /// [`System::check`] report how it ends, but a failure of this call itself may not be reported
    /// again.
    fn begin_write_back(&self, file: &File) -> Result<(), Failure> {
        let _ = file;
        Ok(())
    }

    /// Bytes that wait to be written to any disk, if that is known.
    fn unwritten(&self) -> Option<u64> {
        None
    }

    /// Whether this is the real system, which has other ways to the same end.
    fn is_real(&self) -> bool {
        false
    }

    /// Writes all of these bytes; they need not be durable.
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let written = file.write_all_at(bytes, offset);
        written.map_err(|error| Failure { operation: "write", error })
    }

    /// Renames a file; the new name need not be durable.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        std::fs::rename(from, to).map_err(|error| Failure { operation: "rename", error })
    }

    /// Removes a file's name; this need not be durable.
    fn remove(&self, path: &Path) -> Result<(), Failure> {
        std::fs::remove_file(path).map_err(|error| Failure { operation: "unlink", error })
    }
}

/// Linux, and the closest equivalents on other systems. A call that a signal has interrupted, as
/// over a network or by a FUSE server, is repeated: it has not failed.
#[derive(Debug)]
pub struct Linux;

impl System for Linux {
    fn is_real(&self) -> bool {
        true
    }

    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        match kind {
            Kind::Data => data_sync(file),
            Kind::All => retry_on_intr(|| rustix::fs::fsync(file)).map_err(named("fsync")),
        }
    }

    fn commits(&self, file: &File) -> Commits {
        crate::engine::commits::of(file)
    }

    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        // Through a new description: one that has long been open also reports, once each, failures
        // of other people's files since then. (A new one also reports what nobody has been told
        // yet.)
        #[cfg(target_os = "linux")]
        {
            // Only these of the filesystems that are committed are on no block device.
            if FileId::of(file).is_ok_and(|id| rustix::fs::major(id.device) == 0) {
                match retry_on_intr(|| crate::system::range::commit_btrfs(file)) {
                    Err(errno) if errno == rustix::io::Errno::NOTTY => {}
                    done => return done.map_err(named("BTRFS_IOC_SYNC")),
                }
            }
            let folder = folder_of(file);
            let any = folder.as_ref().unwrap_or(file);
            retry_on_intr(|| rustix::fs::syncfs(any)).map_err(named("syncfs"))
        }
        #[cfg(not(target_os = "linux"))]
        return self.sync(file, Kind::All);
    }

    /// A second description also hears of failed data, whichever call reported it to the first one.
    /// It does not hear of a failed flush, because the second call sends a new one. A failed
    /// journal may fail both.
    #[cfg(target_os = "linux")]
    fn witness(&self, file: &File) -> Option<Witness> {
        let folder = folder_of(file)?;
        Some(Box::new(move || {
            let heard = retry_on_intr(|| rustix::fs::syncfs(&folder)).is_err();
            heard && journal_lives(&folder)
        }))
    }

    fn check(&self, file: &File) -> Result<(), Failure> {
        #[cfg(target_os = "linux")]
        return match crate::system::range::wait(file) {
            // The program may not make this call: a sync tells as much.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                data_sync(file)
            }
            waited => waited.map_err(|error| Failure { operation: "sync_file_range", error }),
        };
        #[cfg(not(target_os = "linux"))]
        return self.sync(file, Kind::Data);
    }

    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        data_sync(file)
    }

    #[cfg(target_os = "linux")]
    fn unwritten(&self) -> Option<u64> {
        unwritten(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }

    #[cfg(target_os = "linux")]
    fn begin_write_back(&self, file: &File) -> Result<(), Failure> {
        match crate::system::range::begin(file) {
            // It cannot be begun for what is no file, or not now: the sync comes all the same.
            Err(error) if !may_have_lost(&error) => Ok(()),
            began => began.map_err(|error| Failure { operation: "sync_file_range", error }),
        }
    }
}

/// The folder that a file is in; `None` if it cannot be opened. The file itself is not opened once
/// more, because closing that would release the POSIX locks that this process holds on it.
#[cfg(target_os = "linux")]
fn folder_of(file: &File) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;
    let device = |file: &File| FileId::of(file).ok().map(|id| id.device);
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let folder = rustix::fs::open(path.parent()?, flags, Mode::empty()).ok().map(File::from)?;
    (device(&folder)? == device(file)?).then_some(folder)
}

/// Whether a file can still be made in a folder: one without a name, which is gone at once.
#[cfg(target_os = "linux")]
fn journal_lives(folder: &File) -> bool {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::openat(folder, ".", flags, Mode::RUSR).is_ok()
}

/// Whether a write-back that fails with this error may have dropped data: ext4, for one, drops what
/// it finds no place for, and leaves no mark in the file.
#[cfg(target_os = "linux")]
fn may_have_lost(error: &io::Error) -> bool {
    // The last two: this program may not make the call.
    let harmless = [
        libc::EINVAL,
        libc::ESPIPE,
        libc::ENOMEM,
        libc::EINTR,
        libc::EAGAIN,
        libc::EPERM,
        libc::ENOSYS,
    ];
    error.raw_os_error().is_some_and(|errno| !harmless.contains(&errno))
}

/// The bytes that wait to be written, from the text of `/proc/meminfo`.
#[cfg(target_os = "linux")]
fn unwritten(meminfo: &str) -> Option<u64> {
    let bytes = |name| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        kib.checked_mul(1024)
    };
    bytes("Dirty:")?.checked_add(bytes("Writeback:")?)
}

fn data_sync(file: &File) -> Result<(), Failure> {
    #[cfg(not(target_vendor = "apple"))]
    return retry_on_intr(|| rustix::fs::fdatasync(file)).map_err(named("fdatasync"));
    // On Apple's systems fsync(2) leaves data in the disk's cache.
    #[cfg(target_vendor = "apple")]
    return retry_on_intr(|| rustix::fs::fcntl_fullfsync(file)).map_err(named("F_FULLFSYNC"));
}

#[cfg(all(test, target_os = "linux", not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn write_back_that_fails_may_have_lost_data_unless_it_could_not_begin() {
        let lost = |errno| may_have_lost(&io::Error::from_raw_os_error(errno));
        assert!([libc::EIO, libc::ENOSPC, libc::EUCLEAN, libc::EBADMSG].into_iter().all(lost));
        assert!(![libc::ESPIPE, libc::EINVAL, libc::ENOMEM, libc::EPERM].into_iter().any(lost));
        Linux.begin_write_back(&File::open("/dev/null").unwrap()).unwrap();
    }

    #[test]
    fn a_filesystem_is_synced_by_a_description_of_its_own() {
        let file = tempfile::tempfile().unwrap();
        let folder = folder_of(&file).unwrap();
        let id = |file: &File| FileId::of(file).unwrap();
        assert!(folder.metadata().unwrap().is_dir() && id(&folder).device == id(&file).device);
        Linux.sync_filesystem(&file).unwrap();
    }

    /// The system gives up a process's POSIX locks of a file when it closes any descriptor of it.
    #[test]
    fn locks_of_the_file_are_kept() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let of_it = format!(":{} ", file.metadata().unwrap().ino());
        let is_locked = || std::fs::read_to_string("/proc/locks").unwrap().contains(&of_it);
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(is_locked());
        Linux.sync_filesystem(&file).unwrap();
        assert!(is_locked());
    }

    #[test]
    fn what_waits_to_be_written_is_dirty_or_on_its_way() {
        let meminfo = "MemFree: 9 kB\nDirty:              12 kB\nWriteback:      3 kB\n\
                       WritebackTmp:  7 kB\n";
        assert_eq!(unwritten(meminfo), Some(15 << 10));
        assert_eq!(unwritten("Dirty: 1 kB\n"), None);
        assert_eq!(unwritten("Dirty: many kB\nWriteback: 1 kB\n"), None);
        assert_eq!(unwritten("Dirty: 18446744073709551615 kB\nWriteback: 1 kB\n"), None);
        assert!(Linux.unwritten().is_some());
    }
}
