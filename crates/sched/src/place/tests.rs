//! Which CPU an item wakes, fact by fact.

use homing_topology::Scope;

use super::*;
use crate::attributes::Attributes;
use crate::patience::{LEFT_ITEM_MAX_NS, WAKE_DELAY_MAX_NS};
use crate::test_facts::{Given, cpu_id, cpus, layout, loose, strict};

// Nodes of 8 CPUs with two caches of 4: two cores of two siblings.
pub(super) const GRID: &str = "2x2x2x2";

/// Which CPU the issuer on CPU 0 of a machine wakes, with these CPUs idle.
pub(super) fn wake(
    idle: &str,
    attributes: Attributes,
    change: impl Fn(&mut Given),
) -> Option<usize> {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[attributes]);
    facts.idle = cpus(idle);
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    change(&mut facts);
    submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
}

pub(super) fn as_is(_: &mut Given) {}

#[test]
fn wakes_whole_cores_first_then_siblings_then_outward() {
    let cache = loose(Scope::Cache);
    assert_eq!(wake("1,2,3,8", cache, as_is), Some(2), "1 is a sibling of busy 0");
    assert_eq!(wake("1,6,7,8", cache, as_is), Some(1), "home before a whole core away");
    assert_eq!(wake("5,6,7,8,9", cache, as_is), Some(6), "own node, whole core");
    assert_eq!(wake("5,8,9", cache, as_is), Some(5), "own node, even a sibling");
    assert_eq!(wake("9", cache, as_is), Some(9), "even another node");
    assert_eq!(wake("", loose(Scope::System), as_is), None);
    assert_eq!(wake("1,9", loose(Scope::System), as_is), Some(1), "in the pod: the nearest");
    let no_smt = |facts: &mut Given| facts.features = Features::ALL.without(Features::SMT_AWARE);
    assert_eq!(wake("1,2,3,8", cache, no_smt), Some(1), "siblings are CPUs like any other");
}

#[test]
fn long_items_go_to_a_whole_core_elsewhere_rather_than_to_a_sibling() {
    let cache = loose(Scope::Cache);
    let of = |item_ns| move |facts: &mut Given| facts.item_ns = item_ns;
    assert_eq!(wake("1,6,7,8", cache, of(WHOLE_CORE_ITEM_NS - 1)), Some(1));
    assert_eq!(wake("1,6,7,8", cache, of(WHOLE_CORE_ITEM_NS)), Some(6));
    assert_eq!(wake("1,6,8", cache, of(WHOLE_CORE_ITEM_NS)), Some(1), "no core is whole");
    assert_eq!(wake("1,6,7,8", strict(Scope::Cache), of(WHOLE_CORE_ITEM_NS)), Some(1));
    let inactive = |facts: &mut Given| {
        facts.item_ns = WHOLE_CORE_ITEM_NS;
        facts.active.remove(cpu_id(7));
    };
    assert_eq!(wake("1,6", cache, inactive), Some(6), "7 has no worker that could be busy");
}

#[test]
fn work_of_a_cpu_without_a_worker_stays_in_its_pod() {
    let pod_of = |grid, cpu, active, mask, scope| {
        let layout = layout(grid);
        let mut facts = Given::new(&layout, &[strict(scope)]);
        facts.active = cpus(active);
        facts.masks = vec![mask];
        home(&layout, &facts, cpu_id(cpu), PoolId(0)).leader.index()
    };
    assert_eq!(pod_of("1x1x4x2", 1, "0,2-7", None, Scope::Smt), 0);
    assert_eq!(pod_of("1x1x4x2", 1, "0-7", Some(cpus("0,2-7")), Scope::Smt), 0);
    assert_eq!(pod_of("1x1x16x1", 7, "0-6,8-15", None, Scope::CacheShard), 0);
    assert_eq!(pod_of("1x1x16x1", 7, "8-15", None, Scope::CacheShard), 8, "nobody is there");
}

