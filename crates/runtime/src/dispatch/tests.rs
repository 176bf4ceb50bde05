//! What a dispatcher does, without threads: who is woken, for what, and what is left.

use std::cell::Cell;
use std::time::Duration;

use homing_sched::{Affinity, Facts};
use homing_topology::{Machine, Scope};

use super::*;
use crate::item::{Tag, lone};
use crate::measure::clock::now_ns;

#[derive(Default)]
struct Woken(Cell<u32>);

impl Fill for Woken {
    fn fill(&self, _: CpuId) -> bool {
        self.0.set(self.0.get() + 1);
        true
    }
}

/// A dispatcher, and a loose pool of this scope.
fn dispatch_with(grid: &str, scope: Scope) -> (Dispatch, PoolId) {
    let machine = Machine::from_grid(grid).unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    let attributes = Attributes::new(Affinity { scope, strict: false });
    let pool = dispatch.pool_with(attributes, None, false).unwrap();
    (dispatch, pool)
}

#[test]
fn an_issuer_that_waits_briefly_keeps_its_cpu() {
    let (dispatch, pool) = dispatch_with("1x1x4x1", Scope::Cache);
    dispatch.tape.set_limit(10);
    let (cpu, woken) = (CpuId::new(1).unwrap(), Woken::default());
    // All CPUs are busy, and one item is left.
    assert_eq!(dispatch.put(&woken, cpu, pool, lone(Tag::new(0, 0), || ())).ok(), Some(false));
    let is_woken = || {
        dispatch.occupy(cpu);
        dispatch.idle.insert(cpu);
        dispatch.issuer_waits(&woken, cpu);
        woken.0.take() == 1
    };
    assert!(is_woken(), "nobody knows yet how long anything takes");
    let run = |item_ns| {
        (0..200).for_each(|_| dispatch.pools.queue(dispatch.home(cpu, pool)).complete(item_ns, 1));
    };
    (0..200).for_each(|_| dispatch.note_issuer_wait(10_000));
    run(50_000);
    assert!(!is_woken(), "the issuer is called before that is over");
    run(5_000);
    assert!(is_woken());
    let records = dispatch.tape.take();
    let asked = records.iter().filter(|record| record.asked() == Asked::IssuerWaits(cpu));
    assert_eq!(asked.count(), 3);
}

#[test]
fn who_was_woken_for_what_is_near_leaves_what_is_far_to_others() {
    let (dispatch, pool) = dispatch_with("1x2x2x1", Scope::Cache);
    let [near, other, far] = [0, 1, 2].map(|number| CpuId::new(number).unwrap());
    let woken = Woken::default();
    let may_take = |called: Reach| {
        dispatch.slot(near).assign(ThreadId(1));
        dispatch.idle.insert(near);
        assert!(dispatch.claim(&woken, near, called));
        let idle = dispatch.slot(near).called(now_ns());
        dispatch.slot(near).vacate(ThreadId(1));
        (idle, dispatch.next_of(near, idle, &Shares::NONE))
    };
    // No CPU is idle when the item comes, so that none is woken for it.
    assert_eq!(dispatch.put(&woken, far, pool, lone(Tag::new(0, 0), || ())).ok(), Some(false));
    let (idle, mut next) = may_take(Reach::Home);
    assert!(matches!(idle, Idle::Called(Reach::Home, _)));
    // The item soon is old enough to be fetched, on a busy machine even before we look. Then try
    // another one.
    for _ in 0..1000 {
        if matches!(next, Next::Park { .. }) {
            break;
        }
        dispatch.queue_ids().for_each(|queue| drop(dispatch.pools.queue(queue).take(None)));
        dispatch.put(&woken, far, pool, lone(Tag::new(0, 0), || ())).ok().unwrap();
        (_, next) = may_take(Reach::Home);
    }
    assert!(matches!(next, Next::Park { until_ns: Some(_) }), "{next:?}: not for good");
    let (_, next) = may_take(Reach::Node);
    assert!(matches!(next, Next::Take { reach: Reach::Node, .. }), "{next:?}");
    // An item that was put in at home is found, however near the items were that the worker was
    // called for.
    dispatch.put(&woken, other, pool, lone(Tag::new(0, 0), || ())).ok().unwrap();
    let (_, next) = may_take(Reach::Home);
    assert!(matches!(next, Next::Take { reach: Reach::Home, .. }), "{next:?}");
    for queue in dispatch.queue_ids() {
        drop(dispatch.pools.queue(queue).take(None));
    }
}

#[test]
fn who_sleeps_no_longer_is_not_announced_after_an_old_token_either() {
    let machine = Machine::from_grid("1x1x2x1").unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    let (cpu, thread) = (CpuId::new(0).unwrap(), ThreadId(1));
    let slot = dispatch.slot(cpu);
    slot.assign(thread);
    let sleeps = || {
        let announced = dispatch.announce(cpu, thread, Idle::Any, || false);
        assert_eq!(announced, Announced::Sleep { until_ns: None });
        let woken = slot.sleep(Some(Duration::ZERO));
        let unanswered = dispatch.unannounce(cpu);
        slot.rise(thread);
        assert!(!dispatch.idle.contains(cpu));
        (woken, unanswered)
    };
    assert_eq!(sleeps(), (false, true), "its time was up");
    // A waker that was just too late for the last announcement.
    slot.wake();
    assert_eq!(sleeps(), (true, true));
    assert_eq!(sleeps(), (false, true), "the old token is gone, and has brought no new one");
}

