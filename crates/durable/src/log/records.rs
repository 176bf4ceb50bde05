//! Reads a log's records.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader};
use std::iter::FusedIterator;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Sequence;
use super::cut::{Pin, Pins};
use super::folder::{Entrance, Folder, ReadAt, read_at, reopen};
use super::follow::Places;
use super::format::{HEADER_LEN, Scan};

/// A record that was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub sequence: Sequence,
    /// The data that was given to `append`.
    pub data: Vec<u8>,
}

type Segment = Scan<BufReader<ReadAt<Arc<File>>>>;

/// How many segments a reader opens at once.
const OPEN_MAX: usize = 16;

/// The records that were durable when this was made, beginning with the first that is kept, or with
/// a later one. Segments that are cut off meanwhile can still be read: it holds up to 16 files
/// open, and what it has not reached yet stays until a cut after that. But if the log is closed and
/// opened again, what had been cut off before is removed then. After an error there are no further
/// records.
pub struct Records {
    folder: PathBuf,
    segments: VecDeque<Segment>,
    later: Option<Later>,
    /// The number of the last record read, or passed over.
    sequence: u64,
    /// Records up to this one are passed over.
    before: u64,
    last: u64,
    error: Option<io::Error>,
}

/// Segments that are opened when they are reached, one at least.
struct Later {
    entrance: Entrance,
    log: u64,
    /// By their first records. The first of them is pinned.
    segments: VecDeque<u64>,
    pin: Pin,
}

/// Opens the segment that begins with `first`, to be read from the record at this place on.
fn open(
    path: &Path,
    folder: &Path,
    log: u64,
    first: u64,
    (record, at): (u64, u64),
) -> io::Result<Segment> {
    let named = |error: io::Error| {
        let text =
            format!("the segment of record {first} of the log {}: {error}", folder.display());
        io::Error::new(error.kind(), text)
    };
    let (file, length) = reopen(path).map_err(named)?;
    Ok(Scan::from(read_at(file, at), log, (record, at), length))
}

impl Records {
    /// The records from `from` up to `last`, which stand in these segments.
    pub(super) fn new(
        folder: &Folder,
        log: u64,
        (segments, pins, places): (&VecDeque<u64>, &Arc<Pins>, &Places),
        from: u64,
        last: u64,
    ) -> Self {
        let is_needed = |(index, first): &(usize, &u64)| {
            **first <= last
                && from <= last
                && segments.get(index + 1).is_none_or(|next| *next > from)
        };
        let needed = segments.iter().enumerate().filter(is_needed).map(|(_, first)| *first);
        let mut needed: VecDeque<_> = needed.collect();
        let later = needed.split_off(needed.len().min(OPEN_MAX));
        let opened = || {
            let now = needed.iter().map(|first| {
                let place = places.before(from, *first);
                open(&folder.segment(*first), &folder.path, log, *first, place)
            });
            let now: VecDeque<_> = now.collect::<io::Result<_>>()?;
            let Some(first) = later.front() else { return Ok((now, None)) };
            let pin = pins.pin(*first);
            Ok((now, Some(Later { entrance: folder.entrance()?, log, segments: later, pin })))
        };
        let ((segments, later), error) = match opened() {
            Ok(opened) => (opened, None),
            Err(error) => ((VecDeque::new(), None), Some(error)),
        };
        let sequence = segments.front().map_or(last, |scan: &Segment| scan.sequence);
        let (folder, before) = (folder.path.clone(), from.saturating_sub(1));
        Self { folder, segments, later, sequence, before, last, error }
    }

    /// Opens the next segment when the last open one has been read.
    fn open_next(&mut self) -> io::Result<()> {
        let Some(later) = &mut self.later else { return Ok(()) };
        let next = later.segments.front().copied();
        let Some(first) = next.filter(|first| *first == self.sequence + 1) else { return Ok(()) };
        let path = later.entrance.segment(first);
        self.segments.push_back(open(
            &path,
            &self.folder,
            later.log,
            first,
            (first, HEADER_LEN as u64),
        )?);
        later.segments.pop_front();
        match later.segments.front() {
            // Before the other one goes, so that no cut comes in between.
            Some(next) => later.pin = later.pin.of_same(*next),
            None => self.later = None,
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<Record> {
        let wanted = self.sequence + 1;
        self.open_next()?;
        if self.segments.get(1).is_some_and(|next| next.sequence == self.sequence) {
            self.segments.pop_front();
        }
        let next = self.segments.front_mut().map_or(Ok(None), Scan::next)?;
        let data = next.ok_or_else(|| {
            let text = format!("record {wanted} of the log {} is damaged", self.folder.display());
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
