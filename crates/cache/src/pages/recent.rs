//! Which pages were recently read past the cache without a trace: one bit for each, as far as there
//! are bits.
//!
//! A word holds the pages of a chunk. Chunks share words, so a page may be taken for another one;
//! then more is done for it than necessary. Words are cleared one after the other as pages pass, so
//! that all of them are cleared once for every half as many pages as there are frames.

use std::ops::Range;

use super::core::CHUNK;
use super::index::place;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// Frames for each word.
const FRAMES: usize = 32;
/// A word is cleared after this many pages, so that at most a quarter of the bits are set.
const PAGES: usize = 16;
const _: () = assert!(CHUNK == u64::BITS as u64);

#[derive(Debug)]
pub(super) struct Recent {
    words: Box<[AtomicU64]>,
    passed: Passed,
}

/// How many pages have passed. Each read writes it, so it has its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Passed(AtomicU32);

impl Recent {
    /// For a shard of this many frames.
    pub(super) fn new(frames: usize) -> Self {
        let words = (0..Self::words(frames)).map(|_| AtomicU64::new(0)).collect();
        Self { words, passed: Passed::default() }
    }

    fn words(frames: usize) -> usize {
        frames.div_ceil(FRAMES).max(1)
    }

    /// The bytes that it takes for this many frames.
    pub(super) fn memory(frames: usize) -> usize {
        Self::words(frames) * size_of::<AtomicU64>()
    }

    /// Notes pages of a chunk, whose hash is `hash`. Returns false, and notes nothing, if one of
    /// them was noted lately.
    pub(super) fn note(&self, hash: u64, pages: &Range<u64>) -> bool {
        let count = pages.end - pages.start;
        let bits = (u64::MAX >> (CHUNK - count)) << (pages.start % CHUNK);
        let before = self.passed.0.fetch_add(count as u32, Relaxed) as usize;
        for at in before / PAGES..(before + count as usize) / PAGES {
            self.words[at % self.words.len()].store(0, Relaxed);
        }
        let word = &self.words[place(hash, self.words.len())];
        if word.load(Relaxed) & bits != 0 {
            return false;
        }
        word.fetch_or(bits, Relaxed);
        true
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_noted_until_half_as_many_have_passed_as_there_are_frames() {
        let recent = Recent::new(4096);
        let hash = |chunk: u64| chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert!(recent.note(hash(1), &(64..66)) && recent.note(hash(1), &(70..80)));
        assert!(!recent.note(hash(1), &(65..70)) && !recent.note(hash(1), &(79..128)));
        assert!(recent.note(hash(1), &(66..70)));
        // Refused pages pass, too.
        let passed = (0..10_000).take_while(|_| !recent.note(hash(1), &(64..65))).count();
        assert!(passed < 2100, "{passed}");
        assert!(!recent.note(hash(1), &(64..65)));
    }

    #[test]
    fn few_are_taken_for_others() {
        let recent = Recent::new(1 << 14);
        let noted = |page: u64| {
            let hash = super::super::frame::Key::new(1, page - page % CHUNK).hash(7);
            recent.note(hash, &(page..page + 1))
        };
        let first = (0..100_000_u64).filter(|turn| noted(turn * 0x9e37_79b9 % (1 << 34)));
        let first = first.count();
        assert!(first > 80_000, "{first}");
    }
}
