use super::*;
use crate::attributes::Attributes;
use crate::nice::Nice;
use crate::test_facts::{Given, cpu_id, cpus, layout, loose, strict};

// Nodes of 8 CPUs with two caches of 4: two cores of two siblings.
const GRID: &str = "2x2x2x2";

const FRESH: Idle = Idle::Since(1_000_000);

/// What a worker takes, by the leader and the reach; or until when it parks.
fn next(layout: &Layout, facts: &Given, cpu: usize, idle: Idle) -> Result<(usize, Reach), u64> {
    match before_park(layout, facts, cpu_id(cpu), idle, &Shares::NONE) {
        Next::Take { queue, reach } => Ok((queue.leader.index(), reach)),
        Next::Park { until_ns } => Err(until_ns.unwrap_or(0)),
    }
}

#[test]
fn takes_from_its_own_pods_first_and_then_the_nearest() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache), loose(Scope::Cpu)]);
    let old = 0;
    assert_eq!(next(&layout, &facts, 5, FRESH), Err(0));
    facts.put(&layout, 0, 8, 1, old);
    assert_eq!(next(&layout, &facts, 5, FRESH), Ok((8, Reach::Remote)));
    facts.put(&layout, 0, 0, 1, old);
    assert_eq!(next(&layout, &facts, 5, FRESH), Ok((0, Reach::Node)));
    facts.put(&layout, 1, 6, 1, old);
    assert_eq!(next(&layout, &facts, 5, FRESH), Ok((6, Reach::Llc)));
    facts.put(&layout, 0, 4, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 5, FRESH), Ok((4, Reach::Home)), "however fresh");
}

#[test]
fn other_queues_of_the_own_pod_are_home_too() {
    let layout = layout("1x2x16x1");
    let mut facts = Given::new(&layout, &[strict(Scope::Numa)]);
    facts.put(&layout, 0, 16, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 3, FRESH), Ok((16, Reach::Home)));
    facts.put(&layout, 0, 8, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 3, FRESH), Ok((8, Reach::Home)), "the nearer cache");
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 3, FRESH), Ok((0, Reach::Home)), "the own queue");
}

#[test]
fn work_of_others_ripens_by_what_fetching_it_costs_and_by_its_length() {
    let layout = layout(GRID);
    let facts = Given::new(&layout, &[loose(Scope::Smt)]);
    let now_ns = facts.now_ns;
    for (issuer, reach) in [(2, Reach::Llc), (4, Reach::Node), (8, Reach::Remote)] {
        for (item_ns, age_ns) in [
            (0, reach.cost_ns()),
            (320_000, 20_000),
            (10_000_000, PULL_AGE_MAX_NS),
            (u64::MAX, PULL_AGE_MAX_NS),
        ] {
            let mut facts = Given { item_ns, ..facts.clone() };
            let queue = facts.put(&layout, 0, issuer, 1, now_ns);
            assert_eq!(next(&layout, &facts, 0, FRESH), Err(now_ns + age_ns));
            facts.waiting[0].since_ns = now_ns - age_ns + 1;
            assert_eq!(next(&layout, &facts, 0, FRESH), Err(now_ns + 1));
            facts.waiting[0].since_ns -= 1;
            assert_eq!(next(&layout, &facts, 0, FRESH), Ok((queue.leader.index(), reach)));
        }
    }
}

#[test]
fn nobody_fetches_what_its_own_pod_is_given_time_for() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    (facts.delay_ns, facts.item_ns) = (7_000, 10_000);
    facts.put(&layout, 0, 4, 2, facts.now_ns);
    let ripe_ns = facts.now_ns + 14_000 + Reach::Node.cost_ns();
    assert_eq!(next(&layout, &facts, 0, FRESH), Err(ripe_ns));
    facts.idle = cpus("5");
    assert_eq!(next(&layout, &facts, 0, FRESH), Err(ripe_ns), "6 and 7 fetch it sooner");
    facts.idle = cpus("5-7");
    let at_once_ns = ripe_ns - 14_000;
    assert_eq!(next(&layout, &facts, 0, FRESH), Err(at_once_ns), "one is not enough for two");
    facts.put(&layout, 0, 1, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 0, FRESH), Ok((0, Reach::Home)), "that is its own");
}

