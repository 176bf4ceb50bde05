//! When an item is left to workers that are awake.

use homing_topology::Scope;

use super::tests::{GRID, wake};
use super::*;
use crate::attributes::Attributes;
use crate::patience::LEFT_ITEM_MAX_NS;
use crate::test_facts::{Given, cpu_id, cpus, layout, loose};

#[test]
fn all_queues_of_the_cache_count_where_its_workers_are_to_come_by() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    (facts.item_ns, facts.delay_ns, facts.idle) = (10_000, 10_000, cpus("4-15"));
    let woken = |items: [u32; 2]| {
        let mut facts = facts.clone();
        facts.put(&layout, 0, 0, items[0], facts.now_ns);
        facts.put(&layout, 0, 2, items[1], facts.now_ns);
        submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    assert_eq!(woken([5, 4]), None, "0 to 3 have 24 us each");
    assert_eq!(woken([5, 5]), Some(4), "and more to do than that");
    assert_eq!(woken([2, 8]), Some(4));
}

#[test]
fn the_farther_and_dearer_a_cpu_is_the_longer_others_have_to_come_by() {
    let of = |items, percent| {
        move |facts: &mut Given| {
            (facts.item_ns, facts.delay_ns) = (10_000, 10_000);
            facts.waiting[0].items = items;
            facts.pools[0].pull_cost = crate::PullCost::from_percent(percent).unwrap();
        }
    };
    // 0 to 3 are awake: 20 us for each of them, and 10 more for a CPU of the other node.
    let core = loose(Scope::Smt);
    assert_eq!(wake("8-15", core, of(11, 100)), None);
    assert_eq!(wake("8-15", core, of(12, 100)), Some(8));
    assert_eq!(wake("8-15", core, of(11, 50)), Some(8), "25 us");
    assert_eq!(wake("8-15", core, of(23, 400)), None, "60 us");
}

#[test]
fn an_item_is_left_for_half_its_length_to_its_core_before_its_cache_where_no_issuer_waits() {
    let busy = |items| {
        move |facts: &mut Given| {
            (facts.item_ns, facts.delay_ns, facts.issuers_are_busy) = (200_000, 5_000, true);
            facts.waiting[0].items = items;
        }
    };
    let core = loose(Scope::Smt);
    assert_eq!(wake("2,3", core, busy(1)), Some(2), "0 and 1 have 100 us each");
    assert_eq!(wake("4-15", core, busy(1)), None, "and 0 to 3 have 200, before one that is far");
}

