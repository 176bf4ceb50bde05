//! Decides who reads a file in order, and what to read ahead for that reader. It does nothing else.
//!
//! A read that begins where a missed read ended makes a stream, and so does a read at the beginning
//! of the file. Several streams of a file are told apart, because clients of a volume share it. For
//! each of them a window of pages is read ahead. When its reader comes to the window's first page,
//! the next window is asked for, so that reader and disk work at the same time. Windows start at
//! two or four times the first read and grow by factors of four and two, as the kernel's do. They
//! shrink if there is no room for them or if pages were gone before they were asked for.
//!
//! A hit costs a look at one line of memory, which changes as often as windows do. Only a miss, or
//! a hit that begins a window, takes a lock, and it goes on without it if the lock is taken.
//!
//! W. Fengguang, H. Xi, C. Xu, "On the design of a new Linux readahead framework", Operating
//! Systems Review 42(5), 2008 (windows, and the mark in them); `dmu_zfetch.c` of ZFS (streams of a
//! file).

use std::collections::VecDeque;
use std::ops::Range;

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex, MutexGuard, unless_taken};

/// The most streams of a file.
const STREAMS: usize = 8;
/// How many ends of missed reads are remembered: a read that begins at one makes a stream.
const CANDIDATES: usize = 16;
/// The smallest window worth the trouble, in pages.
pub(super) const WINDOW_MIN: u64 = 4;
/// A mark that no page matches.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Streams {
    /// The page of each stream at which its next window is to be asked for.
    marks: [AtomicU64; STREAMS],
    known: Mutex<Known>,
}

/// What is known of the readers of a file.
#[derive(Debug)]
pub(super) struct Known {
    streams: [Option<Stream>; STREAMS],
    /// Where reads that missed pages ended, the latest last.
    candidates: VecDeque<u64>,
    /// Counts reads that were followed, to tell which stream was seen last.
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The end of what was read ahead.
    end: u64,
    /// Pages of the last window.
    window: u64,
    /// The page at which the next window is asked for.
    mark: u64,
    /// How far its reader has come, as far as is known.
    position: u64,
    seen: u64,
}

/// Whether a range still waits to be read; otherwise it is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits(pub(super) bool);

/// What is to be read, for which stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) pages: Range<u64>,
    stream: usize,
}

impl Default for Streams {
    fn default() -> Self {
        let known = Known { streams: [None; STREAMS], candidates: VecDeque::new(), clock: 0 };
        Self { marks: std::array::from_fn(|_| AtomicU64::new(NEVER)), known: Mutex::new(known) }
    }
}

impl Streams {
    /// Whether a read of these pages reaches the mark of a stream.
    pub(super) fn reached(&self, pages: &Range<u64>) -> bool {
        self.marks.iter().any(|mark| pages.contains(&mark.load(Relaxed)))
    }

    /// Decides what to read ahead, at most `window_max` pages, for a reader that misses one of
    /// these pages or has reached a mark. `on_its_way` says whether a page is about to be read, and
    /// whether that still has to begin. `ask` has a range read, or returns false if it cannot: then
    /// the stream stays as it was.
    pub(super) fn follow(
        &self,
        pages: &Range<u64>,
        missed: Option<u64>,
        window_max: u64,
        on_its_way: impl Fn(u64) -> Option<Waits>,
        ask: impl FnOnce(&Range<u64>) -> bool,
    ) {
        let Some(mut known) = self.known() else { return };
        let before = known.streams;
        let ahead = known.follow(pages, missed, window_max, on_its_way);
        if let Some(ahead) = ahead
            && !ask(&ahead.pages)
        {
            known.streams[ahead.stream] = before[ahead.stream];
        }
        self.publish(&known);
    }

    /// Shortens the window of a stream, because one that ends in this range was not read for want
    /// of room, and in the end drops the stream. After an error (`failed`) it drops the stream at
    /// once.
    pub(super) fn cut(&self, pages: &Range<u64>, failed: bool) {
        let Some(mut known) = self.known() else { return };
        for place in &mut known.streams {
            let Some(stream) = place.filter(|it| pages.contains(&(it.end - 1))) else { continue };
            let window = stream.window / 2;
            let goes_on = !failed && window >= WINDOW_MIN;
            *place = goes_on.then_some(Stream { window, ..stream });
        }
        self.publish(&known);
    }

    /// How far the reader of a window has come, if it has begun with the window: pages before that
    /// need not be read any more.
    pub(super) fn position(&self, window: &Range<u64>) -> u64 {
        let Some(known) = self.known() else { return 0 };
        let inside = known.streams.iter().flatten().map(|stream| stream.position);
        // Of several readers of the same pages, the one farthest behind counts.
        let near = window.start..window.end + 2 * (window.end - window.start);
        inside.filter(|at| near.contains(at)).min().unwrap_or(0)
    }

