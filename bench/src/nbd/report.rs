//! The results of the rounds: medians with their ranges, ratios, and what to keep in mind.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measure::Cell;
use super::scenario::Scenario;
use super::server::Kind;
use crate::machine::Machine;
use crate::spread::{Spread, figure};
use crate::tool::Version;

/// From this share of one CPU on, in percent, the CPU time of idle servers is noted.
const IDLE_PERCENT_MAX: f64 = 1.0;

/// A figure that every cell has.
pub(crate) struct Metric {
    /// Its name in JSON.
    pub(crate) key: &'static str,
    /// Its name for people.
    pub(crate) title: &'static str,
    /// Whether ratios of it are of interest.
    pub(crate) compared: bool,
    of: fn(&Cell) -> f64,
}

/// All figures, in the order of the columns.
pub(crate) const METRICS: [Metric; 7] = [
    Metric::new("mib_per_s", "MiB/s", true, |cell| cell.mib_per_s),
    Metric::new("p99_ms", "p99 ms", true, |cell| cell.p99_ms),
    Metric::new("iops", "IOPS", false, |cell| cell.iops),
    Metric::new("server_cpu_s_per_gib", "server CPU s/GiB", true, |c| c.server_cpu_s_per_gib),
    Metric::new("client_cpu_s_per_gib", "client CPU s/GiB", false, |c| c.client_cpu_s_per_gib),
    Metric::new("peak_rss_mib", "peak RSS MiB", true, |cell| cell.peak_rss_mib),
    Metric::new("others_percent", "others %", false, |cell| cell.others_percent),
];

impl Metric {
    const fn new(
        key: &'static str,
        title: &'static str,
        compared: bool,
        of: fn(&Cell) -> f64,
    ) -> Self {
        Self { key, title, compared, of }
    }
}

/// How the run was set up.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    /// How often everything was measured.
    pub(crate) rounds: u32,
    /// How long each load lasted.
    pub(crate) seconds: u32,
    /// The size of every export in bytes.
    pub(crate) size: u64,
    /// Where the containers were.
    pub(crate) dir: String,
}

/// Figures of one server under one load, or of homing divided by that peer's.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The load.
    pub(crate) scenario: Scenario,
    /// The server, or the peer that homing is compared with.
    pub(crate) server: Kind,
    /// By [`Metric::key`].
    #[serde(flatten)]
    pub(crate) figures: BTreeMap<&'static str, Spread>,
}

/// Everything that a report has.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The machine.
    pub(crate) machine: Machine,
    /// The programs.
    pub(crate) tools: Vec<Version>,
    /// The setup.
    pub(crate) setup: Setup,
    /// What to keep in mind.
    pub(crate) notes: Vec<String>,
    /// Per load and server.
    pub(crate) medians: Vec<Row>,
    /// Per load and peer: homing's figure divided by the peer's of the same round.
    pub(crate) ratios: Vec<Row>,
    /// Every measurement.
    pub(crate) cells: Vec<Cell>,
}

impl Report {
    /// Sums up `cells`. `notes` are those that do not follow from the cells.
    pub(crate) fn new(
        machine: Machine,
        tools: Vec<Version>,
        setup: Setup,
        mut notes: Vec<String>,
        cells: Vec<Cell>,
    ) -> Self {
        notes.extend(remarks(&cells));
        Self {
            medians: medians(&cells),
            ratios: ratios(&cells),
            machine,
            tools,
            setup,
            notes,
            cells,
        }
    }
}

/// Loads and servers that were measured, in order.
fn measured(cells: &[Cell]) -> impl Iterator<Item = (Scenario, Kind, Vec<&Cell>)> {
    let pairs = Scenario::ALL.into_iter().flat_map(|load| Kind::ALL.map(|kind| (load, kind)));
    pairs.filter_map(|(load, kind)| {
        let of = cells.iter().filter(|cell| cell.scenario == load && cell.server == kind);
        let of: Vec<&Cell> = of.collect();
        (!of.is_empty()).then_some((load, kind, of))
    })
}

fn medians(cells: &[Cell]) -> Vec<Row> {
    let row = |(scenario, server, cells): (Scenario, Kind, Vec<&Cell>)| {
        let figures = METRICS.iter().filter_map(|metric| {
            Some((metric.key, Spread::of(cells.iter().map(|cell| (metric.of)(cell)))?))
        });
        Row { scenario, server, figures: figures.collect() }
    };
    measured(cells).map(row).collect()
}