#[test]
fn strict_work_wakes_its_pod_unless_nobody_works_there() {
    assert_eq!(wake("4-15", strict(Scope::Cache), as_is), None);
    assert_eq!(wake("1,4-15", strict(Scope::Cpu), as_is), None);
    assert_eq!(wake("5,8-15", strict(Scope::Numa), as_is), Some(5));
    let orphaned = |facts: &mut Given| facts.active = cpus("4-15");
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[strict(Scope::Cache)]);
    let queue = facts.put(&layout, 0, 0, 1, facts.now_ns);
    facts.idle = cpus("9");
    assert_eq!(start(&layout, &facts, queue, cpu_id(4)), None);
    orphaned(&mut facts);
    assert_eq!(start(&layout, &facts, queue, cpu_id(4)), Some(cpu_id(9)), "nobody else can");
    assert_eq!(home(&layout, &facts, cpu_id(1), PoolId(0)).leader, cpu_id(4), "new home");
}

#[test]
fn a_waker_looks_as_far_as_the_features_reach_and_no_further() {
    let pod = loose(Scope::Smt);
    let with = |features| move |facts: &mut Given| facts.features = features;
    let near = Features::ALL.without(Features::SIS_NODE);
    assert_eq!(wake("2,4,8", pod, with(near)), Some(2));
    assert_eq!(wake("4,8", pod, with(near)), None, "beyond the cache");
    assert_eq!(wake("4,8", pod, with(Features::ALL)), Some(4));
    assert_eq!(wake("1,2,4,8", pod, with(Features::NONE)), Some(1), "home is no feature");
    // A worker that may not pull from there is not woken: it would find nothing to do.
    assert_eq!(wake("2,4,8", pod, with(Features::NONE)), None);
    assert_eq!(wake("2,4,8", pod, with(Features::SIS_NODE)), None);
    let no_llc = Features::ALL.without(Features::SWQUEUE);
    assert_eq!(wake("2,4,8", pod, with(no_llc)), Some(4));
    let no_far = Features::ALL.without(Features::XSTEAL);
    assert_eq!(wake("4,8", pod, with(no_far)), None);
    let long = |facts: &mut Given| {
        facts.features = no_far;
        facts.item_ns = WHOLE_CORE_ITEM_NS;
    };
    assert_eq!(wake("1,6,7", pod, long), Some(1), "6 is whole, but would not come for it");
}

#[test]
fn occupied_cpus_come_last_and_only_for_a_backlog() {
    let cache = loose(Scope::Cache);
    let on_0 = |item_ns, items| {
        move |facts: &mut Given| {
            facts.occupied = cpus("0");
            facts.item_ns = item_ns;
            facts.waiting[0].items = items;
        }
    };
    assert_eq!(wake("0,8", cache, on_0(10_000, 1)), Some(8), "anyone rather than 0");
    assert_eq!(wake("0", cache, on_0(1_000, 49)), None, "the rest is little");
    assert_eq!(wake("0", cache, on_0(10_000, 29)), None, "15 are awake and will come by");
    assert_eq!(wake("0", cache, on_0(10_000, 30)), Some(0), "there is enough for all of them");
    assert_eq!(wake("0", cache, on_0(OCCUPIED_ITEM_MAX_NS, 1)), Some(0), "it would wait long");
    let slow = on_0(LEFT_ITEM_MAX_NS, 1);
    assert_eq!(wake("0", cache, slow), None, "as 300 us are beside a busy sibling");
    assert_eq!(wake("0", cache, on_0(0, 1)), Some(0), "nobody knows how much waits");
    assert_eq!(wake("0", strict(Scope::Cpu), on_0(10_000, 1)), Some(0), "nobody else can");
    let pod = strict(Scope::Cache);
    assert_eq!(wake("0,8", pod, on_0(10_000, 5)), None, "three may come by");
    assert_eq!(wake("0,8", pod, on_0(10_000, 6)), Some(0));
}

