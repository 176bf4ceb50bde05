//! The contents of a segment's file. Pure.
//!
//! ```text
//!  header   magic (8 bytes)  version (u32)  crc32c of all else here (u32)
//!           log (u64)  first (u64)  kept (u64)
//!  record   crc32c of what follows (u32)  length, and a mark (u32)  sequence (u64)  data
//!  ...
//!  seal     as the head of a record, with all bits of the length set: only if a segment follows
//!  zeroes   preallocated
//! ```
//!
//! All numbers are little-endian. `log` is a random number drawn when the log is made. The
//! checksums of its records begin with it, so records of other logs do not count here. `first` is
//! the number of the first record; the records behind it count on. `kept` is the number of the
//! first record of the whole log that was still needed when the segment was begun.
//!
//! A mark, the top bit, is on the first record of each write. A write begins when the write before
//! it is durable. So if a marked record is whole, all records before it were durable once, and one
//! of those that is not whole now was damaged. If there is no such mark behind it, a record that is
//! not whole may only have been torn.
//!
//! A seal is written when the next segment is durable, and names its first record. If that segment
//! is not there, it has been lost. The seal is not flushed: a crash soon afterwards may lose the
//! seal instead.

use std::cell::OnceCell;
use std::io::{self, Read};
use std::ops::Range;

use crc32c::crc32c_combine;

pub(crate) const HEADER_LEN: usize = 40;
pub(crate) const RECORD_LEN: usize = 16;
const MAGIC: &[u8; 8] = b"homelog\0";
const VERSION: u32 = 2;
const MARK: u32 = 1 << 31;
/// In place of a length: longer than any record.
const SEAL: u32 = u32::MAX;

/// The longest possible record. The limit keeps a damaged length from being taken for one.
pub const RECORD_LENGTH_MAX: usize = 1 << 30;

/// How a segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Which log it is of.
    pub(crate) log: u64,
    /// Its first record.
    pub(crate) first: u64,
    /// The first record of all that was needed when it was begun.
    pub(crate) kept: u64,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.log.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.to_le_bytes());
        bytes[32..].copy_from_slice(&self.kept.to_le_bytes());
        let checksum = header_checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Every version has its number where it is, and this checksum of these 40 bytes: otherwise an
    /// older program would call a newer log damaged, and advise to give it up.
    ///
    /// `None` if it is damaged, or none of ours; `Err` with its version if that is another one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Result<Self, u32>> {
        let bytes: &[u8; HEADER_LEN] = bytes.try_into().ok()?;
        let version = u32_of(&bytes[8..12]);
        if &bytes[..8] != MAGIC || u32_of(&bytes[12..16]) != header_checksum(bytes) {
            return None;
        }
        let (log, first, kept) =
            (u64_of(&bytes[16..24]), u64_of(&bytes[24..32]), u64_of(&bytes[32..]));
        Some(if version == VERSION { Ok(Self { log, first, kept }) } else { Err(version) })
    }
}

fn header_checksum(bytes: &[u8; HEADER_LEN]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

/// Adds a record, which is the first of a write if there is none in `bytes`. All of its data is at
/// most [`RECORD_LENGTH_MAX`] long.
pub(crate) fn push<'a>(
    bytes: &mut Vec<u8>,
    log: u64,
    sequence: u64,
    data: impl IntoIterator<Item = &'a [u8]>,
) {
    let mark = if bytes.is_empty() { MARK } else { 0 };
    let begin = bytes.len();
    bytes.extend_from_slice(&[0; RECORD_LEN]);
    data.into_iter().for_each(|part| bytes.extend_from_slice(part));
    let (head, data) = bytes[begin..].split_first_chunk_mut().expect("just added");
    *head = head_of(log, data.len() as u32 | mark, sequence, data);
}

/// What is written behind the records of a segment when the one that begins with this record is
/// durable.
pub(crate) fn seal(log: u64, next: u64) -> [u8; RECORD_LEN] {
    head_of(log, SEAL, next, &[])
}

