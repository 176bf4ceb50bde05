//! Pages of files and volumes in memory, with write-back.
//!
//! A [`PageCache`] has so many bytes, and takes no more: frames for pages, what is known of each, and
//! what is remembered of pages that left. Open files come on top, some 1.4 KB each. Files are opened for a [`Group`]; groups share the memory,
//! with limits to what others can take from them. Which page goes is the default policy's choice
//! ([`homing_mglru::density`]).
//!
//! Read on in this order: `README.md` (states of a page, who waits for whom), `sizing`, `frame`,
//! `index`, `arena`, `recent`, `table`, `shard`, `evict`, `read_time`, `core`, `fill`, `skim`, `read`, `write`,
//! `write_back`, `punch`, `reclaim`, `background`, `streams`, `prefetch`, `resize`, `file`, `group`,
//! `attributes`, `debug`, `command`.

mod arena;
#[cfg(feature = "control")]
mod attributes;
mod background;
mod backing;
mod bad_pages;
#[cfg(feature = "control")]
mod command;
mod core;
#[cfg(feature = "control")]
mod debug;
mod error;
mod evict;
mod file;
mod fill;
mod frame;
mod group;
mod index;
mod local;
mod orphans;
mod prefetch;
mod punch;
mod read;
mod read_time;
mod recent;
mod reclaim;
mod resize;
mod shard;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod sizing;
mod skim;
mod streams;
mod table;
mod write;
mod write_back;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

#[cfg(feature = "control")]
pub use attributes::PageCacheAttributes;
pub use background::{Background, Job};
pub use backing::Backing;
pub use error::{BuildError, FileError, GroupInUse, OpenError, ResizeError};
pub use file::{CachedFile, CloseError};
pub use group::{Group, GroupBuilder, GroupStats};

use self::core::Core;
use crate::habits::Habits;
use crate::sync::atomic::Ordering::Relaxed;
use arena::check_room;
use background::OwnThreads;
use sizing::Sizing;
use table::Table;

/// A cache for pages of files: see the [module's page](self). Clones are the same cache.
///
/// ```
/// use homing_cache::pages::PageCache;
///
/// let cache = PageCache::builder(64 << 20).page_size(4096).build()?;
/// let tenant = cache.group("tenant").min(8 << 20).max(32 << 20).build();
/// assert!(cache.stats().memory <= 64 << 20);
/// tenant.set_max(16 << 20);
/// cache.set_size(32 << 20)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// All settings can be changed while the cache is used:
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
/// # let cache = PageCache::builder(4 << 20).build()?;
/// # let group = cache.group("tenant").build();
/// # let file = cache.open(disk, &group)?;
/// cache.set_dirty(90, 100); // writes nothing back before it must
/// cache.set_readahead_max(128 << 10);
/// cache.set_readahead(false); // reads only what is asked for
/// cache.set_learning(false); // evicts what was used longest ago
/// file.write(0, &[1; 8192])?;
/// (2..256).try_for_each(|page| file.read(page << 12, &mut [0; 4096]))?;
/// let stats = cache.group_stats(&group);
/// assert_eq!((stats.dirty, stats.write_backs, stats.read_ahead), (8192, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PageCache(Arc<Handles>);

/// What all handles hold, and no job that runs in the background.
struct Handles(Arc<Core>);

impl Drop for Handles {
    /// The last handle is gone, and with it what cannot be written even now.
    fn drop(&mut self) {
        self.0.close_all_orphans();
    }
}

/// Makes a [`PageCache`].
///
/// ```
/// use homing_cache::pages::PageCache;
///
/// let cache = PageCache::builder(8 << 20)
///     .page_size(512)
///     .shards(2)
///     .dirty(10, 30) // hundredths
///     .size_max(16 << 20)
///     .build()?;
/// assert!(cache.set_size(16 << 20).is_ok() && cache.set_size(17 << 20).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Builder {
    bytes: usize,
    page_size: usize,
    shards: Option<usize>,
    background: Box<dyn Background>,
    dirty: (u8, u8),
    size_max: usize,
}

