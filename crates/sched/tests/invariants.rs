//! The decisions at work on machines that do not exist: what must hold whatever happens.
//!
//! Every run checks that each item runs once and only where it may, that no CPU is woken twice for
//! one announcement, nor for work that it may not take, that no CPU searches twice for one wake-up,
//! that each insertion wakes at most one CPU, and that no item is left. `driver/checks.rs` states
//! how long work may wait beside an idle CPU, and how long a queue may be passed over.

mod driver;

use driver::machines::{GRIDS, LARGEST, captures, grid};
use driver::{Scenario, run};
use homing_sched::{Affinity, Attributes, Layout, Nice, PULL_AGE_MAX_NS};
use homing_topology::{CpuSet, Scope};
use proptest::prelude::*;

fn random(layout: &Layout, seed: u64, items: u32) -> Scenario {
    Scenario::random(seed, items, layout.machine().online())
}

#[test]
fn prompt_work_waits_beside_an_idle_cpu_only_until_it_is_ripe() {
    for name in GRIDS {
        for seed in 0..4 {
            let scenario = Scenario::prompt(seed);
            let report = run(&grid(name), &scenario);
            assert!(report.exposed_max_ns <= PULL_AGE_MAX_NS + 2 * scenario.wake_ns);
        }
    }
}

#[test]
fn what_is_left_to_who_is_awake_waits_little_longer_and_spares_wake_ups() {
    let (mut wakes, mut prompt_wakes) = (0, 0);
    for name in GRIDS {
        for seed in 0..4 {
            let scenario = Scenario::patient(seed);
            wakes += run(&grid(name), &scenario).wakes;
            run(&grid(name), &Scenario { issuers_are_busy: true, ..scenario.clone() });
            prompt_wakes += run(&grid(name), &Scenario { knows_delay: false, ..scenario }).wakes;
        }
    }
    assert!(3 * wakes < 2 * prompt_wakes, "{wakes} wake-ups where there were {prompt_wakes}");
}

#[test]
fn captured_machines_and_the_largest_one_are_like_the_others() {
    let largest = (LARGEST.to_owned(), grid(LARGEST));
    for (name, layout) in captures().into_iter().chain([largest]) {
        println!("{name}");
        run(&layout, &Scenario::prompt(1));
        for seed in 0..3 {
            run(&layout, &random(&layout, seed, 300));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn anything_legal_ends_well(machine in 0..GRIDS.len(), seed in any::<u64>()) {
        let layout = grid(GRIDS[machine]);
        run(&layout, &random(&layout, seed, 600));
    }
}

/// The logs are equal byte for byte, decision by decision.
#[test]
fn the_same_seed_gives_the_same_decisions() {
    let grids = GRIDS.iter().map(|name| ((*name).to_owned(), grid(name), 5));
    let captures = captures().into_iter().map(|(name, layout)| (name, layout, 2));
    let largest = (LARGEST.to_owned(), grid(LARGEST), 1);
    for (name, layout, seeds) in grids.chain(captures).chain([largest]) {
        println!("{name}");
        for seed in 0..seeds {
            let scenario = random(&layout, seed, 400);
            let first = run(&layout, &scenario);
            assert_eq!(first.log, run(&layout, &scenario).log);
            let other = Scenario { seed: seed + 1_000, ..scenario };
            assert_ne!(first.log, run(&layout, &other).log, "the log tells what happened");
        }
    }
}

#[test]
fn stale_facts_cost_extra_looks_and_nothing_else() {
    let mut extra_looks = 0;
    for name in GRIDS {
        let layout = grid(name);
        for stale_ns in [1_000, 30_000, 1_000_000] {
            for seed in 0..4 {
                // Fresh facts never ask for a second look: each run checks it.
                run(&layout, &Scenario { stale_ns: 0, ..random(&layout, seed, 300) });
                let report = run(&layout, &Scenario { stale_ns, ..random(&layout, seed, 300) });
                extra_looks += report.extra_looks;
            }
        }
    }
    assert!(extra_looks > 100, "{extra_looks}: nobody was deceived");
}

/// Items that wait in a strict pod that loses all of its workers are served by others, and items
/// that come after that have their home elsewhere.
#[test]
fn orphaned_strict_pods_are_served() {
    for scope in [Scope::Cpu, Scope::Cache, Scope::Numa] {
        for seed in 0..8 {
            let left: CpuSet = "5,8-11".parse().unwrap();
            let layout = grid("2x2x2x2");
            let scenario = Scenario {
                pools: vec![Attributes::new(Affinity { scope, strict: true })],
                lengths_ns: vec![50_000, 400_000],
                burst_max: 40,
                items: 400,
                masks: vec![(150_000, left)],
                ..Scenario::prompt(seed)
            };
            let report = run(&layout, &scenario);
            let switch = report.log.find(&format!("active {left}")).expect("it is noted");
            let takers = |log: &str| -> CpuSet {
                let takes = log.lines().filter_map(|line| line.split_once(" take "));
                takes
                    .map(|(_, take)| take.split(' ').next().unwrap().parse().unwrap())
                    .fold(CpuSet::EMPTY, |all, cpu: CpuSet| all.or(&cpu))
            };
            assert!(takers(&report.log[switch..]).is_subset(&left));
            assert!(!takers(&report.log[..switch]).is_subset(&left), "others were at work before");
        }
    }
}

/// `SCHED-6`: while all queues are always full, each pool has its share, and waits no longer than
/// the others take for theirs.
#[test]
fn a_flood_of_high_priority_passes_over_the_others_no_longer_than_their_weights_say() {
    for levels in [&[-20, 0, 0][..], &[-20, -20, 0, 5], &[-10, 0, 19], &[0, 0, 0, 0]] {
        let pool = |(index, level): (usize, &i8)| Attributes {
            nice: Nice::new(*level).unwrap(),
            ..Attributes::new(Affinity::ALL[index])
        };
        let scenario = Scenario {
            pools: levels.iter().enumerate().map(pool).collect(),
            items: 4_000,
            pause_ns: 1,
            lengths_ns: vec![10_000],
            parents: 0,
            ..Scenario::prompt(levels.len() as u64)
        };
        let report = run(&grid("1x1x1"), &scenario);
        let total: u64 = scenario.pools.iter().map(|pool| pool.nice.weight()).sum();
        for (pool, passed_ns) in scenario.pools.iter().zip(&report.passed_ns) {
            // A batch is five items of 10 us, 11 at most, each time that the pool's share comes
            // round.
            let round_ns = 55_000 * (total / pool.nice.weight() + levels.len() as u64);
            assert!(*passed_ns <= round_ns, "{pool:?}: {passed_ns} ns, {round_ns}");
            let other = total > 2 * pool.nice.weight();
            assert!(!other || *passed_ns >= 10_000, "{pool:?} was never passed over");
        }
    }
}