#[test]
fn what_runs_for_long_is_left_to_nobody() {
    let layout = layout("1x1x8x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    (facts.idle, facts.delay_ns) = (cpus("7"), u64::MAX);
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    let mut woken = |item_ns| {
        facts.item_ns = item_ns;
        submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    assert_eq!(woken(LEFT_ITEM_MAX_NS - 1), None, "seven are awake");
    assert_eq!(woken(LEFT_ITEM_MAX_NS), Some(7));
}

/// As `nothing_is_left_to_who_may_not_come_by`, for those that never do.
#[test]
fn nothing_is_left_to_who_has_no_worker_or_is_not_of_the_mask() {
    let layout = layout("1x1x8x1");
    let woken = |change: &dyn Fn(&mut Given)| {
        let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
        (facts.item_ns, facts.delay_ns, facts.idle) = (10_000, 10_000, cpus("3-7"));
        facts.put(&layout, 0, 0, 3, facts.now_ns);
        change(&mut facts);
        submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    assert_eq!(woken(&|_| ()), None, "0 to 2 are awake");
    assert_eq!(woken(&|facts| facts.active = cpus("0,3-7")), Some(3), "0 alone");
    assert_eq!(woken(&|facts| facts.masks = vec![Some(cpus("0,3-7"))]), Some(3));
}

#[test]
fn a_workers_sibling_far_away_in_the_pod_is_woken_before_an_issuers() {
    let at = |issuer| move |facts: &mut Given| facts.occupied = cpus(issuer);
    assert_eq!(wake("1,5", loose(Scope::System), at("0")), Some(5));
    assert_eq!(wake("1,5", loose(Scope::System), at("0,4")), Some(1), "both are issuers'");
}

#[test]
fn nothing_is_left_to_who_has_work_of_a_pool_with_a_lower_number() {
    let layout = layout("1x1x8x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Cpu), loose(Scope::Cache)]);
    (facts.item_ns, facts.delay_ns, facts.idle) = (10_000, 10_000, cpus("3-7"));
    facts.put(&layout, 1, 0, 1, facts.now_ns);
    let woken = |facts: &Given| submit(&layout, facts, cpu_id(0), PoolId(1)).wake.map(CpuId::index);
    assert_eq!(woken(&facts), None, "0 to 2 are awake");
    facts.put(&layout, 0, 2, 1, facts.now_ns);
    assert_eq!(woken(&facts), Some(3), "2 has something else to do");
}

#[test]
fn an_issuers_sibling_is_like_any_other_without_smt_awareness() {
    let at = |facts: &mut Given| {
        facts.occupied = cpus("0");
        facts.features = Features::ALL.without(Features::SMT_AWARE);
    };
    assert_eq!(wake("1,3", loose(Scope::Cache), at), Some(1));
}

#[test]
fn the_nearest_is_counted_from_the_cpu_that_wakes() {
    let woken_from = |grid, idle, cpu, scope| {
        let layout = layout(grid);
        let mut facts = Given::new(&layout, &[loose(scope)]);
        facts.idle = cpus(idle);
        let queue = facts.put(&layout, 0, cpu, 1, facts.now_ns);
        let started = start(&layout, &facts, queue, cpu_id(cpu));
        let submitted = submit(&layout, &facts, cpu_id(cpu), PoolId(0)).wake;
        assert_eq!(started, submitted);
        submitted.map(CpuId::index)
    };
    assert_eq!(woken_from("1x1x4x2", "0-3,6-7", 4, Scope::Cache), Some(6), "not 0, which leads");
    assert_eq!(woken_from(GRID, "0-1,8-9", 12, Scope::System), Some(8), "of its node");
}

#[test]
fn where_no_cpu_of_a_mask_has_a_worker_it_is_as_if_there_were_none() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cpu)]);
    facts.masks = vec![Some(cpus("9"))];
    facts.active = cpus("0,2-8,10-15");
    let queue = home(&layout, &facts, cpu_id(1), PoolId(0));
    assert_eq!(queue.leader, cpu_id(2), "1 has no worker either");
    facts.idle = cpus("2-3");
    facts.put(&layout, 0, 2, 1, facts.now_ns);
    assert_eq!(submit(&layout, &facts, cpu_id(2), PoolId(0)).wake, Some(cpu_id(2)));
}

#[test]
fn a_searching_worker_that_the_mask_excludes_makes_nobody_rest() {
    let by = |facts: &mut Given| {
        facts.searching = cpus("1");
        facts.masks = vec![Some(cpus("0,2-3"))];
    };
    assert_eq!(wake("2,3", loose(Scope::Cache), by), Some(2));
}

#[test]
fn a_long_item_takes_an_issuers_cpu_even_if_issuers_never_wait() {
    let of = |item_ns| {
        move |facts: &mut Given| {
            (facts.item_ns, facts.occupied, facts.issuers_are_busy) = (item_ns, cpus("0"), true);
        }
    };
    let cache = loose(Scope::Cache);
    assert_eq!(wake("0", cache, of(OCCUPIED_ITEM_MAX_NS - 1)), None);
    assert_eq!(wake("0", cache, of(OCCUPIED_ITEM_MAX_NS)), Some(0));
}

/// Those that are idle do not come by.
#[test]
fn where_all_are_idle_on_issuers_cpus_one_is_woken() {
    let layout = layout("4x1x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    (facts.idle, facts.occupied, facts.item_ns) = (cpus("0-3"), cpus("0-3"), 50_000);
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    assert_eq!(submit(&layout, &facts, cpu_id(0), PoolId(0)).wake, Some(cpu_id(0)));
}

/// Facts of a machine where workers begin sooner on issuers' CPUs than elsewhere.
struct SoonerThere(Given);

macro_rules! as_given {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        impl Facts for SoonerThere {
            $(fn $name(&self $(, $arg: $kind)*) -> $result { self.0.$name($($arg),*) })*

            fn wake_ns(&self, occupied: bool) -> u64 {
                if occupied { 3_000 } else { 5_000 }
            }
        }
    };
}

as_given! {
    now_ns() -> u64;
    features() -> Features;
    active() -> CpuSet;
    idle() -> CpuSet;
    searching() -> CpuSet;
    occupied(item_ns: u64) -> CpuSet;
    busy_since_ns(cpu: CpuId) -> u64;
    issuers_are_busy() -> bool;
    pools() -> crate::PoolSet;
    attributes(pool: PoolId) -> Attributes;
    cpumask(pool: PoolId) -> Option<&CpuSet>;
    waiting(queue: QueueId) -> u32;
    head_since_ns(queue: QueueId) -> u64;
    item_ns(queue: QueueId) -> u64;
}

