//! What the rounds come to.

use serde::Serialize;

use super::run::Outcome;
use super::strategy::Strategy;
use crate::experiments::Stat;

/// A strategy with a number of issuers: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The way.
    pub strategy: Strategy,
    /// How many have a share of the files each.
    pub issuers: usize,
    /// Files opened, made durable and closed, a second.
    pub files_per_s: f64,
    /// The least of the rounds.
    pub files_per_s_min: f64,
    /// The most.
    pub files_per_s_max: f64,
    /// Microseconds from the moment when a file's sync is asked for until its issuer can know that
    /// it is durable: half of the files take no longer. What is asked for together ends together.
    pub p50_us: f64,
    /// As above: 99 of 100 take no longer.
    pub p99_us: f64,
    /// What the device was asked to write; `None` if the filesystem has no device of its own.
    pub device_writes: Option<f64>,
    /// How often it was asked to flush its cache; also `None` before Linux 5.5.
    pub device_flushes: Option<f64>,
    /// Files made durable by each of these flushes; `None` where there was none.
    pub aggregation: Option<f64>,
    /// CPU seconds of this process.
    pub cpu_s: f64,
    /// Files a second against those of serial with one issuer: the median of each round's ratio.
    /// `None` where that was not measured.
    #[serde(skip)]
    pub to_serial: Option<f64>,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The strategies in the order of [`Strategy::ALL`], each with its numbers of issuers as asked
    /// for.
    pub rows: Vec<Row>,
    /// How many rounds the rows are of. 0 if the run was stopped in the first: then there is a row
    /// for whatever had ended.
    pub rounds: usize,
    /// Whether all rounds that were asked for have ended.
    pub is_whole: bool,
}

impl Report {
    pub(super) fn new(cells: &[(Strategy, usize)], asked: usize, mut all: Vec<Outcome>) -> Self {
        let rounds = all.len() / cells.len();
        if rounds > 0 {
            // Outcomes of a round that has not ended are dropped: some rows would have a figure
            // more than others.
            all.retain(|outcome| outcome.round < rounds);
        }
        let rows = cells.iter().filter_map(|(strategy, issuers)| row(*strategy, *issuers, &all));
        Self { rows: rows.collect(), rounds, is_whole: rounds == asked }
    }
}

fn row(strategy: Strategy, issuers: usize, all: &[Outcome]) -> Option<Row> {
    let of = |strategy, issuers| {
        let same = move |found: &&Outcome| (found.strategy, found.issuers) == (strategy, issuers);
        all.iter().filter(same)
    };
    let stat = |figure: &dyn Fn(&Outcome) -> Option<f64>| {
        let figures: Vec<f64> = of(strategy, issuers).filter_map(figure).collect();
        (!figures.is_empty()).then(|| Stat::of(&figures))
    };
    let median =
        |figure: &dyn Fn(&Outcome) -> Option<f64>| stat(figure).map(|figures| figures.median);
    let rate = stat(&|found| Some(found.files_per_s))?;
    let to_serial = median(&|found| {
        let serial = of(Strategy::Serial, 1).find(|serial| serial.round == found.round)?;
        Some(found.files_per_s / serial.files_per_s)
    });
    Some(Row {
        strategy,
        issuers,
        files_per_s: rate.median,
        files_per_s_min: rate.min,
        files_per_s_max: rate.max,
        p50_us: median(&|found| Some(found.p50_us))?,
        p99_us: median(&|found| Some(found.p99_us))?,
        device_writes: median(&|found| Some(found.device?.writes as f64)),
        device_flushes: median(&|found| Some(found.device?.flushes? as f64)),
        aggregation: median(&|found| found.aggregation),
        cpu_s: median(&|found| Some(found.cpu_s))?,
        to_serial,
    })
}

#[cfg(test)]
mod tests {
    use super::super::device::Counts;
    use super::*;

    const CELLS: [(Strategy, usize); 2] = [(Strategy::Serial, 1), (Strategy::Homing, 4)];

    fn outcome(round: usize, cell: usize, files_per_s: f64, flushes: Option<u64>) -> Outcome {
        let (strategy, issuers) = CELLS[cell];
        let device = flushes.map(|flushes| Counts { writes: 7, flushes: Some(flushes) });
        Outcome {
            round,
            strategy,
            issuers,
            files_per_s,
            p50_us: files_per_s * 2.0,
            p99_us: files_per_s * 3.0,
            cpu_s: 0.5,
            device,
            aggregation: device.and_then(|did| did.aggregation(100)),
        }
    }

    fn rounds(count: usize) -> Vec<Outcome> {
        let serial = [10.0, 20.0, 30.0].into_iter().enumerate();
        let serial = serial.map(|(round, rate)| outcome(round, 0, rate, Some(100)));
        let homing = [200.0, 300.0, 50.0].into_iter().enumerate();
        let homing = homing.map(|(round, rate)| outcome(round, 1, rate, Some(10 + round as u64)));
        let mut all: Vec<_> = serial.chain(homing).collect();
        all.sort_by_key(|outcome| outcome.round);
        all.truncate(count);
        all
    }

    #[test]
    fn figures_are_medians_and_ratios_are_taken_round_by_round() {
        let report = Report::new(&CELLS, 3, rounds(6));
        assert_eq!((report.rounds, report.is_whole), (3, true));
        let [serial, homing] = &report.rows[..] else { panic!("{report:?}") };
        assert_eq!((serial.files_per_s, serial.to_serial), (20.0, Some(1.0)));
        // The ratio of the medians would be 10.
        assert_eq!((homing.files_per_s, homing.to_serial), (200.0, Some(15.0)));
        assert_eq!((homing.files_per_s_min, homing.files_per_s_max), (50.0, 300.0));
        assert_eq!((homing.p50_us, homing.p99_us, homing.cpu_s), (400.0, 600.0, 0.5));
        assert_eq!((homing.device_writes, homing.device_flushes), (Some(7.0), Some(11.0)));
        assert_eq!(homing.aggregation, Some(100.0 / 11.0));
    }

    #[test]
    fn a_round_that_has_not_ended_counts_only_where_none_has() {
        let report = Report::new(&CELLS, 3, rounds(5));
        assert_eq!((report.rounds, report.is_whole, report.rows.len()), (2, false, 2));
        let serial = &report.rows[0];
        assert_eq!((serial.files_per_s, serial.files_per_s_max), (15.0, 20.0));
        let report = Report::new(&CELLS, 3, rounds(1));
        assert_eq!((report.rounds, report.is_whole, report.rows.len()), (0, false, 1));
        assert!(Report::new(&CELLS, 3, Vec::new()).rows.is_empty());
    }

    #[test]
    fn what_is_not_known_is_null() {
        let report = Report::new(&CELLS, 1, vec![outcome(0, 1, 100.0, None)]);
        let told = serde_json::to_value(&report.rows[0]).unwrap();
        for key in ["device_writes", "device_flushes", "aggregation"] {
            assert!(told[key].is_null(), "{told}");
        }
        assert_eq!(report.rows[0].to_serial, None);
    }
}
