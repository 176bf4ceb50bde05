//! homing's policy and the kernel's settings on many machines.

use std::collections::BTreeMap;
use std::sync::Arc;

use homing_sim::{
    Cost, Costs, CryptLoad, HomingSettings, IssuerPlaces, KernelSettings, Machine, Policy, Rng,
    Source, Ssd,
};
use serde::Serialize;

use super::comparison::COMPARED;
use super::standing::STANDARD;
use super::sweep::fingerprint;
use super::workqueue::{CryptRun, every_scope, homing_policies, homing_scopes, with_features};
use super::{Cell, NamedMachine, Plan};

/// Machines with their costs and loads.
#[derive(Clone, Debug)]
pub struct MachineSet {
    machines: Vec<Variant>,
}

#[derive(Clone, Debug)]
struct Variant {
    machine: NamedMachine,
    costs: Arc<Costs>,
    load: CryptLoad,
}

/// Which policies take part in a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChoice {
    /// Each scope of homing, too.
    pub scopes: bool,
    /// If there are any, only policies of these names, and the one that all are compared with.
    pub only: Vec<String>,
}

impl PolicyChoice {
    /// The names that [`PolicyChoice::only`] may have.
    pub fn names(plan: &Plan) -> Vec<String> {
        let all = policies(plan).into_iter().chain(every_scope(plan).map(Policy::Homing));
        all.map(|policy| name_of(&policy)).collect()
    }

    fn on(&self, plan: &Plan, machine: &Machine) -> Vec<Policy> {
        let mut all = policies(plan);
        if !self.only.is_empty() {
            all.extend(every_scope(plan).map(Policy::Homing));
            all.retain(|policy| {
                let name = name_of(policy);
                name == STANDARD || self.only.contains(&name)
            });
        } else if self.scopes {
            all.extend(homing_scopes(plan, machine));
        }
        all
    }

    pub(super) fn what(&self) -> String {
        let scopes = if self.scopes { " --scopes" } else { "" };
        let mut only: Vec<_> = self.only.iter().map(|name| format!(" --policy {name:?}")).collect();
        only.sort();
        format!("{COMPARED}{scopes}{}", only.concat())
    }
}

/// A policy's name, without how old its views may be: that is asked for apart.
fn name_of(policy: &Policy) -> String {
    match policy {
        Policy::Homing(settings) => HomingSettings { stale_ns: 0, ..settings.clone() }.to_string(),
        Policy::Kernel(settings) => settings.to_string(),
    }
}

/// The kernel's settings, homing, and `auto`.
fn policies(plan: &Plan) -> Vec<Policy> {
    let mut policies: Vec<Policy> = KernelSettings::PUBLISHED.map(Policy::Kernel).to_vec();
    policies.extend(homing_policies(plan).into_iter().take(2)); // not the one that queues all
    policies.extend(with_features(plan));
    policies
}

/// Each run is short, since there are many.
const WARM_UP_NS: u64 = 200_000_000;

impl MachineSet {
    /// These machines, with the published load.
    pub fn named(machines: Vec<NamedMachine>) -> Self {
        let variant = |machine: NamedMachine| {
            let load = CryptLoad::published(1);
            Variant { machine, costs: Arc::default(), load }
        };
        Self { machines: machines.into_iter().map(variant).collect() }
    }

    /// Makes this many machines that nobody has: shape, costs, disk, lengths and depth are drawn.
    pub fn random(count: usize, seed: u64) -> Self {
        Self { machines: Variant::draw(seed).take(count).collect() }
    }

    /// Makes the one of the [`random`](Self::random) machines that has this number.
    pub fn random_one(number: usize, seed: u64) -> Self {
        Self { machines: Variant::draw(seed).skip(number).take(1).collect() }
    }

    /// Adds the machines of another set, except those whose names this set has: a machine that is
    /// in it twice would count as more seeds.
    pub fn append(&mut self, other: Self) {
        for new in other.machines {
            if self.machines.iter().all(|known| known.machine.name != new.machine.name) {
                self.machines.push(new);
            }
        }
    }

