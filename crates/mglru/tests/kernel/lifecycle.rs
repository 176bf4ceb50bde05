//! Promises about single pages, tested by calls that are few enough to follow by hand.

use std::sync::Arc;

use homing_mglru::kernel::{
    Aging, Arrival, Enabled, Frames, Lruvec, MAX_NR_GENS, Tunables, Type, Types, Victim,
};

fn lruvec(frames: usize) -> Lruvec {
    Lruvec::new(Arc::new(Frames::new(frames)), 0, Tunables::default(), 0).unwrap()
}

fn evict(lruvec: &mut Lruvec, budget: u64, types: Types) -> Vec<Victim> {
    let mut victims = Vec::new();
    lruvec.evict(budget, types, &mut victims);
    victims
}

fn victims(lruvec: &mut Lruvec, budget: u64, types: Types) -> Vec<u32> {
    evict(lruvec, budget, types).iter().map(|victim| victim.frame).collect()
}

#[test]
fn pages_come_in_where_the_table_says() {
    let mut lruvec = lruvec(8);
    let clean = Arrival::new(Type::Clean);
    let dirty = Arrival::new(Type::Dirty);
    let cases = [
        (clean, 0),
        (Arrival { active: true, ..clean }, 2),
        (Arrival { dirty: true, ..clean }, 0),
        (dirty, 2),
        (Arrival { writing: true, ..dirty }, 0),
        (Arrival { active: true, ..dirty }, 2),
    ];
    for (frame, (arrival, seq)) in cases.into_iter().enumerate() {
        lruvec.insert(frame as u32, arrival);
        assert_eq!(lruvec.generation(frame as u32), Some(seq), "{arrival:?}");
    }
    lruvec.insert(6, clean);
    for _ in 0..5 {
        lruvec.frames().access(6);
    }
    // It was used so often that it is promoted once. After that, its workingset mark is left.
    assert!(!victims(&mut lruvec, 8, Types::Clean).contains(&6));
    let victim = evict(&mut lruvec, 8, Types::Clean)[0];
    assert_eq!((victim.frame, victim.token.tier()), (6, 3));
    for (active, back) in [(true, 1), (false, 3)] {
        let marks = lruvec.refault(victim.token);
        assert!(marks.workingset());
        lruvec.insert(6, Arrival { active, marks, ..clean });
        let expected = (lruvec.max_seq() + 1 - back).max(lruvec.min_seq(Type::Clean));
        assert_eq!(lruvec.generation(6), Some(expected));
        lruvec.remove(6);
    }
}

#[test]
fn a_page_in_use_through_a_mapping_is_kept_and_feeds_the_next_sweep() {
    let mut lruvec = lruvec(256);
    for frame in 0..256 {
        lruvec.insert(frame, Arrival::new(Type::Clean));
    }
    lruvec.age(1, false);
    assert_eq!(lruvec.walk_stats().total, 256, "the first sweep knows nothing");
    for frame in 0..20 {
        lruvec.frames().touch(frame);
    }
    lruvec.age(2, false);
    assert_eq!(lruvec.walk_stats().total, 0, "no region was worth a visit");
    let mut report = lruvec.evict(1, Types::Clean, &mut Vec::new());
    assert_eq!((report.activated, report.isolated), (1, [0, 0]));
    assert_eq!(lruvec.generation(0), Some(4), "the second youngest");
    // Its neighbors were observed once. When touched again, they are promoted in place.
    for frame in 0..20 {
        lruvec.frames().touch(frame);
    }
    lruvec.sweep(false);
    let walked = lruvec.walk_stats();
    assert_eq!((walked.total, walked.young, walked.added), (64, 20, 1));
    assert_eq!(lruvec.generation(1), Some(5));
    for _ in 0..4 {
        report.add(&lruvec.evict(64, Types::Clean, &mut Vec::new()));
    }
    assert_eq!((report.promoted, report.isolated), (19, [0, 236]));
}

#[test]
fn dirty_pages_are_passed_over_and_go_first_once_they_are_written() {
    let mut lruvec = lruvec(8);
    for frame in 0..4 {
        lruvec.insert(frame, Arrival { dirty: frame < 2, ..Arrival::new(Type::Clean) });
    }
    let mut seen = Vec::new();
    let report = lruvec.evict(1, Types::Clean, &mut seen);
    assert_eq!((report.unqueued_dirty, report.file_taken, seen[0].frame), (2, 3, 2));
    assert!(!report.wake_flusher());
    lruvec.insert(4, Arrival { dirty: true, ..Arrival::new(Type::Clean) });
    lruvec.remove(3);
    let report = lruvec.evict(1, Types::Clean, &mut seen);
    assert!(report.wake_flusher(), "{report:?}");
    lruvec.begin_write(1);
    lruvec.end_write(1);
    assert_eq!(victims(&mut lruvec, 1, Types::Clean), [1]);
}

