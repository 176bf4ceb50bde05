//! The default policy: evicts what gives the fewest hits for the frame that it holds.
//!
//! Frames stand in lists by class and age. A class is what the past of a page says (`history.rs`);
//! ages grow by epochs, of which a cacheful of requests has 128 (`age.rs`). How soon pages of each
//! class and age are used again is learnt from a sample of the keys (`learner.rs`, `rates.rs`), and
//! tells what a page is worth (`index.rs`). Victims come from the list that is worth least
//! (`lists.rs`, `ranking.rs`): an LRU list's tail where recency tells, the youngest pages in a loop that does not
//! fit, those used once in a scan, the rarely used where frequency tells. What was missed and is not worth more
//! than the victim may stay out (`admission.rs`). Nothing is set by hand.
//!
//! In the terms of the kernel's multi-generational LRU: ages are generations, more than four of
//! them, and half octaves wide; classes are tiers; the feedback from refaults is the sample, which also
//! hears of pages long gone; pages that were hit are sorted when eviction meets them.

mod admission;
mod age;
mod ghosts;
mod history;
mod index;
mod learner;
mod links;
mod lists;
mod mark;
mod ranking;
mod rates;
mod shard;
mod tiers;
mod worth;

pub use admission::Missed;
pub use ghosts::Ghosts;
pub use learner::{EPOCHS, ERA, Learner, Use};
pub use mark::{Mark, Marks};
pub use ranking::{Classes, Ranking, Shadow, Victim};
pub use rates::Savings;
pub use shard::Shard;
pub use tiers::{Feedback, Generation, Swappiness, Tiers, add_tiers};
pub use worth::Worth;

/// Which page goes, of the frames of one cache that one thread at a time uses.
///
/// Pages are of groups, as those of tenants: what is learnt of one says nothing of another. There is one
/// from the beginning, with the number 0. The owner keeps the pages, and calls:
///
/// ```
/// use homing_mglru::density::HitDensity;
///
/// let mut policy = HitDensity::new(2); // pages
/// let other = policy.add_group();
/// policy.request(0, 0x517c_c1b7_2722_0a95, false); // for each request, the hash of its key
/// policy.insert(0, 0, false, None); // a miss: the page is in frame 0 now
/// policy.request(other, 0x2545_f491_4f6c_dd1d, true);
/// policy.insert(other, 1, true, None);
/// policy.access(0); // a hit
/// let victim = policy.evict().unwrap();
/// assert!(victim.frame < 2);
/// ```
///
/// # Panics
///
/// Where no group has the number that is given.
#[derive(Debug)]
pub struct HitDensity {
    shard: Shard,
    learner: Learner,
    /// In requests.
    now: u64,
    epoch: u32,
    epoch_ends: u64,
}

impl HitDensity {
    /// For a cache of so many pages.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn new(capacity: usize) -> Self {
        let learner = Learner::new(capacity);
        let mut shard = Shard::new();
        shard.add_group(learner.worth(0));
        let epoch_ends = learner.epoch_length();
        Self { shard, learner, now: 0, epoch: 0, epoch_ends }
    }

    /// Adds a group of pages, of which nothing is known yet, and returns its number: they count from 0.
    ///
    /// # Panics
    ///
    /// If there are 128 already.
    pub fn add_group(&mut self) -> u8 {
        let group = self.learner.add_group();
        self.shard.add_group(self.learner.worth(group));
        group
    }

    /// Sets how many pages the cache has from now on; its owner evicts what is too many.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.learner.set_capacity(capacity);
        self.epoch_ends = self.now + self.learner.epoch_length();
    }

    /// Sets what hits save: [`Savings::TRANSFERS`] unless this is called. It counts from the next
    /// lesson on.
    pub fn set_savings(&mut self, savings: Savings) {
        self.learner.set_savings(savings);
    }

    /// Takes note of a use of the page in this frame.
    ///
    /// # Panics
    ///
    /// If no page was ever inserted into the frame.
    pub fn access(&self, frame: u32) {
        self.shard.access(frame, self.epoch);
    }

    /// Lets a request pass, hit or miss. `hash` is that of its key: all bits must be good.
    pub fn request(&mut self, group: u8, hash: u64, write: bool) {
        self.now += 1;
        self.used(group, hash, write);
        if self.now >= self.epoch_ends {
            self.end_epoch();
        }
    }

    /// Lets a request pass that finds its page in this frame: what [`request`](Self::request) and
    /// [`access`](Self::access) do, but what the learner need not hear it is spared.
    ///
    /// # Panics
    ///
    /// If no page was ever inserted into the frame.
    pub fn hit(&mut self, group: u8, frame: u32, hash: u64, write: bool) {
        self.now += 1;
        if self.shard.access(frame, self.epoch) || write {
            self.used(group, hash, write);
        }
        if self.now >= self.epoch_ends {
            self.end_epoch();
        }
    }

    fn used(&mut self, group: u8, hash: u64, write: bool) {
        let group = Some(group);
        self.learner.used(Use { hash, group, epoch: self.epoch, write, met: false });
    }

    fn end_epoch(&mut self) {
        self.epoch_ends += self.learner.epoch_length();
        self.epoch += 1;
        self.shard.advance(self.epoch);
        let classes = self.shard.classes();
        let held = |class: usize| classes[class / 64] >> (class % 64) & 1 == 1;
        if self.learner.end_epoch(self.epoch, self.now, held) {
            self.shard.note_lesson();
        }
    }

    /// Whether a page that was missed is not worth the frame of another: then it is not to be put in, and
    /// this is what to remember of it. To be asked where the cache is full, with the shadow that the owner
    /// still has.
    pub fn decline(&mut self, group: u8, shadow: Option<Shadow>) -> Option<Shadow> {
        let (_, least) = self.least()?;
        let (group, mut missed) = (group.into(), Missed::default());
        let rest = self.shard.weigh(group, shadow, &mut missed);
        self.shard.decline(group, missed, least, 0.0).then_some(rest)
    }

    /// The group whose page is worth least, and what that is worth.
    fn least(&mut self) -> Option<(usize, f32)> {
        let all = self.learner.groups().map(usize::from);
        let least = all.filter_map(|group| Some((group, self.shard.least(group)?)));
        least.min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// Puts a page into a free frame: a new one, or one whose shadow its owner still has.
    pub fn insert(&mut self, group: u8, frame: u32, dirty: bool, shadow: Option<Shadow>) {
        self.shard.insert(group.into(), frame, dirty, shadow);
    }

    /// The owner gives up this shadow, the oldest that it has.
    pub fn forget(&mut self, shadow: Shadow) {
        let horizon = self.epoch - shadow.epoch;
        self.learner.set_horizon(horizon);
        self.shard.set_horizon(horizon);
    }

    /// The page in this frame was written to.
    pub fn set_dirty(&mut self, frame: u32) {
        self.shard.set_dirty(frame);
    }

    /// The page in this frame was written back.
    pub fn set_clean(&mut self, frame: u32) {
        self.shard.set_clean(frame);
    }

    /// The page of the group in this frame is gone: the frame is free.
    pub fn remove(&mut self, group: u8, frame: u32) {
        self.shard.remove(group.into(), frame);
    }

    /// Takes the page out that is worth least, if there is any.
    pub fn evict(&mut self) -> Option<Victim> {
        let (group, _) = self.least()?;
        self.shard.evict(group)
    }
}
