//! One measurement: the command line of the child that does it.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::load::{Length, Setting};
use super::peers::Kind;
use super::workload::Workload;
use crate::cell::{Figures, answer, ask};
use crate::interrupt::Interrupt;

/// How long a child may take in addition to its measurement.
const SLACK: Duration = Duration::from_secs(60);

/// The longest time that an operation may take.
const SLOWEST: Duration = Duration::from_micros(100);

/// Makes the allocator give large blocks back to the kernel at once, as it does at first: the
/// former table of a hash table that has grown is not to count only because the allocator keeps it.
const ALLOCATOR: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072");

/// A measurement to be made in this process.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// The workload.
    #[arg(long)]
    pub(crate) workload: Workload,
    /// The peer.
    #[arg(long)]
    pub(crate) peer: Kind,
    /// How many threads.
    #[arg(long)]
    pub(crate) threads: usize,
    /// How long, in milliseconds.
    #[arg(long)]
    pub(crate) milliseconds: u64,
    /// How many operations of each thread, instead of a time.
    #[arg(long)]
    pub(crate) operations: Option<u64>,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The round, from 1.
    pub(crate) round: u32,
    /// The workload.
    pub(crate) workload: Workload,
    /// How many threads.
    pub(crate) threads: usize,
    /// The peer's name.
    pub(crate) peer: &'static str,
    /// The figures.
    pub(crate) figures: Figures,
}

/// The child's part.
pub(crate) fn run_cell(cell: &Cell) -> anyhow::Result<()> {
    let setting = Setting::new(cell.threads, cell.length());
    answer(cell.peer.measure(cell.workload, &setting)?)
}

impl Cell {
    const fn length(&self) -> Length {
        match self.operations {
            Some(count) => Length::Operations(count),
            None => Length::For(Duration::from_millis(self.milliseconds)),
        }
    }

    /// Lets a child measure it, whose output goes to a file in `folder`.
    pub(crate) fn measure(&self, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Figures> {
        let mut options = vec![
            ("--workload", self.workload.to_string()),
            ("--peer", self.peer.name().to_owned()),
            ("--threads", self.threads.to_string()),
            ("--milliseconds", self.milliseconds.to_string()),
        ];
        options.extend(self.operations.map(|count| ("--operations", count.to_string())));
        let environment = matches!(self.workload, Workload::Memory).then_some(ALLOCATOR);
        let limit = match self.length() {
            Length::For(duration) => SLACK + 4 * duration,
            Length::Operations(count) => SLACK + SLOWEST.mul_f64(count as f64),
        };
        let name = format!("{} on {}", self.workload, self.peer.name());
        ask(&name, "cache-cell", &options, environment.as_slice(), limit, folder, interrupt)
    }
}
