//! This machine beside the simulation of it. The test is alone in its process, whose CPU time is
//! measured.

#[path = "../src/cpu_time.rs"]
mod cpu_time;

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cpu_time::cpu_time;
use homing_lab::experiments::{Experiment, GivenCosts, HostModel, Key, Measure, Plan, Stat, run};

/// The share of the machine that others may use while it is measured. With a third of it, the CPU
/// time of an item doubles where two CPUs are one core.
const OTHERS_MAX: f64 = 0.1;
/// How often it is measured, if others use more or the two differ. A disturbance goes away, but a
/// wrong simulation does not become right.
const ATTEMPTS: usize = 4;

/// Real and simulated, in one of a few attempts that others disturb little: the CPU time of an item
/// agrees within a quarter, items pulled within 0.1 an item. Where nothing else runs, throughput
/// and CPU use agree within a tenth for issuers with many items on the way, and within a quarter
/// for one that mostly waits (`homing lab run items`). Here others take CPUs away, so throughput
/// may be a quarter, and a worker that loses its CPU is woken again. Where they take much, nothing
/// is compared.
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
        costs: GivenCosts::default(),
    };
    let cells = Experiment::find("items").unwrap().cells(&plan);
    let mut differs = None;
    for _ in 0..ATTEMPTS {
        let (measures, others) =
            beside(|| run(&cells, &AtomicBool::new(false), |_, _| {}).unwrap());
        println!("{:.0} % of the machine's CPU time went to others", others * 100.0);
        if measures.is_empty() {
            return println!("skipped: this machine's topology cannot be read");
        }
        if others > OTHERS_MAX {
            continue;
        }
        match compare(&measures) {
            Ok(()) => return,
            Err(difference) => differs = Some(difference),
        }
    }
    match differs {
        Some(difference) => panic!("{difference}"),
        None => println!("skipped: others use this machine"),
    }
}

fn compare(measures: &[Measure]) -> Result<(), String> {
    let scenarios: BTreeSet<&str> = measures.iter().map(|m| m.key.scenario.as_str()).collect();
    for scenario in scenarios {
        let all = |policy: &str, metric: &str| -> Vec<f64> {
            let of = |key: &Key| key.scenario == scenario && key.policy == policy;
            measures.iter().filter(|m| of(&m.key)).map(|m| m.values[metric]).collect()
        };
        let least = |metric| ["real", "simulated"].map(|who| Stat::of(&all(who, metric)).min);
        let most = |metric| ["real", "simulated"].map(|who| Stat::of(&all(who, metric)).max);
        let agree = |metric, [real, simulated]: [f64; 2], is_close: bool| {
            println!("{scenario}, {metric}: {real:.3} really, {simulated:.3} simulated");
            let told = || format!("{scenario}: {metric} {real} really, {simulated} simulated");
            is_close.then_some(()).ok_or_else(told)
        };
        let off = |[real, simulated]: [f64; 2]| (simulated - real).abs();
        let cpu = least("cpu_us");
        agree("cpu_us", cpu, off(cpu) <= 0.25 * cpu[0])?;
        let pulled = least("pulled_per_item");
        agree("pulled_per_item", pulled, off(pulled) <= 0.1)?;
        let wakes = least("wakes_per_item");
        agree("wakes_per_item", wakes, off(wakes) <= 0.8)?;
        for metric in ["rate", "util_pct"] {
            let rates = most(metric);
            agree(metric, rates, (0.25..=1.2).contains(&(rates[0] / rates[1])))?;
        }
    }
    Ok(())
}

/// Returns the result of `it`, and which share of the machine's CPU time others used meanwhile; 0
/// where that is unknown.
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

/// How long all CPUs have worked, for this machine or other guests of its host, and how long they
/// have been there.
fn machine_time() -> Option<(Duration, Duration)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
    let fields = stat.lines().next()?.split_whitespace().skip(1).take(8);
    let fields: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let (all, idle): (u64, u64) = (fields.iter().sum(), fields.get(3..5)?.iter().sum());
    Some((Duration::from_millis((all - idle) * 10), Duration::from_millis(all * 10)))
}
