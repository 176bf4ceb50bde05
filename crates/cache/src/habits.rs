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
//! Requests never wait here. Uses are noted, and the learner hears of several at a time
//! (`heard.rs`). If too many come while the learner is busy, some are lost. That does no harm: uses
//! and exposure are both counted from a sample, and a sample that loses a little of both at random
//! learns the same, only more slowly.

use homing_mglru::density::{
    Classes, ERA, Ghosts, Learner, Mark, Marks, Ranking, Shadow, Use, Worth,
};

use crate::heard::{GROUPS_MAX, Heard};
use crate::min_ttl::MinTtl;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::sync::{Arc, Mutex, MutexGuard, lock, unless_taken};

/// How many keys even the smallest cache may follow.
const SAMPLE_MIN: usize = 1 << 12;
/// One group is learnt about separately for each `PAGES_EACH` pages of the cache, but at least one
/// and at most `APART_MAX`: each takes 115 KB, and as much time in each lesson as all did together.
const PAGES_EACH: usize = 1 << 14;
const APART_MAX: usize = 8;
const _: () = assert!(APART_MAX <= GROUPS_MAX);

/// After this many epochs, and this many requests, without a batch of misses a cache rests: less
/// than one request in 512 is missed then.
const REST_AFTER: (u64, u64) = (16, 1 << 13);
/// A rest lasts at most this many times as long.
const REST: u64 = 8;

/// What the shards of a cache share.
#[derive(Debug)]
pub(crate) struct Habits {
    now: Now,
    pub(crate) min_ttl: MinTtl,
    clock: Clock,
    /// The classes of pages that shards hold.
    held: [AtomicU64; std::mem::size_of::<Classes>() / 8],
    heard: Heard,
    learner: Mutex<Learner>,
    /// For each of the learner's groups. Locked after the learner, if both are locked.
    worth: Mutex<Vec<std::sync::Arc<Worth>>>,
    /// How many groups the learner may have.
    apart: usize,
}

/// What a shard has been told: the number of lessons, and of changes of tables, by then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    lessons: u32,
    tables: u32,
}

/// Read for each hit, and seldom changed, so it has its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Now {
    epoch: AtomicU32,
    /// A key is followed if at least this many of the lowest bits of its hash are zero.
    level: AtomicU32,
    /// Whether the policy learns. If not, recency alone decides.
    learning: AtomicBool,
    /// How often the worth of pages was learnt anew, and how often that was put into other tables.
    lessons: AtomicU32,
    tables: AtomicU32,
    /// How many requests shards report at a time.
    batch: AtomicU32,
    /// Whether the cache rests, because almost nothing is missed.
    resting: AtomicBool,
}

/// Written by all threads, so it has its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Clock {
    /// How far shadows reach.
    horizon: AtomicU32,
    requests: AtomicU64,
    epoch_ends: AtomicU64,
    /// How many requests there were when a batch of misses was last reported, or a rest began or
    /// ended.
    since: AtomicU64,
}

impl Habits {
    /// For a cache that has room for about this many pages.
    pub(crate) fn new(pages: usize) -> Arc<Self> {
        Self::following(pages, Self::sample(pages), Self::apart(pages))
    }

    /// How many keys are followed in a cache of this many pages. Small caches follow few, so that
    /// this takes little memory.
    pub(crate) fn sample(pages: usize) -> usize {
        Learner::sample_for(pages).min(pages.saturating_mul(2).max(SAMPLE_MIN))
    }

    /// How many groups are learnt about separately in a cache of this many pages.
    pub(crate) fn apart(pages: usize) -> usize {
        (pages / PAGES_EACH).clamp(1, APART_MAX)
    }

