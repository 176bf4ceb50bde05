//! The default policy: evicts the page that gives the fewest hits for the frame that it holds.
//!
//! Frames are in lists by class and age. The class of a page expresses its past (`history.rs`).
//! Ages grow by epochs, 128 of them in a cacheful of requests (`age.rs`). How soon pages of each
//! class and age are used again is learnt from a sample of the keys (`learner.rs`, `rates.rs`), and
//! tells what a page is worth (`index.rs`). Victims come from the list that is worth least
//! (`lists.rs`, `ranking.rs`): the tail of an LRU list where recency tells, the youngest pages in a
//! loop that does not fit, pages used once in a scan, rarely used pages where frequency tells. A
//! missed page that is not worth more than the victim may stay out (`admission.rs`). Nothing is set
//! by hand.
//!
//! In the terms of the kernel's multi-generational LRU: ages are generations, but there are more
//! than four of them, each half an octave wide. Classes are tiers. The feedback from refaults is
//! the sample, which also hears of pages that left long ago. Pages that were hit are sorted when
//! eviction meets them.

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

/// Decides which page goes, among the frames of a cache that only one thread uses at a time.
///
/// Pages belong to groups, such as those of tenants: what is learnt about one group does not affect
/// another. One group exists from the beginning and has the number 0. The owner keeps the pages,
/// and makes these calls:
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
/// If no group has the given number.
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
    /// Makes a policy for a cache of this many pages.
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

    /// Adds a group of pages, of which nothing is known yet, and returns its number. Numbers count
    /// from 0.
    ///
    /// # Panics
    ///
    /// If there are already 128.
    pub fn add_group(&mut self) -> u8 {
        let group = self.learner.add_group();
        self.shard.add_group(self.learner.worth(group));
        group
    }

    /// Sets how many pages the cache has from now on. Its owner evicts the excess.
    ///
    /// # Panics
    ///
    /// If the capacity is 0.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.learner.set_capacity(capacity);
        self.epoch_ends = self.now + self.learner.epoch_length();
    }

    /// Sets what hits save. The default is [`Savings::TRANSFERS`]. It takes effect with the next
    /// lesson.
    pub fn set_savings(&mut self, savings: Savings) {
        self.learner.set_savings(savings);
    }

    /// Notes a use of the page in this frame.
    ///
    /// # Panics
    ///
    /// If no page was ever inserted into the frame.
    pub fn access(&self, frame: u32) {
        self.shard.access(frame, self.epoch);
    }

    /// Notes a request, hit or miss. `hash` is that of its key: all bits must be well mixed.
    pub fn request(&mut self, group: u8, hash: u64, write: bool) {
        self.now += 1;
        self.used(group, hash, write);
        if self.now >= self.epoch_ends {
            self.end_epoch();
        }
    }

    /// Notes a request that finds its page in this frame. This does what [`request`](Self::request)
    /// and [`access`](Self::access) do, but skips the learner where it does not need to hear of the
    /// request.
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

    /// Decides whether a missed page is not worth the frame of another one. If so, it must not be
    /// put in, and the result is what to remember of it. Call this if the cache is full, with the
    /// shadow if the owner still has it.
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

    /// Puts a page into a free frame: a new page, or one whose shadow its owner still has.
    pub fn insert(&mut self, group: u8, frame: u32, dirty: bool, shadow: Option<Shadow>) {
        self.shard.insert(group.into(), frame, dirty, shadow);
    }

    /// Says that the owner gives up this shadow, the oldest that it has.
    pub fn forget(&mut self, shadow: Shadow) {
        let horizon = self.epoch - shadow.epoch;
        self.learner.set_horizon(horizon);
        self.shard.set_horizon(horizon);
    }

    /// Says that the page in this frame was written to.
    pub fn set_dirty(&mut self, frame: u32) {
        self.shard.set_dirty(frame);
    }

    /// Says that the page in this frame was written back.
    pub fn set_clean(&mut self, frame: u32) {
        self.shard.set_clean(frame);
    }

    /// Says that this page of the group is gone, and its frame is free.
    pub fn remove(&mut self, group: u8, frame: u32) {
        self.shard.remove(group.into(), frame);
    }

    /// Takes out the page that is worth least, if there is any page.
    pub fn evict(&mut self) -> Option<Victim> {
        let (group, _) = self.least()?;
        self.shard.evict(group)
    }
}
