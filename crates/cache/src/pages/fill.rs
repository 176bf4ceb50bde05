//! Reads what is missing: a run of pages of one request, in one go, by one thread.
//!
//! A page is marked before it is read, so that other threads wait for it. A thread that has marked
//! pages waits for nothing until these are there or gone. If the reader fails or panics, its marks
//! are removed.

use std::ops::Range;

use super::core::Core;
use super::error::FileError;
use super::evict::NoFrame;
use super::files::FileState;
use super::frame::{Flags, Key};
use super::group::Counters;
use super::shard::{Shard, Ticket};
use super::table::Table;
use super::write::Busy;

/// Pages of a shard that are being read.
pub(super) struct Loading<'a> {
    core: &'a Core,
    shard: &'a Shard,
    file: &'a FileState,
    pub(super) pages: Range<u64>,
    frames: Vec<u32>,
    demand: Demand,
}

/// What pages are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Read,
    /// The pages are changed, so the cache has to hold them.
    Write,
    /// Nobody has asked for the pages yet; a reader in order will.
    Ahead,
    /// Nobody has asked for the pages yet; a hint says that somebody will.
    Hint,
}

impl Demand {
    fn is_ahead(self) -> bool {
        matches!(self, Self::Ahead | Self::Hint)
    }
}

/// The answer to a request to read missing pages.
pub(super) enum Begun<'a> {
    /// The first page is not missing.
    Present,
    /// Another thread is reading it, or using it past the cache.
    Wait(Ticket<'a>),
    /// There is no frame for it.
    Full(NoFrame),
    /// These are not worth their frames: the caller has to read them past the cache.
    Past(Busy<'a>),
    /// The caller has to read these.
    Loading(Loading<'a>),
}

impl Core {
    /// Marks the missing pages at the beginning of a range, which lies in one chunk, as loading.
    pub(super) fn begin<'a>(
        &'a self,
        shard: &'a Shard,
        file: &'a FileState,
        wanted: Range<u64>,
        demand: Demand,
    ) -> Begun<'a> {
        let mut table = shard.write();
        // Checked under the lock under which closing drops pages, so that none comes in after that.
        if demand.is_ahead() && file.is_closing() {
            return Begun::Full(NoFrame::ShardFull);
        }
        table.listen(&self.habits);
        if demand == Demand::Read
            && let Some(pages) = self.decline(&mut table, file, wanted.clone())
        {
            let count = (pages.end - pages.start) as u32;
            let busy = Busy::new(shard, &mut table, file, pages);
            drop(table);
            self.passed(shard, count);
            return Begun::Past(busy);
        }
        let first = wanted.start;
        let mut frames = Vec::new();
        let mut end = first;
        for page in wanted {
            let key = Key::new(file.number, page);
            let found = table.find(key);
            let admitted = match found {
                None if !table.is_busy(key) => {
                    table.admit(&file.group, key, Flags::LOADING, demand, &self.habits)
                }
                _ if end > first => break,
                Some((_, flags)) if !flags.has(Flags::LOADING) => return Begun::Present,
                _ => return Begun::Wait(shard.ticket()),
            };
            match admitted {
                Ok((_, frame)) => frames.push(frame),
                Err(_) if end > first => break,
                Err(none) => return Begun::Full(none),
            }
            if !demand.is_ahead() {
                self.habits.used(table.hash(key), Some(file.group.number), false);
            }
            end = page + 1;
        }
        let needs = self.needs(&table);
        drop(table);
        let pages = first..end;
        let loading = Loading { core: self, shard, file, pages, frames, demand };
        self.ask_for(&needs);
        if !demand.is_ahead() {
            Counters::add(&file.group.counters.misses, (end - first) as usize);
            self.passed(shard, (end - first) as u32);
        }
        Begun::Loading(loading)
    }

    /// The missing pages at the beginning of a range, if they are not worth frames.
    fn decline(
        &self,
        table: &mut Table,
        file: &FileState,
        wanted: Range<u64>,
    ) -> Option<Range<u64>> {
        if !table.is_scarce(&file.group, Self::watermarks(table).1) {
            return None;
        }
        let first = wanted.start;
        let is_missing = |page: &u64| {
            let key = Key::new(file.number, *page);
            table.find(key).is_none()
                && !table.is_busy(key)
                && !table.is_claimed(file.number, &(*page..*page + 1), u64::MAX)
        };
        let end = first + wanted.take_while(is_missing).count() as u64;
        let keys = (first..end).map(|page| Key::new(file.number, page));
        let price = file.price(self.page_size());
        if first == end || !table.decline(&file.group, keys.clone(), price, &self.habits) {
            return None;
        }
        keys.for_each(|key| self.habits.used(table.hash(key), Some(file.group.number), false));
        let Counters { misses, declined, .. } = &file.group.counters;
        for counter in [misses, declined] {
            Counters::add(counter, (end - first) as usize);
        }
        Some(first..end)
    }

    /// Reads pages from the backing, past the cache.
    pub(super) fn fetch(
        &self,
        file: &FileState,
        pages: &Range<u64>,
        data: &mut [u8],
    ) -> Result<(), FileError> {
        let offset = self.offset_of(pages.start);
        let length = data.len() as u64;
        let read = file.backing.read(offset, data);
        read.map_err(|source| FileError::Read { offset, length, source })
    }
}

impl Loading<'_> {
    /// How many bytes are to be read.
    pub(super) fn len(&self) -> usize {
        self.core.bytes_of(self.file, &self.pages)
    }

    /// The pages, each with the frame that was marked for it.
    fn take_frames(&mut self) -> impl Iterator<Item = (u64, u32)> + use<> {
        self.pages.clone().zip(std::mem::take(&mut self.frames))
    }

    /// Puts in the data of the pages, which have been read.
    pub(super) fn complete(mut self, data: &[u8], flags: Flags) {
        let mut table = self.shard.write();
        if let Some(local) = table.known_local(&self.file.group) {
            let data = data.chunks(self.core.page_size());
            for (data, (page, was)) in data.zip(self.take_frames()) {
                let key = Key::new(self.file.number, page);
                let Some(frame) = table.frame_of(key, was) else { continue };
                table.arena.get_mut(frame)[..data.len()].copy_from_slice(data);
                table.set_flags(local, frame, flags.or(Flags::OUT));
                table.enter(local, frame, self.demand);
            }
        }
        let crowded = table.crowded;
        drop(table);
        self.shard.wake();
        if crowded {
            // Not while pages are loading: a thread that has some must not wait (`README.md`, rule
            // 1).
            self.core.keep_bound(self.shard);
        }
    }
}

impl Drop for Loading<'_> {
    /// If the pages have not been read, drops them: each thread that waits for them tries it
    /// itself.
    fn drop(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        let mut table = self.shard.write();
        if let Some(local) = table.known_local(&self.file.group) {
            for (page, was) in self.take_frames() {
                if let Some(frame) = table.frame_of(Key::new(self.file.number, page), was) {
                    table.vacate(local, frame);
                    self.file.group.lose();
                }
            }
        }
        drop(table);
        self.shard.wake();
    }
}