#[test]
fn an_occupied_cpu_is_woken_where_everybody_else_is_busy_for_long() {
    let on_0 = |item_ns, busy_ns, issuers_are_busy| {
        move |facts: &mut Given| {
            (facts.occupied, facts.item_ns) = (cpus("0"), item_ns);
            facts.issuers_are_busy = issuers_are_busy;
            let since_ns = facts.now_ns - busy_ns;
            facts.busy = (1..16).map(|cpu| (cpu_id(cpu), since_ns)).collect();
        }
    };
    let cache = loose(Scope::Cache);
    for issuers_are_busy in [false, true] {
        let woken = |item_ns, busy_ns| wake("0", cache, on_0(item_ns, busy_ns, issuers_are_busy));
        assert_eq!(woken(10_000, 120_000), None, "they may run items such as this one");
        assert_eq!(woken(10_000, 120_001), Some(0), "nobody comes");
        assert_eq!(woken(200_000, 500_000), None);
    }
}

#[test]
fn who_begins_an_item_or_searches_comes_by_whatever_it_ran_before() {
    let layout = layout("1x1x2x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    (facts.idle, facts.occupied, facts.item_ns) = (cpus("0"), cpus("0"), 10_000);
    let queue = facts.put(&layout, 0, 1, 1, facts.now_ns);
    facts.busy = [(cpu_id(1), facts.now_ns - 1_000_000)].into();
    assert_eq!(submit(&layout, &facts, cpu_id(1), PoolId(0)).wake, Some(cpu_id(0)));
    assert_eq!(start(&layout, &facts, queue, cpu_id(1)), None, "it is about to run one");
    let strict = Given { searching: cpus("1"), ..facts };
    assert_eq!(submit(&layout, &strict, cpu_id(1), PoolId(0)).wake, None, "it is about to look");
}

#[test]
fn issuers_that_wait_soon_are_not_in_a_workers_way() {
    let on_0 = |item_ns, occupied_delay_ns| {
        move |facts: &mut Given| {
            facts.occupied = cpus("0");
            (facts.item_ns, facts.delay_ns) = (item_ns, 10_000);
            facts.occupied_delay_ns = occupied_delay_ns;
            // No worker is sure to come by in time.
            let since_ns = facts.now_ns - 80_000;
            facts.busy = (1..16).map(|cpu| (cpu_id(cpu), since_ns)).collect();
        }
    };
    let cache = loose(Scope::Cache);
    assert_eq!(wake("0", cache, on_0(2_000, 19_999)), Some(0), "it runs within 30 us");
    assert_eq!(wake("0,8", cache, on_0(2_000, 19_999)), Some(8), "anyone rather than 0");
    assert_eq!(wake("0", cache, on_0(2_000, 20_000)), None, "the issuer goes on");
    let unknown_elsewhere = |issuers: &'static str, occupied_delay_ns| {
        move |facts: &mut Given| {
            on_0(2_000, occupied_delay_ns)(facts);
            (facts.delay_ns, facts.occupied) = (0, cpus(issuers));
        }
    };
    let everywhere = |occupied_delay_ns| unknown_elsewhere("0-15", occupied_delay_ns);
    assert_eq!(wake("0", cache, everywhere(14_999)), Some(0), "soon, by any measure");
    assert_eq!(wake("0", cache, everywhere(15_000)), None);
    assert_eq!(wake("0", cache, everywhere(1)), None, "nothing is known");
    assert_eq!(wake("0", cache, unknown_elsewhere("0-14", 14_999)), None, "15 will tell");
    assert_eq!(wake("0", cache, on_0(WHOLE_CORE_ITEM_NS, 0)), None, "it would wait for long");
    assert_eq!(wake("0", cache, on_0(TINY_ITEM_NS - 1, 0)), None, "others have done it by then");
}

#[test]
fn a_searching_worker_of_the_pod_makes_wakers_rest() {
    let cache = loose(Scope::Cache);
    let by = |list: &'static str| move |facts: &mut Given| facts.searching = cpus(list);
    assert_eq!(wake("2,3", cache, by("1")), None);
    assert_eq!(wake("2,3", cache, by("4")), Some(2), "that one is of another pod");
}

