//! The ways to make files durable: the rows of the tables.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Which load is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    /// New files that have been written; all are made durable.
    Bulk,
    /// Issuers that each write a file, sync it, and go on with the next.
    Stream,
    /// One issuer of the kind of a stream, alone and beside a bulk.
    Lone,
}

impl Shape {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Bulk, Self::Stream, Self::Lone];

    /// The name in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Stream => "stream",
            Self::Lone => "lone",
        }
    }
}

/// A way to make files durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// The system call, on as many threads as there are issuers.
    Fsync,
    /// Linux AIO, as deep as there are issuers.
    LinuxAio,
    /// `io_uring`, as deep as there are issuers, with the workers that the kernel gives.
    IoUring,
    /// `io_uring` with as many workers as there are issuers.
    IoUringWorkers,
    /// `aio_fsync`, as deep as there are issuers.
    PosixAio,
    /// `tokio::fs`, a task for each issuer.
    Tokio,
    /// `tokio::fs`, a task for each file.
    TokioAll,
    /// `syncfs` for all at once, which tells nobody which file failed: the bound.
    Syncfs,
    /// The same, and all files are opened before and closed after it, as a program must have them
    /// that asks for a verdict for each.
    SyncfsOpened,
    /// `Durable::fsync_many` of all files.
    HomingMany,
    /// The same, each file by itself, as on filesystems that homing does not commit: as many side
    /// by side as there are issuers, or, with one issuer, as many as homing finds best.
    HomingFiles,
    /// `Durable::fsync` of each file; each issuer begins all of its own before it waits. In a
    /// stream it is a task that awaits each.
    HomingAsync,
    /// `Durable::fsync_and_wait`, on as many threads as there are issuers.
    Homing,
}

/// The depth to which requests are queued in addition to the depths that were asked for.
const DEPTH_MAX: usize = 256;

impl Strategy {
    /// All of them, in the order of the rows.
    pub(crate) const ALL: [Self; 13] = [
        Self::Fsync,
        Self::LinuxAio,
        Self::IoUring,
        Self::IoUringWorkers,
        Self::PosixAio,
        Self::Tokio,
        Self::TokioAll,
        Self::Syncfs,
        Self::SyncfsOpened,
        Self::Homing,
        Self::HomingAsync,
        Self::HomingMany,
        Self::HomingFiles,
    ];

    /// The name in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::LinuxAio => "linux-aio",
            Self::IoUring => "io_uring",
            Self::IoUringWorkers => "io_uring-workers",
            Self::PosixAio => "posix-aio",
            Self::Tokio => "tokio",
            Self::TokioAll => "tokio-all",
            Self::Syncfs => "syncfs",
            Self::SyncfsOpened => "syncfs-opened",
            Self::HomingMany => "homing-many",
            Self::HomingFiles => "homing-files",
            Self::HomingAsync => "homing-async",
            Self::Homing => "homing",
        }
    }

    /// Whether it is ours.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Homing | Self::HomingAsync | Self::HomingMany | Self::HomingFiles)
    }

    /// Whether each issuer of a bulk is a thread that is started for it.
    pub(crate) const fn has_threads(self) -> bool {
        matches!(self, Self::Fsync | Self::Homing | Self::HomingAsync)
    }

    /// Whether it is only a bound to compare with, since it has no verdict for each file.
    pub(crate) const fn is_bound(self) -> bool {
        matches!(self, Self::Syncfs | Self::SyncfsOpened)
    }

    /// Whether the kernel may lack it.
    #[cfg(test)]
    pub(crate) const fn is_the_kernels(self) -> bool {
        matches!(self, Self::LinuxAio | Self::IoUring | Self::IoUringWorkers)
    }

    /// The numbers of issuers with which it is measured in `shape`, if `wanted` were asked for.
    pub(crate) fn issuers(self, shape: Shape, wanted: &[usize]) -> Vec<usize> {
        let is_queue = matches!(
            self,
            Self::LinuxAio | Self::IoUring | Self::IoUringWorkers | Self::PosixAio | Self::Tokio
        );
        let alone = self.is_bound() || matches!(self, Self::TokioAll | Self::HomingMany);
        match shape {
            Shape::Bulk if alone => vec![1],
            // With one request at a time it is the system call with a detour.
            Shape::Bulk if is_queue => {
                let deep = wanted.iter().copied().filter(|issuers| *issuers > 1);
                let deeper = (wanted.iter().any(|issuers| *issuers > 1) && self != Self::Tokio)
                    .then_some(DEPTH_MAX);
                let mut all: Vec<_> = deep.chain(deeper).collect();
                all.dedup();
                all
            }
            Shape::Stream if alone || self == Self::HomingFiles => Vec::new(),
            Shape::Bulk | Shape::Stream => wanted.to_vec(),
            // The numbers of issuers of the bulk that runs while one issuer syncs alone.
            Shape::Lone => match self {
                // One thread is the least that a bulk can be.
                Self::Fsync => vec![1, 16],
                Self::LinuxAio => vec![64],
                Self::Syncfs | Self::HomingMany | Self::HomingFiles => vec![1],
                _ => Vec::new(),
            },
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == name);
        let known = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("{name:?} is no strategy: use {}", known()))
    }
}

impl Serialize for Strategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_choices() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        let error = "sync".parse::<Strategy>().unwrap_err();
        assert!(error.contains("\"sync\"") && error.contains("homing-many"), "{error}");
    }

    #[test]
    fn queues_are_deep_and_bulks_are_issued_by_one() {
        let issuers = |strategy: Strategy, shape| strategy.issuers(shape, &[1, 16]);
        assert_eq!(issuers(Strategy::Fsync, Shape::Bulk), [1, 16]);
        assert_eq!(issuers(Strategy::IoUring, Shape::Bulk), [16, 256]);
        assert_eq!(issuers(Strategy::IoUring, Shape::Stream), [1, 16]);
        assert_eq!(issuers(Strategy::HomingMany, Shape::Bulk), [1]);
        assert!(issuers(Strategy::HomingMany, Shape::Stream).is_empty());
        assert_eq!(issuers(Strategy::HomingFiles, Shape::Bulk), [1, 16]);
        assert!(issuers(Strategy::HomingFiles, Shape::Stream).is_empty());
        assert!(Strategy::IoUring.issuers(Shape::Bulk, &[1]).is_empty());
    }
}
