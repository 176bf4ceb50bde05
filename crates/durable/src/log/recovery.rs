//! Opening a log: finds the records that are whole, and goes on behind them in a new segment. Nothing
//! is changed before all has been read and found right.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::Sequence;
use super::error::LogError;
use super::folder::{Folder, is_full, read_at, reopen};
use super::format::{self, HEADER_LEN, Header, Scan};
use super::lead::Tail;
use crate::system::System;

/// What opening a log has found.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// use homing_durable::{Log, Recovery};
///
/// let log = Log::open(&durable, &path)?.0;
/// log.commit_and_wait(log.append(b"one")?)?;
/// drop(log);
/// let (_log, Recovery { records, dropped_bytes, .. }) = Log::open(&durable, &path)?;
/// assert_eq!((records, dropped_bytes), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The first record that is still needed: none before it was asked to be kept. Where there are
    /// no records, the next one.
    pub first: Sequence,
    /// Records from there on, all whole; all of them are durable now.
    pub records: u64,
    /// Bytes after them that were none, up to the last that was not zero: a record that was torn by
    /// a crash, and those behind it that had not been committed. They are gone.
    pub dropped_bytes: u64,
}

/// A log that can be appended to.
pub(super) struct Opened {
    pub(super) folder: Folder,
    /// Its number, and the first record that is needed.
    pub(super) log: u64,
    pub(super) kept: u64,
    /// The first records of its segments. The last one is written to.
    pub(super) segments: Vec<u64>,
    pub(super) tail: Tail,
    /// The last record.
    pub(super) last: u64,
    pub(super) dropped_bytes: u64,
}

pub(super) fn open(system: &dyn System, path: &Path) -> Result<Opened, LogError> {
    let folder = Folder::open(system, path)?;
    let mut segments = folder.segments()?;
    let Some(last) = segments.last() else { return create(system, folder) };
    let newest = header(&folder, *last)?;
    let Header { log, kept, .. } = newest;
    // Of those that end before it the removal was under way.
    let unneeded = segments.windows(2).take_while(|both| both[1] <= kept).count();
    let unneeded: Vec<_> = segments.drain(..unneeded).collect();
    if kept < segments[0] {
        return Err(damaged(&folder, segments[0], 0, kept));
    }
    for both in segments.windows(2) {
        let of = header(&folder, both[0])?;
        if of.log != log {
            return Err(damaged(&folder, both[0], 0, both[0]));
        }
        let (file, length) = reopened(&folder, both[0])?;
        let mut scan = Scan::new(read_at(&*file, HEADER_LEN as u64), &of, length);
        while scan.sequence + 1 < both[1] {
            if scan.next().map_err(|source| io(&folder, "read", both[0], source))?.is_none() {
                return Err(damaged(&folder, both[0], scan.at, scan.sequence + 1));
            }
        }
    }
    open_last(system, folder, segments, &newest, &unneeded)
}

