//! The results of the rounds: medians with their ranges, and homing against the best of the others.

use std::collections::BTreeMap;

use homing::Features;
use serde::{Serialize, Serializer};

use super::cell::Outcome;
use super::peers::Peer;
use super::workload::{METRICS, Workload};
use crate::machine::Machine;
use crate::metric::{Better, Metric};
use crate::spread::{Spread, others, spreads};

/// How the run was set up.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Setup {
    /// How often everything was measured.
    pub(crate) rounds: u32,
    /// How long each measurement lasted.
    pub(crate) seconds: f64,
    /// How many workers each pool had.
    pub(crate) workers: usize,
    /// The calibration: steps of the items' work in a millisecond.
    pub(crate) steps_per_ms: u64,
    /// The parts of homing's policy that were on.
    #[serde(serialize_with = "as_text")]
    pub(crate) features: Features,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "it is serde that calls")]
fn as_text<S: Serializer>(features: &Features, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(features)
}

/// The figures of one peer under one workload.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The workload.
    pub(crate) workload: Workload,
    /// The peer.
    pub(crate) peer: Peer,
    /// By [`Metric::key`].
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<String, Spread>,
}

/// One figure of homing divided by that of the best other peer.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// The workload.
    pub(crate) workload: Workload,
    /// The [`Metric::key`].
    pub(crate) metric: &'static str,
    /// The peer with the best median of the others.
    pub(crate) best: Peer,
    /// homing's figure divided by that peer's of the same round.
    pub(crate) ratio: Spread,
}

/// One figure of a way of ours divided by that of another.
#[derive(Debug, Serialize)]
pub(crate) struct Within {
    /// The workload.
    pub(crate) workload: Workload,
    /// The [`Metric::key`].
    pub(crate) metric: &'static str,
    /// The way whose figure is divided.
    pub(crate) over: Peer,
    /// The way by whose figure it is divided.
    pub(crate) under: Peer,
    /// Round by round.
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
    /// By workload and peer.
    pub(crate) rows: Vec<Row>,
    /// By workload and figure.
    pub(crate) homing_to_best: Vec<Comparison>,
    /// By workload and figure, for the workloads that compare homing with itself.
    pub(crate) homing_to_itself: Vec<Within>,
    /// Every measurement.
    pub(crate) cells: Vec<Outcome>,
}

impl Report {
    /// Sums up `outcomes`. `notes` are those that do not follow from the outcomes.
    pub(crate) fn new(
        machine: Machine,
        setup: Setup,
        mut notes: Vec<String>,
        outcomes: Vec<Outcome>,
    ) -> Self {
        let rows = rows(&outcomes);
        notes.extend(others(outcomes.iter().map(|one| &one.figures)));
        let homing_to_best = compare(&rows, &outcomes);
        let homing_to_itself = compare_within(&outcomes);
        Self { machine, setup, notes, rows, homing_to_best, homing_to_itself, cells: outcomes }
    }

    /// The row of `peer` under `workload`.
    pub(crate) fn row(&self, workload: Workload, peer: Peer) -> Option<&Row> {
        self.rows.iter().find(|row| (row.workload, row.peer) == (workload, peer))
    }
}

fn rows(outcomes: &[Outcome]) -> Vec<Row> {
    let pairs = Workload::ALL.into_iter().flat_map(|load| Peer::ALL.map(|peer| (load, peer)));
    let row = |(workload, peer)| {
        let same = outcomes.iter().filter(|one| (one.workload, one.peer) == (workload, peer));
        let figures = spreads(same.map(|one| &one.figures));
        (!figures.is_empty()).then_some(Row { workload, peer, figures })
    };
    pairs.filter_map(row).collect()
}

fn compare(rows: &[Row], outcomes: &[Outcome]) -> Vec<Comparison> {
    let pairs = Workload::ALL.into_iter().flat_map(|load| METRICS.iter().map(move |m| (load, m)));
    pairs.filter_map(|(load, metric)| compare_one(load, metric, rows, outcomes)).collect()
}

fn compare_one(
    workload: Workload,
    metric: &'static Metric,
    rows: &[Row],
    outcomes: &[Outcome],
) -> Option<Comparison> {
    let median = |row: &Row| row.figures.get(metric.key).map(|spread| spread.median);
    let others = rows.iter().filter(|row| row.workload == workload && !row.peer.is_ours());
    let others = others.filter_map(|row| Some((row.peer, median(row)?)));
    let (best, _) = match metric.better {
        Better::More => others.max_by(|a, b| a.1.total_cmp(&b.1)),
        Better::Less => others.min_by(|a, b| a.1.total_cmp(&b.1)),
    }?;
    let ratio = ratio(outcomes, (workload, metric), Peer::ours(workload), best)?;
    Some(Comparison { workload, metric: metric.key, best, ratio })
}