#[test]
fn tiny_items_are_left_to_who_is_awake_until_there_are_many() {
    let cache = loose(Scope::Cache);
    let of = |item_ns, items| {
        move |facts: &mut Given| {
            facts.item_ns = item_ns;
            facts.waiting[0].items = items;
        }
    };
    assert_eq!(wake("2,3", cache, of(500, 9)), None);
    assert_eq!(wake("2,3", cache, of(500, 10)), Some(2));
    let busy_for = |longest_ns: u64, shortest_ns: u64| {
        move |facts: &mut Given| {
            of(500, 9)(facts);
            let since = [longest_ns, shortest_ns].map(|ns| facts.now_ns - ns);
            facts.busy = vec![(cpu_id(0), since[0]), (cpu_id(1), since[1])];
        }
    };
    assert_eq!(wake("2,3", cache, busy_for(400_000, 100_000)), None);
    assert_eq!(wake("2,3", cache, busy_for(400_000, 110_000)), Some(2), "they run long items");
    assert_eq!(wake("2,3", cache, of(TINY_ITEM_NS, 1)), Some(2));
    assert_eq!(wake("2,3", cache, of(0, 1)), Some(2), "their length is not known");
    assert_eq!(wake("0-3", cache, of(500, 1)), Some(0), "nobody is awake");
    assert_eq!(wake("0-3", cache, of(u64::MAX, u32::MAX)), Some(0), "no overflow");
}

#[test]
fn what_waits_is_left_to_who_is_awake_until_a_wake_up_is_faster() {
    let cache = loose(Scope::Cache);
    let of = |items, item_ns, delay_ns| {
        move |facts: &mut Given| {
            facts.item_ns = item_ns;
            facts.delay_ns = delay_ns;
            facts.waiting[0].items = items;
        }
    };
    // 0 and 1 are awake: twice the delay for each of them, and a 16th of an item.
    assert_eq!(wake("2,3", cache, of(4, 10_000, 10_000)), None);
    assert_eq!(wake("2,3", cache, of(5, 10_000, 10_000)), Some(2));
    assert_eq!(wake("1,2,3", cache, of(3, 10_000, 10_000)), Some(2), "of one alone");
    assert_eq!(wake("0-3", cache, of(1, 10_000, 10_000)), Some(0), "nobody is awake");
    assert_eq!(wake("2,3", cache, of(1, 10_000, 0)), Some(2), "nobody knows how long it takes");
    assert_eq!(wake("2,3", cache, of(1, 0, 10_000)), Some(2), "nor how long they run");
    let late = of(3, 2 * WAKE_DELAY_MAX_NS, u64::MAX);
    assert_eq!(wake("2,3", cache, late), Some(2), "then it is not waking up that takes so long");
}

#[test]
fn issuers_that_never_wait_have_fewer_woken_for_them() {
    let of = |items, busy| {
        move |facts: &mut Given| {
            (facts.item_ns, facts.delay_ns) = (200_000, 5_000);
            facts.waiting[0].items = items;
            facts.issuers_are_busy = busy;
        }
    };
    let cache = loose(Scope::Cache);
    // 0 and 1 are awake: half an item for each of them at home, and a whole one before others are
    // woken.
    assert_eq!(wake("2,3", cache, of(1, false)), Some(2), "somebody waits for it");
    assert_eq!(wake("1-3", cache, of(1, true)), Some(2), "0 alone has more than enough");
    assert_eq!(wake("3", cache, of(1, true)), None, "one of three comes by soon");
    assert_eq!(wake("4-15", cache, of(3, true)), None);
    assert_eq!(wake("4-15", cache, of(4, true)), Some(4));
    assert_eq!(wake("4-15", cache, of(3, false)), Some(4));
    let beside_an_issuer = |facts: &mut Given| {
        of(2, true)(facts);
        facts.occupied = cpus("3");
    };
    assert_eq!(wake("3-15", cache, beside_an_issuer), None, "it would be 4, and that is far");
    assert_eq!(wake("3-15", cache, of(2, true)), Some(4), "or 3, and for that half the time");
}

