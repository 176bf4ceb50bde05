//! The system calls, behind a trait: so that tests can have a disk that fails.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::commits::Commits;
use crate::durable::Kind;

/// A system call that failed.
#[derive(Debug)]
pub struct Failure {
    /// Its name.
    pub operation: &'static str,
    /// What it returned.
    pub error: io::Error,
}

fn named(operation: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |errno| Failure { operation, error: errno.into() }
}

/// What makes files durable.
pub trait System: Send + Sync + 'static {
    /// Syncs one file, and tells what became of it.
    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure>;

    /// What [`System::sync_filesystem`] is worth for this file's filesystem.
    fn commits(&self, file: &File) -> Commits {
        let _ = file;
        Commits::ThenFlush
    }

    /// Writes everything of the file's filesystem out, data and metadata, and waits for it. Fails
    /// where nothing can be written there any more.
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure>;

    /// Whether write-back of this file's data has failed since its description last heard of it.
    fn check(&self, file: &File) -> Result<(), Failure>;

    /// Flushes the cache of the device below the file's filesystem. Asked for after
    /// [`System::sync_filesystem`], where that does not do it ([`Commits::ThenFlush`]).
    fn flush_device(&self, file: &File) -> Result<(), Failure>;

    /// Begins the write-back of a file's data, where there is a call for that. A hint: what becomes
    /// of it is for [`System::sync`] or [`System::check`] to say.
    fn begin_write_back(&self, file: &File) {
        let _ = file;
    }

    /// Bytes that wait to be written to any disk, as far as that is known.
    fn unwritten(&self) -> Option<u64> {
        None
    }

    /// Whether this is the system itself, which has other ways to the same end.
    fn is_real(&self) -> bool {
        false
    }

    /// Writes all of this; it need not be durable.
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let written = file.write_all_at(bytes, offset);
        written.map_err(|error| Failure { operation: "write", error })
    }

    /// Gives a file another name; it need not be durable.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        std::fs::rename(from, to).map_err(|error| Failure { operation: "rename", error })
    }

    /// Takes a file's name away; it need not be durable.
    fn remove(&self, path: &Path) -> Result<(), Failure> {
        std::fs::remove_file(path).map_err(|error| Failure { operation: "unlink", error })
    }
}

/// Linux, and the nearest that others have.
#[derive(Debug)]
pub struct Linux;

impl System for Linux {
    fn is_real(&self) -> bool {
        true
    }

    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        match kind {
            Kind::Data => data_sync(file),
            Kind::All => rustix::fs::fsync(file).map_err(named("fsync")),
        }
    }

    fn commits(&self, file: &File) -> Commits {
        crate::commits::of(file)
    }

    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        #[cfg(target_os = "linux")]
        return rustix::fs::syncfs(file).map_err(named("syncfs"));
        #[cfg(not(target_os = "linux"))]
        return self.sync(file, Kind::All);
    }

    fn check(&self, file: &File) -> Result<(), Failure> {
        #[cfg(target_os = "linux")]
        return crate::range::wait(file)
            .map_err(|error| Failure { operation: "sync_file_range", error });
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
    fn begin_write_back(&self, file: &File) {
        // A file of which it cannot be begun is still synced.
        let _ = crate::range::begin(file);
    }
}

/// Of the lines of `/proc/meminfo`.
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
    return rustix::fs::fdatasync(file).map_err(named("fdatasync"));
    // There fsync(2) leaves data in the disk's cache.
    #[cfg(target_vendor = "apple")]
    return rustix::fs::fcntl_fullfsync(file).map_err(named("F_FULLFSYNC"));
}

#[cfg(all(test, target_os = "linux", not(shuttle)))]
mod tests {
    use super::*;

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