/// What a cache has and did.
///
/// ```
/// # use homing_cache::pages::{GroupStats, PageCache};
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
/// # cache.set_readahead(false);
/// # let group = cache.group("tenant").build();
/// # let file = cache.open(disk, &group)?;
/// file.read(0, &mut [0; 512])?;
/// file.read(512, &mut [0; 512])?; // of the same page
/// let stats = cache.stats();
/// assert!(stats.size == 4 << 20 && stats.memory <= stats.size && stats.used == 1);
/// let GroupStats { hits, misses, usage, .. } = cache.group_stats(&group);
/// assert_eq!((hits, misses, usage), (1, 1, 4096));
/// assert_eq!(stats.total, cache.group_stats(&group)); // there is no other
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The size in bytes, as set.
    pub size: usize,
    /// Bytes that it takes when all of its frames are used: never more than the size.
    pub memory: usize,
    /// Frames for pages.
    pub frames: usize,
    /// Frames with pages.
    pub used: usize,
    /// Of all groups together, those that are gone among them.
    pub total: GroupStats,
}

impl PageCache {
    /// A cache that takes at most so many bytes.
    pub fn builder(bytes: usize) -> Builder {
        let background = Box::new(OwnThreads::default());
        Builder {
            bytes,
            page_size: 4096,
            shards: None,
            background,
            dirty: (5, 20),
            size_max: usize::MAX,
        }
    }

    fn core(&self) -> &Core {
        &self.0.0
    }

    /// A group of files, without limits unless they are set. Each has a name of its own, or is not among the
    /// attributes: the first of that name is.
    pub fn group(&self, name: impl Into<String>) -> GroupBuilder<'_> {
        GroupBuilder {
            cache: self,
            name: name.into(),
            limits: [0, 0, u64::MAX, u64::MAX],
            passing: false,
        }
    }

    /// Removes a group, and gives back what the cache took for it. Its name and limits are gone from the
    /// attributes; what it did still counts in [`stats`](Self::stats). A group that is not there, since it
    /// was removed, is no error.
    ///
    /// A group goes with its pages, so all of its files have to be closed: pages of an open file are of
    /// no use to others. One that is to go with its last file is made
    /// [`until_closed`](GroupBuilder::until_closed).
    pub fn remove_group(&self, group: &Group) -> Result<(), GroupInUse> {
        self.core().remove_group(group)
    }

    /// What a group of this cache has and did.
    pub fn group_stats(&self, group: &Group) -> GroupStats {
        group.0.stats(self.core().hits(&group.0))
    }

    /// Gives the cache another size while it is used. Pages that are worth least leave; what is
    /// remembered of those that left before is forgotten.
    ///
    /// Dirty pages that have to leave are written back by [background jobs](Background), and waited for; what
    /// is being read or written meanwhile stays, and is no obstacle. Where too many pages cannot leave and
    /// none does for five seconds, as with a disk that hangs, the cache keeps the size that it had. Requests
    /// go on all the while.
    pub fn set_size(&self, bytes: usize) -> Result<(), ResizeError> {
        self.core().set_size(bytes)
    }

    /// Sets the shares of the cache, in hundredths, that each group may have dirty: up to the target
    /// nothing is written ahead of need, and from the trigger on writers write back as much as they
    /// write.
    ///
    /// # Panics
    ///
    /// If the target is above the trigger, or that above 100.
    pub fn set_dirty(&self, target: u8, trigger: u8) {
        assert!(target <= trigger, "a target of {target} % is above the trigger of {trigger} %");
        assert!(trigger <= 100, "a trigger of {trigger} % is above 100");
        let both = (target.into(), trigger.into());
        self.core().set_dirty_shares(|_| Some(both)).expect("whatever they were");
    }

    /// Lets the policy learn which pages to keep (as it does unless told otherwise), or evicts what was
    /// used longest ago, give or take a hundredth of what there is: a switch to rule it out as a cause, with nothing moved or lost.
    pub fn set_learning(&self, learning: bool) {
        self.core().habits.set_learning(learning);
    }

    /// Protects the working set: pages that were used within so many milliseconds are not evicted,
    /// whoever needs a frame, while others are there. 0, as at first: none is protected.
    ///
    /// Where all that there is was used that short a time ago, nothing is evicted: what is not in the
    /// cache is read and written past it, and counted in [`GroupStats::bypasses`]. Shrinking the cache,
    /// closing files and discarding go on. What was used before this was set is not protected. A page is
    /// kept for as long as said, and may be kept twice as long or until an epoch (a 128th of a cacheful of
    /// requests) has ended; but no longer than 96 cachefuls of requests.
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
    /// let cache = PageCache::builder(1 << 20).shards(1).build()?; // smaller than the file
    /// # cache.set_readahead(false);
    /// cache.set_min_ttl_ms(3_600_000);
    /// let group = cache.group("tenant").build();
    /// let file = cache.open(disk, &group)?;
    /// (0..256).try_for_each(|page| file.read(page << 12, &mut [0; 4096]))?;
    /// let stats = cache.group_stats(&group);
    /// assert!(stats.evictions == 0 && stats.bypasses > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_min_ttl_ms(&self, ms: u64) {
        let habits = &self.core().habits;
        habits.min_ttl.set(ms, habits.epoch());
    }

    /// Whether pages are read ahead, in the background, for whoever reads a file in order: they are,
    /// unless this is called. [`CachedFile::prefetch`] does not depend on it.
    pub fn set_readahead(&self, on: bool) {
        self.core().reads_ahead.store(on, Relaxed);
    }

    /// Sets how many bytes are read ahead at a time at most, for each of up to eight readers of a file:
    /// 1 MiB at first. A group's readers get at most a 64th of what the group may have, and none at all where
    /// that is less than four pages. What others have within `min` and `low` is not taken for it.
    pub fn set_readahead_max(&self, bytes: usize) {
        self.core().ahead_max.store(bytes, Relaxed);
    }

    /// What the cache has and did.
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let mut stats = Stats { size: core.size(), ..Stats::default() };
        stats.memory = core.sizing.learner_memory();
        for shard in &core.shards {
            let table = shard.read();
            stats.memory += Core::shard_memory(&table);
            stats.frames += table.limit;
            stats.used += table.used();
        }
        // Held, so that no group is counted twice, or not at all, as it goes.
        let departed = crate::sync::lock(&core.departed);
        stats.total = *departed;
        for group in core.groups() {
            stats.total.add(group.stats(core.hits(&group)));
        }
        stats
    }
}

