//! A file that is being synced, waits to be synced, or has failed. Pure, except for questions about
//! a descriptor.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::durable::Kind;
use crate::error::DurabilityError;
use crate::file_id::FileId;
use crate::gather::Gather;
#[cfg(target_os = "linux")]
pub(crate) use crate::range::is_of;
use crate::synced::Outcome;

/// A sync that is to come, or under way.
#[derive(Debug)]
pub(crate) struct Sync {
    pub(crate) id: FileId,
    /// The asker's description: one of those who share it.
    pub(crate) file: Arc<File>,
    pub(crate) kind: Kind,
    pub(crate) outcome: Arc<Outcome>,
    /// When it was asked for first, and how often since.
    pub(crate) asked_at: Instant,
    pub(crate) askers: u64,
    /// Callers who would ask again: of a batch its first file has one, if that is no bulk.
    pub(crate) callers: usize,
    /// Other descriptions of it that somebody has asked for: each hears of errors by itself.
    pub(crate) others: Vec<Arc<File>>,
    /// The number that its first asker knew `file` by,
    pub(crate) number: Option<RawFd>,
    /// and those of the others, with their places among them.
    numbers: BTreeMap<RawFd, usize>,
    /// It was one of those that waited when a wave began.
    pub(crate) in_wave: bool,
    /// What went wrong as its write-back began.
    pub(crate) heard: Option<Box<DurabilityError>>,
    /// What its filesystem does is known.
    pub(crate) is_known: bool,
    /// Flushes of devices that had failed when it was asked for first.
    pub(crate) since: u64,
}

impl Sync {
    /// Of one asker.
    pub(crate) fn new(id: FileId, file: Arc<File>, kind: Kind) -> Self {
        Self {
            id,
            file,
            kind,
            outcome: Arc::default(),
            asked_at: Instant::now(),
            askers: 1,
            callers: 0,
            others: Vec::new(),
            number: None,
            numbers: BTreeMap::new(),
            in_wave: false,
            heard: None,
            is_known: false,
            since: 0,
        }
    }

    /// Whether what has this number now is one of its descriptions. It need not be the one that had it
    /// before: that may have been closed, and another one duplicated, which has heard of other errors.
    pub(crate) fn knows(&self, number: RawFd) -> bool {
        let other = self.numbers.get(&number).map(|place| &self.others[*place]);
        let first = (self.number == Some(number)).then_some(&self.file);
        first.into_iter().chain(other).any(|file| is_of(file, number))
    }

    /// One more description, which its asker knows by this number.
    pub(crate) fn learn(&mut self, number: RawFd, other: Arc<File>) {
        self.numbers.insert(number, self.others.len());
        self.others.push(other);
    }
}

/// Elsewhere the system does not tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_of(file: &File, number: RawFd) -> bool {
    std::os::fd::AsRawFd::as_raw_fd(file) == number
}

/// How a file failed, and a description of it.
pub(crate) type Failed = (DurabilityError, Option<Arc<File>>);

/// Who syncs a file now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    #[default]
    Nobody,
    /// A worker, or a caller for whom it was free.
    Turn,
    /// Somebody who had a claim to the next turn.
    Claim,
}

/// One file. Small, since there are thousands.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// While it is being synced, what was asked for since has to wait.
    pub(crate) by: By,
    pub(crate) next: Option<Box<Sync>>,
    /// `next` is one of those that wait in its filesystem.
    pub(crate) is_ready: bool,
    /// So many wait to sync it themselves, once nobody does: every other turn is theirs.
    pub(crate) claims: u32,
    /// Who asks again and again for this one file: see `gather`.
    known: Option<Box<Gather>>,
    /// `next` waits for those of the last sync, since it had so many.
    gathers: Option<usize>,
    /// Kept with the description that heard of it, unless the process was out of them: its inode is not used for
    /// another file.
    pub(crate) failed: Option<Box<Failed>>,
}

impl Entry {
    /// Whether nothing is wanted of it, nor kept.
    pub(crate) fn is_idle(&self) -> bool {
        let kept = self.failed.is_some() || self.known.is_some() || self.gathers.is_some();
        self.is_free() && self.next.is_none() && !kept
    }

    /// Whether nobody syncs it, nor has a claim to.
    pub(crate) fn is_free(&self) -> bool {
        self.by == By::Nobody && self.claims == 0
    }

    /// Whether what waits for it can begin now, where the last turn was of these.
    pub(crate) fn can_begin(&self, last: By) -> bool {
        let is_turn = self.claims == 0 || last == By::Claim;
        let waits = self.next.is_some() && !self.is_ready && self.gathers.is_none();
        waits && is_turn && self.by == By::Nobody
    }

    /// A sync for so many has ended. Whether it is known from now on that several ask for it, if that has
    /// changed.
    pub(crate) fn note_ended(&mut self, askers: usize, took: Duration) -> Option<bool> {
        let waiting = self.waiting();
        let (was, is) = (self.known.is_some(), askers + waiting > 1);
        if is {
            self.known.get_or_insert_default().ended(took, Instant::now(), askers, waiting);
        } else {
            self.known = None;
        }
        (was != is).then_some(is)
    }

    /// That is forgotten.
    pub(crate) fn forget_known(&mut self) {
        self.known = None;
    }

    /// Whether a sync of so many would wait for those who had the last one.
    pub(crate) fn would_gather(&self, askers: usize) -> bool {
        self.known.as_ref().is_some_and(|known| known.would_begin(askers, Instant::now()))
    }

    /// What waits for it waits for those who had the last sync, too, if that is worth it: for how long at most.
    pub(crate) fn begin_gather(&mut self) -> Option<Duration> {
        let waiting = self.waiting();
        let limit = self.known.as_mut()?.begin(waiting, Instant::now())?;
        self.gathers = Some(waiting);
        Some(limit)
    }

    /// Whether it does, and all have come.
    pub(crate) fn has_just_gathered(&self) -> bool {
        self.gathers.is_some() && self.has_gathered()
    }

    /// Whether it need not, any longer.
    pub(crate) fn has_gathered(&self) -> bool {
        let known = self.known.as_ref().filter(|_| self.gathers.is_some() && self.next.is_some());
        known.is_none_or(|known| self.waiting() >= known.expected)
    }

    /// It does not.
    pub(crate) fn end_gather(&mut self) {
        let waiting = self.waiting();
        if let (Some(came), Some(known)) = (self.gathers.take(), &mut self.known) {
            known.over(waiting.saturating_sub(came));
        }
    }

    /// Those who wait for the next one.
    fn waiting(&self) -> usize {
        self.next.as_ref().map_or(0, |next| next.askers as usize)
    }
}
