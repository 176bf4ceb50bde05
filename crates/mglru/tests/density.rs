//! What the default policy promises, tested from outside.

use std::collections::BTreeMap;

use homing_mglru::density::{HitDensity, Learner, Savings, Shadow, Shard, Use};
use proptest::prelude::*;

/// A cache of keys around the policy, which never forgets a shadow.
struct Cache {
    policy: HitDensity,
    capacity: usize,
    frames: BTreeMap<u64, u32>,
    keys: Vec<Option<u64>>,
    shadows: BTreeMap<u64, Shadow>,
}

impl Cache {
    fn new(capacity: usize) -> Self {
        let policy = HitDensity::new(capacity);
        let (frames, shadows) = (BTreeMap::new(), BTreeMap::new());
        Self { policy, capacity, frames, keys: vec![None; capacity], shadows }
    }

    fn request(&mut self, key: u64) -> bool {
        self.policy.request(0, hash(key), false);
        if let Some(&frame) = self.frames.get(&key) {
            self.policy.access(frame);
            return true;
        }
        if self.frames.len() == self.capacity {
            self.evict();
        }
        let frame = self.keys.iter().position(Option::is_none).unwrap();
        self.keys[frame] = Some(key);
        self.frames.insert(key, frame as u32);
        self.policy.insert(0, frame as u32, false, self.shadows.remove(&key));
        false
    }

    fn evict(&mut self) -> Option<u64> {
        let victim = self.policy.evict()?;
        let key = self.keys[victim.frame as usize].take().expect("a victim was held");
        self.frames.remove(&key);
        self.shadows.insert(key, victim.shadow);
        Some(key)
    }

    fn remove(&mut self, key: u64) {
        if let Some(frame) = self.frames.remove(&key) {
            self.keys[frame as usize] = None;
            self.policy.remove(0, frame);
        }
    }

    fn hit_ratio(&mut self, keys: impl IntoIterator<Item = u64>) -> f64 {
        let (mut hits, mut requests) = (0, 0);
        for key in keys {
            hits += u32::from(self.request(key));
            requests += 1;
        }
        f64::from(hits) / f64::from(requests)
    }
}

fn hash(key: u64) -> u64 {
    let bits = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Numbers that follow no pattern.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    (seed * 1_000_000..).map(|n| hash(hash(n) >> 1) >> 20)
}

#[test]
fn of_a_loop_that_does_not_fit_it_keeps_what_does() {
    let mut cache = Cache::new(100);
    cache.hit_ratio((0..40).flat_map(|_| 0..400));
    let ratio = cache.hit_ratio((0..20).flat_map(|_| 0..400));
    assert!(ratio > 0.22, "{ratio}, where 0.25 is possible");
}

#[test]
fn a_scan_does_not_push_out_what_is_in_use() {
    let mut cache = Cache::new(200);
    let mut next = 1000..;
    let mut mix = random(1).map(|n| if n % 2 == 0 { n / 2 % 150 } else { next.next().unwrap() });
    cache.hit_ratio(mix.by_ref().take(20_000));
    let ratio = cache.hit_ratio(mix.take(20_000));
    assert!(ratio > 0.48, "{ratio}, where 0.5 is possible");
}

#[test]
fn where_habits_change_it_follows() {
    let mut cache = Cache::new(200);
    cache.hit_ratio(random(1).map(|n| n % 150).take(50_000));
    cache.hit_ratio(random(2).map(|n| 1000 + n % 150).take(20_000));
    let ratio = cache.hit_ratio(random(3).map(|n| 1000 + n % 150).take(10_000));
    assert!(ratio > 0.99, "{ratio}, where all is possible");
}

#[test]
fn recency_counts_where_uses_come_in_crowds() {
    // Each page is used about five times within a window of thirty pages, then never again.
    let keys = random(7).zip(0u64..).map(|(n, now)| now / 5 + n % 30).take(60_000);
    let mut cache = Cache::new(60);
    let ratio = cache.hit_ratio(keys);
    assert!(ratio > 0.75, "{ratio}, where 0.8 is possible");
}

#[test]
fn epochs_may_be_counted_beyond_sixteen_bits() {
    // In a cache this small, each request is an epoch.
    let mut cache = Cache::new(3);
    cache.request(7);
    (0..40_000).for_each(|_| _ = cache.request(0));
    cache.request(8);
    (40_000..(1 << 16)).for_each(|_| _ = cache.request(0));
    assert_eq!(cache.frames.len(), 3);
    assert_eq!(cache.evict(), Some(7), "what was not used for longest was taken for young");
    for key in 0..200_000 {
        cache.request(100 + key % 5);
    }
    assert_eq!(cache.frames.len(), 3);
}

