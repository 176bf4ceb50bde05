//! What the owner of a cache can say to the default policy: which pages to spare, which type goes
//! first, and which groups there are.

use std::sync::Arc;

use homing_mglru::density::{Learner, Ranking, Shard, Swappiness, Use, Worth};

/// One group whose pages are worth less the older they are.
fn shard(frames: u32) -> Shard {
    let mut shard = Shard::new();
    let group = shard.add_group(Arc::new(Worth::recency()));
    shard.set_frames(frames as usize);
    (0..frames).for_each(|frame| shard.insert(group, frame, frame % 2 == 1, None));
    shard
}

fn swappiness(number: u8) -> Swappiness {
    Swappiness::new(number).unwrap()
}

#[test]
fn what_was_used_within_some_epochs_is_spared() {
    let mut shard = shard(100);
    shard.advance(20);
    (0..50).for_each(|frame| _ = shard.access(frame, 20));
    shard.spare(Some(10));
    let mut gone: Vec<u32> = std::iter::from_fn(|| Some(shard.evict(0)?.frame)).collect();
    gone.sort_unstable();
    assert_eq!(gone, (50..100).collect::<Vec<_>>());
    // A search for a group that can give a page finds nothing here either.
    assert_eq!(shard.least(0), None);
    shard.advance(24);
    assert_eq!(shard.least(0), None);
    shard.spare(Some(0));
    assert_eq!(std::iter::from_fn(|| shard.evict(0)).count(), 50);
}

#[test]
fn what_is_spared_is_spared_for_so_long_and_at_most_twice_as_long() {
    for epochs in [1, 2, 3, 7, 20, 100, 1000] {
        let mut shard = shard(1);
        shard.spare(Some(epochs));
        let mut age = 0;
        while shard.least(0).is_none() {
            age += 1;
            shard.advance(age);
            shard.spare(Some(epochs));
        }
        assert!(shard.evict(0).is_some());
        assert!(age > epochs && age <= 2 * epochs + 2, "{epochs}: {age}");
    }
}

#[test]
fn pages_older_than_any_bucket_are_not_spared() {
    let mut shard = shard(10);
    shard.advance(13_000);
    shard.spare(Some(14_000));
    assert!(shard.evict(0).is_some());
}

#[test]
fn a_new_group_spares_what_the_others_do() {
    let mut shard = Shard::new();
    shard.set_frames(1);
    shard.spare(Some(5));
    let group = shard.add_group(Arc::new(Worth::recency()));
    shard.insert(group, 0, false, None);
    assert_eq!(shard.evict(group), None);
}

#[test]
fn swappiness_says_which_type_goes_first() {
    let first = |number: u8| {
        let mut shard = shard(100);
        shard.set_swappiness(0, swappiness(number));
        let gone = std::iter::from_fn(|| shard.evict(0)).take(50);
        gone.filter(|victim| victim.dirty).count()
    };
    assert_eq!((first(0), first(200)), (0, 50));
    // Between older dirty pages and younger clean ones, the weights decide.
    let older_dirty = |number: u8| {
        let mut shard = Shard::new();
        shard.add_group(Arc::new(Worth::recency()));
        shard.set_frames(2);
        shard.insert(0, 0, true, None);
        shard.advance(64);
        shard.insert(0, 1, false, None);
        shard.set_swappiness(0, swappiness(number));
        shard.evict(0).unwrap().dirty
    };
    assert!(older_dirty(100) && older_dirty(60) && !older_dirty(5));
}

#[test]
fn what_a_group_is_worth_to_others_does_not_depend_on_its_swappiness() {
    for number in [0, 40, 200] {
        let mut shard = Shard::new();
        shard.add_group(Arc::new(Worth::recency()));
        shard.set_frames(1);
        shard.insert(0, 0, true, None);
        let before = shard.least(0);
        shard.set_swappiness(0, swappiness(number));
        assert!(before.is_some());
        assert_eq!(shard.least(0), before, "{number}");
    }
}

#[test]
fn the_last_group_takes_the_number_of_one_that_goes() {
    let mut shard = Shard::new();
    shard.set_frames(3);
    let groups = [(); 3].map(|()| shard.add_group(Arc::new(Worth::recency())));
    for (&group, frame) in groups.iter().zip(0..) {
        shard.insert(group, frame, false, None);
    }
    shard.remove(0, 0);
    shard.remove_group(0);
    assert_eq!(shard.evict(0).unwrap().frame, 2);
    assert_eq!(shard.evict(1).unwrap().frame, 1);
    shard.remove_group(1);
    shard.remove_group(0);
    assert_eq!(shard.add_group(Arc::new(Worth::recency())), 0);
    assert_eq!(shard.evict(0), None);
}

