//! The shared wakequeue: request and response, and a build.

use homing_sim::{Build, HostModel, Pairs, Rules, SwQueue, Trial};

use super::{Cell, Key, NamedMachine, Plan, common};

/// The machines of the published tables.
const PAIR_MACHINES: [&str; 5] =
    ["xeon-cooper-lake-26c", "xeon-skylake-2s", "ryzen-9-7950x", "epyc-milan-36c", "xeon-8358-2s"];
const BUILD_MACHINES: [&str; 5] = [
    "ryzen-9-7950x",
    "epyc-milan-36c",
    "epyc-bergamo-88c",
    "xeon-cooper-lake-26c",
    "xeon-skylake-2s",
];

/// Cores of a shard: later versions of the posting.
const SHARD_CORES: usize = 6;

fn machines(plan: &Plan, published: &[&str]) -> Vec<NamedMachine> {
    plan.machine.clone().map_or_else(|| NamedMachine::presets(published), |machine| vec![machine])
}

fn key(experiment: &str, machine: &NamedMachine, scenario: &str, policy: &str, seed: u64) -> Key {
    Key {
        experiment: experiment.to_owned(),
        machine: machine.name.clone(),
        scenario: scenario.to_owned(),
        policy: policy.to_owned(),
        host: HostModel::Cfs.name().to_owned(),
        seed,
    }
}

pub(super) fn pairs(plan: &Plan) -> Vec<Cell> {
    let policies = [
        ("off", None),
        ("swqueue", Some(SwQueue::PerCache)),
        ("swqueue, shards", Some(SwQueue::Sharded(SHARD_CORES))),
    ];
    let mut cells = Vec::new();
    for machine in machines(plan, &PAIR_MACHINES) {
        let cpus = machine.machine.cpus().len();
        // With one CPU both are the same.
        let loads = [("1 pair".to_owned(), 1), (format!("{cpus} pairs"), cpus)];
        for (scenario, count) in loads.into_iter().take(cpus) {
            for (policy, swqueue) in policies {
                for seed in 0..plan.seeds {
                    let (machine, costs) = (machine.clone(), plan.costs.usual());
                    let key = key("udp-rr", &machine, &scenario, policy, seed);
                    let measured_ns = plan.measured_ns / 10;
                    cells.push(Cell::new(key, move |stop| {
                        let rules = Rules { swqueue, ..Rules::new(HostModel::Cfs, cpus) };
                        let load = Pairs { measured_ns, ..Pairs::new(count) };
                        let machine = &machine.machine;
                        let trial = Trial { machine, costs: &costs, rules: &rules, seed, stop };
                        let report = load.run(&trial)?;
                        let busy_ns = report.cpu_us * 1e3 * report.rate * measured_ns as f64 / 1e9;
                        let mut values = common(&report);
                        let share = report.lock_wait_ns as f64 * 100.0 / busy_ns.max(1.0);
                        values.insert("lock_pct".to_owned(), share);
                        Some(values)
                    }));
                }
            }
        }
    }
    cells
}

pub(super) fn builds(plan: &Plan) -> Vec<Cell> {
    let swq = Some(SwQueue::PerCache);
    let policies = [
        ("off", false, None),
        ("sis_node", true, None),
        ("swqueue", false, swq),
        ("swqueue+sis_node", true, swq),
    ];
    let mut cells = Vec::new();
    for machine in machines(plan, &BUILD_MACHINES) {
        let cpus = machine.machine.cpus().len();
        for (policy, sis_node, swqueue) in policies {
            for seed in 0..plan.seeds {
                let (machine, costs) = (machine.clone(), plan.costs.usual());
                let key = key("compile", &machine, "make -j", policy, seed);
                let measured_ns = plan.measured_ns;
                cells.push(Cell::new(key, move |stop| {
                    let rules = Rules { swqueue, sis_node, ..Rules::new(HostModel::Cfs, cpus) };
                    let load = Build { measured_ns, ..Build::new(cpus) };
                    let machine = &machine.machine;
                    let trial = Trial { machine, costs: &costs, rules: &rules, seed, stop };
                    load.run(&trial).as_ref().map(common)
                }));
            }
        }
    }
    cells
}