impl Builder {
    /// Bytes of a page: 4096 unless set; a power of two from 512 to 65536.
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = bytes;
        self
    }

    /// Parts with a lock of their own: if not set, as many as the machine has use for.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards.max(1));
        self
    }

    /// Who runs what is done in the background: threads of the cache's own, unless set, as many as there are jobs, up
    /// to 64: each may wait for a disk. They take over the CPUs of
    /// whoever needs them first: where that is an item of a runtime, its one CPU, so have the runtime run it.
    pub fn background(mut self, background: impl Background + 'static) -> Self {
        self.background = Box::new(background);
        self
    }

    /// The largest size that may be [set](PageCache::set_size) later; none unless set. Its first size may be
    /// set in any case.
    pub fn size_max(mut self, bytes: usize) -> Self {
        self.size_max = bytes;
        self
    }

    /// See [`PageCache::set_dirty`]: 5 and 20 unless set, and [`build`](Self::build) panics where that would.
    pub fn dirty(mut self, target: u8, trigger: u8) -> Self {
        self.dirty = (target, trigger);
        self
    }

    /// Makes the cache. Memory is taken as it is used; what the system would never give is refused.
    pub fn build(self) -> Result<PageCache, BuildError> {
        let Self { bytes, page_size, shards, background, dirty, size_max } = self;
        let shards = shards.unwrap_or_else(|| Sizing::shards_for(bytes, page_size));
        let sizing = |bytes: usize| {
            let pages = bytes / page_size.max(1);
            let (sample, apart) = (Habits::sample(pages), Habits::apart(pages));
            Sizing { page_size, shards, sample, apart }
        };
        let (each, frames) = sizing(bytes).check(bytes).map_err(|mut error| {
            // What more pages have to learn takes more.
            while let BuildError::TooSmall { least, .. } = &mut error
                && let Err(BuildError::TooSmall { least: more, .. }) = sizing(*least).check(*least)
                && more > *least
            {
                *least = more;
            }
            error
        })?;
        let seed = foldhash::fast::RandomState::default().hash_one(0);
        let tables = (0..shards).map(|_| Table::new(seed, page_size, frames, each));
        let tables = check_room(bytes).and_then(|()| tables.collect::<Result<Vec<_>, _>>());
        let tables = tables.map_err(|source| BuildError::Memory { bytes, source })?;
        let cache =
            Arc::new_cyclic(|this| Core::new(this, bytes, sizing(bytes), tables, background));
        let cache = PageCache(Arc::new(Handles(cache)));
        cache.core().bytes_max.store(size_max.max(bytes), Relaxed);
        cache.set_dirty(dirty.0, dirty.1);
        Ok(cache)
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, page_size, shards, dirty, .. } = self;
        f.debug_struct("Builder")
            .field("bytes", bytes)
            .field("page_size", page_size)
            .field("shards", shards)
            .field("dirty", dirty)
            .finish_non_exhaustive()
    }
}
