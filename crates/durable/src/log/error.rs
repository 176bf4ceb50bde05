//! Why a log cannot be used.

use std::io;
use std::path::PathBuf;

use super::format::RECORD_LENGTH_MAX;
use crate::error::DurabilityError;

/// Why a log cannot be opened, read or appended to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system refused.
    #[error("cannot {action} the log {}: {source}", path.display())]
    Io {
        /// `open`, `read`...
        action: &'static str,
        /// The log.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody has it open.
    #[error("the log {} is in use by another program, or by this one", path.display())]
    InUse {
        /// The log.
        path: PathBuf,
    },
    /// It begins with something else. Nothing was changed.
    #[error(
        "{} is no log of ours, or its first bytes are damaged: give another path, or restore it",
        path.display()
    )]
    NotALog {
        /// The file.
        path: PathBuf,
    },
    /// The record was not appended.
    #[error("a record of {length} bytes is too long: {RECORD_LENGTH_MAX} is the most")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// An earlier flush failed: what was not durable before it may be lost. The log takes nothing
    /// until it is opened again, which finds what is there.
    #[error("the log takes nothing until it is opened again: {0}")]
    Failed(#[from] DurabilityError),
}
