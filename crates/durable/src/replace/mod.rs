//! Replaces a file as a whole, durably: write beside it, sync, rename, sync the directory.
//!
//! * `REPLACE-1` The new file has its name only after its contents are durable. So a crash leaves
//!   the old file or the new one, whole.
//! * `REPLACE-2` It has no name before that, where the system allows it, so that neither a failure
//!   nor a crash leaves anything behind but for the moment between two system calls.
//! * `REPLACE-3` The directory is opened once. All names are found in it, even if it is renamed or
//!   the process works somewhere else by then.
//! * `REPLACE-4` If there is an old file, only the owner can open the new one until it is written.
//!   Then it gets the permissions of the old one, or fewer.
//! * `REPLACE-5` Of several replacements of a file by one engine the one that was asked for last
//!   wins: an earlier one that is late does not rename its file, but waits until the directory is
//!   durable, and with it the later one.

mod old;
mod turns;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use homing_runtime::{JoinError, JoinHandle, blocking};
use rustix::fs::{AtFlags, Mode, OFlags};
#[cfg(target_os = "linux")]
use rustix::io::Errno;

use crate::batch::parent;
use crate::durable::{Durable, Kind};
use crate::error::DurabilityError;
use crate::files::file_id::FileId;
use old::Old;
use turns::Turn;
pub(crate) use turns::Turns;

/// What permissions a file has that replaces none, except for what the process's mask forbids.
const NEW: Mode = Mode::from_raw_mode(0o666);
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

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
    /// The new file has the permissions and access control list of the old one, and its owner and
    /// group if the process may set them. If not, nobody who could not read the old file can read
    /// the new one, except this process's user. Other attributes and hard links are not kept. Where
    /// there is a symbolic link, the link is replaced, by a file as a new one has it. Anything else
    /// than a file is refused.
    ///
    /// Of several replacements by this engine the one that was asked for last stays, also if an
    /// earlier one was dropped and is still under way. Each takes two descriptors until it has
    /// ended. Once a directory could not be synced, each replacement in it is unsure until that is
    /// [acknowledged](Durable::acknowledge_loss). Do not wait for it in an item of `events` if both
    /// `events` and `durable` have a `max_active`: it needs items of one of them.
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
        let draft = blocking(|| Draft::new(&self.engine.turns, &path));
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
            let draft = Draft::new(&self.engine.turns, path)?;
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
    old: Option<Old>,
    turn: Turn,
    /// What it is called in the meantime, if it has to be called something.
    called: Option<OsString>,
}

impl Draft {
    fn new(turns: &Turns, path: &Path) -> Result<Self, ReplaceError> {
        Self::by(turns, path, nameless)
    }

    /// With a function that makes a file without a name, if that is possible.
    fn by(
        turns: &Turns,
        path: &Path,
        nameless: impl Fn(&File, Mode) -> io::Result<Option<File>>,
    ) -> Result<Self, ReplaceError> {
        let made = || {
            let name = path
                .file_name()
                .filter(|name| path.as_os_str().as_bytes().ends_with(name.as_bytes()));
            let name = name.ok_or_else(|| no_file("it names no file"))?.to_owned();
            let parent = parent(path)?;
            let turn = turns.take(FileId::of(&parent)?, &name);
            let old = Old::of(&parent, path, &name)?;
            let mode = if old.is_some() { PRIVATE } else { NEW };
            let (file, called) = match nameless(&parent, mode)? {
                Some(file) => (file, None),
                None => named(&parent, mode).map(|(file, name)| (file, Some(name)))?,
            };
            let path = path.to_owned();
            Ok(Self { path, parent, name, file: file.into(), old, turn, called })
        };
        let path = || path.to_owned();
        made().map_err(|source| ReplaceError::Kept { action: "replace", path: path(), source })
    }

    fn kept(&self, action: &'static str) -> impl Fn(io::Error) -> ReplaceError {
        let path = self.path.clone();
        move |source| ReplaceError::Kept { action, path: path.clone(), source }
    }

    fn write(&self, contents: &[u8]) -> Result<(), ReplaceError> {
        let written = (&*self.file).write_all(contents);
        written.map_err(self.kept("write the new contents of"))?;
        // Writing would take away the bits that let a program run as its owner.
        let handed_down = self.old.as_ref().map_or(Ok(()), |old| old.hand_down(&self.file));
        handed_down.map_err(self.kept("set the permissions of the new"))
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

    /// Gives it its name, unless it has been replaced again.
    fn rename(&mut self) -> Result<(), ReplaceError> {
        if self.called.is_none() {
            let called = link(&self.parent, &self.file).map_err(self.kept("name the new"))?;
            self.called = Some(called);
        }
        let called = self.called.as_deref().unwrap_or_default();
        let parent = &self.parent;
        let rename = || rustix::fs::renameat(parent, called, parent, &self.name);
        let renamed = self.turn.rename(rename);
        let has_name = renamed.map_err(|errno| self.kept("rename the new")(errno.into()))?;
        let called = self.called.take();
        if !has_name && let Some(called) = called {
            // Before the directory is synced with it.
            let _ = rustix::fs::unlinkat(&self.parent, called, AtFlags::empty());
        }
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

fn no_file(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
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
        let turns = Turns::default();
        let draft = || Draft::by(&turns, &path, |_, _| Ok(None)).unwrap();
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

    #[test]
    fn a_later_one_that_fails_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        let turns = Turns::default();
        let draft = || Draft::new(&turns, &path).unwrap();
        let (mut older, mut newer) = (draft(), draft());
        std::fs::create_dir(&path).unwrap();
        newer.rename().unwrap_err();
        std::fs::remove_dir(&path).unwrap();
        older.write(b"older").unwrap();
        older.rename().unwrap();
        drop((older, newer));
        assert_eq!(std::fs::read(&path).unwrap(), b"older");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn who_was_asked_for_earlier_comes_too_late() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        let turns = Turns::default();
        let draft = |contents: &[u8]| {
            let draft = Draft::new(&turns, &path).unwrap();
            draft.write(contents).unwrap();
            draft
        };
        let (mut older, mut newer) = (draft(b"older"), draft(b"newer"));
        newer.rename().unwrap();
        older.rename().unwrap();
        drop((older, newer));
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        assert!(turns.are_over());
        draft(b"newest").rename().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newest");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
