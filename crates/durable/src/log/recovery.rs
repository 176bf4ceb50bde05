//! Opening a log: finds the records that are whole, and continues behind them in a new segment.
//! Nothing is changed before everything has been read and found correct.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::error::LogError;
use super::folder::{Folder, SPARE_LEN, is_full, read_at, reopen};
use super::format::{self, HEADER_LEN, Header, Scan};
use super::write::Tail;
use super::{LogOptions, Sequence};
use crate::system::{Failure, System};

/// What was found when a log was opened.
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
    /// The first record that is still needed: nobody has asked to keep an earlier one. If there are
    /// no records, the next one.
    pub first: Sequence,
    /// The number of records from there on. All of them are whole, and durable now.
    pub records: u64,
    /// Bytes after these records that were not records, up to the last that was not zero: a record
    /// that was torn by a crash, and records behind it that had not been committed. They are gone.
    /// Data that the disk has lost since, and gives as zeroes, does not count: if that reaches from
    /// an earlier write to the end, committed records are missing. Only their numbers tell
    /// ([`Log::last_sequence`](crate::Log::last_sequence)), if they were noted elsewhere.
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

pub(super) fn open(
    system: &dyn System,
    path: &Path,
    options: &LogOptions,
    given_up: Option<Sequence>,
) -> Result<Opened, LogError> {
    let may_make = options.create || options.create_new;
    let folder = Folder::open(system, path, may_make)?;
    let segments = folder.segments()?;
    if segments.is_empty() && may_make {
        return create(system, folder);
    }
    if segments.is_empty() {
        return Err(LogError::NotFound { path: path.to_owned() });
    }
    if options.create_new {
        return Err(LogError::Exists { path: path.to_owned() });
    }
    match whole(&folder, segments.clone()) {
        Ok(found) => go_on(system, folder, found),
        Err(error) => match given_up {
            None => Err(error),
            Some(Sequence(given_up)) => match left(&folder, &segments, error, given_up)? {
                Left::Some(found) => go_on(system, folder, found),
                Left::Nothing(header) => begin_anew(system, folder, &segments, header),
            },
        },
    }
}

/// A log whose records are whole, up to the end of one of its segments.
struct Found {
    /// The first records of its segments, up to the one that ends it.
    segments: Vec<u64>,
    /// The first records of the segments before those, which are not needed.
    unneeded: Vec<u64>,
    /// The first records of the segments behind them, which are given up.
    behind: Vec<u64>,
    /// The header of the segment that ends it, except that `kept` is that of the whole log.
    header: Header,
    end: End,
}

/// Where the whole records of a segment end.
struct End {
    file: File,
    /// Its last record, and where that ends.
    last: u64,
    at: u64,
    /// Where the write that it was in begins, or the first record that is kept if that is later;
    /// and the number of the record there.
    write: (u64, u64),
    /// What is behind the records.
    rest: Vec<u8>,
}

impl End {
    /// How many bytes are behind the records, up to the last that is not zero.
    fn dropped_bytes(&self) -> u64 {
        self.rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
    }
}

/// Finds all of the log; an error if it is damaged.
fn whole(folder: &Folder, mut segments: Vec<u64>) -> Result<Found, LogError> {
    let newest = segments[segments.len() - 1];
    let header = header_of(folder, newest)?;
    let Header { log, kept, .. } = header;
    let unneeded = drain_unneeded(&mut segments, kept);
    if kept < segments[0] {
        return Err(damaged(folder, segments[0], 0, kept));
    }
    check_all_but_last(folder, &segments, log)?;
    let end = end_of(folder, &header, u64::MAX)?;
    if end.rest.starts_with(&format::seal(log, end.last + 1)) {
        return Err(damaged(folder, end.last + 1, 0, end.last + 1));
    }
    if end.dropped_bytes() > 0 && format::was_durable(&end.rest, log, end.last + 1) {
        return Err(damaged(folder, newest, end.at, end.last + 1));
    }
    Ok(Found { segments, unneeded, behind: Vec::new(), header, end })
}

fn check_all_but_last(folder: &Folder, segments: &[u64], log: u64) -> Result<(), LogError> {
    for both in segments.windows(2) {
        let of = header_of(folder, both[0])?;
        if of.log != log {
            return Err(damaged(folder, both[0], 0, both[0]));
        }
        let (file, length) = reopened(folder, both[0])?;
        let mut scan = Scan::new(read_at(&*file, HEADER_LEN as u64), &of, length);
        while scan.sequence + 1 < both[1] {
            if scan.next().map_err(|source| io(folder, "read", both[0], source))?.is_none() {
                return Err(damaged(folder, both[0], scan.at, scan.sequence + 1));
            }
        }
    }
    Ok(())
}