#[test]
fn patience_ends_and_then_what_is_fresh_is_taken() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    facts.put(&layout, 0, 8, 1, facts.now_ns);
    let taken = Ok((8, Reach::Remote));
    assert_eq!(next(&layout, &facts, 0, Idle::Any), taken);
    let since = facts.now_ns - IDLE_PATIENCE_NS;
    assert_eq!(next(&layout, &facts, 0, Idle::Since(since)), taken);
    assert_eq!(next(&layout, &facts, 0, Idle::Since(since + 1)), Err(facts.now_ns + 1));
    // A clock that went wrong is no reason to sleep for good, nor to overflow.
    facts.waiting[0].since_ns = u64::MAX;
    let until = facts.now_ns + IDLE_PATIENCE_NS;
    assert_eq!(next(&layout, &facts, 0, Idle::Since(facts.now_ns)), Err(until));
    facts.issuers_are_busy = true;
    let until = facts.now_ns + LEFT_ITEM_MAX_NS;
    assert_eq!(next(&layout, &facts, 0, Idle::Since(facts.now_ns)), Err(until));
}

#[test]
fn who_was_woken_takes_at_once_only_what_is_as_near_as_what_it_was_woken_for() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    let woken_ns = facts.now_ns;
    let called = |reach| Idle::Called(reach, woken_ns);
    facts.put(&layout, 0, 4, 1, woken_ns);
    let taken = Ok((4, Reach::Node));
    let left = Err(woken_ns + Reach::Node.cost_ns());
    let woken_for = Reach::ALL.map(|reach| next(&layout, &facts, 0, called(reach)));
    assert_eq!(woken_for, [left, left, taken, taken], "others were woken for that one");
    facts.now_ns += Reach::Node.cost_ns();
    assert_eq!(next(&layout, &facts, 0, called(Reach::Home)), taken, "they are late");
    facts.put(&layout, 0, 0, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 0, called(Reach::Home)), Ok((0, Reach::Home)));
    // Its patience begins when it is woken.
    let mut far = Given::new(&layout, &[loose(Scope::Smt)]);
    far.pools[0].pull_cost = PullCost::from_percent(400).unwrap();
    far.item_ns = 10_000_000;
    far.put(&layout, 0, 8, 1, woken_ns);
    let until = woken_ns + IDLE_PATIENCE_NS;
    assert_eq!(next(&layout, &far, 0, called(Reach::Node)), Err(until));
}

#[test]
fn who_has_slept_of_late_takes_what_others_have_too_many_of_at_once() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    facts.item_ns = 100_000;
    facts.put(&layout, 0, 4, 4, facts.now_ns);
    let by_age = Err(facts.now_ns + 6_250);
    let taken = Ok((4, Reach::Node));
    let rested = Idle::Rested(facts.now_ns);
    assert_eq!(next(&layout, &facts, 0, FRESH), by_age, "it sleeps first");
    assert_eq!(next(&layout, &facts, 0, rested), taken);
    let called = Idle::Called(Reach::Home, facts.now_ns);
    assert_eq!(next(&layout, &facts, 0, called), taken, "it has slept until it was");
    let with = |change: &dyn Fn(&mut Given)| {
        let mut facts = facts.clone();
        change(&mut facts);
        next(&layout, &facts, 0, rested)
    };
    assert_eq!(with(&|facts| facts.waiting[0].items = 3), by_age, "not one for each CPU");
    assert_eq!(with(&|facts| facts.active = cpus("0-3,5-7")), taken, "so it is for three");
    assert_eq!(with(&|facts| facts.occupied = cpus("0")), by_age, "its issuer wants the CPU");
    assert!(with(&|facts| facts.issuers_are_busy = true).is_err(), "nobody waits for it");
    let tiny = with(&|facts| facts.item_ns = 1_000);
    assert_eq!(tiny, Err(facts.now_ns + Reach::Node.cost_ns()), "done sooner than fetched");
}

#[test]
fn what_is_far_is_left_to_its_cache_for_an_items_length_where_no_issuer_waits() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    (facts.item_ns, facts.delay_ns, facts.issuers_are_busy) = (200_000, 5_000, true);
    facts.put(&layout, 0, 4, 3, facts.now_ns);
    let since = Idle::Since(facts.now_ns - 2 * IDLE_PATIENCE_NS);
    assert_eq!(next(&layout, &facts, 0, since), Err(facts.now_ns + 200_000), "four are awake");
    facts.waiting[0].items = 4;
    let by_age_ns = facts.now_ns + 12_500;
    assert_eq!(next(&layout, &facts, 0, since), Err(by_age_ns), "that is enough for all of them");
    facts.issuers_are_busy = false;
    assert_eq!(next(&layout, &facts, 0, since), Ok((4, Reach::Node)), "somebody waits");
}

