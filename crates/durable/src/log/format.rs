//! What stands in the file. Pure.
//!
//! ```text
//!  header   magic (8 bytes)  version (u32)  crc32c of these (u32)
//!  record   crc32c of what follows (u32)  length (u32)  sequence (u64)  data
//!  ...
//!  zeroes   preallocated
//! ```
//!
//! All numbers are little-endian. The records' sequences are 1, 2, 3 and so on: a record of another
//! number is none, whatever its checksum says, which holds for zeroes too.

use std::io::{self, Read};

pub(crate) const HEADER_LEN: usize = 16;
pub(crate) const RECORD_LEN: usize = 16;
const MAGIC: &[u8; 8] = b"homelog\0";
const VERSION: u32 = 1;

/// The longest record: so that a length that is none is not taken for one.
pub const RECORD_LENGTH_MAX: usize = 1 << 30;

pub(crate) fn header() -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = crc32c::crc32c(&header[..12]);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Whether a file that begins like this was about to become a log: its header is cut short, or
/// zeroes stand where it was to be.
pub(crate) fn is_unborn(begin: &[u8]) -> bool {
    let cut_short = begin.len() < HEADER_LEN && header().starts_with(begin);
    cut_short || begin.iter().all(|byte| *byte == 0)
}

/// Adds a record. `data` is at most [`RECORD_LENGTH_MAX`] long.
pub(crate) fn push(bytes: &mut Vec<u8>, sequence: u64, data: &[u8]) {
    let mut head = [0; RECORD_LEN];
    head[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
    head[8..].copy_from_slice(&sequence.to_le_bytes());
    let checksum = checksum(&head, data);
    head[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(data);
}

fn checksum(head: &[u8; RECORD_LEN], data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[4..]), data)
}

/// Reads records one after the other, as long as they are whole.
pub(crate) struct Scan<R> {
    reader: R,
    /// Where the next record begins.
    pub(crate) at: u64,
    /// Nothing is read beyond.
    end: u64,
    /// Of the last record.
    pub(crate) sequence: u64,
}

impl<R: Read> Scan<R> {
    /// `reader` stands behind the header.
    pub(crate) fn new(reader: R, end: u64) -> Self {
        Self { reader, at: HEADER_LEN as u64, end, sequence: 0 }
    }

    /// The next record's data; `None` where there is no whole record.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let left = self.end.saturating_sub(self.at);
        let Some(left) = left.checked_sub(RECORD_LEN as u64) else { return Ok(None) };
        let mut head = [0; RECORD_LEN];
        if !fill(&mut self.reader, &mut head)? {
            return Ok(None);
        }
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let (expected, length) = (number(&head[..4]), number(&head[4..8]) as usize);
        let sequence = u64::from_le_bytes(head[8..].try_into().expect("8 bytes"));
        if sequence != self.sequence + 1 || length > RECORD_LENGTH_MAX || length as u64 > left {
            return Ok(None);
        }
        let mut data = vec![0; length];
        if !fill(&mut self.reader, &mut data)? || checksum(&head, &data) != expected {
            return Ok(None);
        }
        self.at += (RECORD_LEN + length) as u64;
        self.sequence = sequence;
        Ok(Some(data))
    }
}

/// False where the end comes first.
fn fill(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