fn head_of(log: u64, length: u32, sequence: u64, data: &[u8]) -> [u8; RECORD_LEN] {
    let mut head = [0; RECORD_LEN];
    head[4..8].copy_from_slice(&length.to_le_bytes());
    head[8..].copy_from_slice(&sequence.to_le_bytes());
    let checksum = checksum(log, &head, data);
    head[..4].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Unmarks the records in `bytes`: they are not the beginning of a write any more, because others
/// come before them.
pub(crate) fn unmark(bytes: &mut [u8], log: u64) {
    let Some((head, rest)) = bytes.split_first_chunk_mut::<RECORD_LEN>() else { return };
    let length = u32_of(&head[4..8]) & !MARK;
    head[4..8].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(log, head, &rest[..length as usize]);
    head[..4].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(log: u64, head: &[u8; RECORD_LEN], data: &[u8]) -> u32 {
    let of_head = crc32c::crc32c_append(crc32c::crc32c(&log.to_le_bytes()), &head[4..]);
    crc32c::crc32c_append(of_head, data)
}

/// What a record begins with.
struct Head {
    checksum: u32,
    length: usize,
    is_marked: bool,
    sequence: u64,
}

impl Head {
    fn of(bytes: &[u8; RECORD_LEN]) -> Self {
        let length = u32_of(&bytes[4..8]);
        Self {
            checksum: u32_of(&bytes[..4]),
            length: (length & !MARK) as usize,
            is_marked: length & MARK != 0,
            sequence: u64_of(&bytes[8..]),
        }
    }
}

/// Whether a write began behind the record `damaged`, which is not whole: a seal, or a marked
/// record of a higher number, stands anywhere in `rest`.
pub(crate) fn was_durable(rest: &[u8], log: u64, damaged: u64) -> bool {
    let sums = Sums { of: rest, blocks: OnceCell::new() };
    let heads = rest.windows(RECORD_LEN).enumerate();
    let mut heads = heads.filter_map(|(at, bytes)| Some((at, bytes.first_chunk()?)));
    heads.any(|(at, bytes): (usize, &[u8; RECORD_LEN])| {
        let head = Head::of(bytes);
        let behind = head.sequence.checked_sub(damaged);
        if behind.is_none_or(|behind| behind > rest.len() as u64) {
            return false;
        }
        if *bytes == seal(log, head.sequence) {
            return true;
        }
        if behind == Some(0) || !head.is_marked {
            return false;
        }
        let begin = at + RECORD_LEN;
        let is_there = head.length <= rest.len() - begin;
        is_there && sums.checksum(log, bytes, begin..begin + head.length) == head.checksum
    })
}

/// Checksums of many parts of some bytes, made from the checksums of what stands before both ends
/// of a part. So data that looks like the beginnings of many long records does not take as long as
/// reading all of these.
struct Sums<'a> {
    of: &'a [u8],
    /// The checksums of what stands before each block.
    blocks: OnceCell<Vec<u32>>,
}

impl Sums<'_> {
    const BLOCK_LEN: usize = 4 << 10;
    /// A shorter part is summed directly, because that is faster.
    const LONG: usize = 64 << 10;

    /// As [`checksum`], of a record whose data is this part.
    fn checksum(&self, log: u64, head: &[u8; RECORD_LEN], data: Range<usize>) -> u32 {
        if data.len() < Self::LONG {
            return checksum(log, head, &self.of[data]);
        }
        let length = data.len();
        // The sum of two parts is the sum of the first, moved by the length of the second, XOR that
        // of the second.
        let of_data = self.before(data.end) ^ crc32c_combine(self.before(data.start), 0, length);
        crc32c_combine(checksum(log, head, &[]), of_data, length)
    }

    fn before(&self, at: usize) -> u32 {
        let blocks = self.blocks.get_or_init(|| {
            let blocks = self.of.chunks(Self::BLOCK_LEN);
            let sums = blocks.scan(0, |sum, block| {
                Some(std::mem::replace(sum, crc32c::crc32c_append(*sum, block)))
            });
            sums.collect()
        });
        // At the very end there may be no further block.
        let block = (at / Self::BLOCK_LEN).min(blocks.len() - 1);
        crc32c::crc32c_append(blocks[block], &self.of[block * Self::BLOCK_LEN..at])
    }
}

/// Reads records one after the other, as long as they are whole.
pub(crate) struct Scan<R> {
    reader: R,
    log: u64,
    /// Where the next record begins.
    pub(crate) at: u64,
    /// Nothing is read beyond this.
    end: u64,
    /// The number of the last record.
    pub(crate) sequence: u64,
    /// Where the first record of the last write begins, and its number.
    pub(crate) write: (u64, u64),
}

impl<R: Read> Scan<R> {
    /// `reader` stands behind the header of a segment that is `end` bytes long.
    pub(crate) fn new(reader: R, header: &Header, end: u64) -> Self {
        Self::from(reader, header.log, (header.first, HEADER_LEN as u64), end)
    }

    /// `reader` stands at the place of this record, `at`, in a segment of `end` bytes.
    pub(crate) fn from(reader: R, log: u64, (record, at): (u64, u64), end: u64) -> Self {
        Self { reader, log, at, end, sequence: record.saturating_sub(1), write: (at, record) }
    }