/// Takes out the segments that end before what is kept: their removal was under way.
fn drain_unneeded(segments: &mut Vec<u64>, kept: u64) -> Vec<u64> {
    let unneeded = segments.windows(2).take_while(|both| both[1] <= kept).count();
    segments.drain(..unneeded).collect()
}

/// Finds where the records before this one end: a segment may have old copies of the next one's.
fn end_of(folder: &Folder, of: &Header, before: u64) -> Result<End, LogError> {
    let io = |action| move |source| io(folder, action, of.first, source);
    let file = OpenOptions::new().read(true).write(true).open(folder.segment(of.first));
    let file = file.map_err(io("open"))?;
    let length = file.metadata().map_err(io("examine"))?.len();
    let mut scan = Scan::new(read_at(&file, HEADER_LEN as u64), of, length);
    let mut kept_at = None;
    loop {
        if scan.sequence + 1 == of.kept {
            kept_at = Some((scan.at, of.kept));
        }
        if scan.sequence + 1 == before || scan.next().map_err(io("read"))?.is_none() {
            break;
        }
    }
    let (last, at) = (scan.sequence, scan.at);
    // The segment that will be made of this must not begin with a record that is cut off.
    let write = kept_at.map_or(scan.write, |kept_at| kept_at.max(scan.write));
    // Not much: zeroes and what was not committed, all of which a process had in memory; or what is
    // given up.
    let mut rest = Vec::new();
    read_at(&file, at).read_to_end(&mut rest).map_err(io("read"))?;
    Ok(End { file, last, at, write, rest })
}

/// What is left of a damaged log.
enum Left {
    Some(Found),
    /// Nothing that is needed: the log goes on with a segment of this header.
    Nothing(Header),
}

