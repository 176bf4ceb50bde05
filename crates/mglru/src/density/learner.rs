//! Learns how soon pages of each class and age are used again, from a sample of the keys.
//!
//! The keys of the sample are followed whether their pages are held or not, so what is learnt does
//! not depend on what was evicted. For each class and age the learner counts uses, and how many
//! keys could have been used for how long (their exposure). The quotient is the rate of reuse. Both
//! counts fade, so that old habits are forgotten.
//! Groups of pages, such as those of tenants, have their own counts, from one common sample: a loop
//! of one group says nothing about another. The counts of all groups fade with the requests of all,
//! so they weigh alike.
//!
//! Uses of a key within one epoch count as one: the later ones would have been hits in any case,
//! and a burst says nothing about the time after it.

use std::sync::Arc;

use super::age::{BUCKETS, bucket};
use super::history::{CLASSES, History};
use super::rates::{self, Count, Savings};
use super::worth::Worth;
use crate::prefetch::prefetch;

/// One key is followed for this many pages of the cache, within the least and the greatest number.
/// When there are more, half of them are dropped. Measured on seven traces: fewer keys lose hits,
/// and more win few for the memory that they take.
const SAMPLE_PART: usize = 2;
const SAMPLE_MIN: usize = 1 << 14;
const SAMPLE_MAX: usize = 1 << 16;
/// Epochs that a cacheful of requests lasts.
pub const EPOCHS: u64 = 128;
/// Requests before the worth of pages is learnt for the first time.
const FIRST_LESSON: u64 = 256;
/// The longest time between two lessons, in requests, if the cache is small.
const LESSON: u64 = 4096;
/// How many keys are looked at for each request, to count how many could be used.
const LOOKS: u64 = 2;
/// In each epoch, at most one key in `LOOKS_PART` is looked at, or `LOOKS_MIN` keys if that is
/// more.
const LOOKS_PART: usize = 128;
const LOOKS_MIN: usize = 64;
/// How long a count takes to fade: in cachefuls of requests, or in requests if these are more.
const MEMORY: (u64, u64) = (20, 100_000);

/// By how many epochs clocks may be turned back: in the learner and, before they go on, in all
/// shards. This does not change epochs that are kept in fewer bits.
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
    /// The number of requests before which there is no next lesson.
    lesson_at: u64,
    sample: usize,
    entries: Vec<Entry>,
    /// The index of each key's entry: a hash table with open addressing by the upper bits of the
    /// hashes. It is at most half full, and its length is a power of two.
    places: Vec<u32>,
    /// Keys whose hashes end in at least this many zero bits are followed.
    level: u32,
    groups: Vec<Group>,
    /// The entry that was looked at last.
    hand: usize,
    /// After how many epochs without use the past of a page is forgotten.
    horizon: u32,
}

/// What is learnt about the keys of one group.
#[derive(Debug)]
struct Group {
    counts: Vec<[Count; BUCKETS]>,
    worth: Arc<Worth>,
}

impl Group {
    fn new(savings: Savings, epochs: u64) -> Self {
        let counts = vec![[Count::default(); BUCKETS]; CLASSES];
        let group = Self { counts, worth: Arc::new(Worth::nothing()) };
        group.teach(savings, epochs, |_| true);
        group
    }

    /// Sets the worth of pages of each class of which something is known, or that is held. `epochs`
    /// is how many of them a cacheful of requests lasts.
    fn teach(&self, savings: Savings, epochs: u64, held: impl Fn(usize) -> bool) {
        for (class, values) in rates::worth(&self.counts, savings, epochs, held) {
            self.worth.set(class, values);
        }
    }

    /// Keeps only this share of what was counted.
    fn fade(&mut self, share: f32) {
        for count in self.counts.iter_mut().flatten() {
            count.fade(share);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    /// The epoch of the last use.
    last: u32,
    /// What is known of the key, packed: an entry must take no more than 16 bytes.
    known: Known,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// A history, and the number of a group.
#[derive(Clone, Copy, Debug)]
struct Known(u32);

impl Known {
    /// The first bit above those of a packed history.
    const DIRTY: u32 = 24;
    const GROUP: u32 = 25;

    fn new(group: u8, history: History) -> Self {
        Self(
            history.pack()
                | u32::from(history.dirty) << Self::DIRTY
                | u32::from(group) << Self::GROUP,
        )
    }

    fn group(self) -> u8 {
        (self.0 >> Self::GROUP) as u8
    }

    fn history(self) -> History {
        let mut history = History::unpack(self.0 & ((1 << Self::DIRTY) - 1));
        history.dirty = self.0 >> Self::DIRTY & 1 == 1;
        history
    }
}

/// A use of a key, as a learner hears of it.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The hash of the key: all bits must be well mixed.
    pub hash: u64,
    /// The number of [the group](Learner::add_group) that has the page. `None` if that is not
    /// known: then the key stays in the group that it was in.
    pub group: Option<u8>,
    /// The epoch of the use.
    pub epoch: u32,
    /// Whether the page was written.
    pub write: bool,
    /// Whether the page was only put in.
    pub met: bool,
}

/// Groups that a learner may have: their numbers are kept in seven bits.
const GROUPS_MAX: usize = 1 << (u32::BITS - Known::GROUP);

/// A place without an entry.
const FREE: u32 = u32::MAX;

impl Learner {
    /// Makes a learner for a cache of this many pages, which follows as many keys as are [worth
    /// it](Self::sample_for).
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn new(capacity: usize) -> Self {
        Self::with_sample(capacity, Self::sample_for(capacity))
    }

    /// How many keys are worth following for a cache of this many pages.
    pub fn sample_for(capacity: usize) -> usize {
        (capacity / SAMPLE_PART).clamp(SAMPLE_MIN, SAMPLE_MAX)
    }

    /// Makes a learner for a cache of this many pages, which follows at most this many keys. With
    /// fewer than some thousand it learns slowly.
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
            sample: keys,
            entries: Vec::new(),
            places: vec![FREE; 64],
            level: 0,
            groups: Vec::new(),
            hand: 0,
            horizon: u32::MAX,
        };
        learner.set_capacity(capacity);
        learner.add_group();
        learner
    }

