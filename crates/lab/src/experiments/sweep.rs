//! What the parts of a sweep have in common.

use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use homing_sim::{
    Build, Costs, CryptLoad, DmCrypt, Flags, GroupCommit, HomingSettings, HostModel,
    KernelSettings, MemoryModel, Pairs, Policy, Rules, SwQueue, Tenants, Trial,
};

use crate::cpu_model;

use super::{GivenCosts, MachineSet, NamedMachine, Plan, PolicyChoice, Settings};

/// What was asked for, and of which program: the first line of each part. Parts whose first lines
/// differ are not put together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    version: String,
    /// The result of a short run: it tells versions of the model apart.
    model: String,
    experiments: Vec<String>,
    /// Names and fingerprints.
    machines: Vec<String>,
    hosts: Vec<String>,
    seeds: u64,
    measured_ns: u64,
    features: Vec<String>,
    stale_ns: u64,
    costs: GivenCosts,
}

impl Sweep {
    /// The sweep of these experiments.
    pub fn new(experiments: &[String], plan: &Plan) -> Self {
        let mut machines: Vec<String> = plan.machine.iter().map(fingerprint_of).collect();
        if experiments.iter().any(|name| name == "items") {
            machines.extend(this_machine());
        }
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: model(),
            experiments: experiments.to_vec(),
            machines,
            hosts: plan.hosts.iter().copied().map(HostModel::name).map(str::to_owned).collect(),
            seeds: plan.seeds,
            measured_ns: plan.measured_ns,
            features: plan.features.iter().map(ToString::to_string).collect(),
            stale_ns: plan.stale_ns,
            costs: plan.costs.clone(),
        }
    }

    /// The sweep of a comparison on these machines.
    pub fn of_machines(set: &MachineSet, choice: &PolicyChoice, plan: &Plan) -> Self {
        Self { machines: set.fingerprints(), ..Self::new(&[choice.what()], plan) }
    }

    pub(super) fn settings(&self) -> Settings {
        Settings { measured_ns: self.measured_ns, costs: self.costs.clone() }
    }

    pub(super) fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and names")
    }
}

fn fingerprint_of(machine: &NamedMachine) -> String {
    format!("{}: {}", machine.name, fingerprint(&format!("{:?}", machine.machine)))
}

/// The machine on which the real measurements run: its topology and its kind of CPU. Machines of a
/// cluster may be alike.
fn this_machine() -> Option<String> {
    let here = NamedMachine::find("here").ok()?;
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kind = cpu_model(&cpus).unwrap_or_default();
    Some(format!("{} {kind}", fingerprint_of(&here)))
}

/// FNV-1a: it does not have to resist deliberate collisions.
pub(super) fn fingerprint(text: &str) -> String {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// A short run of each workload, each kind of crew, each host and each memory, on a small machine.
fn model() -> String {
    const WARM_UP_NS: u64 = 2_000_000;
    const MEASURED_NS: u64 = 20_000_000;
    const NOT_STOPPED: &str = "nobody stops it";
    let machine = homing_sim::Machine::from_grid_siblings_last("1x2x2x2").expect("it is a grid");
    let (costs, plain) = (Costs::default(), Rules::new(HostModel::Cfs, 8));
    let goes_on = AtomicBool::new(false);
    let trial = |rules| Trial { machine: &machine, costs: &costs, rules, seed: 1, stop: &goes_on };
    let homing = HomingSettings { hand_off: false, auto: true, ..HomingSettings::default() };
    let [system, ..] = KernelSettings::PUBLISHED;
    // The default policy is also in it by its name, since a merge looks for that name.
    let default = Policy::Homing(HomingSettings::default());
    let apart = homing_sim::Machine::from_grid_siblings_last("1x2x1x2").expect("it is a grid");
    let policies =
        [(Policy::Kernel(system), &machine), (Policy::Homing(homing), &machine), (default, &apart)];
    let reports = policies.map(|(policy, machine)| {
        let (name, load) = (policy.to_string(), CryptLoad::published(2));
        let run = DmCrypt { load, policy, warm_up_ns: WARM_UP_NS, measured_ns: MEASURED_NS };
        let on_hosts = HostModel::ALL.map(|host| {
            let rules = Rules::new(host, machine.cpus().len());
            let trial = Trial { machine, rules: &rules, ..trial(&plain) };
            run.run(&trial).expect(NOT_STOPPED)
        });
        (name, on_hosts)
    });
    let swqueue = Some(SwQueue::Sharded(2));
    let rules = Rules { swqueue, sis_node: true, ..plain.clone() };
    let build = Build { warm_up_ns: WARM_UP_NS, measured_ns: MEASURED_NS, ..Build::new(8) };
    let pairs = Pairs { warm_up_ns: WARM_UP_NS, measured_ns: MEASURED_NS, ..Pairs::new(8) };
    let wakequeue = [
        build.run(&trial(&rules)).expect(NOT_STOPPED),
        pairs.run(&trial(&rules)).expect(NOT_STOPPED),
    ];
    let commits = GroupCommit::published(1, false).run(MEASURED_NS, 1, &goes_on);
    let kernels = [Flags::Off, Flags::V8, Flags::V14].map(MemoryModel::Kernel).into_iter();
    let models = kernels.chain([MemoryModel::HitDensity, MemoryModel::HitDensityToldCosts]);
    let tenants: Vec<_> = models
        .map(|model| {
            let setup = Tenants { warm_up_ns: WARM_UP_NS, ..Tenants::published(model) };
            setup.run(MEASURED_NS, 1, &goes_on)
        })
        .collect();
    fingerprint(&format!("{reports:?}{wakequeue:?}{commits:?}{tenants:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_of_different_machines_and_settings_differ() {
        let plan = |grid: &str| Plan {
            machine: Some(NamedMachine {
                name: "mine".to_owned(),
                machine: homing_sim::Machine::from_grid(grid).unwrap().into(),
            }),
            hosts: vec![HostModel::Cfs],
            seeds: 1,
            measured_ns: 1_000_000,
            features: Vec::new(),
            stale_ns: 0,
            costs: GivenCosts::default(),
        };
        let of = |plan: &Plan| Sweep::new(&["wq".to_owned()], plan);
        assert_eq!(of(&plan("2x2x1")), of(&plan("2x2x1")), "the same model each time");
        let real = Sweep::new(&["items".to_owned()], &Plan { machine: None, ..plan("2x2x1") });
        assert_eq!(real.machines.len(), usize::from(NamedMachine::find("here").is_ok()));
        assert_ne!(of(&plan("2x2x1")), of(&plan("2x1x2")), "of the same name");
        assert_ne!(of(&plan("2x2x1")), of(&Plan { stale_ns: 1, ..plan("2x2x1") }));
        let costs = GivenCosts::of(&["wake_ns=1".parse().unwrap()]).unwrap();
        assert_ne!(of(&plan("2x2x1")), of(&Plan { costs, ..plan("2x2x1") }));
        let features = vec![homing_sim::Features::NONE];
        assert_ne!(of(&plan("2x2x1")), of(&Plan { features, ..plan("2x2x1") }));
        assert_ne!(
            MachineSet::random(2, 1).fingerprints(),
            MachineSet::random(2, 2).fingerprints()
        );
    }
}
