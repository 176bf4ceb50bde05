//! The entries of a shard, by frame.

use homing_mglru::density::{Mark, Marks};
use homing_mglru::prefetch;

/// No frame: the end of the list of free frames.
const NONE: u32 = u32::MAX;

/// An entry in its frame.
pub(super) struct Entry<'a, K, V> {
    pub(super) key: &'a K,
    pub(super) value: &'a V,
    pub(super) mark: &'a Mark,
}

/// Entries by frame; free frames are used again.
pub(super) struct Slots<K, V> {
    slots: Vec<Slot<K, V>>,
    free: u32,
}

/// If key and value are small, they are on one line of memory with the mark that hits leave. These
/// are fields of the variant itself, so that its tag fits next to the mark.
enum Slot<K, V> {
    Held {
        key: K,
        value: V,
        mark: Mark,
    },
    /// The next free frame.
    Free(u32),
}

impl<K, V> Slots<K, V> {
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self { slots: Vec::with_capacity(entries), free: NONE }
    }

    /// How many frames there are, with the free ones.
    pub(super) fn frames(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    pub(super) fn get(&self, frame: u32) -> Option<Entry<'_, K, V>> {
        match self.slots.get(frame as usize) {
            Some(Slot::Held { key, value, mark }) => Some(Entry { key, value, mark }),
            _ => None,
        }
    }

    /// # Panics
    ///
    /// If the frame is free.
    pub(super) fn value_mut(&mut self, frame: u32) -> &mut V {
        match &mut self.slots[frame as usize] {
            Slot::Held { value, .. } => value,
            Slot::Free(_) => panic!("frame {frame} is free"),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Entry<'_, K, V>)> {
        (0..self.frames()).filter_map(|frame| Some((frame, self.get(frame)?)))
    }

    /// Puts an entry into a free frame, or a new one. Returns the frame.
    pub(super) fn insert(&mut self, key: K, value: V, mark: Mark) -> u32 {
        let slot = Slot::Held { key, value, mark };
        let frame = self.free;
        if frame == NONE {
            assert!(self.slots.len() < NONE as usize, "a shard has as many entries as it can");
            self.slots.push(slot);
            return self.slots.len() as u32 - 1;
        }
        match std::mem::replace(&mut self.slots[frame as usize], slot) {
            Slot::Free(next) => self.free = next,
            Slot::Held { .. } => unreachable!("frame {frame} was free"),
        }
        frame
    }

    /// Moves an entry, with its mark, to a free frame. Call [`truncate`](Self::truncate)
    /// afterwards: until then the list of free frames is wrong.
    pub(super) fn move_entry(&mut self, from: u32, to: u32) {
        self.slots.swap(from as usize, to as usize);
    }

    /// Leaves the first `frames` frames, all of which must be held.
    pub(super) fn truncate(&mut self, frames: usize) {
        self.slots.truncate(frames);
        self.slots.shrink_to_fit();
        self.free = NONE;
    }

    /// Frees a frame.
    ///
    /// # Panics
    ///
    /// If it is free.
    pub(super) fn remove(&mut self, frame: u32) -> (K, V) {
        match std::mem::replace(&mut self.slots[frame as usize], Slot::Free(self.free)) {
            Slot::Held { key, value, .. } => {
                self.free = frame;
                (key, value)
            }
            Slot::Free(_) => panic!("frame {frame} is free"),
        }
    }
}

impl<K, V> Marks for Slots<K, V> {
    fn mark(&self, frame: u32) -> Option<&Mark> {
        Some(self.get(frame)?.mark)
    }

    fn prefetch(&self, frame: u32) {
        if let Some(slot) = self.slots.get(frame as usize) {
            prefetch(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_two_words_takes_three() {
        assert_eq!(std::mem::size_of::<Slot<u64, u64>>(), 24);
    }
}