    fn known(&self) -> Option<MutexGuard<'_, Known>> {
        unless_taken(self.known.try_lock())
    }

    fn publish(&self, known: &Known) {
        for (mark, stream) in self.marks.iter().zip(&known.streams) {
            let now = stream.map_or(NEVER, |stream| stream.mark);
            if mark.load(Relaxed) != now {
                mark.store(now, Relaxed);
            }
        }
    }
}

impl Known {
    fn follow(
        &mut self,
        pages: &Range<u64>,
        missed: Option<u64>,
        window_max: u64,
        on_its_way: impl Fn(u64) -> Option<Waits>,
    ) -> Option<Ahead> {
        self.clock += 1;
        if window_max < WINDOW_MIN {
            return None;
        }
        let of_this = |stream: &Stream| {
            pages.contains(&stream.mark)
                || (stream.end.saturating_sub(2 * stream.window)..=stream.end)
                    .contains(&pages.start)
        };
        let found = self.streams.iter().position(|stream| stream.as_ref().is_some_and(of_this));
        if let Some((at, stream)) = found.and_then(|at| Some((at, self.streams[at]?))) {
            return self.go_on(at, stream, pages, missed, window_max, on_its_way);
        }
        missed?;
        // A reader of parts of pages begins again in the page that it read last.
        let follows = |&end: &u64| end == pages.start || end == pages.start + 1;
        let candidate = self.candidates.iter().position(follows);
        if let Some(at) = candidate {
            self.candidates.remove(at);
        } else if pages.start > 0 {
            if self.candidates.len() == CANDIDATES {
                self.candidates.pop_front();
            }
            self.candidates.push_back(pages.end);
            return None;
        }
        let seen = |at: &usize| self.streams[*at].map_or(0, |stream| stream.seen);
        let at = (0..STREAMS).min_by_key(seen)?;
        let window = first_window(pages.end - pages.start, window_max);
        Some(self.ask(at, pages.end, window, pages.end))
    }

    /// Continues a known stream, whose reader has reached the mark or misses a page.
    fn go_on(
        &mut self,
        at: usize,
        stream: Stream,
        pages: &Range<u64>,
        missed: Option<u64>,
        window_max: u64,
        on_its_way: impl Fn(u64) -> Option<Waits>,
    ) -> Option<Ahead> {
        let lost = missed.filter(|&page| page < stream.end && on_its_way(page).is_none());
        let position = pages.end;
        if lost.is_none() && on_its_way(stream.end - 1) == Some(Waits(true)) {
            // The reader is faster than the background: another window would be of no use.
            self.streams[at] = Some(Stream { position, seen: self.clock, ..stream });
            return None;
        }
        if lost.is_none() && (pages.contains(&stream.mark) || pages.end > stream.end) {
            let window = next_window(stream.window, window_max);
            // The new window begins after what is read now. Its first page is the next mark.
            let begin = stream.end.max(pages.end);
            return Some(self.ask(at, begin, window, position));
        }
        let seen = self.clock;
        if lost.is_some() {
            // The page was read ahead and is gone, or was never read: there is no room for so long
            // a window.
            let window = (stream.window / 2).min(window_max).max(WINDOW_MIN);
            let end = pages.end + window;
            self.streams[at] = Some(Stream { end, window, mark: pages.end, position, seen });
            return Some(Ahead { pages: pages.end..end, stream: at });
        }
        self.streams[at] = Some(Stream { position, seen, ..stream });
        None
    }

    fn ask(&mut self, at: usize, begin: u64, window: u64, position: u64) -> Ahead {
        let end = begin + window;
        let stream = Stream { end, window, mark: begin, position, seen: self.clock };
        self.streams[at] = Some(stream);
        Ahead { pages: begin..end, stream: at }
    }
}

/// As the kernel's `get_init_ra_size`.
fn first_window(read: u64, max: u64) -> u64 {
    let window = read.next_power_of_two();
    let window = match () {
        () if window <= max / 32 => window * 4,
        () if window <= max / 4 => window * 2,
        () => max,
    };
    window.clamp(WINDOW_MIN, max)
}

