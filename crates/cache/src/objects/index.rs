//! Finds the frame of a key: a hash table whose probe is one line of memory.
//!
//! A line has twelve frames and one byte of the hash of each. An entry that finds its line full
//! goes on to another line, and is counted on each line that it passes. So a lookup knows whether
//! to go on, and removing an entry leaves nothing behind. An index of full size never grows,
//! however many entries come and go.
//!
//! N. Bronson, X. Shi, "Open-sourcing F14 for faster, more memory-efficient hash tables", 2019.

use super::bytes::equal;

/// The frames of a line.
const WAYS: usize = 12;
/// Places per entry, as a fraction. With it, after entries have come and gone for long, one in 13
/// is not on its first line, and a lookup of a missing key looks at 1.35 lines. With only a quarter
/// more places than entries, these were one in 4, and 3.
const ROOM: (usize, usize) = (3, 2);
/// How many lines an entry tries in steps of its own length, so that full lines do not fill their
/// neighbours. After these it tries each line in turn.
const JUMPS: usize = 4;
/// A line that at least this many entries have passed: how many is not known any more, so the count
/// stays. With good hashes this never happens: of 25,000 lines, after 40 million entries had come
/// and gone, none was ever passed by more than 13.
const MANY: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    /// A byte of the hash of each entry, 0 if there is none; then [`passed`](Self::passed), then
    /// unused bytes.
    head: [u8; 16],
    frames: [u32; WAYS],
}

impl Line {
    /// The places with this tag, as a bit for each.
    #[inline]
    fn with(&self, tag: u8) -> u32 {
        equal(self.head, tag) & ((1 << WAYS) - 1)
    }

    /// How many entries found no room here and went on.
    #[inline]
    fn passed(&self) -> u8 {
        self.head[WAYS]
    }
}

/// Frames by the hashes of their keys.
#[derive(Debug)]
pub(super) struct Index {
    /// At least one.
    lines: Box<[Line]>,
    len: usize,
}

