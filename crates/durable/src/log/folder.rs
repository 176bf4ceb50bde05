//! The folder of a log, and the names of its files. A rename makes each segment appear whole under
//! its name: a file of that name has a header that is durable.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::LogError;
use super::format::{HEADER_LEN, Header};
use super::write::Tail;
use crate::durable::Kind;
use crate::engine::commit;
use crate::system::{Failure, System};

const BUFFER_LEN: usize = 256 << 10;

/// A segment that is being made.
const UNBORN: &str = "segment.new";

/// Space for segments when the disk is full: opening a log takes one, and cutting it off then takes
/// the other.
const SPARES: [&str; 2] = ["segment.spare-1", "segment.spare-2"];

/// What mkfs leaves in the root of a filesystem, which may be all for a log.
const LOST_AND_FOUND: &str = "lost+found";

/// Takes no space except for its name, in the folder. If the space for names is used up, as in a
/// small folder of XFS, which is within its inode, a rename needs a block of a disk that is full,
/// before the old name goes. The name is longer than those of two segments: each spare segment may
/// become another one.
const NAME: &str = "segment.spare-name-that-goes-where-a-full-disk-has-no-room-for-names";

/// How much space each spare segment has, in bytes, but no more than a segment. Guessed: many a
/// commit, and a small part of the 64 MiB of a segment.
pub(super) const SPARE_LEN: u64 = 256 << 10;
/// A shorter one is of no use: a block, for a header.
const SPARE_LEN_MIN: u64 = 4 << 10;

/// A log's folder, locked as long as this lives.
#[derive(Debug)]
pub(super) struct Folder {
    /// The path as it was given, by which it is called.
    pub(super) path: PathBuf,
    /// Where its files are found, even when it has been renamed, or the process works in another
    /// folder.
    inside: PathBuf,
    /// The folder itself, to be locked and synced.
    pub(super) file: File,
}

/// A way into the folder that lasts when the log has been closed. It keeps no lock.
pub(super) struct Entrance {
    inside: PathBuf,
    _file: File,
}

impl Entrance {
    /// Where that segment is found.
    pub(super) fn segment(&self, first: u64) -> PathBuf {
        self.inside.join(segment(first))
    }
}

impl Drop for Folder {
    /// Closing the file is not enough: a child process that another thread has just begun also has
    /// it, and with it the lock, until the child runs its program.
    fn drop(&mut self) {
        self.unlock();
    }
}

