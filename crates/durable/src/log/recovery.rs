//! Opening a log: finds the records that are whole, and takes away what comes after them.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::error::LogError;
use super::format::{self, HEADER_LEN, Scan};

const BUFFER_LEN: usize = 256 << 10;

/// What opening a log has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Records that are whole; all of them are durable now.
    pub records: u64,
    /// Bytes after them that were none, up to the last that was not zero: a record that was torn by
    /// a crash, those behind it that had not been committed, or damage. They are gone.
    pub dropped_bytes: u64,
}

/// A log that can be appended to.
pub(super) struct Opened {
    pub(super) file: Arc<File>,
    /// Where the next record goes.
    pub(super) end: u64,
    /// Up to where there is space whose allocation is durable.
    pub(super) allocated: u64,
    pub(super) recovery: Recovery,
}

pub(super) fn open(path: &Path) -> Result<Opened, LogError> {
    let io = |action| move |source| LogError::Io { action, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).map_err(io("open"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(LogError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(io("lock")(source)),
    }
    let length = file.metadata().map_err(io("examine"))?.len();
    let mut header = Vec::with_capacity(HEADER_LEN);
    read_at(&file, 0).take(HEADER_LEN as u64).read_to_end(&mut header).map_err(io("read"))?;
    if header != format::header() {
        let is_new = format::is_unborn(&header)
            && last_nonzero(&file, header.len() as u64).map_err(io("read"))?.is_none();
        if !is_new {
            return Err(LogError::NotALog { path: path.to_owned() });
        }
        create(&file, path).map_err(io("make"))?;
        let (file, end) = (Arc::new(file), HEADER_LEN as u64);
        return Ok(Opened { file, end, allocated: end, recovery: Recovery::default() });
    }
    let mut scan = Scan::new(read_at(&file, HEADER_LEN as u64), length);
    while scan.next().map_err(io("read"))?.is_some() {}
    let (end, records) = (scan.at, scan.sequence);
    let last = last_nonzero(&file, end).map_err(io("read"))?;
    let allocated = if last.is_some() {
        // What is overwritten in part might leave a record of the old ones whole behind the new.
        file.set_len(end).map_err(io("cut"))?;
        end
    } else {
        length.max(end)
    };
    // What was read may have been in memory only.
    file.sync_all().map_err(io("sync"))?;
    let dropped_bytes = last.map_or(0, |last| last + 1 - end);
    let recovery = Recovery { records, dropped_bytes };
    Ok(Opened { file: Arc::new(file), end, allocated, recovery })
}

/// An empty log, that is there after a crash.
fn create(file: &File, path: &Path) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(&format::header(), 0)?;
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Where the last byte from `from` on stands that is not zero.
fn last_nonzero(file: &File, from: u64) -> io::Result<Option<u64>> {
    let (mut reader, mut at, mut last) = (read_at(file, from), from, None);
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(last),
            Ok(count) => {
                let nonzero = buffer[..count].iter().rposition(|byte| *byte != 0);
                last = nonzero.map(|index| at + index as u64).or(last);
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads from here on, whatever the descriptor's own position.
pub(super) fn read_at<F: Deref<Target = File>>(file: F, at: u64) -> BufReader<ReadAt<F>> {
    BufReader::with_capacity(BUFFER_LEN, ReadAt { file, at })
}

/// See [`read_at`].
pub(super) struct ReadAt<F> {
    file: F,
    at: u64,
}

impl<F: Deref<Target = File>> Read for ReadAt<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