#[test]
fn an_issuer_that_mostly_waits_has_short_items_run_on_its_own_cpu() {
    let layout = layout(GRID);
    let woken = |idle, item_ns| {
        let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
        (facts.idle, facts.occupied, facts.item_ns) = (cpus(idle), cpus("0"), item_ns);
        facts.put(&layout, 0, 0, 1, facts.now_ns);
        submit(&layout, &SoonerThere(facts), cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    assert_eq!(woken("0-3", 10_000), Some(0));
    assert_eq!(woken("0-3", WHOLE_CORE_ITEM_NS), Some(2), "that would hold it up for long");
}

/// As `nothing_is_left_to_who_has_other_work`, where the other queue is of more CPUs.
#[test]
fn nothing_is_left_to_who_has_work_of_a_wider_queue() {
    let layout = layout("1x1x8x1");
    for cpu in [0, 2] {
        let mut facts = Given::new(&layout, &[loose(Scope::Cpu), loose(Scope::Cache)]);
        (facts.item_ns, facts.delay_ns, facts.idle) = (10_000, 10_000, cpus("3-7"));
        facts.put(&layout, 0, cpu, 1, facts.now_ns);
        let woken =
            |facts: &Given| submit(&layout, facts, cpu_id(cpu), PoolId(0)).wake.map(CpuId::index);
        assert_eq!(woken(&facts), None, "{cpu} is awake");
        facts.put(&layout, 1, cpu, 1, facts.now_ns);
        assert_eq!(woken(&facts), Some(3), "{cpu} may have something else to do");
    }
}

#[test]
fn another_node_is_as_far_where_each_node_is_one_cache() {
    for (grid, far) in [("2x2x2x2", "8-15"), ("2x1x4x1", "4-7")] {
        let layout = layout(grid);
        let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
        (facts.item_ns, facts.delay_ns, facts.idle) = (10_000, 10_000, cpus(far));
        facts.put(&layout, 0, 0, 11, facts.now_ns);
        let woken = submit(&layout, &facts, cpu_id(0), PoolId(0)).wake;
        assert_eq!(woken, None, "{grid}: 0 to 3 have 30 us each");
    }
}

/// Before anything is known, both kinds of wake-ups take as long.
#[test]
fn an_issuers_cpu_is_not_preferred_where_wake_ups_take_as_long_elsewhere() {
    let of = |delay_ns| {
        move |facts: &mut Given| {
            (facts.occupied, facts.item_ns) = (cpus("0"), 10_000);
            (facts.delay_ns, facts.occupied_delay_ns) = (delay_ns, 0);
        }
    };
    assert_eq!(wake("0-3", loose(Scope::Cache), of(0)), Some(2));
    assert_eq!(wake("0-3", loose(Scope::Cache), of(5_000)), Some(2));
}

/// As `nothing_is_left_to_who_has_work_of_a_wider_queue`, where that is for others.
#[test]
fn what_waits_for_others_in_a_wider_queue_keeps_nobody_from_its_own() {
    let layout = layout("1x1x8x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Cpu), loose(Scope::Cache)]);
    (facts.item_ns, facts.delay_ns, facts.idle) = (10_000, 10_000, cpus("3-7"));
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    facts.put(&layout, 1, 0, 1, facts.now_ns);
    let woken = |facts: &Given| submit(&layout, facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index);
    facts.masks = vec![None, Some(cpus("1-7"))];
    assert_eq!(woken(&facts), None, "0 is awake, and may not take the other item");
    facts.masks = vec![None, Some(cpus("0-7"))];
    assert_eq!(woken(&facts), Some(3), "0 may have something else to do");
}

/// A worker that has pulled an item wakes the next one near itself, where that is for the item.
#[test]
fn beyond_the_pod_the_nearest_to_the_waker_is_woken() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    facts.idle = cpus("4,12");
    let queue = facts.put(&layout, 0, 0, 1, facts.now_ns);
    assert_eq!(start(&layout, &facts, queue, cpu_id(0)), Some(cpu_id(4)));
    assert_eq!(start(&layout, &facts, queue, cpu_id(8)), Some(cpu_id(12)));
}
