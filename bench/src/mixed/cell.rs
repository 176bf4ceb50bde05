//! One measurement: the command line of the child that does it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::load::measure;
use super::row::{Case, Row};
use crate::cell::{Figures, answer, ask};
use crate::interrupt::Interrupt;

/// How long a child may take in addition to its measurement.
const SLACK: Duration = Duration::from_secs(120);

/// A measurement to be made in this process.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cell {
    /// How the memory is shared.
    #[arg(long)]
    pub(crate) row: Row,
    /// Where the tenants' files are.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Bytes of the cache.
    #[arg(long)]
    pub(crate) memory: usize,
    /// Threads of the dirty tenant.
    #[arg(long)]
    pub(crate) threads: usize,
    /// Threads of the reader for each of these.
    #[arg(long)]
    pub(crate) depth: usize,
    /// What a request of a disk takes on top.
    #[arg(long)]
    pub(crate) disk_us: u64,
    /// How many in a hundred of the dirty tenant's operations write.
    #[arg(long)]
    pub(crate) writes: u8,
    /// How long, in milliseconds.
    #[arg(long)]
    pub(crate) milliseconds: u64,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The round, from 1.
    pub(crate) round: u32,
    /// The load.
    #[serde(flatten)]
    pub(crate) case: Case,
    /// How the memory was shared.
    pub(crate) row: Row,
    /// The figures.
    pub(crate) figures: Figures,
}

/// The child's part.
pub(crate) fn run_cell(cell: &Cell) -> anyhow::Result<()> {
    answer(measure(cell)?)
}

impl Cell {
    /// Lets a child measure it, whose output goes to a file in `folder`.
    pub(crate) fn measure(&self, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Figures> {
        let options = [
            ("--row", self.row.name().to_owned()),
            ("--dir", self.dir.display().to_string()),
            ("--memory", self.memory.to_string()),
            ("--threads", self.threads.to_string()),
            ("--depth", self.depth.to_string()),
            ("--disk-us", self.disk_us.to_string()),
            ("--writes", self.writes.to_string()),
            ("--milliseconds", self.milliseconds.to_string()),
        ];
        let limit = SLACK + 20 * Duration::from_millis(self.milliseconds);
        let case = Case { disk_us: self.disk_us, depth: self.depth };
        ask(&format!("{}, {case}", self.row), "mixed-cell", &options, &[], limit, folder, interrupt)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::make_files;
    use super::*;

    #[test]
    fn each_row_serves_both_tenants_and_keeps_its_promise() {
        let memory = 8 << 20;
        let dir = make_files(&std::env::temp_dir(), 16 << 20, 4 << 20).unwrap();
        for row in Row::ALL {
            for (disk_us, depth) in [(0, 1), (20, 32)] {
                let mut cell = Cell {
                    row,
                    dir: dir.path().to_owned(),
                    memory,
                    threads: 2,
                    depth,
                    disk_us,
                    writes: 50,
                    milliseconds: 100,
                };
                // On a busy machine a thread may get nothing done in so short a time, or no more
                // than read its pages for the first time.
                let pages = 1024.0;
                let says_enough = |figures: &Figures, milliseconds: u64| {
                    let done = figures["dirty_ops_per_s"] * milliseconds as f64 / 1e3;
                    row != Row::TwoGroupsMin || done > 20.0 * pages
                };
                let figures = loop {
                    let is_last = cell.milliseconds >= 5_000;
                    match measure(&cell) {
                        Ok(figures) if is_last || says_enough(&figures, cell.milliseconds) => {
                            break figures;
                        }
                        Ok(_) => println!("too little was done"),
                        Err(error) if !is_last => println!("{error}"),
                        Err(error) => panic!("{error}"),
                    }
                    cell.milliseconds *= 4;
                };
                let figure = |key: &str| figures[key];
                for tenant in ["reader", "dirty"] {
                    let of = |key: &str| figure(&format!("{tenant}_{key}"));
                    assert!(of("ops_per_s") > 0.0 && of("cpu_us") > 0.0, "{row}: {figures:?}");
                    assert!((0.0..=100.0).contains(&of("hit_percent")), "{row}: {figures:?}");
                    assert!(of("p50_us") > 0.0 && of("p50_us") <= of("p99_us"), "{figures:?}");
                }
                // There is room for less than half of what the reader reads, and for less than a
                // quarter if all of the dirty tenant's pages are there.
                // (A few reads say little of what hits, and a busy machine has time for no more.)
                let many = figure("reader_ops_per_s") * cell.milliseconds as f64 > 1_000_000.0;
                assert!(!many || figure("reader_hit_percent") < 60.0, "{row}: {figures:?}");
                let kept = row != Row::TwoGroupsMin || figure("dirty_hit_percent") > 90.0;
                assert!(kept, "it has what it was promised: {figures:?}");
                assert!(figure("bound_reader_hit_percent") < 25.0, "{row}: {figures:?}");
                assert_eq!(figure("bound_dirty_hit_percent").to_bits(), 100_f64.to_bits());
                assert_eq!(disk_us > 0, figure("disk_us") >= 20.0, "{row}: {figures:?}");
            }
        }
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 2, "the files are there for the next one");
    }
}
