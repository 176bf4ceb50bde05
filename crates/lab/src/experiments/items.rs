//! Items of known lengths on this machine: really run, and simulated on its topology.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use homing::{JoinHandle, Runtime, Workqueue};
use homing_sim::{Costs, HomingSettings, HostModel, Items, Policy, Rules};

use super::{Cell, Key, NamedMachine, Plan, common, named};
use crate::cpu_time::cpu_time;

/// Issuers, items that each has on the way, microseconds of an item and of its issuer.
const LOADS: [(usize, usize, u64, u64); 4] =
    [(1, 16, 200, 20), (2, 16, 200, 20), (1, 2, 200, 20), (1, 16, 50, 50)];

/// What is measured of a real run, at most: it takes as long as it says.
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
            cells.push(Cell::new(key("simulated", seed), move || {
                let rules = Rules::new(HostModel::Cfs, topology.cpus().len());
                common(&setup.run(&topology, &Costs::default(), &rules, seed))
            }));
            let run = move || run_really(&real, measured).unwrap_or_default();
            cells.push(Cell::alone(key("real", seed), run));
        }
    }
    cells
}

/// The same on this machine's threads; `None` where no runtime can be started.
fn run_really(setup: &Items, measured: Duration) -> Option<BTreeMap<String, f64>> {
    let runtime = Runtime::new().ok()?;
    let workqueue = runtime.workqueue("lab").build().ok()?;
    let work = Spin::calibrated();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let figures = thread::scope(|scope| {
        for _ in 0..setup.issuers {
            let (workqueue, stop, done) = (&workqueue, &stop, &done);
            scope.spawn(move || issue(setup, workqueue, work, stop, done));
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

fn issue(setup: &Items, workqueue: &Workqueue, work: Spin, stop: &AtomicBool, done: &AtomicU64) {
    let mut on_way: VecDeque<JoinHandle<()>> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        work.run(setup.issuer_ns);
        let item_ns = setup.item_ns;
        on_way.push_back(workqueue.queue(move || work.run(item_ns)));
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

/// Work of a known length: additions, counted once against the clock.
#[derive(Clone, Copy)]
struct Spin {
    rounds_per_us: u64,
}

impl Spin {
    fn calibrated() -> Self {
        const ROUNDS: u64 = 100_000;
        // The best of many that are shorter than a time slice: the others were disturbed.
        let round = |_| {
            let began = Instant::now();
            spin(ROUNDS);
            began.elapsed().as_nanos() as u64
        };
        let best_ns = (0..100).map(round).min().unwrap_or(1).max(1);
        Self { rounds_per_us: (ROUNDS * 1_000 / best_ns).max(1) }
    }

    fn run(self, ns: u64) {
        spin(self.rounds_per_us * ns / 1_000);
    }
}

fn spin(rounds: u64) {
    let mut sum = 1_u64;
    for round in 0..rounds {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(round));
    }
}
