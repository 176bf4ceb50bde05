//! Gives memory back: the last entries move into frames that have become free.

use std::hash::{BuildHasher, Hash};

use super::Shard;
use crate::objects::common::Common;
use crate::objects::index::Index;

impl<K: Hash + Eq, V> Shard<K, V> {
    /// Leaves as many frames as there are entries, if that gives back at least an eighth of them.
    /// Does nothing if entries are pinned, because their guards know their frames.
    pub(in crate::objects) fn compact<S: BuildHasher>(&mut self, common: &Common<K, V, S>) {
        let len = self.len();
        let frames = self.slots.frames() as usize;
        let free = frames - len;
        if free == 0 || free * 8 < frames || !self.pins.is_empty() {
            return;
        }
        // The program's hasher is called first, because it may panic.
        let hashes = self.slots.iter().map(|(frame, entry)| (common.hash(entry.key), frame));
        let hashes: Vec<(u64, u32)> = hashes.collect();
        let free = (0..len as u32).filter(|&frame| self.slots.get(frame).is_none());
        let mut free = free.collect::<Vec<u32>>().into_iter();
        self.index = Index::with_capacity(len);
        for (hash, from) in hashes {
            let mut frame = from;
            if from as usize >= len {
                frame = free.next().expect("there are as many frames as entries");
                self.move_entry(from, frame);
            }
            self.index.insert(hash, frame);
        }
        self.slots.truncate(len);
        self.ranking.set_frames(len);
        self.times.truncate(len);
        if self.fit_ghosts() && len > 0 {
            common.entries_are(len);
        }
        for by_frame in [&mut self.weights, &mut self.members] {
            by_frame.truncate(len);
            by_frame.shrink_to_fit();
        }
    }

    fn move_entry(&mut self, from: u32, to: u32) {
        let group = self.group_of(from);
        self.ranking.remove(group, from);
        self.ranking.move_page(from, to);
        self.slots.move_entry(from, to);
        self.ranking.put_back(group, to, &self.slots);
        self.times.move_entry(from, to);
        if let Some(&weight) = self.weights.get(from as usize) {
            self.weights[to as usize] = weight;
        }
        // Groups are not noted for entries that came before there were any. The target frame may
        // still have the number of another entry's group.
        if let Some(place) = self.members.get_mut(to as usize) {
            *place = group as u32;
        }
    }
}
