//! Writes dirty pages back, in runs in the order of their keys, and tells the threads that wait for
//! it.
//!
//! A run is copied under the lock of its shard and written without it. Meanwhile its pages are
//! `WRITING`: they stay, can be read and written to, and nobody else writes them back. A page that
//! could not be written is dirty again.

use std::ops::Range;

use super::core::{CHUNK, Core};
use super::error::FileError;
use super::files::FileState;
use super::frame::{Flags, Key};
use super::group::Counters;
use super::shard::{Shard, Ticket};
use crate::sync::atomic::Ordering::Relaxed;

/// A disk that has refused this many pages in a row is taken to refuse all: such an answer may take
/// seconds. Chosen: a run.
const REFUSED: u64 = CHUNK;

/// How many pages of a run are looked for at a time. Most are short.
const EXPECTED: u64 = 8;

/// Pages of a shard that are being written.
struct Writing<'a> {
    shard: &'a Shard,
    file: &'a FileState,
    pages: Range<u64>,
    frames: Vec<u32>,
}

impl Writing<'_> {
    fn end(&mut self, written: bool) {
        if self.frames.is_empty() {
            return;
        }
        let mut table = self.shard.write();
        if let Some(local) = table.known_local(&self.file.group) {
            let mut unwritten = 0;
            for (page, was) in self.pages.clone().zip(std::mem::take(&mut self.frames)) {
                let key = Key::new(self.file.number, page);
                let Some(frame) = table.frame_of(key, was) else { continue };
                let mut flags = table.flags(frame).without(Flags::WRITING);
                if written && !flags.has(Flags::DIRTY) {
                    // It goes to the lists of clean pages: among the dirty ones, victims may not be
                    // looked for.
                    if !flags.has(Flags::OUT) {
                        table.policy.remove(local, frame);
                        flags = flags.or(Flags::OUT);
                    }
                    table.policy.set_clean(frame);
                } else {
                    flags = flags.or(Flags::DIRTY);
                }
                unwritten += table.change_flags(local, frame, flags);
                table.put_back(local, frame);
            }
            table.count_unwritten(local, unwritten);
        }
        drop(table);
        self.shard.wake();
    }
}

impl Drop for Writing<'_> {
    /// There is something left to do only if the backing panicked.
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Pages that are still to be written ahead of need. If the backing panics first, they become
/// possible victims again: otherwise they would be in the way until somebody flushes them.
struct Left<'a> {
    core: &'a Core,
    keys: std::vec::IntoIter<Key>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        for key in self.keys.by_ref() {
            let Some(file) = self.core.file(key.file()) else { continue };
            let mut table = self.core.shard_of(&file, key.page()).write();
            if !file.is_closed()
                && let Some((frame, flags)) = table.find(key)
                && !flags.has(Flags::WRITING.or(Flags::LOADING))
                && let Some(local) = table.known_local(&file.group)
            {
                table.put_back(local, frame);
            }
        }
    }
}

/// The answer to a request to write a page back.
enum Begun<'a> {
    Clean,
    Wait(Ticket<'a>),
    Writing(Writing<'a>),
}

/// What must hold when a run has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Written,
    Durable,
}

