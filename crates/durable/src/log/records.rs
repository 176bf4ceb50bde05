//! Reads a log's records.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader};
use std::iter::FusedIterator;
use std::sync::Arc;

use super::Sequence;
use super::folder::{Folder, ReadAt, read_at, reopen};
use super::format::{HEADER_LEN, Header, Scan};

/// A record that was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub sequence: Sequence,
    /// The data that was given to `append`.
    pub data: Vec<u8>,
}

type Segment = Scan<BufReader<ReadAt<Arc<File>>>>;

/// The records that were durable when this was made, beginning with the first that is kept, or with
/// a later one. It holds the files open: segments that are removed meanwhile can still be read.
/// After an error there are no further records.
pub struct Records {
    segments: VecDeque<Segment>,
    /// The number of the last record read, or passed over.
    sequence: u64,
    /// Records up to this one are passed over.
    before: u64,
    last: u64,
    error: Option<io::Error>,
}

impl Records {
    /// The records from `from` up to `last`, which stand in these segments.
    pub(super) fn new(
        folder: &Folder,
        log: u64,
        segments: &VecDeque<u64>,
        from: u64,
        last: u64,
    ) -> Self {
        let is_needed = |(index, first): &(usize, &u64)| {
            **first <= last && segments.get(index + 1).is_none_or(|next| *next > from)
        };
        let open = |first: u64| {
            let (file, length) = reopen(&folder.segment(first))?;
            let header = Header { log, first, kept: first };
            Ok(Scan::new(read_at(file, HEADER_LEN as u64), &header, length))
        };
        let needed = segments.iter().enumerate().filter(is_needed);
        let opened: io::Result<VecDeque<_>> = needed.map(|(_, first)| open(*first)).collect();
        let (segments, error) = match opened {
            Ok(segments) => (segments, None),
            Err(error) => (VecDeque::new(), Some(error)),
        };
        let sequence = segments.front().map_or(last, |scan: &Segment| scan.sequence);
        Self { segments, sequence, before: from.saturating_sub(1), last, error }
    }

    fn read(&mut self) -> io::Result<Record> {
        let wanted = self.sequence + 1;
        if self.segments.get(1).is_some_and(|next| next.sequence == self.sequence) {
            self.segments.pop_front();
        }
        let next = self.segments.front_mut().map_or(Ok(None), Scan::next)?;
        let data = next.ok_or_else(|| {
            let text = format!("record {wanted} of the log is damaged");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        self.sequence = wanted;
        Ok(Record { sequence: Sequence(wanted), data })
    }
}

impl Iterator for Records {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        while self.sequence < self.last {
            let record = self.read();
            if record.is_err() {
                self.sequence = self.last;
            } else if self.sequence <= self.before {
                continue;
            }
            return Some(record);
        }
        None
    }
}

impl FusedIterator for Records {}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("read", &self.sequence).finish_non_exhaustive()
    }
}
