//! The work itself: syncs a file, or a filesystem with a verdict for each file.

use std::fs::File;
use std::time::SystemTime;

use crate::durable::Kind;
use crate::engine::commits::Commits;
use crate::error::{DurabilityError, Loss};
use crate::files::Files;
use crate::files::entry::Sync;
use crate::files::file_id::{FileId, Is};
use crate::synced::Verdict;
use crate::system::{Failure, System};

/// Syncs one file by itself, and asks its other descriptions what they have heard.
pub(crate) fn one(system: &dyn System, sync: &Sync) -> Verdict {
    verdict(system, sync, file(system, sync.id, &sync.file, sync.kind))
}

/// Syncs one file.
pub(crate) fn file(
    system: &dyn System,
    id: FileId,
    file: &File,
    kind: Kind,
) -> Result<(), Failure> {
    if id.is == Is::Directory { directory(system, file, kind) } else { system.sync(file, kind) }
}

/// Syncs a directory. XFS does so by its log alone. Once the log has failed, in whichever call, the
/// sync reports that all is well, but nothing there can be examined any more.
pub(crate) fn directory(system: &dyn System, file: &File, kind: Kind) -> Result<(), Failure> {
    system.sync(file, kind)?;
    FileId::of(file).map_err(|error| Failure { operation: "statx", error }).map(drop)
}

/// The verdict for a file that has been synced, or not: also from what its other descriptions have
/// heard.
pub(crate) fn verdict(system: &dyn System, sync: &Sync, synced: Result<(), Failure>) -> Verdict {
    let heard = synced.and(others(system, sync));
    heard.map_err(|failure| error(sync.id, &sync.file, sync.kind, &failure))
}

/// Asks all other descriptions, even after one has reported an error: an error that is not heard
/// now would be heard by a later sync, of other data.
fn others(system: &dyn System, sync: &Sync) -> Result<(), Failure> {
    let ask = |other| {
        // A filesystem over another one, or in user space, may report errors by a sync alone.
        if sync.is_known { system.check(other) } else { system.sync(other, sync.kind) }
    };
    sync.others.iter().map(|other| ask(other)).fold(Ok(()), Result::and)
}

/// What came of a commit.
pub(crate) struct Committed {
    pub(crate) verdicts: Vec<Verdict>,
    /// This program may not commit filesystems.
    pub(crate) is_forbidden: bool,
    /// The commit was not enough, or not to be had: the files were synced one by one.
    pub(crate) one_by_one: bool,
    /// How the flush of the device failed. Nobody can tell whose data was lost, so all have failed.
    pub(crate) lost: Option<Failure>,
}

impl Committed {
    fn of(verdicts: Vec<Verdict>) -> Self {
        Self { verdicts, is_forbidden: false, one_by_one: false, lost: None }
    }
}