    /// The next record's data; `None` where there is no whole record.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let left = self.end.saturating_sub(self.at);
        let Some(left) = left.checked_sub(RECORD_LEN as u64) else { return Ok(None) };
        let mut bytes = [0; RECORD_LEN];
        if !fill(&mut self.reader, &mut bytes)? {
            return Ok(None);
        }
        let head = Head::of(&bytes);
        let length = head.length;
        if self.sequence.checked_add(1) != Some(head.sequence)
            || length > RECORD_LENGTH_MAX
            || length as u64 > left
        {
            return Ok(None);
        }
        let mut data = vec![0; length];
        if !fill(&mut self.reader, &mut data)? || checksum(self.log, &bytes, &data) != head.checksum
        {
            return Ok(None);
        }
        if head.is_marked {
            self.write = (self.at, head.sequence);
        }
        self.at += (RECORD_LEN + length) as u64;
        self.sequence = head.sequence;
        Ok(Some(data))
    }
}

/// Fills `bytes`; returns false if the end comes first.
fn fill(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_no_longer_first_are_as_if_they_had_never_been() {
        let (mut all, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, data) in [(5, &b"five"[..]), (6, b""), (7, b"seven")] {
            push(&mut all, 3, sequence, [data]);
            push(if sequence == 5 { &mut first } else { &mut second }, 3, sequence, [data]);
        }
        assert!(was_durable(&second, 3, 5), "a write begins with it");
        assert!(!was_durable(&second, 3, 6), "none begins behind it");
        unmark(&mut second, 3);
        assert_eq!([first, second].concat(), all);
        unmark(&mut [], 3);
    }

    #[test]
    fn a_seal_says_that_what_it_names_and_all_before_it_was_durable() {
        let seal = seal(3, 6);
        assert!(was_durable(&seal, 3, 6), "the next segment began with it");
        assert!(was_durable(&[b"torn", &seal[..]].concat(), 3, 5), "it stood before that");
        assert!(!was_durable(&seal, 3, 7), "it may not have got that far");
        assert!(!was_durable(&seal, 4, 6), "of another log");
        let header = Header { log: 3, first: 6, kept: 6 };
        let mut scan = Scan::new(&seal[..], &header, (HEADER_LEN + RECORD_LEN) as u64);
        assert!(scan.next().unwrap().is_none(), "it is no record");
    }

    #[test]
    fn a_write_that_ends_where_the_file_does_has_begun_too() {
        let mut write = Vec::new();
        push(&mut write, 3, 6, [&b"six"[..]]);
        assert!(was_durable(&write, 3, 5));
        assert!(!was_durable(&write[..write.len() - 1], 3, 5), "it is not whole");
    }

    #[test]
    fn records_are_read_in_their_order_and_the_last_write_is_noted() {
        let (mut bytes, mut write) = (Vec::new(), Vec::new());
        push(&mut bytes, 3, 5, [&b"fi"[..], b"", b"ve"]);
        let at = (HEADER_LEN + bytes.len()) as u64;
        for sequence in [6, 7] {
            push(&mut write, 3, sequence, [&b"six or seven"[..]]);
        }
        bytes.append(&mut write);
        let end = (HEADER_LEN + bytes.len()) as u64;
        // A whole record of this log, but not the next one.
        push(&mut bytes, 3, 9, [&b"nine"[..]]);
        let header = Header { log: 3, first: 5, kept: 5 };
        let mut scan = Scan::new(&*bytes, &header, (HEADER_LEN + bytes.len()) as u64);
        while scan.next().unwrap().is_some() {}
        assert_eq!((scan.sequence, scan.at, scan.write), (7, end, (at, 6)));
    }

    #[test]
    fn sums_of_parts_are_what_they_are_one_by_one() {
        let length = 3 * Sums::BLOCK_LEN + 2 * Sums::LONG;
        let bytes: Vec<u8> = (0..length).map(|n| (n * n % 251) as u8).collect();
        for end in [length, length - 1, length - Sums::BLOCK_LEN] {
            let sums = Sums { of: &bytes[..end], blocks: OnceCell::new() };
            for start in
                [0, 1, Sums::BLOCK_LEN - 1, Sums::BLOCK_LEN, end - Sums::LONG, end - 1, end]
            {
                let head = &[7; RECORD_LEN];
                let one_by_one = checksum(3, head, &bytes[start..end]);
                assert_eq!(sums.checksum(3, head, start..end), one_by_one, "{start}..{end}");
            }
        }
    }
}
