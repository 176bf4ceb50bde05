//! Learns how soon pages of each class and age are used again, from a sample of the keys.
//!
//! The keys of the sample are followed whether their pages are held or not, so what is learnt does
//! not depend on what was evicted. For each class and age the learner counts uses, and how many keys
//! could have been used for how long (their exposure): the quotient is the rate of reuse. Both counts fade, so that old habits are forgotten.
//!
//! Uses within an epoch of the last one count as one: they would have been hits in any case, and a
//! burst says nothing of the time after it.

use std::sync::Arc;

use super::age::{BUCKETS, bucket};
use super::history::{CLASSES, History};
use super::rates::{self, Count, Savings};
use super::worth::Worth;
use crate::prefetch::prefetch;

/// Keys that are followed: one for so many pages of the cache, and the least and the greatest number. When
/// there are more, half of them are dropped. By trial, on seven traces: fewer lose hits, and more win few
/// for the memory that they take.
const SAMPLE_PART: usize = 2;
const SAMPLE_MIN: usize = 1 << 14;
const SAMPLE_MAX: usize = 1 << 16;
/// Epochs that a cacheful of requests lasts.
pub const EPOCHS: u64 = 128;
/// Requests before the worth of pages is found out for the first time.
const FIRST_LESSON: u64 = 256;
/// The longest time between two lessons, in requests, where the cache is small.
const LESSON: u64 = 4096;
/// Keys looked at for each request, to count how many could be used.
const LOOKS: u64 = 2;
/// But in each epoch no more than one of so many, where that are some at all.
const LOOKS_PART: usize = 128;
const LOOKS_MIN: usize = 64;
/// Cachefuls of requests, or requests if these are more, after which a count has faded.
const MEMORY: (u64, u64) = (20, 100_000);

/// Clocks of epochs may be turned back by so many, at the same time in the learner and, before they go
/// on, in all shards. Of epochs that are kept in fewer bits nothing changes by that.
pub const ERA: u32 = 1 << 30;

/// Learns from all requests of a cache what its pages are worth, and tells its [`Shard`]s.
///
/// Time is counted in requests, and in epochs of [`epoch_length`](Self::epoch_length) requests. The
/// owner counts them: at the end of each it calls [`end_epoch`](Self::end_epoch), and lets its
/// shards [`advance`](super::Shard::advance).
///
/// [`Shard`]: super::Shard
#[derive(Debug)]
pub struct Learner {
    /// In pages.
    capacity: u64,
    savings: Savings,
    /// The number of the request before which nothing is learnt.
    lesson_at: u64,
    worth: Arc<Worth>,
    sample: usize,
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
    horizon: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    /// The epoch of the last use.
    last: u32,
    history: History,
}

/// What a learner may hear of a key.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Of the key: all bits must be good.
    pub hash: u64,
    /// When it was.
    pub epoch: u32,
    /// Whether the page was written.
    pub write: bool,
    /// Whether the page was only [put in](Learner::met).
    pub met: bool,
}

/// A place without entry.
const FREE: u32 = u32::MAX;

impl Learner {
    /// For a cache of so many pages, following as many keys as are [worth it](Self::sample_for).
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn new(capacity: usize) -> Self {
        Self::with_sample(capacity, Self::sample_for(capacity))
    }

    /// How many keys are worth following for a cache of so many pages.
    pub fn sample_for(capacity: usize) -> usize {
        (capacity / SAMPLE_PART).clamp(SAMPLE_MIN, SAMPLE_MAX)
    }

    /// For a cache of so many pages, following at most this many keys. Fewer than some thousand
    /// learn slowly.
    ///
    /// # Panics
    ///
    /// If the capacity or the sample is 0.
    pub fn with_sample(capacity: usize, keys: usize) -> Self {
        assert!(keys > 0, "nothing is learnt from no keys");
        let mut learner = Self {
            capacity: 0,
            savings: Savings::TRANSFERS,
            lesson_at: FIRST_LESSON,
            worth: Arc::new(Worth::nothing()),
            sample: keys,
            entries: Vec::new(),
            places: vec![FREE; 64],
            level: 0,
            counts: vec![[Count::default(); BUCKETS]; CLASSES],
            hand: 0,
            horizon: u32::MAX,
        };
        learner.set_capacity(capacity);
        learner.teach(|_| true);
        learner
    }

    /// The bytes that a learner takes, at most, that follows at most this many keys, with what it
    /// tells of the worth of pages.
    pub fn memory_max(keys: usize) -> usize {
        // Places double until there are two for each key; entries do, too, as they are pushed.
        let places = 2 * keys.max(32).next_power_of_two();
        places * (size_of::<u32>() + size_of::<Entry>())
            + CLASSES * BUCKETS * (size_of::<Count>() + 2 * size_of::<f32>())
            + size_of::<Self>()
    }

