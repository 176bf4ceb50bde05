//! Groups of files that share the cache: what each may have, what it has, and what it did.

use std::sync::{Arc, Weak};

use homing_mglru::density::Swappiness;

use super::background::Service;
use super::core::Core;
use super::prefetch::Wanted;
use crate::limits::{Claim, Limits};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

/// Files that are served together, such as those of a tenant or of an export.
///
/// The more a group has of what it may have, the sooner its pages go: first those of groups that
/// have more than `max`, then more than `high`, `low`, and `min`. What a group has within `min` is
/// not taken for other groups. A group stays until it is [removed](super::PageCache::remove_group).
/// It takes 1 to 20 KiB of the cache in each shard where it has pages. If there is no room for
/// that, its reads and writes go past the cache.
///
/// Mostly the background takes pages. A request that finds no free frame takes one itself, perhaps
/// another group's, if that is clean; it never waits for another group's disk. A group that has
/// reached its `max` gives up one of its own pages within each request that brings one in.
///
/// The cache learns from a group's own requests what its pages are worth, so a group that only ever
/// reads on does not affect what is learnt about the others. It learns about the first groups
/// separately: one for each 16,384 pages that the cache was built with, up to eight. The last of
/// these and all further groups are learnt together.
///
/// ```
/// # use homing_cache::pages::PageCache;
/// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
/// # struct Disk(File);
/// # impl homing_cache::pages::Backing for Disk {
/// #     fn size(&self) -> u64 { 1 << 20 }
/// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
/// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
/// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
/// # }
/// # let temporary = tempfile::tempfile()?;
/// # temporary.set_len(1 << 20)?;
/// # let disk = Arc::new(Disk(temporary));
/// let cache = PageCache::builder(4 << 20).build()?;
/// let group = cache.group("tenant").build();
/// group.set_min(32 << 10); // never taken for others
/// group.set_low(64 << 10); // taken only if nobody has more than their `low`
/// group.set_high(96 << 10); // what is above goes before what others have below theirs
/// group.set_max(128 << 10); // it never gets more
/// group.set_swappiness(150); // gives dirty pages rather than clean ones
/// let file = cache.open(disk, &group)?;
/// (0..256).try_for_each(|page| file.read(page << 12, &mut [0; 4096]))?;
/// assert!(group.usage() <= 128 << 10);
/// assert_eq!((group.name(), group.dirty(), group.swappiness()), ("tenant", 0, 150));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Group(pub(super) Arc<GroupState>);

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) page_size: u64,
    /// Whether it goes with its last file.
    pub(super) passing: bool,
    /// In pages.
    limits: Limits,
    swappiness: AtomicU8,
    /// How many pages it has.
    pages: AtomicUsize,
    /// How many of these are dirty or being written.
    pub(super) unwritten: AtomicUsize,
    /// How many files it has open. Changed under the lock of all files.
    pub(super) files: AtomicUsize,
    /// How much its writers still have to write back, in 256ths of pages.
    pub(super) debt: AtomicU64,
    /// Set when its writers had to write back and nothing of it could be written. Cleared by the
    /// next write that succeeds.
    pub(super) stuck: AtomicBool,
    pub(super) counters: Counters,
    /// The cache, if there still is one.
    core: Weak<Core>,
    /// Its job that writes pages back.
    pub(super) writer: Arc<Service>,
    /// What is to be read for it in the background, and the job that does so.
    pub(super) wanted: Mutex<Wanted>,
    pub(super) reader: Arc<Service>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The hits in shards that have forgotten the group since.
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) bypasses: AtomicU64,
    pub(super) declined: AtomicU64,
    pub(super) skimmed: AtomicU64,
    pub(super) refaults: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) write_backs: AtomicU64,
    pub(super) write_back_errors: AtomicU64,
    pub(super) throttled: AtomicU64,
    pub(super) read_ahead: AtomicU64,
    pub(super) read_ahead_wasted: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }
}