#[test]
fn who_gets_a_vacant_slot_may_take_what_it_was_filled_for() {
    let machine = Machine::from_grid("1x2x2x1").unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    let (cpu, woken) = (CpuId::new(0).unwrap(), Woken::default());
    dispatch.idle.insert(cpu);
    assert!(dispatch.claim(&woken, cpu, Reach::Node) && woken.0.get() == 1);
    assert_eq!(dispatch.slot(cpu).called(7), Idle::Called(Reach::Node, 7));
}

#[test]
fn issuers_are_busy_until_one_waits_and_again_when_that_is_long_ago() {
    let machine = Machine::from_grid("1x1x4x1").unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    let cpu = CpuId::new(1).unwrap();
    assert!(!dispatch.issuers_are_busy(), "there are none");
    dispatch.occupy(cpu);
    dispatch.note_issuer_time(1_000_000, 990_000);
    assert!(dispatch.issuers_are_busy());
    dispatch.issuer_waits(&Woken::default(), cpu);
    assert!(!dispatch.issuers_are_busy(), "one waits just now");
    dispatch.occupy(cpu);
    assert!(dispatch.issuers_are_busy());
    dispatch.note_issuer_time(1_000_000, 500_000);
    assert!(!dispatch.issuers_are_busy());
    for _ in 0..15 {
        dispatch.forget_occupied();
        dispatch.occupy(cpu);
        assert!(!dispatch.issuers_are_busy());
    }
    dispatch.forget_occupied();
    assert!(dispatch.issuers_are_busy());
    dispatch.forget_occupied();
    assert!(!dispatch.issuers_are_busy(), "they have gone");
}

#[test]
fn nobody_is_sent_to_a_cpu_that_was_retired_and_what_it_was_woken_for_is_handed_on() {
    let machine = Machine::from_grid("1x1x4x1").unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    let affinity = Affinity { scope: Scope::Cache, strict: false };
    let pool = dispatch.pool_with(Attributes::new(affinity), None, false).unwrap();
    let [home, gone, other] = [0, 1, 2].map(|number| CpuId::new(number).unwrap());
    let woken = Woken::default();
    dispatch.offer(&woken, gone);
    dispatch.retire(&woken, gone);
    assert!(!dispatch.idle.contains(gone), "told, if it sleeps");
    dispatch.offer(&woken, gone);
    assert!(!dispatch.idle.contains(gone));
    dispatch.slot(gone).assign(ThreadId(1));
    let announced = dispatch.announce(gone, ThreadId(1), Idle::Any, || false);
    assert_eq!(announced, Announced::LookAgain);
    assert!(!dispatch.idle.contains(gone));

    // No CPU was idle when the item came, but its worker had been woken. Then another CPU is idle.
    assert_eq!(dispatch.put(&woken, home, pool, lone(Tag::new(0, 0), || ())).ok(), Some(false));
    dispatch.idle.insert(other);
    woken.0.set(0);
    dispatch.hand_on(&woken, gone);
    assert_eq!((woken.0.get(), dispatch.idle.contains(other)), (1, false));
}

#[test]
fn a_worker_of_another_shard_has_no_lane_of_its_own() {
    let (dispatch, pool) = dispatch_with("1x2x2x1", Scope::System);
    let cpu = |number| CpuId::new(number).unwrap();
    for (number, issuer) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let item = lone(Tag::new(number, 0), || ());
        assert!(dispatch.put(&Woken::default(), cpu(issuer), pool, item).is_ok());
    }
    let take = |number| {
        let taken = dispatch.take(&Woken::default(), cpu(number), Idle::Any, &Shares::NONE);
        let Ok(Taken { batch, reach: Reach::Home, .. }) = taken else { panic!("it is of its pod") };
        batch.into_iter().map(|item| item.tag().workqueue()).collect::<Vec<_>>()
    };
    assert_eq!(take(1), [2], "its own");
    // CPU 3 has the place in its own shard that CPU 1 has in this one.
    assert_eq!(take(3), [1], "of the lane that was not served for longest");
}

#[test]
fn a_thread_that_waits_looks_at_no_queue_that_its_cpu_may_not_serve() {
    let machine = Machine::from_grid("1x2x1x1").unwrap();
    let dispatch = Dispatch::new(Layout::new(&machine).unwrap(), machine.online());
    let attributes = |strict| Attributes::new(Affinity { scope: Scope::Cache, strict });
    let cpu = |number| CpuId::new(number).unwrap();
    let first = CpuSet::of(cpu(0));
    let pools = [(false, None, [1, 1]), (true, None, [1, 0]), (false, Some(first), [1, 0])].map(
        |(strict, mask, seen)| (dispatch.pool_with(attributes(strict), mask, false).unwrap(), seen),
    );
    let mut seen = [0, 0];
    for (number, (pool, by)) in pools.into_iter().enumerate() {
        let item = lone(Tag::new(number as u32, 0), || ());
        assert!(dispatch.put(&Woken::default(), cpu(0), pool, item).is_ok());
        for (cpu, looked) in by.into_iter().enumerate() {
            seen[cpu] += looked;
        }
        let looked = [0, 1].map(|number| dispatch.take_wanted(cpu(number)).err());
        assert_eq!(looked, seen.map(Some), "pool {number}");
    }
}
