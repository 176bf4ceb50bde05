//! A file that is being synced, or waits to be. Pure, except for questions about a descriptor.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::durable::Kind;
use crate::error::DurabilityError;
use crate::files::file_id::FileId;
use crate::files::gather::Gather;
use crate::synced::Outcome;
#[cfg(target_os = "linux")]
pub(crate) use crate::system::range::is_of;

/// A sync that is to come, or under way.
#[derive(Debug)]
pub(crate) struct Sync {
    pub(crate) id: FileId,
    /// The first asker's description.
    pub(crate) file: Arc<File>,
    pub(crate) kind: Kind,
    pub(crate) outcome: Arc<Outcome>,
    /// When it was asked for first, and how often altogether.
    pub(crate) asked_at: Instant,
    pub(crate) askers: u64,
    /// How many callers may ask again. A batch that is no bulk counts as one, at its first file.
    pub(crate) callers: usize,
    /// Other descriptions through which the file was asked for: each hears of errors by itself.
    pub(crate) others: Vec<Arc<File>>,
    /// The number that the first asker knew `file` by.
    pub(crate) number: Option<RawFd>,
    /// The numbers of `others`, with their places there.
    numbers: BTreeMap<RawFd, usize>,
    /// It waited when a wave began, and so is part of it.
    pub(crate) in_wave: bool,
    /// What went wrong as its write-back began.
    pub(crate) heard: Option<Box<DurabilityError>>,
    /// It is known what its filesystem does: that it can be committed.
    pub(crate) is_known: bool,
    /// How many flushes of devices had failed when it was asked for first.
    pub(crate) since: u64,
}

impl Sync {
    /// A sync with one asker.
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

    /// Whether `number` now refers to one of its descriptions. The description that had the number
    /// before may have been closed, and another one duplicated, which has heard of other errors.
    pub(crate) fn knows(&self, number: RawFd) -> bool {
        let other = self.numbers.get(&number).map(|place| &self.others[*place]);
        let first = (self.number == Some(number)).then_some(&self.file);
        first.into_iter().chain(other).any(|file| is_of(file, number))
    }

    /// Adds a description, which its asker knows by this number.
    pub(crate) fn learn(&mut self, number: RawFd, other: Arc<File>) {
        self.numbers.insert(number, self.others.len());
        self.others.push(other);
    }
}

/// Only Linux tells which description a descriptor refers to; elsewhere the numbers are compared.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_of(file: &File, number: RawFd) -> bool {
    std::os::fd::AsRawFd::as_raw_fd(file) == number
}

/// Who syncs a file now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    #[default]
    Nobody,
    /// A worker, or a caller that found the file free.
    Turn,
    /// A caller that had a claim to the next turn.
    Claim,
}

/// One file. Small, since there are thousands.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Who syncs it now. Until that has ended, what was asked for since has to wait.
    pub(crate) by: By,
    pub(crate) next: Option<Box<Sync>>,
    /// `next` waits in the queue of its filesystem, and can begin.
    pub(crate) is_ready: bool,
    /// How many callers wait to sync it themselves, once nobody does: every other turn is theirs.
    pub(crate) claims: u32,
    /// What is known of callers that ask for this one file again and again: see `gather`.
    known: Option<Box<Gather>>,
    /// `next` is put off until the callers of the last sync have come. This many waited for it when
    /// that began.
    gathers: Option<usize>,
}

impl Entry {
    /// Whether nothing is wanted of the file, and nothing is kept for it.
    pub(crate) fn is_idle(&self) -> bool {
        let kept = self.known.is_some() || self.gathers.is_some();
        self.is_free() && self.next.is_none() && !kept
    }

    /// Whether nobody syncs the file, or has a claim to.
    pub(crate) fn is_free(&self) -> bool {
        self.by == By::Nobody && self.claims == 0
    }

    /// Whether `next` can begin now. `last` is who had the last turn.
    pub(crate) fn can_begin(&self, last: By) -> bool {
        let is_turn = self.claims == 0 || last == By::Claim;
        let waits = self.next.is_some() && !self.is_ready && self.gathers.is_none();
        waits && is_turn && self.by == By::Nobody
    }

    /// Notes that a sync for this many askers has ended. Returns whether several callers are known
    /// to ask for the file from now on, if that has changed.
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

    /// Forgets what is known of the callers.
    pub(crate) fn forget_known(&mut self) {
        self.known = None;
    }

    /// Whether a sync for this many askers would wait for the callers of the last one.
    pub(crate) fn would_gather(&self, askers: usize) -> bool {
        self.known.as_ref().is_some_and(|known| known.would_begin(askers, Instant::now()))
    }

    /// Puts `next` off until the callers of the last sync have come, if that is worth it. Returns
    /// for how long at most.
    pub(crate) fn begin_gather(&mut self) -> Option<Duration> {
        let waiting = self.waiting();
        let limit = self.known.as_mut()?.begin(waiting, Instant::now())?;
        self.gathers = Some(waiting);
        Some(limit)
    }

    /// Whether `next` is put off and all callers have come.
    pub(crate) fn has_just_gathered(&self) -> bool {
        self.gathers.is_some() && self.has_gathered()
    }

    /// Whether `next` need not be put off any longer.
    pub(crate) fn has_gathered(&self) -> bool {
        let known = self.known.as_ref().filter(|_| self.gathers.is_some() && self.next.is_some());
        known.is_none_or(|known| self.waiting() >= known.expected)
    }

    /// Ends the putting off of `next`.
    pub(crate) fn end_gather(&mut self) {
        let waiting = self.waiting();
        if let (Some(came), Some(known)) = (self.gathers.take(), &mut self.known) {
            known.over(waiting.saturating_sub(came));
        }
    }

    /// How many callers wait for `next`.
    fn waiting(&self) -> usize {
        self.next.as_ref().map_or(0, |next| next.askers as usize)
    }
}
