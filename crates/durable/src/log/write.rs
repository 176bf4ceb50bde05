//! Writes to the last segment of a log, and begins another. Only for the thread that leads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::io::Errno;

use super::folder::{is_full, opens_none};
use super::format::{self, Header};
use super::lead::Shared;
use crate::durable::Kind;
use crate::engine::commit;
use crate::error::{DurabilityError, Loss};
use crate::sync::lock;
use crate::synced::Outcome;
use crate::system::Failure;

/// How much space is made ready at a time, in bytes. Guessed: a few hundred flushes.
const PREALLOCATE: u64 = 1 << 20;

/// The end of the last segment.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    pub(super) file: Arc<File>,
    /// Where the durable records end.
    pub(super) end: u64,
    /// Up to where there is space whose allocation is durable.
    pub(super) allocated: u64,
}

/// What is done besides the write.
pub(super) struct Plan {
    pub(super) begins: Option<Header>,
    /// The end of the segment before the new one. (That one may go, and its seal with it.)
    pub(super) seals: Option<Tail>,
    /// The segments to be removed, by their first records.
    pub(super) removes: Vec<u64>,
    /// The outcome of the removal, if callers wait for it.
    pub(super) cut: Option<Arc<Outcome>>,
    /// The first record that was kept before.
    pub(super) kept: u64,
}

/// What came of a write that failed, if at all, only for want of room.
pub(super) enum Written {
    All,
    /// There was no room for the records, but the segment that was to begin has begun.
    HeaderAlone(DurabilityError),
}

impl Shared {
    /// Does what is planned, with these records.
    pub(super) fn carry_out(
        &self,
        plan: &Plan,
        bytes: &[u8],
        tail: &mut Tail,
    ) -> Result<Written, DurabilityError> {
        let system = &*self.engine.system;
        let of_folder = |failure: &Failure, loss| {
            commit::error(self.id, &self.folder.file, Kind::All, failure).with(loss)
        };
        let Some(header) = &plan.begins else {
            if !bytes.is_empty() {
                self.write(bytes, tail)?;
            }
            return Ok(Written::All);
        };
        // Spare segments are only for cuts: if appending used them up, nothing would be left to cut
        // the log off with.
        let cuts = !plan.removes.is_empty();
        let names = lock(&self.names);
        let mut made = self.folder.make(system, header, bytes, cuts);
        let mut written = Written::All;
        if let Err(failure) = &made
            && cuts
            && is_full(&failure.error)
        {
            // The cut gives room for the records, so the segment begins without them.
            written = Written::HeaderAlone(of_folder(failure, Loss::NoRoom));
            made = self.folder.make(system, header, &[], true);
        }
        *tail = made.map_err(|failure| {
            let none = is_full(&failure.error) || opens_none(&failure.error);
            of_folder(&failure, if none { Loss::NoRoom } else { Loss::Records })
        })?;
        if let Err(failure) = self.folder.name(system, header) {
            if !is_full(&failure.error) {
                return Err(of_folder(&failure, Loss::Records));
            }
            drop(names);
            // A spare segment may have been taken for this one.
            self.make_spares();
            return Err(of_folder(&failure, Loss::NoRoom));
        }
        let named = self.folder.sync(system);
        named.map_err(|failure| of_folder(&failure, Loss::Records))?;
        drop(names);
        if !cuts {
            self.make_spares();
        }
        Ok(written)
    }

    /// Notes in the segment before that another one follows. That need not be durable: it only
    /// helps to find out if the other one is ever lost.
    pub(super) fn seal(&self, plan: &Plan) {
        if let (Some(begins), Some(before)) = (&plan.begins, &plan.seals) {
            let seal = format::seal(self.log, begins.first);
            let _ = self.engine.system.write(&before.file, &seal, before.end);
        }
    }

    pub(super) fn make_spares(&self) {
        let _names = lock(&self.names);
        self.folder.make_spares(self.segment_length);
    }

    fn write(&self, bytes: &[u8], tail: &mut Tail) -> Result<(), DurabilityError> {
        let system = &*self.engine.system;
        let file = Arc::clone(&tail.file);
        let failed = |failure: Failure, loss| {
            Err(commit::error(self.id, &file, Kind::Data, &failure).with(loss))
        };
        let after = tail.end + bytes.len() as u64;
        match system.write(&file, bytes, tail.end) {
            Err(failure) if is_full(&failure.error) => {
                // A part may have been written, which takes what is left of the room. A crash may
                // bring it back.
                let _ = file.set_len(tail.end);
                return failed(failure, Loss::NoRoom);
            }
            written => written.or_else(|failure| failed(failure, Loss::Records))?,
        }
        if after > tail.allocated {
            let zeroes = PREALLOCATE.min(self.segment_length.saturating_sub(after));
            tail.allocated = after + zeroes;
            match system.write(&file, &vec![0; zeroes as usize], after) {
                // There was room for the records. Others may need what is left.
                Err(Failure { error, .. }) if is_full(&error) => _ = file.set_len(after),
                written => written.or_else(|failure| failed(failure, Loss::Records))?,
            }
        }
        system.sync(&file, Kind::Data).or_else(|failure| failed(failure, Loss::Records))?;
        has_name(&file).or_else(|errno| {
            let failure = Failure { operation: "fstat", error: errno.into() };
            failed(failure, lost_without_name(errno))
        })?;
        tail.end = after;
        Ok(())
    }
}

/// Fails if the segment has no name any more: nobody will find there what was written.
fn has_name(file: &File) -> Result<(), Errno> {
    if rustix::fs::fstat(file)?.st_nlink > 0 {
        return Ok(());
    }
    // There are filesystems that do not count names. The kernel knows whether this one is gone.
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let is_gone = link.map_or(true, |path| path.as_os_str().as_bytes().ends_with(b" (deleted)"));
    if is_gone { Err(Errno::NOENT) } else { Ok(()) }
}

/// What is lost if that fails. A disk that does not answer may still have all of it.
fn lost_without_name(errno: Errno) -> Loss {
    match errno {
        Errno::NOENT | Errno::STALE => Loss::Removed,
        _ => Loss::Records,
    }
}
