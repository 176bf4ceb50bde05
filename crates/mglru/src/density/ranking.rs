//! Frames in the order of what they are worth.

use std::sync::Arc;

use super::Worth;
use super::admission::{self, Missed};
use super::age;
use super::history::{Class, History, TIERS};
use super::links::Links;
use super::lists::Lists;
use super::mark::{Marks, UNUSED, before};
use super::tiers::{Generation, Swappiness, Tiers, tier_of};
use crate::prefetch::prefetch;

/// How many frames an eviction may find in a list that they have outgrown, and put elsewhere.
const SORT_MAX: usize = 16;
/// Epochs after which every list has joined that of the greatest age.
const EPOCHS_MAX: u32 = 1 << 14;

/// The greatest age that a sweep leaves a page with, in epochs: older pages count as this old.
const AGE_MAX: u16 = 1 << 14;
/// After how many epochs all frames are searched for ages that would not fit into 16 bits.
const SWEEP: u32 = 1 << 13;

/// Frames by index, and which of them is worth least, for each group of pages. The owner keeps the
/// frames' marks and lends them; a [`Shard`](super::Shard) has both.
#[derive(Debug)]
pub struct Ranking {
    frames: Vec<Frame>,
    links: Links,
    groups: Vec<Lists>,
    epoch: u32,
    /// How often the worth of pages has changed in place.
    lesson: u32,
    /// Groups whose memory or classes may have changed since they were counted.
    noted: Vec<u32>,
    /// The classes of the groups that were counted since `changed_classes` was last asked.
    changed: Classes,
    /// The bytes of all lists, as last counted.
    lists_memory: usize,
    horizon: Option<u32>,
    /// The ages of which pages may be victims, a bit for each bucket.
    open: u32,
}

impl Default for Ranking {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            links: Links::default(),
            groups: Vec::new(),
            epoch: 0,
            lesson: 0,
            noted: Vec::new(),
            changed: Classes::default(),
            lists_memory: 0,
            horizon: None,
            open: u32::MAX,
        }
    }
}

/// What is known of a frame, except its mark.
#[derive(Clone, Copy, Debug)]
struct Frame {
    history: History,
    class: Class,
    /// The lower half of the epoch of the last use that the history knows of.
    last: u16,
}

/// What remains of an evicted page. If it is given back when the page returns, the page keeps its
/// past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The epoch of the page's last use.
    pub(super) epoch: u32,
    pub(super) history: u32,
}

impl Shadow {
    /// The shadow of a page that was never used.
    pub const NEVER: Self = Self { epoch: 0, history: 0 };

    /// About how many epochs ago the page was used last.
    pub fn age(self, epoch: u32) -> u32 {
        epoch.saturating_sub(self.epoch)
    }
}

/// A page that has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The frame that it is in.
    pub frame: u32,
    /// Whether it must be written back first.
    pub dirty: bool,
    /// Whether it was read ahead, and nobody asked for it. There is nothing to remember of it.
    pub wasted: bool,
    /// What to remember of it.
    pub shadow: Shadow,
}

impl Ranking {
    /// Makes a ranking without frames or groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group of pages that are worth this much. Returns its number; numbers count from 0.
    pub fn add_group(&mut self, worth: Arc<Worth>) -> usize {
        // Groups are large: doubling the room for them would waste memory.
        if self.groups.len() == self.groups.capacity() {
            self.groups.reserve_exact((self.groups.len() / 8).clamp(1, 16));
        }
        let lists = self.new_lists(worth);
        self.groups.push(lists);
        self.groups.len() - 1
    }

    fn new_lists(&self, worth: Arc<Worth>) -> Lists {
        let mut lists = Lists::new(worth, self.epoch, self.lesson);
        lists.set_open(self.open);
        lists
    }

    /// The lists of a group, brought up to date, to be changed.
    #[inline]
    fn lists(&mut self, group: usize) -> (&mut Lists, &mut Links) {
        let lists = &mut self.groups[group];
        lists.catch_up(&mut self.links, self.epoch, self.lesson);
        if !lists.is_noted {
            lists.is_noted = true;
            self.noted.push(group as u32);
        }
        (lists, &mut self.links)
    }

