//! Compares the list that victims come from with a search through all lists.

use proptest::prelude::*;

use super::super::age::width;
use super::super::history::History;
use super::*;

const FRAMES: u32 = 40;

#[derive(Clone, Debug)]
enum Step {
    Push { past: u8, bucket: usize },
    PopVictim,
    Remove(u32),
    Pass(u32),
    Open(u32),
    Learn(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..6, 0usize..6).prop_map(|(past, bucket)| Step::Push { past, bucket }),
        3 => Just(Step::PopVictim),
        2 => (0..FRAMES).prop_map(Step::Remove),
        3 => prop_oneof![4 => Just(1), 1 => 2..70_u32].prop_map(Step::Pass),
        1 => any::<u32>().prop_map(Step::Open),
        1 => any::<u8>().prop_map(Step::Learn),
    ]
}

/// Some worth for each class and age, many of them equal.
fn worth(seed: u8) -> Arc<Worth> {
    let worth = Worth::nothing();
    for class in 0..CLASSES {
        worth.set(
            class,
            std::array::from_fn(|bucket| ((class * 5 + bucket * 3 + seed as usize) % 7) as f32),
        );
    }
    worth.into()
}

/// The least worth of all lists whose frames may be victims, as they are now.
fn least(lists: &Lists) -> Option<f32> {
    let all = lists.heads.iter().zip(&lists.held).flat_map(|(head, held)| {
        ones((held & lists.open) as u64).map(|bucket| lists.weighed(head.class as usize, bucket))
    });
    all.min_by(f32::total_cmp)
}

proptest! {
    #[test]
    fn the_victim_is_worth_least(steps in proptest::collection::vec(step(), 1..200)) {
        let (mut lists, mut links) = (Lists::new(worth(0), 0, 0), Links::default());
        links.set_frames(FRAMES as usize);
        let mut classes = [None; FRAMES as usize];
        let mut epoch = 0_u32;
        for step in steps {
            match step {
                Step::Push { past, bucket } => {
                    let class = History::of(past, past as u16 * 16).class();
                    if let Some(frame) = classes.iter().position(Option::is_none) {
                        lists.push(&mut links, frame as u32, class, bucket);
                        classes[frame] = Some(class);
                    }
                }
                Step::PopVictim => {
                    if let Some(frame) = lists.victim() {
                        lists.pop_victim(&mut links);
                        classes[frame as usize] = None;
                    }
                }
                Step::Remove(frame) => {
                    if let Some(class) = classes[frame as usize].take() {
                        lists.remove(&mut links, frame, class);
                    }
                }
                Step::Pass(epochs) => {
                    epoch += epochs;
                    lists.catch_up(&mut links, epoch, 0);
                }
                Step::Open(open) => lists.set_open(open),
                Step::Learn(seed) => lists.learn(worth(seed)),
            }
            let held = lists.heads.iter().zip(&lists.held).filter(|(_, held)| **held != 0);
            let classes: Vec<_> = held.map(|(head, _)| usize::from(head.class)).collect();
            let told = (0..CLASSES).filter(|class| lists.classes()[class / 64] >> (class % 64) & 1 == 1);
            prop_assert!(told.eq(classes.into_iter().collect::<std::collections::BTreeSet<_>>()));
            prop_assert_eq!(lists.least().map(f32::to_bits), least(&lists).map(f32::to_bits));
            for (head, held) in lists.heads.iter().zip(&lists.held) {
                let open = ones((held & lists.open) as u64);
                let least = open.map(|bucket| lists.weighed(head.class as usize, bucket));
                let least = least.min_by(f32::total_cmp).unwrap_or(f32::INFINITY);
                prop_assert_eq!(head.least.to_bits(), least.to_bits());
            }
        }
    }
}

/// This holds however late lists catch up with the epochs.
#[test]
fn lists_are_where_they_would_be_had_they_heard_of_each_epoch() {
    for (from, to) in [(0, 1), (0, 2), (0, 64), (5, 7), (63, 129), (100, 900), (7, 40_000)] {
        for bucket in 0..BUCKETS {
            let step = |bucket, epoch| bucket + (due(epoch - 1, epoch) >> bucket & 1) as usize;
            let after = (from + 1..=to).fold(bucket, step);
            assert_eq!(bucket_after(bucket, from, to), after, "{bucket} from {from} to {to}");
        }
    }
    assert_eq!(bucket_after(0, u32::MAX - 1, u32::MAX), 1);
}

/// The victims come in the same order, too.
#[test]
fn a_list_that_hears_of_epochs_late_gives_the_same_victims() {
    let mut seed = 1_u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    for round in 0..200_u8 {
        let mut all = [(); 2].map(|()| {
            let mut links = Links::default();
            links.set_frames(FRAMES as usize);
            (Lists::new(worth(round), 0, 0), links)
        });
        let mut epoch = 0;
        for frame in 0..FRAMES {
            for _ in 0..random(20) {
                epoch += 1;
                all[0].0.catch_up(&mut all[0].1, epoch, 0);
            }
            let class = History::of(random(6) as u8, 16).class();
            for (lists, links) in &mut all {
                lists.catch_up(links, epoch, 0);
                lists.push(links, frame, class, 0);
            }
        }
        let mut victims = || {
            let mut next = |at: usize| {
                let (lists, links) = &mut all[at];
                lists.catch_up(links, epoch, 0);
                lists.victim().inspect(|_| lists.pop_victim(links))
            };
            let both = (next(0), next(1));
            assert_eq!(both.0, both.1);
            both.0
        };
        assert_eq!(std::iter::from_fn(&mut victims).count(), FRAMES as usize);
    }
}

#[test]
fn lists_are_due_as_often_as_their_buckets_are_wide() {
    for epoch in (1..1 << 14).chain([1 << 31, u32::MAX]) {
        let is_due = |&bucket: &usize| epoch.is_multiple_of(width(bucket));
        let due_then = (0..BUCKETS - 1).filter(is_due).fold(0, |all, bucket| all | 1 << bucket);
        assert_eq!(due(epoch - 1, epoch), due_then, "epoch {epoch}");
    }
}

#[test]
fn keys_are_in_the_order_of_worth_and_then_of_class() {
    assert!(key(0.0, 200) < key(0.5, 3) && key(0.5, 3) < key(0.5, 4));
    assert!(key(f32::MAX, 255) < NO_KEY && key(f32::INFINITY, 0) == NO_KEY);
}
