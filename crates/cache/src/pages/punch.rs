//! Discards and zeroes: what the cache holds of a range goes, and nothing comes into it meanwhile.
//!
//! A long range is done in pieces. Pages of a piece that are in the cache are marked as being
//! written, so that they are neither evicted nor written back while the backing works on it. They
//! are dropped when it is done. If the backing fails, they stay and are dirty, because the backing
//! may have changed its own copy.

use std::io;
use std::ops::Range;

use super::core::{CHUNK, Core};
use super::error::FileError;
use super::files::FileState;
use super::frame::{Flags, Key};
use super::shard::Shard;
use super::table::Table;
use super::write::Busy;

/// The most bytes that are zeroed, or discarded, while others wait for pages of that range. Zeroes
/// are data to a backing that encrypts; a discard is mostly a note.
const ZEROED: u64 = 8 << 20;
const DISCARDED: u64 = 4 << 30;

/// Finding a page takes as long as looking at this many frames in turn, or fewer.
const LOOKUP: u64 = 8;

/// Pages of a shard that are kept from being written back.
struct Claimed<'a> {
    shard: &'a Shard,
    file: &'a FileState,
    frames: Vec<(Key, u32)>,
}

impl Claimed<'_> {
    fn end(&mut self, punched: bool) {
        let mut table = self.shard.write();
        if let Some(local) = table.known_local(&self.file.group) {
            for (key, was) in std::mem::take(&mut self.frames) {
                let Some(frame) = table.frame_of(key, was) else { continue };
                let flags = table.flags(frame).without(Flags::WRITING);
                if punched {
                    table.set_flags(local, frame, flags);
                    table.vacate(local, frame);
                    self.file.group.lose();
                } else {
                    // The backing may have done a part of the work.
                    table.policy.set_dirty(frame);
                    table.set_flags(local, frame, flags.or(Flags::DIRTY));
                    table.put_back(local, frame);
                }
            }
        }
        drop(table);
        self.shard.wake();
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.end(false);
        }
    }
}

impl Core {
    pub(super) fn discard(
        &self,
        file: &FileState,
        offset: u64,
        length: u64,
    ) -> Result<(), FileError> {
        Self::check_range(file, offset, length)?;
        let pages = self.whole_pages(file, offset, length);
        self.in_pieces(&pages, DISCARDED, |piece| {
            self.punch(file, piece, "discarding", |at, length| file.backing.discard(at, length))
        })
    }

    pub(super) fn write_zeroes(
        &self,
        file: &FileState,
        offset: u64,
        length: u64,
    ) -> Result<(), FileError> {
        Self::check_range(file, offset, length)?;
        let pages = self.whole_pages(file, offset, length);
        let end = offset + length;
        let (body, rest) = if pages.is_empty() {
            (end, end)
        } else {
            (self.offset_of(pages.start), self.offset_of(pages.end).min(end))
        };
        // The rest at each end lies in one page; if there is no whole page, all lies in at most
        // two.
        let zeroes = vec![0; 2 * self.page_size()];
        self.write(file, offset, &zeroes[..(body - offset) as usize])?;
        self.write(file, rest, &zeroes[..(end - rest) as usize])?;
        self.in_pieces(&pages, ZEROED, |piece| {
            self.punch(file, piece, "zeroing", |at, length| file.backing.write_zeroes(at, length))
        })
    }

    /// The pages that lie completely in a range.
    fn whole_pages(&self, file: &FileState, offset: u64, length: u64) -> Range<u64> {
        let start = self.page_of(offset + self.page_size() as u64 - 1);
        let end = match offset + length {
            end if end == file.size => self.pages_of(0, end).end,
            end => self.page_of(end),
        };
        start..end.max(start)
    }

