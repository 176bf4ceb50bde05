//! Replaces a file as a whole, durably: write beside it, sync, rename, sync the directory.
//!
//! * `REPLACE-1` The new file has its name only after its contents are durable. So a crash leaves
//!   the old file or the new one, whole.
//! * `REPLACE-2` It has no name before that, where the system allows it, so that neither a failure
//!   nor a crash leaves anything behind but for the moment between two system calls.
//! * `REPLACE-3` The directory is opened once. All names are found in it, even if it is renamed or
//!   the process works somewhere else by then.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use homing_runtime::{JoinError, JoinHandle, blocking};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawMode, Uid};
use rustix::io::Errno;

use crate::batch::parent;
use crate::durable::{Durable, Kind};
use crate::error::DurabilityError;

/// What permissions a file has that replaces none, except for what the process's mask forbids.
const NEW: Mode = Mode::from_raw_mode(0o666);

/// Why a file was not replaced durably.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let folder = tempfile::tempdir()?;
/// use homing_durable::ReplaceError;
///
/// let missing = folder.path().join("none/settings");
/// let error = durable.replace_and_wait(&missing, b"depth = 32").unwrap_err();
/// assert!(matches!(error, ReplaceError::Kept { .. }) && error.to_string().contains("none"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The operating system refused. The file is as it was.
    #[error("cannot {action} {}: {source}; it is as it was", path.display())]
    Kept {
        /// `write a new`, `rename the new`...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The new contents did not become durable. The file is as it was.
    #[error("{} is as it was, because its new contents did not become durable: {source}", path.display())]
    NotDurable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<DurabilityError>,
    },
    /// The file has its new contents, which are durable, but its name may not be: after a crash it
    /// may be as it was.
    #[error("{} was replaced, but after a crash it may be as it was: {source}", path.display())]
    Unsure {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<DurabilityError>,
    },
    /// The runtime has ended meanwhile. The file is as it was, or has its new contents, which may
    /// not be durable.
    #[error("the runtime ended before it was known that {} was replaced", path.display())]
    Ended {
        /// The file.
        path: PathBuf,
    },
}

/// A replacement that has begun. Await it, or [`wait`](Replaced::wait). Dropping it changes
/// nothing.
#[derive(Debug)]
#[must_use = "only this tells whether the file was replaced"]
pub struct Replaced {
    path: PathBuf,
    handle: JoinHandle<Result<(), ReplaceError>>,
}

impl Replaced {
    /// Blocks until the file has been replaced, durably.
    ///
    /// # Errors
    /// [`ReplaceError`]: what became of the file instead.
    pub fn wait(self) -> Result<(), ReplaceError> {
        joined(self.handle.join(), &self.path)
    }
}

impl Future for Replaced {
    type Output = Result<(), ReplaceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = Pin::new(&mut self.handle).poll(context);
        ended.map(|ended| joined(ended, &self.path))
    }
}

fn joined(
    ended: Result<Result<(), ReplaceError>, JoinError>,
    path: &Path,
) -> Result<(), ReplaceError> {
    match ended {
        Ok(replaced) => replaced,
        Err(JoinError::Panicked(panic)) => std::panic::resume_unwind(panic.into_payload()),
        Err(_) => Err(ReplaceError::Ended { path: path.to_owned() }),
    }
}

impl Durable {
    /// Begins to replace the contents of a file, or to make the file. Afterwards it has these
    /// contents, durably. A crash meanwhile leaves the old file or the new one, whole, and readers
    /// see the one or the other. Files that are replaced at the same time share flushes.
    ///
    /// The new file keeps the permissions of the old one, and its owner if the process may set it.
    /// It has other links, attributes and access control lists than the old one: none. A symbolic
    /// link is replaced itself. Of several replacements of one file at a time, each is whole, and
    /// one is the last.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// use homing_durable::Replaced;
    ///
    /// let path = folder.path().join("manifest");
    /// let replaced: Replaced = durable.replace(&path, "tables: 1 2 3");
    /// replaced.wait()?; // or await it
    /// assert_eq!(std::fs::read_to_string(&path)?, "tables: 1 2 3");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(&self, path: impl AsRef<Path>, contents: impl Into<Vec<u8>>) -> Replaced {
        let (path, contents) = (path.as_ref().to_owned(), contents.into());
        // A path is meant as the caller works now.
        let draft = blocking(|| Draft::new(&path));
        let durable = self.clone();
        let handle = self.engine.spawn(async move {
            let mut draft = draft?;
            blocking(|| draft.write(&contents))?;
            drop(contents);
            let synced = durable.fsync(&draft.file).await;
            draft.has_synced(&durable, synced)?;
            blocking(|| draft.rename())?;
            let named = durable.fsync(&draft.parent).await;
            draft.is_named(named)
        });
        Replaced { path, handle }
    }

    /// [`Durable::replace`], and waits, as [`Durable::fsync_and_wait`] does: this works also when
    /// the runtime has ended.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("settings");
    /// for depth in [16, 32] {
    ///     durable.replace_and_wait(&path, format!("depth = {depth}").as_bytes())?;
    /// }
    /// assert_eq!(std::fs::read_to_string(&path)?, "depth = 32");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReplaceError`]: what became of the file instead.
    pub fn replace_and_wait(
        &self,
        path: impl AsRef<Path>,
        contents: &[u8],
    ) -> Result<(), ReplaceError> {
        let path = path.as_ref();
        let mut draft = blocking(|| {
            let draft = Draft::new(path)?;
            draft.write(contents).map(|()| draft)
        })?;
        let synced = self.wait_for(&draft.file, Kind::All);
        draft.has_synced(self, synced)?;
        blocking(|| draft.rename())?;
        draft.is_named(self.wait_for(&draft.parent, Kind::All))
    }
}

