//! This machine beside the simulation of it: alone in its process, whose CPU time is measured.

#[path = "../src/cpu_time.rs"]
mod cpu_time;

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cpu_time::cpu_time;
use homing_lab::experiments::{Experiment, HostModel, Key, Measure, Plan, Stat, run};

/// Others may use so much of the machine while it is measured: with a third of it the CPU time of an item doubles
/// where two CPUs are one core.
const OTHERS_MAX: f64 = 0.1;
/// How often it is measured anew where others use more.
const ATTEMPTS: usize = 4;

/// In the least disturbed of three runs, real and simulated: CPU time of an item within a quarter, items
/// pulled within a tenth. Where nothing else runs, throughput and CPU use agree within a tenth, and
/// wake-ups for an item too (`homing lab run items`); here others take CPUs away, so throughput may be a
/// quarter, and a worker that loses its CPU is woken again. Where they take much, nothing is compared.
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
    let measure = |_| {
        let (measures, others) =
            beside(|| run(&cells, &AtomicBool::new(false), |_, _| {}).unwrap());
        println!("{:.0} % of the machine's CPU time went to others", others * 100.0);
        (others <= OTHERS_MAX).then_some(measures)
    };
    match (0..ATTEMPTS).find_map(measure) {
        None => println!("skipped: others use this machine"),
        Some(none) if none.is_empty() => {
            println!("skipped: this machine's topology cannot be read");
        }
        Some(measures) => compare(&measures),
    }
}

fn compare(measures: &[Measure]) {
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

/// What it returns, and which share of the machine's CPU time others used meanwhile; 0 where nobody tells.
fn beside<T>(it: impl FnOnce() -> T) -> (T, f64) {
    let (before, own_before) = (machine_time(), cpu_time());
    let result = it();
    let (after, own) = (machine_time(), cpu_time().saturating_sub(own_before));
    let others = before.zip(after).map(|(before, after)| {
        let (busy, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        busy.saturating_sub(own).as_secs_f64() / all.as_secs_f64()
    });
    (result, others.unwrap_or_default())
}

/// For how long all CPUs have worked, for this machine or other guests of its host, and have been there.
fn machine_time() -> Option<(Duration, Duration)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
    let fields = stat.lines().next()?.split_whitespace().skip(1).take(8);
    let fields: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let (all, idle): (u64, u64) = (fields.iter().sum(), fields.get(3..5)?.iter().sum());
    Some((Duration::from_millis((all - idle) * 10), Duration::from_millis(all * 10)))
}