fn compare_within(outcomes: &[Outcome]) -> Vec<Within> {
    let of_ours = Workload::ALL.into_iter().filter(|load| load.is_of_ours());
    let figures = of_ours.flat_map(|load| METRICS.iter().map(move |metric| (load, metric)));
    let within = |(workload, metric): (Workload, &'static Metric)| {
        Peer::pairs(workload).iter().filter_map(move |&(over, under)| {
            let ratio = ratio(outcomes, (workload, metric), over, under)?;
            Some(Within { workload, metric: metric.key, over, under, ratio })
        })
    };
    figures.flat_map(within).collect()
}

fn ratio(
    outcomes: &[Outcome],
    (workload, metric): (Workload, &Metric),
    over: Peer,
    under: Peer,
) -> Option<Spread> {
    let of = |peer| {
        outcomes
            .iter()
            .filter(move |one| (one.workload, one.peer) == (workload, peer))
            .filter_map(|one| Some((one.round, *one.figures.get(metric.key)?)))
    };
    Spread::of_ratios(of(over), of(under))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::exec::workload::Side;
    use crate::machine;

    /// Three rounds of homing and two others under one workload.
    pub(crate) fn report() -> Report {
        let mut outcomes = Vec::new();
        for (round, scale) in [(1, 1.0), (2, 2.0), (3, 1.5)] {
            for (peer, items) in
                [(Peer::CbDeque, 8000.0), (Peer::Homing, 4000.0), (Peer::Rayon, 2000.0)]
            {
                let figures = [
                    ("items_per_s", items * scale),
                    ("cpu_ns_per_item", 1e6 / items),
                    ("others_percent", 3.0),
                ];
                let figures = figures.map(|(key, value)| (key.to_owned(), value)).into();
                outcomes.push(Outcome { round, workload: Workload::Outside(50), peer, figures });
            }
        }
        let features = Features::ALL;
        let setup =
            Setup { rounds: 3, seconds: 0.5, workers: 8, steps_per_ms: 1_000_000, features };
        Report::new(machine::tests::some(), setup, vec!["something odd".to_owned()], outcomes)
    }

    #[test]
    fn rows_are_medians_and_homing_is_compared_with_the_best_round_by_round() {
        let report = report();
        assert_eq!(report.rows.len(), 3);
        let row = report.row(Workload::Outside(50), Peer::Homing).unwrap();
        let expected = Spread { median: 6000.0, min: 4000.0, max: 8000.0 };
        assert_eq!(row.figures["items_per_s"], expected);
        let ratios: Vec<_> =
            report.homing_to_best.iter().map(|one| (one.metric, one.best)).collect();
        assert_eq!(ratios, [("items_per_s", Peer::CbDeque), ("cpu_ns_per_item", Peer::CbDeque)]);
        assert_eq!(report.homing_to_best[0].ratio, Spread { median: 0.5, min: 0.5, max: 0.5 });
        assert!(report.notes[1].starts_with("3.00 %"), "{:?}", report.notes);
    }

    #[test]
    fn ways_of_ours_are_divided_by_each_other_round_by_round() {
        let workload = Workload::Issue(Side::Inside, 0);
        let outcome = |round, peer, cost| {
            let figures = [("cpu_ns_per_item".to_owned(), cost)].into();
            Outcome { round, workload, peer, figures }
        };
        let outcomes = [
            outcome(1, Peer::HomingHandle, 100.0),
            outcome(1, Peer::HomingWork, 110.0),
            outcome(2, Peer::HomingWork, 240.0),
            outcome(2, Peer::HomingHandle, 200.0),
            // The other way was not measured in this round.
            outcome(3, Peer::HomingWork, 900.0),
        ];
        let within = compare_within(&outcomes);
        assert_eq!(within.len(), 1, "there is nothing without a handle: {within:?}");
        assert_eq!((within[0].over, within[0].under), (Peer::HomingWork, Peer::HomingHandle));
        assert_eq!((within[0].ratio.min, within[0].ratio.max), (1.1, 1.2));
        assert!(compare(&rows(&outcomes), &outcomes).is_empty());
    }
}
