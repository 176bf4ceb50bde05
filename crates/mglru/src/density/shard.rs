//! The frames of a cache, or of a part of it that has its own lock.

use std::ops::{Deref, DerefMut};

use super::mark::Mark;
use super::ranking::{Ranking, Shadow, Victim, resize_exact};

/// Frames by index, and which of them is worth least, for each group of pages.
///
/// A cache has one shard, or many with a lock for each; a [`Learner`](super::Learner) that they
/// share tells what pages are worth. Epochs are those of the learner. A hit costs one relaxed
/// store, at most once an epoch ([`access`](Self::access)). Everything else takes `&mut self`, and
/// what does not involve marks belongs to the [`Ranking`].
///
/// ```
/// use homing_mglru::density::{Learner, Shard, Use};
///
/// let mut learner = Learner::new(2); // pages
/// let mut shard = Shard::new();
/// let group = shard.add_group(learner.worth(0));
/// let hash = 0x517c_c1b7_2722_0a95; // for each request, that of its key
/// learner.used(Use { hash, group: Some(0), epoch: 0, write: false, met: false });
/// shard.insert(group, 0, false, None); // a miss: the page is in frame 0 now
/// shard.access(0, 0); // a hit
/// assert_eq!(shard.evict(group).unwrap().frame, 0);
/// ```
#[derive(Debug, Default)]
pub struct Shard {
    ranking: Ranking,
    marks: Vec<Mark>,
}

impl Deref for Shard {
    type Target = Ranking;

    fn deref(&self) -> &Ranking {
        &self.ranking
    }
}

impl DerefMut for Shard {
    fn deref_mut(&mut self) -> &mut Ranking {
        &mut self.ranking
    }
}

impl Shard {
    /// Makes a shard without frames or groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// The two parts of the shard.
    pub fn parts(&mut self) -> (&mut Ranking, &[Mark]) {
        (&mut self.ranking, &self.marks)
    }

    /// As [`Ranking::set_frames`].
    pub fn set_frames(&mut self, frames: usize) {
        self.ranking.set_frames(frames);
        resize_exact(&mut self.marks, frames, Mark::default);
    }

    /// The bytes that the shard takes.
    pub fn memory(&self) -> usize {
        self.ranking.memory() + self.marks.capacity() * size_of::<Mark>()
    }

    /// Says that a page of the group, which may be evicted, has moved from the frame `from` to the
    /// free frame `to`.
    pub fn move_page(&mut self, group: usize, from: u32, to: u32) {
        self.remove(group, from);
        self.ranking.move_page(from, to);
        self.marks[to as usize].copy(&self.marks[from as usize]);
        self.put_back(group, to);
    }

    /// Notes a use of the page in this frame: see [`Mark::used`].
    ///
    /// # Panics
    ///
    /// If there is no such frame.
    pub fn access(&self, frame: u32, epoch: u32) -> bool {
        self.marks[frame as usize].used(epoch)
    }

    /// As [`Ranking::insert`].
    pub fn insert(&mut self, group: usize, frame: u32, dirty: bool, shadow: Option<Shadow>) {
        self.ranking.insert(group, frame, dirty, shadow);
        self.set_mark(frame, Mark::new(self.ranking.epoch()));
    }

    /// As [`Ranking::insert_ahead`]. Also looks at two pages that were read ahead earlier.
    pub fn insert_ahead(&mut self, group: usize, frame: u32, shadow: Option<Shadow>) {
        self.ranking.sort_ahead(group, 2, &self.marks[..]);
        self.ranking.insert_ahead(group, frame, shadow);
        self.set_mark(frame, Mark::ahead(self.ranking.epoch()));
    }

    fn set_mark(&mut self, frame: u32, mark: Mark) {
        let at = frame as usize;
        if at >= self.marks.len() {
            self.marks.resize_with(at + 1, Mark::default);
        }
        self.marks[at] = mark;
    }

    /// As [`Ranking::put_back`].
    pub fn put_back(&mut self, group: usize, frame: u32) {
        self.ranking.put_back(group, frame, &self.marks[..]);
    }

    /// As [`Ranking::evict`].
    pub fn evict(&mut self, group: usize) -> Option<Victim> {
        self.ranking.evict(group, &self.marks[..])
    }

    /// As [`Ranking::advance`].
    pub fn advance(&mut self, epoch: u32) {
        self.ranking.advance(epoch, &self.marks[..]);
    }
}
