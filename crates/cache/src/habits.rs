//! The clock of a cache, and what the cache has learnt about its pages: everything that its shards
//! share.
//!
//! Requests are the clock. Shards count them and report them in batches. The shard whose batch
//! completes an epoch ends that epoch. The other shards notice when they are next changed.
//!
//! Each group is learnt separately, as long as there are few groups, because what one group does
//! says nothing about another. Further groups share what is learnt about the last of these.
//!
//! A cache of objects that misses almost nothing rests: it evicts almost nothing, so hits leave no
//! marks, nothing is learnt, and no epoch ends, until some requests have missed again. Now and then
//! it wakes by itself, so that it knows what was used lately if something happens, such as a change
//! of the capacity.
//!
//! Requests never wait here. Uses are noted, and the learner hears of several at a time (`heard.rs`).
//! If too many come while the learner is busy, some are lost. That does no harm: uses and exposure
//! are both counted from a sample, and a sample that loses a little of both at random learns the
//! same, only more slowly.

use homing_mglru::density::{
    Classes, ERA, Ghosts, Learner, Mark, Marks, Ranking, Shadow, Use, Worth,
};

use crate::heard::{GROUPS_MAX, Heard};
use crate::min_ttl::MinTtl;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::sync::{Arc, Mutex, MutexGuard, lock, unless_taken};

/// Keys that the smallest cache follows.
const SAMPLE_MIN: usize = 1 << 12;
/// Groups are learnt of apart where the cache has so many pages for each, and no more than so many: each takes
/// 115 KB, and as much time in each lesson as all did together.
const PAGES_EACH: usize = 1 << 14;
const APART_MAX: usize = 8;
const _: () = assert!(APART_MAX <= GROUPS_MAX);

/// Epochs, and requests, without a batch of misses after which a cache rests: less than one request in 512 is
/// missed then.
const REST_AFTER: (u64, u64) = (16, 1 << 13);
/// How many times as long it rests, at most.
const REST: u64 = 8;

/// What shards share.
#[derive(Debug)]
pub(crate) struct Habits {
    now: Now,
    pub(crate) min_ttl: MinTtl,
    clock: Clock,
    /// Classes of pages that shards have.
    held: [AtomicU64; std::mem::size_of::<Classes>() / 8],
    heard: Heard,
    learner: Mutex<Learner>,
    /// By the learner's groups. Taken after the learner, if both are.
    worth: Mutex<Vec<std::sync::Arc<Worth>>>,
    /// How many groups of the learner there may be.
    apart: usize,
}

/// What a shard has been told: how many lessons, and after how many changes of tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    lessons: u32,
    tables: u32,
}

/// Read for each hit, and changed seldom: on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Now {
    epoch: AtomicU32,
    /// How many lowest bits of a hash are zero where its key is followed.
    level: AtomicU32,
    /// Whether recency alone decides.
    learning: AtomicBool,
    /// How often it was found out what pages are worth, and how often that was put in other tables.
    lessons: AtomicU32,
    tables: AtomicU32,
    /// How many requests shards tell at a time.
    batch: AtomicU32,
    /// Next to nothing is missed.
    resting: AtomicBool,
}

/// Written by all: on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Clock {
    /// How far shadows reach.
    horizon: AtomicU32,
    requests: AtomicU64,
    epoch_ends: AtomicU64,
    /// How many requests there were when a batch of misses was told last, or a rest began or ended.
    since: AtomicU64,
}

impl Habits {
    /// For a cache that has room for about so many pages.
    pub(crate) fn new(pages: usize) -> Arc<Self> {
        Self::following(pages, Self::sample(pages), Self::apart(pages))
    }

    /// How many keys are followed in a cache of so many pages: what small ones take for it stays small.
    pub(crate) fn sample(pages: usize) -> usize {
        Learner::sample_for(pages).min(pages.saturating_mul(2).max(SAMPLE_MIN))
    }

    /// Of how many groups is learnt apart in a cache of so many pages.
    pub(crate) fn apart(pages: usize) -> usize {
        (pages / PAGES_EACH).clamp(1, APART_MAX)
    }

    /// The same, where at most so many keys are followed of at most so many groups.
    pub(crate) fn following(pages: usize, keys: usize, apart: usize) -> Arc<Self> {
        let learner = Learner::with_sample(pages.max(1), keys);
        Arc::new(Self {
            now: Now {
                epoch: AtomicU32::new(0),
                level: AtomicU32::new(learner.level()),
                learning: AtomicBool::new(true),
                lessons: AtomicU32::new(0),
                tables: AtomicU32::new(0),
                batch: AtomicU32::new(batch(&learner)),
                resting: AtomicBool::new(false),
            },
            min_ttl: MinTtl::new(),
            clock: Clock {
                horizon: AtomicU32::new(u32::MAX),
                requests: AtomicU64::new(0),
                epoch_ends: AtomicU64::new(learner.epoch_length()),
                // Who never tells of misses never rests.
                since: AtomicU64::new(u64::MAX),
            },
            held: std::array::from_fn(|_| AtomicU64::new(0)),
            heard: Heard::new(),
            worth: Mutex::new(vec![learner.worth(0)]),
            learner: Mutex::new(learner),
            apart,
        })
    }

