//! `sync_file_range(2)`, which rustix does not have.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Waits for the write-back of the file's data that is under way. An error of any write-back that
/// the description has not heard of yet comes out here, once.
pub(crate) fn wait(file: &File) -> io::Result<()> {
    call(file, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
}

/// Begins the write-back of the file's data. What becomes of it once it has begun is for the description's
/// next [`wait`] or sync to say; an error of this call may be all that is heard of what could not begin.
pub(crate) fn begin(file: &File) -> io::Result<()> {
    call(file, libc::SYNC_FILE_RANGE_WRITE)
}

fn call(file: &File, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: no pointers; the descriptor is open as long as the file.
    let returned = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
