//! What all handles of a cache share, and how a request finds its way to the shards.

use std::ops::Range;
use std::sync::{Arc as StdArc, Weak};

use super::background::{Background, Service};
use super::error::FileError;
use super::files::{FileState, Files};
use super::group::{Counters, GroupState, GroupStats};
use super::orphans::Orphans;
use super::shard::{Shard, Skims};
use super::sizing::Sizing;
use super::table::Table;
use crate::claims::trim;
use crate::habits::Habits;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Arc, Mutex, RwLock, ThreadId, lock};

/// How many consecutive pages of a file lie in one shard. This is also the longest run that is read
/// or written at once: 256 KiB with pages of 4 KiB.
pub(super) const CHUNK: u64 = 64;

/// The initial maximum number of bytes to read ahead at a time.
const AHEAD_MAX: usize = 1 << 20;

pub(super) struct Core {
    pub(super) sizing: Sizing,
    pub(super) shards: Box<[Shard]>,
    pub(super) habits: Arc<Habits>,
    pub(super) files: RwLock<Files>,
    pub(super) orphans: Orphans,
    /// Indexed by number.
    groups: Mutex<Vec<Option<StdArc<GroupState>>>>,
    /// The statistics of groups that are gone.
    pub(super) departed: Mutex<GroupStats>,
    pub(super) background: Box<dyn Background>,
    pub(super) service: StdArc<Service>,
    pub(super) this: Weak<Core>,
    /// The size in bytes, as set.
    pub(super) bytes: AtomicUsize,
    /// Held while the size is changed.
    pub(super) resizing: Mutex<()>,
    /// The thread that is changing the size. It asks for jobs meanwhile, and code that it calls for
    /// that must not change the size.
    pub(super) resizer: Mutex<Option<ThreadId>>,
    /// The largest size that may be set.
    pub(super) bytes_max: AtomicUsize,
    /// Frames of all shards.
    pub(super) pages: AtomicUsize,
    /// Hundredths of the cache that a group may have dirty: the target, and the trigger from which
    /// on writers have to write back as much as they write. See [`Core::dirty_shares`].
    dirty_shares: AtomicUsize,
    /// Where the next search through all shards begins.
    pub(super) next_shard: AtomicUsize,
    /// Whether pages are read ahead for readers in order, and at most how many bytes.
    pub(super) reads_ahead: AtomicBool,
    pub(super) ahead_max: AtomicUsize,
}

/// A part of a request that lies in one chunk.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Where it begins in the file.
    pub(super) offset: u64,
    /// Its bytes in the buffer of the request.
    pub(super) bytes: Range<usize>,
}

impl Core {
    pub(super) fn new(
        this: &Weak<Self>,
        bytes: usize,
        sizing: Sizing,
        tables: Vec<Table>,
        background: Box<dyn Background>,
    ) -> Self {
        let pages = tables.iter().map(Table::frame_count).sum();
        Self {
            sizing,
            shards: tables.into_iter().map(Shard::new).collect(),
            habits: Habits::following(pages, sizing.sample, sizing.apart),
            files: RwLock::new(Files::default()),
            orphans: Orphans::default(),
            groups: Mutex::new(Vec::new()),
            departed: Mutex::new(GroupStats::default()),
            service: StdArc::new(Service::default()),
            background,
            this: Weak::clone(this),
            bytes: AtomicUsize::new(bytes),
            resizing: Mutex::new(()),
            resizer: Mutex::new(None),
            bytes_max: AtomicUsize::new(usize::MAX),
            pages: AtomicUsize::new(pages),
            dirty_shares: AtomicUsize::new(together((5, 20))),
            next_shard: AtomicUsize::new(0),
            reads_ahead: AtomicBool::new(true),
            ahead_max: AtomicUsize::new(AHEAD_MAX),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    pub(super) fn page_size(&self) -> usize {
        self.sizing.page_size
    }

    pub(super) fn page_of(&self, offset: u64) -> u64 {
        offset >> self.page_size().ilog2()
    }

    pub(super) fn offset_of(&self, page: u64) -> u64 {
        page << self.page_size().ilog2()
    }

    /// The pages that a range touches.
    pub(super) fn pages_of(&self, offset: u64, length: u64) -> Range<u64> {
        match length {
            0 => 0..0,
            _ => self.page_of(offset)..self.page_of(offset + length - 1) + 1,
        }
    }

    /// The bytes of these pages of a file, whose last page may be short.
    pub(super) fn bytes_of(&self, file: &FileState, pages: &Range<u64>) -> usize {
        (self.offset_of(pages.end).min(file.size) - self.offset_of(pages.start)) as usize
    }

    /// The shard of a page. Pages of a chunk share one; the chunks of a file go round the shards.
    pub(super) fn shard_of(&self, file: &FileState, page: u64) -> &Shard {
        &self.shards[self.shard_number(file, page)]
    }

    pub(super) fn shard_number(&self, file: &FileState, page: u64) -> usize {
        ((page / CHUNK).wrapping_add(file.start) % self.shards.len() as u64) as usize
    }

    /// The reads without a trace of a file in the shard of this page.
    pub(super) fn skims_of<'a>(&self, file: &'a FileState, page: u64) -> &'a Skims {
        let all = || self.shards.iter().map(|_| Skims::default()).collect();
        &file.skims.get_or_init(all)[self.shard_number(file, page)]
    }