    /// As [`Habits::new`], with the number of keys that are followed, and the most groups that are
    /// learnt about separately.
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
                // A cache that never reports misses never rests.
                since: AtomicU64::new(u64::MAX),
            },
            held: std::array::from_fn(|_| AtomicU64::new(0)),
            heard: Heard::new(),
            worth: Mutex::new(vec![learner.worth(0)]),
            learner: Mutex::new(learner),
            apart,
        })
    }

    /// The current epoch.
    pub(crate) fn epoch(&self) -> u32 {
        self.now.epoch.load(Relaxed)
    }

    /// How many requests shards are to report at a time.
    pub(crate) fn batch(&self) -> u32 {
        self.now.batch.load(Relaxed)
    }

    /// The learner's group for the cache's group of this number. The first groups have their own;
    /// the last of the learner's groups is shared by all further ones.
    fn learners(&self, group: usize) -> u8 {
        group.min(self.apart - 1) as u8
    }

    /// Notes that there is a group of this number from now on.
    pub(crate) fn add_group(&self, group: usize) {
        let mut learner = lock(&self.learner);
        while learner.groups().len() <= self.learners(group).into() {
            learner.add_group();
        }
        self.tell_worth(&learner);
    }

    /// Forgets a group that is gone. Nothing may be reported about it any more: the next group of
    /// its number is another one.
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

    /// Leaves the mark of a hit. Returns whether the caller has to report it to
    /// [`used`](Self::used).
    #[inline]
    pub(crate) fn hit(&self, mark: &Mark) -> bool {
        !self.now.resting.load(Relaxed) && mark.used(self.epoch())
    }

    /// Notes that a page of this group was used for the first time in this epoch, or was missed, in
    /// which case its group may be unknown. Shards may leave out further uses.
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

    /// Notes that a page of this group was put in, perhaps without having been asked for.
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
        // Stored only if it changes: it is on the cache line that all hits read.
        if self.now.level.load(Relaxed) != learner.level() {
            self.now.level.store(learner.level(), Relaxed);
        }
    }

    /// Sets whether the policy learns. If not, recency alone decides.
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

    /// Whether the policy learns.
    #[cfg(feature = "control")]
    pub(crate) fn is_learning(&self) -> bool {
        self.now.learning.load(Relaxed)
    }

    /// How many requests an epoch has.
    #[cfg(feature = "control")]
    pub(crate) fn epoch_length(&self) -> u64 {
        lock(&self.learner).epoch_length()
    }

    /// Notes that this many requests passed that were misses. Only a cache that reports these
    /// rests.
    pub(crate) fn missed(&self, requests: u64) {
        self.set_resting(false, self.clock.requests.load(Relaxed));
        self.passed(requests);
    }

    fn set_resting(&self, resting: bool, now: u64) {
        self.clock.since.store(now, Relaxed);
        // Stored only if it changes: it is on the cache line that all hits read.
        if self.now.resting.load(Relaxed) != resting {
            self.now.resting.store(resting, Relaxed);
        }
    }

    /// Notes that this many requests passed.
    pub(crate) fn passed(&self, requests: u64) {
        let now = self.clock.requests.fetch_add(requests, Relaxed) + requests;
        if now >= self.clock.epoch_ends.load(Relaxed) {
            self.end_epoch(now);
        }
    }

    #[cold]
    fn end_epoch(&self, now: u64) {
        // If another thread has the learner, a later call ends the epoch.
        let Some(mut learner) = self.try_learner() else { return };
        if now >= self.clock.epoch_ends.load(Relaxed) {
            self.begin_epoch(&mut learner, now);
        }
    }

    /// Lets the next epoch begin now, if `epoch` is the current one. Returns the current epoch
    /// after that; as an error if `epoch` was not the current one.
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
        // If requests are reported faster than epochs can be ended, epochs get longer.
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
            // Before the lesson is announced: a shard that hears of it reports all classes that it
            // holds.
            self.held.iter().for_each(|classes| classes.store(0, Relaxed));
            self.now.lessons.fetch_add(1, Release);
        }
    }

    /// Notes that the cache has room for about this many pages from now on.
    pub(crate) fn set_capacity(&self, pages: usize) {
        let mut learner = lock(&self.learner);
        learner.set_capacity(pages.max(1));
        self.now.batch.store(batch(&learner), Relaxed);
        // Otherwise the current epoch might last as long as one of a cache without a limit.
        let ends = self.clock.requests.load(Relaxed).saturating_add(learner.epoch_length());
        self.clock.epoch_ends.fetch_min(ends, Relaxed);
    }

    /// Remembers a page that a shard evicts. How far back the shard's shadows reach is how far back
    /// all pasts do.
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

    /// Brings a shard up to date, under its lock. `told` is what it was told before; `groups` are
    /// the numbers that its groups have in the cache.
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
            // `tables` was written before the lesson was announced.
            let now = Told { lessons, tables: self.now.tables.load(Acquire) };
            let before = std::mem::replace(told, now);
            ranking.note_lesson();
            // After this, reporting the groups that change is enough.
            self.tell_held(ranking.classes());
            // Usually the tables are the same, and only their contents have changed.
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

/// A small part of an epoch, so that epochs do not get much longer because of batches. It is a
/// power of two, so that shards can tell from a count whether a batch is full.
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
