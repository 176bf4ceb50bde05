//! `io_uring`, whose syncs are always done by the kernel's workers: how many there may be decides.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{opcode, types};

use super::{Queue, check};

/// A ring.
pub(crate) struct IoUring {
    ring: io_uring::IoUring,
    files: Vec<Option<File>>,
}

impl IoUring {
    /// Makes a ring for `depth` requests at a time, with `workers` workers of the kernel, or as
    /// many as it gives.
    pub(crate) fn new(depth: usize, workers: Option<u32>) -> io::Result<Self> {
        let ring = io_uring::IoUring::new(u32::try_from(depth).unwrap_or(u32::MAX))?;
        if let Some(workers) = workers {
            // A file's requests use the bounded workers, a pipe's the unbounded ones: both limits
            // are set to this number.
            ring.submitter().register_iowq_max_workers(&mut [workers, workers])?;
        }
        Ok(Self { ring, files: (0..depth).map(|_| None).collect() })
    }
}

impl Queue for IoUring {
    fn begin(&mut self, slot: usize, file: File) -> io::Result<()> {
        let request = opcode::Fsync::new(types::Fd(file.as_raw_fd())).build();
        self.files[slot] = Some(file);
        // SAFETY: the request has no pointers, and its file stays open until it has ended.
        let pushed = unsafe { self.ring.submission().push(&request.user_data(slot as u64)) };
        pushed.map_err(io::Error::other)
    }

    fn ended(&mut self) -> io::Result<Vec<usize>> {
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let end = |entry: io_uring::cqueue::Entry| {
            let slot = entry.user_data() as usize;
            self.files[slot] = None;
            check(i64::from(entry.result())).map(|()| slot)
        };
        self.ring.completion().map(end).collect()
    }
}
