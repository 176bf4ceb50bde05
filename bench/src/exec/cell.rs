//! One measurement: the command line of the child that does it, and its answer, a line of JSON.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use homing::Features;
use serde::Serialize;

use super::load::Setting;
use super::peers::{self, Peer};
use super::workload::Workload;
use crate::cell::{Figures, answer, ask};
use crate::interrupt::Interrupt;

/// How long a child may take in addition to its measurement.
const SLACK: Duration = Duration::from_secs(60);

/// A measurement to be made in this process.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// The workload.
    #[arg(long)]
    pub(crate) workload: Workload,
    /// The peer.
    #[arg(long)]
    pub(crate) peer: Peer,
    /// How long, in milliseconds.
    #[arg(long)]
    pub(crate) milliseconds: u64,
    /// How many workers.
    #[arg(long)]
    pub(crate) workers: usize,
    /// What the parent's calibration came to.
    #[arg(long)]
    pub(crate) steps_per_ms: u64,
    /// The parts of homing's policy that are on.
    #[arg(long)]
    pub(crate) features: Features,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The round, from 1.
    pub(crate) round: u32,
    /// The workload.
    pub(crate) workload: Workload,
    /// The peer.
    pub(crate) peer: Peer,
    /// The figures.
    pub(crate) figures: Figures,
}

/// The child's part.
pub(crate) fn run_cell(cell: &Cell) -> anyhow::Result<()> {
    // Nothing else sets it.
    let _ = peers::homing::FEATURES.set(cell.features);
    let setting = Setting {
        duration: Duration::from_millis(cell.milliseconds),
        workers: cell.workers,
        steps_per_ms: cell.steps_per_ms,
    };
    answer(cell.peer.measure(cell.workload, &setting)?)?;
    // Workers and clients may still be busy, or held: the process does not wait for them.
    std::process::exit(0);
}

impl Cell {
    /// Lets a child measure it, whose output goes to a file in `folder`.
    pub(crate) fn measure(&self, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Figures> {
        let name = format!("{} on {}", self.workload.name(), self.peer.name());
        let options = [
            ("--workload", self.workload.name()),
            ("--peer", self.peer.name().to_owned()),
            ("--milliseconds", self.milliseconds.to_string()),
            ("--workers", self.workers.to_string()),
            ("--steps-per-ms", self.steps_per_ms.to_string()),
            ("--features", self.features.to_string()),
        ];
        let limit = SLACK + 4 * Duration::from_millis(self.milliseconds);
        ask(&name, "exec-cell", &options, &[], limit, folder, interrupt)
    }
}
