//! Linux AIO (`io_submit(2)`), which glibc has no wrapper for: `IOCB_CMD_FSYNC`, since Linux 4.18.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{SYS_io_destroy, SYS_io_getevents, SYS_io_setup, SYS_io_submit, c_ulong, iocb, syscall};

use super::{Queue, check};

const IOCB_CMD_FSYNC: u16 = 2;

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// An AIO context.
pub(crate) struct LinuxAio {
    context: c_ulong,
    files: Vec<Option<File>>,
}

impl LinuxAio {
    /// Makes a queue for this many requests at a time.
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        let mut context: c_ulong = 0;
        // SAFETY: the kernel writes the context's number there.
        let done = unsafe { syscall(SYS_io_setup, depth as c_ulong, &raw mut context) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { context, files: (0..depth).map(|_| None).collect() })
    }
}

impl Queue for LinuxAio {
    fn begin(&mut self, slot: usize, file: File) -> io::Result<()> {
        // SAFETY: a plain structure, of which zeroes are a value.
        let mut request: iocb = unsafe { std::mem::zeroed() };
        request.aio_data = slot as u64;
        request.aio_lio_opcode = IOCB_CMD_FSYNC;
        request.aio_fildes = file.as_raw_fd().cast_unsigned();
        let requests = [&raw mut request];
        // SAFETY: the kernel copies the request before it returns, and holds the file itself.
        let taken = unsafe { syscall(SYS_io_submit, self.context, 1_u64, requests.as_ptr()) };
        if taken != 1 {
            return Err(io::Error::last_os_error());
        }
        self.files[slot] = Some(file);
        Ok(())
    }

    fn ended(&mut self) -> io::Result<Vec<usize>> {
        let mut events = vec![Event::default(); self.files.len()];
        let (least, most) = (1_u64, events.len() as u64);
        let no_limit = ptr::null::<libc::timespec>();
        let into = events.as_mut_ptr();
        let count = loop {
            // SAFETY: there is room for `most` events, which the kernel fills from the first on.
            let count =
                unsafe { syscall(SYS_io_getevents, self.context, least, most, into, no_limit) };
            if let Ok(count) = usize::try_from(count) {
                break count;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        let end = |event: &Event| {
            let slot = event.data as usize;
            self.files[slot] = None;
            check(event.result).map(|()| slot)
        };
        events[..count].iter().map(end).collect()
    }
}

impl Drop for LinuxAio {
    fn drop(&mut self) {
        // SAFETY: the context is ours; waits for what is under way.
        let _ = unsafe { syscall(SYS_io_destroy, self.context) };
    }
}
