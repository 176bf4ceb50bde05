//! Keeps a container from other programs, and from other parts of this one: if two write to it,
//! data is lost.
//!
//! * A *block device* is opened exclusively. The kernel knows who has a device, whichever node it
//!   was opened by: a mount, dm-crypt, md or one of us.
//! * A file has a *record lock of its open file description* (`F_OFD_SETLK`), which QEMU's tools
//!   respect. It is not an flock(2): cryptsetup takes that one to read the header, and would wait
//!   for ever. Nor is it a lock of the process, which goes when any descriptor of the file is
//!   closed, and does not keep two volumes of one process apart.
//! * A *loop device* is a block device and a file: the file is locked with it. The file itself is
//!   not opened for writing while a loop device that can be written is over it.
//!
//! An unsafe island, of one call: the safe wrappers do not have these locks.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{Access, LuksError, check_kind};

/// Holds the locks until it is dropped. Closing the files is not enough: a child process that
/// another thread has just begun has the files too, and with them the locks, until it runs its
/// program.
#[derive(Debug)]
pub(super) struct Lock(Vec<Arc<fs::File>>);

impl Drop for Lock {
    fn drop(&mut self) {
        for file in &self.0 {
            // If this fails, closing has to do.
            let _ = set_lock(file, libc::F_UNLCK);
        }
    }
}

/// Opens and locks a container's file, and also the file below it if it is a loop device.
pub(super) fn open(path: &Path, access: Access) -> Result<(Arc<fs::File>, Lock), LuksError> {
    let write = access == Access::ReadWrite;
    let found = check_kind(path)?;
    let is_device = found.file_type().is_block_device();
    let exclusive = write && is_device;
    let flags = if exclusive { OFlags::EXCL } else { OFlags::empty() };
    let mut options = fs::OpenOptions::new();
    options.read(true).write(write).custom_flags(flags.bits().cast_signed());
    let in_use = || LuksError::InUse { path: path.to_owned() };
    let file = options.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if write => {
            LuksError::ReadOnly { path: path.to_owned(), source }
        }
        io::ErrorKind::ResourceBusy if exclusive => in_use(),
        _ => LuksError::io("open", path, source),
    })?;
    if is_locked_by_others(path, &file, write) {
        return Err(in_use());
    }
    let file = Arc::new(file);
    let mut lock = Lock(vec![Arc::clone(&file)]);
    if is_device {
        // A failure to open it is passed over: a user who may not open the file cannot serve it
        // either, and in another namespace the path may name anything.
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let below = file_below(&found).and_then(|below| options.open(below).ok());
        let is_file = |below: &fs::File| below.metadata().is_ok_and(|below| below.is_file());
        if let Some(below) = below.filter(is_file) {
            if is_locked_by_others(path, &below, write) {
                return Err(in_use());
            }
            lock.0.push(Arc::new(below));
        }
    } else if write && let Some(device) = loop_device_over(&found) {
        return Err(LuksError::HasLoopDevice { path: path.to_owned(), device });
    }
    Ok((file, lock))
}

/// Takes the lock, unless somebody has it. On filesystems without locks nothing is locked, and the
/// log says so.
fn is_locked_by_others(path: &Path, file: &fs::File, exclusive: bool) -> bool {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    match set_lock(file, kind) {
        // The kernel has no such locks: take one of the process, then.
        Err(libc::EINVAL) => {
            let exclusive = FlockOperation::NonBlockingLockExclusive;
            let shared = FlockOperation::NonBlockingLockShared;
            let operation = if kind == libc::F_WRLCK { exclusive } else { shared };
            let locked = retry_on_intr(|| rustix::fs::fcntl_lock(file, operation));
            is_held(path, locked.map_err(Errno::raw_os_error))
        }
        locked => is_held(path, locked),
    }
}

fn is_held(path: &Path, locked: Result<(), i32>) -> bool {
    match locked {
        Ok(()) => false,
        Err(libc::EAGAIN | libc::EACCES) => true,
        Err(errno) => {
            let error = io::Error::from_raw_os_error(errno);
            let what = "the file cannot be locked: see to it that nobody else opens the volume";
            tracing::warn!(path = %path.display(), %error, "{what}");
            false
        }
    }
}

fn set_lock(file: &fs::File, kind: libc::c_int) -> Result<(), i32> {
    // All of the file: from 0 on, however long it is. The other fields are for answers.
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    loop {
        // SAFETY: the descriptor is open, and the kernel only reads what it is given.
        let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
        if locked != -1 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            // A signal, while a file server was asked.
            Some(libc::EINTR) => {}
            errno => return Err(errno.unwrap_or(0)),
        }
    }
}

/// The file that a loop device shows.
fn file_below(device: &fs::Metadata) -> Option<PathBuf> {
    let number = device.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    backing_file(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
}

/// A loop device over this file, through which it can be written.
fn loop_device_over(file: &fs::Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?.map_while(Result::ok);
    let over = devices.filter(|device| {
        let folder = device.path();
        let is_same = |path| {
            fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (file.dev(), file.ino()))
        };
        let is_read_only =
            || fs::read_to_string(folder.join("ro")).is_ok_and(|ro| ro.trim() == "1");
        backing_file(&folder).is_some_and(is_same) && !is_read_only()
    });
    let mut names = over.map(|device| Path::new("/dev").join(device.file_name()));
    names.next()
}

fn backing_file(device: &Path) -> Option<PathBuf> {
    let path = fs::read_to_string(device.join("loop/backing_file")).ok()?;
    Some(path.trim_end_matches('\n').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also in one process, and even if a descriptor of the file is closed meanwhile.
    #[test]
    fn what_is_held_is_refused_to_others_until_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::write(&path, "not looked at").unwrap();
        let held = open(&path, Access::ReadWrite).unwrap();
        drop(fs::File::open(&path).unwrap());
        for access in [Access::ReadWrite, Access::ReadOnly] {
            assert!(matches!(open(&path, access), Err(LuksError::InUse { .. })));
        }
        drop(held);
        let readers = [(); 2].map(|()| open(&path, Access::ReadOnly).unwrap());
        assert!(matches!(open(&path, Access::ReadWrite), Err(LuksError::InUse { .. })));
        drop(readers);
        open(&path, Access::ReadWrite).unwrap();
    }
}
