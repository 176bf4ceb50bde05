//! Which pages of a shard are dirty or being written.

use std::ops::Range;

use super::Table;
use crate::pages::frame::{Flags, Key};
use crate::pages::group::GroupState;

impl Table {
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

    /// Goes round the frames and returns about `count` dirty pages of wanted files: those that were
    /// not returned for the longest time.
    pub(in crate::pages) fn next_dirty(
        &mut self,
        count: usize,
        wanted: impl Fn(u16) -> bool,
    ) -> Vec<Key> {
        let mut keys = Vec::new();
        for _ in 0..self.unwritten.len() {
            self.hand = (self.hand + 1) % self.unwritten.len();
            for frame in self.unwritten_of(self.hand) {
                let key = self.key(frame);
                if self.flags(frame).has(Flags::DIRTY) && wanted(key.file()) {
                    keys.push(key);
                }
            }
            if keys.len() >= count {
                break;
            }
        }
        keys
    }
}
