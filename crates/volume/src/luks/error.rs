//! Why a container could not be made or opened, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a container could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LuksError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `open`, `read`, `create`...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The threads that derive the key cannot be created.
    #[error(
        "the {count} threads that derive the key of {} cannot be created: {source}; raise the limit on \
         threads (ulimit -u, TasksMax of a service) or on memory (ulimit -v)",
        path.display()
    )]
    Threads {
        /// The file.
        path: PathBuf,
        /// How many there have to be.
        count: u64,
        /// Why.
        source: io::Error,
    },
    /// The file may not be written.
    #[error("{} cannot be written ({source}): serve it read-only, or change its permissions", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is something at the path already.
    #[error("{} exists already: nothing was changed", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another program has the container open for writing.
    #[error("{} is in use by another program: stop that one first", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A loop device is over it, by which others may write to it.
    #[error(
        "{} is in use by {device}: detach that (losetup -d {device}), or give it instead", path.display(),
        device = device.display()
    )]
    HasLoopDevice {
        /// The file.
        path: PathBuf,
        /// The device.
        device: PathBuf,
    },
    /// It is no container, or both copies of its header are damaged.
    #[error(
        "{} is not a LUKS container, or both copies of its header are damaged, or its header is in \
         another file, which homing does not support: if it was one, restore its header from a backup \
         (cryptsetup luksHeaderRestore); for a new one, give the path of a new file and --size",
        path.display()
    )]
    NotLuks {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than its header says.
    #[error(
        "{} is cut short: {length} bytes, where its header alone takes {needed}: restore it from a \
         backup",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        length: u64,
        /// The least it must have.
        needed: u64,
    },
    /// A container that uses something we do not support.
    #[error("{} cannot be served: {problem}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it uses.
        problem: String,
    },
    /// No key slot opens with this passphrase.
    #[error("no key slot of {} opens with this passphrase", path.display())]
    WrongPassphrase {
        /// The file.
        path: PathBuf,
    },
    /// The key derivation of a new container would need more memory than there is.
    #[error(
        "no key can be derived with {needed_kib} KiB of memory where {available_kib} KiB may be used: \
         give less"
    )]
    DerivationMemory {
        /// As asked for.
        needed_kib: u32,
        /// What the machine has, or the cgroup allows.
        available_kib: u64,
    },
    /// The key derivation needs more memory than there is.
    #[error(
        "not enough memory to derive the key of {}: the container asks for {needed_kib} KiB; free \
         some, or add a key with cryptsetup luksAddKey --pbkdf-memory",
        path.display()
    )]
    Memory {
        /// The file.
        path: PathBuf,
        /// What its cheapest key slot takes, or its dearest if the system had none left.
        needed_kib: u64,
    },
    /// A size that a volume cannot have.
    #[error(
        "a volume of {size} bytes cannot be made: use a multiple of {sector_size} bytes{as_whole}, not 0 and less \
         than 8 EiB",
        as_whole = whole_example(*size, (*sector_size).into())
    )]
    Size {
        /// The size asked for.
        size: u64,
        /// The sector size it must be a multiple of.
        sector_size: u32,
    },
    /// No file may be that long.
    #[error(
        "{} cannot be made: its file system, or `ulimit -f`, allows no files of {length} bytes",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// How long it would be, in bytes.
        length: u64,
    },
    /// `libcryptsetup` failed in a way it should not.
    #[error("libcryptsetup could not {action} {}: {message}", path.display())]
    Library {
        /// What it was to do.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What it said.
        message: String,
    },
}

impl LuksError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(super) fn unsupported(path: &Path, problem: String) -> Self {
        Self::Unsupported { path: path.to_owned(), problem }
    }
}

/// A possible size near `size`, if that is not too large.
fn whole_example(size: u64, sector_size: u64) -> String {
    if size >= 1 << 63 {
        return String::new();
    }
    format!(", as {}", (size / sector_size).max(1) * sector_size)
}