#[test]
fn nobody_is_woken_to_write_what_is_being_written() {
    let mut lruvec = lruvec(8);
    lruvec.insert(0, Arrival { dirty: true, ..Arrival::new(Type::Clean) });
    lruvec.begin_write(0);
    lruvec.set_dirty(0, true);
    let report = lruvec.evict(1, Types::Clean, &mut Vec::new());
    assert_eq!((report.unqueued_dirty, report.file_taken), (0, 1));
    assert!(!report.wake_flusher());
}

#[test]
fn a_dirty_victim_comes_back_while_it_is_written() {
    let mut lruvec = lruvec(8);
    for frame in 0..3 {
        lruvec.insert(frame, Arrival::new(Type::Dirty));
    }
    assert_eq!(lruvec.need_aging(60), Aging::No);
    assert!(victims(&mut lruvec, 3, Types::Dirty).is_empty());
    while lruvec.need_aging(201) != Aging::No {
        lruvec.age(1, false);
    }
    let victim = evict(&mut lruvec, 1, Types::Dirty)[0];
    assert!(victim.frame == 0 && victim.dirty);
    assert_eq!(lruvec.feedback(Type::Dirty).evicted[0], 1);
    lruvec.putback(victim, true);
    assert_eq!(lruvec.feedback(Type::Dirty).evicted[0], 0);
    assert_eq!(lruvec.generation(0), Some(lruvec.max_seq() - 1));
    lruvec.end_write(0);
    assert_eq!(lruvec.totals(), [2, 1]);
    let victim = evict(&mut lruvec, 1, Types::Clean)[0];
    assert!(victim.frame == 0 && !victim.dirty);
}

#[test]
fn generations_are_joined_in_bounded_steps() {
    let mut lruvec = lruvec(100);
    let tunables = Tunables { max_lru_batch: 30, ..Tunables::default() };
    lruvec.set_tunables(tunables).unwrap();
    for frame in 0..100 {
        lruvec.insert(frame, Arrival::new(Type::Clean));
    }
    let steps = (0..10).take_while(|_| !lruvec.inc_max_seq(5)).count();
    assert_eq!((steps, lruvec.max_seq(), lruvec.size(1, Type::Clean)), (3, 4, 100));
    assert_eq!(lruvec.feedback(Type::Clean).avg_total[0], 50, "all were protected");
    assert_eq!(lruvec.generations(Type::Clean), MAX_NR_GENS);
}

#[test]
fn refaults_count_where_they_are_recent_and_belong() {
    let frames = Arc::new(Frames::new(4));
    let [mut one, mut two] = [0, 1]
        .map(|number| Lruvec::new(Arc::clone(&frames), number, Tunables::default(), 0).unwrap());
    one.insert(0, Arrival::new(Type::Clean));
    frames.access(0);
    frames.access(0);
    let token = evict(&mut one, 1, Types::Clean)[0].token;
    two.refault(token);
    assert_eq!(two.feedback(Type::Clean).refaulted, [0; 4]);
    one.refault(token);
    assert_eq!(one.feedback(Type::Clean).refaulted, [0, 1, 0, 0]);
    one.age(0, false);
    one.refault(token);
    assert_eq!(one.feedback(Type::Clean).refaulted[1], 1, "four generations ago");
}

#[test]
fn the_kill_switch_makes_a_clock_of_the_same_pages() {
    let mut lruvec = lruvec(16);
    for frame in 0..4 {
        lruvec.insert(frame, Arrival::new(Type::Clean));
    }
    lruvec.frames().access(0);
    let off = Tunables { enabled: Enabled::NONE, ..Tunables::default() };
    lruvec.set_tunables(off).unwrap();
    lruvec.insert(4, Arrival::new(Type::Clean));
    assert_eq!(lruvec.generation(4), Some(3), "what comes in stands last in the circle");
    assert_eq!(victims(&mut lruvec, 1, Types::Both), [1]);
    lruvec.frames().access(3);
    assert_eq!(victims(&mut lruvec, 3, Types::Both), [2, 4, 0]);
    lruvec.set_tunables(Tunables::default()).unwrap();
    assert_eq!(lruvec.generation(3), Some(lruvec.max_seq()));
    lruvec.age(1, false);
    assert!(victims(&mut lruvec, 8, Types::Both).is_empty(), "one of the two youngest");
    lruvec.age(1, false);
    assert_eq!(victims(&mut lruvec, 8, Types::Both), [3]);
    assert_eq!(lruvec.totals(), [0, 0]);
}

#[test]
fn an_access_is_a_mark_that_any_thread_may_leave() {
    let lruvec = lruvec(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| lruvec.frames().access(0)));
        }
    });
    assert!(lruvec.frames().marks(0).workingset());
}
