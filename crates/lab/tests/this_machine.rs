//! This machine beside the simulation of it: alone in its process, whose CPU time is measured.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use homing_lab::experiments::{Experiment, HostModel, Key, Plan, Stat, run};

/// In the least disturbed of three runs, real and simulated: CPU time of an item within a quarter, items
/// pulled within a tenth. Where nothing else runs, throughput and CPU use agree within a tenth, and
/// wake-ups for an item too (`homing lab run items`); here others take CPUs away, so throughput may be a
/// quarter, and a worker that loses its CPU is woken again.
#[test]
fn the_simulated_machine_does_what_this_one_does() {
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
        let all = |policy: &str, metric: &str| -> Vec<f64> {
            let of = |key: &Key| key.scenario == scenario && key.policy == policy;
            measures.iter().filter(|m| of(&m.key)).map(|m| m.values[metric]).collect()
        };
        let least = |policy: &str, metric: &str| Stat::of(&all(policy, metric)).min;
        let most = |policy: &str, metric: &str| Stat::of(&all(policy, metric)).max;
        let (real, simulated) = (least("real", "cpu_us"), least("simulated", "cpu_us"));
        println!("{scenario}: {real:.1} us really, {simulated:.1} us simulated");
        let off = (simulated / real - 1.0).abs();
        assert!(off <= 0.25, "{scenario}: {real} us really, {simulated} us simulated");
        let pulled = (least("real", "pulled_per_item"), least("simulated", "pulled_per_item"));
        assert!((pulled.0 - pulled.1).abs() <= 0.1, "{scenario}: pulled {pulled:?}");
        let wakes = (least("real", "wakes_per_item"), least("simulated", "wakes_per_item"));
        println!("  woken for an item: {:.3} really, {:.3} simulated", wakes.0, wakes.1);
        assert!((wakes.0 - wakes.1).abs() <= 0.8, "{scenario}: woken {wakes:?}");
        for metric in ["rate", "util_pct"] {
            let (real, simulated) = (most("real", metric), most("simulated", metric));
            println!("  {metric}: {real:.1} really, {simulated:.1} simulated");
            let share = real / simulated;
            assert!((0.25..=1.2).contains(&share), "{scenario}: {metric} {real}, {simulated}");
        }
    }
}