    /// The epoch that runs.
    pub(crate) fn epoch(&self) -> u32 {
        self.now.epoch.load(Relaxed)
    }

    /// How many requests are to be told at a time.
    pub(crate) fn batch(&self) -> u32 {
        self.now.batch.load(Relaxed)
    }

    /// The learner's group for one of this number in the cache. The first ones have their own, and what comes
    /// after them has the last one together.
    fn learners(&self, group: usize) -> u8 {
        group.min(self.apart - 1) as u8
    }

    /// There is a group of this number from now on.
    pub(crate) fn add_group(&self, group: usize) {
        let mut learner = lock(&self.learner);
        while learner.groups().len() <= self.learners(group).into() {
            learner.add_group();
        }
        self.tell_worth(&learner);
    }

    /// The group is gone, and nothing is to be told of it any more: the next one of its number is another.
    pub(crate) fn forget_group(&self, group: usize) {
        if group + 1 < self.apart {
            lock(&self.learner).reset_group(group as u8);
        }
    }

    /// What the pages of a group are worth.
    pub(crate) fn worth(&self, group: usize) -> std::sync::Arc<Worth> {
        let all = lock(&self.worth);
        std::sync::Arc::clone(&all[usize::from(self.learners(group))])
    }

    /// Leaves the mark of a hit. Whether [`used`](Self::used) is to hear of it.
    #[inline]
    pub(crate) fn hit(&self, mark: &Mark) -> bool {
        !self.now.resting.load(Relaxed) && mark.used(self.epoch())
    }

    /// A page of this group was used for the first time in this epoch, or was missed: then nobody may know
    /// whose it is. May be left out by shards for further uses.
    #[inline]
    pub(crate) fn used(&self, hash: u64, group: Option<usize>, write: bool) {
        if self.follows(hash) {
            self.note(hash, group, write, false);
        }
    }

    #[inline]
    fn follows(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.now.level.load(Relaxed) && self.now.learning.load(Relaxed)
    }

    /// A page of this group was put in, maybe without having been asked for.
    #[inline]
    pub(crate) fn met(&self, hash: u64, group: usize, write: bool) {
        if self.follows(hash) {
            self.note(hash, Some(group), write, true);
        }
    }

    #[cold]
    fn note(&self, hash: u64, group: Option<usize>, write: bool, met: bool) {
        let group = group.map(|group| self.learners(group));
        if self.heard.note(Use { hash, group, epoch: self.epoch(), write, met })
            && let Some(mut learner) = self.try_learner()
        {
            self.tell_learner(&mut learner);
        }
    }

    /// Lets the learner hear what was noted.
    fn tell_learner(&self, learner: &mut Learner) {
        learner.set_horizon(self.clock.horizon.load(Relaxed));
        learner.hear(self.heard.take(self.epoch(), &mut Heard::room()));
        // It is on the line that all hits read.
        if self.now.level.load(Relaxed) != learner.level() {
            self.now.level.store(learner.level(), Relaxed);
        }
    }

    /// Learns, or lets recency alone decide.
    pub(crate) fn set_learning(&self, learning: bool) {
        let learner = lock(&self.learner);
        self.now.learning.store(learning, Relaxed);
        self.tell_worth(&learner);
        self.now.tables.fetch_add(1, Release);
        self.now.lessons.fetch_add(1, Release);
    }

    fn tell_worth(&self, learner: &Learner) {
        let recency = (!self.now.learning.load(Relaxed)).then(|| Worth::recency().into());
        let worth = |group| recency.clone().unwrap_or_else(|| learner.worth(group));
        *lock(&self.worth) = learner.groups().map(worth).collect();
    }

    /// Whether it learns.
    #[cfg(feature = "control")]
    pub(crate) fn is_learning(&self) -> bool {
        self.now.learning.load(Relaxed)
    }

    /// How many requests an epoch has.
    #[cfg(feature = "control")]
    pub(crate) fn epoch_length(&self) -> u64 {
        lock(&self.learner).epoch_length()
    }

    /// So many requests passed that were misses. Only a cache that tells of these rests.
    pub(crate) fn missed(&self, requests: u64) {
        self.set_resting(false, self.clock.requests.load(Relaxed));
        self.passed(requests);
    }