#[test]
fn a_clean_page_that_will_be_overwritten_goes_before_a_dirty_one() {
    let mut policy = HitDensity::new(100);
    policy.set_savings(Savings { read: 1.0, write: 0.0, rewrite: 1.0 });
    for frame in 0..100 {
        policy.insert(0, frame, true, None);
    }
    for _ in 0..100 {
        for frame in 0..100 {
            policy.request(0, hash(frame.into()), true);
            policy.access(frame);
            policy.set_dirty(frame);
        }
    }
    (0..50).for_each(|frame| policy.set_clean(frame));
    let victims: Vec<_> = (0..50).map(|_| policy.evict().unwrap()).collect();
    let clean = victims.iter().filter(|victim| !victim.dirty).count();
    assert_eq!(clean, 50, "to overwrite a clean page saves nothing");
}

#[derive(Clone, Debug)]
enum Step {
    Request(u64),
    Evict,
    Remove(u64),
    Write(u64),
    Clean(u64),
    Resize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..40u64).prop_map(Step::Request),
        2 => Just(Step::Evict),
        2 => (0..40u64).prop_map(Step::Remove),
        2 => (0..40u64).prop_map(Step::Write),
        1 => (0..40u64).prop_map(Step::Clean),
        1 => (1..500usize).prop_map(Step::Resize),
    ]
}

/// Does the steps, then evicts all pages. Returns the key of each victim, and whether it was dirty.
fn victims(steps: &[Step]) -> Vec<(u64, bool)> {
    let mut cache = Cache::new(16);
    let mut dirty = [false; 16];
    let mut victims = Vec::new();
    let mut evict = |cache: &mut Cache, dirty: &[bool; 16]| {
        let victim = cache.policy.evict()?;
        assert_eq!(victim.dirty, dirty[victim.frame as usize]);
        let key = cache.keys[victim.frame as usize].take().expect("a victim was held");
        cache.frames.remove(&key);
        cache.shadows.insert(key, victim.shadow);
        victims.push((key, victim.dirty));
        Some(())
    };
    for step in steps {
        match *step {
            Step::Request(key) => {
                if !cache.frames.contains_key(&key) && cache.frames.len() == cache.capacity {
                    evict(&mut cache, &dirty);
                }
                if !cache.request(key) {
                    dirty[cache.frames[&key] as usize] = false;
                }
            }
            Step::Evict => _ = evict(&mut cache, &dirty),
            Step::Remove(key) => cache.remove(key),
            Step::Write(key) => {
                if let Some(&frame) = cache.frames.get(&key) {
                    cache.policy.set_dirty(frame);
                    dirty[frame as usize] = true;
                }
            }
            Step::Clean(key) => {
                if let Some(&frame) = cache.frames.get(&key) {
                    cache.policy.set_clean(frame);
                    dirty[frame as usize] = false;
                }
            }
            Step::Resize(capacity) => cache.policy.set_capacity(capacity),
        }
    }
    while evict(&mut cache, &dirty).is_some() {}
    assert!(cache.frames.is_empty(), "lost: {:?}", cache.frames);
    victims
}

proptest! {
    /// Each page that was inserted is either a victim once, or removed. A victim is dirty if it was
    /// written since it was clean. The same steps give the same victims.
    #[test]
    fn no_page_is_lost_or_given_twice(steps in proptest::collection::vec(step(), 1..400)) {
        prop_assert_eq!(victims(&steps), victims(&steps));
    }
}

#[test]
fn a_page_that_is_moved_keeps_its_place_and_frames_take_what_they_need() {
    let mut learner = Learner::new(8);
    let mut shard = Shard::new();
    let group = shard.add_group(learner.worth(0));
    shard.set_frames(4);
    let memory = shard.memory();
    for frame in 0..4 {
        shard.insert(group, frame, false, None);
    }
    learner.used(Use { hash: hash(1), group: None, epoch: 0, write: false, met: false });
    shard.evict(group).unwrap();
    shard.move_page(group, 3, 0);
    // The classes of the group have got their lists, but no frame has got more room.
    let lists = shard.memory() - memory;
    shard.set_frames(3);
    assert_eq!(shard.memory(), memory + lists - 20);
    let mut left: Vec<_> =
        std::iter::from_fn(|| shard.evict(group)).map(|page| page.frame).collect();
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2]);
}
