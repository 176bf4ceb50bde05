//! Changes the size while requests go on: shard by shard, under the shard's lock, with as few pages
//! moved as possible. Before a shard gets smaller, the pages that are worth least leave, and the
//! others move down, whatever is done with them meanwhile. Dirty pages are written by the jobs of
//! their groups. Nobody waits here for a disk longer than [`PATIENCE`].

use std::io;
use std::time::{Duration, Instant};

use super::arena::check_room;
use super::core::Core;
use super::error::{BuildError, ResizeError};
use super::reclaim::Needs;
use super::shard::Shard;
use super::sizing::{FRAMES_LEAST, HEADROOM, Sizing};
use super::table::Table;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{current, lock, read, unless_taken};

/// How long a shard waits for the next of its pages to be written or read. Guessed: longer than a
/// healthy disk takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is done about pages that cannot go at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// They are waited for, as long as one goes now and then.
    Waits,
    /// The shard stays as it is.
    Gives,
}

/// Why a shard has as many frames as before.
enum Stays {
    /// This many pages too many cannot go. The background work that they need must still be asked
    /// for.
    Held(usize, Needs),
    Memory(io::Error),
}

/// A change of the size. If it fails, all shards get back what they had.
struct Change<'a> {
    core: &'a Core,
    /// The new size, once all shards have it.
    done: Option<usize>,
}

impl<'a> Change<'a> {
    fn new(core: &'a Core) -> Self {
        *lock(&core.resizer) = Some(current().id());
        Self { core, done: None }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        match self.done {
            Some(bytes) => self.core.bytes.store(bytes, Relaxed),
            None => self.core.restore(),
        }
        self.core.count_pages();
        *lock(&self.core.resizer) = None;
    }
}

/// A shard that is to get another number of frames. However that ends, it may use all the frames
/// that it has then.
struct Limited<'a>(&'a Shard);

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let mut table = self.0.write();
        table.limit = table.frame_count();
    }
}

impl Core {
    pub(super) fn set_size(&self, bytes: usize) -> Result<(), ResizeError> {
        let max = self.bytes_max.load(Relaxed);
        if bytes > max {
            return Err(ResizeError::AboveMax { bytes, max });
        }
        if *lock(&self.resizer) == Some(current().id()) {
            return Err(ResizeError::Nested { bytes });
        }
        let resizing = lock(&self.resizing);
        let (each, _) = self.sizing.check(bytes)?;
        self.check_groups(bytes, each)?;
        // Checked for all shards at once: shard by shard, the system would grant far too much.
        check_room(bytes.saturating_sub(self.size()).max(1))
            .map_err(|source| BuildError::Memory { bytes, source })?;
        let mut change = Change::new(self);
        let result = self.shards.iter().try_for_each(|shard| {
            let frames = self.frames_beside_groups(&shard.read(), each);
            self.resize(shard, frames, each, Patience::Waits)
        });
        change.done = result.is_ok().then_some(bytes);
        drop(change);
        drop(resizing);
        result.map_err(|stays| match stays {
            Stays::Held(pages, needs) => {
                self.ask_for(&needs);
                ResizeError::Held { bytes, pages }
            }
            Stays::Memory(source) => BuildError::Memory { bytes, source }.into(),
        })
    }

    /// Gives shards back the bytes that they had, after the new size failed for another shard.
    fn restore(&self) {
        let each = self.sizing.shard_bytes(self.size());
        for shard in &self.shards {
            let (bytes, frames) = {
                let table = shard.read();
                (table.bytes(), self.frames_beside_groups(&table, each))
            };
            if bytes != each && self.resize(shard, frames, each, Patience::Gives).is_err() {
                // A shard that takes too much gives it up with the next requests. One that takes
                // less stays so: there is no memory for more.
                let mut table = shard.write();
                let least = table.bytes().min(each);
                table.set_bytes(least);
            }
        }
    }

    fn count_pages(&self) {
        let pages = self.shards.iter().map(|shard| shard.read().limit).sum();
        self.pages.store(pages, Relaxed);
        self.habits.set_capacity(pages);
    }

    /// The frames of a shard of this many bytes, besides what its groups take.
    fn frames_beside_groups(&self, table: &Table, bytes: usize) -> usize {
        self.sizing.frames(bytes, table.groups_memory()).max(FRAMES_LEAST)
    }

    /// Checks that shards of `each` bytes have room for what groups take, and for some frames.
    fn check_groups(&self, bytes: usize, each: usize) -> Result<(), ResizeError> {
        let mut most = 0;
        for shard in &self.shards {
            let mut takes = shard.read().groups_memory();
            if self.sizing.frames(each, takes) < FRAMES_LEAST {
                let mut table = shard.write();
                table.forget_idle();
                takes = table.groups_memory();
            }
            most = most.max(takes);
        }
        if self.sizing.frames(each, most) >= FRAMES_LEAST {
            return Ok(());
        }
        let (groups, least) = (self.groups().len(), self.sizing.least(most));
        Err(ResizeError::TooManyGroups { bytes, groups, least })
    }

    /// The bytes that a shard takes.
    pub(super) fn shard_memory(table: &Table) -> usize {
        Sizing::beside_table() + table.memory()
    }

