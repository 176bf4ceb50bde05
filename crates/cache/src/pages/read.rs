//! Reads: pages in the cache are copied under the read lock of their shard; missing ones are read
//! first.

use std::ops::Range;

use super::core::{CHUNK, Core, Piece};
use super::error::FileError;
use super::files::FileState;
use super::fill::{Begun, Demand};
use super::frame::{Flags, Key};
use super::shard::Shard;
use super::skim::Skim;
use crate::sync::atomic::Ordering::Relaxed;

/// How often a request tries to get a frame before it goes past the cache.
pub(super) const TRIES_MAX: u32 = 8;

/// The state of the page after those that were copied.
enum Next<'a> {
    /// There is no such page: all was copied.
    End,
    /// Another thread is reading it.
    Loading,
    Missing,
    /// It is missing, and to be read [without a trace](Core::skim).
    Skim(Skim<'a>),
}

impl Core {
    pub(super) fn read(
        &self,
        file: &FileState,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), FileError> {
        Self::check_range(file, offset, data.len() as u64)?;
        let all = self.pages_of(offset, data.len() as u64);
        let mut followed = file.streams.reached(&all);
        if followed {
            self.follow(file, &all, None);
        }
        for Piece { offset, bytes } in self.pieces(offset, data.len()) {
            self.read_piece(file, offset, &mut data[bytes], |page| {
                if !std::mem::replace(&mut followed, true) {
                    self.follow(file, &all, Some(page));
                }
            })?;
        }
        Ok(())
    }

    fn read_piece(
        &self,
        file: &FileState,
        mut offset: u64,
        mut data: &mut [u8],
        mut missed: impl FnMut(u64),
    ) -> Result<(), FileError> {
        let shard = self.shard_of(file, self.page_of(offset));
        let mut tries = 0;
        loop {
            let (hits, next) = self.copy_hits(shard, file, offset, data);
            offset += hits as u64;
            data = &mut data[hits..];
            if matches!(next, Next::Missing | Next::Skim(_)) {
                // Before pages are marked, because a thread that has marked some must not wait.
                missed(self.page_of(offset));
            }
            let done = match next {
                Next::End => return Ok(()),
                Next::Skim(skim) => self.fetch_to(file, &skim.pages, offset, data, |_| ())?,
                _ => self.read_missing(shard, file, offset, data, &mut tries)?,
            };
            offset += done as u64;
            data = &mut data[done..];
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    /// Copies pages from the first one on, up to one that is not there. Returns how many bytes were
    /// copied, and the state of that page.
    fn copy_hits<'a>(
        &self,
        shard: &'a Shard,
        file: &'a FileState,
        offset: u64,
        data: &mut [u8],
    ) -> (usize, Next<'a>) {
        let table = shard.read();
        let epoch = self.habits.epoch();
        // Pages are found first and then copied, so that the CPU waits for the memory of several at
        // a time.
        let mut frames = [0; CHUNK as usize];
        let (mut hits, mut next) = (0, Next::End);
        let pages = self.pages_of(offset, data.len() as u64);
        table.expect(file.number, pages.clone());
        for page in pages.clone() {
            let key = Key::new(file.number, page);
            let Some((frame, flags)) = table.find(key) else {
                let skimmed = self.skim(shard, &table, file, page..pages.end);
                next = skimmed.map_or(Next::Missing, Next::Skim);
                break;
            };
            if flags.has(Flags::LOADING) {
                next = Next::Loading;
                break;
            }
            if table.policy.access(frame, epoch) {
                self.habits.used(table.hash(key), Some(file.group.number), false);
            }
            frames[hits] = frame;
            hits += 1;
        }
        let mut done = 0;
        for &frame in &frames[..hits] {
            let start = (offset + done as u64) as usize & (self.page_size() - 1);
            let count = (self.page_size() - start).min(data.len() - done);
            data[done..done + count].copy_from_slice(&table.arena.get(frame)[start..start + count]);
            done += count;
        }
        if hits > 0
            && let Some(local) = table.known_local(&file.group)
        {
            table.locals[local].hits.fetch_add(hits as u64, Relaxed);
        }
        drop(table);
        let skimmed = if let Next::Skim(skim) = &next { skim.len() } else { 0 };
        self.passed(shard, hits as u32 + skimmed as u32);
        (done, next)
    }

    /// Reads some of the pages from the first one on, which was missing. Returns how many bytes
    /// were read. At 0, for example because another thread was reading the page, the caller has to
    /// look again.
    fn read_missing(
        &self,
        shard: &Shard,
        file: &FileState,
        offset: u64,
        data: &mut [u8],
        tries: &mut u32,
    ) -> Result<usize, FileError> {
        let pages = self.pages_of(offset, data.len() as u64);
        let loading = match self.begin(shard, file, pages.clone(), Demand::Read) {
            Begun::Present => return Ok(0),
            Begun::Wait(ticket) => {
                ticket.wait();
                return Ok(0);
            }
            Begun::Full(none) => {
                *tries += 1;
                if *tries < TRIES_MAX && self.make_room(shard, file, none) {
                    return Ok(0);
                }
                let Some(busy) = Self::past(shard, file, pages.start) else { return Ok(0) };
                let count = self.fetch_to(file, busy.pages(), offset, data, |_| ())?;
                self.bypassed(shard, file);
                return Ok(count);
            }
            // Nobody writes these pages meanwhile, so the backing need not allow that.
            Begun::Past(busy) => return self.fetch_to(file, busy.pages(), offset, data, |_| ()),
            Begun::Loading(loading) => loading,
        };
        let pages = loading.pages.clone();
        self.fetch_to(file, &pages, offset, data, |bytes| loading.complete(bytes, Flags::NONE))
    }

    /// Reads pages for a request that begins in the first of them. Calls `show` with the whole
    /// pages, and returns how many bytes of the request are in them.
    fn fetch_to(
        &self,
        file: &FileState,
        pages: &Range<u64>,
        offset: u64,
        data: &mut [u8],
        show: impl FnOnce(&[u8]),
    ) -> Result<usize, FileError> {
        let start = (offset - self.offset_of(pages.start)) as usize;
        let len = self.bytes_of(file, pages);
        // Pages that are wanted whole are read directly to where they are wanted.
        if start == 0 && len <= data.len() {
            file.read_time
                .of(pages.end - pages.start, || self.fetch(file, pages, &mut data[..len]))?;
            show(&data[..len]);
            return Ok(len);
        }
        let mut buffer = vec![0; len];
        self.fetch(file, pages, &mut buffer)?;
        let count = (len - start).min(data.len());
        data[..count].copy_from_slice(&buffer[start..start + count]);
        show(&buffer);
        Ok(count)
    }
}