    fn set_resting(&self, resting: bool, now: u64) {
        self.clock.since.store(now, Relaxed);
        // It is on the line that all hits read.
        if self.now.resting.load(Relaxed) != resting {
            self.now.resting.store(resting, Relaxed);
        }
    }

    /// So many requests passed.
    pub(crate) fn passed(&self, requests: u64) {
        let now = self.clock.requests.fetch_add(requests, Relaxed) + requests;
        if now >= self.clock.epoch_ends.load(Relaxed) {
            self.end_epoch(now);
        }
    }

    #[cold]
    fn end_epoch(&self, now: u64) {
        // If somebody is at the learner, whoever comes next ends the epoch.
        let Some(mut learner) = self.try_learner() else { return };
        if now >= self.clock.epoch_ends.load(Relaxed) {
            self.begin_epoch(&mut learner, now);
        }
    }

    /// Lets the next epoch begin now, if this one runs. Returns the one that runs then.
    #[cfg(feature = "control")]
    pub(crate) fn age(&self, epoch: u32) -> Result<u32, u32> {
        let mut learner = lock(&self.learner);
        match self.epoch() {
            runs if runs == epoch => {
                self.begin_epoch(&mut learner, self.clock.requests.load(Relaxed));
                Ok(self.epoch())
            }
            other => Err(other),
        }
    }

    fn begin_epoch(&self, learner: &mut Learner, now: u64) {
        let ends = self.clock.epoch_ends.load(Relaxed);
        // Where requests are told faster than epochs can be ended, these get longer.
        let length = learner.epoch_length();
        let ends = if ends > now { now } else { ends };
        self.clock.epoch_ends.store((ends + length).max(now + 1), Relaxed);
        let since = now.saturating_sub(self.clock.since.load(Relaxed));
        let awake = (length * REST_AFTER.0).max(REST_AFTER.1);
        match self.now.resting.load(Relaxed) {
            true if since < awake * REST => return,
            true => self.set_resting(false, now),
            false if since >= awake => return self.set_resting(true, now),
            false => {}
        }
        self.tell_learner(learner);
        let mut epoch = self.epoch() + 1;
        if epoch == 2 * ERA {
            epoch -= ERA;
            learner.turn_back();
            self.min_ttl.turn_back(ERA);
        }
        let held = |class: usize| self.held[class / 64].load(Relaxed) >> (class % 64) & 1 == 1;
        let learnt = learner.end_epoch(epoch, now, held);
        self.now.epoch.store(epoch, Release);
        self.min_ttl.epoch_began(epoch);
        if learnt && self.now.learning.load(Relaxed) {
            // First: who has heard of the lesson tells all that it holds.
            self.held.iter().for_each(|classes| classes.store(0, Relaxed));
            self.now.lessons.fetch_add(1, Release);
        }
    }

    /// The cache has room for about so many pages from now on.
    pub(crate) fn set_capacity(&self, pages: usize) {
        let mut learner = lock(&self.learner);
        learner.set_capacity(pages.max(1));
        self.now.batch.store(batch(&learner), Relaxed);
        // Not after what would have been an epoch of a cache without a limit.
        let ends = self.clock.requests.load(Relaxed).saturating_add(learner.epoch_length());
        self.clock.epoch_ends.fetch_min(ends, Relaxed);
    }

    /// Remembers a page that a shard evicts. How far its shadows reach is how far all pasts do.
    pub(crate) fn evicted(
        &self,
        ranking: &mut Ranking,
        ghosts: &mut Ghosts,
        hash: u64,
        shadow: Shadow,
    ) {
        if let Some(horizon) = ghosts.put(hash, shadow, ranking.epoch()) {
            ranking.set_horizon(horizon);
            if self.clock.horizon.load(Relaxed) != horizon {
                self.clock.horizon.store(horizon, Relaxed);
            }
        }
    }

    /// Brings a shard up to date that was told this, under its lock. Its groups
    /// have these numbers in the cache.
    pub(crate) fn tell(
        &self,
        ranking: &mut Ranking,
        marks: &(impl Marks + ?Sized),
        groups: impl Iterator<Item = usize>,
        told: &mut Told,
    ) {
        let epoch = self.now.epoch.load(Acquire);
        if ranking.epoch() > epoch {
            ranking.turn_back();
        }
        if ranking.epoch() < epoch {
            ranking.advance(epoch, marks);
            self.tell_held(ranking.changed_classes());
        }
        let lessons = self.now.lessons.load(Acquire);
        if told.lessons != lessons {
            // Written before the lesson.
            let now = Told { lessons, tables: self.now.tables.load(Acquire) };
            let before = std::mem::replace(told, now);
            ranking.note_lesson();
            // From here on groups that change will do.
            self.tell_held(ranking.classes());
            // Mostly the tables are the same, and only what is in them another.
            if before.tables != now.tables {
                groups
                    .enumerate()
                    .for_each(|(local, group)| ranking.learn(local, self.worth(group)));
            }
        }
    }

