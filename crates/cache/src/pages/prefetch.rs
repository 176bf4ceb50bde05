//! Reads pages before they are asked for, in the background. A page that finds no frame is not
//! read. An error is left to the caller that asks for the page.

use std::collections::VecDeque;
use std::ops::Range;

use super::core::{CHUNK, Core};
use super::files::FileState;
use super::fill::{Begun, Demand};
use super::frame::Flags;
use super::group::{Counters, GroupState};
use super::streams::{WINDOW_MIN, Waits};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::lock;

/// The most ranges that wait to be read, of readers and of hints each. Others are ignored.
const WANTED_MAX: usize = 64;
/// Hints together may want one in this many of the pages that the group may have. More of them
/// would push out what they have fetched themselves. A hint may be of a whole disk, and costs its
/// sender nothing.
const HINTS_SHARE: usize = 4;
/// A hint is read this many pages at a time, so that readers' ranges come in between.
const SLICE: u64 = 4 * CHUNK;
/// A window takes at most one in this many of the pages that a group may have, so eight streams
/// with two windows each take a quarter. A loop that does not fit in the cache loses as many hits
/// as windows take.
const SHARE: usize = 64;

/// A range of a file.
type Wish = (u16, Range<u64>);

/// What is to be read for a group.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Ranges for readers in order. These come first.
    readers: VecDeque<Wish>,
    hints: VecDeque<Wish>,
    /// Whether the first hint is the rest of the one that the background is reading.
    is_rest: bool,
    /// What the background is reading, and whether it is for a reader.
    now: Option<(Wish, bool)>,
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.readers.is_empty() && self.hints.is_empty()
    }

    /// How many pages hints want, with the one that is being read.
    fn hinted(&self) -> u64 {
        let now = self.now.iter().filter(|(_, for_reader)| !for_reader).map(|(wish, _)| wish);
        self.hints.iter().chain(now).map(|(_, pages)| pages.end - pages.start).sum()
    }

    /// Takes what is to be read next. Before that, shortens hints to what they may want now.
    fn next(&mut self, hints_max: u64) -> Option<(Wish, bool)> {
        while let Some(excess) = self.hinted().checked_sub(hints_max + 1)
            && let Some((_, last)) = self.hints.back_mut()
        {
            last.end = last.end.saturating_sub(excess + 1);
            if last.is_empty() {
                self.hints.pop_back();
            }
        }
        let next = self.readers.pop_front().map(|wish| (wish, true));
        self.is_rest = false;
        self.now = next.or_else(|| {
            let (file, pages) = self.hints.pop_front()?;
            let end = pages.end.min(pages.start + SLICE);
            if end < pages.end {
                self.hints.push_front((file, end..pages.end));
                self.is_rest = true;
            }
            Some(((file, pages.start..end), false))
        });
        self.now.clone()
    }

    /// Drops the rest of a hint of which a part could not be read.
    fn give_up(&mut self) {
        if std::mem::take(&mut self.is_rest) {
            self.hints.pop_front();
        }
    }
}

/// Why a range was not read to its end.
enum Stopped {
    /// No frame could be had.
    Full,
    Failed,
}

/// Held while the background reads ranges, so that none counts as being read after a backing
/// panicked.
struct AtIt<'a>(&'a GroupState);

impl Drop for AtIt<'_> {
    fn drop(&mut self) {
        lock(&self.0.wanted).now = None;
    }
}

impl Core {
    /// How many pages the hints of a group may want together.
    fn hints_max(&self, group: &GroupState) -> u64 {
        let may_have = self.pages.load(Relaxed).min(group.max());
        (may_have / HINTS_SHARE).max(1) as u64
    }

    /// Has a range read in the background, or as much of its beginning as hints may want.
    pub(super) fn prefetch(&self, file: &FileState, pages: Range<u64>) {
        let most = self.hints_max(&file.group);
        {
            let mut wanted = lock(&file.group.wanted);
            let end = pages.end.min(pages.start + most.saturating_sub(wanted.hinted()));
            if pages.start < end && wanted.hints.len() < WANTED_MAX {
                wanted.hints.push_back((file.number, pages.start..end));
            }
        }
        // Ranges of earlier calls may wait, too, if the jobs that were asked for were dropped.
        if Self::is_behind(file) {
            self.wake_reader(&file.group);
        }
    }

