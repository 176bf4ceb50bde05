//! The default policy: evicts what gives the fewest hits for the frame that it holds.
//!
//! Frames stand in lists by class and age. A class is what the past of a page says (`history.rs`);
//! ages grow by epochs, of which a cacheful of requests has 128 (`age.rs`). How soon pages of each
//! class and age are used again is learnt from a sample of the keys (`learner.rs`, `rates.rs`), and
//! tells what a page is worth (`index.rs`). Victims come from the list that is worth least
//! (`lists.rs`): an LRU list's tail where recency tells, the youngest pages in a loop that does not
//! fit, those used once in a scan, the rarely used where frequency tells. Nothing is set by hand.
//!
//! In the terms of the kernel's multi-generational LRU: ages are generations, more than four of
//! them, and half octaves wide; classes are tiers; the feedback from refaults is the sample, which also
//! hears of pages long gone; pages that were hit are sorted when eviction meets them.

mod age;
mod history;
mod index;
mod learner;
mod lists;
mod rates;

use std::sync::atomic::{AtomicU32, Ordering};

pub use rates::Savings;

use history::{Class, History};
use learner::Learner;
use lists::Lists;

/// Epochs that a cacheful of requests lasts.
const EPOCHS: u64 = 128;
/// Requests before the worth of pages is found out for the first time.
const FIRST_LESSON: u64 = 256;
/// The longest time between two lessons, in requests, where the cache is small.
const LESSON: u64 = 2048;
/// Keys looked at for each request, to count how many could be used.
const LOOKS: u64 = 2;
/// Cachefuls of requests, or requests if these are more, after which a count has faded.
const MEMORY: (u64, u64) = (20, 100_000);
/// Frames that an eviction may find in a list that they have outgrown, and put elsewhere.
const SORT_MAX: usize = 16;

/// Which page goes, of the frames of one cache.
///
/// The owner keeps the pages, and calls:
///
/// ```
/// use homing_mglru::density::HitDensity;
///
/// let mut policy = HitDensity::new(2); // pages
/// policy.request(0x517c_c1b7_2722_0a95, false); // for each request, the hash of its key
/// policy.insert(0, false, None); // a miss: the page is in frame 0 now
/// policy.request(0x2545_f491_4f6c_dd1d, true);
/// policy.insert(1, true, None);
/// policy.access(0); // a hit
/// let victim = policy.evict().unwrap();
/// assert!(victim.frame < 2);
/// ```
///
/// A hit is one relaxed store, at most once an epoch; all else takes `&mut self`.
#[derive(Debug)]
pub struct HitDensity {
    frames: Vec<Frame>,
    marks: Vec<Mark>,
    lists: Lists,
    learner: Learner,
    savings: Savings,
    /// In pages.
    capacity: u64,
    /// In requests.
    now: u64,
    epoch: u32,
    epoch_ends: u64,
    lesson_at: u64,
}

/// What is known of a frame, but for its mark.
#[derive(Clone, Copy, Debug)]
struct Frame {
    history: History,
    class: Class,
    /// The epoch of the last use that the history knows of, its lower half.
    last: u16,
}

/// The epoch of a frame's last use (lower half), and in how many epochs it was used since the frame
/// was sorted (upper half, saturating).
#[derive(Debug, Default)]
struct Mark(AtomicU32);

impl Mark {
    fn set(&self, epoch: u16) {
        self.0.store(epoch as u32, Ordering::Relaxed);
    }

    fn used(&self, epoch: u16) {
        let (last, uses) = self.get();
        if last != epoch {
            // Two threads may do this at a time: a use is lost, no more.
            let uses = uses.saturating_add(1) as u32;
            self.0.store(uses << 16 | epoch as u32, Ordering::Relaxed);
        }
    }

    fn get(&self) -> (u16, u16) {
        let mark = self.0.load(Ordering::Relaxed);
        (mark as u16, (mark >> 16) as u16)
    }
}

/// What remains of an evicted page. Whoever gives it back when the page returns lets it keep its
/// past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    epoch: u32,
    history: u32,
}

/// A page that has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Where it is.
    pub frame: u32,
    /// Whether it must be written back first.
    pub dirty: bool,
    /// What to remember of it.
    pub shadow: Shadow,
}

