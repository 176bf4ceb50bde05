//! Pages of files and volumes in memory, with write-back.
//!
//! A [`PageCache`] takes a given number of bytes and no more: for page frames, for what it knows
//! about each frame, and for what it remembers about pages that left. Open files come on top, about
//! 1.4 KB each. Files are opened for a [`Group`]. Groups share the memory, with limits on what
//! others can take from them. Which page is evicted is the choice of the default policy
//! ([`homing_mglru::density`]).
//!
//! Read on in this order: `README.md` (states of a page, who waits for whom), `backing`,
//! `sizing`, `frame`, `index`, `arena`, `recent`, `table`, `local`, `shard`, `evict`, `read_time`,
//! `core`, `fill`, `skim`, `read`, `write`, `write_back`, `bad_pages`, `punch`, `reclaim`,
//! `background`, `streams`, `prefetch`, `resize`, `files`, `file`, `orphans`, `group`, `metrics`,
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
mod files;
mod fill;
mod frame;
mod group;
mod index;
mod local;
#[cfg(feature = "metrics")]
mod metrics;
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
/// All settings can be changed while the cache is in use:
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

/// Held by all handles, and by no background job.
struct Handles(Arc<Core>);

impl Drop for Handles {
    /// The last handle is gone: what cannot be written now is lost.
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

/// What a cache has, and its statistics.
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
/// file.read(512, &mut [0; 512])?; // from the same page
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
    /// Bytes that the cache takes when all of its frames are in use: never more than the size.
    pub memory: usize,
    /// Frames for pages.
    pub frames: usize,
    /// Frames that hold pages.
    pub used: usize,
    /// All groups together, including those that are gone.
    pub total: GroupStats,
}

impl PageCache {
    /// Builds a cache that takes at most this many bytes.
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

    /// Builds a group of files, without limits unless they are set. Give each group its own name:
    /// of several groups with the same name, only the first one appears among the attributes.
    pub fn group(&self, name: impl Into<String>) -> GroupBuilder<'_> {
        GroupBuilder {
            cache: self,
            name: name.into(),
            limits: [0, 0, u64::MAX, u64::MAX],
            passing: false,
        }
    }

    /// Removes a group, and gives back the memory that the cache took for it. Its name and limits
    /// disappear from the attributes; what it did still counts in [`stats`](Self::stats). It is no
    /// error if the group was already removed.
    ///
    /// All files of the group must be closed first, because a group goes together with its pages,
    /// and pages of an open file are of no use to other groups. To have a group removed together
    /// with its last file, make it [`until_closed`](GroupBuilder::until_closed).
    ///
    /// A group of another cache is left alone.
    pub fn remove_group(&self, group: &Group) -> Result<(), GroupInUse> {
        self.core().remove_group(group)
    }

    /// What a group of this cache has, and its statistics.
    pub fn group_stats(&self, group: &Group) -> GroupStats {
        group.0.stats(self.core().hits(&group.0))
    }

    /// Changes the size of the cache while it is in use. The pages that are worth least leave. What
    /// was remembered about pages that had left before is forgotten.
    ///
    /// Dirty pages that have to leave are written back by [background jobs](Background), and this
    /// waits for them. Pages that are being read or written meanwhile stay, and are no obstacle. If
    /// too many pages cannot leave and none of them does for five seconds, as with a disk that
    /// hangs, the cache keeps its old size. Requests go on all the while.
    pub fn set_size(&self, bytes: usize) -> Result<(), ResizeError> {
        self.core().set_size(bytes)
    }

    /// Sets the shares of the cache, in hundredths, that each group may have dirty. Up to the
    /// target, nothing is written ahead of need. From the trigger on, writers write back as much as
    /// they write.
    ///
    /// # Panics
    ///
    /// If the target is above the trigger, or the trigger is above 100.
    pub fn set_dirty(&self, target: u8, trigger: u8) {
        assert!(target <= trigger, "a target of {target} % is above the trigger of {trigger} %");
        assert!(trigger <= 100, "a trigger of {trigger} % is above 100");
        let both = (target.into(), trigger.into());
        self.core().set_dirty_shares(|_| Some(both)).expect("whatever they were");
    }

    /// Switches between the policy that learns which pages to keep (the default), and evicting what
    /// was used longest ago, within about a hundredth of all pages. Use it to rule out the policy
    /// as a cause: nothing is moved or lost.
    pub fn set_learning(&self, learning: bool) {
        self.core().habits.set_learning(learning);
    }

    /// Protects the working set: pages that were used within this many milliseconds are not
    /// evicted, whoever needs a frame, while others are there. 0, the initial value, protects
    /// nothing.
    ///
    /// If all pages in the cache were used that recently, nothing is evicted: pages that are not in
    /// the cache are read and written past it, and counted in [`GroupStats::bypasses`]. Shrinking
    /// the cache, closing files and discarding still work. What was used before this call is not
    /// protected. A page is kept for at least the given time. It may be kept twice as long, or
    /// until an epoch (a 128th of a cacheful of requests) has ended, but no longer than 96
    /// cachefuls of requests.
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

    /// Switches reading ahead, in the background, for readers that read a file in order. It is on
    /// unless this is called. [`CachedFile::prefetch`] does not depend on it.
    pub fn set_readahead(&self, on: bool) {
        self.core().reads_ahead.store(on, Relaxed);
    }

    /// Sets the maximum number of bytes to read ahead at a time, for each of up to eight readers of
    /// a file; initially 1 MiB. A reader gets at most a 64th of what its group may have, and
    /// nothing at all if that is less than four pages. Reading ahead does not take what other
    /// groups have within `min` and `low`.
    pub fn set_readahead_max(&self, bytes: usize) {
        self.core().ahead_max.store(bytes, Relaxed);
    }

    /// What the cache has, and its statistics.
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
        // Held to the end, so that a group that goes is counted exactly once.
        let departed = crate::sync::lock(&core.departed);
        stats.total = *departed;
        for group in core.groups() {
            stats.total.add(group.stats(core.hits(&group)));
        }
        stats
    }
}

