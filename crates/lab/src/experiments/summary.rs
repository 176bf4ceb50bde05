//! Figures of several seeds, compared with a baseline and with what was published.

use std::collections::BTreeMap;

use homing_sim::CryptLoad;

use super::{Experiment, Follows, GivenCosts, Key, Kind, Measure, PUBLISHED, Published, kind_of};

/// A change of more than this, in per cent, means that the baseline was nothing: it is not shown as
/// a change.
const CHANGE_MAX: f64 = 1e9;

/// A figure over several seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// The mean.
    pub mean: f64,
    /// The middle one; of an even number, the mean of the middle two.
    pub median: f64,
    /// The standard deviation of the runs.
    pub sd: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// Runs.
    pub count: usize,
}

impl Stat {
    /// The statistics of these figures.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        if count == 0 {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let sd = if count > 1 { (spread / (count - 1) as f64).sqrt() } else { 0.0 };
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        Self { mean, median, sd, min: sorted[0], max: sorted[count - 1], count }
    }
}

/// A figure that is shown next to the one that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// What it is.
    pub about: &'static str,
    /// Over the seeds.
    pub value: Stat,
    /// The published one.
    pub published: Option<f64>,
    /// How it relates to the published one.
    pub kind: Kind,
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The runs that it is of; the seed has no meaning.
    pub key: Key,
    /// The experiment's figure.
    pub value: Stat,
    /// The experiment's other figures, in its order, those that are known.
    pub beside: Vec<Beside>,
    /// The figure against the baseline's mean, in per cent.
    pub delta_pct: Option<f64>,
    /// The standard deviation of that change, in points: both the runs' and the baseline's.
    pub delta_sd: Option<f64>,
    /// The published figure, and its change against the published baseline.
    pub published: Option<f64>,
    /// See `published`.
    pub published_delta_pct: Option<f64>,
    /// How the figure relates to the published one.
    pub kind: Kind,
}

impl Row {
    /// One of the experiment's other figures.
    pub fn beside(&self, about: &str) -> Option<&Beside> {
        self.beside.iter().find(|beside| beside.about == about)
    }
}

/// The lines of an experiment, each where its first measure stands. Where costs are given, nothing
/// is fitted: the parameters were chosen for the usual ones.
pub fn rows(experiment: &Experiment, measures: &[Measure], costs: &GivenCosts) -> Vec<Row> {
    let kind_of = |key: &Key, metric: &str| match kind_of(key, metric) {
        Kind::Fitted if !costs.is_empty() && experiment.follows >= Follows::Machine => {
            Kind::Predicted
        }
        kind => kind,
    };
    let (metric, _) = experiment.metric;
    let mut keys: Vec<Key> = Vec::new();
    let mut runs: BTreeMap<Key, Vec<&Measure>> = BTreeMap::new();
    for measure in measures.iter().filter(|measure| measure.key.experiment == experiment.name) {
        let key = Key { seed: 0, ..measure.key.clone() };
        if !runs.contains_key(&key) {
            keys.push(key.clone());
        }
        runs.entry(key).or_default().push(measure);
    }
    let stat = |key: &Key, metric: &str| {
        let same = runs.get(key)?.iter();
        let values: Vec<f64> =
            same.filter_map(|measure| measure.values.get(metric).copied()).collect();
        (!values.is_empty()).then(|| Stat::of(&values))
    };
    let rows = keys.iter().filter_map(|key| {
        let value = stat(key, metric)?;
        let base = Key { policy: experiment.baseline.to_owned(), ..key.clone() };
        let change = |value: f64, base: f64| (value / base - 1.0) * 100.0;
        let against = stat(&base, metric);
        let delta_pct = against
            .map(|base| change(value.mean, base.mean))
            .filter(|change| change.abs() < CHANGE_MAX);
        // The relative deviations of a quotient add up as squares. Written this way, a mean of 0
        // does no harm.
        let spread =
            |base: Stat| value.sd.hypot(value.mean / base.mean * base.sd) / base.mean * 100.0;
        let published = Published::find(key, metric).map(|found| found.value);
        let published_base = Published::find(&base, metric).map(|found| found.value);
        let told = Published::find(key, "delta_pct").map(|found| found.value);
        let kind = kind_of(key, if told.is_some() { "delta_pct" } else { metric });
        let beside = experiment.beside.iter().filter_map(|&(name, about)| {
            let published = Published::find(key, name).map(|found| found.value);
            Some(Beside { about, value: stat(key, name)?, published, kind: kind_of(key, name) })
        });
        let beside = beside.collect();
        Some(Row {
            key: key.clone(),
            value,
            beside,
            delta_pct,
            delta_sd: delta_pct.and(against).map(spread),
            published,
            published_delta_pct: told.or_else(|| Some(change(published?, published_base?))),
            kind,
        })
    });
    rows.collect()
}