#[test]
fn who_has_slept_for_what_is_gone_takes_what_is_fresh_and_far_only_where_an_issuer_waits() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    facts.put(&layout, 0, 4, 1, facts.now_ns);
    assert_eq!(next(&layout, &facts, 0, FRESH.slept(&facts)), Ok((4, Reach::Node)));
    facts.issuers_are_busy = true;
    let ripe_ns = facts.now_ns + Reach::Node.cost_ns();
    assert_eq!(next(&layout, &facts, 0, FRESH.slept(&facts)), Err(ripe_ns));
    facts.now_ns = ripe_ns;
    assert_eq!(next(&layout, &facts, 0, FRESH.slept(&facts)), Ok((4, Reach::Node)));
}

#[test]
fn parks_until_the_first_of_several_is_ripe() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    facts.put(&layout, 0, 8, 1, facts.now_ns);
    facts.put(&layout, 0, 4, 1, facts.now_ns);
    facts.put(&layout, 0, 6, 1, facts.now_ns - 1);
    assert_eq!(next(&layout, &facts, 0, FRESH), Err(facts.now_ns + 3_999));
}

#[test]
fn strict_work_stays_while_its_pod_has_a_worker_and_goes_to_anyone_after() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[strict(Scope::Cache)]);
    facts.put(&layout, 0, 4, 1, 0);
    for cpu in [0, 8] {
        assert_eq!(next(&layout, &facts, cpu, Idle::Any), Err(0));
    }
    assert_eq!(next(&layout, &facts, 7, FRESH), Ok((4, Reach::Home)));
    facts.active = cpus("0-3,5,8-15");
    assert_eq!(next(&layout, &facts, 0, Idle::Any), Err(0), "5 is left");
    facts.active = cpus("0-3,8-15");
    facts.features = Features::NONE;
    facts.waiting[0].since_ns = facts.now_ns;
    assert_eq!(next(&layout, &facts, 0, FRESH), Ok((4, Reach::Node)), "however fresh");
    assert_eq!(next(&layout, &facts, 8, FRESH), Ok((4, Reach::Remote)));
}

#[test]
fn features_switch_pulling_off() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    for cpu in [0, 2, 4, 8] {
        facts.put(&layout, 0, cpu, 1, 0);
    }
    let mut take = |features, cpu| {
        facts.features = features;
        next(&layout, &facts, cpu, Idle::Any)
    };
    assert_eq!(take(Features::NONE, 0), Ok((0, Reach::Home)));
    assert_eq!(take(Features::NONE, 6), Err(0));
    assert_eq!(take(Features::SWQUEUE, 6), Ok((4, Reach::Llc)));
    assert_eq!(take(Features::SWQUEUE, 12), Err(0));
    assert_eq!(take(Features::XSTEAL, 12), Ok((8, Reach::Node)));
    assert_eq!(take(Features::XSTEAL, 6), Ok((2, Reach::Node)), "over the cache's own");
}

#[test]
fn thieves_begin_with_different_victims() {
    let layout = layout("1x8x1");
    let mut facts = Given::new(&layout, &[loose(Scope::Cpu)]);
    facts.active = cpus("0-7");
    for cpu in [1, 3, 5] {
        facts.put(&layout, 0, cpu, 1, 0);
    }
    let victims = [0, 2, 4, 6].map(|cpu| next(&layout, &facts, cpu, FRESH).unwrap().0);
    assert_eq!(victims, [1, 3, 5, 1]);
}

/// `SCHED-6`, for own work and for that of others.
#[test]
fn pools_share_a_cpu_by_their_weights_and_none_starves() {
    let nice = |level| Nice::new(level).unwrap();
    let pools = [3, -4, 0].map(|level| Attributes { nice: nice(level), ..loose(Scope::Smt) });
    let layout = layout(GRID);
    for issuer in [0, 12] {
        let mut facts = Given::new(&layout, &pools);
        for pool in 0..3 {
            facts.put(&layout, pool, issuer, 9, 0);
        }
        let (mut shares, mut taken) = (Shares::default(), [0_u64; 3]);
        for _ in 0..1000 {
            let next = before_park(&layout, &facts, cpu_id(0), FRESH, &shares);
            let Next::Take { queue, .. } = next else { panic!("there is work") };
            let pool = usize::from(queue.pool.0);
            taken[pool] += 1;
            shares.ran(queue.pool, pools[pool].nice, 5_000);
        }
        let total: u64 = pools.iter().map(|pool| pool.nice.weight()).sum();
        for (pool, taken) in pools.iter().zip(taken) {
            assert!(taken.abs_diff(1000 * pool.nice.weight() / total) <= 2, "{taken}");
        }
    }
}