    /// Queues a range to be read for a reader. Returns whether there was room: then the caller
    /// still has to ask for a job.
    fn want(file: &FileState, pages: Range<u64>) -> bool {
        let mut wanted = lock(&file.group.wanted);
        let has_room = wanted.readers.len() < WANTED_MAX && !pages.is_empty();
        if has_room {
            wanted.readers.push_back((file.number, pages));
        }
        has_room
    }

    /// Whether ranges wait to be read.
    fn is_behind(file: &FileState) -> bool {
        !lock(&file.group.wanted).is_empty()
    }

    /// If the reader of these pages reads in order, has read ahead what it will want next.
    pub(super) fn follow(&self, file: &FileState, pages: &Range<u64>, missed: Option<u64>) {
        let max = self.window_max(file);
        if max < WINDOW_MIN {
            return;
        }
        let end = self.pages_of(0, file.size).end;
        let on_its_way = |page| {
            let wanted = lock(&file.group.wanted);
            let covers = |(number, range): &Wish| *number == file.number && range.contains(&page);
            if wanted.readers.iter().any(covers) {
                return Some(Waits(true));
            }
            // Hints that wait do not count. They come last, and a reader that gets there first has
            // its own windows.
            wanted.now.as_ref().is_some_and(|(now, _)| covers(now)).then_some(Waits(false))
        };
        let mut wants = false;
        file.streams.follow(pages, missed, max, on_its_way, |range| {
            wants = Self::want(file, range.start..range.end.min(end));
            wants
        });
        // Only now that the streams are not locked: the code that runs jobs is the program's, and
        // may run one at once.
        if wants || Self::is_behind(file) {
            self.wake_reader(&file.group);
        }
    }

    /// The longest window of a reader of this file, in pages.
    fn window_max(&self, file: &FileState) -> u64 {
        if !self.reads_ahead.load(Relaxed) {
            return 0;
        }
        let set = self.ahead_max.load(Relaxed) / self.page_size();
        set.min(self.pages.load(Relaxed).min(file.group.max()) / SHARE) as u64
    }

    /// Reads all that is wanted for a group.
    pub(super) fn read_ahead(&self, group: &GroupState) {
        let _at_it = AtIt(group);
        loop {
            let next = lock(&group.wanted).next(self.hints_max(group));
            let Some((wish, for_reader)) = next else { return };
            // The number may be that of another group's file by now.
            let file = self.file(wish.0).filter(|file| std::ptr::eq(&raw const *file.group, group));
            let Some(file) = file else { continue };
            if let Err(stopped) = self.read_range_ahead(&file, wish.1.clone(), for_reader) {
                lock(&group.wanted).give_up();
                file.streams.cut(&wish.1, matches!(stopped, Stopped::Failed));
            }
        }
    }

    fn read_range_ahead(
        &self,
        file: &FileState,
        pages: Range<u64>,
        for_reader: bool,
    ) -> Result<(), Stopped> {
        let demand = if for_reader { Demand::Ahead } else { Demand::Hint };
        let mut buffer = Vec::new();
        let mut page = pages.start;
        // The number may be that of another, shorter file by now.
        let pages_end = pages.end.min(self.pages_of(0, file.size).end);
        while page < pages_end {
            // The reader may have overtaken this: nobody wants the pages behind it.
            if for_reader {
                page = page.max(file.streams.position(&pages));
            }
            if page >= pages_end {
                break;
            }
            let end = pages_end.min((page / CHUNK + 1) * CHUNK);
            match self.begin(self.shard_of(file, page), file, page..end, demand) {
                Begun::Full(_) => return Err(Stopped::Full),
                Begun::Present | Begun::Wait(_) | Begun::Past(_) => page += 1,
                Begun::Loading(loading) => {
                    let count = loading.pages.end - page;
                    page = loading.pages.end;
                    buffer.resize(loading.len(), 0);
                    if self.fetch(file, &loading.pages, &mut buffer).is_err() {
                        return Err(Stopped::Failed);
                    }
                    Counters::add(&file.group.counters.read_ahead, count as usize);
                    loading.complete(&buffer, Flags::NONE);
                }
            }
        }
        Ok(())
    }
}
