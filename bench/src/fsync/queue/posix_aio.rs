//! POSIX's `aio_fsync(3)`: in glibc, threads of the C library.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::aiocb;

use super::{Queue, check};

/// Requests that the C library's threads carry out.
pub(crate) struct PosixAio {
    /// Boxed, since the library knows the requests by their addresses.
    requests: Vec<Option<(Box<aiocb>, File)>>,
}

impl PosixAio {
    /// Makes a queue for this many requests at a time.
    pub(crate) fn new(depth: usize) -> Self {
        Self { requests: (0..depth).map(|_| None).collect() }
    }

    /// Waits until one has ended.
    fn wait(&self) -> io::Result<()> {
        let under_way = self.requests.iter().flatten();
        let list: Vec<*const aiocb> = under_way.map(|(request, _)| &raw const **request).collect();
        let length = i32::try_from(list.len()).unwrap_or(i32::MAX);
        // SAFETY: the requests are under way, and stay where they are.
        let done = unsafe { libc::aio_suspend(list.as_ptr(), length, ptr::null()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Queue for PosixAio {
    fn begin(&mut self, slot: usize, file: File) -> io::Result<()> {
        // SAFETY: a plain structure, of which zeroes are a value.
        let mut request: Box<aiocb> = Box::new(unsafe { mem::zeroed() });
        request.aio_fildes = file.as_raw_fd();
        request.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        // SAFETY: the request stays where it is, and its file open, until it has ended.
        let begun = unsafe { libc::aio_fsync(libc::O_SYNC, &raw mut *request) };
        if begun != 0 {
            return Err(io::Error::last_os_error());
        }
        self.requests[slot] = Some((request, file));
        Ok(())
    }

    fn ended(&mut self) -> io::Result<Vec<usize>> {
        while let Err(error) = self.wait() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let mut ended = Vec::new();
        for (slot, place) in self.requests.iter_mut().enumerate() {
            let Some((request, _)) = place else { continue };
            // SAFETY: it was begun.
            let errno = unsafe { libc::aio_error(&raw const **request) };
            if errno == libc::EINPROGRESS {
                continue;
            }
            // SAFETY: it has ended, and is asked for once.
            let _ = unsafe { libc::aio_return(&raw mut **request) };
            *place = None;
            check(-i64::from(errno))?;
            ended.push(slot);
        }
        Ok(ended)
    }
}

impl Drop for PosixAio {
    fn drop(&mut self) {
        while self.requests.iter().any(Option::is_some) {
            // A sync that failed has ended as well.
            let _ = self.ended();
        }
    }
}
