//! Why a log cannot be used.

use std::io;
use std::path::PathBuf;

use super::format::RECORD_LENGTH_MAX;
use crate::error::DurabilityError;

/// Why a log cannot be opened, read or appended to.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let folder = tempfile::tempdir()?;
/// use homing_durable::{Log, LogError};
///
/// let (log, _) = Log::open(&durable, folder.path().join("log"))?;
/// let again = Log::open(&durable, folder.path().join("log"));
/// assert!(matches!(again, Err(LogError::InUse { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system refused.
    #[error("cannot {action} {} of the log: {source}", path.display())]
    Io {
        /// `open`, `read`...
        action: &'static str,
        /// The log's folder, or a file of it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log is open already.
    #[error("the log {} is in use by another program, or by this one", path.display())]
    InUse {
        /// The log's folder.
        path: PathBuf,
    },
    /// The path is a file, or a folder that holds something else. Nothing was changed.
    #[error("{} is not a log: give another path, or restore it", path.display())]
    NotALog {
        /// The path.
        path: PathBuf,
    },
    /// There is no log, and none was to be made ([`LogOptions`](crate::LogOptions)). Nothing was
    /// changed.
    #[error("there is no log at {}: check the path, or let the log be made", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// There is a log, and it was to be new ([`LogOptions`](crate::LogOptions)). It was not
    /// changed.
    #[error("there is a log at {} already: give another path, or open that one", path.display())]
    Exists {
        /// The log's folder.
        path: PathBuf,
    },
    /// The folder is that of a log, but all segments are gone. Nothing was changed.
    #[error(
        "all segments of the log {} are gone: restore them, or remove the folder to begin anew",
        path.display()
    )]
    Gone {
        /// The log's folder.
        path: PathBuf,
    },
    /// The log was written by another version. Nothing was changed.
    #[error("{} is of version {version}, which this program does not read", path.display())]
    Version {
        /// The segment.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// A record that was durable is missing or not whole, or the segment that would begin with it
    /// is gone. (That the last segment is gone cannot be told if a crash soon followed its
    /// beginning: the log then ends with the one before.) Nothing was changed. Either
    /// restore the log, or give up this record and all behind it with
    /// [`Log::open_before`](crate::Log::open_before).
    #[error(
        "record {sequence} of the log was durable and is damaged or gone: at {offset} of {}; restore the log, or give up \
         this record and all behind it: Log::open_before",
        segment.display()
    )]
    Damaged {
        /// The file that should contain it.
        segment: PathBuf,
        /// Where in that file, in bytes: 0 if its header is damaged, or if what came before is
        /// gone.
        offset: u64,
        /// The first record that is not whole.
        sequence: u64,
    },
    /// The numbers of records are used up. Appending never gets there: somebody has given a segment
    /// such a name.
    #[error("no record can follow {last}, the last one that has a number: begin another log")]
    Exhausted {
        /// The last record.
        last: u64,
    },
    /// The record was not appended.
    #[error("a record of {length} bytes is too long: {RECORD_LENGTH_MAX} is the most")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// An earlier flush failed: what was not durable before it may be lost. The log accepts nothing
    /// until it is opened again, which finds out what is there.
    #[error("the log accepts nothing until it is opened again: {0}")]
    Failed(#[from] DurabilityError),
}
