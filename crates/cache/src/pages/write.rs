//! Writes: into frames, under the write lock of their shard. A page that is written only in part is
//! read first.

use std::ops::Range;

use super::core::{Core, Piece};
use super::error::FileError;
use super::evict::NoFrame;
use super::files::FileState;
use super::fill::{Begun, Demand};
use super::frame::{Flags, Key};
use super::group::Counters;
use super::read::TRIES_MAX;
use super::shard::{Shard, Ticket};
use super::table::Table;

/// Why a write stopped.
enum Stop<'a> {
    End,
    Wait(Ticket<'a>),
    /// The page has to be read first.
    Partial,
    Full(NoFrame),
    /// The page is not in the cache, and must not come in.
    Past,
}

/// Pages that are used past the cache: nobody loads missing ones meanwhile.
pub(super) struct Busy<'a> {
    shard: &'a Shard,
    file: u16,
    pages: Range<u64>,
}

impl<'a> Busy<'a> {
    /// Call this with the shard locked, and if no other busy range has any of these pages.
    pub(super) fn new(
        shard: &'a Shard,
        table: &mut Table,
        file: &FileState,
        pages: Range<u64>,
    ) -> Self {
        table.busy.push((file.number, pages.clone()));
        Self { shard, file: file.number, pages }
    }

    pub(super) fn pages(&self) -> &Range<u64> {
        &self.pages
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut table = self.shard.write();
        let own = |(file, pages): &(u16, Range<u64>)| *file == self.file && *pages == self.pages;
        if let Some(at) = table.busy.iter().position(own) {
            table.busy.swap_remove(at);
        }
        drop(table);
        self.shard.wake();
    }
}

impl Core {
    pub(super) fn write(
        &self,
        file: &FileState,
        offset: u64,
        data: &[u8],
    ) -> Result<(), FileError> {
        Self::check_range(file, offset, data.len() as u64)?;
        for Piece { offset, bytes } in self.pieces(offset, data.len()) {
            let past = self.throttle(file, self.pages_of(offset, bytes.len() as u64));
            self.write_piece(file, offset, &data[bytes], past)?;
        }
        Ok(())
    }

    fn write_piece(
        &self,
        file: &FileState,
        mut offset: u64,
        mut data: &[u8],
        past: bool,
    ) -> Result<(), FileError> {
        let shard = self.shard_of(file, self.page_of(offset));
        let mut tries = 0;
        loop {
            let (mut done, stop) = self.copy_in(shard, file, offset, data, past);
            let (at, rest) = (offset + done as u64, &data[done..]);
            match stop {
                Stop::End => return Ok(()),
                Stop::Wait(ticket) => ticket.wait(),
                Stop::Partial => done += self.write_partly(shard, file, at, rest, &mut tries)?,
                Stop::Full(none) => {
                    done += self.write_full(shard, file, at, rest, none, &mut tries)?;
                }
                Stop::Past => done += self.write_past(shard, file, at, rest)?,
            }
            offset += done as u64;
            data = &data[done..];
        }
    }

    /// Which part of a page a write covers, and whether that is all that the page has.
    fn part(&self, file: &FileState, offset: u64, length: usize) -> (Range<usize>, bool) {
        let start = offset as usize & (self.page_size() - 1);
        let count = (self.page_size() - start).min(length);
        let is_all =
            start == 0 && (count == self.page_size() || offset + count as u64 == file.size);
        (start..start + count, is_all)
    }

