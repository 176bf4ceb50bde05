//! The error of a sync that failed.

use std::io;
use std::ops::Range;
use std::time::SystemTime;

use crate::durable::Kind;
use crate::files::file_id::FileId;

/// Data of a file did not reach stable storage, and may be lost.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use homing_durable::DurabilityError;
///
/// fn told(error: &DurabilityError) -> String {
///     let DurabilityError { file, range, errno, first_seen, .. } = error;
///     format!("{file}, bytes {range:?}: error {errno}, first seen {first_seen:?}")
/// }
/// assert!(durable.failures().iter().map(told).next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} of {file} failed: {reason}; {}", loss.advice(range))]
#[non_exhaustive]
pub struct DurabilityError {
    /// The file: its path when the error was seen, if the system tells it, otherwise its device and
    /// inode.
    pub file: String,
    /// Where data may be lost, in bytes: the whole file, as long as it was when the error was seen,
    /// because the system does not tell which part. For a directory these are its entries.
    pub range: Range<u64>,
    /// The system call that reported it.
    pub operation: &'static str,
    /// The system's error number.
    pub errno: i32,
    /// What the number means.
    pub reason: Box<str>,
    /// What was asked for.
    pub kind: Kind,
    /// When the error was first seen: later syncs of the file return this same error.
    pub first_seen: SystemTime,
    /// For [`Durable::acknowledge`](crate::Durable::acknowledge).
    pub(crate) id: FileId,
    pub(crate) loss: Loss,
}

/// What a failure means for a caller that hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Data of a file may be lost.
    Data,
    /// The asker had nothing that could be synced: nothing is lost, and the failure is not kept.
    Refused,
    /// The asker wanted names to be durable, and gave no directory.
    NoDirectory,
    /// Records of a log that were not durable may be lost, and it is closed.
    Records,
    /// A file of a log has no name any more: also records that were durable are gone with it.
    Removed,
    /// There was no room for a log's records, which wait.
    NoRoom,
    /// What a log has cut off still takes room.
    Room,
    /// The sync has not begun.
    NotBegun,
}

impl Loss {
    fn advice(self, range: &Range<u64>) -> String {
        let advice = match self {
            Self::Data => {
                let Range { start, end } = range;
                return format!(
                    "what was written to its bytes {start} to {end} since its last successful sync may be \
                     lost: write it again, then acknowledge the loss"
                );
            }
            Self::Refused => {
                "it has no data of its own, or only its path is open: give a file that is open for reading or \
                 writing, a directory or a block device"
            }
            Self::NoDirectory => {
                "no name has been made durable: give the directory that the name is in, or use sync_parent"
            }
            Self::Records => {
                "records that were not durable before may be lost: open the log again, which finds what is there"
            }
            Self::Removed => {
                "it was removed or replaced, and all records in it are lost with it, also those that were durable: \
                 bring it back before the log is opened again"
            }
            Self::NoRoom => {
                "no record is lost: make room, as by truncate_before (or close files, where no more can be opened), \
                 and commit again what has been appended"
            }
            Self::Room => {
                "no record is lost, and its room is free once the log is cut off or opened again"
            }
            Self::NotBegun => {
                "it has not begun, and nothing is known to be lost: a call that waits (`..._and_wait`) does it \
                 still"
            }
        };
        advice.to_owned()
    }
}

impl DurabilityError {
    /// Whether nothing was done because the runtime has ended.
    pub(crate) fn has_not_begun(&self) -> bool {
        self.loss == Loss::NotBegun
    }

    /// The same, with another meaning.
    pub(crate) fn with(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }
}

impl From<DurabilityError> for io::Error {
    fn from(error: DurabilityError) -> Self {
        let kind = Self::from_raw_os_error(error.errno).kind();
        Self::new(kind, error)
    }
}