    /// Counts the memory and classes of groups that may have changed.
    fn count(&mut self) {
        for group in self.noted.drain(..) {
            let lists = &mut self.groups[group as usize];
            let memory = lists.memory();
            let before = std::mem::replace(&mut lists.counted, memory);
            self.lists_memory = self.lists_memory - before + memory;
            lists.is_noted = false;
            add(&mut self.changed, lists.classes());
        }
    }

    /// Takes out a group that has no pages. The last group takes its number.
    pub fn remove_group(&mut self, group: usize) {
        debug_assert!(self.groups[group].classes() == Classes::default(), "it has pages");
        self.forget(group);
        self.groups.swap_remove(group);
        if self.groups.len() + self.groups.len() / 4 + 2 < self.groups.capacity() {
            self.groups.shrink_to(self.groups.len() + self.groups.len() / 8);
        }
    }

    /// Makes a group that has no pages as if it were new, but for its number.
    pub fn reset_group(&mut self, group: usize, worth: Arc<Worth>) {
        debug_assert!(self.groups[group].classes() == Classes::default(), "it has pages");
        self.forget(group);
        self.groups[group] = self.new_lists(worth);
    }

    /// Stops counting the memory of a group that goes or begins anew.
    fn forget(&mut self, group: usize) {
        self.count();
        self.lists_memory -= self.groups[group].counted;
    }

    /// Sets which of clean and dirty pages a group gives first.
    pub fn set_swappiness(&mut self, group: usize, swappiness: Swappiness) {
        self.groups[group].set_swappiness(swappiness);
    }

    /// Keeps pages that were used within this many epochs from eviction: 0 keeps those that were
    /// used in this one. Other pages of about the same age (within a half octave) are kept, too.
    /// A page that was not used for 12,288 epochs is never kept. `None` keeps none.
    pub fn spare(&mut self, epochs: Option<u32>) {
        // In the last bucket there are pages of any age.
        let youngest = epochs.map(|epochs| age::bucket(epochs).min(age::BUCKETS - 2));
        let spared = youngest.map_or(0, |bucket| (2_u32 << bucket) - 1);
        if self.open != !spared {
            self.open = !spared;
            self.groups.iter_mut().for_each(|lists| lists.set_open(!spared));
        }
    }

    /// Makes room for exactly this many frames. Without this call, there is room for as many as
    /// were ever used. None of the frames that go may hold a page.
    pub fn set_frames(&mut self, frames: usize) {
        let unused =
            Frame { history: History::new(false), class: History::new(false).class(), last: 0 };
        resize_exact(&mut self.frames, frames, || unused);
        self.links.set_frames(frames);
    }

    /// Whether a group takes more memory than when this was asked last. A group grows as it gets
    /// pages, and as its pages are found to be of new classes.
    pub fn take_grown(&mut self, group: usize) -> bool {
        self.groups[group].take_grown()
    }

    /// The bytes that the ranking takes.
    pub fn memory(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.links.memory()
            + self.groups.capacity() * size_of::<Lists>()
            + self.noted.capacity() * size_of::<u32>()
            + self.lists_memory
            + self.growth()
    }

    /// The bytes that lists have taken since they were counted.
    fn growth(&self) -> usize {
        let noted = self.noted.iter().map(|group| &self.groups[*group as usize]);
        noted.map(|lists| lists.memory() - lists.counted).sum()
    }

    /// Says that the page in the frame `from` moves to the free frame `to`, as does its mark. The
    /// page was taken out by [`remove`](Self::remove), and is to be [put back](Self::put_back).
    pub fn move_page(&mut self, from: u32, to: u32) {
        self.frames[to as usize] = self.frames[from as usize];
    }

    /// Puts a page into a free frame: a new page, or one whose shadow the owner still has. Its mark
    /// is to be [`new`](super::Mark::new).
    pub fn insert(&mut self, group: usize, frame: u32, dirty: bool, shadow: Option<Shadow>) {
        let history = self.past(group, dirty, shadow);
        self.enter(group, frame, history, history.class());
    }