/// The lines of each machine and load, which make a table.
pub fn places(rows: &[Row]) -> Vec<(&str, &str, Vec<&Row>)> {
    let mut places: Vec<(&str, &str, Vec<&Row>)> = Vec::new();
    for row in rows {
        let (machine, scenario) = (row.key.machine.as_str(), row.key.scenario.as_str());
        let known = places.iter_mut().find(|place| (place.0, place.1) == (machine, scenario));
        match known {
            Some((_, _, rows)) => rows.push(row),
            None => places.push((machine, scenario, vec![row])),
        }
    }
    // As published, not by the alphabet. What is no such load stays where it is.
    let load = |scenario| CryptLoad::LOADS.iter().position(|(name, _)| *name == scenario);
    places.sort_by_key(|(machine, scenario, _)| (*machine, load(*scenario), number(scenario)));
    places
}

/// The number that a scenario begins with, as in `16 issuers`.
fn number(scenario: &str) -> u64 {
    let digits = scenario.find(|c: char| !c.is_ascii_digit()).unwrap_or(scenario.len());
    scenario[..digits].parse().unwrap_or(u64::MAX)
}

/// The hosts of a table, each once.
pub fn hosts<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    once(rows, |row| &row.key.host)
}

/// Whether any of these figures was published, so that a column for that says something.
pub fn is_published(rows: &[&Row]) -> bool {
    rows.iter().any(|row| row.published.or(row.published_delta_pct).is_some())
}

/// The policies of a table, each once: the baseline first, then the others as published, then those
/// that are not.
pub fn policies<'a>(rows: &[&'a Row], experiment: &Experiment) -> Vec<&'a str> {
    let published = |policy: &str| {
        let is_it = |of: &Published| of.experiment == experiment.name && of.policy == policy;
        PUBLISHED.iter().position(is_it).unwrap_or(usize::MAX)
    };
    let mut policies = once(rows, |row| &row.key.policy);
    policies.sort_by_key(|policy| (*policy != experiment.baseline, published(policy)));
    policies
}

fn once<'a>(rows: &[&'a Row], name: impl Fn(&'a Row) -> &'a String) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in rows.iter().map(|row| name(row)) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// The least and the greatest change of a policy over the hosts: if these differ, the prediction
/// lies between them. `None` if there is one host, or no change.
pub fn bracket(rows: &[&Row], policy: &str) -> Option<(f64, f64)> {
    let same = rows.iter().filter(|row| row.key.policy == policy);
    let changes: Vec<f64> = same.filter_map(|row| row.delta_pct).collect();
    let stat = Stat::of(&changes);
    (stat.count > 1).then_some((stat.min, stat.max))
}

/// How far these lines are off the published ones, as the root of the mean square: for an absolute
/// experiment by how many per cent the figures are, for others by how many points the changes
/// against the baseline are. `None` if nothing was published.
pub fn error<'a>(experiment: &Experiment, rows: impl Iterator<Item = &'a Row>) -> Option<f64> {
    let off: Vec<f64> = if experiment.is_absolute {
        rows.filter_map(|row| Some((row.value.mean / row.published? - 1.0) * 100.0)).collect()
    } else {
        let others = rows.filter(|row| row.key.policy != experiment.baseline);
        others.filter_map(|row| Some(row.delta_pct? - row.published_delta_pct?)).collect()
    };
    let square: f64 = off.iter().map(|off| off.powi(2)).sum();
    (!off.is_empty()).then(|| (square / off.len() as f64).sqrt())
}