/// The new file, and where it is to be.
struct Draft {
    path: PathBuf,
    parent: Arc<File>,
    name: OsString,
    file: Arc<File>,
    /// What it is called in the meantime, if it has to be called something.
    called: Option<OsString>,
}

impl Draft {
    fn new(path: &Path) -> Result<Self, ReplaceError> {
        Self::by(path, nameless)
    }

    /// With a function that makes a file without a name, if that is possible.
    fn by(
        path: &Path,
        nameless: impl Fn(&File, Mode) -> io::Result<Option<File>>,
    ) -> Result<Self, ReplaceError> {
        let made = || {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
            let parent = parent(path)?;
            let old = Old::of(&parent, &name)?;
            let mode = old.as_ref().map_or(NEW, |old| old.mode);
            let (file, called) = match nameless(&parent, mode)? {
                Some(file) => (file, None),
                None => named(&parent, mode).map(|(file, name)| (file, Some(name)))?,
            };
            let draft = Self { path: path.to_owned(), parent, name, file: file.into(), called };
            if let Some(old) = old {
                old.hand_down(&draft.file)?;
            }
            Ok(draft)
        };
        let path = || path.to_owned();
        made().map_err(|source| ReplaceError::Kept { action: "replace", path: path(), source })
    }

    fn kept(&self, action: &'static str) -> impl Fn(io::Error) -> ReplaceError {
        let path = self.path.clone();
        move |source| ReplaceError::Kept { action, path: path.clone(), source }
    }

    fn write(&self, contents: &[u8]) -> Result<(), ReplaceError> {
        (&*self.file).write_all(contents).map_err(self.kept("write the new contents of"))
    }

    fn has_synced(
        &self,
        durable: &Durable,
        synced: Result<(), DurabilityError>,
    ) -> Result<(), ReplaceError> {
        synced.map_err(|source| {
            // Nobody will miss what was lost with this file, and nobody else knows it.
            durable.acknowledge_loss(&self.file);
            ReplaceError::NotDurable { path: self.path.clone(), source: source.into() }
        })
    }

    /// Gives it its name.
    fn rename(&mut self) -> Result<(), ReplaceError> {
        if self.called.is_none() {
            let called = link(&self.parent, &self.file).map_err(self.kept("name the new"))?;
            self.called = Some(called);
        }
        let called = self.called.as_deref().unwrap_or_default();
        let renamed = rustix::fs::renameat(&self.parent, called, &self.parent, &self.name);
        renamed.map_err(|errno| self.kept("rename the new")(errno.into()))?;
        self.called = None;
        Ok(())
    }

    fn is_named(&self, synced: Result<(), DurabilityError>) -> Result<(), ReplaceError> {
        synced.map_err(|source| ReplaceError::Unsure {
            path: self.path.clone(),
            source: source.into(),
        })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(called) = &self.called {
            let _ = rustix::fs::unlinkat(&self.parent, called, AtFlags::empty());
        }
    }
}

/// What the new file has of the old one.
struct Old {
    mode: Mode,
    owner: (Uid, Gid),
}

impl Old {
    fn of(parent: &File, name: &OsStr) -> io::Result<Option<Self>> {
        let found = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        let kind = FileType::from_raw_mode(found.st_mode as RawMode);
        let mode = Mode::from_raw_mode(found.st_mode as RawMode);
        let owner = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        Ok((kind == FileType::RegularFile).then_some(Self { mode, owner }))
    }

    fn hand_down(&self, file: &File) -> io::Result<()> {
        let (owner, group) = self.owner;
        // Only the superuser can give files away: otherwise the file is that of who replaces it.
        let _ = rustix::fs::fchown(file, Some(owner), Some(group));
        Ok(rustix::fs::fchmod(file, self.mode)?)
    }
}

/// Makes a file without a name. `None` if the system has no such files.
#[cfg(target_os = "linux")]
fn nameless(parent: &File, mode: Mode) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    // It gets its name by a path that not every process has.
    let can_link = Path::new("/proc/self/fd").exists();
    match rustix::fs::openat(parent, ".", flags, mode) {
        Ok(file) => Ok(can_link.then(|| file.into())),
        // Filesystems that have no such files say one or the other.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &File, _: Mode) -> io::Result<Option<File>> {
    Ok(None)
}

/// Makes a file with a name of its own.
fn named(parent: &File, mode: Mode) -> io::Result<(File, OsString)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    with_a_name(|name| Ok(rustix::fs::openat(parent, name, flags, mode)?.into()))
}

/// Gives a file that has no name one of its own.
fn link(parent: &File, file: &File) -> io::Result<OsString> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let cwd = rustix::fs::CWD;
    let link =
        |name: &OsStr| Ok(rustix::fs::linkat(cwd, &*path, parent, name, AtFlags::SYMLINK_FOLLOW)?);
    with_a_name(link).map(|((), name)| name)
}

/// Calls `make` with names until it finds one that is free.
fn with_a_name<T>(make: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<(T, OsString)> {
    loop {
        let name = OsString::from(format!(".{:016x}.new", RandomState::new().hash_one(0)));
        match make(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, name)),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// As on NFS, or where nothing is mounted on `/proc`.
    #[test]
    fn where_no_file_is_without_a_name_nothing_is_left_behind_either() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        let draft = || Draft::by(&path, |_, _| Ok(None)).unwrap();
        let given_up = draft();
        assert_eq!(count(), 1);
        drop(given_up);
        assert_eq!(count(), 0);
        let mut new = draft();
        new.write(b"new").unwrap();
        new.rename().unwrap();
        drop(new);
        assert_eq!((std::fs::read(&path).unwrap(), count()), (b"new".to_vec(), 1));
    }
}
