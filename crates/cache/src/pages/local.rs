//! What a group has in a shard.

use std::sync::Arc;

use super::group::GroupState;
use crate::sync::atomic::AtomicU64;

/// A group in a shard.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) group: Arc<GroupState>,
    pub(super) pages: usize,
    pub(super) hits: AtomicU64,
    /// How many of its pages here are nominated.
    pub(super) nominated: u32,
    pub(super) unwritten: Few,
}

impl Local {
    pub(super) fn new(group: Arc<GroupState>) -> Self {
        Self { group, pages: 0, hits: AtomicU64::new(0), nominated: 0, unwritten: Few::default() }
    }
}

/// A group's frames with pages that are dirty or being written, as long as they are few. So they
/// need not be looked for among those of others, which may be many.
#[derive(Debug)]
pub(super) struct Few {
    frames: [u32; Self::MAX],
    count: usize,
    /// Whether all of them are in `frames`. Once they were too many, this is false until none is
    /// left.
    is_whole: bool,
}

impl Default for Few {
    fn default() -> Self {
        Self { frames: [0; Self::MAX], count: 0, is_whole: true }
    }
}

impl Few {
    const MAX: usize = 8;

    pub(super) fn add(&mut self, frame: u32) {
        match self.frames.get_mut(self.count) {
            Some(place) if self.is_whole => *place = frame,
            _ => self.is_whole = false,
        }
        self.count += 1;
    }

    pub(super) fn remove(&mut self, frame: u32) {
        self.count -= 1;
        if self.is_whole {
            let known = &mut self.frames[..=self.count];
            match known.iter().position(|&other| other == frame) {
                Some(at) => known.swap(at, self.count),
                None => self.is_whole = false,
            }
        }
        self.is_whole |= self.count == 0;
    }

    /// All of them, if they are known.
    pub(super) fn get(&self) -> Option<&[u32]> {
        self.is_whole.then(|| &self.frames[..self.count])
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn few_are_known_and_many_are_not_until_there_are_none() {
        let mut few = Few::default();
        (0..8).for_each(|frame| few.add(frame));
        few.remove(3);
        few.remove(7);
        few.add(9);
        let mut known = few.get().unwrap().to_vec();
        known.sort_unstable();
        assert_eq!(known, [0, 1, 2, 4, 5, 6, 9]);
        (10..12).for_each(|frame| few.add(frame));
        assert_eq!(few.get(), None);
        (1..3).chain(4..7).chain(9..12).for_each(|frame| few.remove(frame));
        assert_eq!(few.get(), None, "one is left");
        few.remove(0);
        few.add(5);
        assert_eq!(few.get(), Some(&[5][..]));
    }
}
