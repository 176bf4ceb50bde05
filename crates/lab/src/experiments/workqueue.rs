//! dm-crypt: the workqueue tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use homing_sim::{
    Affinity, Costs, CryptLoad, DmCrypt, Features, HomingSettings, HostModel, IssuerPlaces,
    KernelSettings, Layout, Machine, Policy, Rules, Scope, Ssd, Trial,
};

use super::{Cell, Key, NamedMachine, Plan, common};

/// The time at the beginning that is not measured.
const WARM_UP_NS: u64 = 500_000_000;

const RYZEN: [&str; 1] = ["ryzen-9-3900x"];

/// homing with its default settings, choosing its scope, and queueing everything, even what issuers
/// could do themselves.
pub(super) fn homing_policies(plan: &Plan) -> Vec<Policy> {
    let plain = homing(plan);
    let auto = HomingSettings { auto: true, ..plain.clone() };
    let queued = HomingSettings { hand_off: false, ..plain.clone() };
    vec![Policy::Homing(plain), Policy::Homing(auto), Policy::Homing(queued)]
}

fn homing(plan: &Plan) -> HomingSettings {
    HomingSettings { stale_ns: plan.stale_ns, ..HomingSettings::default() }
}

/// homing with parts of its policy. All parts together are left out: that is the default, which
/// would run twice and count as other seeds.
pub(super) fn with_features(plan: &Plan) -> impl Iterator<Item = Policy> {
    let default = homing(plan);
    let parts = plan.features.iter().filter(move |features| **features != default.features);
    let of = |features: &Features| HomingSettings { features: *features, ..homing(plan) };
    parts.map(of).map(Policy::Homing)
}

/// The default affinity of homing on this machine.
pub(super) fn default_affinity(machine: &Machine) -> Affinity {
    Affinity::default_on(&Layout::new(machine).expect("it has a CPU"))
}

/// homing with each scope, loose and strict.
pub(super) fn every_scope(plan: &Plan) -> impl Iterator<Item = HomingSettings> {
    Affinity::ALL
        .map(|affinity| HomingSettings { affinity: Some(affinity), ..homing(plan) })
        .into_iter()
}

/// homing with each scope but the machine's default, loose and strict.
pub(super) fn homing_scopes(plan: &Plan, machine: &Machine) -> impl Iterator<Item = Policy> {
    let default = Some(default_affinity(machine));
    every_scope(plan).filter(move |settings| settings.affinity != default).map(Policy::Homing)
}

fn machines(plan: &Plan) -> Vec<NamedMachine> {
    plan.machine.clone().map_or_else(|| NamedMachine::presets(&RYZEN), |machine| vec![machine])
}

/// One simulated run.
#[derive(Clone, Debug)]
pub(super) struct CryptRun {
    pub(super) machine: NamedMachine,
    pub(super) load: CryptLoad,
    pub(super) policy: Policy,
    pub(super) host: HostModel,
    pub(super) costs: Arc<Costs>,
    pub(super) warm_up_ns: u64,
    pub(super) measured_ns: u64,
    pub(super) seed: u64,
}

impl CryptRun {
    pub(super) fn run(&self, stop: &AtomicBool) -> Option<BTreeMap<String, f64>> {
        let rules = Rules::new(self.host, self.machine.machine.cpus().len());
        let run = DmCrypt {
            load: self.load.clone(),
            policy: self.policy.clone(),
            warm_up_ns: self.warm_up_ns,
            measured_ns: self.measured_ns,
        };
        let (machine, costs, seed) = (&self.machine.machine, &self.costs, self.seed);
        let report = run.run(&Trial { machine, costs, rules: &rules, seed, stop })?;
        let mut values = common(&report);
        let mib = self.load.bytes as f64 / f64::from(1 << 20);
        values.insert("mib_s".to_owned(), report.rate * mib);
        Some(values)
    }

    pub(super) fn cell(self, experiment: &str, scenario: &str) -> Cell {
        let key = Key {
            experiment: experiment.to_owned(),
            machine: self.machine.name.clone(),
            scenario: scenario.to_owned(),
            policy: self.policy.to_string(),
            host: self.host.name().to_owned(),
            seed: self.seed,
        };
        Cell::new(key, move |stop| self.run(stop))
    }
}

pub(super) fn throughput(plan: &Plan) -> Vec<Cell> {
    let mut policies: Vec<Policy> = KernelSettings::PUBLISHED.map(Policy::Kernel).to_vec();
    policies.extend(homing_policies(plan));
    policies.extend(with_features(plan));
    let mut cells = Vec::new();
    for machine in machines(plan) {
        for (scenario, each) in CryptLoad::LOADS {
            let cpus = machine.machine.cpus().len();
            let load = CryptLoad::published(1).on(cpus, each);
            cells.extend(runs(plan, &machine, "wq", scenario, &load, &policies));
        }
    }
    cells
}

fn runs(
    plan: &Plan,
    machine: &NamedMachine,
    experiment: &str,
    scenario: &str,
    load: &CryptLoad,
    policies: &[Policy],
) -> Vec<Cell> {
    let mut cells = Vec::new();
    let costs = Arc::new(plan.costs.usual());
    for host in &plan.hosts {
        for policy in policies {
            for seed in 0..plan.seeds {
                let run = CryptRun {
                    machine: machine.clone(),
                    load: load.clone(),
                    policy: policy.clone(),
                    host: *host,
                    costs: Arc::clone(&costs),
                    warm_up_ns: WARM_UP_NS,
                    measured_ns: plan.measured_ns,
                    seed,
                };
                cells.push(run.cell(experiment, scenario));
            }
        }
    }
    cells
}

/// 512-byte requests, four or one at a time, from one issuer on CPU 3; a loop device in memory.
pub(super) fn latency(plan: &Plan) -> Vec<Cell> {
    let setting = |scope, strict, local| Policy::Kernel(KernelSettings::new(scope, strict, local));
    let mut policies = vec![
        setting(Scope::System, false, false),
        setting(Scope::Cache, false, false),
        setting(Scope::Cache, true, false),
        setting(Scope::Cpu, true, false),
        setting(Scope::System, false, true),
        setting(Scope::Cache, false, true),
    ];
    policies.extend(homing_policies(plan));
    policies.extend(with_features(plan));
    let mut cells = Vec::new();
    for machine in machines(plan) {
        let cpu = 3.min(machine.machine.cpus().len() - 1);
        for (scenario, depth) in [("LLOW", 4), ("SYNC", 1)] {
            let published = CryptLoad::published(1);
            // Both lengths follow from those of 32 KiB; no hash is verified here. The rest of a
            // request is guessed: a system call of fio's, a hop to the loop device's thread.
            let load = CryptLoad {
                depth,
                bytes: 512,
                fill_ns: 1_000,
                use_ns: 1_000,
                crypt_ns: published.crypt_ns * 512 / (32 << 10),
                cold_per_mille: 200,
                places: IssuerPlaces::Pinned(cpu),
                ssd: Ssd::in_memory(),
                ..published
            };
            cells.extend(runs(plan, &machine, "wq-latency", scenario, &load, &policies));
        }
    }
    cells
}