/// What a group has and what it did, in bytes and pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats {
    /// Bytes of its pages.
    pub usage: u64,
    /// Bytes of these that are dirty or being written.
    pub dirty: u64,
    /// Requested pages that were in the cache. A value read while shards forget the group may be
    /// too low; it is right again at once.
    pub hits: u64,
    /// Requested pages that were not in the cache.
    pub misses: u64,
    /// Of the misses that were put in, pages remembered from before, because they had been evicted
    /// or declined.
    pub refaults: u64,
    /// Of the misses, pages read or written past the cache, because no frame was available, or
    /// because dirty pages cannot be written.
    pub bypasses: u64,
    /// Of the misses, pages that were not worth the frames of other pages, and were read past the
    /// cache.
    pub declined: u64,
    /// Of the declined pages, those of which nothing was remembered.
    pub skimmed: u64,
    /// Pages that had to leave.
    pub evictions: u64,
    /// Pages that were written back.
    pub write_backs: u64,
    /// Failed write-backs of pages; the pages stayed dirty.
    pub write_back_errors: u64,
    /// Times that a writer had to write pages back before it could go on.
    pub throttled: u64,
    /// Pages read before anybody asked for them.
    pub read_ahead: u64,
    /// Of these, pages that left before anybody asked for them.
    pub read_ahead_wasted: u64,
}

impl GroupStats {
    /// What the group did, by the names of the fields.
    #[cfg(any(feature = "control", feature = "metrics"))]
    pub(super) fn counters(self) -> [(&'static str, u64); 12] {
        // Named one by one, so that no new field is forgotten here.
        let Self {
            usage: _,
            dirty: _,
            hits,
            misses,
            refaults,
            bypasses,
            declined,
            skimmed,
            evictions,
            write_backs,
            write_back_errors,
            throttled,
            read_ahead,
            read_ahead_wasted,
        } = self;
        [
            ("hits", hits),
            ("misses", misses),
            ("refaults", refaults),
            ("bypasses", bypasses),
            ("declined", declined),
            ("skimmed", skimmed),
            ("evictions", evictions),
            ("write_backs", write_backs),
            ("write_back_errors", write_back_errors),
            ("throttled", throttled),
            ("read_ahead", read_ahead),
            ("read_ahead_wasted", read_ahead_wasted),
        ]
    }

    pub(super) fn add(&mut self, other: Self) {
        self.usage += other.usage;
        self.dirty += other.dirty;
        self.hits += other.hits;
        self.misses += other.misses;
        self.refaults += other.refaults;
        self.bypasses += other.bypasses;
        self.declined += other.declined;
        self.skimmed += other.skimmed;
        self.evictions += other.evictions;
        self.write_backs += other.write_backs;
        self.write_back_errors += other.write_back_errors;
        self.throttled += other.throttled;
        self.read_ahead += other.read_ahead;
        self.read_ahead_wasted += other.read_ahead_wasted;
    }
}

impl GroupState {
    fn new(
        core: Weak<Core>,
        name: String,
        number: usize,
        page_size: u64,
        limits: [u64; 4],
        passing: bool,
    ) -> Self {
        Self {
            name,
            number,
            page_size,
            passing,
            limits: Limits::new(limits.map(|bytes| bytes / page_size)),
            swappiness: AtomicU8::new(Swappiness::default().get()),
            pages: AtomicUsize::new(0),
            files: AtomicUsize::new(0),
            unwritten: AtomicUsize::new(0),
            debt: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            counters: Counters::default(),
            core,
            writer: Arc::default(),
            wanted: Mutex::new(Wanted::default()),
            reader: Arc::default(),
        }
    }

    pub(super) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    pub(super) fn max(&self) -> usize {
        usize::try_from(self.limits.max()).unwrap_or(usize::MAX)
    }

    pub(super) fn claim(&self) -> Claim {
        self.limits.claim(self.pages() as u64)
    }

    pub(super) fn swappiness(&self) -> Swappiness {
        Swappiness::new(self.swappiness.load(Relaxed)).unwrap_or_default()
    }

