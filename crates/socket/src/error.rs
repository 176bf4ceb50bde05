//! Why listening failed, for programs to tell apart and for people to read.

use std::io;
use std::path::{Path, PathBuf};

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program listens there.
    #[error(
        "cannot listen on {}: another program listens there: stop that one, or choose another path",
        path.display()
    )]
    InUse {
        /// The path, from the root.
        path: PathBuf,
    },
    /// The file that is there is not a socket.
    #[error(
        "cannot listen on {}: the file is there and is not a socket; nothing was changed",
        path.display()
    )]
    NotASocket {
        /// The path, from the root.
        path: PathBuf,
    },
    /// The path does not fit into the address of a socket.
    #[error(
        "cannot listen on {}: too long for a Unix socket: 107 bytes at most",
        path.display()
    )]
    PathTooLong {
        /// The path, from the root.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot listen on {}: {source}", path.display())]
    Io {
        /// The path, from the root.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BindError {
    pub(crate) fn in_use(path: &Path) -> Self {
        Self::InUse { path: path.to_owned() }
    }

    pub(crate) fn io(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_owned(), source: source.into() }
    }
}

/// The same text, with the closest kind.
impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        let kind = match &error {
            BindError::InUse { .. } => io::ErrorKind::AddrInUse,
            BindError::NotASocket { .. } => io::ErrorKind::AlreadyExists,
            BindError::PathTooLong { .. } => io::ErrorKind::InvalidInput,
            BindError::Io { source, .. } => source.kind(),
        };
        Self::new(kind, error.to_string())
    }
}