impl HitDensity {
    /// For a cache of so many pages.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a cache holds at least one page");
        let mut policy = Self {
            frames: Vec::new(),
            marks: Vec::new(),
            lists: Lists::new(),
            learner: Learner::new(),
            savings: Savings::TRANSFERS,
            capacity: capacity as u64,
            now: 0,
            epoch: 0,
            epoch_ends: (capacity as u64 / EPOCHS).max(1),
            lesson_at: FIRST_LESSON,
        };
        policy.teach(true);
        policy
    }

    /// Sets how many pages the cache has from now on; its owner evicts what is too many.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn set_capacity(&mut self, capacity: usize) {
        assert!(capacity > 0, "a cache holds at least one page");
        self.capacity = capacity as u64;
        self.epoch_ends = self.now + self.epoch_length();
    }

    /// How long an epoch is, in requests.
    fn epoch_length(&self) -> u64 {
        (self.capacity / EPOCHS).max(1)
    }

    /// Sets what hits save: [`Savings::TRANSFERS`] unless this is called. It counts from the next
    /// lesson on.
    pub fn set_savings(&mut self, savings: Savings) {
        self.savings = savings;
    }

    /// Takes note of a use of the page in this frame.
    ///
    /// # Panics
    ///
    /// If no page was ever inserted into the frame.
    pub fn access(&self, frame: u32) {
        self.marks[frame as usize].used(self.epoch as u16);
    }

    /// Lets a request pass, hit or miss. `hash` is that of its key: all bits must be good.
    pub fn request(&mut self, hash: u64, write: bool) {
        self.now += 1;
        if self.learner.follows(hash) {
            self.learner.used(hash, self.epoch, write);
        }
        if self.now >= self.epoch_ends {
            self.end_epoch();
        }
    }

    fn end_epoch(&mut self) {
        self.epoch_ends += self.epoch_length();
        self.epoch += 1;
        self.learner.count_exposed(self.epoch, (self.epoch_length() * LOOKS) as usize);
        self.lists.tick(self.epoch);
        if self.epoch.is_multiple_of(1 << 13) {
            self.keep_ages_in_range();
        }
        if self.now >= self.lesson_at {
            self.lesson();
        }
    }

    /// Puts a page into a free frame: a new one, or one whose shadow its owner still has.
    pub fn insert(&mut self, frame: u32, dirty: bool, shadow: Option<Shadow>) {
        let mut history = History::new(dirty);
        if let Some(shadow) = shadow {
            history = History::unpack(shadow.history);
            history.used(self.epoch - shadow.epoch, 1);
            history.dirty = dirty;
        }
        let class = history.class();
        let known = Frame { history, class, last: self.epoch as u16 };
        let at = frame as usize;
        if at >= self.frames.len() {
            self.frames.resize(at + 1, known);
            self.marks.resize_with(at + 1, Mark::default);
            self.lists.grow(at + 1);
        }
        self.frames[at] = known;
        self.marks[at].set(known.last);
        self.lists.push(frame, class, 0);
    }

    /// The owner gives up this shadow, the oldest that it has.
    pub fn forget(&mut self, shadow: Shadow) {
        self.learner.horizon = self.epoch - shadow.epoch;
    }

    /// The page in this frame was written to.
    pub fn set_dirty(&mut self, frame: u32) {
        self.frames[frame as usize].history.dirty = true;
    }

    /// The page in this frame was written back.
    pub fn set_clean(&mut self, frame: u32) {
        self.frames[frame as usize].history.dirty = false;
    }

    /// The page in this frame is gone: the frame is free.
    pub fn remove(&mut self, frame: u32) {
        self.lists.remove(frame, self.frames[frame as usize].class);
    }

    /// Takes the page out that is worth least, if there is any.
    pub fn evict(&mut self) -> Option<Victim> {
        let mut sorted = 0;
        loop {
            let frame = self.lists.victim()?;
            let (last, uses) = self.marks[frame as usize].get();
            let known = &mut self.frames[frame as usize];
            let was = known.class;
            if uses > 0 {
                let epochs = last.wrapping_sub(known.last) as u32;
                known.history.used_within(self.learner.horizon, epochs, uses as u32);
                known.last = last;
                self.marks[frame as usize].set(last);
            }
            known.class = known.history.class();
            let Frame { history, class, .. } = *known;
            let age = (self.epoch as u16).wrapping_sub(known.last) as u32;
            let bucket = age::bucket(age);
            let outgrown = uses > 0 || class != was || self.lists.worth_more(class, bucket);
            self.lists.pop_victim();
            if outgrown && sorted < SORT_MAX {
                sorted += usize::from(uses == 0);
                self.lists.push(frame, class, bucket);
                continue;
            }
            let shadow = Shadow { epoch: self.epoch - age, history: history.pack() };
            return Some(Victim { frame, dirty: history.dirty, shadow });
        }
    }

    fn lesson(&mut self) {
        let period = (self.now / 8).min((self.capacity / 4).max(LESSON));
        self.lesson_at = self.now + period;
        self.teach(false);
        let memory = (self.capacity * MEMORY.0).max(MEMORY.1);
        self.learner.fade((-(period as f64) / memory as f64).exp() as f32);
    }

    fn teach(&mut self, all: bool) {
        let wanted = |class: usize| all || self.lists.holds(class);
        for (class, worth) in self.learner.worth(self.savings, wanted) {
            self.lists.set_worth(class, worth);
        }
    }

    /// Epochs of frames are kept in 16 bits: none may fall behind by more.
    fn keep_ages_in_range(&mut self) {
        let oldest = (self.epoch as u16).wrapping_sub(1 << 14);
        for (frame, mark) in self.frames.iter_mut().zip(&self.marks) {
            if (self.epoch as u16).wrapping_sub(frame.last) > 1 << 14 {
                frame.last = oldest;
                if mark.get().1 == 0 {
                    mark.set(oldest);
                }
            }
        }
    }
}
