//! Reads a log's records.

use std::fs::File;
use std::io::{self, BufReader};
use std::iter::FusedIterator;
use std::sync::Arc;

use super::Sequence;
use super::format::{HEADER_LEN, Scan};
use super::recovery::{ReadAt, read_at};

/// What was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub sequence: Sequence,
    /// As it was given to `append`.
    pub data: Vec<u8>,
}

/// The records that were durable when it was made, from the first on. After an error there are no
/// more.
pub struct Records {
    scan: Scan<BufReader<ReadAt<Arc<File>>>>,
    last: u64,
    ended: bool,
}

impl Records {
    /// Those up to `last`, which end at `end`.
    pub(super) fn new(file: &Arc<File>, end: u64, last: u64) -> Self {
        let reader = read_at(Arc::clone(file), HEADER_LEN as u64);
        Self { scan: Scan::new(reader, end), last, ended: false }
    }
}

impl Iterator for Records {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || self.scan.sequence == self.last {
            return None;
        }
        let next = self.scan.next();
        let lost = || {
            let text = format!("record {} of the log is damaged", self.scan.sequence + 1);
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let record = next.and_then(|data| data.ok_or_else(lost));
        self.ended = record.is_err();
        let sequence = Sequence(self.scan.sequence);
        Some(record.map(|data| Record { sequence, data }))
    }
}

impl FusedIterator for Records {}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("at", &self.scan.at).finish_non_exhaustive()
    }
}
