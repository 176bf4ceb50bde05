//! What programs use: the syncs that can be asked for, and the settings.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use homing_runtime::{Runtime, WorkqueueError};

use crate::batch::{Batch, parent};
use crate::choices::early::WriteBack;
use crate::choices::pace::Sharing;
use crate::choices::strategy::Strategy;
use crate::counters::{Counters, add};
use crate::engine::backend::Backend;
use crate::engine::calls::{Call, is_deep, tell};
use crate::engine::{Engine, no_directory};
use crate::error::DurabilityError;
use crate::files::Asked;
use crate::files::file_id::FileId;
use crate::synced::{Synced, SyncedMany};
use crate::system::description::Description;
use crate::system::{Linux, System};

/// Which part of a file is to be durable.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use homing_durable::Kind;
///
/// # let file = tempfile::tempfile()?;
/// assert!(Kind::Data < Kind::All, "who asks for all gets what the others ask for, too");
/// durable.fdatasync(&file).wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The data, and the metadata that is needed to read it: `fdatasync`.
    Data,
    /// Data and metadata: `fsync`.
    All,
}

/// Makes files durable without blocking the caller. Cheap to clone; clones are the same engine. (If
/// the process has no more descriptors, the engine cannot keep a file for later. Then the caller
/// syncs it on its own thread.)
///
/// The syncs run on `durable`, a workqueue of the runtime. A file may be synced through any of its
/// descriptions. The engine hears the error that the kernel has for each description, and keeps it
/// for the file, also for the process's other engines. Use one engine in a program all the same,
/// preferably that of its runtime: see [`Durable::new`].
#[derive(Clone)]
pub struct Durable {
    pub(crate) engine: Arc<Engine>,
}