/// `SCHED-7`.
#[test]
fn a_mask_keeps_others_away_while_one_of_its_cpus_has_a_worker() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache), strict(Scope::Cache)]);
    facts.masks = vec![Some(cpus("5,6,9")), Some(cpus("5,6,9"))];
    for pool in [0, 1] {
        facts.waiting.clear();
        facts.put(&layout, pool, 4, 1, 0);
        let takers = |facts: &Given| {
            let takes = |cpu: &CpuId| next(&layout, facts, cpu.index(), Idle::Any).is_ok();
            facts.active.iter().filter(takes).map(CpuId::index).collect::<Vec<_>>()
        };
        let away = if pool == 0 { vec![5, 6, 9] } else { vec![5, 6] };
        assert_eq!(takers(&facts), away);
        assert_eq!(next(&layout, &facts, 6, FRESH), Ok((4, Reach::Home)));
        facts.active = cpus("0-4,7-15");
        assert_eq!(takers(&facts), [9], "the rest of the mask");
        facts.active = cpus("0-3,10-15");
        assert_eq!(takers(&facts).len(), 10, "nobody of the mask is left: anyone");
        facts.active = cpus("0-15");
    }
}

#[test]
fn an_orphaned_pod_behind_one_that_has_a_worker_is_found() {
    let layout = layout("1x1x4x1");
    let mut facts = Given::new(&layout, &[strict(Scope::Cpu)]);
    facts.active = cpus("0-1,3");
    for cpu in [1, 2] {
        facts.put(&layout, 0, cpu, 1, facts.now_ns);
    }
    assert_eq!(next(&layout, &facts, 0, FRESH), Ok((2, Reach::Llc)));
}

#[test]
fn patience_for_what_is_near_ends_whether_or_not_issuers_wait() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Smt)]);
    facts.issuers_are_busy = true;
    facts.put(&layout, 0, 2, 1, facts.now_ns);
    let since = Idle::Since(facts.now_ns - IDLE_PATIENCE_NS);
    assert_eq!(next(&layout, &facts, 0, since), Ok((2, Reach::Llc)));
    facts.waiting.clear();
    facts.put(&layout, 0, 4, 1, facts.now_ns);
    assert!(next(&layout, &facts, 0, since).is_err(), "beyond the cache it goes on");
}

#[test]
fn others_have_too_many_where_their_items_take_as_long_as_a_fetch_and_each_has_one() {
    let layout = layout(GRID);
    let taken = |item_ns, items, mask: Option<CpuSet>| {
        let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
        (facts.item_ns, facts.masks) = (item_ns, vec![mask]);
        facts.put(&layout, 0, 4, items, facts.now_ns);
        next(&layout, &facts, 0, Idle::Rested(facts.now_ns)).is_ok()
    };
    let fetch_ns = Reach::Node.cost_ns();
    assert!(taken(fetch_ns, 4, None) && !taken(fetch_ns - 1, 4, None));
    assert!(!taken(fetch_ns, 2, None), "two of four have nothing to do");
    assert!(taken(fetch_ns, 2, Some(cpus("0,4-5"))), "the other two may not");
}

/// As `who_has_slept_of_late_takes_what_others_have_too_many_of_at_once`.
#[test]
fn an_issuer_that_waits_briefly_gets_no_long_item_because_others_have_too_many() {
    let layout = layout(GRID);
    let mut facts = Given::new(&layout, &[loose(Scope::Cache)]);
    (facts.waits, facts.issuer_wait) = (cpus("0"), crate::IssuerWait::from_ns(10_000));
    facts.item_ns = 20_000;
    facts.put(&layout, 0, 4, 4, facts.now_ns);
    let rested = Idle::Rested(facts.now_ns);
    assert_eq!(next(&layout, &facts, 0, rested), Ok((4, Reach::Node)), "it is over by then");
    facts.item_ns = 100_000;
    assert_eq!(next(&layout, &facts, 0, rested), Err(facts.now_ns + 6_250));
}
