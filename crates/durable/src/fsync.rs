//! The same calls on the runtime itself: one engine for everybody who has the runtime.

use std::ops::Range;

use homing_runtime::Runtime;

use crate::description::Description;
use crate::durable::Durable;
use crate::synced::{Synced, SyncedMany};

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
    /// The engine, for everything else: calls that wait, batches, losses, settings, counters.
    fn durable(&self) -> Durable;

    /// [`Durable::fsync`].
    fn fsync(&self, file: &impl Description) -> Synced {
        self.durable().fsync(file)
    }

    /// [`Durable::fdatasync`].
    fn fdatasync(&self, file: &impl Description) -> Synced {
        self.durable().fdatasync(file)
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
