//! Why files cannot be measured.

use std::io;
use std::path::PathBuf;

use homing::{DurabilityError, RuntimeError, WorkqueueError};

/// Why a measurement cannot run, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsyncError {
    /// A number that cannot be used.
    #[error("{what} cannot be {value}: {advice}")]
    Number {
        /// What the number counts.
        what: &'static str,
        /// The number.
        value: usize,
        /// What to do about it.
        advice: &'static str,
    },
    /// More issuers than files.
    #[error(
        "{issuers} issuers cannot share {files} files: take {issuers} files or more, or fewer issuers"
    )]
    TooManyIssuers {
        /// The number of issuers.
        issuers: usize,
        /// The number of files.
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
    /// The path is not a directory.
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
        /// The number of files.
        files: usize,
        /// The bytes of each file.
        size: usize,
        /// The bytes that all files need.
        needed: u64,
        /// The bytes that are free.
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
        /// The number of files.
        files: usize,
        /// The inodes that are free.
        free: u64,
    },
    /// The process may not have that many files open.
    #[error("{0}")]
    OpenFiles(io::Error),
    /// A file could not be written, opened, synced or removed, or what is needed for that is
    /// missing.
    #[error("{action} in {} failed: {error}", .dir.display())]
    Io {
        /// What was done: `making files`...
        action: &'static str,
        /// The folder.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// homing's runtime does not start.
    #[error("homing's runtime does not start: {0}")]
    Runtime(#[from] RuntimeError),
    /// homing's workqueue does not start.
    #[error("homing's workqueue does not start: {0}")]
    Workqueue(#[from] WorkqueueError),
    /// homing reports that a file is not durable.
    #[error(transparent)]
    Durability(#[from] DurabilityError),
    /// An issuer or one of the threads that sync files has panicked, which is a bug.
    #[error("a thread that makes files durable has panicked")]
    Panicked,
}
