//! The work itself: syncs a file, or a filesystem with a verdict for each file.

use std::fs::File;
use std::time::SystemTime;

use crate::commits::Commits;
use crate::durable::Kind;
use crate::entry::Sync;
use crate::error::{DurabilityError, Loss};
use crate::file_id::{FileId, Is};
use crate::files::Files;
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

/// Syncs a directory. XFS does so by its log alone, and once that has failed, for whomever, it says that all is well; but
/// nothing can be looked at there any more.
pub(crate) fn directory(system: &dyn System, file: &File, kind: Kind) -> Result<(), Failure> {
    system.sync(file, kind)?;
    FileId::of(file).map_err(|error| Failure { operation: "statx", error }).map(drop)
}

/// What becomes of a file that has been synced, or not.
pub(crate) fn verdict(system: &dyn System, sync: &Sync, synced: Result<(), Failure>) -> Verdict {
    let heard = synced.and(others(system, sync));
    heard.map_err(|failure| error(sync.id, &sync.file, sync.kind, &failure))
}

/// Asks all of them, whatever one says: what is not heard now is heard by a later sync, of other data.
fn others(system: &dyn System, sync: &Sync) -> Result<(), Failure> {
    let ask = |other| {
        // A filesystem over another one, or in user space, may tell by a sync alone.
        if sync.is_known { system.check(other) } else { system.sync(other, sync.kind) }
    };
    sync.others.iter().map(|other| ask(other)).fold(Ok(()), Result::and)
}

/// What came of a commit.
pub(crate) struct Committed {
    pub(crate) verdicts: Vec<Verdict>,
    /// This program may not commit filesystems: its files were synced one by one.
    pub(crate) is_forbidden: bool,
    /// How the flush of the device failed. Nobody can tell whose data that was: all have failed.
    pub(crate) lost: Option<Failure>,
}

impl Committed {
    fn of(verdicts: Vec<Verdict>) -> Self {
        Self { verdicts, is_forbidden: false, lost: None }
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
    // Each file knows of its own data.
    let lost_data = hear(&mut verdicts, syncs, check);
    if let Err(failure) = committed {
        // Then nothing has been begun.
        let is_forbidden = matches!(failure.error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
        let is_no_flush = is_forbidden || is_for_want_of_space(&failure);
        let is_a_strangers =
            || plain.is_some() && witness.is_some_and(|saw_data_fail| saw_data_fail());
        // What nobody's data explains was the flush, or the journal: their first failure may be all that is
        // heard of it. Of XFS each sync of a plain file hears of them,
        let is_told = lost_data > 0 || is_no_flush || tells_of_data || is_a_strangers();
        // and that is nobody's data either.
        let mut has_heard = || hear(&mut verdicts, syncs, |sync| one(system, sync)) > lost_data;
        let is_lost = !is_told || (has_heard() && !is_no_flush);
        let lost = is_lost.then_some(failure);
        return Committed { is_forbidden, lost, ..Committed::of(verdicts) };
    }
    // `DURABLE-4`
    if commits == Commits::Flushed {
        return Committed::of(verdicts);
    }
    // By a plain file, since XFS only forces its log for a directory.
    let flushed = system.flush_device(&plain.unwrap_or(first).file);
    let is_no_flush = flushed.as_ref().is_err_and(is_for_want_of_space);
    if is_no_flush {
        // Of what was written to that file meanwhile: each has a flush of his own, then.
        hear(&mut verdicts, syncs, |sync| one(system, sync));
    }
    let lost = flushed.err().filter(|_| !is_no_flush);
    Committed { lost, ..Committed::of(verdicts) }
}

/// Some data found no place: of a flush there is nothing to be told by that.
fn is_for_want_of_space(failure: &Failure) -> bool {
    matches!(failure.error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Asks each, and keeps what it hears, since nobody hears it again. How many have failed by now.
fn hear(verdicts: &mut [Verdict], syncs: &[Sync], ask: impl Fn(&Sync) -> Verdict) -> usize {
    for (verdict, sync) in verdicts.iter_mut().zip(syncs) {
        let heard = ask(sync);
        if verdict.is_ok() {
            *verdict = heard;
        }
    }
    verdicts.iter().filter(|verdict| verdict.is_err()).count()
}

/// What becomes of a sync for those who have asked since so many flushes of devices had failed: where one of
/// its device has failed since, nobody can tell whether their data was with that.
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
        // This may be what a write-back came to, which is told once; or the kernel has no such operation for it, as
        // for files of /proc.
        _ => errno == libc::EINVAL && rustix::fs::fsync(file) == Err(rustix::io::Errno::INVAL),
    };
    DurabilityError {
        file: name(id, file),
        // Of a file that cannot even be asked: anywhere.
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
