//! Learns how soon pages of each class and age are used again, from a sample of the keys.
//!
//! The keys of the sample are followed whether their pages are held or not, so what is learnt does
//! not depend on what was evicted. For each class and age the learner counts uses, and how many keys
//! could have been used for how long (their exposure): the quotient is the rate of reuse. Both counts fade, so that old habits are forgotten.
//!
//! Uses within an epoch of the last one count as one: they would have been hits in any case, and a
//! burst says nothing of the time after it.

use super::age::{BUCKETS, bucket};
use super::history::{CLASSES, History};
use super::rates::{Count, Savings};

/// Keys that are followed, at most. When there are more, half of them are dropped.
const SAMPLE: usize = 1 << 16;

/// What is known of the keys that are followed.
#[derive(Debug)]
pub(super) struct Learner {
    entries: Vec<Entry>,
    /// Where each key's entry is: open addressing by the upper bits of the hashes, at most half
    /// full; a power of two.
    places: Vec<u32>,
    /// Keys are followed whose hash ends in so many zeros.
    level: u32,
    counts: Vec<[Count; BUCKETS]>,
    /// The entry that was looked at last.
    hand: usize,
    /// After how many epochs without use the past of a page is forgotten.
    pub(super) horizon: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    /// The epoch of the last use.
    last: u32,
    history: History,
}

/// A place without entry.
const FREE: u32 = u32::MAX;

impl Learner {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            places: vec![FREE; 64],
            level: 0,
            counts: vec![[Count::default(); BUCKETS]; CLASSES],
            hand: 0,
            horizon: u32::MAX,
        }
    }

    /// Whether this key is followed.
    pub(super) fn follows(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.level
    }

    /// The place of a key, or the free one where it would be.
    fn place(&self, hash: u64) -> usize {
        let mut at = (hash >> (u64::BITS - self.places.len().ilog2())) as usize;
        while self.places[at] != FREE && self.entries[self.places[at] as usize].hash != hash {
            at = (at + 1) & (self.places.len() - 1);
        }
        at
    }

    /// A key that is followed was used.
    pub(super) fn used(&mut self, hash: u64, epoch: u32, write: bool) {
        let at = self.place(hash);
        let Some(entry) = self.entries.get_mut(self.places[at] as usize) else {
            self.places[at] = self.entries.len() as u32;
            self.entries.push(Entry { hash, last: epoch, history: History::new(write) });
            if self.entries.len() * 2 > self.places.len() {
                self.make_room();
            }
            return;
        };
        let age = epoch - entry.last;
        if age > 0 {
            let class = entry.history.class();
            self.counts[class.index()][bucket(age)].used(write);
            entry.history.used_within(self.horizon, age, 1);
            entry.last = epoch;
        }
        entry.history.dirty = write;
    }

    /// Takes more places, or follows half as many keys.
    fn make_room(&mut self) {
        if self.entries.len() < SAMPLE {
            self.places = vec![FREE; self.places.len() * 2];
        } else {
            self.level += 1;
            let level = self.level;
            self.entries.retain(|entry| entry.hash.trailing_zeros() >= level);
            self.places.fill(FREE);
            self.fade(0.5);
        }
        for entry in 0..self.entries.len() {
            let at = self.place(self.entries[entry].hash);
            self.places[at] = entry as u32;
        }
    }

    /// An epoch is over: looks at some of the keys, in turn, for all that were exposed in it.
    pub(super) fn count_exposed(&mut self, epoch: u32, some: usize) {
        let some = some.min(self.entries.len());
        let stands_for = self.entries.len() as f32 / some as f32;
        for _ in 0..some {
            self.hand = if self.hand + 1 < self.entries.len() { self.hand + 1 } else { 0 };
            let entry = &self.entries[self.hand];
            let class = entry.history.class();
            self.counts[class.index()][bucket(epoch - entry.last)].exposed(stands_for);
        }
    }

    /// What pages are worth of the classes of which something is known, or that are wanted.
    pub(super) fn worth(
        &self,
        savings: Savings,
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<(usize, [f32; BUCKETS])> {
        super::rates::worth(&self.counts, savings, wanted)
    }

    /// Forgets all but this share of what was counted.
    pub(super) fn fade(&mut self, share: f32) {
        for count in self.counts.iter_mut().flatten() {
            count.fade(share);
        }
    }
}