/// What is left without the record that is given up, if that is damaged and none before it is.
/// `error` says which damage was found first: there may be damage before it that was not reached.
fn left(folder: &Folder, all: &[u64], error: LogError, given_up: u64) -> Result<Left, LogError> {
    let LogError::Damaged { mut sequence, .. } = error else { return Err(error) };
    while sequence > given_up {
        match left_before(folder, all, sequence) {
            Err(LogError::Damaged { sequence: earlier, .. }) => sequence = earlier,
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    if sequence == given_up { left_before(folder, all, sequence) } else { Err(error) }
}

/// What is left before this record; an error if another one there is damaged.
fn left_before(folder: &Folder, all: &[u64], sequence: u64) -> Result<Left, LogError> {
    // The newest header that can be read says most. If none can, this becomes another log.
    let mut newest = Header { log: draw(folder), first: sequence, kept: 1 };
    for first in all {
        match header_of(folder, *first) {
            Ok(header) => newest = header,
            Err(LogError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let Header { log, kept, .. } = newest;
    let mut segments = all.to_vec();
    let unneeded = drain_unneeded(&mut segments, kept);
    // Records before the first segment are gone, even if the header that said so cannot be read.
    let kept = kept.max(segments[0]);
    let behind = segments.split_off(segments.partition_point(|first| *first < sequence));
    let Some(&last) = segments.last().filter(|_| kept < sequence) else {
        let first = kept.max(sequence);
        return Ok(Left::Nothing(Header { log, first, kept: first }));
    };
    check_all_but_last(folder, &segments, log)?;
    if header_of(folder, last)?.log != log {
        return Err(damaged(folder, last, 0, last));
    }
    let header = Header { log, first: last, kept };
    let end = end_of(folder, &header, sequence)?;
    if end.last + 1 < sequence {
        return Err(damaged(folder, last, end.at, end.last + 1));
    }
    Ok(Left::Some(Found { segments, unneeded, behind, header, end }))
}

/// Begins a log of which nothing is left.
fn begin_anew(
    system: &dyn System,
    folder: Folder,
    all: &[u64],
    header: Header,
) -> Result<Opened, LogError> {
    let Header { log, first, kept } = header;
    let tail = folder.create(system, &header, &[], true);
    let tail = tail.map_err(|failure| io(&folder, "make", first, failure.error))?;
    let others: Vec<_> = all.iter().copied().filter(|other| *other != first).collect();
    let lengths = others.iter().map(|other| folder.length_of(*other));
    let dropped_bytes = lengths.sum();
    remove_behind(system, &folder, &others)?;
    let (segments, last) = (vec![first], first - 1);
    Ok(Opened { folder, log, kept, segments, tail, last, dropped_bytes })
}

/// Removes the segments behind. The newest of them says what is kept, so it goes last: if the
/// others were found without it, what was cut off would be missed.
fn remove_behind(system: &dyn System, folder: &Folder, behind: &[u64]) -> Result<(), LogError> {
    let Some((newest, others)) = behind.split_last() else { return Ok(()) };
    let removed = folder.remove(system, others).and_then(|()| folder.remove(system, &[*newest]));
    removed.map_err(|failure| cannot_clear(folder, failure))
}

/// Continues behind the end of what was found, where a record may be torn.
///
/// The last write may be in memory only. If a flush of it has failed, the kernel takes it for
/// clean, and ext4 may lose it even if it is written again in its place. Everything before it was
/// durable. So the last write goes to a segment of its own. Nothing else is changed, except that
/// segments which are not needed go, and so does what is behind in the segment before. A segment no
/// longer than a spare one is written anew as a whole and takes its own place: otherwise a program
/// that opens a log again and again would have a segment for each time.
fn go_on(system: &dyn System, folder: Folder, found: Found) -> Result<Opened, LogError> {
    let Found { mut segments, unneeded, behind, header: of, end } = found;
    let io = |action| {
        let path = folder.name_of(of.first);
        move |source| LogError::Io { action, path, source }
    };
    let (mut write_at, mut first) = end.write;
    let begins_it = (HEADER_LEN as u64, of.first);
    if of.kept <= of.first && end.at <= SPARE_LEN {
        (write_at, first) = begins_it;
    }
    let mut write = vec![0; (end.at - write_at) as usize];
    end.file.read_exact_at(&mut write, write_at).map_err(io("read"))?;
    let lengths: u64 = behind.iter().map(|first| folder.length_of(*first)).sum();
    // Before anything is written, because the disk may be full. The newest segment says that these
    // are not needed, but its name may not have been made durable after its rename.
    if !unneeded.is_empty() {
        let cleared = folder.sync(system).and_then(|()| folder.remove(system, &unneeded));
        cleared.map_err(|failure| cannot_clear(&folder, failure))?;
    }
    let header = Header { first, ..of };
    let mut created = folder.create(system, &header, &write, false);
    if created.as_ref().is_err_and(|failure| is_full(&failure.error)) {
        created = if end.at <= folder.spare_len() && of.kept <= of.first {
            // The whole segment goes into a spare one, which takes its place, so that no space is
            // lost.
            (write_at, first) = begins_it;
            write.resize((end.at - write_at) as usize, 0);
            end.file.read_exact_at(&mut write, write_at).map_err(io("read"))?;
            folder.create(system, &of, &write, true)
        } else {
            folder.create(system, &header, &write, true)
        };
    }
    let tail = created.map_err(|failure| io("write anew the end of")(failure.error))?;
    let dropped_bytes = end.dropped_bytes() + lengths;
    remove_behind(system, &folder, &behind)?;
    if first > of.first {
        // What is behind in the segment before is durable in this one. If its space cannot be given
        // back, it only takes room. The seal is as that of `Shared::seal`.
        let _ = end.file.set_len(write_at);
        let _ = system.write(&end.file, &format::seal(of.log, first), write_at);
        segments.push(first);
    }
    let Header { log, kept, .. } = of;
    Ok(Opened { log, kept, segments, tail, last: end.last, dropped_bytes, folder })
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
    let log = draw(&folder);
    let first = Header { log, first: 1, kept: 1 };
    let tail = folder.create(system, &first, &[], true).map_err(|failure| LogError::Io {
        action: "make a segment",
        path: folder.path.clone(),
        source: failure.error,
    })?;
    Ok(Opened { folder, log, kept: 1, segments: vec![1], tail, last: 0, dropped_bytes: 0 })
}

/// Draws the number of a log; the randomness is the standard library's.
fn draw(folder: &Folder) -> u64 {
    RandomState::new().hash_one(&folder.path)
}

fn header_of(folder: &Folder, first: u64) -> Result<Header, LogError> {
    let (file, _) = reopened(folder, first)?;
    let mut bytes = Vec::with_capacity(HEADER_LEN);
    let read = read_at(&*file, 0).take(HEADER_LEN as u64).read_to_end(&mut bytes);
    read.map_err(|source| io(folder, "read", first, source))?;
    match Header::from_bytes(&bytes) {
        // The first record that is needed is never behind the first of a segment.
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

fn cannot_clear(folder: &Folder, failure: Failure) -> LogError {
    LogError::Io { action: "clear", path: folder.path.clone(), source: failure.error }
}

fn damaged(folder: &Folder, first: u64, offset: u64, sequence: u64) -> LogError {
    LogError::Damaged { segment: folder.name_of(first), offset, sequence }
}