impl Builder {
    /// Bytes of a page: a power of two from 512 to 65536. The default is 4096.
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = bytes;
        self
    }

    /// The number of parts of the cache, each with its own lock. The default is as many as the
    /// machine can use.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards.max(1));
        self
    }

    /// Sets who runs the background work. By default the cache uses its own threads, one for each
    /// job and at most 64, because each job may wait for a disk. These threads inherit the CPUs of
    /// the thread that needs them first. If that thread runs an item of a runtime, this is a single
    /// CPU, so in that case have the runtime run the background work.
    ///
    /// ```
    /// use homing_cache::pages::{Background, Job, PageCache};
    ///
    /// /// A thread for each job.
    /// struct Threads;
    ///
    /// impl Background for Threads {
    ///     fn spawn(&self, job: Job) {
    ///         std::thread::spawn(job);
    ///     }
    /// }
    ///
    /// let cache = PageCache::builder(4 << 20).background(Threads).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn background(mut self, background: impl Background + 'static) -> Self {
        self.background = Box::new(background);
        self
    }

    /// The largest size that can be [set](PageCache::set_size) later; no limit by default. The
    /// initial size can always be set again.
    pub fn size_max(mut self, bytes: usize) -> Self {
        self.size_max = bytes;
        self
    }

    /// See [`PageCache::set_dirty`]. The defaults are 5 and 20. [`build`](Self::build) panics where
    /// `set_dirty` would.
    pub fn dirty(mut self, target: u8, trigger: u8) -> Self {
        self.dirty = (target, trigger);
        self
    }

    /// Makes the cache. Memory is taken as it is used. A size that the system would never provide
    /// is refused.
    pub fn build(self) -> Result<PageCache, BuildError> {
        let Self { bytes, page_size, shards, background, dirty, size_max } = self;
        let shards = shards.unwrap_or_else(|| Sizing::shards_for(bytes, page_size));
        let sizing = |bytes: usize| {
            let pages = bytes / page_size.max(1);
            let (sample, apart) = (Habits::sample(pages), Habits::apart(pages));
            Sizing { page_size, shards, sample, apart }
        };
        let (each, frames) = sizing(bytes).check(bytes).map_err(|mut error| {
            // A larger cache needs more memory for learning.
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
