//! The frames of a cache, or of a part of it that has a lock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Worth;
use super::age;
use super::history::{Class, History};
use super::lists::{Links, Lists};

/// Frames that an eviction may find in a list that they have outgrown, and put elsewhere.
const SORT_MAX: usize = 16;
/// Epochs after which every list has joined that of the greatest age.
const EPOCHS_MAX: u32 = 1 << 14;
/// How often frames are looked through for ages that do not fit into 16 bits.
const SWEEP: u32 = 1 << 13;

/// Frames by index, and which of them is worth least, for each group of pages.
///
/// A cache has one, or many with a lock for each; a [`Learner`](super::Learner) that they share
/// tells what pages are worth. Epochs are those of the learner. A hit is one relaxed store at most
/// once an epoch ([`access`](Self::access)); all else takes `&mut self`.
///
/// ```
/// use homing_mglru::density::{Learner, Shard};
///
/// let mut learner = Learner::new(2); // pages
/// let mut shard = Shard::new();
/// let group = shard.add_group(learner.worth());
/// learner.used(0x517c_c1b7_2722_0a95, 0, false); // for each request, the hash of its key
/// shard.insert(group, 0, false, None); // a miss: the page is in frame 0 now
/// shard.access(0, 0); // a hit
/// assert_eq!(shard.evict(group).unwrap().frame, 0);
/// ```
#[derive(Debug, Default)]
pub struct Shard {
    frames: Vec<Frame>,
    marks: Vec<Mark>,
    links: Links,
    groups: Vec<Lists>,
    epoch: u32,
    horizon: Option<u32>,
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

    fn used(&self, epoch: u16) -> bool {
        let (last, uses) = self.get();
        let first = last != epoch;
        if first {
            // Two threads may do this at a time: a use is lost, no more.
            let uses = uses.saturating_add(1) as u32;
            self.0.store(uses << 16 | epoch as u32, Ordering::Relaxed);
        }
        first
    }

    fn get(&self) -> (u16, u16) {
        let mark = self.0.load(Ordering::Relaxed);
        (mark as u16, (mark >> 16) as u16)
    }

    /// Makes the use at least as late as this epoch.
    fn not_before(&self, oldest: u16) {
        let (last, uses) = self.get();
        if before(last, oldest) {
            self.0.store((uses as u32) << 16 | oldest as u32, Ordering::Relaxed);
        }
    }
}

/// What remains of an evicted page. Whoever gives it back when the page returns lets it keep its
/// past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The epoch of the page's last use.
    pub(super) epoch: u32,
    pub(super) history: u32,
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

impl Shard {
    /// Without frames or groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group of pages, worth this much, and returns its number: they count from 0.
    pub fn add_group(&mut self, worth: Arc<Worth>) -> usize {
        // They are large: doubling would take much for nothing.
        if self.groups.len() == self.groups.capacity() {
            self.groups.reserve_exact(self.groups.len() / 8 + 1);
        }
        self.groups.push(Lists::new(worth));
        self.groups.len() - 1
    }

    /// Makes room for exactly this many frames: without it, as many as were ever used. None may hold
    /// a page of those that go.
    pub fn set_frames(&mut self, frames: usize) {
        let unused =
            Frame { history: History::new(false), class: History::new(false).class(), last: 0 };
        resize_exact(&mut self.frames, frames, || unused);
        resize_exact(&mut self.marks, frames, Mark::default);
        self.links.set_frames(frames);
    }

    /// The bytes that it takes.
    pub fn memory(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.marks.capacity() * size_of::<Mark>()
            + self.links.memory()
            + self.groups.capacity() * size_of::<Lists>()
            + self.groups.iter().map(Lists::memory).sum::<usize>()
    }

    /// The page in the frame `from` of the group, which may be evicted, is in the free frame `to` from
    /// now on.
    pub fn move_page(&mut self, group: usize, from: u32, to: u32) {
        self.remove(group, from);
        self.frames[to as usize] = self.frames[from as usize];
        let (last, uses) = self.marks[from as usize].get();
        self.marks[to as usize].0.store((uses as u32) << 16 | last as u32, Ordering::Relaxed);
        self.put_back(group, to);
    }

    /// Takes note of a use of the page in this frame. Returns whether it is the first one in this
    /// epoch: of others the [`Learner`](super::Learner) need not hear.
    ///
    /// # Panics
    ///
    /// If there is no such frame.
    pub fn access(&self, frame: u32, epoch: u32) -> bool {
        self.marks[frame as usize].used(epoch as u16)
    }

    /// Puts a page into a free frame: a new one, or one whose shadow its owner still has.
    pub fn insert(&mut self, group: usize, frame: u32, dirty: bool, shadow: Option<Shadow>) {
        let mut history = History::new(dirty);
        if let Some(shadow) = shadow {
            history = History::unpack(shadow.history);
            history.used(self.epoch.saturating_sub(shadow.epoch), 1);
            history.dirty = dirty;
        }
        let class = history.class();
        let known = Frame { history, class, last: self.epoch as u16 };
        let at = frame as usize;
        if at >= self.frames.len() {
            self.frames.resize(at + 1, known);
            self.marks.resize_with(at + 1, Mark::default);
            self.links.grow(at + 1);
        }
        self.frames[at] = known;
        self.marks[at].set(known.last);
        self.groups[group].push(&mut self.links, frame, class, 0);
    }

