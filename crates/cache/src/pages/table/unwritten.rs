//! Which pages of a shard are dirty or being written.

use std::ops::Range;

use super::Table;
use crate::pages::frame::{Flags, Frame, Key};
use crate::pages::group::GroupState;
use crate::sync::atomic::Ordering::Relaxed;

impl Table {
    /// Sets the flags of a page.
    pub(in crate::pages) fn set_flags(&mut self, local: usize, frame: u32, flags: Flags) {
        let change = self.change_flags(local, frame, flags);
        self.count_unwritten(local, change);
    }

    /// Sets the flags of one of several pages. Returns by how much the number of unwritten pages
    /// has changed: the caller [counts](Self::count_unwritten) that for all of them before it gives
    /// back the lock.
    #[must_use]
    pub(in crate::pages) fn change_flags(
        &mut self,
        local: usize,
        frame: u32,
        flags: Flags,
    ) -> isize {
        let old = self.frames[frame as usize];
        self.frames[frame as usize] = Frame::new(old.key(), flags);
        let (was, is) = (old.flags().has(Flags::UNWRITTEN), flags.has(Flags::UNWRITTEN));
        if was == is {
            return 0;
        }
        self.unwritten[frame as usize / 64] ^= 1 << (frame % 64);
        let unwritten = &mut self.locals[local].unwritten;
        if is {
            self.unwritten_count += 1;
            unwritten.add(frame);
            1
        } else {
            self.unwritten_count -= 1;
            unwritten.remove(frame);
            -1
        }
    }

    /// Changes a group's number of unwritten pages. All shards share it, and such an instruction
    /// waits until all that was copied before it has reached the CPU's cache.
    pub(in crate::pages) fn count_unwritten(&self, local: usize, change: isize) {
        if change != 0 {
            // Modulo 2^64: this also subtracts.
            self.locals[local].group.unwritten.fetch_add(change.cast_unsigned(), Relaxed);
        }
    }

    /// Which of these pages of a file are dirty or being written.
    pub(in crate::pages) fn unwritten_of_pages(
        &self,
        file: u16,
        pages: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = u64> {
        let is_unwritten = |flags: Flags| flags.has(Flags::UNWRITTEN);
        pages.filter(move |page| {
            self.find(Key::new(file, *page)).is_some_and(|(_, flags)| is_unwritten(flags))
        })
    }

    /// Whether the pages of this group that are dirty or being written can be found without looking
    /// at those of others.
    pub(in crate::pages) fn has_few_unwritten(&self, group: &GroupState) -> bool {
        self.known_local(group).is_none_or(|local| self.locals[local].unwritten.get().is_some())
    }

    /// Pages of a range of a file of this group that are dirty or being written, in no order.
    pub(in crate::pages) fn unwritten_in(
        &self,
        group: &GroupState,
        file: u16,
        pages: &Range<u64>,
    ) -> Vec<u64> {
        let Some(local) = self.known_local(group) else { return Vec::new() };
        let wanted = |frame: u32| {
            let key = self.key(frame);
            (key.file() == file && pages.contains(&key.page())).then(|| key.page())
        };
        if let Some(few) = self.locals[local].unwritten.get() {
            return few.iter().copied().filter_map(wanted).collect();
        }
        let all = (0..self.unwritten.len()).flat_map(|word| self.unwritten_of(word));
        all.filter_map(wanted).collect()
    }

    fn unwritten_of(&self, word: usize) -> impl Iterator<Item = u32> {
        let mut bits = self.unwritten[word];
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some((word * 64) as u32 + bit)
        })
    }

    /// How many pages are dirty or being written.
    pub(in crate::pages) fn unwritten_count(&self) -> usize {
        self.unwritten_count
    }

    /// Goes round the frames and returns up to `count` dirty pages of wanted files: those that were
    /// not returned for the longest time.
    pub(in crate::pages) fn next_dirty(
        &mut self,
        count: usize,
        wanted: impl Fn(u16) -> bool,
    ) -> Vec<Key> {
        let words = self.unwritten.len();
        let mut keys = Vec::new();
        if words == 0 {
            return keys;
        }
        let from = self.hand % (words * 64);
        let mut hand = from;
        // The word that the hand points into comes twice: from the hand on, and at the end up to
        // it.
        'round: for step in 0..=words {
            let word = (from / 64 + step) % words;
            for frame in self.unwritten_of(word) {
                let is_before = (frame as usize) < from;
                if word == from / 64 && is_before != (step == words) {
                    continue;
                }
                let key = self.key(frame);
                if self.flags(frame).has(Flags::DIRTY) && wanted(key.file()) {
                    keys.push(key);
                    hand = frame as usize + 1;
                    if keys.len() == count {
                        break 'round;
                    }
                }
            }
        }
        self.hand = hand;
        keys
    }
}