    /// Counts a page that it gets, unless it has as many as it may have. Returns whether it did.
    pub(super) fn gain(&self) -> bool {
        let max = self.max();
        self.pages
            .fetch_update(Relaxed, Relaxed, |pages| (pages < max).then_some(pages + 1))
            .is_ok()
    }

    /// Counts a page that it lost.
    pub(super) fn lose(&self) {
        self.pages.fetch_sub(1, Relaxed);
    }

    /// Counts a page that it loses to another group, unless its `min` forbids that. Returns whether
    /// it did. Several threads may ask at a time: no more of them succeed than there are pages to
    /// spare.
    pub(super) fn give(&self) -> bool {
        let spare = self.limits.min.load(Relaxed).min(self.limits.max()) as usize;
        self.pages
            .fetch_update(Relaxed, Relaxed, |pages| (pages > spare).then(|| pages - 1))
            .is_ok()
    }

    pub(super) fn stats(&self, hits: u64) -> GroupStats {
        let Counters {
            hits: _,
            misses,
            bypasses,
            declined,
            skimmed,
            refaults,
            evictions,
            write_backs,
            write_back_errors,
            throttled,
            read_ahead,
            read_ahead_wasted,
        } = &self.counters;
        GroupStats {
            usage: self.pages() as u64 * self.page_size,
            dirty: self.unwritten.load(Relaxed) as u64 * self.page_size,
            hits,
            misses: misses.load(Relaxed),
            refaults: refaults.load(Relaxed),
            bypasses: bypasses.load(Relaxed),
            declined: declined.load(Relaxed),
            skimmed: skimmed.load(Relaxed),
            evictions: evictions.load(Relaxed),
            write_backs: write_backs.load(Relaxed),
            write_back_errors: write_back_errors.load(Relaxed),
            throttled: throttled.load(Relaxed),
            read_ahead: read_ahead.load(Relaxed),
            read_ahead_wasted: read_ahead_wasted.load(Relaxed),
        }
    }

    /// The limits in bytes, in the order of [`Limits::NAMES`]; the most there is for no limit.
    #[cfg(feature = "control")]
    pub(super) fn limits(&self) -> [u64; 4] {
        self.limits.all().map(|limit| {
            let pages = limit.load(Relaxed);
            let is_limit = pages < u64::MAX / self.page_size;
            if is_limit { pages * self.page_size } else { u64::MAX }
        })
    }

    fn set(&self, limit: impl FnOnce(&Limits) -> &AtomicU64, bytes: u64) {
        limit(&self.limits).store(bytes / self.page_size, Relaxed);
    }
}

impl Group {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of its pages.
    pub fn usage(&self) -> u64 {
        self.0.pages() as u64 * self.0.page_size
    }

    /// Bytes of its pages that are dirty or being written.
    pub fn dirty(&self) -> u64 {
        self.0.unwritten.load(Relaxed) as u64 * self.0.page_size
    }

    /// Sets how many bytes of the group are never taken for other groups. The sum over all groups
    /// may be more than the cache has. Then requests of other groups may at times go past the
    /// cache.
    pub fn set_min(&self, bytes: u64) {
        self.0.set(|limits| &limits.min, bytes);
    }

    /// Sets how many bytes of the group are taken only if no group has more than its `low`.
    pub fn set_low(&self, bytes: u64) {
        self.0.set(|limits| &limits.low, bytes);
    }

    /// Sets the number of bytes above which its pages go before those of groups below their own
    /// `high`.
    pub fn set_high(&self, bytes: u64) {
        self.0.set(|limits| &limits.high, bytes);
    }

    /// Sets how many bytes the group gets at most, even if there is room. Whole pages count: with
    /// less than one, all goes past the cache. If it has more when this is called, the excess is
    /// evicted in the background, except for pages that `min_ttl_ms` protects and pages that cannot
    /// be written. Those leave as frames are needed.
    pub fn set_max(&self, bytes: u64) {
        self.0.set(|limits| &limits.max, bytes);
        self.0.core.upgrade().into_iter().for_each(|core| core.hold_to_max(&self.0));
    }