    /// The page in this frame was written to.
    pub fn set_dirty(&mut self, frame: u32) {
        self.frames[frame as usize].history.dirty = true;
    }

    /// The page in this frame was written back.
    pub fn set_clean(&mut self, frame: u32) {
        self.frames[frame as usize].history.dirty = false;
    }

    /// The page in this frame of the group is not to be evicted: it is gone, and the frame free, or
    /// it stays until [`put_back`](Self::put_back).
    pub fn remove(&mut self, group: usize, frame: u32) {
        self.groups[group].remove(&mut self.links, frame, self.frames[frame as usize].class);
    }

    /// The page in this frame, taken out by [`remove`](Self::remove) or [`evict`](Self::evict), may
    /// be evicted again.
    pub fn put_back(&mut self, group: usize, frame: u32) {
        let bucket = self.sort(frame).0;
        let class = self.frames[frame as usize].class;
        self.groups[group].push(&mut self.links, frame, class, bucket);
    }

    /// What the page is worth that the group would give next, if it has any.
    pub fn least(&mut self, group: usize) -> Option<f32> {
        self.groups[group].least()
    }

    /// Takes the group's page out that is worth least, if it has any.
    pub fn evict(&mut self, group: usize) -> Option<Victim> {
        let mut sorted = 0;
        loop {
            let frame = self.groups[group].victim()?;
            let was = self.frames[frame as usize].class;
            let (bucket, used) = self.sort(frame);
            let Frame { history, class, last } = self.frames[frame as usize];
            let lists = &mut self.groups[group];
            let outgrown = used || class != was || lists.worth_more(class, bucket);
            lists.pop_victim(&mut self.links);
            if outgrown && sorted < SORT_MAX {
                sorted += usize::from(!used);
                lists.push(&mut self.links, frame, class, bucket);
                continue;
            }
            let epoch = self.epoch - self.age(last).min(self.epoch);
            let shadow = Shadow { epoch, history: history.pack() };
            return Some(Victim { frame, dirty: history.dirty, shadow });
        }
    }

    /// Brings a frame's history and class up to date. Returns the bucket of its age, and whether
    /// the page was used since the last time.
    fn sort(&mut self, frame: u32) -> (usize, bool) {
        let (last, uses) = self.marks[frame as usize].get();
        let known = &mut self.frames[frame as usize];
        if uses > 0 {
            let epochs = last.wrapping_sub(known.last) as u32;
            let horizon = self.horizon.unwrap_or(u32::MAX);
            known.history.used_within(horizon, epochs, uses as u32);
            known.last = last;
            self.marks[frame as usize].set(last);
        }
        known.class = known.history.class();
        let last = known.last;
        (age::bucket(self.age(last)), uses > 0)
    }

    /// The age of what was used last in this epoch, which may be one that has not reached the shard.
    fn age(&self, last: u16) -> u32 {
        let now = self.epoch as u16;
        if before(last, now) { now.wrapping_sub(last) as u32 } else { 0 }
    }

    /// Sets after how many epochs without use the past of a page is forgotten: the age of the oldest
    /// shadows.
    pub fn set_horizon(&mut self, epochs: u32) {
        self.horizon = Some(epochs);
    }

    /// Sets what the pages of a group are worth from now on.
    pub fn learn(&mut self, group: usize, worth: Arc<Worth>) {
        self.groups[group].learn(worth);
    }

    /// Whether there are frames of this class in any group.
    pub(super) fn holds(&self, class: usize) -> bool {
        self.groups.iter().any(|lists| lists.holds(class))
    }

    /// Classes of which there are frames in any group, a bit for each.
    pub fn classes(&self) -> Classes {
        let some = self.groups.iter().map(Lists::classes);
        some.fold(Classes::default(), |all, some| {
            std::array::from_fn(|word| all[word] | some[word])
        })
    }

    /// The epoch that the shard has reached.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Lets time pass until this epoch has begun.
    pub fn advance(&mut self, epoch: u32) {
        if epoch.saturating_sub(self.epoch) > EPOCHS_MAX {
            self.epoch = epoch - EPOCHS_MAX;
            self.keep_ages_in_range();
        }
        for epoch in self.epoch + 1..=epoch {
            self.epoch = epoch;
            for lists in &mut self.groups {
                lists.tick(&mut self.links, epoch);
            }
            if epoch.is_multiple_of(SWEEP) {
                self.keep_ages_in_range();
            }
        }
    }

    /// Epochs of frames are kept in 16 bits: none may fall behind by more.
    fn keep_ages_in_range(&mut self) {
        let oldest = (self.epoch as u16).wrapping_sub(1 << 14);
        for (frame, mark) in self.frames.iter_mut().zip(&self.marks) {
            if before(frame.last, oldest) {
                frame.last = oldest;
            }
            mark.not_before(oldest);
        }
    }
}

/// Resizes a vector without room for more.
pub(super) fn resize_exact<T>(vector: &mut Vec<T>, len: usize, value: impl FnMut() -> T) {
    vector.reserve_exact(len.saturating_sub(vector.len()));
    vector.resize_with(len, value);
    vector.shrink_to_fit();
}

/// Whether an epoch comes before another one, at most 32,767 later.
fn before(epoch: u16, other: u16) -> bool {
    other.wrapping_sub(epoch).cast_signed() > 0
}

/// A set of classes, a bit for each.
pub type Classes = [u64; super::history::CLASSES / 64];