#[test]
fn nothing_is_left_to_who_may_not_come_by() {
    // 0 and 1 are awake, and patience is 80.625 us: they may have been busy for 20 us more.
    let with = |held_up: &'static str, for_ns: u64| {
        move |facts: &mut Given| {
            (facts.item_ns, facts.delay_ns) = (10_000, 40_000);
            let since_ns = facts.now_ns - for_ns;
            facts.busy = cpus(held_up).iter().map(|cpu| (cpu, since_ns)).collect();
        }
    };
    let cache = loose(Scope::Cache);
    assert_eq!(wake("2,3", cache, with("", 0)), None);
    assert_eq!(wake("2,3", cache, with("0", 100_626)), None, "1 comes by");
    assert_eq!(wake("2,3", cache, with("0,1", 100_625)), None);
    assert_eq!(wake("2,3", cache, with("0,1", 100_626)), Some(2), "both are held up");
    let long = |facts: &mut Given| {
        (facts.item_ns, facts.delay_ns) = (LEFT_ITEM_MAX_NS, u64::MAX);
    };
    assert_eq!(wake("3", cache, long), Some(3), "three are awake, but it is long");
}

#[test]
fn nothing_is_left_to_who_has_other_work() {
    let layout = layout("1x1x32x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Numa), loose(Scope::Cpu)]);
    (facts.item_ns, facts.delay_ns) = (10_000, 10_000);
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    let woken = |facts: &Given, idle| {
        let facts = Given { idle: cpus(idle), ..facts.clone() };
        submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    assert_eq!(woken(&facts, "3-31"), None, "0 to 2 are awake and share its queue");
    assert_eq!(woken(&facts, "0-7"), Some(0), "the others of its pod have queues of their own");
    facts.put(&layout, 1, 20, 1, facts.now_ns);
    assert_eq!(woken(&facts, "3-31"), None, "that is not for them");
    facts.put(&layout, 1, 2, 1, facts.now_ns);
    assert_eq!(woken(&facts, "3-31"), Some(3), "2 has something else to do");
}

#[test]
fn nobody_beyond_the_cache_is_woken_where_others_in_it_come_by() {
    let of = |items, features| {
        move |facts: &mut Given| {
            (facts.item_ns, facts.delay_ns) = (10_000, 10_000);
            facts.waiting[0].items = items;
            facts.features = features;
        }
    };
    let core = loose(Scope::Smt);
    // 0 to 3 are awake: 20 us for each of them, and 4 more for a CPU of the same node.
    assert_eq!(wake("4-15", core, of(9, Features::ALL)), None);
    assert_eq!(wake("4-15", core, of(10, Features::ALL)), Some(4));
    assert_eq!(wake("3-15", core, of(4, Features::ALL)), None, "in the cache: 0 and 1 do");
    assert_eq!(wake("3-15", core, of(5, Features::ALL)), Some(3));
    let alone = Features::ALL.without(Features::SWQUEUE);
    assert_eq!(wake("4-15", core, of(4, alone)), None, "of 0 and 1");
    assert_eq!(wake("4-15", core, of(5, alone)), Some(4), "the others do not pull");
}

#[test]
fn an_issuer_that_waits_briefly_keeps_its_cpu() {
    let wait = |wait_ns: u64, item_ns| {
        move |facts: &mut Given| {
            facts.issuer_wait = crate::IssuerWait::from_ns(wait_ns);
            facts.waits = cpus("3");
            facts.item_ns = item_ns;
        }
    };
    let pod = strict(Scope::Cache);
    assert_eq!(wake("3", pod, wait(10_000, 20_000)), Some(3), "it is free for half of that");
    assert_eq!(wake("3", pod, wait(10_000, 21_000)), None, "the issuer would be held up");
    assert_eq!(wake("2,3", pod, wait(10_000, 21_000)), Some(2));
    assert_eq!(wake("3", pod, wait(0, 20_000)), Some(3), "nothing is known");
}

#[test]
fn a_workers_sibling_is_woken_before_an_issuers() {
    let at = |issuer| move |facts: &mut Given| facts.occupied = cpus(issuer);
    let cache = loose(Scope::Cache);
    assert_eq!(wake("1,3", cache, at("0")), Some(3), "the worker of 2 is slowed, not the issuer");
    assert_eq!(wake("1,3", cache, at("2")), Some(1));
    assert_eq!(wake("1,7", cache, at("0")), Some(1), "but one at home before one that is far");
    assert_eq!(wake("1-3", cache, at("0")), Some(2), "a whole core first");
}

#[test]
fn insertions_of_tiny_items_decide_each_time_that_they_have_doubled() {
    let calls = (1..=16).filter(|waiting| calls_for_decision(500, *waiting));
    assert_eq!(calls.collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
    assert!((1..=16).all(|waiting| calls_for_decision(0, waiting)));
    assert!((1..=16).all(|waiting| calls_for_decision(TINY_ITEM_NS, waiting)));
}

#[test]
fn a_starter_wakes_the_next_only_while_more_waits() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    facts.idle = cpus("1-3");
    let queue = layout.queue(PoolId(0), loose(Scope::Cache), cpu_id(0));
    assert_eq!(start(&layout, &facts, queue, cpu_id(0)), None);
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    assert_eq!(start(&layout, &facts, queue, cpu_id(0)), Some(cpu_id(2)));
}

#[test]
fn localized_work_wakes_its_issuers_cpu_first() {
    let plain = loose(Scope::Cache);
    let localized = Attributes { localize: true, ..plain };
    assert_eq!(wake("0,2,3", plain, as_is), Some(2), "a whole core");
    assert_eq!(wake("0,2,3", localized, as_is), Some(0));
    assert_eq!(wake("1,2,3", localized, as_is), Some(2), "else as without");
    let occupied = |facts: &mut Given| facts.occupied = cpus("0");
    assert_eq!(wake("0,2,3", localized, occupied), Some(2), "its issuer is in the way");
    let layout = layout(GRID);
    let facts = Given::new(&layout, &[plain, localized]);
    let leader = |pool| home(&layout, &facts, cpu_id(3), PoolId(pool)).leader.index();
    assert_eq!([leader(0), leader(1)], [0, 3]);
}

#[test]
fn a_mask_moves_the_home_and_chooses_whom_to_wake() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    facts.masks = vec![Some(cpus("5,6,9"))];
    facts.put(&layout, 0, 5, 1, facts.now_ns);
    assert_eq!(home(&layout, &facts, cpu_id(0), PoolId(0)).leader, cpu_id(4));
    let mut woken = |idle| {
        facts.idle = cpus(idle);
        submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    assert_eq!(woken("0-15"), Some(5), "of its own pod");
    assert_eq!(woken("0-4,6-15"), Some(6));
    assert_eq!(woken("0-4,7-15"), Some(9));
    assert_eq!(woken("0-4,7,8,10-15"), None);
}

/// Others come by, and the pod has only the issuer's CPU.
#[test]
fn a_pod_that_is_an_issuers_cpu_alone_is_left_to_who_is_awake() {
    let layout = layout("4x1x1");
    let wake = |attributes, change: &dyn Fn(&mut Given)| {
        let mut facts = Given::new(&layout, &[attributes]);
        (facts.idle, facts.occupied) = (cpus("0"), cpus("0"));
        facts.item_ns = 50_000;
        facts.put(&layout, 0, 0, 1, facts.now_ns);
        change(&mut facts);
        submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
    };
    let cache = loose(Scope::Cache);
    assert_eq!(wake(cache, &|_| ()), None, "1 to 3 are awake");
    assert_eq!(wake(strict(Scope::Cache), &|_| ()), Some(0), "nobody else may");
    assert_eq!(wake(cache, &|facts| facts.idle = cpus("0-3")), Some(1), "not the issuer's");
    assert_eq!(wake(cache, &|facts| facts.item_ns = 0), Some(0), "nothing is known");
    let many = |facts: &mut Given| {
        for _ in 0..3 * OCCUPIED_BACKLOG_ITEMS {
            facts.put(&layout, 0, 0, 1, facts.now_ns);
        }
    };
    assert_eq!(wake(cache, &many), Some(0), "a backlog for each of them");
    let never_waits = |facts: &mut Given| {
        many(facts);
        facts.issuers_are_busy = true;
    };
    assert_eq!(wake(cache, &never_waits), None, "the issuer is what there is too little of");
}
