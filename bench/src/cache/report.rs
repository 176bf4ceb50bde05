//! The results of the rounds: medians with their ranges, and homing against the best of the others.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cell::Outcome;
use super::peers::Kind;
use super::workload::{METRICS, Workload};
use crate::machine::Machine;
use crate::metric::{Better, Metric};
use crate::spread::{Spread, others, spreads};

/// The peer whose figures are divided by those of the best other.
const OURS: &str = "homing";

/// How the run was set up.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Setup {
    /// How often everything was measured.
    pub(crate) rounds: u32,
    /// How long each measurement lasted, where it was not a number of operations.
    pub(crate) seconds: Option<f64>,
    /// How many operations each thread did otherwise.
    pub(crate) operations: Option<u64>,
    /// How many keys there were.
    pub(crate) keys: u32,
}

/// A workload on so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    /// The workload.
    pub(crate) workload: Workload,
    /// How many threads.
    pub(crate) threads: usize,
}

/// The figures of one peer in one case.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The workload and the threads.
    #[serde(flatten)]
    pub(crate) case: Case,
    /// The peer.
    pub(crate) peer: &'static str,
    /// By [`Metric::key`].
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<String, Spread>,
}

/// One figure of homing divided by that of the best other peer.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// The workload and the threads.
    #[serde(flatten)]
    pub(crate) case: Case,
    /// The [`Metric::key`].
    pub(crate) metric: &'static str,
    /// The peer with the best median of the others.
    pub(crate) best: &'static str,
    /// homing's figure divided by that peer's of the same round.
    pub(crate) ratio: Spread,
}

/// Everything that a report has.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The machine.
    pub(crate) machine: Machine,
    /// The setup.
    pub(crate) setup: Setup,
    /// What to keep in mind.
    pub(crate) notes: Vec<String>,
    /// By case and peer.
    pub(crate) rows: Vec<Row>,
    /// By case and figure.
    pub(crate) homing_to_best: Vec<Comparison>,
    /// Every measurement.
    pub(crate) cells: Vec<Outcome>,
}

impl Report {
    /// Sums up `outcomes`, in the order of `cases` and `peers`. `notes` are those that do not
    /// follow from the outcomes.
    pub(crate) fn new(
        machine: Machine,
        setup: Setup,
        mut notes: Vec<String>,
        cases: &[Case],
        peers: &[&'static str],
        outcomes: Vec<Outcome>,
    ) -> Self {
        notes.extend(others(outcomes.iter().map(|one| &one.figures)));
        let pairs = cases.iter().flat_map(|case| peers.iter().map(|peer| (*case, *peer)));
        let rows: Vec<Row> = pairs.filter_map(|pair| row(pair, &outcomes)).collect();
        let figures = cases.iter().flat_map(|case| METRICS.iter().map(|metric| (*case, metric)));
        let homing_to_best =
            figures.filter_map(|(case, metric)| compare(case, metric, &rows, &outcomes)).collect();
        Self { machine, setup, notes, rows, homing_to_best, cells: outcomes }
    }

    /// The rows of `case`.
    pub(crate) fn rows(&self, case: Case) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.case == case)
    }

    /// The cases that were measured, in order.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = self.rows.iter().map(|row| row.case).collect();
        cases.dedup();
        cases
    }
}

fn of(outcome: &Outcome) -> (Case, &'static str) {
    let Outcome { workload, threads, .. } = *outcome;
    (Case { workload, threads }, outcome.peer)
}

fn row(pair: (Case, &'static str), outcomes: &[Outcome]) -> Option<Row> {
    let same = outcomes.iter().filter(|one| of(one) == pair);
    let figures = spreads(same.map(|one| &one.figures));
    (!figures.is_empty()).then_some(Row { case: pair.0, peer: pair.1, figures })
}

fn compare(
    case: Case,
    metric: &'static Metric,
    rows: &[Row],
    outcomes: &[Outcome],
) -> Option<Comparison> {
    let is_rival = |name: &str| {
        name != OURS && !Kind::all().any(|peer| peer.name() == name && peer.is_baseline())
    };
    let rivals = rows.iter().filter(|row| row.case == case && is_rival(row.peer));
    let rivals = rivals.filter_map(|row| Some((row.peer, row.figures.get(metric.key)?.median)));
    let (best, _) = match metric.better {
        Better::More => rivals.max_by(|a, b| a.1.total_cmp(&b.1)),
        Better::Less => rivals.min_by(|a, b| a.1.total_cmp(&b.1)),
    }?;
    let figures_of = |peer| {
        let outcomes = outcomes.iter().filter(move |one| of(one) == (case, peer));
        outcomes.filter_map(|one| Some((one.round, *one.figures.get(metric.key)?)))
    };
    let ratio = Spread::of_ratios(figures_of(OURS), figures_of(best))?;
    Some(Comparison { case, metric: metric.key, best, ratio })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine;

    /// Three rounds of homing, two others and a baseline.
    pub(crate) fn report() -> Report {
        let workload = "read-0.99-100k".parse().unwrap();
        let peers = ["nothing", "homing", "moka", "quick_cache"];
        let mut outcomes = Vec::new();
        for (round, scale) in [(1, 1.0), (2, 2.0), (3, 1.5)] {
            for (peer, cost) in peers.into_iter().zip([1.0, 15.0, 300.0, 30.0]) {
                let figures = [
                    ("cpu_ns_per_op", cost * scale),
                    ("hit_percent", 80.0),
                    ("others_percent", 3.0),
                ];
                let figures = figures.map(|(key, value)| (key.to_owned(), value)).into();
                outcomes.push(Outcome { round, workload, threads: 2, peer, figures });
            }
        }
        // The order within a round does not matter.
        outcomes.reverse();
        let setup = Setup { rounds: 3, seconds: Some(0.5), operations: None, keys: 1_000_000 };
        let cases = [1, 2].map(|threads| Case { workload, threads });
        let notes = vec!["something <odd>".to_owned()];
        Report::new(machine::tests::some(), setup, notes, &cases, &peers, outcomes)
    }

    #[test]
    fn rows_are_medians_in_the_order_of_the_peers() {
        let report = report();
        let names: Vec<_> = report.rows.iter().map(|row| row.peer).collect();
        assert_eq!(names, ["nothing", "homing", "moka", "quick_cache"]);
        let expected = Spread { median: 450.0, min: 300.0, max: 600.0 };
        assert_eq!(report.rows[2].figures["cpu_ns_per_op"], expected);
        assert_eq!(report.cases().len(), 1, "one thread was not measured");
        assert!(report.notes[1].starts_with("3.00 %"), "{:?}", report.notes);
    }

    #[test]
    fn homing_is_compared_with_the_best_cache_round_by_round() {
        let report = report();
        let found = report.homing_to_best.iter().find(|one| one.metric == "cpu_ns_per_op").unwrap();
        assert_eq!(found.best, "quick_cache");
        assert_eq!(found.ratio, Spread { median: 0.5, min: 0.5, max: 0.5 });
        let told = serde_json::to_value(&report).unwrap();
        assert_eq!(told["rows"][0]["workload"], "read-0.99-100k");
        assert_eq!(told["rows"][0]["threads"], 2);
    }
}