impl Core {
    /// Marks a run of dirty pages of one chunk, from the first page of `wanted` on, and copies
    /// them.
    fn begin_write<'a>(
        &'a self,
        file: &'a FileState,
        wanted: Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Begun<'a> {
        let pages = wanted.start..wanted.end.min((wanted.start / CHUNK + 1) * CHUNK);
        let shard = self.shard_of(file, pages.start);
        let mut table = shard.write();
        // The file may have been closed while a job waited for its turn.
        let local = table.known_local(&file.group).filter(|_| !file.is_closed());
        let Some(local) = local else { return Begun::Clean };
        table.expect(file.number, pages.start..pages.end.min(pages.start + EXPECTED));
        let mut frames = Vec::new();
        buffer.clear();
        for page in pages.clone() {
            let Some((frame, flags)) = table.find(Key::new(file.number, page)) else { break };
            // Pages that are about to be discarded are not written first: otherwise the caller that
            // discards could wait forever.
            let taken = flags.has(Flags::WRITING) || table.is_busy(Key::new(file.number, page));
            if taken && frames.is_empty() {
                return Begun::Wait(shard.ticket());
            }
            if taken || !flags.has(Flags::DIRTY) {
                break;
            }
            let is_now = flags.without(Flags::DIRTY).or(Flags::WRITING);
            table.set_flags(local, frame, is_now);
            buffer.extend_from_slice(table.arena.get(frame));
            frames.push(frame);
        }
        if frames.is_empty() {
            return Begun::Clean;
        }
        let pages = pages.start..pages.start + frames.len() as u64;
        buffer.truncate(self.bytes_of(file, &pages));
        Begun::Writing(Writing { shard, file, pages, frames })
    }

    /// Writes back the first page of a range, if it is dirty, with the dirty pages that follow it.
    /// Returns how many pages that were, and the result. With `wait`, waits while another thread
    /// writes the page.
    fn write_run(
        &self,
        file: &FileState,
        wanted: Range<u64>,
        buffer: &mut Vec<u8>,
        until: Until,
        wait: bool,
    ) -> (u64, Result<(), FileError>) {
        let mut writing = loop {
            match self.begin_write(file, wanted.clone(), buffer) {
                Begun::Wait(ticket) if wait => ticket.wait(),
                Begun::Wait(_) | Begun::Clean => return (0, Ok(())),
                Begun::Writing(writing) => break writing,
            }
        };
        let (offset, length) = (self.offset_of(writing.pages.start), buffer.len() as u64);
        let result = match until {
            Until::Written => file.backing.write(offset, buffer),
            Until::Durable => file.backing.write_durably(offset, buffer),
        };
        let pages = writing.pages.end - writing.pages.start;
        let counters = &file.group.counters;
        let counter = match &result {
            Ok(()) => &counters.write_backs,
            Err(_) => &counters.write_back_errors,
        };
        Counters::add(counter, pages as usize);
        if result.is_ok() {
            file.bad_pages.forget(writing.pages.clone());
            if file.group.stuck.load(Relaxed) {
                file.group.stuck.store(false, Relaxed);
            }
        }
        writing.end(result.is_ok());
        let failed = |source| FileError::Write { offset, length, source };
        (pages, result.map_err(failed))
    }

    /// Writes a page back, with those that follow. If that fails, writes each by itself, so that
    /// one that cannot be written keeps no other from the disk. `refused` counts the pages that
    /// failed by themselves one after the other: once these are many, a run that fails is taken to
    /// fail altogether if its ends do, and one within. Returns how many pages that were, how many
    /// of them were written, and the result of the run.
    fn write_run_or_each(
        &self,
        file: &FileState,
        wanted: Range<u64>,
        buffer: &mut Vec<u8>,
        wait: bool,
        refused: &mut u64,
    ) -> (u64, u64, Result<(), FileError>) {
        let first = wanted.start;
        let count = |result: &Result<(), FileError>, pages: u64, refused: &mut u64| match result {
            Ok(()) if pages > 0 => *refused = 0,
            // A disk that is full says so at once, and what has its place can be written.
            Err(error) if !error.is_full() => *refused += 1,
            _ => {}
        };
        let (pages, result) = self.write_run(file, wanted, buffer, Until::Written, wait);
        if result.is_ok() || pages == 1 {
            self.note_bad(file, first, &result);
            count(&result, pages, refused);
            return (pages, if result.is_ok() { pages } else { 0 }, result);
        }
        let mut one = |page: u64, refused: &mut u64| {
            let (pages, result) =
                self.write_run(file, page..page + 1, buffer, Until::Written, wait);
            self.note_bad(file, page, &result);
            count(&result, pages, refused);
            if result.is_ok() { pages } else { 0 }
        };
        if *refused >= REFUSED {
            // Another one each time, so that what can be written is found in the end.
            let turn = self.next_shard.fetch_add(1, Relaxed) as u64;
            let some = [first, first + turn % pages, first + pages - 1];
            let written: u64 = some.into_iter().map(|page| one(page, refused)).sum();
            if *refused >= REFUSED {
                return (pages, written, result);
            }
        }
        let written = (first..first + pages).map(|page| one(page, refused)).sum();
        (pages, written, result)
    }

    /// Notes the result of writing a page by itself. A lack of room does not make a page bad: other
    /// pages fail as well then, and all may succeed soon.
    fn note_bad(&self, file: &FileState, page: u64, result: &Result<(), FileError>) {
        if result.as_ref().is_err_and(|error| !error.is_full()) {
            file.bad_pages.note(page, self.habits.epoch());
        }
    }

    /// Removes the keys of pages that failed lately, and makes these pages possible victims again.
    pub(super) fn let_bad_be(&self, keys: &mut Vec<Key>) {
        let epoch = self.habits.epoch();
        let is_bad = |key: &mut Key| {
            let file = self.file(key.file());
            file.is_some_and(|file| file.bad_pages.is_let_be(key.page(), epoch))
        };
        let bad: Vec<Key> = keys.extract_if(.., is_bad).collect();
        drop(Left { core: self, keys: bad.into_iter() });
    }

    /// Writes back the dirty pages of a range, and waits for those that are being written. Goes on
    /// after an error, and returns the first one.
    pub(super) fn write_range(
        &self,
        file: &FileState,
        pages: &Range<u64>,
    ) -> Result<(), FileError> {
        let mut buffer = Vec::new();
        let mut result = Ok(());
        let (mut next, mut refused) = (pages.start, 0);
        for page in self.unwritten_in(file, pages) {
            if page < next {
                continue;
            }
            let wanted = page..pages.end;
            let (tried, _, written) =
                self.write_run_or_each(file, wanted, &mut buffer, true, &mut refused);
            next = page + tried.max(1);
            result = result.and(written);
        }
        result
    }

    /// Makes durable what writes that have returned have written to a range. It also fails if a
    /// write-back has failed since the last flush.
    pub(super) fn flush(&self, file: &FileState, pages: &Range<u64>) -> Result<(), FileError> {
        let written = self.write_range(file, pages);
        let flushed = file.backing.flush().map_err(FileError::Flush);
        Self::with_earlier(file, written).and(flushed)
    }

    /// The result of writing a range or, if that succeeded, of earlier write-backs. An earlier lack
    /// of room does not count then: there was room now, and nothing was lost meanwhile.
    pub(super) fn with_earlier(
        file: &FileState,
        written: Result<(), FileError>,
    ) -> Result<(), FileError> {
        let earlier = file.take_error();
        written.and(earlier.filter(|error| !error.is_full()).map_or(Ok(()), Err))
    }

    /// Makes durable what a write has just written to a range.
    pub(super) fn write_durably(
        &self,
        file: &FileState,
        pages: &Range<u64>,
    ) -> Result<(), FileError> {
        let unwritten = self.unwritten_in(file, pages);
        let one_run = unwritten.len() as u64 == pages.end - pages.start
            && pages.start / CHUNK == (pages.end - 1) / CHUNK;
        if one_run {
            let mut buffer = Vec::new();
            let (run, written) =
                self.write_run(file, pages.clone(), &mut buffer, Until::Durable, true);
            written?;
            if run == pages.end - pages.start {
                return Ok(());
            }
        }
        self.write_range(file, pages)?;
        file.backing.flush().map_err(FileError::Flush)
    }

    /// Writes some pages back ahead of need. An error is kept for the next flush. Returns how many
    /// pages were written.
    pub(super) fn write_ahead(&self, mut keys: Vec<Key>) -> usize {
        keys.sort_unstable();
        keys.dedup();
        let mut left = Left { core: self, keys: keys.into_iter() };
        let mut buffer = Vec::new();
        let (mut written, mut refused) = (0, 0);
        let mut next = None;
        for key in left.keys.by_ref() {
            if next.is_some_and(|next| (key.file(), key.page()) < next) {
                continue;
            }
            let Some(file) = self.file(key.file()) else { continue };
            if next.is_some_and(|(last, _)| last != key.file()) {
                refused = 0; // another disk, perhaps
            }
            let end = self.pages_of(0, file.size).end;
            // The run ends before a bad page, which would make it fail.
            let bad = file.bad_pages.first_from(key.page() + 1);
            let wanted = key.page()..bad.unwrap_or(end);
            let (tried, done, result) =
                self.write_run_or_each(&file, wanted, &mut buffer, false, &mut refused);
            written += done as usize;
            // Not a `Key`: there is none for the page after the last one of the largest file.
            next = Some((key.file(), key.page() + tried.max(1)));
            if let Err(error) = result {
                file.keep_error(error);
            }
        }
        written
    }

    /// The pages of a range that are dirty or being written, in order.
    pub(super) fn unwritten_in(&self, file: &FileState, pages: &Range<u64>) -> Vec<u64> {
        // Every page that a returned write left dirty is counted.
        if pages.is_empty() || file.group.unwritten.load(Relaxed) == 0 {
            return Vec::new();
        }
        let first = pages.start / CHUNK;
        let chunks = (pages.end.saturating_sub(1) / CHUNK + 1).saturating_sub(first);
        let shards = chunks.min(self.shards.len() as u64);
        // Chunks go round the shards, so the first few are in all the shards that the range is in.
        let shards = first..first + shards;
        let mut unwritten = Vec::new();
        for (chunk, shard) in shards.map(|chunk| (chunk, self.shard_of(file, chunk * CHUNK))) {
            let table = shard.read();
            // A small range is looked up page by page, so that this does not take longer the more
            // others have written.
            let many = chunks / self.shards.len() as u64 * CHUNK >= table.unwritten_count() as u64;
            if many || table.has_few_unwritten(&file.group) {
                unwritten.extend(table.unwritten_in(&file.group, file.number, pages));
                continue;
            }
            let own = (chunk..first + chunks).step_by(self.shards.len());
            let own = own.flat_map(|chunk| {
                pages.start.max(chunk * CHUNK)..pages.end.min((chunk + 1) * CHUNK)
            });
            unwritten.extend(table.unwritten_of_pages(file.number, own));
        }
        unwritten.sort_unstable();
        unwritten
    }
}