    /// The most bytes that a learner takes if it follows at most this many keys of this many
    /// groups, including what it tells of the worth of pages.
    pub fn memory_max(keys: usize, groups: usize) -> usize {
        // Places double until there are two for each key. So does the room for entries, as they are
        // pushed.
        let places = 2 * keys.max(32).next_power_of_two();
        let group = CLASSES * BUCKETS * size_of::<Count>() + Worth::MEMORY;
        // Room for groups doubles, too.
        let groups = groups * (group + 2 * size_of::<Group>());
        places * (size_of::<u32>() + size_of::<Entry>()) + groups + size_of::<Self>()
    }

    /// Adds a group, of which nothing is known, and returns its number. Numbers count from 0, and a
    /// learner begins with one group.
    ///
    /// # Panics
    ///
    /// If there are already 128.
    pub fn add_group(&mut self) -> u8 {
        assert!(self.groups.len() < GROUPS_MAX, "no number is left for a group");
        self.groups.push(Group::new(self.savings, self.epochs()));
        (self.groups.len() - 1) as u8
    }

    /// Makes a group as if it were new: its keys are not followed any more.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    pub fn reset_group(&mut self, group: u8) {
        let epochs = self.epochs();
        let anew = &mut self.groups[usize::from(group)];
        anew.fade(0.0);
        anew.teach(self.savings, epochs, |_| true);
        self.entries.retain(|entry| entry.known.group() != group);
        self.find_places();
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

    /// Sets what hits save. The default is [`Savings::TRANSFERS`]. It takes effect with the next
    /// lesson.
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

    /// About how many epochs a cacheful of requests lasts.
    fn epochs(&self) -> u64 {
        self.capacity.min(EPOCHS)
    }

    /// The numbers of all groups.
    pub fn groups(&self) -> std::ops::Range<u8> {
        0..self.groups.len() as u8
    }

