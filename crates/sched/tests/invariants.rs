//! The decisions at work on machines that do not exist: what must hold whatever happens. How long
//! work may wait beside an idle CPU, and why, is in `driver/checks.rs`.

mod driver;

use driver::machines::{GRIDS, LARGEST, captures, grid};
use driver::{Scenario, run};

#[test]
fn prompt_work_waits_beside_an_idle_cpu_only_until_it_is_ripe() {
    for name in GRIDS {
        for seed in 0..4 {
            let report = run(&grid(name), &Scenario::prompt(seed));
            println!("{name} {seed}: {} {}", report.exposed_max_ns, report.wakes);
        }
    }
}

#[test]
fn anything_legal_on_regular_machines() {
    for (index, name) in GRIDS.into_iter().enumerate() {
        let layout = grid(name);
        for seed in 0..20 {
            let seed = index as u64 * 1_000 + seed;
            let scenario = Scenario::random(seed, 1_000, layout.machine().online());
            println!("{name} {scenario:?}");
            let report = run(&layout, &scenario);
            println!("{name} {seed}: {} {}", report.exposed_max_ns, report.extra_looks);
        }
    }
}

#[test]
fn captures_too() {
    for (name, layout) in captures() {
        println!("{name}");
        run(&layout, &Scenario::prompt(1));
    }
    run(&grid(LARGEST), &Scenario::prompt(1));
}