impl Folder {
    /// Opens the folder, or makes it if `create`, durably; and locks it.
    pub(super) fn open(system: &dyn System, path: &Path, create: bool) -> Result<Self, LogError> {
        let io = |action| move |source| LogError::Io { action, path: path.to_owned(), source };
        if !create && !path.try_exists().map_err(io("find"))? {
            return Err(LogError::NotFound { path: path.to_owned() });
        }
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{error}: the folder that it is to be in must exist");
                return Err(io("make")(io::Error::new(error.kind(), text)));
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io("make")(error));
            }
            _ if !path.metadata().map_err(io("look at"))?.is_dir() => {
                return Err(LogError::NotALog { path: path.to_owned() });
            }
            _ => {}
        }
        let file = File::open(path).map_err(io("open"))?;
        // Also if it was there: the program that made it may not have got so far, or not have been
        // told that it is durable.
        let synced = match crate::batch::parent(path) {
            Ok(parent) => commit::directory(system, &parent, Kind::All),
            // A folder of ours may be in one that we may not read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => system
                .sync_filesystem(&file)
                .and_then(|()| commit::directory(system, &file, Kind::All)),
            Err(error) => return Err(io("open the parent of")(error)),
        };
        synced.map_err(|failure| io("sync the parent of")(failure.error))?;
        match file.try_lock() {
            Ok(()) => {
                let inside = inside(&file, path).map_err(io("find"))?;
                Ok(Self { path: path.to_owned(), inside, file })
            }
            Err(TryLockError::WouldBlock) => Err(LogError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(io("lock")(source)),
        }
    }

    /// Lets others have the folder. Nothing may be changed in it afterwards.
    pub(super) fn unlock(&self) {
        // If this fails, closing the file has to be enough.
        let _ = self.file.unlock();
    }

    /// What the segment that begins with this record is called.
    pub(super) fn name_of(&self, first: u64) -> PathBuf {
        self.path.join(segment(first))
    }

    /// Where that segment is found.
    pub(super) fn segment(&self, first: u64) -> PathBuf {
        self.inside.join(segment(first))
    }

    pub(super) fn entrance(&self) -> io::Result<Entrance> {
        let file = self.file.try_clone()?;
        Ok(Entrance { inside: inside(&file, &self.path)?, _file: file })
    }

    /// The length of that segment in bytes; 0 if there is none.
    pub(super) fn length_of(&self, first: u64) -> u64 {
        length_of(&self.segment(first))
    }

    /// The first records of the segments, in order. An error if there is none, but something else
    /// is there.
    pub(super) fn segments(&self) -> Result<Vec<u64>, LogError> {
        let io = |source| LogError::Io { action: "read", path: self.path.clone(), source };
        let (mut all, mut others, mut spares) = (Vec::new(), false, false);
        for entry in fs::read_dir(&self.inside).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            if let Some(first) = name.to_str().and_then(first_of) {
                all.push(first);
            } else {
                // A log has spare ones once its first segment is durable.
                let is_spare = [NAME].iter().chain(&SPARES).any(|spare| name == **spare);
                spares |= is_spare;
                others |= !is_spare && name != UNBORN && name != LOST_AND_FOUND;
            }
        }
        if all.is_empty() && spares {
            return Err(LogError::Gone { path: self.path.clone() });
        }
        if all.is_empty() && others {
            return Err(LogError::NotALog { path: self.path.clone() });
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Makes a segment with these records, durably. It takes the place of a segment of the same
    /// name, if there is one, whose records must be among these or not needed. If this fails, the
    /// new segment may be there or not. If the disk is full, a spare one becomes the segment if
    /// `with_spare`.
    pub(super) fn create(
        &self,
        system: &dyn System,
        header: &Header,
        records: &[u8],
        with_spare: bool,
    ) -> Result<Tail, Failure> {
        let tail = self.make(system, header, records, with_spare)?;
        self.name(system, header)?;
        self.sync(system)?;
        Ok(tail)
    }

    /// As [`create`](Self::create), but the segment has no name yet: if this fails, nothing has
    /// changed.
    pub(super) fn make(
        &self,
        system: &dyn System,
        header: &Header,
        records: &[u8],
        with_spare: bool,
    ) -> Result<Tail, Failure> {
        let unborn = self.inside.join(UNBORN);
        let mut made = write_unborn(system, &unborn, true, header, records);
        let needed = (HEADER_LEN + records.len()) as u64;
        for spare in SPARES.map(|name| self.inside.join(name)) {
            let is_full = made.as_ref().is_err_and(|failure| is_full(&failure.error));
            // The rename first removes what was begun: its space may be what is missing.
            if !is_full
                || !with_spare
                || length_of(&spare) < needed
                || self.with_name(|| fs::rename(&spare, &unborn), |error| error).is_err()
            {
                continue;
            }
            made = write_unborn(system, &unborn, false, header, records);
        }
        if made.as_ref().is_err_and(|failure| is_full(&failure.error)) {
            // What was begun takes what is left of the room.
            let _ = fs::remove_file(&unborn);
        }
        made
    }

    /// Gives the segment that was [made](Self::make) its name, to be made durable by
    /// [`sync`](Self::sync). If this fails, there is no such segment: its space becomes that of a
    /// spare one, if one has been taken, or is free.
    pub(super) fn name(&self, system: &dyn System, header: &Header) -> Result<(), Failure> {
        let (unborn, segment) = (self.inside.join(UNBORN), self.segment(header.first));
        let named = self.with_name(|| system.rename(&unborn, &segment), |failure| &failure.error);
        named.inspect_err(|_| {
            // A spare one without any segment would say that there was a log.
            let is_first = self.segments().is_ok_and(|all| all.is_empty());
            if is_first || self.put_back(&unborn).is_err() {
                let _ = fs::remove_file(&unborn);
            }
        })
    }

    /// Turns a segment that was made into a spare one, if one is missing.
    fn put_back(&self, unborn: &Path) -> io::Result<()> {
        let mut spares = SPARES.map(|name| self.inside.join(name)).into_iter();
        let missing = spares.find(|spare| !spare.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
        open_or_make(unborn, false)?.set_len(length_of(unborn).min(SPARE_LEN))?;
        fs::rename(unborn, missing)
    }

    /// Renames. If there is no room for a name, removes the one that is kept for this, and tries
    /// once more.
    fn with_name<E>(
        &self,
        rename: impl Fn() -> Result<(), E>,
        error: impl Fn(&E) -> &io::Error,
    ) -> Result<(), E> {
        let renamed = rename();
        let is_full = renamed.as_ref().is_err_and(|failed| is_full(error(failed)));
        if is_full && fs::remove_file(self.inside.join(NAME)).is_ok() { rename() } else { renamed }
    }

    /// How much room for a segment there is when the disk is full.
    pub(super) fn spare_len(&self) -> u64 {
        SPARES.map(|name| length_of(&self.inside.join(name))).into_iter().max().unwrap_or(0)
    }

    /// Sees to it that there are spare segments with their space: at most as much as a segment, and
    /// less on a disk that is nearly full. If the disk is full already, there are none. Only use of
    /// a full disk depends on them.
    pub(super) fn make_spares(&self, segment_length: u64) {
        let _ = open_or_make(&self.inside.join(NAME), false);
        let enough = segment_length.clamp(SPARE_LEN_MIN, SPARE_LEN);
        let make = |name| self.make_spare(name, enough).is_ok_and(|length| length >= enough);
        let made = SPARES.map(make);
        if !made.contains(&false) {
            return;
        }
        // Space that was freed may be available only when the journal has been committed.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::syncfs(&self.file);
        let _ = SPARES.map(make);
    }

    /// Makes one spare segment, or makes it longer. Returns how long it is then.
    fn make_spare(&self, name: &str, enough: u64) -> io::Result<u64> {
        let file = open_or_make(&self.inside.join(name), false)?;
        let length = file.metadata()?.len();
        let mut wanted = enough;
        while wanted > length && wanted >= SPARE_LEN_MIN {
            let made = file.write_all_at(&vec![0; (wanted - length) as usize], length);
            // Without the sync it might have no space after a power cut, and others might have
            // taken that by then.
            match made.and_then(|()| file.sync_all()) {
                Ok(()) => return Ok(wanted),
                // Its length says how much space it has.
                Err(error) if is_full(&error) => file.set_len(length)?,
                Err(error) => return Err(error),
            }
            wanted /= 2;
        }
        Ok(length)
    }

    /// Removes segments, durably. A crash may leave any of them: a later segment says that they are
    /// not needed.
    pub(super) fn remove(&self, system: &dyn System, segments: &[u64]) -> Result<(), Failure> {
        self.unlink(system, segments)?;
        if segments.is_empty() { Ok(()) } else { self.sync(system) }
    }

    /// As [`remove`](Self::remove), but the removal need not be durable.
    pub(super) fn unlink(&self, system: &dyn System, segments: &[u64]) -> Result<(), Failure> {
        for first in segments {
            match system.remove(&self.segment(*first)) {
                Err(Failure { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Makes the names in it durable.
    pub(super) fn sync(&self, system: &dyn System) -> Result<(), Failure> {
        commit::directory(system, &self.file, Kind::All)
    }
}

/// A path into the folder: through its descriptor if the system has such paths, else one that does
/// not depend on where the process works.
fn inside(file: &File, path: &Path) -> io::Result<PathBuf> {
    let of_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let is_it = |found: fs::Metadata| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    };
    if fs::metadata(&of_descriptor).is_ok_and(is_it) {
        return Ok(of_descriptor);
    }
    std::path::absolute(path)
}

fn segment(first: u64) -> String {
    format!("{first:020}.log")
}

/// 0 if there is no such file.
fn length_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn open_or_make(path: &Path, truncate: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // A link that somebody has put here would have another file written.
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options.read(true).write(true).create(true).truncate(truncate).open(path)
}

/// Writes a segment and syncs it. If not `truncate`, this overwrites what is there, in its space.
fn write_unborn(
    system: &dyn System,
    path: &Path,
    truncate: bool,
    header: &Header,
    records: &[u8],
) -> Result<Tail, Failure> {
    let opened = open_or_make(path, truncate).and_then(|file| {
        let length = file.metadata()?.len();
        Ok((file, length))
    });
    let (file, length) = opened.map_err(|error| Failure { operation: "open", error })?;
    system.write(&file, &header.to_bytes(), 0)?;
    system.write(&file, records, HEADER_LEN as u64)?;
    let end = (HEADER_LEN + records.len()) as u64;
    if end < length {
        // The rest of what was there goes: it might look like records behind these, and its space
        // is for another spare one.
        let cut = file.set_len(end);
        cut.map_err(|error| Failure { operation: "ftruncate", error })?;
    }
    system.sync(&file, Kind::All)?;
    Ok(Tail { file: Arc::new(file), end, allocated: end })
}

pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Whether no file can be opened because too many are open.
pub(super) fn opens_none(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Reads from `at` on, whatever the descriptor's own position.
pub(super) fn read_at<F: Deref<Target = File>>(file: F, at: u64) -> BufReader<ReadAt<F>> {
    BufReader::with_capacity(BUFFER_LEN, ReadAt { file, at })
}

/// See [`read_at`].
pub(super) struct ReadAt<F> {
    file: F,
    at: u64,
}

impl<F: Deref<Target = File>> Read for ReadAt<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Opens a segment's file for reading. Also returns its length.
pub(super) fn reopen(path: &Path) -> io::Result<(Arc<File>, u64)> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((Arc::new(file), length))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::system::Linux;

    #[test]
    fn it_is_unlocked_when_it_goes_though_a_child_still_has_the_file() {
        let parent = tempfile::tempdir().unwrap();
        let open = || Folder::open(&Linux, &parent.path().join("log"), true);
        let folder = open().unwrap();
        let of_a_child = folder.file.try_clone().unwrap();
        assert!(matches!(open(), Err(LogError::InUse { .. })));
        drop(folder);
        open().unwrap();
        drop(of_a_child);
    }

    #[test]
    fn its_files_are_found_when_it_is_called_something_else() {
        let parent = tempfile::tempdir().unwrap();
        let [log, moved] = ["log", "moved"].map(|name| parent.path().join(name));
        let folder = Folder::open(&Linux, &log, true).unwrap();
        if !folder.inside.starts_with("/proc") {
            println!("skipped: there is no /proc here");
            return;
        }
        fs::rename(&log, &moved).unwrap();
        fs::create_dir(&log).unwrap();
        let header = Header { log: 1, first: 1, kept: 1 };
        folder.create(&Linux, &header, b"", false).unwrap();
        assert_eq!(folder.segments().unwrap(), [1]);
        assert_eq!(fs::read_dir(&log).unwrap().count(), 0, "that is another one");
        folder.remove(&Linux, &[1]).unwrap();
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
    }

    #[test]
    fn only_what_is_named_as_a_segment_is_one() {
        assert_eq!(first_of(&segment(7)), Some(7));
        assert_eq!(first_of(&segment(u64::MAX)), Some(u64::MAX));
        for other in ["7.log", "+0000000000000000007.log", "00000000000000000007", UNBORN, NAME] {
            assert_eq!(first_of(other), None, "{other}");
        }
    }
}