    /// What pages of a group are worth, as last learnt. Later lessons change it in place.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    pub fn worth(&self, group: u8) -> Arc<Worth> {
        Arc::clone(&self.groups[usize::from(group)].worth)
    }

    /// Ends an epoch. `epoch` is the next one, `now` is the number of requests so far, and `held`
    /// says whether there are pages of a class. Returns whether this was a lesson, so that pages
    /// may have another [worth](Self::worth) now.
    pub fn end_epoch(&mut self, epoch: u32, now: u64, held: impl Fn(usize) -> bool) -> bool {
        let looks_max = (self.entries.len() / LOOKS_PART).max(LOOKS_MIN);
        self.count_exposed(epoch, looks_max.min((self.epoch_length() * LOOKS) as usize));
        if now < self.lesson_at {
            return false;
        }
        let period = (now / 4).min((self.capacity / 4).max(LESSON));
        self.lesson_at = now + period;
        let epochs = self.epochs();
        self.groups.iter().for_each(|group| group.teach(self.savings, epochs, &held));
        let memory = self.capacity.saturating_mul(MEMORY.0).max(MEMORY.1);
        self.fade((-(period as f64) / memory as f64).exp() as f32);
        true
    }

    /// The least number of low bits that are zero in the hashes of followed keys.
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

    /// Hears of a use. [Putting a page in](Use::met) counts as a use of its key, unless the key was
    /// used just before, as by the miss: then only the group is noted.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    pub fn used(&mut self, heard: Use) {
        if heard.met {
            let at = self.places[self.place(heard.hash)] as usize;
            if let Some(entry) = self.entries.get_mut(at)
                && heard.epoch.saturating_sub(entry.last) <= 1
            {
                let group = heard.group.unwrap_or(entry.known.group());
                entry.known = Known::new(group, entry.known.history());
                return;
            }
        }
        self.count_used(heard);
    }

    fn count_used(&mut self, Use { hash, group, epoch, write, .. }: Use) {
        if !self.follows(hash) {
            return;
        }
        let at = self.place(hash);
        let Some(entry) = self.entries.get_mut(self.places[at] as usize) else {
            self.places[at] = self.entries.len() as u32;
            let known = Known::new(group.unwrap_or(0), History::new(write));
            self.entries.push(Entry { hash, last: epoch, known });
            if self.entries.len() * 2 > self.places.len() {
                self.make_room();
            }
            return;
        };
        // The epochs that threads report may be a little out of order.
        let age = epoch.saturating_sub(entry.last);
        let mut history = entry.known.history();
        let group = group.unwrap_or(entry.known.group());
        if age > 0 {
            let counts = &mut self.groups[usize::from(group)].counts;
            counts[history.class().index()][bucket(age)].used(write);
            history.used_within(self.horizon, age, 1);
            entry.last = epoch;
        }
        history.dirty = write;
        entry.known = Known::new(group, history);
    }

    /// Hears of some uses, in this order. If these are of different keys, this is faster than one
    /// by one, because their memory is waited for only once.
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
        for &heard in uses {
            self.used(heard);
        }
    }

    /// Makes the table of places larger, or follows half as many keys.
    fn make_room(&mut self) {
        if self.entries.len() < self.sample {
            self.places = vec![FREE; self.places.len() * 2];
        } else {
            self.level += 1;
            let level = self.level;
            self.entries.retain(|entry| entry.hash.trailing_zeros() >= level);
            self.fade(0.5);
        }
        self.find_places();
    }

    fn find_places(&mut self) {
        self.places.fill(FREE);
        for entry in 0..self.entries.len() {
            let at = self.place(self.entries[entry].hash);
            self.places[at] = entry as u32;
        }
    }

    /// At the end of an epoch, looks at some of the keys, in turn. They stand for all keys that
    /// were exposed in it.
    fn count_exposed(&mut self, epoch: u32, some: usize) {
        let some = some.min(self.entries.len());
        let stands_for = self.entries.len() as f32 / some as f32;
        for _ in 0..some {
            self.hand = if self.hand + 1 < self.entries.len() { self.hand + 1 } else { 0 };
            let Entry { last, known, .. } = self.entries[self.hand];
            let counts = &mut self.groups[usize::from(known.group())].counts;
            let class = known.history().class();
            counts[class.index()][bucket(epoch.saturating_sub(last))].exposed(stands_for);
        }
    }

    fn fade(&mut self, share: f32) {
        self.groups.iter_mut().for_each(|group| group.fade(share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> u64 {
        (n * n % 37 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn what_is_heard_together_counts_as_it_does_one_by_one() {
        let (mut together, mut apart) = (Learner::new(100), Learner::new(100));
        for learner in [&mut together, &mut apart] {
            assert_eq!(learner.add_group(), 1);
        }
        for batch in 0..200 {
            let uses: Vec<Use> = (batch * 16..batch * 16 + 16)
                .map(|n| Use {
                    hash: key(n),
                    group: [None, Some(0), Some(1)][n as usize % 3],
                    epoch: n as u32 / 10,
                    write: n % 5 == 0,
                    met: n % 7 == 0,
                })
                .collect();
            together.hear(&uses);
            for &heard in &uses {
                apart.used(heard);
            }
        }
        assert_eq!(format!("{together:?}"), format!("{apart:?}"));
    }

    /// One group loops over its keys; the other one never asks for a key again.
    #[test]
    fn each_group_teaches_what_its_own_pages_are_worth() {
        let (mut learner, mut alone) = (Learner::new(128), Learner::new(128));
        let other = learner.add_group();
        for n in 0..10_000_u64 {
            let epoch = n as u32 / 8;
            let one = |n: u64, group| {
                let hash = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Use { hash, group: Some(group), epoch, write: false, met: false }
            };
            for learner in [&mut learner, &mut alone] {
                learner.used(one(n % 100, 0));
            }
            learner.used(one(1000 + n, other));
            if n % 8 == 7 {
                learner.end_epoch(epoch + 1, 2 * (n + 1), |_| true);
                alone.end_epoch(epoch + 1, 2 * (n + 1), |_| true);
            }
        }
        let worth = |learner: &Learner, group, history: History| {
            learner.worth(group).at(history.class().index(), 4)
        };
        let (once, often) = (History::new(false), History::of(200, 200));
        let [loops, scans] = [0, other].map(|group| worth(&learner, group, once));
        assert!(loops > 10.0 * scans, "{loops} and {scans}");
        let (loops, without) = (worth(&learner, 0, often), worth(&alone, 0, often));
        // Most looks go to the keys of the other group, so the values are less exact.
        assert!((0.5..2.0).contains(&(loops / without)), "{loops}, alone {without}");
        learner.reset_group(other);
        assert!(learner.entries.iter().all(|entry| entry.known.group() == 0));
        assert_eq!(learner.entries.len(), 100);
        let new = worth(&Learner::new(128), 0, once);
        assert_eq!(worth(&learner, other, once).to_bits(), new.to_bits(), "it is as new");
        let found =
            |n: u64| learner.places[learner.place((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))];
        assert!((0..100).all(|n| found(n) != FREE) && (1000..1100).all(|n| found(n) == FREE));
    }
}