    /// Adds a page that was missed to those that were missed with it. Returns what to remember of
    /// it if they are [declined](Self::decline).
    pub fn weigh(&self, group: usize, shadow: Option<Shadow>, missed: &mut Missed) -> Shadow {
        let horizon = self.horizon.unwrap_or(u32::MAX);
        let (history, soon) = admission::past(shadow, self.epoch, horizon);
        missed.add(self.groups[group].worth(history.class().index(), 0), soon);
        Shadow { epoch: self.epoch, history: history.pack() }
    }

    /// Whether pages of a group that were missed should not be put in, if others that are worth
    /// `least` would lose their frames to them. `price` is what putting a page in costs the owner,
    /// as a share of what a hit saves; 0 if reading is expensive.
    pub fn decline(&mut self, group: usize, missed: Missed, least: f32, price: f32) -> bool {
        self.groups[group].declined_mut().decline(missed, least, price)
    }

    /// Notes that pages that were missed are put in, whatever they are worth.
    pub fn accept(&mut self, group: usize) {
        self.groups[group].declined_mut().note(false);
    }

    /// Whether most of what the group missed lately was declined.
    pub fn declines_most(&self, group: usize) -> bool {
        self.groups[group].declined().is_usual()
    }

    /// The past of a page that is put in now.
    fn past(&mut self, group: usize, dirty: bool, shadow: Option<Shadow>) -> History {
        let Some(shadow) = shadow else { return History::new(dirty) };
        let mut history = History::unpack(shadow.history);
        self.lists(group).0.feedback(history.class()).refaulted += 1;
        history.used(self.epoch.saturating_sub(shadow.epoch), 1);
        history.dirty = dirty;
        history
    }

    /// Puts a page that nobody has asked for yet into a free frame. Its mark is to be one
    /// [`ahead`](super::Mark::ahead). This counts as its use, and the first one after it does not.
    pub fn insert_ahead(&mut self, group: usize, frame: u32, shadow: Option<Shadow>) {
        let history = self.past(group, false, shadow);
        self.enter(group, frame, history, Class::AHEAD);
    }

    /// Looks at some pages that were read ahead, to find those that were asked for since: these are
    /// worth what others are. Nothing else would come across them soon.
    pub fn sort_ahead(&mut self, group: usize, count: usize, marks: &(impl Marks + ?Sized)) {
        for _ in 0..count {
            let (lists, links) = self.lists(group);
            let Some(frame) = lists.pop_ahead(links) else { return };
            self.put_back(group, frame, marks);
        }
    }

    fn enter(&mut self, group: usize, frame: u32, history: History, class: Class) {
        let known = Frame { history, class, last: self.epoch as u16 };
        let at = frame as usize;
        if at >= self.frames.len() {
            self.frames.resize(at + 1, known);
            self.links.grow(at + 1);
        }
        self.frames[at] = known;
        let (lists, links) = self.lists(group);
        lists.push(links, frame, class, 0);
    }

    /// Notes that the page in this frame was written to.
    pub fn set_dirty(&mut self, frame: u32) {
        self.frames[frame as usize].history.dirty = true;
    }

    /// Notes that the page in this frame was written back.
    pub fn set_clean(&mut self, frame: u32) {
        self.frames[frame as usize].history.dirty = false;
    }

    /// Keeps the page in this frame of the group from being evicted. Either it is gone and the
    /// frame is free, or it stays until [`put_back`](Self::put_back).
    pub fn remove(&mut self, group: usize, frame: u32) {
        let class = self.frames[frame as usize].class;
        let (lists, links) = self.lists(group);
        lists.remove(links, frame, class);
    }

    /// Lets the page in this frame, which [`remove`](Self::remove) or [`evict`](Self::evict) took
    /// out, be evicted again.
    pub fn put_back(&mut self, group: usize, frame: u32, marks: &(impl Marks + ?Sized)) {
        let bucket = self.sort(frame, marks).0;
        let class = self.frames[frame as usize].class;
        let (lists, links) = self.lists(group);
        lists.push(links, frame, class, bucket);
    }