/// As the kernel's `get_next_ra_size`.
fn next_window(window: u64, max: u64) -> u64 {
    match () {
        () if window < max / 16 => window * 4,
        () if window <= max / 2 => window * 2,
        () => max,
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// A reader to whom pages are missing unless they were read before or ahead. Records what was
    /// asked for.
    struct Reader {
        streams: Streams,
        there: std::collections::BTreeSet<u64>,
        asked: Vec<Range<u64>>,
        misses: u64,
    }

    impl Reader {
        fn new() -> Self {
            let (streams, there) = (Streams::default(), std::collections::BTreeSet::new());
            Self { streams, there, asked: Vec::new(), misses: 0 }
        }

        fn read(&mut self, pages: Range<u64>, max: u64) {
            let missed = pages.clone().find(|page| !self.there.contains(page));
            if missed.is_some() || self.streams.reached(&pages) {
                let Self { streams, there, asked, .. } = self;
                streams.follow(
                    &pages,
                    missed,
                    max,
                    |_| None,
                    |range| {
                        asked.push(range.clone());
                        there.extend(range.clone());
                        true
                    },
                );
            }
            self.misses += u64::from(missed.is_some());
            self.there.extend(pages);
        }
    }

    #[test]
    fn windows_grow_and_no_page_is_asked_for_twice() {
        let mut reader = Reader::new();
        (100..2000).for_each(|page| reader.read(page..page + 1, 256));
        assert_eq!(reader.misses, 2, "the first two");
        let lengths: Vec<u64> = reader.asked.iter().map(|range| range.end - range.start).collect();
        assert_eq!(lengths[..6], [4, 16, 32, 64, 128, 256]);
        assert!(lengths[6..].iter().all(|&length| length == 256));
        assert!(reader.asked.windows(2).all(|two| two[0].end == two[1].start));
        assert!(reader.asked.last().unwrap().end <= 2000 + 2 * 256);
    }

    #[test]
    fn streams_that_are_mixed_are_told_apart() {
        let mut reader = Reader::new();
        for step in 0..500 {
            for stream in 0..STREAMS as u64 {
                reader.read((stream << 20) + step..(stream << 20) + step + 1, 64);
            }
        }
        assert!(reader.misses <= 2 * STREAMS as u64, "{} misses", reader.misses);
    }

    #[test]
    fn who_reads_here_and_there_makes_no_stream() {
        let mut reader = Reader::new();
        (1..2000_u64)
            .for_each(|step| reader.read(step * 7919 % 100_003..step * 7919 % 100_003 + 1, 64));
        assert!(reader.asked.is_empty(), "{:?}", reader.asked);
        // Nor does it end the stream of a reader in order meanwhile.
        for step in 0..1000_u64 {
            reader.read(1_000_000 + step..1_000_001 + step, 64);
            (0..4).for_each(|other| {
                let page = 2_000_000 + (step * 4 + other) * 7919 % 1_000_003;
                reader.read(page..page + 1, 64);
            });
        }
        let own =
            (1_000_000..1_001_000).filter(|page| reader.asked.iter().any(|it| it.contains(page)));
        assert!(own.count() >= 990);
    }

    #[test]
    fn parts_of_pages_and_large_reads_make_streams_too() {
        let mut reader = Reader::new();
        (400..4000).for_each(|part| reader.read(part / 8..part / 8 + 1, 64));
        assert_eq!(reader.misses, 2);
        let mut reader = Reader::new();
        (10..100).for_each(|step| reader.read(step * 100..(step + 1) * 100, 64));
        assert_eq!(reader.asked[0], 1200..1264);
        assert!(reader.asked.iter().all(|range| range.end - range.start <= 64));
    }

    #[test]
    fn windows_shrink_where_pages_are_gone_before_they_are_used() {
        let mut reader = Reader::new();
        (0..1000).for_each(|page| reader.read(page..page + 1, 128));
        assert!(reader.misses <= 1);
        reader.asked.clear();
        for page in 1000..1200 {
            reader.there.clear();
            reader.read(page..page + 1, 128);
        }
        let longest = reader.asked[20..].iter().map(|range| range.end - range.start).max();
        assert!(longest <= Some(WINDOW_MIN * 2), "{longest:?}");
    }

    #[test]
    fn what_cannot_be_read_is_asked_for_less_and_less() {
        let streams = Streams::default();
        let ask = |pages: Range<u64>| {
            let mut asked = None;
            streams.follow(
                &pages,
                Some(pages.start),
                128,
                |_| None,
                |range| {
                    asked = Some(range.clone());
                    true
                },
            );
            asked
        };
        let first = ask(0..32).unwrap();
        assert_eq!(first, 32..96);
        streams.cut(&first, false);
        assert!(streams.reached(&(32..33)), "it goes on");
        streams.cut(&first, true);
        assert!(!streams.reached(&(0..1000)), "after an error it does not");
        // If the queue is full, nothing changes.
        streams.follow(&(0..32), Some(0), 128, |_| None, |_| false);
        assert!(!streams.reached(&(0..1000)));
        assert_eq!(ask(0..1), Some(1..5));
    }

    #[test]
    fn without_room_nothing_is_read_ahead() {
        let mut reader = Reader::new();
        (0..100).for_each(|page| reader.read(page..page + 1, WINDOW_MIN - 1));
        assert!(reader.asked.is_empty());
    }
}