    /// The runs: each machine, load and host of the plan with the kernel's settings, homing, and
    /// `auto`, or those that are chosen. The plan's machine is not used. There may be very many
    /// runs, so those of a machine are made when they are asked for.
    pub fn cells<'a>(
        &'a self,
        plan: &'a Plan,
        choice: &'a PolicyChoice,
    ) -> impl Iterator<Item = Cell> + 'a {
        self.machines.iter().flat_map(move |variant| {
            variant.cells(plan, &choice.on(plan, &variant.machine.machine))
        })
    }
}

/// A machine of a comparison, and what it has to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Described {
    /// Its name.
    pub machine: String,
    /// What things cost that were drawn for it.
    pub drawn: BTreeMap<&'static str, u64>,
    /// How long an item runs, in microseconds.
    pub item_us: f64,
    /// How long an issuer works for each item, before and after it, in microseconds.
    pub issuer_us: f64,
    /// Items that each issuer has in flight.
    pub depth: usize,
    /// Where issuers begin: `even` or `random`.
    pub placement: &'static str,
    /// What a read of the disk takes, in microseconds.
    pub disk_read_us: f64,
}

impl MachineSet {
    /// The machines, with what was drawn for them.
    pub fn described(&self) -> Vec<Described> {
        let usual = Costs::default().all();
        let of = |variant: &Variant| {
            let Variant { machine, costs, load } = variant;
            let differ = costs.all().into_iter().zip(&usual).filter(|(own, usual)| own != *usual);
            Described {
                machine: machine.name.clone(),
                drawn: differ.map(|((name, cost), _)| (name, cost.value)).collect(),
                item_us: load.crypt_ns as f64 / 1e3,
                issuer_us: load.fill_ns as f64 / 1e3,
                depth: load.depth,
                placement: if load.places == IssuerPlaces::Random { "random" } else { "even" },
                disk_read_us: load.ssd.read_ns as f64 / 1e3,
            }
        };
        self.machines.iter().map(of).collect()
    }

    /// How many runs [`cells`](Self::cells) are.
    pub fn count(&self, plan: &Plan, choice: &PolicyChoice) -> usize {
        let policies = |of: &Variant| choice.on(plan, &of.machine.machine).len();
        let each = CryptLoad::LOADS.len() * plan.hosts.len() * plan.seeds as usize;
        self.machines.iter().map(policies).sum::<usize>() * each
    }

    /// The machines' names and fingerprints, which tell this set from others.
    pub(super) fn fingerprints(&self) -> Vec<String> {
        let of = |variant: &Variant| {
            format!("{}: {}", variant.machine.name, fingerprint(&format!("{variant:?}")))
        };
        self.machines.iter().map(of).collect()
    }
}

impl Variant {
    fn cells(&self, plan: &Plan, policies: &[Policy]) -> Vec<Cell> {
        let mut cells = Vec::new();
        let costs = Arc::new(plan.costs.over((*self.costs).clone()));
        let cpus = self.machine.machine.cpus().len();
        for (scenario, each) in CryptLoad::LOADS {
            let load = self.load.clone().on(cpus, each);
            for host in &plan.hosts {
                for policy in policies {
                    for seed in 0..plan.seeds {
                        let run = CryptRun {
                            machine: self.machine.clone(),
                            load: load.clone(),
                            policy: policy.clone(),
                            host: *host,
                            costs: Arc::clone(&costs),
                            warm_up_ns: WARM_UP_NS,
                            measured_ns: plan.measured_ns,
                            seed,
                        };
                        cells.push(run.cell(COMPARED, scenario));
                    }
                }
            }
        }
        cells
    }

    /// Draws machines one after the other.
    fn draw(seed: u64) -> impl Iterator<Item = Self> {
        let mut rng = Rng::new(seed);
        (0..).map(move |number| Self::random(number, seed, &mut rng))
    }

