//! Many syncs that begin together, so that the engine sees that there are many.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use homing_runtime::blocking;
use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit};

use crate::durable::{Durable, Kind};
use crate::files::file_id::FileId;
use crate::synced::{Synced, SyncedMany};
use crate::system::description::Description;

/// A batch of this many files is a bulk: a caller that syncs single files beside it is still alone.
/// Chosen: more than a file with its directory and a few of its neighbours.
pub(crate) const BULK: usize = 8;

/// A bulk that is known to have this many files begins with its first ones: their commit also
/// writes back the data of the others, while those are still being asked for. Derived: asking for
/// this many takes 5 ms, as long as the flush that this costs on a slow disk.
pub(crate) const BEGINS_EARLY: usize = 4000;

/// A batch leaves this many descriptors to other threads: if fewer are left, what has been asked
/// for ends before more is. Chosen: what a server opens in the time that a part of a batch takes.
const LEFT: u64 = 64;

/// Syncs of several kinds that begin together, so that one commit of the filesystem may do for all
/// of them. Dropping a batch begins its syncs, too. Only later syncs of the files then learn of a
/// failure.
///
/// ```
/// # use std::fs::File;
/// # use homing_durable::Durable;
/// # use homing_runtime::Runtime;
/// # let runtime = Runtime::new()?;
/// # let folder = tempfile::tempdir()?;
/// let durable = Durable::new(&runtime)?;
/// # let path = folder.path().join("table");
/// # let index = File::create(folder.path().join("index"))?;
/// let table = File::create(&path)?;
/// let mut batch = durable.batch();
/// batch.fsync(&table).fdatasync(&index);
/// batch.sync_parent(&path)?; // so that the new file has its name after a crash
/// for verdict in batch.begin().wait() {
///     verdict?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "its syncs begin when it is dropped, but only what `begin` returns tells whether they failed"]
pub struct Batch {
    durable: Durable,
    all: Vec<Synced>,
    /// Its first file that can be identified.
    first: Option<FileId>,
    /// It will have at least this many files.
    expected: usize,
    /// It has begun; and how many flushes of devices had failed before.
    begun: Option<u64>,
    /// How many of its syncs have ended because few descriptors were left.
    ended: usize,
    /// How many descriptors have been kept since somebody looked how many are left.
    kept: usize,
}

/// A description that notes the number of the descriptor that is kept for it.
struct Noting<'a, D> {
    of: &'a D,
    kept: Cell<Option<RawFd>>,
}

impl<D: Description> Description for Noting<'_, D> {
    fn file(&self) -> &File {
        self.of.file()
    }

    fn keep(&self) -> io::Result<Arc<File>> {
        let kept = self.of.keep()?;
        self.kept.set(Some(kept.as_raw_fd()));
        Ok(kept)
    }
}

impl Batch {
    pub(crate) fn new(durable: Durable) -> Self {
        Self { durable, all: Vec::new(), first: None, expected: 0, begun: None, ended: 0, kept: 0 }
    }

    /// There will be at least this many files.
    pub(crate) fn expect(&mut self, files: usize) {
        self.expected = files;
    }

    /// As [`Durable::fsync`].
    pub fn fsync(&mut self, file: &impl Description) -> &mut Self {
        self.ask(file, Kind::All, false)
    }

    /// As [`Durable::fdatasync`].
    pub fn fdatasync(&mut self, file: &impl Description) -> &mut Self {
        self.ask(file, Kind::Data, false)
    }

    fn ask(&mut self, file: &impl Description, kind: Kind, is_fresh: bool) -> &mut Self {
        if self.first.is_none() {
            self.first = FileId::of(file.file()).ok();
        }
        let noting = Noting { of: file, kept: Cell::default() };
        let mut synced = self.durable.ask(&noting, kind, 0, is_fresh);
        if let Some(since) = self.begun {
            synced = self.durable.engine.unless_lost(since, (file, kind), synced);
        }
        self.all.push(synced);
        if self.all.len() == BULK {
            let engine = &self.durable.engine;
            engine.crowd.look(&*engine.system);
            if self.expected >= BEGINS_EARLY
                && let Some(first) = self.first
            {
                self.begun = engine.begin_bulk(first.device, self.expected);
            }
        }
        // The asker's own descriptor takes none.
        let own = (!is_fresh).then(|| file.file().as_raw_fd());
        if let Some(kept) = noting.kept.get().filter(|kept| Some(*kept) != own) {
            self.leave_descriptors(kept);
        }
        self
    }

    /// Lets the syncs that were asked for end if this descriptor is one of the last. The system
    /// gives the lowest number that is free.
    fn leave_descriptors(&mut self, last: RawFd) {
        self.kept += 1;
        if self.kept < BULK {
            return;
        }
        self.kept = 0;
        let limit = getrlimit(Resource::Nofile).current;
        if limit.is_none_or(|limit| u64::from(last.unsigned_abs()) + LEFT < limit) {
            return;
        }
        let engine = &self.durable.engine;
        self.begun.get_or_insert(engine.losses());
        engine.go_on();
        let part = &self.all[self.ended..];
        blocking(|| part.iter().for_each(|synced| drop(synced.outcome.wait())));
        self.ended = self.all.len();
    }

    /// As [`Durable::fsync_dir`].
    ///
    /// ```
    /// use std::fs::File;
    /// # use homing_durable::Durable;
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let folder = tempfile::tempdir()?;
    /// let durable = Durable::new(&runtime)?;
    /// let file = File::create(folder.path().join("new"))?;
    /// let mut batch = durable.batch();
    /// batch.fsync(&file).fsync_dir(&File::open(folder.path())?); // the file, and its name
    /// batch.begin().wait().into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fsync_dir(&mut self, directory: &impl Description) -> &mut Self {
        match self.durable.refuse_dir(directory.file()) {
            Some(refused) => self.all.push(refused),
            None => return self.fsync(directory),
        }
        self
    }

    /// As [`Durable::sync_parent`].
    ///
    /// # Errors
    /// As [`Durable::sync_parent`]; the batch is unchanged then.
    pub fn sync_parent(&mut self, path: impl AsRef<Path>) -> io::Result<&mut Self> {
        Ok(self.ask(&parent(path.as_ref())?, Kind::All, true))
    }

    /// Begins all of them. The result has the verdict of each, in the order in which they were
    /// added.
    pub fn begin(mut self) -> SyncedMany {
        if self.all.len() < BULK
            && let Some(first) = self.first
        {
            self.durable.engine.files().note_caller(first);
        }
        SyncedMany::of(std::mem::take(&mut self.all))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.durable.engine.go_on();
    }
}

/// The directory that a path's last name stands in.
pub(crate) fn parent(path: &Path) -> io::Result<Arc<File>> {
    let parent = path.parent().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no parent", path.display()))
    })?;
    let here = parent.as_os_str().is_empty();
    // Anything else, such as a pipe, might have to be waited for.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed());
    let open = options.open(if here { Path::new(".") } else { parent });
    let named = |error: io::Error| match error.kind() {
        kind @ (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            let text = format!("the directory of {} cannot be opened: {error}", path.display());
            io::Error::new(kind, text)
        }
        // Whoever runs out of descriptors looks at the error's number.
        _ => error,
    };
    open.map(Arc::new).map_err(named)
}