impl Index {
    pub(super) fn with_capacity(entries: usize) -> Self {
        let lines = (entries * ROOM.0).div_ceil(ROOM.1 * WAYS).max(1);
        Self { lines: vec![Line::default(); lines].into(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The line where the entry with this hash belongs, and its tag.
    #[inline]
    fn home(&self, hash: u64) -> (usize, u8) {
        // The lower half: the shard was chosen by bits above it.
        let line = (hash as u32 as u64 * self.lines.len() as u64) >> 32;
        (line as usize, ((hash >> 56) as u8).max(1))
    }

    /// The line that an entry with this tag tries next, after `tried` others and this one, which is
    /// full.
    #[inline]
    fn next(&self, line: usize, tag: u8, tried: usize) -> usize {
        let next = line + if tried < JUMPS { tag as usize } else { 1 };
        if next < self.lines.len() { next } else { next % self.lines.len() }
    }

    /// The frame with this hash for which `is_it` returns true.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(hash, is_it).map(|(line, place)| self.lines[line].frames[place])
    }

    /// The line of that frame, and its place there.
    #[inline]
    fn position(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let (mut at, tag) = self.home(hash);
        for tried in 0..self.lines.len() + JUMPS {
            let line = &self.lines[at];
            let mut found = line.with(tag);
            while found != 0 {
                let place = found.trailing_zeros() as usize;
                if is_it(line.frames[place]) {
                    return Some((at, place));
                }
                found &= found - 1;
            }
            if line.passed() == 0 {
                return None;
            }
            at = self.next(at, tag, tried);
        }
        None
    }

    /// Makes room for one more entry, if there will hardly be more than `most`.
    pub(super) fn reserve(&mut self, most: u64, hash_of: impl Fn(u32) -> u64) {
        if self.len * ROOM.0 < self.lines.len() * WAYS * ROOM.1 {
            return;
        }
        // Grows by an eighth at least, even if `most` is raised in small steps.
        let (least, most) = (self.len + self.len / 8, most.min(2 * self.len as u64) as usize);
        let mut larger = Self::with_capacity(most.max(least));
        for line in &self.lines {
            let held = line.head.iter().zip(line.frames).filter(|&(&tag, _)| tag != 0);
            held.for_each(|(_, frame)| larger.insert(hash_of(frame), frame));
        }
        *self = larger;
    }

    /// Adds a frame that is not there.
    ///
    /// # Panics
    ///
    /// If there is no room: [`reserve`](Self::reserve) makes some.
    pub(super) fn insert(&mut self, hash: u64, frame: u32) {
        assert!(self.len < self.lines.len() * WAYS, "no room was made for frame {frame}");
        let (mut at, tag) = self.home(hash);
        for tried in 0.. {
            let next = self.next(at, tag, tried);
            let line = &mut self.lines[at];
            let free = line.with(0);
            if free != 0 {
                let place = free.trailing_zeros() as usize;
                (line.head[place], line.frames[place]) = (tag, frame);
                break;
            }
            line.head[WAYS] = line.passed().saturating_add(1);
            at = next;
        }
        self.len += 1;
    }

    /// Takes a frame out.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub(super) fn remove(&mut self, hash: u64, frame: u32) {
        let found = self.position(hash, |it| it == frame);
        let Some((line, place)) = found else { panic!("frame {frame} is not in the index") };
        self.lines[line].head[place] = 0;
        self.len -= 1;
        // The entry had passed the lines before that one.
        let (mut at, tag) = self.home(hash);
        for tried in 0.. {
            if at == line {
                break;
            }
            let before = &mut self.lines[at];
            if before.passed() != MANY {
                before.head[WAYS] -= 1;
            }
            at = self.next(at, tag, tried);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Hashes that differ in few bits: many fall on one line, and have one tag.
    fn crowded() -> impl Strategy<Value = u64> {
        (0..4u64, 0..40u64).prop_map(|(tag, line)| tag << 56 | line << 29)
    }

    proptest! {
        /// The index does what a map would, full or not, wherever the hashes fall.
        #[test]
        fn finds_what_was_inserted(
            steps in proptest::collection::vec((crowded(), 0..3u8), 0..600),
            capacity in 0..200usize,
            most in 0..200u64,
        ) {
            let mut index = Index::with_capacity(capacity);
            let mut model = BTreeMap::<u32, u64>::new();
            for (frame, (hash, step)) in steps.into_iter().enumerate() {
                let frame = frame as u32;
                if step > 0 {
                    index.reserve(most, |frame| model[&frame]);
                    index.insert(hash, frame);
                    model.insert(frame, hash);
                } else if let Some((&frame, &hash)) = model.range(frame / 2..).next() {
                    index.remove(hash, frame);
                    model.remove(&frame);
                    prop_assert_eq!(index.find(hash, |found| found == frame), None);
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for (&frame, &hash) in &model {
                prop_assert_eq!(index.find(hash, |found| found == frame), Some(frame));
                prop_assert_eq!(index.find(hash ^ 0xff << 56, |_| true), None);
            }
        }

        #[test]
        fn tags_are_found_where_they_are(head: [u8; 16], tag: u8) {
            let found = Line { head, ..Line::default() }.with(tag);
            let expected = (0..WAYS).filter(|&place| head[place] == tag);
            prop_assert_eq!(found, expected.map(|place| 1 << place).sum::<u32>());
        }
    }

    #[test]
    fn a_full_one_does_not_grow_however_entries_come_and_go() {
        let hash = |frame: u32| (frame as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let mut index = Index::with_capacity(1000);
        let lines = index.lines.len();
        for frame in 0..100_000 {
            index.reserve(0, hash);
            index.insert(hash(frame), frame);
            if frame >= 999 {
                index.remove(hash(frame - 999), frame - 999);
            }
        }
        assert_eq!((index.len(), index.lines.len()), (999, lines));
        let passed: usize = index.lines.iter().map(|line| line.passed() as usize).sum();
        assert!(passed < 200, "{passed}");
    }

    #[test]
    fn one_that_grows_takes_no_more_than_one_made_for_its_most() {
        let hash = |frame: u32| (frame as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let mut index = Index::with_capacity(0);
        for frame in 0..100_000 {
            index.reserve(100_000, hash);
            index.insert(hash(frame), frame);
        }
        assert_eq!(index.lines.len(), Index::with_capacity(100_000).lines.len());
    }

    #[test]
    fn a_line_of_memory_holds_a_line() {
        assert_eq!(size_of::<Line>(), 64);
    }
}
