//! Finds the frame of a page: a hash table of four bytes a slot that never grows.
//!
//! `hashbrown` takes six to twelve bytes a page, and doubles its table when entries come and go at
//! full size. A cache whose bound is in bytes has room for neither. In this table, slots are in the
//! order of where their entries belong (Robin Hood hashing), and nine of ten slots are full. A slot
//! holds a frame and the lowest byte of the place where that frame belongs. So a lookup has to look
//! at few frames, and moving entries looks at none.

use homing_mglru::prefetch;

/// Slots per entry, as a fraction.
const SLOTS: (usize, usize) = (10, 9);
/// An entry is fewer than this many slots from where it belongs. With nine of ten slots full, one
/// in 10^23 would have to be farther.
const REACH: usize = 256;
const EMPTY: u32 = u32::MAX;

/// Frames are numbered in 24 bits; one number stands for no frame.
pub(super) const FRAMES_MAX: usize = (1 << 24) - 1;

/// The place, of this many, that a hash belongs to, by its upper half.
pub(super) fn place(hash: u64, places: usize) -> usize {
    (((hash >> 32) * places as u64) >> 32) as usize
}

/// The frames of pages, by the hashes of their keys.
#[derive(Debug)]
pub(super) struct Index {
    /// `frame << 8 | home % 256`. There are enough slots at the end that no entry has to wrap
    /// around.
    slots: Box<[u32]>,
    homes: usize,
    entries: usize,
}

impl Index {
    /// Has room for about this many entries.
    pub(super) fn new(entries: usize) -> Self {
        let homes = Self::homes(entries);
        Self { slots: vec![EMPTY; homes + REACH].into(), homes, entries }
    }

    fn homes(entries: usize) -> usize {
        entries * SLOTS.0 / SLOTS.1 + 1
    }

    /// The bytes that an index of this many entries takes.
    pub(super) fn memory(entries: usize) -> usize {
        (Self::homes(entries) + REACH) * size_of::<u32>()
    }

    /// For how many entries it was made.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    fn home(&self, hash: u64) -> usize {
        place(hash, self.homes)
    }

    /// How far the entry of a slot is from where it belongs.
    fn distance(&self, at: usize) -> Option<usize> {
        let slot = self.slots[at];
        (slot != EMPTY).then(|| (at as u8).wrapping_sub(slot as u8) as usize)
    }

    fn position(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let home = self.home(hash);
        for distance in 0..REACH {
            let at = home + distance;
            let found = self.distance(at).filter(|&found| found >= distance)?;
            if found == distance && is_it(self.slots[at] >> 8) {
                return Some(at);
            }
        }
        None
    }

    /// Asks for the memory at which a search for this hash begins.
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.slots[self.home(hash)]);
    }

    /// The frame that holds the page with this hash.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(hash, is_it).map(|at| self.slots[at] >> 8)
    }

    /// Adds the frame of a page that has none. Returns whether there was room for it.
    pub(super) fn insert(&mut self, hash: u64, frame: u32) -> bool {
        let home = self.home(hash);
        let own = |distance: usize| self.distance(home + distance).is_some_and(|d| d >= distance);
        let Some(distance) = (0..REACH).find(|&distance| !own(distance)) else { return false };
        let at = home + distance;
        // Entries that belong farther on move on by one slot.
        let mut end = at;
        while let Some(distance) = self.distance(end) {
            if distance == REACH - 1 || end + 1 == self.slots.len() {
                return false;
            }
            end += 1;
        }
        self.slots.copy_within(at..end, at + 1);
        self.slots[at] = frame << 8 | (home & 0xff) as u32;
        true
    }

    /// Takes a page's frame out.
    pub(super) fn remove(&mut self, hash: u64, frame: u32) {
        let Some(at) = self.position(hash, |found| found == frame) else { return };
        let mut end = at + 1;
        while end < self.slots.len() && self.distance(end).is_some_and(|distance| distance > 0) {
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = EMPTY;
    }

    /// Notes that a page has moved to another frame.
    pub(super) fn replace(&mut self, hash: u64, from: u32, to: u32) {
        if let Some(at) = self.position(hash, |found| found == from) {
            self.slots[at] = to << 8 | self.slots[at] & 0xff;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::frame::Key;
    use super::*;

    proptest! {
        /// The index does what a map would, full or not, wherever the hashes fall.
        #[test]
        fn finds_what_was_inserted(
            steps in prop::collection::vec((0..200u64, any::<bool>()), 1..600),
            crowded: bool,
        ) {
            let mut index = Index::new(100);
            let hash = |key: u64| if crowded { key << 57 } else { Key::new(0, key).hash(7) };
            let (mut keys, mut model) = (vec![None; 100], BTreeMap::new());
            for (key, insert) in steps {
                let is_it = |frame: u32| keys[frame as usize] == Some(key);
                prop_assert_eq!(index.find(hash(key), is_it), model.get(&key).copied());
                if let Some(frame) = model.remove(&key) {
                    index.remove(hash(key), frame);
                    keys[frame as usize] = None;
                } else if let Some(free) = keys.iter().position(Option::is_none) && insert {
                    prop_assert!(index.insert(hash(key), free as u32));
                    keys[free] = Some(key);
                    model.insert(key, free as u32);
                }
            }
            for (&key, &frame) in &model {
                let is_it = |frame: u32| keys[frame as usize] == Some(key);
                prop_assert_eq!(index.find(hash(key), is_it), Some(frame));
            }
        }
    }

    #[test]
    fn a_full_index_has_room_for_whatever_comes() {
        let entries = 20_000;
        let mut index = Index::new(entries);
        let hash = |key: usize| Key::new(1, key as u64).hash(1);
        for key in 0..entries {
            assert!(index.insert(hash(key), key as u32));
        }
        for key in entries..8 * entries {
            let frame = (key % entries) as u32;
            index.remove(hash(key - entries), frame);
            assert!(index.insert(hash(key), frame));
        }
        assert_eq!(index.slots.iter().filter(|&&slot| slot != EMPTY).count(), entries);
    }

    #[test]
    fn what_has_no_room_is_refused() {
        let mut index = Index::new(1000);
        assert_eq!((0..1000).filter(|&frame| index.insert(0, frame)).count(), REACH);
        assert_eq!(index.find(0, |frame| frame == 0), Some(0));
    }
}
