//! Syncs that are done without the engine, by its users and by logs: it counts them, and keeps
//! their users' failures.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::add;
use crate::durable::{Durable, Kind};
use crate::engine::commit;
use crate::engine::{Engine, nanoseconds};
use crate::files::file_id::FileId;
use crate::shared_file::SharedFile;
use crate::system::Failure;

impl Durable {
    /// Notes a sync of a file's data that the caller has done by itself, such as a write with
    /// `O_DSYNC`, by the system call `operation`: counts it, and keeps its failure for the file, as
    /// those of the engine's own syncs.
    ///
    /// Call this before anybody else can sync through the same description. It does not tell
    /// whether the file has failed before.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let file = std::sync::Arc::new(tempfile::tempfile()?);
    /// let began = std::time::Instant::now();
    /// let synced = file.sync_data();
    /// durable.note_sync(&file, "fdatasync", began, synced.as_ref().err());
    /// synced?;
    /// assert_eq!((durable.counters().asked, durable.counters().failed), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note_sync(
        &self,
        file: &Arc<File>,
        operation: &'static str,
        began: Instant,
        failure: Option<&io::Error>,
    ) {
        // A failure cannot be kept for a file that nobody knows.
        self.note(FileId::of(file).ok(), file, operation, began, failure);
    }

    /// [`Durable::note_sync`] by a description of a file for which there is a [`SharedFile`]. It is
    /// known also if its disk tells nothing of it any more.
    ///
    /// ```
    /// use std::{fs::File, sync::Arc, time::Instant};
    ///
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("disk");
    /// let shared = homing_durable::SharedFile::new(vec![Arc::new(File::create(&path)?)])?;
    /// let (other, began) = (Arc::new(File::options().write(true).open(&path)?), Instant::now());
    /// durable.note_sync_of(&shared, &other, "fdatasync", began, other.sync_data().err().as_ref());
    /// assert_eq!(durable.counters().asked, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note_sync_of(
        &self,
        shared: &SharedFile,
        file: &Arc<File>,
        operation: &'static str,
        began: Instant,
        failure: Option<&io::Error>,
    ) {
        self.note(Some(shared.id()), file, operation, began, failure);
    }

    fn note(
        &self,
        id: Option<FileId>,
        file: &Arc<File>,
        operation: &'static str,
        began: Instant,
        failure: Option<&io::Error>,
    ) {
        self.engine.note_one(1, began.elapsed());
        if let Some(error) = failure {
            self.engine.note_lost(id, file, operation, error);
        }
    }
}

impl Engine {
    /// Counts a sync of one file, which answered so many callers; the first asked so long ago.
    pub(crate) fn note_one(&self, callers: usize, took: Duration) {
        add(&self.counts.asked, callers as u64);
        add(&self.counts.shared, callers.saturating_sub(1) as u64);
        add(&self.counts.files, 1);
        self.counts.latency_ns.note(nanoseconds(took));
        self.counts.batches.note(callers as u64);
    }

    fn note_lost(
        &self,
        id: Option<FileId>,
        file: &Arc<File>,
        operation: &'static str,
        error: &io::Error,
    ) {
        add(&self.counts.failed, 1);
        let Some(id) = id else { return };
        let error = error
            .raw_os_error()
            .map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error);
        let verdict = Err(commit::error(id, file, Kind::Data, &Failure { operation, error }));
        // The verdict, perhaps of an earlier failure, is in the books; the caller has its own.
        _ = self.end_own(id, verdict, || Some(Arc::clone(file)));
    }
}
