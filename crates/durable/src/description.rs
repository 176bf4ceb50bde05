//! How a file is handed over to the engine, which keeps its description until the sync has ended.

use std::fs::File;
use std::io;
use std::sync::Arc;

/// An open file description that the engine can keep: a [`File`], whose descriptor is duplicated
/// meanwhile, or an [`Arc`] of one, which is cloned: where thousands wait at a time that saves as
/// many descriptors. A process that has POSIX locks of the file (`fcntl`) gives an [`Arc`]: as the
/// duplicate is closed the system would give those up. The [`Arc`]'s descriptor itself is synced, so its number
/// must stay this file's meanwhile.
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

    /// A reference that lives on.
    ///
    /// # Errors
    /// Where the descriptor cannot be duplicated.
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