    /// What the page that the group would give next is worth, if there is one.
    pub fn least(&mut self, group: usize) -> Option<f32> {
        self.lists(group).0.least()
    }

    /// Takes out the group's page that is worth least, if there is one that is not
    /// [spared](Self::spare).
    pub fn evict(&mut self, group: usize, marks: &(impl Marks + ?Sized)) -> Option<Victim> {
        let mut sorted = 0;
        loop {
            let frame = self.lists(group).0.victim()?;
            // This frame is looked at next, here or by the next eviction.
            if let Some(next) = self.groups[group].next_victim(&self.links) {
                prefetch(&self.frames[next as usize]);
                prefetch(&self.links[next]);
                marks.prefetch(next);
            }
            let was = self.frames[frame as usize].class;
            let (bucket, uses) = self.sort(frame, marks);
            let Frame { history, class, last } = self.frames[frame as usize];
            let lists = &mut self.groups[group];
            let (used, spared) = (uses > 0, !lists.is_open(bucket));
            let outgrown = used || class != was || lists.worth_more(class, bucket);
            lists.pop_victim(&mut self.links);
            if used {
                let feedback = lists.feedback(was);
                feedback.protected += 1;
                feedback.hits += uses as u64;
            }
            if spared || outgrown && sorted < SORT_MAX {
                sorted += usize::from(!used);
                lists.push(&mut self.links, frame, class, bucket);
                continue;
            }
            lists.feedback(class).evicted += 1;
            let epoch = self.epoch - self.age(last).min(self.epoch);
            let shadow = Shadow { epoch, history: history.pack() };
            let wasted = class == Class::AHEAD;
            return Some(Victim { frame, dirty: history.dirty, wasted, shadow });
        }
    }

    /// Brings a frame's history and class up to date. Returns the bucket of its age, and in how
    /// many epochs the page was used since the last time.
    fn sort(&mut self, frame: u32, marks: &(impl Marks + ?Sized)) -> (usize, u16) {
        let mark = marks.mark(frame).expect("a frame on a list has a mark");
        let (last, uses) = mark.get();
        let known = &mut self.frames[frame as usize];
        let uses = if uses == UNUSED { 0 } else { uses };
        if known.class == Class::AHEAD && mark.is_used() && uses == 0 {
            // Its first use was its only one.
            known.last = last;
        }
        if uses > 0 {
            let epochs = last.wrapping_sub(known.last) as u32;
            let horizon = self.horizon.unwrap_or(u32::MAX);
            known.history.used_within(horizon, epochs, uses as u32);
            known.last = last;
            mark.set(last);
        }
        known.class = if mark.is_used() { known.history.class() } else { Class::AHEAD };
        let last = known.last;
        (age::bucket(self.age(last)), uses)
    }

    /// The age of a page that was last used in the epoch `last`, which the shard may not have
    /// reached.
    fn age(&self, last: u16) -> u32 {
        let now = self.epoch as u16;
        if before(last, now) { now.wrapping_sub(last) as u32 } else { 0 }
    }

    /// Sets after how many epochs without use the past of a page is forgotten: the age of the
    /// oldest shadows.
    pub fn set_horizon(&mut self, epochs: u32) {
        self.horizon = Some(epochs);
    }

    /// Sets what the pages of a group are worth from now on.
    pub fn learn(&mut self, group: usize, worth: Arc<Worth>) {
        self.groups[group].learn(worth);
    }

    /// Notes that the worth of pages has changed in the tables that groups have.
    pub fn note_lesson(&mut self) {
        self.lesson = self.lesson.wrapping_add(1);
    }

    /// The classes of which there are frames in any group, a bit for each.
    pub fn classes(&self) -> Classes {
        let mut classes = Classes::default();
        self.groups.iter().for_each(|lists| add(&mut classes, lists.classes()));
        classes
    }

    /// The classes of the groups that have changed since this was asked last, and maybe of some
    /// others.
    pub fn changed_classes(&mut self) -> Classes {
        self.count();
        std::mem::take(&mut self.changed)
    }

