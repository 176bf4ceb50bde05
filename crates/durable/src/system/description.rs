//! How a caller hands a file to the engine, which keeps its description until the sync has ended.

use std::fs::File;
use std::io;
use std::sync::Arc;

/// An open file description that the engine can keep. This is a [`File`], whose descriptor the
/// engine duplicates meanwhile, or an [`Arc`] of one, which it clones; with thousands of waiting
/// syncs that saves as many descriptors. A process that holds POSIX locks of the file (`fcntl`)
/// must pass an [`Arc`], because the system releases those locks when the duplicate is closed. The
/// descriptor in the [`Arc`] is the one that is synced, so its number must stay this file's
/// meanwhile.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let file = tempfile::tempfile()?;
/// let shared = std::sync::Arc::new(file);
/// let synced = durable.fsync(&shared); // keeps this descriptor
/// let other = durable.fsync(&*shared); // duplicates it meanwhile
/// assert!(synced.wait().is_ok() && other.wait().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Description {
    /// The file.
    fn file(&self) -> &File;

    /// A reference that stays valid. The engine calls this under its lock: it must neither wait for
    /// anything nor use any engine.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated.
    fn keep(&self) -> io::Result<Arc<File>>;
}

impl Description for File {
    fn file(&self) -> &File {
        self
    }

    fn keep(&self) -> io::Result<Arc<File>> {
        self.try_clone().map(Arc::new)
    }
}

impl Description for Arc<File> {
    fn file(&self) -> &File {
        self
    }

    fn keep(&self) -> io::Result<Arc<File>> {
        Ok(Self::clone(self))
    }
}
