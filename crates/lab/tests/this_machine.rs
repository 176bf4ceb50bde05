//! This machine beside the simulation of it: alone in its process, whose CPU time is measured.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use homing_lab::experiments::{Experiment, HostModel, Plan, run};

/// CPU time of an item, real and simulated: within a quarter, in the least disturbed of three runs.
/// Throughput is compared by `homing lab run items` where nothing else runs: others take CPUs away
/// here.
#[test]
fn the_simulated_machine_needs_as_much_cpu_time_as_this_one() {
    let hosts = vec![HostModel::Cfs];
    let plan = Plan {
        machine: None,
        hosts,
        seeds: 3,
        measured_ns: 300_000_000,
        features: Vec::new(),
        stale_ns: 0,
    };
    let cells = Experiment::find("items").unwrap().cells(&plan);
    let measures = run(&cells, &AtomicBool::new(false), |_, _| {}).unwrap();
    if measures.is_empty() {
        println!("skipped: this machine's topology cannot be read");
        return;
    }
    let scenarios: BTreeSet<&str> = measures.iter().map(|m| m.key.scenario.as_str()).collect();
    for scenario in scenarios {
        let least = |policy: &str, metric: &str| {
            let same =
                measures.iter().filter(|m| m.key.scenario == scenario && m.key.policy == policy);
            same.map(|m| m.values[metric]).fold(f64::INFINITY, f64::min)
        };
        let (real, simulated) = (least("real", "cpu_us"), least("simulated", "cpu_us"));
        println!("{scenario}: {real:.1} us really, {simulated:.1} us simulated");
        let off = (simulated / real - 1.0).abs();
        assert!(off <= 0.25, "{scenario}: {real} us really, {simulated} us simulated");
        let pulled = (least("real", "pulled_per_item"), least("simulated", "pulled_per_item"));
        assert!((pulled.0 - pulled.1).abs() <= 0.1, "{scenario}: pulled {pulled:?}");
    }
}