fn ratios(cells: &[Cell]) -> Vec<Row> {
    let peers = measured(cells).filter(|(_, kind, _)| *kind != Kind::Homing);
    let row = |(scenario, server, theirs): (Scenario, Kind, Vec<&Cell>)| {
        let ours = |cell: &&Cell| (cell.server, cell.scenario) == (Kind::Homing, scenario);
        let figures = METRICS.iter().filter(|metric| metric.compared).filter_map(|metric| {
            let figure = |cell: &Cell| (cell.round, (metric.of)(cell));
            let ours = cells.iter().filter(ours).map(figure);
            let theirs = theirs.iter().map(|cell| figure(cell));
            Some((metric.key, Spread::of_ratios(ours, theirs)?))
        });
        Row { scenario, server, figures: figures.collect() }
    };
    peers.map(row).filter(|row| !row.figures.is_empty()).collect()
}

/// Doubts that the cells themselves raise.
fn remarks(cells: &[Cell]) -> Vec<String> {
    let mut remarks = Vec::new();
    let unverified = measured(cells).filter_map(|(load, kind, of)| {
        let count = of.iter().filter(|cell| !cell.verified).count();
        let rounds = of.len();
        (count > 0).then(|| format!("{} on {} ({count} of {rounds})", load.name(), kind.name()))
    });
    let unverified: Vec<String> = unverified.collect();
    if !unverified.is_empty() {
        remarks.push(format!(
            "in some rounds of these the time was over before anything was read back, which more \
             --seconds or less --size would change: {}",
            unverified.join(", ")
        ));
    }
    for kind in Kind::ALL {
        if cells.iter().any(|cell| cell.server == kind && !cell.peak_is_of_this_load) {
            remarks.push(format!(
                "{}: its peak RSS could not be reset, and includes its start and earlier loads",
                kind.name()
            ));
        }
    }
    let idle = cells.iter().map(|cell| cell.idle_servers_percent).fold(0.0, f64::max);
    if idle > IDLE_PERCENT_MAX {
        remarks.push(format!("idle servers took up to {} % of one CPU", figure(idle)));
    }
    remarks
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A cell that moved `mib_per_s`.
    pub(crate) fn cell(round: u32, scenario: Scenario, server: Kind, mib_per_s: f64) -> Cell {
        Cell {
            round,
            scenario,
            server,
            mib_per_s,
            p99_ms: 2.0,
            iops: mib_per_s * 32.0,
            server_cpu_s_per_gib: 0.5,
            client_cpu_s_per_gib: 0.25,
            peak_rss_mib: 20.0,
            peak_is_of_this_load: true,
            others_percent: 1.0,
            idle_servers_percent: 0.0,
            seconds: 4.0,
            bytes: 1 << 30,
            verified: true,
        }
    }

    #[test]
    fn medians_are_per_load_and_server_and_ratios_per_round() {
        let load = Scenario::RwHigh;
        let speeds = [(1, 10.0, 10.0), (2, 20.0, 5.0), (3, 30.0, 20.0)];
        let mut cells = Vec::new();
        for (round, ours, theirs) in speeds {
            // The order within a round changes nothing.
            cells.push(cell(round, load, Kind::Nbdkit, theirs));
            cells.push(cell(round, load, Kind::Homing, ours));
        }
        let rows = medians(&cells);
        assert_eq!(
            rows.iter().map(|row| row.server).collect::<Vec<_>>(),
            [Kind::Homing, Kind::Nbdkit]
        );
        assert_eq!(rows[0].figures["mib_per_s"], Spread { median: 20.0, min: 10.0, max: 30.0 });
        let ratios = ratios(&cells);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].figures["mib_per_s"], Spread { median: 1.5, min: 1.0, max: 4.0 });
        assert!(!ratios[0].figures.contains_key("others_percent"));
    }

    #[test]
    fn without_homing_there_is_nothing_to_compare() {
        let cells = [cell(1, Scenario::RwLow, Kind::Nbdkit, 1.0)];
        assert_eq!(medians(&cells).len(), 1);
        assert!(ratios(&cells).is_empty());
    }

    #[test]
    fn doubts_are_told() {
        let mut cells = [
            cell(1, Scenario::VerifyLow, Kind::Homing, 1.0),
            cell(2, Scenario::VerifyLow, Kind::Homing, 1.0),
        ];
        assert!(remarks(&cells).is_empty());
        cells[1].verified = false;
        cells[0].peak_is_of_this_load = false;
        cells[0].idle_servers_percent = 3.0;
        let remarks = remarks(&cells);
        assert_eq!(remarks.len(), 3);
        assert!(remarks[0].ends_with(": verify-low on homing (1 of 2)"), "{remarks:?}");
        assert!(remarks[2].contains("3.00 %"), "{remarks:?}");
    }
}
