//! Calls that rustix does not have: `sync_file_range(2)`, the commit of btrfs, and those that
//! compare descriptors.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Waits for the write-back of the file's data that is under way. Returns, once, the error of any
/// write-back that the description has not heard of yet.
pub(crate) fn wait(file: &File) -> io::Result<()> {
    call(file, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
}

/// Begins the write-back of the file's data. How it ends once it has begun is reported by the
/// description's next [`wait`] or sync. What could not begin may be reported by this call alone.
pub(crate) fn begin(file: &File) -> io::Result<()> {
    call(file, libc::SYNC_FILE_RANGE_WRITE)
}

fn call(file: &File, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: no pointers; the descriptor is open as long as the file.
    let returned = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// As `linux/btrfs.h` has it.
const BTRFS_IOC_SYNC: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x94, 8);

/// Commits the file's filesystem, which is btrfs, data and metadata. Unlike `syncfs(2)` this also
/// fails where an earlier commit has failed and the filesystem has become read-only. `ENOTTY`: it
/// is not btrfs.
pub(crate) fn commit_btrfs(file: &File) -> rustix::io::Result<()> {
    // SAFETY: this request has no argument, nor an answer.
    let request = unsafe { rustix::ioctl::NoArg::<BTRFS_IOC_SYNC>::new() };
    // SAFETY: it reads and writes no memory of this program, whatever the file is.
    unsafe { rustix::ioctl::ioctl(file, request) }
}

/// Asks whether two descriptors are of one open file description; since Linux 6.10.
const F_DUPFD_QUERY: libc::c_int = 1027;
/// Asks the same of descriptors of two processes.
const KCMP_FILE: libc::c_int = 0;

/// Whether `number` is now a descriptor of the same description as the file; `false` if the system
/// does not tell.
pub(crate) fn is_of(file: &File, number: RawFd) -> bool {
    let own = file.as_raw_fd();
    if own == number {
        return true;
    }
    // SAFETY: no pointers; any number will do.
    let same = unsafe { libc::fcntl(own, F_DUPFD_QUERY, number) };
    if same >= 0 {
        return same == 1;
    }
    let process = std::process::id();
    // SAFETY: as above.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, own, number) };
    order == 0
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_of_the_same_description_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let (same, other) = (file.try_clone().unwrap(), File::open(&path).unwrap());
        assert!(is_of(&file, file.as_raw_fd()) && is_of(&file, same.as_raw_fd()));
        assert!(!is_of(&file, other.as_raw_fd()) && !is_of(&file, -1));
    }
}