#[test]
fn groups_that_go_give_their_memory_back() {
    let worth = Learner::new(1000).worth(0);
    let mut ranking = Ranking::new();
    let none = ranking.memory();
    (0..1000).for_each(|_| _ = ranking.add_group(Arc::clone(&worth)));
    let thousand = ranking.memory();
    assert!(thousand <= none + 1000 * 256, "{} bytes a group", (thousand - none) / 1000);
    (0..1000).for_each(|_| ranking.remove_group(0));
    assert!(ranking.memory() <= none + thousand / 100, "{} of {thousand}", ranking.memory());
}

#[test]
fn a_group_of_few_pages_takes_less_than_a_kilobyte() {
    let mut shard = shard(10);
    let before = shard.memory();
    let group = shard.add_group(Arc::new(Worth::recency()));
    shard.remove(0, 0);
    shard.insert(group, 0, false, None);
    assert!(shard.memory() - before < 1024, "{} bytes", shard.memory() - before);
}

#[test]
fn what_came_of_pages_is_counted_by_tier() {
    let mut shard = shard(8);
    shard.advance(2);
    (0..2).for_each(|frame| _ = shard.access(frame, 2));
    let victims: Vec<_> = std::iter::from_fn(|| shard.evict(0)).take(6).collect();
    let [clean, dirty] = shard.tiers(0)[0];
    assert_eq!((clean.evicted, dirty.evicted), (3, 3));
    // One clean and one dirty page were used; eviction may have come across them.
    assert!(clean.protected <= 1 && clean.hits == clean.protected);
    shard.insert(0, victims[0].frame, false, Some(victims[0].shadow));
    assert_eq!(shard.tiers(0)[0][0].refaulted, 1);
    let sizes = shard.generations(0).iter().fold([0; 2], |sum, generation| {
        let [clean, dirty] = generation.sizes();
        [sum[0] + clean, sum[1] + dirty]
    });
    assert_eq!(sizes, [2, 1]);
    let back = shard.generations(0).pop().unwrap();
    // The page that came back and the clean page that eviction came across were used twice.
    assert_eq!((back.age, back.tiers[1][0]), (0, 2));
}

/// The worth learned from a loop: of pages used once, the younger are worth less.
fn in_a_loop() -> Arc<Worth> {
    let mut learner = Learner::new(128);
    for epoch in 0..2000_u32 {
        // Each key is used once in 200 epochs.
        for key in 0..8 {
            let hash = hash(epoch % 200 * 8 + key);
            learner.used(Use { hash, group: None, epoch, write: false, met: false });
        }
        learner.end_epoch(epoch + 1, u64::from(epoch + 1) * 8, |_| true);
    }
    learner.worth(0)
}

fn hash(key: u32) -> u64 {
    u64::from(key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn what_was_read_ahead_is_waited_for_and_then_goes_first() {
    for worth in [in_a_loop(), Arc::new(Worth::recency())] {
        let mut shard = Shard::new();
        shard.add_group(Arc::clone(&worth));
        shard.set_frames(20);
        (0..10).for_each(|frame| shard.insert(0, frame, false, None));
        (10..20).for_each(|frame| shard.insert_ahead(0, frame, None));
        let victim = shard.evict(0).unwrap();
        assert!(victim.frame < 10 && !victim.wasted, "{victim:?}");
        shard.access(10, 0);
        shard.advance(64);
        let victims: Vec<_> = std::iter::from_fn(|| shard.evict(0)).take(9).collect();
        assert!(victims.iter().all(|victim| victim.frame > 10 && victim.wasted), "{victims:?}");
    }
}

#[test]
fn the_first_use_of_what_was_read_ahead_is_no_reuse() {
    for late in [0, 5] {
        let mut shard = Shard::new();
        shard.add_group(Arc::new(Worth::recency()));
        shard.set_frames(2);
        shard.insert_ahead(0, 0, None);
        shard.advance(late);
        // The learner has to hear of it, though the page came in the same epoch.
        assert!(shard.access(0, late));
        assert!(!shard.access(0, late));
        shard.insert(0, 1, false, None);
        let mut shadows = [(); 2].map(|()| shard.evict(0).unwrap());
        shadows.sort_unstable_by_key(|victim| victim.frame);
        assert_eq!(shadows[0].shadow, shadows[1].shadow, "as if it had come when it was used");
        assert!(!shadows[0].wasted);
    }
}
