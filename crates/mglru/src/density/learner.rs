//! Learns how soon pages of each class and age are used again, from a sample of the keys.
//!
//! The keys of the sample are followed whether their pages are held or not, so what is learnt does
//! not depend on what was evicted. For each class and age the learner counts uses, and how many keys
//! could have been used for how long (their exposure): the quotient is the rate of reuse. Both counts fade, so that old habits are forgotten.
//!
//! Uses within an epoch of the last one count as one: they would have been hits in any case, and a
//! burst says nothing of the time after it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::age::{BUCKETS, bucket};
use super::history::{CLASSES, History};
use super::rates::{Count, Counts, Savings};

/// Keys that are followed, at most. When there are more, half of them are dropped.
const SAMPLE: usize = 1 << 16;

/// What is known of the keys that are followed.
#[derive(Debug)]
pub(super) struct Learner {
    entries: Vec<Entry>,
    places: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    /// Keys are followed whose hash ends in so many zeros.
    level: u32,
    counts: Box<Counts>,
    /// The key that was looked at last.
    hand: usize,
    /// After how many epochs without use the past of a page is forgotten.
    pub(super) horizon: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    last: u32,
    history: History,
}

/// For keys that are hashes. The lowest bits are alike in all that are followed: they go last.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0.rotate_left(u64::BITS / 2)
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash is one word");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Learner {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            places: HashMap::default(),
            level: 0,
            counts: Box::new([[Count::default(); BUCKETS]; CLASSES]),
            hand: 0,
            horizon: u32::MAX,
        }
    }

    /// Whether this key is followed.
    pub(super) fn follows(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.level
    }

    /// A key that is followed was used.
    pub(super) fn used(&mut self, hash: u64, epoch: u32, write: bool) {
        let Some(&place) = self.places.get(&hash) else { return self.follow(hash, epoch, write) };
        let entry = &mut self.entries[place as usize];
        let age = epoch - entry.last;
        if age > 0 {
            let class = entry.history.class();
            self.counts[class.index()][bucket(age)].used(write);
            entry.history.used_within(self.horizon, age, 1);
            entry.last = epoch;
        }
        entry.history.dirty = write;
    }

    fn follow(&mut self, hash: u64, epoch: u32, write: bool) {
        if self.entries.len() == SAMPLE {
            self.thin();
            if !self.follows(hash) {
                return;
            }
        }
        self.places.insert(hash, self.entries.len() as u32);
        let history = History::new(write);
        self.entries.push(Entry { hash, last: epoch, history });
    }

    /// Follows half as many keys.
    fn thin(&mut self) {
        self.level += 1;
        let level = self.level;
        self.entries.retain(|entry| entry.hash.trailing_zeros() >= level);
        self.places.clear();
        for (place, entry) in self.entries.iter().enumerate() {
            self.places.insert(entry.hash, place as u32);
        }
        self.fade(0.5);
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

    /// Tells what the classes are worth of which something is known, or that are wanted.
    pub(super) fn tell(
        &self,
        savings: Savings,
        wanted: impl Fn(usize) -> bool,
        tell: impl FnMut(usize, [f32; BUCKETS]),
    ) {
        super::rates::tell(&self.counts, savings, wanted, tell);
    }

    /// Forgets all but this share of what was counted.
    pub(super) fn fade(&mut self, share: f32) {
        for count in self.counts.iter_mut().flatten() {
            count.fade(share);
        }
    }
}
