//! The same calls on the runtime itself: one engine for everybody who has the runtime.

use std::ops::Range;

use homing_runtime::Runtime;

use crate::durable::Durable;
use crate::error::DurabilityError;
use crate::synced::{Synced, SyncedMany};
use crate::system::description::Description;

/// Makes files durable with the [`Runtime`]'s own engine, [`Durable::of`]. Bring this trait into
/// scope:
///
/// ```
/// use std::io::Write;
///
/// use homing_durable::Fsync;
/// use homing_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("journal");
/// let mut file = std::fs::File::create(path)?;
/// file.write_all(b"committed")?;
/// let synced = runtime.fsync(&file); // begins at once
/// let task = runtime.spawn(async { synced.await });
/// task.join()??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Fsync {
    /// The engine, for everything else: batches, calls back, losses, settings, counters.
    fn durable(&self) -> Durable;

    /// [`Durable::fsync`].
    fn fsync(&self, file: &impl Description) -> Synced {
        self.durable().fsync(file)
    }

    /// [`Durable::fdatasync`].
    fn fdatasync(&self, file: &impl Description) -> Synced {
        self.durable().fdatasync(file)
    }

    /// [`Durable::fsync_and_wait`]: the fastest way for a caller that has one file and waits.
    ///
    /// # Errors
    /// As [`Durable::fsync_and_wait`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use std::io::Write;
    ///
    /// use homing_durable::Fsync;
    ///
    /// # let mut file = tempfile::tempfile()?;
    /// file.write_all(b"committed")?;
    /// runtime.fsync_and_wait(&file)?; // on this thread, if nothing else is under way
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn fsync_and_wait(&self, file: &impl Description) -> Result<(), DurabilityError> {
        self.durable().fsync_and_wait(file)
    }

    /// [`Durable::fdatasync_and_wait`].
    ///
    /// # Errors
    /// As [`Durable::fsync_and_wait`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use std::os::unix::fs::FileExt;
    ///
    /// use homing_durable::Fsync;
    ///
    /// # let file = tempfile::tempfile()?;
    /// file.write_all_at(b"changed in place", 0)?;
    /// runtime.fdatasync_and_wait(&file)?; // the data and what is needed to read it, no more
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn fdatasync_and_wait(&self, file: &impl Description) -> Result<(), DurabilityError> {
        self.durable().fdatasync_and_wait(file)
    }

    /// [`Durable::sync_range`].
    fn sync_range(&self, file: &impl Description, range: Range<u64>) -> Synced {
        self.durable().sync_range(file, range)
    }

    /// [`Durable::fsync_dir`].
    fn fsync_dir(&self, directory: &impl Description) -> Synced {
        self.durable().fsync_dir(directory)
    }

    /// [`Durable::fsync_many`].
    fn fsync_many<'a, D: Description + 'a>(
        &self,
        files: impl IntoIterator<Item = &'a D>,
    ) -> SyncedMany {
        self.durable().fsync_many(files)
    }
}

impl Fsync for Runtime {
    fn durable(&self) -> Durable {
        Durable::of(self)
    }
}
