//! homing's policy against the kernel's settings on many machines: where it is behind, and by how
//! much.

use std::collections::BTreeMap;

use homing_sim::{
    Cost, Costs, CryptLoad, HostModel, IssuerPlaces, KernelSettings, Policy, Rng, Source, Ssd,
};

use super::workqueue::{CryptRun, LOADS, disk_for, homing_policies, homing_scopes, jobs};
use super::{Cell, Measure, NamedMachine, Stat};

/// Machines with their costs and loads.
#[derive(Clone, Debug)]
pub struct MachineSet {
    machines: Vec<Variant>,
}

#[derive(Clone, Debug)]
struct Variant {
    machine: NamedMachine,
    costs: Costs,
    load: CryptLoad,
}

/// Each run is short: there are many.
const WARM_UP_NS: u64 = 200_000_000;

impl MachineSet {
    /// These machines, with the published load.
    pub fn named(machines: Vec<NamedMachine>) -> Self {
        let variant = |machine: NamedMachine| {
            let ssd = disk_for(machine.machine.cpus().len());
            let load = CryptLoad { ssd, ..CryptLoad::published(1) };
            Variant { machine, costs: Costs::default(), load }
        };
        Self { machines: machines.into_iter().map(variant).collect() }
    }

    /// So many machines that nobody has: shape, costs, disk, lengths and depth are drawn.
    pub fn random(count: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self { machines: (0..count).map(|number| Variant::random(number, &mut rng)).collect() }
    }

    /// The runs: each machine, load and host with the kernel's settings, homing, and `auto`; with
    /// each of homing's scopes too, if `scopes`.
    pub fn cells(
        &self,
        hosts: &[HostModel],
        seeds: u64,
        measured_ns: u64,
        scopes: bool,
    ) -> Vec<Cell> {
        let mut policies: Vec<Policy> = KernelSettings::PUBLISHED.map(Policy::Kernel).to_vec();
        policies.extend(homing_policies().into_iter().take(2)); // not the one that queues all
        if scopes {
            policies.extend(homing_scopes());
        }
        let mut cells = Vec::new();
        for variant in &self.machines {
            let cpus = variant.machine.machine.cpus().len();
            for (scenario, each) in LOADS {
                let load = CryptLoad { jobs: jobs(cpus, each), ..variant.load.clone() };
                for host in hosts {
                    for policy in &policies {
                        for seed in 0..seeds {
                            let run = CryptRun {
                                machine: variant.machine.clone(),
                                load: load.clone(),
                                policy: policy.clone(),
                                host: *host,
                                costs: variant.costs.clone(),
                                warm_up_ns: WARM_UP_NS,
                                measured_ns,
                                seed,
                            };
                            cells.push(run.cell("compare", scenario));
                        }
                    }
                }
            }
        }
        cells
    }
}

impl Variant {
    fn random(number: usize, rng: &mut Rng) -> Self {
        let one_of =
            |rng: &mut Rng, choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let nodes = one_of(rng, &[1, 1, 2]);
        let caches = one_of(rng, &[1, 2, 3, 4, 6, 8]);
        let cores = one_of(rng, &[2, 3, 4, 6, 8, 12]);
        let threads = one_of(rng, &[1, 2, 2]);
        // Large ones take long and tell nothing new.
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
        // Short items on many CPUs must not end at the disk.
        let mut ssd = Ssd::nvme();
        ssd.bytes_per_us *= 8;
        ssd.read_ns = rng.between(20_000, 120_000);
        let load = CryptLoad {
            depth: rng.between(16, 128) as usize,
            issuer_ns: crypt_ns / rng.between(2, 8),
            crypt_ns,
            places: if rng.below(2) == 0 { IssuerPlaces::Even } else { IssuerPlaces::Random },
            ssd,
            ..CryptLoad::published(1)
        };
        let name = format!("random {number} ({grid})");
        Self { machine: NamedMachine { name, machine }, costs, load }
    }
}

/// homing beside the best of the others, somewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Worst {
    /// The machine.
    pub machine: String,
    /// The load.
    pub scenario: String,
    /// The model of the host.
    pub host: String,
    /// The best of the others.
    pub best: String,
    /// By how many per cent the policy is ahead of it; negative: behind.
    pub ahead_pct: f64,
    /// The spread of both over the seeds, in per cent.
    pub noise_pct: f64,
}

/// How a policy stands against others everywhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Each place, the worst first.
    pub places: Vec<Worst>,
}