impl Experiment {
    /// What [`error`] tells, and in which unit.
    pub fn error_name(&self) -> &'static str {
        if self.is_absolute { "rms error, %" } else { "rms error of changes, points" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_come_in_the_order_of_the_published_tables() {
        let row = |machine: &str, scenario: &str| {
            let wq = Experiment::find("wq").unwrap();
            let key = Key {
                experiment: wq.name.to_owned(),
                machine: machine.to_owned(),
                scenario: scenario.to_owned(),
                policy: "SYSTEM".to_owned(),
                host: "cfs".to_owned(),
                seed: 0,
            };
            let values = [("mib_s".to_owned(), 1.0)].into();
            rows(wq, &[Measure { key, values }], &GivenCosts::default()).remove(0)
        };
        let names = ["HIGH", "LOW", "MED"].map(|load| row("a", load)).into_iter();
        let all: Vec<Row> =
            names.chain(["SYNC", "LLOW", "HIGH"].map(|load| row("b", load))).collect();
        let order: Vec<_> = places(&all).iter().map(|place| (place.0, place.1)).collect();
        let (a, b) = (["HIGH", "MED", "LOW"], ["SYNC", "LLOW", "HIGH"]);
        let wanted: Vec<_> =
            a.map(|load| ("a", load)).into_iter().chain(b.map(|load| ("b", load))).collect();
        assert_eq!(order, wanted);
    }

    fn measure(policy: &str, seed: u64, mib_s: f64) -> Measure {
        let key = Key {
            experiment: "wq".to_owned(),
            machine: "ryzen-9-3900x".to_owned(),
            scenario: "HIGH".to_owned(),
            policy: policy.to_owned(),
            host: "cfs".to_owned(),
            seed,
        };
        let values = [("mib_s".to_owned(), mib_s), ("util_pct".to_owned(), mib_s / 2.0)];
        Measure { key, values: values.into() }
    }

    #[test]
    fn the_median_is_the_middle_or_between_the_middle_two() {
        let odd = Stat::of(&[9.0, 1.0, 4.0]);
        assert_eq!((odd.median, odd.min, odd.max), (4.0, 1.0, 9.0));
        let even = Stat::of(&[9.0, 1.0, 4.0, 5.0]);
        assert_eq!((even.median, even.count), (4.5, 4));
        let one = Stat::of(&[2.5]);
        assert_eq!((one.median, one.sd), (2.5, 0.0));
        assert_eq!(Stat::of(&[]), Stat::default());
    }

    #[test]
    fn hosts_that_differ_make_a_bracket() {
        let on = |host: &str, policy: &str, mib_s| {
            let mut measure = measure(policy, 0, mib_s);
            host.clone_into(&mut measure.key.host);
            measure
        };
        let measures = [
            on("cfs", "SYSTEM", 100.0),
            on("cfs", "CACHE", 90.0),
            on("confined", "SYSTEM", 200.0),
            on("confined", "CACHE", 206.0),
            on("cfs", "homing", 110.0),
        ];
        let rows = rows(Experiment::find("wq").unwrap(), &measures, &GivenCosts::default());
        let kinds: Vec<Kind> = rows.iter().map(|row| row.kind).collect();
        assert_eq!(kinds[..3], [Kind::Fitted, Kind::Predicted, Kind::Predicted], "on one host");
        let rows: Vec<&Row> = rows.iter().collect();
        let (low, high) = bracket(&rows, "CACHE").unwrap();
        assert!((low + 10.0).abs() < 1e-9 && (high - 3.0).abs() < 1e-9, "{low}..{high}");
        assert_eq!(bracket(&rows, "homing"), None, "it ran on one host only");
    }

    #[test]
    fn rows_stand_beside_the_published_ones() {
        let measures = [
            measure("SYSTEM", 0, 99.0),
            measure("SYSTEM", 1, 101.0),
            measure("CACHE", 0, 110.0),
            measure("homing", 0, 120.0),
        ];
        let rows = rows(Experiment::find("wq").unwrap(), &measures, &GivenCosts::default());
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].value.mean, rows[0].value.min, rows[0].value.count), (100.0, 99.0, 2));
        assert_eq!(rows[0].kind, Kind::Fitted);
        assert_eq!((rows[1].kind, rows[2].kind), (Kind::Predicted, Kind::New));
        assert!((rows[1].delta_pct.unwrap() - 10.0).abs() < 1e-9);
        let of_baseline = 2.0_f64.sqrt();
        assert!((rows[1].delta_sd.unwrap() - 1.1 * of_baseline).abs() < 1e-9, "it has one seed");
        assert!((rows[1].published_delta_pct.unwrap() - 0.604).abs() < 0.001);
        assert_eq!((rows[2].published, rows[2].published_delta_pct), (None, None));
        let use_of = |row: &Row| row.beside("CPU use, %").copied().unwrap();
        assert_eq!((use_of(&rows[0]).value.mean, use_of(&rows[0]).published), (50.0, Some(99.31)));
        assert_eq!((use_of(&rows[1]).kind, use_of(&rows[2]).published), (Kind::Predicted, None));
        let wq = Experiment::find("wq").unwrap();
        assert!((error(wq, rows.iter()).unwrap() - 9.396).abs() < 0.001);
        let figures = Experiment { is_absolute: true, ..*wq };
        let off = error(&figures, rows.iter()).unwrap();
        assert!((90.9..91.1).contains(&off), "of 1,160 MiB/s: {off}");
        assert_eq!(error(wq, rows[2..].iter()), None, "nothing was published");
    }
}