    /// Does this for one piece of a range after the other: others may use the rest meanwhile.
    fn in_pieces(
        &self,
        pages: &Range<u64>,
        bytes: u64,
        mut each: impl FnMut(&Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let most = (bytes / self.page_size() as u64).max(1);
        let mut next = pages.start;
        while next < pages.end {
            let end = pages.end.min(next + most);
            each(&(next..end))?;
            next = end;
        }
        Ok(())
    }

    pub(super) fn punch(
        &self,
        file: &FileState,
        pages: &Range<u64>,
        action: &'static str,
        punch: impl FnOnce(u64, u64) -> io::Result<()>,
    ) -> Result<(), FileError> {
        if pages.is_empty() {
            return Ok(());
        }
        // In the order of the shards, so that no two callers wait for each other.
        let chunks = pages.start / CHUNK..(pages.end - 1) / CHUNK + 1;
        let chunks = chunks.take(self.shards.len());
        let mut shards: Vec<_> =
            chunks.map(|chunk| self.shard_number(file, chunk * CHUNK)).collect();
        shards.sort_unstable();
        let busy: Vec<_> = shards.iter().map(|&at| self.make_busy(at, file, pages)).collect();
        let claim = |at: usize| Self::claim(&self.shards[at], file, pages);
        let mut claimed: Vec<_> = shards.into_iter().map(claim).collect();
        let offset = self.offset_of(pages.start);
        let length = self.bytes_of(file, pages) as u64;
        let result = punch(offset, length);
        for claimed in &mut claimed {
            claimed.end(result.is_ok());
        }
        drop(busy);
        result.map_err(|source| FileError::Punch { action, offset, length, source })
    }

    fn make_busy(&self, at: usize, file: &FileState, pages: &Range<u64>) -> Busy<'_> {
        let shard = &self.shards[at];
        let skims_ticket = || shard.skims_ticket(&file.skims.get()?[at]);
        let mut table = shard.write();
        // There might always be reads past the cache of some of these pages. While a caller has a
        // turn, no new ones begin.
        let turn = table.queue(file.number, pages.clone());
        loop {
            let meets = |(other, range): &(u16, Range<u64>)| {
                *other == file.number && range.start < pages.end && pages.start < range.end
            };
            let ticket =
                if table.busy.iter().any(meets) || table.is_claimed(file.number, pages, turn) {
                    shard.ticket()
                } else if let Some(ticket) = skims_ticket() {
                    // Otherwise such a read could return what the backing has after this call, and
                    // a later read could still find the old pages in the cache.
                    ticket
                } else {
                    table.leave_queue(turn);
                    let busy = Busy::new(shard, &mut table, file, pages.clone());
                    drop(table);
                    // Callers that waited for this turn may go on.
                    shard.wake();
                    return busy;
                };
            drop(table);
            ticket.wait();
            table = shard.write();
        }
    }

    /// Marks all pages of a range that are in the cache, once none is being read or written.
    fn claim<'a>(shard: &'a Shard, file: &'a FileState, pages: &Range<u64>) -> Claimed<'a> {
        loop {
            let mut table = shard.write();
            let frames = Self::frames_in(&table, file.number, pages);
            let moving = Flags::LOADING.or(Flags::WRITING);
            if frames.iter().any(|&frame| table.flags(frame).has(moving)) {
                let ticket = shard.ticket();
                drop(table);
                ticket.wait();
                continue;
            }
            if let Some(local) = table.known_local(&file.group) {
                for &frame in &frames {
                    let flags = table.flags(frame).or(Flags::WRITING);
                    table.set_flags(local, frame, flags);
                }
            }
            let frames = frames.into_iter().map(|frame| (table.key(frame), frame)).collect();
            return Claimed { shard, file, frames };
        }
    }

    /// The frames with pages of a range of a file.
    pub(super) fn frames_in(table: &Table, file: u16, pages: &Range<u64>) -> Vec<u32> {
        // All frames count, used or not, because a search through them looks at all.
        if (pages.end - pages.start).saturating_mul(LOOKUP) < table.frame_count() as u64 {
            let found = pages.clone().map(|page| table.find(Key::new(file, page)));
            return found.flatten().map(|(frame, _)| frame).collect();
        }
        let is_wanted = |&frame: &u32| {
            let key = table.key(frame);
            key.file() == file && pages.contains(&key.page())
        };
        table.occupied(0).filter(is_wanted).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::super::{Backing, PageCache};
    use super::*;

    /// A file that nobody reads or writes.
    struct Unused;

    impl Backing for Unused {
        fn size(&self) -> u64 {
            64 * 512
        }
        fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            unreachable!()
        }
        fn write(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            unreachable!()
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Without turns they would race, and hundreds of discards can go before a read.
    #[test]
    fn who_waits_for_busy_pages_gets_them_in_turn() {
        let cache = PageCache::builder(1 << 20).page_size(512).shards(1).build().unwrap();
        let file = cache.open(Arc::new(Unused), &cache.group("all").build()).unwrap();
        let (core, file) = file.parts();
        let shard = &core.shards[0];
        for _ in 0..20 {
            let busy = core.make_busy(0, file, &(0..64));
            let order = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for comer in 1..=4 {
                    let order = &order;
                    scope.spawn(move || {
                        let got = if comer % 2 == 1 {
                            Core::past(shard, file, 5).expect("the page is not in the cache")
                        } else {
                            core.make_busy(0, file, &(0..64))
                        };
                        order.lock().unwrap().push(comer);
                        drop(got);
                    });
                    while shard.read().claimants.len() < comer {
                        thread::yield_now();
                    }
                }
                drop(busy);
            });
            assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 4]);
        }
    }
}
