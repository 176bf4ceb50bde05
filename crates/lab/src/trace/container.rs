//! Reads the container `CTR1`, and refuses whatever is not one.
//!
//! All numbers are little-endian. A header of 16 bytes: the magic `CTR1`, a `u32` version (1), a
//! `u64` number of records. Then records of 16 bytes:
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0..8 | key | `u64`, the first page |
//! | 8..12 | run | `u32`, how many pages: the record stands for accesses to key, key + 1, ... |
//! | 12..14 | flags | `u16`, bit 0: a write; the others mean nothing and are ignored |
//! | 14..16 | tenant | `u16`, 0 where there is one stream only |
//!
//! The file's claims allocate nothing: memory grows with what has been read. A run, which few bytes
//! can make long, counts against a limit before it is expanded.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::builder::Builder;
use super::format::{name_of, read_error};
use super::{Trace, TraceError};

const MAGIC: [u8; 4] = *b"CTR1";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 16;
const RECORD_LEN: usize = 16;
/// Records that are read at a time. Measured: more do not make it faster.
const BATCH_LEN: usize = 1 << 16;

/// Reads all of `source`.
pub(super) fn read(file: &Path, source: impl Read, requests_max: u64) -> Result<Trace, TraceError> {
    Container { file, source, offset: 0 }.read(requests_max)
}

/// A container that is being read.
struct Container<'a, R> {
    file: &'a Path,
    source: R,
    /// Uncompressed bytes read so far.
    offset: u64,
}

impl<R: Read> Container<'_, R> {
    fn read(mut self, requests_max: u64) -> Result<Trace, TraceError> {
        let mut header = [0; HEADER_LEN];
        let len = self.fill(&mut header)?;
        if !header[..len].starts_with(&MAGIC) {
            let found = String::from_utf8_lossy(&header[..len.min(4)]).into_owned();
            return Err(TraceError::Magic { file: self.path(), found });
        }
        if len < HEADER_LEN {
            return Err(TraceError::Header { file: self.path(), len });
        }
        let version = u32_at(&header, 4);
        if version != VERSION {
            return Err(TraceError::Version { file: self.path(), version });
        }
        let claimed = u64_at(&header, 8);
        let mut builder = Builder::new(name_of(self.file));
        let mut batch = vec![0; BATCH_LEN];
        let mut whole = 0;
        while whole < claimed {
            let left = (claimed - whole).min((BATCH_LEN / RECORD_LEN) as u64) as usize;
            let began = self.offset;
            let len = self.fill(&mut batch[..left * RECORD_LEN])?;
            let records = batch[..len].chunks_exact(RECORD_LEN);
            for (index, record) in records.enumerate() {
                let offset = began + (index * RECORD_LEN) as u64;
                self.expand(record, offset, requests_max, &mut builder)?;
            }
            whole += (len / RECORD_LEN) as u64;
            if len < left * RECORD_LEN {
                return Err(TraceError::Short {
                    file: self.path(),
                    offset: self.offset,
                    whole,
                    claimed,
                });
            }
        }
        let offset = self.offset;
        if self.fill(&mut [0])? != 0 {
            return Err(TraceError::Long { file: self.path(), offset, claimed });
        }
        Ok(builder.build())
    }

    /// Appends the requests of one record.
    fn expand(
        &self,
        record: &[u8],
        offset: u64,
        requests_max: u64,
        builder: &mut Builder,
    ) -> Result<(), TraceError> {
        let (key, run) = (u64_at(record, 0), u32_at(record, 8));
        let (write, tenant) = (u16_at(record, 12) & 1 != 0, u16_at(record, 14));
        if run == 0 {
            return Err(TraceError::EmptyRun { file: self.path(), offset, key });
        }
        let Some(last) = key.checked_add(u64::from(run - 1)) else {
            return Err(TraceError::RunOverflow { file: self.path(), offset, key, run });
        };
        if builder.len() as u64 + u64::from(run) > requests_max {
            let file = self.path();
            return Err(TraceError::TooManyRequests { file, offset, run, requests_max });
        }
        for key in key..=last {
            if !builder.push(key, write, tenant) {
                return Err(TraceError::TooManyPages { file: self.path() });
            }
        }
        Ok(())
    }

    /// Fills the buffer as far as there is data, and returns how far.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TraceError> {
        let mut len = 0;
        while len < buffer.len() {
            match self.source.read(&mut buffer[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_error(self.file, self.offset + len as u64, error)),
            }
        }
        self.offset += len as u64;
        Ok(len)
    }

    fn path(&self) -> PathBuf {
        self.file.to_owned()
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
