//! The work itself: syncing a file, or a filesystem with a verdict for each file.

use std::fs::File;
use std::time::SystemTime;

use crate::commits::Commits;
use crate::durable::Kind;
use crate::error::DurabilityError;
use crate::file_id::{FileId, Is};
use crate::files::{Files, Sync};
use crate::synced::Verdict;
use crate::system::{Failure, System};

/// Syncs one file by itself, and asks its other descriptions what they have heard.
pub(crate) fn one(system: &dyn System, sync: &Sync) -> Verdict {
    verdict(system, sync, system.sync(&sync.file, sync.kind))
}

/// What becomes of a file that has been synced, or not.
pub(crate) fn verdict(system: &dyn System, sync: &Sync, synced: Result<(), Failure>) -> Verdict {
    let checked = synced.and_then(|()| others(system, sync));
    checked.map_err(|failure| error(sync.id, &sync.file, sync.kind, &failure))
}

fn others(system: &dyn System, sync: &Sync) -> Result<(), Failure> {
    sync.others.iter().try_for_each(|other| {
        // A filesystem over another one, or in user space, may tell by a sync alone.
        if sync.is_known { system.check(other) } else { system.sync(other, sync.kind) }
    })
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
    let check = |sync: &Sync| {
        let checked = system.check(&sync.file).and_then(|()| others(system, sync));
        checked.map_err(|failure| error(sync.id, &sync.file, sync.kind, &failure))
    };
    let mut verdicts: Vec<Verdict> = vec![Ok(()); syncs.len()];
    // What a check hears of nobody hears again, so it is kept.
    let mut heard = |check: &dyn Fn(&Sync) -> Verdict| {
        for (verdict, sync) in verdicts.iter_mut().zip(syncs) {
            let checked = check(sync);
            if verdict.is_ok() {
                *verdict = checked;
            }
        }
    };
    if early {
        heard(&|sync| {
            let began = system.begin_write_back(&sync.file);
            began.map_err(|failure| error(sync.id, &sync.file, sync.kind, &failure))
        });
        heard(&check);
    }
    if let Err(failure) = system.sync_filesystem(&first.file) {
        // Of whose data nobody can tell: each file knows of its own.
        heard(&|sync| one(system, sync));
        // But for the flush, or the journal: their first failure may be all that is heard of it.
        let is_told = verdicts.iter().any(Verdict::is_err);
        let errno = failure.error.raw_os_error();
        let is_no_space = matches!(errno, Some(libc::ENOSPC | libc::EDQUOT));
        // Then nothing has been begun.
        let is_forbidden = matches!(errno, Some(libc::EPERM | libc::ENOSYS));
        if commits != Commits::ThenFlush && !is_told && !is_no_space && !is_forbidden {
            return Committed { lost: Some(failure), ..Committed::of(verdicts) };
        }
        return Committed { is_forbidden, ..Committed::of(verdicts) };
    }
    heard(&check);
    // `DURABLE-4`
    if commits == Commits::Flushed {
        return Committed::of(verdicts);
    }
    // By a plain file, since XFS only forces its log for a directory.
    let plain = syncs.iter().find(|sync| sync.id.is == Is::Plain);
    let lost = system.flush_device(&plain.unwrap_or(first).file).err();
    Committed { lost, ..Committed::of(verdicts) }
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
        // Of a file these may be what its write-back came to.
        refused: id.is == Is::Other && matches!(errno, libc::EINVAL | libc::EBADF),
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