    /// How many pages of each age and tier a group has that may be evicted, the oldest ages first;
    /// ages without pages are left out. This walks over all these pages. Pages that were used since
    /// they were last looked at are counted as what they were then.
    pub fn generations(&self, group: usize) -> Vec<Generation> {
        let mut ages = [[[0; 2]; TIERS]; age::BUCKETS];
        for (class, bucket, count) in self.groups[group].counts(&self.links, self.epoch) {
            let (tier, of) = tier_of(class);
            ages[bucket][tier][of] += count;
        }
        let ages = ages.into_iter().enumerate().rev();
        let ages = ages.map(|(bucket, tiers)| Generation { age: age::start(bucket), tiers });
        ages.filter(|generation| generation.sizes() != [0; 2]).collect()
    }

    /// What became of the pages of each tier of a group.
    pub fn tiers(&self, group: usize) -> Tiers {
        let mut tiers = Tiers::default();
        for (class, feedback) in self.groups[group].feedbacks() {
            let (tier, of) = tier_of(class);
            tiers[tier][of].add(feedback);
        }
        tiers
    }

    /// The epoch that the shard has reached.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Turns the clock back by an [`ERA`](super::ERA).
    pub fn turn_back(&mut self) {
        self.epoch = self.epoch.saturating_sub(super::ERA);
        self.groups.iter_mut().for_each(Lists::turn_back);
    }

    /// Lets time pass until this epoch has begun.
    pub fn advance(&mut self, epoch: u32, marks: &(impl Marks + ?Sized)) {
        let skipped = epoch.saturating_sub(self.epoch).saturating_sub(EPOCHS_MAX);
        if skipped > 0 {
            self.epoch += skipped;
            self.keep_ages_in_range(marks, skipped);
        }
        // Lists catch up when they are needed.
        for sweep in self.epoch / SWEEP + 1..=epoch / SWEEP {
            self.epoch = sweep * SWEEP;
            self.keep_ages_in_range(marks, 0);
        }
        self.epoch = epoch.max(self.epoch);
    }

    /// Epochs of frames are kept in 16 bits, so none may fall behind by more. `skipped` epochs have
    /// passed at once.
    fn keep_ages_in_range(&mut self, marks: &(impl Marks + ?Sized), skipped: u32) {
        let oldest = (self.epoch as u16).wrapping_sub(AGE_MAX);
        // Then all frames have reached the greatest age.
        let all = skipped >= AGE_MAX.into();
        for (frame, known) in self.frames.iter_mut().enumerate() {
            if all || before(known.last, oldest) {
                known.last = oldest;
            }
            if let Some(mark) = marks.mark(frame as u32) {
                mark.not_before(oldest);
            }
        }
    }
}

/// A set of classes, a bit for each.
pub type Classes = [u64; super::history::CLASSES / 64];

fn add(all: &mut Classes, some: Classes) {
    all.iter_mut().zip(some).for_each(|(all, some)| *all |= some);
}

/// Resizes a vector without room for more.
pub(super) fn resize_exact<T>(vector: &mut Vec<T>, len: usize, value: impl FnMut() -> T) {
    vector.reserve_exact(len.saturating_sub(vector.len()));
    vector.resize_with(len, value);
    vector.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::density::Mark;

    #[test]
    fn what_was_used_long_ago_is_old_after_any_rest() {
        let marks: [Mark; 0] = [];
        for rest in [100, 30_000, 49_200, 60_000, 65_536, 70_000, 200_000] {
            let mut ranking = Ranking::default();
            ranking.add_group(Arc::new(Worth::recency()));
            ranking.advance(1000, &marks[..]);
            ranking.insert(0, 0, false, None);
            ranking.advance(1000 + rest, &marks[..]);
            let age = (ranking.epoch as u16).wrapping_sub(ranking.frames[0].last);
            assert!(u32::from(age) >= rest.min(AGE_MAX.into()), "{age} after {rest}");
            assert!(u32::from(age) <= rest, "{age} after {rest}");
        }
    }
}