    /// Makes room if the lists of groups have grown so much that they need it. First, groups that
    /// have no pages in the shard are forgotten; then frames are given up, if that can be done at
    /// once: a request does not wait for the disks of others. Otherwise it is tried again an epoch
    /// later. Until then, a shard that has used up its reserve takes nothing new
    /// ([`Table::is_short`]).
    #[cold]
    pub(super) fn keep_bound(&self, shard: &Shard) {
        // If the size is being changed, that change makes the room, or the next request does.
        let Some(resizing) = unless_taken(self.resizing.try_lock()) else { return };
        let (frames, before, bytes) = {
            let mut table = shard.write();
            if table.excess(HEADROOM / 2) > 0 {
                table.forget_idle();
            }
            if table.excess(HEADROOM / 2) > 0 && table.frame_count() <= FRAMES_LEAST {
                // What was learnt of groups takes more than all that is left. It is forgotten, and
                // learnt anew.
                table.forget_all(&self.habits);
            }
            // Whatever the result, requests do not come back here before the epoch is over.
            table.crowded = false;
            (self.frames_in_bound(&table), table.frame_count(), table.bytes())
        };
        if frames == before {
            return;
        }
        let resized = self.resize(shard, frames, bytes, Patience::Gives);
        if resized.is_ok() {
            self.count_pages();
        }
        drop(resizing);
        if let Err(Stays::Held(_, needs)) = resized {
            self.ask_for(&needs);
        }
    }

    /// Turns the memory of removed groups' lists into frames, if that is worth the copying.
    pub(super) fn use_spare_memory(&self) {
        self.shards.iter().for_each(|shard| self.keep_bound(shard));
    }

    /// How many frames a shard is to have, given what its groups take by now. It gets more only if
    /// that is worth the copying, and loses enough at a time for that, too.
    fn frames_in_bound(&self, table: &Table) -> usize {
        let (now, step) = (table.frame_count(), Self::step(table.bytes()));
        let excess = table.excess(HEADROOM / 2);
        if excess > 0 {
            let too_many = (excess + step).div_ceil(self.page_size());
            return now.saturating_sub(too_many).max(FRAMES_LEAST.min(now));
        }
        let fit = self.frames_beside_groups(table, table.bytes());
        let more = fit.saturating_sub(now) * self.page_size();
        if more >= step { fit } else { now }
    }

    /// The least number of bytes of a shard that change their use at a time, because that takes
    /// copying.
    fn step(bytes: usize) -> usize {
        (bytes / 64).clamp(HEADROOM / 2, 2 * HEADROOM)
    }

    /// Gives a shard this many frames. If this fails, it has as many as before.
    fn resize(
        &self,
        shard: &Shard,
        frames: usize,
        bytes: usize,
        patience: Patience,
    ) -> Result<(), Stays> {
        let _limited = Limited(shard);
        let mut left = {
            let table = shard.read();
            (table.used(), table.unwritten_count())
        };
        let mut deadline = Instant::now() + PATIENCE;
        let mut at_work = 0;
        loop {
            let files = read(&self.files);
            let group_of = |file: u16| files.get(file).map(|file| &file.group);
            let mut table = shard.write();
            // From here on, no more pages come in than go.
            table.limit = table.limit.min(frames);
            table.evict_down_to(frames, patience == Patience::Waits, &self.habits);
            if table.used() <= frames {
                table.move_down(frames, group_of);
                return table.set_frames(frames, bytes).map_err(Stays::Memory);
            }
            // Progress is a new minimum, because others may write meanwhile.
            let now = (table.used().min(left.0), table.unwritten_count().min(left.1));
            if now != left {
                (left, deadline) = (now, Instant::now() + PATIENCE);
            }
            let needs = self.needs(&table);
            if patience == Patience::Gives
                || !table.is_at_work(&mut at_work)
                || Instant::now() >= deadline
            {
                return Err(Stays::Held(table.used() - frames, needs));
            }
            let ticket = shard.ticket();
            drop((table, files));
            self.ask_for(&needs);
            ticket.wait_until(deadline);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::frame::Key;
    use super::super::{Backing, PageCache};
    use super::*;

    const PAGE: usize = 512;

    struct Disk(Mutex<Vec<u8>>);

    impl Backing for Disk {
        fn size(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }

        fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            data.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..data.len()]);
            Ok(())
        }

        fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
            self.0.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// This happens once in 10^23 times, unless somebody chooses the pages.
    #[test]
    fn an_index_that_has_no_room_for_a_page_changes_nothing() {
        let cache = PageCache::builder(2 << 20).page_size(PAGE).shards(1).dirty(100, 100);
        let cache = cache.build().unwrap();
        cache.set_readahead(false);
        let file = Disk(Mutex::new(vec![0; 10_000 * PAGE]));
        let file = cache.open(Arc::new(file), &cache.group("all").build()).unwrap();
        let before = cache.stats();
        // These belong in the first sixth of the index, where one of half the size has too few
        // places for them.
        let hash = |page: u64| cache.core().shards[0].read().hash(Key::new(0, page));
        let is_near = |page: &u64| hash(*page) < u64::MAX / 6;
        let pages: Vec<_> = (0..10_000).filter(is_near).take(before.frames / 4).collect();
        for &page in &pages {
            file.write(page * PAGE as u64, &[7; PAGE]).unwrap();
        }
        let refused = cache.set_size(1 << 20).unwrap_err().to_string();
        assert!(refused.contains("no room for one of its pages"), "{refused}");
        let after = cache.stats();
        assert_eq!((after.size, after.frames), (before.size, before.frames));
        let mut data = [0; PAGE];
        for &page in &pages {
            file.read(page * PAGE as u64, &mut data).unwrap();
            assert_eq!(data, [7; PAGE], "page {page}");
        }
        file.close().unwrap();
    }
}