impl Comparison {
    /// `policy` against the best of `others` at each machine, load and host.
    pub fn new(
        measures: &[Measure],
        policy: impl Fn(&str) -> bool,
        others: impl Fn(&str) -> bool,
    ) -> Self {
        let place = |measure: &Measure| -> (String, String, String) {
            let key = &measure.key;
            (key.machine.clone(), key.scenario.clone(), key.host.clone())
        };
        let mut by_place: BTreeMap<_, Vec<&Measure>> = BTreeMap::new();
        for measure in measures {
            by_place.entry(place(measure)).or_default().push(measure);
        }
        let mut places = Vec::new();
        for ((machine, scenario, host), all) in by_place {
            let stat = |name: &str| {
                let same = all.iter().filter(|measure| measure.key.policy == name);
                let rates: Vec<f64> = same.filter_map(|m| m.values.get("rate").copied()).collect();
                Stat::of(&rates)
            };
            let mut names: Vec<&str> = all.iter().map(|m| m.key.policy.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            let best_of = |accept: &dyn Fn(&str) -> bool| {
                let stats =
                    names.iter().filter(|name| accept(name)).map(|name| (*name, stat(name)));
                stats.max_by(|one, other| one.1.mean.total_cmp(&other.1.mean))
            };
            let (Some((_, own)), Some((best, other))) = (best_of(&policy), best_of(&others)) else {
                continue;
            };
            let noise = own.sd.hypot(other.sd) / other.mean * 100.0;
            places.push(Worst {
                machine,
                scenario,
                host,
                best: best.to_owned(),
                ahead_pct: (own.mean / other.mean - 1.0) * 100.0,
                noise_pct: noise,
            });
        }
        places.sort_by(|one, other| one.ahead_pct.total_cmp(&other.ahead_pct));
        Self { places }
    }

    /// The least, the median and the most by which it is ahead under a load, in per cent.
    pub fn spread(&self, scenario: &str) -> Option<(f64, f64, f64)> {
        let ahead: Vec<f64> = self
            .places
            .iter()
            .filter(|place| place.scenario == scenario)
            .map(|place| place.ahead_pct)
            .collect();
        Some((*ahead.first()?, ahead[ahead.len() / 2], *ahead.last()?))
    }

    /// How many places there are, and in how many it is behind by more than `pct` and the noise.
    pub fn behind(&self, scenario: &str, pct: f64) -> (usize, usize) {
        let places = self.places.iter().filter(|place| place.scenario == scenario);
        let behind = |place: &&Worst| place.ahead_pct < -pct.max(2.0 * place.noise_pct);
        (places.clone().count(), places.filter(behind).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Key;

    #[test]
    fn the_best_of_the_others_counts_at_each_place() {
        let measure = |scenario: &str, policy: &str, seed, rate| Measure {
            key: Key {
                experiment: "compare".to_owned(),
                machine: "m".to_owned(),
                scenario: scenario.to_owned(),
                policy: policy.to_owned(),
                host: "cfs".to_owned(),
                seed,
            },
            values: [("rate".to_owned(), rate)].into(),
        };
        let measures = [
            measure("LOW", "CACHE", 0, 100.0),
            measure("LOW", "SYSTEM", 0, 110.0),
            measure("LOW", "homing", 0, 99.0),
            measure("HIGH", "CACHE", 0, 100.0),
            measure("HIGH", "homing", 0, 104.0),
            measure("HIGH", "homing", 1, 106.0),
        ];
        let own = |name: &str| name == "homing";
        let found = Comparison::new(&measures, own, |name| name != "homing");
        assert_eq!(found.places.len(), 2);
        assert_eq!(
            (found.places[0].best.as_str(), found.places[0].scenario.as_str()),
            ("SYSTEM", "LOW")
        );
        assert!((found.places[0].ahead_pct + 10.0).abs() < 1e-9);
        assert!((found.places[1].ahead_pct - 5.0).abs() < 1e-9);
        assert_eq!(found.behind("LOW", 0.5), (1, 1));
        assert_eq!(found.behind("HIGH", 0.5), (1, 0));
    }

    #[test]
    fn random_machines_are_the_same_for_the_same_seed() {
        let names = |seed| -> Vec<String> {
            let set = MachineSet::random(20, seed);
            set.machines.iter().map(|variant| variant.machine.name.clone()).collect()
        };
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
    }
}