    /// Sets how many pages the cache has from now on.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn set_capacity(&mut self, capacity: usize) {
        assert!(capacity > 0, "a cache holds at least one page");
        self.capacity = capacity as u64;
    }

    /// Turns the clock back by an [`ERA`].
    pub fn turn_back(&mut self) {
        for entry in &mut self.entries {
            entry.last = entry.last.saturating_sub(ERA);
        }
    }

    /// Sets what hits save: [`Savings::TRANSFERS`] unless this is called. It counts from the next
    /// lesson on.
    pub fn set_savings(&mut self, savings: Savings) {
        self.savings = savings;
    }

    /// Sets after how many epochs without use the past of a key is forgotten: the age of the oldest
    /// shadows.
    pub fn set_horizon(&mut self, epochs: u32) {
        self.horizon = epochs;
    }

    /// How long an epoch is, in requests.
    pub fn epoch_length(&self) -> u64 {
        (self.capacity / EPOCHS).max(1)
    }

    /// What pages are worth, as last learnt.
    pub fn worth(&self) -> Arc<Worth> {
        Arc::clone(&self.worth)
    }

    /// An epoch is over, and this is the next one; there were `now` requests so far, and there are
    /// pages of such classes. Returns what pages are worth from now on, if it was found out anew.
    pub fn end_epoch(
        &mut self,
        epoch: u32,
        now: u64,
        held: impl Fn(usize) -> bool,
    ) -> Option<Arc<Worth>> {
        let looks_max = (self.entries.len() / LOOKS_PART).max(LOOKS_MIN);
        self.count_exposed(epoch, looks_max.min((self.epoch_length() * LOOKS) as usize));
        if now < self.lesson_at {
            return None;
        }
        let period = (now / 4).min((self.capacity / 4).max(LESSON));
        self.lesson_at = now + period;
        self.teach(held);
        let memory = self.capacity.saturating_mul(MEMORY.0).max(MEMORY.1);
        self.fade((-(period as f64) / memory as f64).exp() as f32);
        Some(self.worth())
    }

    /// Finds out what pages are worth of the classes of which something is known, or that are held.
    fn teach(&mut self, held: impl Fn(usize) -> bool) {
        let worth = Arc::make_mut(&mut self.worth);
        for (class, values) in rates::worth(&self.counts, self.savings, held) {
            worth.set(class, values);
        }
    }

    /// How many of the lowest bits of a hash are zero, at least, where its key is followed.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Whether this key is followed.
    pub fn follows(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.level
    }

    /// The first place where a key may be.
    fn home(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.places.len().ilog2())) as usize
    }

    /// The place of a key, or the free one where it would be.
    fn place(&self, hash: u64) -> usize {
        let mut at = self.home(hash);
        while self.places[at] != FREE && self.entries[self.places[at] as usize].hash != hash {
            at = (at + 1) & (self.places.len() - 1);
        }
        at
    }

    /// A page was requested, hit or miss. `hash` is that of its key: all bits must be good.
    pub fn used(&mut self, hash: u64, epoch: u32, write: bool) {
        if !self.follows(hash) {
            return;
        }
        let at = self.place(hash);
        let Some(entry) = self.entries.get_mut(self.places[at] as usize) else {
            self.places[at] = self.entries.len() as u32;
            self.entries.push(Entry { hash, last: epoch, history: History::new(write) });
            if self.entries.len() * 2 > self.places.len() {
                self.make_room();
            }
            return;
        };
        // Threads may come with epochs a little out of order.
        let age = epoch.saturating_sub(entry.last);
        if age > 0 {
            let class = entry.history.class();
            self.counts[class.index()][bucket(age)].used(write);
            entry.history.used_within(self.horizon, age, 1);
            entry.last = epoch;
        }
        entry.history.dirty = write;
    }

    /// Hears of some uses, in this order: faster than one by one, where they are of different keys, as their
    /// memory is waited for only once.
    pub fn hear(&mut self, uses: &[Use]) {
        for heard in uses {
            prefetch(&self.places[self.home(heard.hash)]);
        }
        for heard in uses {
            let entry = self.places[self.home(heard.hash)];
            if let Some(entry) = self.entries.get(entry as usize) {
                prefetch(entry);
            }
        }
        for &Use { hash, epoch, write, met } in uses {
            if met {
                self.met(hash, epoch, write);
            } else {
                self.used(hash, epoch, write);
            }
        }
    }

    /// A page was put in. That is a use of its key, unless it was missed just before.
    pub fn met(&mut self, hash: u64, epoch: u32, write: bool) {
        let entry = self.entries.get(self.places[self.place(hash)] as usize);
        if entry.is_none_or(|entry| epoch.saturating_sub(entry.last) > 1) {
            self.used(hash, epoch, write);
        }
    }

    /// Takes more places, or follows half as many keys.
    fn make_room(&mut self) {
        if self.entries.len() < self.sample {
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
    fn count_exposed(&mut self, epoch: u32, some: usize) {
        let some = some.min(self.entries.len());
        let stands_for = self.entries.len() as f32 / some as f32;
        for _ in 0..some {
            self.hand = if self.hand + 1 < self.entries.len() { self.hand + 1 } else { 0 };
            let entry = &self.entries[self.hand];
            let class = entry.history.class();
            self.counts[class.index()][bucket(epoch.saturating_sub(entry.last))]
                .exposed(stands_for);
        }
    }

    /// Forgets all but this share of what was counted.
    fn fade(&mut self, share: f32) {
        for count in self.counts.iter_mut().flatten() {
            count.fade(share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_heard_together_counts_as_it_does_one_by_one() {
        let (mut together, mut apart) = (Learner::new(100), Learner::new(100));
        let key = |n: u64| (n * n % 37 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for batch in 0..200 {
            let uses: Vec<Use> = (batch * 16..batch * 16 + 16)
                .map(|n| Use {
                    hash: key(n),
                    epoch: n as u32 / 10,
                    write: n % 5 == 0,
                    met: n % 7 == 0,
                })
                .collect();
            together.hear(&uses);
            for &Use { hash, epoch, write, met } in &uses {
                if met {
                    apart.met(hash, epoch, write);
                } else {
                    apart.used(hash, epoch, write);
                }
            }
        }
        assert_eq!(format!("{together:?}"), format!("{apart:?}"));
    }
}
