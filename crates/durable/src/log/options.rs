//! How a log is opened.

use std::path::Path;

use super::{Log, LogError, Recovery};
use crate::durable::Durable;

/// How long a segment becomes, in bytes. Guessed: making and removing one costs a few flushes, and
/// should be rare; a cut should give back most of what it could.
pub(super) const SEGMENT_LENGTH: u64 = 64 << 20;

/// How a log is opened: [`Log::options`].
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// use homing_durable::{Log, LogError, LogOptions};
///
/// // A program whose data must be there does not begin with an empty log at a wrong path.
/// let known: LogOptions = Log::options().create(false);
/// assert!(matches!(known.open(&durable, &path), Err(LogError::NotFound { .. })));
/// assert!(!path.exists());
///
/// let new = Log::options().create_new(true).segment_length(1 << 20);
/// new.open(&durable, &path)?;
/// known.open(&durable, &path)?;
/// assert!(matches!(new.open(&durable, &path), Err(LogError::Exists { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct LogOptions {
    pub(super) segment_length: u64,
    pub(super) create: bool,
    pub(super) create_new: bool,
}

impl LogOptions {
    pub(super) fn new() -> Self {
        Self { segment_length: SEGMENT_LENGTH, create: true, create_new: false }
    }

    /// Begins another segment when one has reached about this many bytes, or would exceed it with
    /// the next write; a write is never divided. It may differ each time. Default: 64 MiB.
    pub fn segment_length(mut self, bytes: u64) -> Self {
        self.segment_length = bytes;
        self
    }

    /// Whether to make a log if there is none. Default: `true`. With `false`, opening fails with
    /// [`LogError::NotFound`], and nothing is changed.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether there must be no log yet. The folder may be there, if it is empty. With `true`,
    /// [`create`](Self::create) does not matter, and opening fails with [`LogError::Exists`] if
    /// there is a log, which is not changed. Default: `false`.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// [`Log::open`] in this way.
    ///
    /// # Errors
    /// As [`Log::open`], and [`LogError::NotFound`] or [`LogError::Exists`].
    pub fn open(
        &self,
        durable: &Durable,
        path: impl AsRef<Path>,
    ) -> Result<(Log, Recovery), LogError> {
        Log::open_as(durable, path.as_ref(), self, None)
    }
}