/// The segment that was written to, in which a record may be torn.
///
/// Its last write may be in memory only; and if a flush of it has failed, the kernel holds it for
/// clean, and ext4 may lose it even if it is written again in its place. All before it was durable. So
/// the last write goes to a segment of its own, and nothing else is changed but that segments which are not needed go.
fn open_last(
    system: &dyn System,
    folder: Folder,
    mut segments: Vec<u64>,
    of: &Header,
    unneeded: &[u64],
) -> Result<Opened, LogError> {
    let io = |action| {
        let path = folder.name_of(of.first);
        move |source| LogError::Io { action, path, source }
    };
    let opened = OpenOptions::new().read(true).write(true).open(folder.segment(of.first));
    let old = opened.map_err(io("open"))?;
    let length = old.metadata().map_err(io("examine"))?.len();
    let mut scan = Scan::new(read_at(&old, HEADER_LEN as u64), of, length);
    while scan.next().map_err(io("read"))?.is_some() {}
    let (end, last) = (scan.at, scan.sequence);
    // Not much: what was not committed, which somebody had in memory as a whole, and zeroes.
    let mut rest = Vec::new();
    read_at(&old, end).read_to_end(&mut rest).map_err(io("read"))?;
    let dropped_bytes = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    if dropped_bytes > 0 && format::was_durable(&rest, of.log, last + 1) {
        return Err(damaged(&folder, of.first, end, last + 1));
    }
    let (write_at, first) = scan.write;
    let mut write = vec![0; (end - write_at) as usize];
    old.read_exact_at(&mut write, write_at).map_err(io("read"))?;
    // Before anything is written: the disk may be full. Who renamed the newest segment, which says that these are
    // not needed, may not have got so far as to make its name durable.
    if !unneeded.is_empty() {
        let cleared = folder.sync(system).and_then(|()| folder.remove(system, unneeded));
        cleared.map_err(|failure| LogError::Io {
            action: "clear",
            path: folder.path.clone(),
            source: failure.error,
        })?;
    }
    let header = Header { first, ..*of };
    let mut first = first;
    let mut created = folder.create(system, &header, &write, false);
    if created.as_ref().is_err_and(|failure| is_full(&failure.error)) {
        created = if end <= folder.spare_len() {
            // All of the segment goes into a spare one, and takes its place, so that no space is lost.
            first = of.first;
            write.resize(end as usize - HEADER_LEN, 0);
            old.read_exact_at(&mut write, HEADER_LEN as u64).map_err(io("read"))?;
            folder.create(system, of, &write, true)
        } else {
            folder.create(system, &header, &write, true)
        };
    }
    let tail = created.map_err(|failure| io("write anew the end of")(failure.error))?;
    if first > of.first {
        // What is behind in the one before is not needed any more, but who reads may have it open.
        segments.push(first);
    }
    Ok(Opened { log: of.log, kept: of.kept, segments, tail, last, dropped_bytes, folder })
}

impl Opened {
    pub(super) fn recovery(&self) -> Recovery {
        Recovery {
            first: Sequence(self.kept),
            records: self.last + 1 - self.kept,
            dropped_bytes: self.dropped_bytes,
        }
    }
}

/// A new log.
fn create(system: &dyn System, folder: Folder) -> Result<Opened, LogError> {
    // The standard library draws it.
    let log = RandomState::new().hash_one(&folder.path);
    let first = Header { log, first: 1, kept: 1 };
    let tail = folder.create(system, &first, &[], true).map_err(|failure| LogError::Io {
        action: "make a segment",
        path: folder.path.clone(),
        source: failure.error,
    })?;
    Ok(Opened { folder, log, kept: 1, segments: vec![1], tail, last: 0, dropped_bytes: 0 })
}

fn header(folder: &Folder, first: u64) -> Result<Header, LogError> {
    let (file, _) = reopened(folder, first)?;
    let mut bytes = Vec::with_capacity(HEADER_LEN);
    let read = read_at(&*file, 0).take(HEADER_LEN as u64).read_to_end(&mut bytes);
    read.map_err(|source| io(folder, "read", first, source))?;
    match Header::from_bytes(&bytes) {
        // The first that is needed is never behind a segment's beginning.
        Some(Ok(header)) if header.first == first && (1..=first).contains(&header.kept) => {
            Ok(header)
        }
        Some(Err(version)) => Err(LogError::Version { path: folder.name_of(first), version }),
        _ => Err(damaged(folder, first, 0, first)),
    }
}

fn reopened(folder: &Folder, first: u64) -> Result<(Arc<File>, u64), LogError> {
    reopen(&folder.segment(first)).map_err(|source| io(folder, "open", first, source))
}

fn io(folder: &Folder, action: &'static str, first: u64, source: io::Error) -> LogError {
    LogError::Io { action, path: folder.name_of(first), source }
}

fn damaged(folder: &Folder, first: u64, offset: u64, sequence: u64) -> LogError {
    LogError::Damaged { segment: folder.name_of(first), offset, sequence }
}
