//! A disk as a file: a FUSE mount that is one regular file, without a directory around it.
//!
//! The kernel's protocol as in `linux/fuse.h`, version 7.31, of which a file needs little. Nothing
//! is cached between the file and the disk (`FOPEN_DIRECT_IO`). Several threads answer, so that
//! reads and writes go on while a flush takes its time.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::disk::{Broken, Disk};

const THREADS: usize = 4;
/// The most bytes of one write. Requests are no longer than that and a page.
const WRITE_MAX: u32 = 1 << 20;
const REQUEST_MAX: usize = WRITE_MAX as usize + 4096;
const IN_HEADER: usize = 40;
const OUT_HEADER: u32 = 16;

/// `FUSE_ASYNC_READ`, `FUSE_BIG_WRITES`, `FUSE_ASYNC_DIO`, `FUSE_MAX_PAGES`.
const FLAGS: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22;
/// `FOPEN_DIRECT_IO`, `FOPEN_PARALLEL_DIRECT_WRITES`.
const OPEN_FLAGS: u32 = 1 | 1 << 6;
const MODE: u32 = 0o100_600;
const ENOSYS: i32 = 38;
const ECONNABORTED: i32 = 103;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EIO: i32 = 5;
const EINTR: i32 = 4;
const EPERM: i32 = 1;

/// A disk that is served. Unmounted when dropped.
#[derive(Debug)]
pub struct Served {
    path: PathBuf,
}

impl Served {
    /// Serves `disk` as the file `path`, which must exist.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn start(disk: &Arc<Disk>, path: &Path) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode={MODE:o},user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("homing-faultdisk", path, "fuse", flags, options.as_c_str())?;
        let served = Self { path: path.to_owned() };
        for _ in 0..THREADS {
            let (device, disk) = (device.try_clone()?, Arc::clone(disk));
            let serve = move || serve(&device, &disk);
            thread::Builder::new().name("faultdisk".to_owned()).spawn(serve)?;
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The threads end with the mount. If this fails, nobody is left to tell.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

/// Answers requests until the file is unmounted.
fn serve(device: &File, disk: &Disk) {
    let mut request = vec![0; REQUEST_MAX];
    loop {
        let length = match (&*device).read(&mut request) {
            Ok(length) => length,
            // It is unmounted, or somebody has aborted it.
            Err(error) if matches!(error.raw_os_error(), Some(ENODEV | ECONNABORTED | EPERM)) => {
                return;
            }
            // A request was taken back, a signal came, or memory was short.
            Err(_) => continue,
        };
        let Some(Answer { unique, outcome }) = answer(disk, &request[..length]) else { continue };
        let (errno, body) = match &outcome {
            Ok(body) => (0, &body[..]),
            Err(errno) => (-errno, &[][..]),
        };
        let mut header = Bytes::default();
        header.u32(OUT_HEADER + body.len() as u32).u32(errno.cast_unsigned()).u64(unique);
        let parts = [IoSlice::new(&header.0), IoSlice::new(body)];
        // Fails if the asker has gone.
        let _ = (&*device).write_vectored(&parts);
    }
}

struct Answer {
    unique: u64,
    /// The body of the answer, or an errno.
    outcome: Result<Vec<u8>, i32>,
}

/// The answer to a request; `None` if none is expected.
fn answer(disk: &Disk, request: &[u8]) -> Option<Answer> {
    let unique = u64_at(request, 8)?;
    let body = request.get(IN_HEADER..)?;
    let outcome = match u32_at(request, 4)? {
        2 | 36 | 42 => return None, // FORGET, INTERRUPT, BATCH_FORGET
        26 => init(body),
        3 => Some(attributes(disk)),
        14 => Some(Bytes::default().u64(1).u32(OPEN_FLAGS).u32(0).take()),
        15 => read(disk, body),
        16 => match write(disk, body) {
            Some(Err(Broken)) => return Some(Answer { unique, outcome: Err(EIO) }),
            outcome => outcome.and_then(Result::ok),
        },
        20 if disk.is_interrupted() => return Some(Answer { unique, outcome: Err(EINTR) }),
        20 => match disk.flush() {
            Err(Broken) => return Some(Answer { unique, outcome: Err(EIO) }),
            Ok(()) => Some(Vec::new()),
        },
        18 | 25 | 38 => Some(Vec::new()), // RELEASE, FLUSH (which is of close), DESTROY
        _ => return Some(Answer { unique, outcome: Err(ENOSYS) }),
    };
    Some(Answer { unique, outcome: outcome.ok_or(EINVAL) })
}

fn init(body: &[u8]) -> Option<Vec<u8>> {
    let offered = u32_at(body, 12)?;
    let mut said = Bytes::default();
    said.u32(7).u32(31).u32(128 << 10).u32(FLAGS & offered);
    said.u16(64).u16(48).u32(WRITE_MAX).u32(1);
    said.u16((WRITE_MAX / 4096) as u16).u16(0);
    said.0.resize(64, 0);
    Some(said.take())
}

fn attributes(disk: &Disk) -> Vec<u8> {
    let mut said = Bytes::default();
    // How long the attributes are valid, and the inode's number.
    said.u64(3600).u64(0).u64(1);
    said.u64(disk.size()).u64(disk.size() / 512);
    // Times, and their nanoseconds.
    said.u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
    said.u32(MODE).u32(1).u32(0).u32(0).u32(0).u32(4096).u32(0);
    said.take()
}

fn read(disk: &Disk, body: &[u8]) -> Option<Vec<u8>> {
    let (offset, size) = (u64_at(body, 8)?, u32_at(body, 16)?);
    let mut bytes = vec![0; u64::from(size).min(disk.size().saturating_sub(offset)) as usize];
    disk.read(offset, &mut bytes);
    Some(bytes)
}

fn write(disk: &Disk, body: &[u8]) -> Option<Result<Vec<u8>, Broken>> {
    let (offset, size) = (u64_at(body, 8)?, u32_at(body, 16)?);
    let written = disk.write(offset, body.get(40..)?.get(..size as usize)?);
    Some(written.map(|()| Bytes::default().u32(size).u32(0).take()))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Numbers one after the other, in the machine's order.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}
