//! Which CPU an item wakes, fact by fact.

use homing_topology::Scope;

use super::*;
use crate::attributes::Attributes;
use crate::patience::{LEFT_ITEM_MAX_NS, WAKE_DELAY_MAX_NS};
use crate::test_facts::{Given, cpu_id, cpus, layout, loose, strict};

// Nodes of 8 CPUs with two caches of 4: two cores of two siblings.
const GRID: &str = "2x2x2x2";

/// Which CPU the issuer on CPU 0 of a machine wakes, with these CPUs idle.
fn wake(idle: &str, attributes: Attributes, change: impl Fn(&mut Given)) -> Option<usize> {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[attributes]);
    facts.idle = cpus(idle);
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    change(&mut facts);
    submit(&layout, &facts, cpu_id(0), PoolId(0)).wake.map(CpuId::index)
}

fn as_is(_: &mut Given) {}

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
fn issuers_that_wait_soon_are_not_in_a_workers_way() {
    let on_0 = |item_ns, occupied_delay_ns| {
        move |facts: &mut Given| {
            facts.occupied = cpus("0");
            (facts.item_ns, facts.delay_ns) = (item_ns, 10_000);
            facts.occupied_delay_ns = occupied_delay_ns;
            // No worker is sure to come by.
            facts.busy = (1..16).map(|cpu| (cpu_id(cpu), 0)).collect();
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
