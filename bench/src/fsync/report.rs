//! The results of the rounds: medians with their ranges, compared with the best peer, the bound,
//! and one thread that calls `fsync`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cell::{Key, Outcome};
use super::strategy::{Shape, Strategy};
use crate::machine::Machine;
use crate::spread::{Spread, others, spreads};

/// How the run was set up.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    /// How often everything was measured.
    pub(crate) rounds: u32,
    /// How many files a bulk had.
    pub(crate) files: usize,
    /// How many bulks came before each, and were not measured.
    pub(crate) warm: u32,
    /// How many bytes a file had.
    pub(crate) size: usize,
    /// How long a stream lasted.
    pub(crate) seconds: f64,
    /// Where.
    pub(crate) dir: String,
}

/// The figures of one strategy.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// Where, which load, who.
    #[serde(flatten)]
    pub(crate) key: Key,
    /// By name.
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<String, Spread>,
    /// The peer that it is compared with.
    pub(crate) best_peer: Option<String>,
    /// Files a second, divided by those of the best peer in the same round.
    pub(crate) to_best_peer: Option<Spread>,
    /// Likewise, by those of `syncfs`.
    pub(crate) to_syncfs: Option<Spread>,
    /// Likewise, by those of one thread.
    pub(crate) to_serial: Option<Spread>,
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
    /// By place, load and strategy.
    pub(crate) rows: Vec<Row>,
    /// Every measurement.
    pub(crate) cells: Vec<Outcome>,
}

const RATE: &str = "files_per_s";

impl Report {
    /// Sums up `outcomes`, in the order of `keys`.
    pub(crate) fn new(
        machine: Machine,
        setup: Setup,
        mut notes: Vec<String>,
        keys: &[Key],
        outcomes: Vec<Outcome>,
    ) -> Self {
        let others = others(outcomes.iter().map(|one| &one.figures));
        notes.extend(others.map(|note| note + ", the kernel's threads and a slow disk's included"));
        let rows = keys.iter().filter_map(|key| row(key, keys, &outcomes)).collect();
        Self { machine, setup, notes, rows, cells: outcomes }
    }

    /// The places and loads that were measured, in order.
    pub(crate) fn cases(&self) -> Vec<(&str, Shape)> {
        let mut cases: Vec<_> =
            self.rows.iter().map(|row| (row.key.place.as_str(), row.key.shape)).collect();
        cases.dedup();
        cases
    }
}

fn row(key: &Key, keys: &[Key], outcomes: &[Outcome]) -> Option<Row> {
    let same = outcomes.iter().filter(|one| one.key == *key);
    let figures = spreads(same.map(|one| &one.figures));
    if figures.is_empty() {
        return None;
    }
    let beside = |other: &Key| other.place == key.place && other.shape == key.shape;
    let median = |key: &Key| Spread::of(rates(key, outcomes).map(|(_, rate)| rate));
    let is_peer = |other: &&Key| {
        let as_many = key.shape == Shape::Bulk || other.issuers == key.issuers;
        let strategy = other.strategy;
        beside(other) && as_many && !strategy.is_ours() && !strategy.is_bound()
    };
    let peers = keys.iter().filter(is_peer).filter_map(|peer| Some((peer, median(peer)?.median)));
    let best = peers.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(peer, _)| peer);
    let of = |strategy, issuers| {
        let found =
            |other: &&Key| beside(other) && other.strategy == strategy && other.issuers == issuers;
        ratio(key, keys.iter().find(found)?, outcomes)
    };
    Some(Row {
        key: key.clone(),
        figures,
        best_peer: best.map(|peer| format!("{} {}", peer.strategy, peer.issuers)),
        to_best_peer: best.and_then(|peer| ratio(key, peer, outcomes)),
        to_syncfs: of(Strategy::Syncfs, 1),
        to_serial: of(Strategy::Fsync, 1),
    })
}

fn rates<'a>(key: &'a Key, outcomes: &'a [Outcome]) -> impl Iterator<Item = (u32, f64)> + 'a {
    let of_key = outcomes.iter().filter(move |one| one.key == *key);
    of_key.filter_map(|one| Some((one.round, *one.figures.get(RATE)?)))
}

fn ratio(over: &Key, under: &Key, outcomes: &[Outcome]) -> Option<Spread> {
    Spread::of_ratios(rates(over, outcomes), rates(under, outcomes))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine;

    /// Three rounds in one place.
    pub(crate) fn report() -> Report {
        let key = |strategy, issuers| Key {
            place: "xfs".to_owned(),
            shape: Shape::Bulk,
            strategy,
            issuers,
        };
        let rates = [
            (key(Strategy::Fsync, 1), 100.0),
            (key(Strategy::Fsync, 16), 500.0),
            (key(Strategy::LinuxAio, 64), 1000.0),
            (key(Strategy::Syncfs, 1), 4000.0),
            (key(Strategy::HomingMany, 1), 3000.0),
        ];
        let mut outcomes = Vec::new();
        for (round, scale) in [(1, 1.0), (2, 2.0), (3, 1.5)] {
            for (key, rate) in &rates {
                let figures = [(RATE, rate * scale), ("aggregation", 10.0)];
                let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
                outcomes.push(Outcome { round, key: key.clone(), figures });
            }
        }
        let setup = Setup {
            rounds: 3,
            files: 10_000,
            warm: 0,
            size: 4096,
            seconds: 1.0,
            dir: "/somewhere".to_owned(),
        };
        let mut keys: Vec<Key> = rates.into_iter().map(|(key, _)| key).collect();
        // This one was not measured.
        keys.push(key(Strategy::Homing, 1));
        Report::new(machine::tests::some(), setup, vec!["odd".to_owned()], &keys, outcomes)
    }

    #[test]
    fn each_is_beside_the_best_peer_the_bound_and_one_thread_of_the_same_round() {
        let report = report();
        assert_eq!(report.rows.len(), 5);
        let ours = &report.rows[4];
        assert_eq!(ours.figures[RATE], Spread { median: 4500.0, min: 3000.0, max: 6000.0 });
        assert_eq!(ours.best_peer.as_deref(), Some("linux-aio 64"));
        let ratio = |spread: Option<Spread>| spread.unwrap().median.to_bits();
        assert_eq!(ratio(ours.to_best_peer), 3.0_f64.to_bits());
        assert_eq!(ratio(ours.to_syncfs), 0.75_f64.to_bits());
        assert_eq!(ratio(ours.to_serial), 30.0_f64.to_bits());
        assert_eq!(report.cases(), [("xfs", Shape::Bulk)]);
        let told = serde_json::to_value(&report).unwrap();
        assert_eq!(told["rows"][4]["strategy"], "homing-many");
        assert_eq!(told["rows"][4]["files_per_s"]["median"], 4500.0);
    }
}
