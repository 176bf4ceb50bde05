//! Why files cannot be measured.

use std::io;
use std::path::PathBuf;

use homing::{DurabilityError, RuntimeError, WorkqueueError};

/// What is in the way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsyncError {
    /// A number that cannot be used.
    #[error("{what} cannot be {value}: {advice}")]
    Number {
        /// Of what.
        what: &'static str,
        /// The number.
        value: usize,
        /// What to do.
        advice: &'static str,
    },
    /// More issuers than files.
    #[error(
        "{issuers} issuers cannot share {files} files: take {issuers} files or more, or fewer issuers"
    )]
    TooManyIssuers {
        /// So many issuers,
        issuers: usize,
        /// of so many files.
        files: usize,
    },
    /// There is no such folder, or it cannot be looked at.
    #[error("cannot measure in {}: {error}; make the folder, or choose another", .dir.display())]
    NoFolder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is something else.
    #[error(
        "cannot measure in {}: it is not a directory; choose one on the filesystem to measure", .0.display()
    )]
    NotAFolder(PathBuf),
    /// Nothing can be written there.
    #[error("cannot write in {}: {error}; choose a folder that you may write in", .dir.display())]
    NotWritable {
        /// The folder.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The files would not fit.
    #[error(
        "too little space in {}: {files} files of {size} bytes need {needed} bytes, and {free} are free; \
         take fewer or smaller files, or a folder on another filesystem",
        .dir.display()
    )]
    TooLittleSpace {
        /// The folder.
        dir: PathBuf,
        /// So many files,
        files: usize,
        /// of so many bytes,
        size: usize,
        /// need so many,
        needed: u64,
        /// of which there are so many.
        free: u64,
    },
    /// There would be more files than the filesystem can have.
    #[error(
        "too few inodes in {}: {files} files need as many, and {free} are free; take fewer files, or a \
         folder on another filesystem",
        .dir.display()
    )]
    TooFewInodes {
        /// The folder.
        dir: PathBuf,
        /// So many files,
        files: usize,
        /// for so many inodes.
        free: u64,
    },
    /// The process may not have the files open.
    #[error("{0}")]
    OpenFiles(io::Error),
    /// A file could not be written, opened or synced.
    #[error("files in {} failed: {error}", .dir.display())]
    Io {
        /// The folder.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// homing's engine does not start.
    #[error("homing's runtime does not start: {0}")]
    Runtime(#[from] RuntimeError),
    /// As above.
    #[error("homing's workqueue does not start: {0}")]
    Workqueue(#[from] WorkqueueError),
    /// homing says of a file that it is not durable.
    #[error(transparent)]
    Durability(#[from] DurabilityError),
    /// An issuer or one of the threads has panicked, which is a bug.
    #[error("a thread that makes files durable has panicked")]
    Panicked,
}