/// Commits the filesystem of these files, and tells what became of each. `early` writes their data
/// back first.
pub(crate) fn all(system: &dyn System, syncs: &[Sync], early: bool, commits: Commits) -> Committed {
    let Some(first) = syncs.first() else { return Committed::of(Vec::new()) };
    let plain = syncs.iter().find(|sync| sync.id.is == Is::Plain);
    let check = |sync: &Sync| verdict(system, sync, system.check(&sync.file));
    let mut verdicts: Vec<Verdict> = vec![Ok(()); syncs.len()];
    if early {
        hear(&mut verdicts, syncs, |sync| {
            let began = system.begin_write_back(&sync.file);
            began.map_err(|failure| error(sync.id, &sync.file, sync.kind, &failure))
        });
        hear(&mut verdicts, syncs, check);
    }
    let tells_of_data = commits == Commits::ThenFlush;
    let witness = if tells_of_data { None } else { system.witness(&first.file) };
    let committed = system.sync_filesystem(&first.file);
    // Each file reports on its own data.
    let lost_data = hear(&mut verdicts, syncs, check);
    if let Err(failure) = committed {
        // With these errors nothing has been begun.
        let is_forbidden = matches!(failure.error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
        let is_no_flush = is_forbidden || is_for_want_of_space(&failure);
        let is_a_strangers =
            || plain.is_some() && witness.is_some_and(|saw_data_fail| saw_data_fail());
        // A failure that nobody's data explains was the flush or the journal, and this may be the
        // only report of it. XFS reports it again to each sync of a plain file.
        let is_told = lost_data > 0 || is_no_flush || tells_of_data || is_a_strangers();
        // A failure that only such a sync hears of is nobody's data either.
        let mut has_heard = || hear(&mut verdicts, syncs, |sync| one(system, sync)) > lost_data;
        let is_lost = !is_told || (has_heard() && !is_no_flush);
        let lost = is_lost.then_some(failure);
        return Committed { verdicts, is_forbidden, one_by_one: is_told, lost };
    }
    // `DURABLE-4`
    if commits == Commits::Flushed {
        return Committed::of(verdicts);
    }
    // Through a plain file, because XFS only forces its log for a directory.
    let flushed = system.flush_device(&plain.unwrap_or(first).file);
    let is_no_flush = flushed.as_ref().is_err_and(is_for_want_of_space);
    if is_no_flush {
        // The error is about data written to that file meanwhile. Then each file is synced by
        // itself, with a flush of its own.
        hear(&mut verdicts, syncs, |sync| one(system, sync));
    }
    let lost = flushed.err().filter(|_| !is_no_flush);
    Committed { lost, one_by_one: is_no_flush, ..Committed::of(verdicts) }
}

/// Whether some data found no place on the disk: that says nothing about a flush.
fn is_for_want_of_space(failure: &Failure) -> bool {
    matches!(failure.error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Asks about each file, and keeps what it hears, because nobody hears it again. Returns how many
/// files have failed by now.
fn hear(verdicts: &mut [Verdict], syncs: &[Sync], ask: impl Fn(&Sync) -> Verdict) -> usize {
    for (verdict, sync) in verdicts.iter_mut().zip(syncs) {
        let heard = ask(sync);
        if verdict.is_ok() {
            *verdict = heard;
        }
    }
    verdicts.iter().filter(|verdict| verdict.is_err()).count()
}

/// The verdict for callers that asked for a sync when `since` flushes of devices had failed. If a
/// flush of the file's device has failed since, it is an error: nobody can tell whether their data
/// was lost with that.
pub(crate) fn unless_lost(
    files: &Files,
    since: u64,
    (id, file, kind): (FileId, &File, Kind),
    verdict: Verdict,
) -> Verdict {
    verdict.and_then(|()| match files.lost_since(id, since) {
        Some(failure) => Err(error(id, file, kind, &failure)),
        None => Ok(()),
    })
}

pub(crate) fn error(id: FileId, file: &File, kind: Kind, failure: &Failure) -> DurabilityError {
    let errno = failure.error.raw_os_error().unwrap_or(0);
    let refused = match id.is {
        Is::Other => matches!(errno, libc::EINVAL | libc::EBADF),
        // EINVAL may be the result of a write-back, which is reported once; or the kernel has no
        // such operation for the file, as for files of /proc.
        _ => errno == libc::EINVAL && rustix::fs::fsync(file) == Err(rustix::io::Errno::INVAL),
    };
    DurabilityError {
        file: name(id, file),
        // Anywhere, if the file's length cannot even be asked.
        range: 0..file.metadata().map_or(u64::MAX, |metadata| metadata.len()),
        operation: failure.operation,
        errno,
        reason: failure.error.to_string().into(),
        kind,
        first_seen: SystemTime::now(),
        id,
        loss: if refused { Loss::Refused } else { Loss::Data },
    }
}

/// What the file is called, as far as the system tells.
fn name(id: FileId, file: &File) -> String {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if let Ok(path) = link {
            return path.display().to_string();
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    format!("inode {} of device {}", id.inode, id.device)
}