    /// Copies into pages from the first one on, as far as it can. If the data is to go `past` the
    /// cache, copies only into pages that are dirty already.
    fn copy_in<'a>(
        &self,
        shard: &'a Shard,
        file: &FileState,
        offset: u64,
        data: &[u8],
        past: bool,
    ) -> (usize, Stop<'a>) {
        let mut table = shard.write();
        table.listen(&self.habits);
        let epoch = self.habits.epoch();
        table.expect(file.number, self.pages_of(offset, data.len() as u64));
        let (mut done, mut pages, mut misses, mut unwritten) = (0, 0, 0, 0);
        let stop = loop {
            if done == data.len() {
                break Stop::End;
            }
            let at = offset + done as u64;
            let key = Key::new(file.number, self.page_of(at));
            let (part, is_all) = self.part(file, at, data.len() - done);
            let bytes = &data[done..done + part.len()];
            match table.find(key) {
                Some((_, flags)) if flags.has(Flags::LOADING) => break Stop::Wait(shard.ticket()),
                Some((frame, flags)) => {
                    let Some(local) = table.known_local(&file.group) else { break Stop::End };
                    if past && !flags.has(Flags::UNWRITTEN) {
                        table.vacate(local, frame);
                        file.group.lose();
                        break Stop::Past;
                    }
                    table.arena.get_mut(frame)[part].copy_from_slice(bytes);
                    unwritten += table.change_flags(local, frame, flags.or(Flags::DIRTY));
                    table.policy.set_dirty(frame);
                    if table.policy.access(frame, epoch) {
                        self.habits.used(table.hash(key), Some(file.group.number), true);
                    }
                }
                None if table.is_busy(key) => break Stop::Wait(shard.ticket()),
                None if past => break Stop::Past,
                None if !is_all => break Stop::Partial,
                None => {
                    match table.admit(&file.group, key, Flags::DIRTY, Demand::Write, &self.habits) {
                        Ok((local, frame)) => {
                            table.arena.get_mut(frame)[part].copy_from_slice(bytes);
                            table.enter(local, frame, Demand::Write);
                            self.habits.used(table.hash(key), Some(file.group.number), true);
                            misses += 1;
                        }
                        Err(none) => break Stop::Full(none),
                    }
                }
            }
            done += bytes.len();
            pages += 1;
        };
        if let Some(local) = table.known_local(&file.group) {
            table.count_unwritten(local, unwritten);
            let hits = &table.locals[local].hits;
            hits.fetch_add(pages - misses, crate::sync::atomic::Ordering::Relaxed);
        }
        Counters::add(&file.group.counters.misses, misses as usize);
        let needs = self.needs(&table);
        let crowded = table.crowded;
        drop(table);
        self.ask_for(&needs);
        if crowded {
            self.keep_bound(shard);
        }
        self.passed(shard, pages as u32);
        (done, stop)
    }

    /// Reads a page that is written in part, changes it, and puts it into the cache.
    fn write_partly(
        &self,
        shard: &Shard,
        file: &FileState,
        offset: u64,
        data: &[u8],
        tries: &mut u32,
    ) -> Result<usize, FileError> {
        let page = self.page_of(offset);
        match self.begin(shard, file, page..page + 1, Demand::Write) {
            Begun::Present => Ok(0),
            Begun::Wait(ticket) => {
                ticket.wait();
                Ok(0)
            }
            Begun::Full(none) => self.write_full(shard, file, offset, data, none, tries),
            Begun::Past(_) => unreachable!("only reads are declined"),
            Begun::Loading(loading) => {
                let mut buffer = vec![0; loading.len()];
                self.fetch(file, &loading.pages, &mut buffer)?;
                let (part, _) = self.part(file, offset, data.len());
                let count = part.len();
                buffer[part].copy_from_slice(&data[..count]);
                loading.complete(&buffer, Flags::DIRTY);
                Ok(count)
            }
        }
    }

    /// Keeps a page that is to be used past the cache out of it. `None` if the page is in the cache
    /// by now, or being loaded: then the caller has to look for it again.
    pub(super) fn past<'a>(shard: &'a Shard, file: &FileState, page: u64) -> Option<Busy<'a>> {
        let key = Key::new(file.number, page);
        let mut table = shard.write();
        if table.find(key).is_some() {
            return None;
        }
        // Callers that wait for busy pages take turns: otherwise new busy pages could make one wait
        // forever.
        let pages = page..page + 1;
        let turn = table.queue(file.number, pages.clone());
        while table.is_busy(key) || table.is_claimed(file.number, &pages, turn) {
            let ticket = shard.ticket();
            drop(table);
            ticket.wait();
            table = shard.write();
            if table.find(key).is_some() {
                table.leave_queue(turn);
                drop(table);
                shard.wake();
                return None;
            }
        }
        table.leave_queue(turn);
        Some(Busy::new(shard, &mut table, file, pages))
    }

    /// Makes room for the next try or, after too many tries, writes the page past the cache.
    fn write_full(
        &self,
        shard: &Shard,
        file: &FileState,
        offset: u64,
        data: &[u8],
        none: NoFrame,
        tries: &mut u32,
    ) -> Result<usize, FileError> {
        *tries += 1;
        if *tries < TRIES_MAX && self.make_room(shard, file, none) {
            return Ok(0);
        }
        self.write_past(shard, file, offset, data)
    }

    /// Writes a page past the cache, unless the page is in the cache by now.
    fn write_past(
        &self,
        shard: &Shard,
        file: &FileState,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, FileError> {
        let page = self.page_of(offset);
        let Some(busy) = Self::past(shard, file, page) else { return Ok(0) };
        let pages = page..page + 1;
        let (part, is_all) = self.part(file, offset, data.len());
        let mut buffer = vec![0; self.bytes_of(file, &pages)];
        if !is_all {
            self.fetch(file, &pages, &mut buffer)?;
        }
        let count = part.len();
        buffer[part].copy_from_slice(&data[..count]);
        let (offset, length) = (self.offset_of(page), buffer.len() as u64);
        let written = file.backing.write(offset, &mut buffer);
        drop(busy);
        written.map_err(|source| FileError::Write { offset, length, source })?;
        self.bypassed(shard, file);
        Ok(count)
    }
}
