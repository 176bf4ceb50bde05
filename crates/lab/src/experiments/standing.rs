//! How each policy does against one of them, over all machines and hosts.

use std::collections::{BTreeMap, BTreeSet};

use homing_sim::CryptLoad;

use super::{Measure, NOISE_PCT, Stat};

/// What all others are compared with.
pub const STANDARD: &str = "SYSTEM";

/// What a policy did on one machine, under one load and host.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The machine.
    pub machine: String,
    /// The load.
    pub scenario: String,
    /// The model of the host.
    pub host: String,
    /// The policy.
    pub policy: String,
    /// Items a second, over the seeds.
    pub rate: Stat,
    /// How many per cent more that is than [`STANDARD`] did there, if that did anything.
    pub ahead_pct: Option<f64>,
    /// Whether none did more than [`NOISE_PCT`] per cent more.
    pub first: bool,
}

/// A policy under a load, over all machines and hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The load.
    pub scenario: String,
    /// The policy.
    pub policy: String,
    /// How many per cent it is ahead of [`STANDARD`], over the places.
    pub ahead_pct: Stat,
    /// In how many places it is first.
    pub first: usize,
}

/// What each policy did in each place, in the order of the places.
pub fn figures(measures: &[Measure]) -> Vec<Figure> {
    let mut places: BTreeMap<_, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for Measure { key, values } in measures {
        let Some(rate) = values.get("rate") else { continue };
        let place = places.entry((&key.machine, &key.scenario, &key.host)).or_default();
        place.entry(&key.policy).or_default().push(*rate);
    }
    let mut all = Vec::new();
    for ((machine, scenario, host), rates) in places {
        let rates: BTreeMap<_, _> =
            rates.into_iter().map(|(name, of)| (name, Stat::of(&of))).collect();
        let most = rates.values().map(|rate| rate.mean).fold(0.0, f64::max);
        let standard = rates.get(STANDARD).map(|rate| rate.mean).filter(|mean| *mean > 0.0);
        all.extend(rates.iter().map(|(policy, rate)| Figure {
            machine: machine.clone(),
            scenario: scenario.clone(),
            host: host.clone(),
            policy: (*policy).to_owned(),
            rate: *rate,
            ahead_pct: standard.map(|standard| (rate.mean / standard - 1.0) * 100.0),
            first: rate.mean >= most * (1.0 - NOISE_PCT / 100.0),
        }));
    }
    all
}

/// Each policy under each load, the one that is furthest ahead in the mean first.
pub fn standings(figures: &[Figure]) -> Vec<Standing> {
    let loads: BTreeSet<_> = figures.iter().map(|of| (&of.scenario, &of.policy)).collect();
    let mut all: Vec<_> = loads
        .into_iter()
        .map(|(scenario, policy)| {
            let of =
                || figures.iter().filter(|of| of.scenario == *scenario && of.policy == *policy);
            let ahead: Vec<f64> = of().filter_map(|of| of.ahead_pct).collect();
            Standing {
                scenario: scenario.clone(),
                policy: policy.clone(),
                ahead_pct: Stat::of(&ahead),
                first: of().filter(|of| of.first).count(),
            }
        })
        .collect();
    all.sort_by(|one, other| {
        let load =
            |of: &Standing| CryptLoad::LOADS.iter().position(|(load, _)| *load == of.scenario);
        let by_mean = other.ahead_pct.mean.total_cmp(&one.ahead_pct.mean);
        load(one).cmp(&load(other)).then(by_mean)
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Key;

    #[test]
    fn each_policy_is_compared_with_the_standard_in_each_place() {
        let measure = |machine: &str, policy: &str, seed, rate| Measure {
            key: Key {
                experiment: "compare".to_owned(),
                machine: machine.to_owned(),
                scenario: "LOW".to_owned(),
                policy: policy.to_owned(),
                host: "cfs".to_owned(),
                seed,
            },
            values: [("rate".to_owned(), rate)].into(),
        };
        let measures = [
            measure("a", STANDARD, 0, 90.0),
            measure("a", STANDARD, 1, 110.0),
            measure("a", "CACHE", 0, 120.0),
            measure("b", STANDARD, 0, 200.0),
            measure("b", "CACHE", 0, 199.5),
            measure("c", "CACHE", 0, 1.0),
        ];
        let all = figures(&measures);
        let told: Vec<_> =
            all.iter().map(|of| (of.machine.as_str(), of.policy.as_str(), of.first)).collect();
        let (cache, standard) = ("CACHE", STANDARD);
        let expected = [
            ("a", cache, true),
            ("a", standard, false),
            ("b", cache, true),
            ("b", standard, true),
            ("c", cache, true),
        ];
        assert_eq!(told, expected);
        assert_eq!(all[4].ahead_pct, None);
        let [best, other] = &standings(&all)[..] else { panic!("two policies, one load") };
        assert_eq!((best.policy.as_str(), best.first, best.ahead_pct.count), (cache, 3, 2));
        assert!((best.ahead_pct.mean - 9.875).abs() < 1e-9, "{best:?}");
        assert_eq!((other.policy.as_str(), other.first), (standard, 1));
    }
}
