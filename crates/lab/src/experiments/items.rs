//! Items of known lengths on this machine: run for real, and simulated on its topology.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use homing::{JoinHandle, Runtime, Workqueue};
use homing_sim::{Cost, Costs, HomingSettings, HostModel, Items, Policy, Rules, Source, Trial};
use rustix::time::{ClockId, clock_gettime};

use super::{Cell, Key, NamedMachine, Plan, common, named};
use crate::cpu_time::cpu_time;

/// The loads: issuers, items that each has in flight, microseconds of an item and of its issuer.
const LOADS: [(usize, usize, u64, u64); 4] =
    [(1, 16, 200, 20), (2, 16, 200, 20), (1, 2, 200, 20), (1, 16, 50, 50)];

/// The longest time that is measured of a real run: such a run takes as long as it says.
const REAL_MAX: Duration = Duration::from_secs(2);

pub(super) fn cells(plan: &Plan) -> Vec<Cell> {
    let Ok(machine) = NamedMachine::find("here") else { return Vec::new() };
    let settings = HomingSettings::default();
    let mut cells = Vec::new();
    for (issuers, depth, item_us, issuer_us) in LOADS {
        let scenario = format!("{issuers} x {depth} items of {item_us} us, {issuer_us} us between");
        let key = |policy: &str, seed| Key {
            experiment: "items".to_owned(),
            machine: machine.name.clone(),
            scenario: scenario.clone(),
            policy: policy.to_owned(),
            host: settings.to_string(),
            seed,
        };
        for seed in 0..plan.seeds {
            let setup = Items {
                issuers,
                depth,
                item_ns: item_us * 1_000,
                issuer_ns: issuer_us * 1_000,
                policy: Policy::Homing(settings.clone()),
                warm_up_ns: 50_000_000,
                measured_ns: plan.measured_ns,
            };
            let topology = machine.machine.clone();
            let measured = Duration::from_nanos(plan.measured_ns).min(REAL_MAX);
            let real = setup.clone();
            cells.push(Cell::new(key("simulated", seed), move |stop| {
                let rules = Rules::new(HostModel::Cfs, topology.cpus().len());
                let (machine, costs) = (&topology, &costs());
                let trial = Trial { machine, costs, rules: &rules, seed, stop };
                setup.run(&trial).as_ref().map(common)
            }));
            let run = move || run_really(&real, measured).unwrap_or_default();
            cells.push(Cell::alone(key("real", seed), run));
        }
    }
    cells
}

/// The usual costs, except that an item takes the same CPU time whatever else runs on its core, as
/// in the real run.
fn costs() -> Costs {
    let as_alone = Cost { value: 1_000, source: Source::Measured("by the thread's own CPU time") };
    Costs { smt_per_mille: as_alone, ..Costs::default() }
}

/// Runs the same load on threads of this machine; `None` if no runtime can be started.
fn run_really(setup: &Items, measured: Duration) -> Option<BTreeMap<String, f64>> {
    let runtime = Runtime::new().ok()?;
    let workqueue = runtime.workqueue("lab").build().ok()?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let figures = thread::scope(|scope| {
        for _ in 0..setup.issuers {
            let (workqueue, stop, done) = (&workqueue, &stop, &done);
            scope.spawn(move || issue(setup, workqueue, stop, done));
        }
        thread::sleep(Duration::from_millis(100)); // warm
        let cpus = runtime.cpus().len() as f64;
        let before =
            (Instant::now(), done.load(Ordering::Relaxed), cpu_time(), workqueue.counters());
        thread::sleep(measured);
        let after =
            (Instant::now(), done.load(Ordering::Relaxed), cpu_time(), workqueue.counters());
        stop.store(true, Ordering::Relaxed);
        let seconds = (after.0 - before.0).as_secs_f64();
        let items = (after.1 - before.1) as f64;
        let busy = after.2.saturating_sub(before.2).as_secs_f64();
        let far = |counters: &homing::Counters| counters.taken[1..].iter().sum::<u64>() as f64;
        let values = [
            ("rate", items / seconds),
            ("util_pct", busy / seconds / cpus * 100.0),
            ("cpu_us", busy * 1e6 / items.max(1.0)),
            ("wakes_per_item", (after.3.woken - before.3.woken) as f64 / items.max(1.0)),
            ("pulled_per_item", (far(&after.3) - far(&before.3)) / items.max(1.0)),
        ];
        named(values)
    });
    Some(figures)
}

fn issue(setup: &Items, workqueue: &Workqueue, stop: &AtomicBool, done: &AtomicU64) {
    let mut on_way: VecDeque<JoinHandle<()>> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        work(setup.issuer_ns);
        let item_ns = setup.item_ns;
        on_way.push_back(workqueue.queue(move || work(item_ns)));
        if on_way.len() == setup.depth
            && let Some(oldest) = on_way.pop_front()
            && oldest.join().is_ok()
        {
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    for left in on_way {
        drop(left.join());
    }
}

/// Uses `ns` nanoseconds of CPU time, to the microsecond, however fast the CPU is at the moment,
/// and whatever else runs on its core.
fn work(ns: u64) {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    let end = used() + ns;
    while used() < end {
        for round in 0..500_u64 {
            black_box(round);
        }
    }
}