impl Durable {
    /// The runtime's own engine: the same for all callers, made at the first call. If the thread of
    /// its rescuer cannot be created then, the engine does without. If the runtime can have no
    /// further workqueue, the engine's syncs are items of `events`.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let file = tempfile::tempfile()?;
    /// use homing_durable::{Durable, Fsync};
    ///
    /// runtime.fsync(&file).wait()?;
    /// assert_eq!(Durable::of(&runtime).counters().asked, 1, "it is the same engine");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(runtime: &Runtime) -> Self {
        let own = runtime.extension(|| {
            let with_rescuer = Engine::workqueue(runtime);
            let workqueue = with_rescuer.or_else(|_| runtime.workqueue(Engine::NAME).build());
            let workqueue = workqueue.unwrap_or_else(|_| runtime.events().clone());
            Self { engine: Engine::new((workqueue, runtime.events().clone()), Linux) }
        });
        Self::clone(&own)
    }

    /// Makes another engine on this runtime, for a program that needs different settings. Each
    /// runtime has an engine of its own, too. All engines of a process know the files that have
    /// failed with one of them, as long as that one lives. But sync each file by one engine only:
    /// if two do at the same time, the kernel may have told one of an error that the other has not
    /// heard of yet.
    ///
    /// # Errors
    /// As for building a workqueue.
    pub fn new(runtime: &Runtime) -> Result<Self, WorkqueueError> {
        Self::with_system(runtime, Linux)
    }

    /// With other system calls, for tests of faults.
    #[doc(hidden)]
    pub fn with_system(runtime: &Runtime, system: impl System) -> Result<Self, WorkqueueError> {
        let workqueues = (Engine::workqueue(runtime)?, runtime.events().clone());
        Ok(Self { engine: Engine::new(workqueues, system) })
    }

    /// Begins to make all of a file durable, as it is now. A new file is found after a crash only
    /// if its directory has been synced, too.
    ///
    /// If the runtime has ended before a worker has begun, the verdict is an error with
    /// `ECANCELED`, here and in the functions below that return a future. Those that wait
    /// (`..._and_wait`) work even then.
    pub fn fsync(&self, file: &impl Description) -> Synced {
        self.begin(file, Kind::All)
    }

    /// Begins to make a file's data durable, and the metadata that is needed to read it.
    pub fn fdatasync(&self, file: &impl Description) -> Synced {
        self.begin(file, Kind::Data)
    }

    /// Begins to make the names in a directory durable: those of files that were created, renamed
    /// or removed there. Anything but a directory is refused (`ENOTDIR`).
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("new");
    /// std::fs::File::create(&path)?;
    /// durable.fsync_dir(&std::fs::File::open(folder.path())?).wait()?;
    /// durable.sync_parent(&path)?.wait()?; // the same
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fsync_dir(&self, directory: &impl Description) -> Synced {
        let refused = self.refuse_dir(directory.file());
        refused.unwrap_or_else(|| self.begin(directory, Kind::All))
    }

    /// [`Durable::fsync_dir`], and waits, as [`Durable::fsync_and_wait`] does.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// std::fs::File::create(folder.path().join("new"))?;
    /// durable.fsync_dir_and_wait(&std::fs::File::open(folder.path())?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Durable::fsync_and_wait`].
    pub fn fsync_dir_and_wait(&self, directory: &impl Description) -> Result<(), DurabilityError> {
        match self.refuse_dir(directory.file()) {
            Some(refused) => refused.wait(),
            None => self.wait_for(directory, Kind::All),
        }
    }

    /// The answer to a caller that gives something else for a directory.
    pub(crate) fn refuse_dir(&self, file: &File) -> Option<Synced> {
        let error = no_directory(file)?;
        add(&self.engine.counts.asked, 1);
        Some(Synced::done(&self.engine.failed(Err(error))))
    }

    /// [`Durable::fsync_dir`] of the directory that contains this name.
    ///
    /// # Errors
    /// If the directory cannot be opened, or the path has none.
    pub fn sync_parent(&self, path: impl AsRef<Path>) -> io::Result<Synced> {
        let synced = self.ask(&parent(path.as_ref())?, Kind::All, 1, true);
        self.engine.go_on();
        Ok(synced)
    }

    /// [`Durable::sync_parent`], and waits, as [`Durable::fsync_and_wait`] does.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("new");
    /// std::fs::File::create(&path)?;
    /// drop(runtime); // also then
    /// durable.sync_parent_and_wait(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the directory cannot be opened, or the path has none, or if it did not become durable.
    pub fn sync_parent_and_wait(&self, path: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.wait_for(&parent(path.as_ref())?, Kind::All)?)
    }

    /// Begins to make at least these bytes of a file durable, and what is needed to read them. No
    /// system has a call for a part of a file that could be relied on: `sync_file_range` covers
    /// neither the metadata that says where the data is, nor the device's cache. So all of the
    /// file's data is synced, and the sync is shared with other callers.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// use std::os::unix::fs::FileExt;
    ///
    /// # let file = tempfile::tempfile()?;
    /// file.write_all_at(b"index", 4096)?;
    /// durable.sync_range(&file, 4096..4101).wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_range(&self, file: &impl Description, range: Range<u64>) -> Synced {
        let failure =
            || FileId::of(file.file()).ok().and_then(|id| self.engine.files().failure(id));
        // A range that ends before it begins is not empty but a sum that was too large: that is
        // synced.
        match (range.start == range.end).then(failure) {
            None => self.fdatasync(file),
            // Nothing is to be synced; but an earlier loss is reported.
            Some(failure) => Synced::done(&self.engine.failed(failure.map_or(Ok(()), Err))),
        }
    }

    /// [`Durable::fsync`] of many files. The result has the verdict of each, in their order.
    ///
    /// Each [`File`] takes one more descriptor until its sync has ended; an [`Arc`] of one takes
    /// none. If few are left to the process (`ulimit -n`), the files are synced in parts, and this
    /// returns when the last part begins.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let files: Vec<_> = (0..100).map(|_| tempfile::tempfile()).collect::<Result<_, _>>()?;
    /// let verdicts = durable.fsync_many(&files).wait(); // or await it
    /// assert!(verdicts.len() == 100 && verdicts.iter().all(Result::is_ok));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fsync_many<'a, D: Description + 'a>(
        &self,
        files: impl IntoIterator<Item = &'a D>,
    ) -> SyncedMany {
        let files = files.into_iter();
        let mut batch = self.batch();
        batch.expect(files.size_hint().0);
        for file in files {
            batch.fsync(file);
        }
        batch.begin()
    }

    /// Makes a batch of syncs that begin together.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    /// [`Durable::fsync`], and waits. If nothing else is under way, or only what a single sync may
    /// run beside, the caller's own thread does the sync: it takes no longer than the system call,
    /// and does not queue behind the syncs that wait.
    ///
    /// # Errors
    /// [`DurabilityError`] if the file did not become durable.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// use std::io::Write;
    ///
    /// # let mut file = tempfile::tempfile()?;
    /// file.write_all(b"committed")?;
    /// durable.fsync_and_wait(&file)?;
    /// durable.fdatasync_and_wait(&file)?; // its data and what is needed to read it, no more
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fsync_and_wait(&self, file: &impl Description) -> Result<(), DurabilityError> {
        self.wait_for(file, Kind::All)
    }

    /// [`Durable::fdatasync`], and waits, as [`Durable::fsync_and_wait`] does.
    ///
    /// # Errors
    /// As [`Durable::fsync_and_wait`].
    pub fn fdatasync_and_wait(&self, file: &impl Description) -> Result<(), DurabilityError> {
        self.wait_for(file, Kind::Data)
    }

    /// [`Durable::fdatasync`] for callers that have neither a thread to spare for waiting nor a
    /// future: calls `done` with the verdict. If nothing else is under way, this thread does the
    /// sync, as in [`Durable::fdatasync_and_wait`], and then the call. Otherwise this returns at
    /// once, and a worker makes the call: the one that did the sync, or one of `events` if
    /// `workqueue/durable/max_active` is set. `done` delays the callers that are told after it, so
    /// it should not take long. It may sync again, also with this function, and wait for that,
    /// unless the `max_active` of `events` is set, too.
    ///
    /// ```
    /// # use homing_durable::Durable;
    /// # use homing_runtime::Runtime;
    /// # let runtime = Runtime::new()?;
    /// # let file = std::sync::Arc::new(tempfile::tempfile()?);
    /// let durable = Durable::new(&runtime)?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// durable.fdatasync_and_then(&file, move |verdict| sender.send(verdict).unwrap());
    /// receiver.recv()??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fdatasync_and_then(
        &self,
        file: &impl Description,
        done: impl FnOnce(Result<(), DurabilityError>) + Send + 'static,
    ) {
        let is_deep = is_deep();
        let alone = if is_deep { None } else { self.engine.alone(file, Kind::Data, false) };
        if let Some(verdict) = alone {
            return tell([Box::new(done) as Call], &verdict);
        }
        let asks = Asks { synced: self.begin(file, Kind::Data), call: Some(Box::new(done)) };
        if is_deep {
            // The verdict may be there already, so a worker asks for the call.
            self.engine.execute_calls(move || drop(asks));
        }
    }

    /// Says that the data lost by a failure has been written again, or given up. From then on the
    /// file can be synced again. Returns the failure, if there was one.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let file = tempfile::tempfile()?;
    /// if let Err(error) = durable.fsync_and_wait(&file) {
    ///     eprintln!("{error}"); // write the data to a new file; then:
    ///     durable.acknowledge_loss(&file);
    /// }
    /// assert!(durable.acknowledge_loss(&file).is_none(), "it has not failed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acknowledge_loss(&self, file: &File) -> Option<DurabilityError> {
        self.acknowledge_of(FileId::of(file).ok()?, |_| true)
    }

    /// As [`Durable::acknowledge_loss`], but takes an error that a sync returned, or one of
    /// [`Durable::failures`]: for files that nobody has open any more, and for logs, which stay
    /// closed until they are opened again. Returns `None` if that is not the file's present
    /// failure. Until it is acknowledged, a file that has failed is kept open: its space is not
    /// freed even if it has no name, and its filesystem cannot be unmounted.
    ///
    /// ```
    /// # use homing_durable::Durable;
    /// # use homing_runtime::Runtime;
    /// # let runtime = Runtime::new()?;
    /// let durable = Durable::new(&runtime)?;
    /// for error in durable.failures() {
    ///     eprintln!("given up: {error}");
    ///     durable.acknowledge(&error);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acknowledge(&self, error: &DurabilityError) -> Option<DurabilityError> {
        let of_file = self.acknowledge_of(error.id, |present| present == error);
        of_file.or_else(|| self.engine.acknowledge_log(error))
    }

    fn acknowledge_of(
        &self,
        id: FileId,
        is_it: impl FnOnce(&DurabilityError) -> bool,
    ) -> Option<DurabilityError> {
        let failed = self.engine.files().acknowledge(id, is_it);
        failed.map(|(error, _)| error)
    }

    /// The failures that nobody has acknowledged: at most one for each file, with whichever engine
    /// of the process it failed, and for each log that has not been opened again since, with this
    /// engine.
    pub fn failures(&self) -> Vec<DurabilityError> {
        self.engine.failures()
    }

    /// Sets how files are made durable. Takes effect at once.
    pub fn set_strategy(&self, strategy: Strategy) {
        self.engine.settings.set_strategy(strategy);
    }

    /// How files are made durable.
    pub fn strategy(&self) -> Strategy {
        self.engine.settings.strategy()
    }

    /// Sets whether the write-back of files that wait to be synced is begun early. Takes effect at
    /// once.
    pub fn set_write_back(&self, write_back: WriteBack) {
        self.engine.settings.set_write_back(write_back);
    }

    /// Whether write-back is begun early.
    pub fn write_back(&self) -> WriteBack {
        self.engine.settings.write_back()
    }

    /// Sets how callers that make the same file durable at the same time are served. Takes effect
    /// at once.
    pub fn set_sharing(&self, sharing: Sharing) {
        self.engine.settings.set_sharing(sharing);
    }

    /// How such callers are served.
    pub fn sharing(&self) -> Sharing {
        self.engine.settings.sharing()
    }

    /// Sets how many syncs of one filesystem may be under way at the same time on threads of the
    /// runtime, and as many again on those of callers that wait. At least 1. Takes effect at once.
    /// By default (`None`) it is 64, or 256 on each filesystem where that has been faster: trying
    /// takes 256 threads, for a moment where they are no faster. If eight times the greatest depth
    /// are under way on all filesystems together (512 to 2,048), each filesystem has one on threads
    /// of the runtime. So a disk that hangs stops no other.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// durable.set_depth(16);
    /// assert_eq!(durable.depth(), Some(16));
    /// durable.set_depth(None); // as measured
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_depth(&self, depth: impl Into<Option<usize>>) {
        self.engine.set_depth(depth.into());
    }

    /// What was set by [`Durable::set_depth`].
    pub fn depth(&self) -> Option<usize> {
        self.engine.settings.depth()
    }

    /// Sets who syncs single files. Takes effect at once, except for syncs under way.
    ///
    /// # Errors
    /// If there is no `io_uring`, or this program may not use it: nothing has changed then.
    pub fn set_backend(&self, backend: Backend) -> io::Result<()> {
        if backend == Backend::IoUring && !self.engine.system.is_real() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // A broken ring is dropped when others can go on, because that may take long.
        let _old = self.engine.chosen().set(backend, self.depth())?;
        Ok(())
    }

    /// Who syncs single files: threads, too, after a ring has failed.
    pub fn backend(&self) -> Backend {
        self.engine.chosen().backend()
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.engine.counts.read()
    }

    fn begin(&self, file: &impl Description, kind: Kind) -> Synced {
        let synced = self.ask(file, kind, 1, false);
        self.engine.go_on();
        synced
    }

    /// `callers` is 0 for the files of a batch: the batch counts as one if it is no bulk. If
    /// `is_fresh`, the description was opened just now, and nobody else has it.
    pub(crate) fn ask(
        &self,
        file: &impl Description,
        kind: Kind,
        callers: usize,
        is_fresh: bool,
    ) -> Synced {
        let engine = &self.engine;
        add(&engine.counts.asked, 1);
        let ask = |id| engine.ask(id, kind, callers, file, is_fresh);
        let asked = FileId::of(file.file()).and_then(ask);
        match asked {
            Ok(Asked::New(outcome)) => Synced::of(outcome),
            Ok(Asked::Shares(outcome)) => {
                add(&engine.counts.shared, 1);
                Synced::of(outcome)
            }
            Ok(Asked::Failed(error)) => Synced::done(&engine.failed(Err(error))),
            // Out of descriptors, for one: then the asker's own is used, and the asker waits.
            Err(_) => Synced::done(&engine.sync_here(file, kind, engine.losses())),
        }
    }

    pub(crate) fn wait_for(
        &self,
        file: &impl Description,
        kind: Kind,
    ) -> Result<(), DurabilityError> {
        let since = self.engine.losses();
        let alone = self.engine.alone(file, kind, true);
        let verdict = alone.unwrap_or_else(|| self.begin(file, kind).wait());
        if verdict.as_ref().is_err_and(DurabilityError::has_not_begun) {
            // The runtime has ended before a worker could do it.
            return self.engine.sync_here(file, kind, since);
        }
        verdict
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable")
            .field("strategy", &self.strategy())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

/// A call to be made with the verdict of a sync. Dropping this asks for the call.
struct Asks {
    synced: Synced,
    call: Option<Call>,
}

impl Drop for Asks {
    fn drop(&mut self) {
        self.call.take().into_iter().for_each(|call| self.synced.outcome.call(call));
    }
}
