//! How a policy stands against others, at each machine, load and host.

use std::collections::BTreeMap;

use super::{Measure, Stat};

/// What the measures of a comparison are called.
pub const COMPARED: &str = "compare";

/// What counts as noise in addition to the spread of the seeds, in per cent.
pub const NOISE_PCT: f64 = 0.5;

/// homing compared with the best of the others on one machine, load and host.
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
    /// homing as it is by default against the best of the kernel's settings.
    pub fn of_default(measures: &[Measure]) -> Self {
        Self::new(measures, is_default, |name| !name.starts_with("homing"))
    }

    /// Compares `auto` with the best fixed scope of homing; empty if no other scope than the
    /// default one has been run.
    pub fn of_auto(measures: &[Measure]) -> Self {
        let auto = |name: &str| name.starts_with("homing auto");
        let fixed = |name: &str| name.starts_with("homing") && !auto(name) && !is_part(name);
        if measures.iter().all(|m| !fixed(&m.key.policy) || is_default(&m.key.policy)) {
            return Self::default();
        }
        Self::new(measures, auto, fixed)
    }

    /// homing with parts of its policy, each against homing with all of it.
    pub fn of_parts(measures: &[Measure]) -> BTreeMap<&str, Self> {
        let names = measures.iter().map(|measure| measure.key.policy.as_str());
        let parts = names.filter(|name| is_part(name));
        parts.map(|part| (part, Self::new(measures, |name| name == part, is_default))).collect()
    }

    /// All of these that there is anything to compare for, each with its title.
    pub fn all(measures: &[Measure]) -> Vec<(String, Self)> {
        let default = "homing against the best of the kernel's settings".to_owned();
        let auto = "homing auto against the best fixed scope of homing".to_owned();
        let parts = Self::of_parts(measures).into_iter();
        [(default, Self::of_default(measures)), (auto, Self::of_auto(measures))]
            .into_iter()
            .chain(parts.map(|(name, of)| (format!("{name} against all of its policy"), of)))
            .filter(|(_, of)| !of.places.is_empty())
            .collect()
    }

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
            if other.mean <= 0.0 {
                continue; // nothing was done there, by whatever setting: no part of that can be told
            }
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
        let all = Stat::of(&ahead);
        (all.count > 0).then_some((all.min, all.median, all.max))
    }

    /// How many places there are, and in how many it is behind by more than `pct` and the noise.
    pub fn behind(&self, scenario: &str, pct: f64) -> (usize, usize) {
        let places = self.places.iter().filter(|place| place.scenario == scenario);
        let behind = |place: &&Worst| place.ahead_pct < -pct.max(2.0 * place.noise_pct);
        (places.clone().count(), places.filter(behind).count())
    }
}

fn is_default(policy: &str) -> bool {
    let rest = policy.strip_prefix(&homing_sim::HomingSettings::default().to_string());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" stale"))
}

fn is_part(policy: &str) -> bool {
    policy.starts_with("homing") && policy.contains(" (")
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
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        let place = |ahead_pct| Worst {
            machine: String::new(),
            scenario: "LOW".to_owned(),
            host: String::new(),
            best: String::new(),
            ahead_pct,
            noise_pct: 0.0,
        };
        let comparison = Comparison { places: [-11.0, 1.0, 2.0, 13.0].map(place).into() };
        assert_eq!(comparison.spread("LOW"), Some((-11.0, 1.5, 13.0)));
        assert_eq!(comparison.spread("HIGH"), None);
    }
}