    fn random(number: usize, seed: u64, rng: &mut Rng) -> Self {
        let one_of =
            |rng: &mut Rng, choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let nodes = one_of(rng, &[1, 1, 2]);
        let caches = one_of(rng, &[1, 2, 3, 4, 6, 8]);
        let cores = one_of(rng, &[1, 2, 3, 4, 6, 8, 12]);
        let threads = one_of(rng, &[1, 2, 2]);
        // Large machines take long and show nothing new.
        let caches = caches.min((64 / (nodes * cores * threads)).max(1));
        let grid = format!("{nodes}x{caches}x{cores}x{threads}");
        let machine = homing_sim::Machine::from_grid_siblings_last(&grid).expect("it is a grid");
        let mut costs = Costs::default();
        let mut draw = |name: &str, low: u64, high: u64| {
            let cost = Cost { value: rng.between(low, high), source: Source::Guessed("drawn") };
            assert!(costs.set(name, cost), "{name} is a cost");
        };
        draw("smt_per_mille", 500, 800);
        draw("switch_ns", 500, 3_000);
        draw("wake_ns", 300, 3_000);
        draw("idle_exit_ns", 1_000, 20_000);
        draw("cold_node_ns", 1_000, 15_000);
        draw("cold_remote_ns", 2_000, 30_000);
        draw("queue_ns", 50, 600);
        draw("take_ns", 50, 600);
        let crypt_ns = rng.between(40_000, 400_000);
        let depth = rng.between(16, 128) as usize;
        let issuer_ns = crypt_ns / rng.between(2, 8);
        // Short items on many CPUs must not be limited by the disk.
        let mut ssd = Ssd::nvme();
        ssd.bytes_per_us *= 8;
        ssd.read_ns = rng.between(20_000, 120_000);
        let load = CryptLoad {
            depth,
            fill_ns: issuer_ns,
            use_ns: issuer_ns,
            crypt_ns,
            places: if rng.below(2) == 0 { IssuerPlaces::Even } else { IssuerPlaces::Random },
            ssd,
            ..CryptLoad::published(1)
        };
        // The first draw is the usual one, and is not named.
        let of_draw = if seed == 1 { String::new() } else { format!(" of draw {seed}") };
        let name = format!("random {number}{of_draw} ({grid})");
        let machine = NamedMachine { name, machine: Arc::new(machine) };
        Self { machine, costs: Arc::new(costs), load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{GivenCosts, HostModel};

    #[test]
    fn policies_are_chosen_by_name_in_any_order_whatever_their_views() {
        let machine = NamedMachine::find("1x2x2x1").unwrap();
        let plan = Plan {
            machine: None,
            hosts: vec![HostModel::Cfs],
            seeds: 1,
            measured_ns: 1,
            features: Vec::new(),
            stale_ns: 500,
            costs: GivenCosts::default(),
        };
        let chosen = |only: [&str; 2]| {
            assert!(only.iter().all(|name| PolicyChoice::names(&plan).iter().any(|of| of == name)));
            PolicyChoice { scopes: false, only: only.map(str::to_owned).into() }
        };
        let (one, other) = (chosen(["CACHE", "homing auto"]), chosen(["homing auto", "CACHE"]));
        let names: Vec<String> =
            one.on(&plan, &machine.machine).iter().map(ToString::to_string).collect();
        assert_eq!(names, [STANDARD, "CACHE", "homing auto stale 500 ns"]);
        assert_eq!(one.what(), other.what());
        let set = MachineSet::random(3, 1);
        for choice in [&one, &PolicyChoice { scopes: true, ..PolicyChoice::default() }] {
            assert_eq!(set.count(&plan, choice), set.cells(&plan, choice).count());
        }
    }

    #[test]
    fn random_machines_are_the_same_for_the_same_seed() {
        let names = |seed| -> Vec<String> {
            let set = MachineSet::random(20, seed);
            set.machines.iter().map(|variant| variant.machine.name.clone()).collect()
        };
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
        let mut some = MachineSet::random_one(7, 1);
        some.append(MachineSet::random_one(0, 1));
        some.append(MachineSet::random_one(7, 1)); // it counts once
        let drawn = MachineSet::random(20, 1).described();
        assert!(drawn.iter().all(|of| of.drawn.len() == 8 && of.depth >= 16), "{drawn:?}");
        let all = MachineSet::random(20, 1).fingerprints();
        assert_eq!(some.fingerprints(), [all[7].clone(), all[0].clone()]);
    }
}
