//! The results of the rounds: medians with their ranges, and each row against those that know less.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cell::Outcome;
use super::row::{Case, Row};
use crate::machine::Machine;
use crate::spread::{Spread, others, spreads};

/// The pairs of rows that are compared.
const PAIRS: [(Row, Row); 5] = [
    (Row::TwoGroups, Row::OneGroup),
    (Row::TwoGroupsMin, Row::OneGroup),
    (Row::OneGroup, Row::Lru),
    (Row::TwoGroups, Row::Lru),
    (Row::TwoGroupsMin, Row::Lru),
];

/// Compared with one LRU, the dirty tenant is to do this many times as much ...
const GAIN_MIN: f64 = 3.5;
/// ... and the reader at least this share.
const KEPT_MIN: f64 = 0.96;

/// How the run was set up.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    /// How often everything was measured.
    pub(crate) rounds: u32,
    /// How long each measurement lasted.
    pub(crate) seconds: f64,
    /// Bytes of the cache.
    pub(crate) memory: u64,
    /// Bytes of the reader's file.
    pub(crate) reader_set: u64,
    /// Bytes of the dirty tenant's.
    pub(crate) dirty_set: u64,
    /// Threads of the dirty tenant, and of the reader at depth 1.
    pub(crate) threads: usize,
    /// How many in a hundred of the dirty tenant's operations write.
    pub(crate) writes: u8,
    /// Where.
    pub(crate) dir: String,
}

/// The figures of one row under one load.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    /// The load.
    #[serde(flatten)]
    pub(crate) case: Case,
    /// How the memory was shared.
    pub(crate) row: Row,
    /// By name.
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<String, Spread>,
}

/// Operations a second of one row, divided by those of another in the same round.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// The load.
    #[serde(flatten)]
    pub(crate) case: Case,
    /// The row whose operations are divided.
    pub(crate) over: Row,
    /// The row by whose operations they are divided.
    pub(crate) under: Row,
    /// The dirty tenant's.
    pub(crate) dirty: Spread,
    /// The reader's.
    pub(crate) reader: Spread,
    /// Whether the aim is reached.
    pub(crate) reached: bool,
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
    /// By load and row.
    pub(crate) rows: Vec<Line>,
    /// By load and pair of rows.
    pub(crate) comparisons: Vec<Comparison>,
    /// Every measurement.
    pub(crate) cells: Vec<Outcome>,
}

impl Report {
    /// Sums up `outcomes`, in the order of `cases`.
    pub(crate) fn new(
        machine: Machine,
        setup: Setup,
        mut notes: Vec<String>,
        cases: &[Case],
        outcomes: Vec<Outcome>,
    ) -> Self {
        notes.extend(others(outcomes.iter().map(|one| &one.figures)));
        let lines = cases.iter().flat_map(|case| Row::ALL.map(|row| (*case, row)));
        let rows = lines.filter_map(|(case, row)| line(case, row, &outcomes)).collect();
        let pairs = cases.iter().flat_map(|case| PAIRS.map(|pair| (*case, pair)));
        let comparisons = pairs.filter_map(|(case, pair)| compare(case, pair, &outcomes)).collect();
        Self { machine, setup, notes, rows, comparisons, cells: outcomes }
    }

    /// The loads that were measured, in order.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = self.rows.iter().map(|line| line.case).collect();
        cases.dedup();
        cases
    }
}

fn line(case: Case, row: Row, outcomes: &[Outcome]) -> Option<Line> {
    let same = outcomes.iter().filter(|one| (one.case, one.row) == (case, row));
    let figures = spreads(same.map(|one| &one.figures));
    (!figures.is_empty()).then_some(Line { case, row, figures })
}

fn compare(case: Case, (over, under): (Row, Row), outcomes: &[Outcome]) -> Option<Comparison> {
    let figures_of = |row, key: &'static str| {
        let of_row = outcomes.iter().filter(move |one| (one.case, one.row) == (case, row));
        of_row.filter_map(move |one| Some((one.round, *one.figures.get(key)?)))
    };
    let ratio = |key| Spread::of_ratios(figures_of(over, key), figures_of(under, key));
    let (dirty, reader) = (ratio("dirty_ops_per_s")?, ratio("reader_ops_per_s")?);
    let reached = match under {
        Row::Lru => dirty.median >= GAIN_MIN && reader.median >= KEPT_MIN,
        // By more than rounds differ.
        _ => dirty.min > 1.0 && reader.min > 1.0,
    };
    Some(Comparison { case, over, under, dirty, reader, reached })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine;

    /// Three rounds under one load of two.
    pub(crate) fn report() -> Report {
        let cases = Case::all(&[0, 100], &[1]);
        let mut outcomes = Vec::new();
        for (round, scale) in [(1, 1.0), (2, 2.0), (3, 1.5)] {
            for (row, dirty, reader) in
                [(Row::Lru, 10.0, 100.0), (Row::OneGroup, 35.0, 95.0), (Row::TwoGroups, 36.0, 96.0)]
            {
                let figures = [
                    ("dirty_ops_per_s", dirty * scale),
                    ("reader_ops_per_s", reader * scale),
                    ("dirty_hit_percent", 70.0),
                    ("bound_dirty_hit_percent", 100.0),
                    ("bound_reader_hit_percent", 20.0),
                    ("others_percent", 3.0),
                ];
                let figures = figures.map(|(key, value)| (key.to_owned(), value)).into();
                outcomes.push(Outcome { round, case: cases[0], row, figures });
            }
        }
        let setup = Setup {
            rounds: 3,
            seconds: 1.0,
            memory: 256 << 20,
            reader_set: 512 << 20,
            dirty_set: 128 << 20,
            threads: 2,
            writes: 50,
            dir: "/somewhere".to_owned(),
        };
        Report::new(machine::tests::some(), setup, vec!["odd".to_owned()], &cases, outcomes)
    }

    #[test]
    fn rows_are_compared_round_by_round_with_what_was_aimed_at() {
        let report = report();
        assert_eq!(report.cases().len(), 1, "disks were not measured");
        let expected = Spread { median: 15.0, min: 10.0, max: 20.0 };
        assert_eq!(report.rows[0].figures["dirty_ops_per_s"], expected);
        let told: Vec<_> =
            report.comparisons.iter().map(|one| (one.over, one.under, one.reached)).collect();
        let (lru, one, two) = (Row::Lru, Row::OneGroup, Row::TwoGroups);
        // The second loses a twentieth of the reader's.
        assert_eq!(told, [(two, one, true), (one, lru, false), (two, lru, true)]);
        assert_eq!(report.comparisons[2].dirty.median.to_bits(), 3.6_f64.to_bits());
        let told = serde_json::to_value(&report).unwrap();
        assert_eq!(told["rows"][1]["row"], "one-group");
    }
}