    fn tell_held(&self, classes: Classes) {
        for (held, classes) in self.held.iter().zip(classes) {
            held.fetch_or(classes, Relaxed);
        }
    }

    fn try_learner(&self) -> Option<MutexGuard<'_, Learner>> {
        unless_taken(self.learner.try_lock())
    }
}

/// A small part of an epoch, so that these do not get much longer for it: a power of two, by which
/// shards tell where a batch is full.
fn batch(learner: &Learner) -> u32 {
    1 << (learner.epoch_length() / 32).clamp(1, 64).ilog2()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use homing_mglru::density::Mark;

    use super::*;

    #[test]
    fn time_goes_on_when_all_epochs_have_passed() {
        let habits = Habits::new(100);
        habits.now.epoch.store(2 * ERA - 5, Relaxed);
        let mut ranking = Ranking::default();
        let (group, marks) = (ranking.add_group(habits.worth(0)), [Mark::new(2 * ERA - 5)]);
        let mut told = Told::default();
        habits.tell(&mut ranking, &marks[..], 0..1, &mut told);
        ranking.insert(group, 0, false, None);
        habits.used(1 << 40, None, false);
        for _ in 0..40 {
            habits.passed(1);
            habits.tell(&mut ranking, &marks[..], 0..1, &mut told);
            assert_eq!(ranking.epoch(), habits.epoch());
        }
        assert_eq!(habits.epoch(), ERA + 35);
        // Its age is 40; lists are as exact as their buckets.
        let generations = ranking.generations(group);
        assert!(generations.len() == 1 && (24..64).contains(&generations[0].age));
        habits.used(1 << 40, None, false);
    }

    #[test]
    fn the_first_groups_are_learnt_of_apart_and_the_others_together() {
        let habits = Habits::following(1 << 16, 1 << 14, 3);
        let is_one = |one, other| std::sync::Arc::ptr_eq(&habits.worth(one), &habits.worth(other));
        (0..5).for_each(|group| habits.add_group(group));
        assert!(!is_one(0, 1) && !is_one(1, 2) && !is_one(0, 2));
        assert!(is_one(2, 3) && is_one(2, 4));
        habits.set_learning(false);
        habits.add_group(1);
        assert!(is_one(0, 1) && is_one(1, 2), "recency counts");
        habits.set_learning(true);
        let groups = |habits: &Habits| {
            lock(&habits.learner).hear(habits.heard.take(0, &mut Heard::room()));
            format!("{:?}", lock(&habits.learner))
        };
        habits.used(1 << 40, Some(1), false);
        habits.met(3 << 40, 4, true);
        let told = groups(&habits);
        assert!(told.contains(&format!("hash: {}", 1_u64 << 40)));
        // Those that share counts are not told apart: what is known of one that is gone stays.
        habits.forget_group(4);
        assert_eq!(groups(&habits), told);
        habits.forget_group(1);
        let left = groups(&habits);
        assert!(!left.contains(&format!("hash: {}", 1_u64 << 40)));
        assert!(left.contains(&format!("hash: {}", 3_u64 << 40)));
    }

    #[test]
    fn where_nothing_is_missed_it_rests_but_now_and_then() {
        let habits = Habits::new(1280);
        habits.missed(0);
        let mark = Mark::new(0);
        habits.passed(100);
        assert!(habits.epoch() > 0 && habits.hit(&mark));
        let pass = |requests| (0..requests).for_each(|_| habits.passed(1));
        pass(REST_AFTER.1 + 20);
        let rests = habits.epoch();
        pass(REST_AFTER.1 * (REST - 1));
        assert!(habits.epoch() == rests && !habits.hit(&mark), "the mark is old");
        pass(REST_AFTER.1 + 20);
        assert!(habits.epoch() > rests && habits.hit(&mark), "it is awake for a while");
        pass(REST_AFTER.1 + 20);
        let rests = habits.epoch();
        pass(100);
        assert!(habits.epoch() == rests);
        habits.missed(1);
        pass(20);
        assert!(habits.hit(&mark) && (1..4).contains(&(habits.epoch() - rests)));
    }

    /// Else whoever masks a count with it tells more batches than there were.
    #[test]
    fn batches_are_powers_of_two() {
        for pages in (1..300_000).step_by(997) {
            let batch = Habits::new(pages).batch();
            assert!(batch.is_power_of_two(), "{batch} for {pages} pages");
        }
    }
}