    /// Sets how much the group prefers to give up dirty pages when it has to give some, from 0 to
    /// 200. Higher values count as 200.
    ///
    /// At 100, pages leave in the order of their worth. The cost of writing a dirty page back, as
    /// it was learnt, is a part of its worth. At `s`, a dirty page goes first if its worth, times
    /// `200 - s`, is less than a clean page's worth, times `s`. At 0, dirty pages go only if there
    /// are no others, and at 200 the same holds for clean ones. This concerns only the group's own
    /// pages: it affects neither which group gives up pages nor when dirty pages are written ahead
    /// of need. A page counts as dirty if it was dirty when eviction last met it.
    pub fn set_swappiness(&self, swappiness: u8) {
        self.0.swappiness.store(swappiness.min(Swappiness::MAX), Relaxed);
    }

    /// The value that was [set](Self::set_swappiness); initially 100.
    pub fn swappiness(&self) -> u8 {
        self.0.swappiness().get()
    }
}

/// Makes a [`Group`]: see [`PageCache::group`](super::PageCache::group).
///
/// ```
/// # use homing_cache::pages::PageCache;
/// let cache = PageCache::builder(4 << 20).build()?;
/// let builder = cache.group("tenant").min(64 << 10).low(1 << 20).high(2 << 20).max(3 << 20);
/// assert_eq!(builder.build().name(), "tenant");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct GroupBuilder<'a> {
    pub(super) cache: &'a super::PageCache,
    pub(super) name: String,
    pub(super) limits: [u64; 4],
    pub(super) passing: bool,
}

impl GroupBuilder<'_> {
    /// See [`Group::set_min`]. The default is 0.
    pub fn min(mut self, bytes: u64) -> Self {
        self.limits[0] = bytes;
        self
    }

    /// See [`Group::set_low`]. The default is 0.
    pub fn low(mut self, bytes: u64) -> Self {
        self.limits[1] = bytes;
        self
    }

    /// See [`Group::set_high`]. The default is no limit.
    pub fn high(mut self, bytes: u64) -> Self {
        self.limits[2] = bytes;
        self
    }

    /// See [`Group::set_max`]. The default is no limit.
    pub fn max(mut self, bytes: u64) -> Self {
        self.limits[3] = bytes;
        self
    }

    /// Has the group [removed](super::PageCache::remove_group) when the last of its files is
    /// closed. It stays until a first file is opened.
    ///
    /// ```
    /// # use homing_cache::pages::{OpenError, PageCache};
    /// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
    /// # struct Disk(File);
    /// # impl homing_cache::pages::Backing for Disk {
    /// #     fn size(&self) -> u64 { 1 << 20 }
    /// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
    /// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
    /// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
    /// # }
    /// # let temporary = tempfile::tempfile()?;
    /// # temporary.set_len(1 << 20)?;
    /// # let disk = Arc::new(Disk(temporary));
    /// # let cache = PageCache::builder(4 << 20).build()?;
    /// let group = cache.group("export").until_closed().build();
    /// cache.open(disk.clone(), &group)?.close()?;
    /// let again = cache.open(disk, &group);
    /// assert!(matches!(again, Err(OpenError::ForeignGroup(_)))); // it is gone
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until_closed(mut self) -> Self {
        self.passing = true;
        self
    }

    /// Makes the group.
    pub fn build(self) -> Group {
        let Self { cache, name, limits, passing } = self;
        let page_size = cache.core().page_size() as u64;
        let core = cache.core();
        let this = core.this.clone();
        let group = |number| GroupState::new(this, name, number, page_size, limits, passing);
        Group(core.add_group(group))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn no_more_pages_are_given_than_there_are_to_spare() {
        let group =
            GroupState::new(Weak::new(), "all".to_owned(), 0, 1, [40, 0, u64::MAX, 100], false);
        assert_eq!((0..200).filter(|_| group.gain()).count(), 100);
        let given = std::thread::scope(|scope| {
            let give = || (0..50).filter(|_| group.give()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(give)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!((given, group.pages()), (60, 40));
    }
}