    /// Cuts a request at the borders of chunks.
    pub(super) fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = Piece> + use<> {
        let chunk = CHUNK << self.page_size().ilog2();
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let end = (done as u64 + chunk - at % chunk).min(length as u64) as usize;
            let piece = Piece { offset: at, bytes: done..end };
            done = end;
            (!piece.bytes.is_empty()).then_some(piece)
        })
    }

    pub(super) fn check_range(file: &FileState, offset: u64, length: u64) -> Result<(), FileError> {
        match offset.checked_add(length) {
            Some(end) if end <= file.size => Ok(()),
            _ => Err(FileError::OutOfRange { offset, length, size: file.size }),
        }
    }

    /// Reports requests to the clock, in batches. Call this without a lock.
    pub(super) fn passed(&self, shard: &Shard, requests: u32) {
        let batch = self.habits.batch().max(1);
        let before = shard.requests.fetch_add(requests, Relaxed);
        let batches = (before % batch + requests) / batch;
        if batches > 0 {
            self.habits.passed((batches * batch) as u64);
            self.try_orphans();
        }
    }

    /// Counts a page that was used past the cache. The clock has to count it, too: otherwise pages
    /// that keep others out would do so forever.
    pub(super) fn bypassed(&self, shard: &Shard, file: &FileState) {
        Counters::add(&file.group.counters.misses, 1);
        Counters::add(&file.group.counters.bypasses, 1);
        self.passed(shard, 1);
    }

    pub(super) fn add_group(&self, group: impl FnOnce(usize) -> GroupState) -> StdArc<GroupState> {
        let mut groups = lock(&self.groups);
        let free = groups.iter().position(Option::is_none);
        let number = free.unwrap_or(groups.len());
        let group = StdArc::new(group(number));
        self.habits.add_group(number);
        match groups.get_mut(number) {
            Some(place) => *place = Some(StdArc::clone(&group)),
            None => groups.push(Some(StdArc::clone(&group))),
        }
        group
    }

    pub(super) fn groups(&self) -> Vec<StdArc<GroupState>> {
        lock(&self.groups).iter().flatten().cloned().collect()
    }

    #[cfg(feature = "control")]
    pub(super) fn group_named(&self, name: &str) -> Option<StdArc<GroupState>> {
        lock(&self.groups).iter().flatten().find(|group| group.name == name).cloned()
    }

    /// Whether it is a group of this cache.
    pub(super) fn knows(&self, group: &StdArc<GroupState>) -> bool {
        let groups = lock(&self.groups);
        let known = groups.get(group.number).and_then(Option::as_ref);
        known.is_some_and(|known| StdArc::ptr_eq(known, group))
    }

    /// Removes a group that has no open file, and so no pages that anybody uses. Returns whether it
    /// was there.
    pub(super) fn forget_group(&self, group: &StdArc<GroupState>) -> bool {
        if !self.knows(group) {
            return false;
        }
        let hits = self.hits(group);
        for shard in &self.shards {
            shard.write().remove_group(group);
        }
        // From here on, another group may get its number.
        let mut departed = lock(&self.departed);
        departed.add(group.stats(hits));
        let mut groups = lock(&self.groups);
        self.habits.forget_group(group.number);
        groups[group.number] = None;
        while let Some(None) = groups.last() {
            groups.pop();
        }
        trim(&mut groups);
        true
    }

    /// The shares of the cache that a group may have dirty, in hundredths: target and trigger.
    pub(super) fn dirty_shares(&self) -> (usize, usize) {
        apart(self.dirty_shares.load(Relaxed))
    }

    /// Sets both shares at once to what `change` makes of them. If it returns `None` they stay, and
    /// are returned as the error.
    pub(super) fn set_dirty_shares(
        &self,
        change: impl Fn((usize, usize)) -> Option<(usize, usize)>,
    ) -> Result<(), (usize, usize)> {
        let change = |both| change(apart(both)).map(together);
        self.dirty_shares.fetch_update(Relaxed, Relaxed, change).map(|_| ()).map_err(apart)
    }

    /// How many pages of a group may be dirty, for a share in hundredths of the cache or of the
    /// group's `max`.
    pub(super) fn dirty_limit(&self, group: &GroupState, hundredths: usize) -> usize {
        let pages = self.pages.load(Relaxed).min(group.max());
        pages * hundredths / 100
    }

    /// Hits of a group.
    pub(super) fn hits(&self, group: &GroupState) -> u64 {
        let hits = |shard: &Shard| {
            let table = shard.read();
            let local = table.known_local(group).map(|local| &table.locals[local]);
            // The number may be another group's by now.
            let own = local.filter(|local| std::ptr::eq(&raw const *local.group, group));
            own.map_or(0, |local| local.hits.load(Relaxed))
        };
        group.counters.hits.load(Relaxed) + self.shards.iter().map(hits).sum::<u64>()
    }
}

/// Two shares in hundredths as one number.
fn together((target, trigger): (usize, usize)) -> usize {
    target << 8 | trigger
}

fn apart(both: usize) -> (usize, usize) {
    (both >> 8, both & 0xff)
}
