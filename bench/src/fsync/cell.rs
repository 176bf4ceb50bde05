//! One measurement: the command line of the child that does it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use homing_lab::fsync::{Device, Files, allow_open};
use serde::Serialize;

use super::engines::Engines;
use super::strategy::{Shape, Strategy};
use super::{bulk, lone, stream};
use crate::cell::{Figures, answer, ask};
use crate::interrupt::Interrupt;
use crate::latency::{forget, recorded};
use crate::stopwatch::Stopwatch;

/// How long a child may take in addition to its measurement.
const SLACK: Duration = Duration::from_secs(120);
/// The longest time that a file may take: a slow disk's flush, twice.
const SLOWEST: Duration = Duration::from_millis(50);

/// A measurement to be made in this process.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cell {
    /// The load.
    #[arg(long)]
    pub(crate) shape: Shape,
    /// The strategy.
    #[arg(long)]
    pub(crate) strategy: Strategy,
    /// How many issuers, or requests at a time.
    #[arg(long)]
    pub(crate) issuers: usize,
    /// Where.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// How many files a bulk has.
    #[arg(long)]
    pub(crate) files: usize,
    /// Bytes of a file.
    #[arg(long)]
    pub(crate) size: usize,
    /// How long a stream lasts, in milliseconds.
    #[arg(long)]
    pub(crate) milliseconds: u64,
    /// Before a bulk, make this many others, and remove them.
    #[arg(long, default_value_t = 0)]
    pub(crate) warm: u32,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The round, from 1.
    pub(crate) round: u32,
    /// The row it belongs to.
    #[serde(flatten)]
    pub(crate) key: Key,
    /// The figures.
    pub(crate) figures: Figures,
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Key {
    /// The filesystem's name in the results.
    pub(crate) place: String,
    /// The load.
    pub(crate) shape: Shape,
    /// The strategy.
    pub(crate) strategy: Strategy,
    /// How many issuers, or requests at a time.
    pub(crate) issuers: usize,
}

/// The child's part.
pub(crate) fn run_cell(cell: &Cell) -> anyhow::Result<()> {
    answer(cell.run()?)
}

impl Cell {
    fn run(&self) -> anyhow::Result<Figures> {
        let Self { strategy, issuers, .. } = *self;
        allow_open(self.files)?;
        let files = Files::new(&self.dir, self.size);
        let files = files.with_context(|| format!("cannot write in {}", self.dir.display()))?;
        let files = Arc::new(files);
        let mut engines = Engines::of(strategy, issuers)?;
        let length = Duration::from_millis(self.milliseconds);
        if self.shape == Shape::Lone {
            return lone::run(strategy, issuers, &mut engines, &files, self.files, length);
        }
        let bulk = if self.shape == Shape::Bulk { self.files } else { 0 };
        for _ in 0..self.warm {
            let paths = Arc::new(files.make_many("before", bulk)?);
            bulk::sync_all(strategy, issuers, &mut engines, &paths, || Ok(()))?;
            files.remove(&paths)?;
            forget();
        }
        let paths = Arc::new(files.make_many("bulk", bulk)?);
        let device = Device::below(&self.dir);
        let counts = || device.as_ref().and_then(Device::counts);
        let before = counts();
        let mut watch = Stopwatch::start()?;
        let done = if self.shape == Shape::Bulk {
            bulk::sync_all(strategy, issuers, &mut engines, &paths, || {
                watch = Stopwatch::start()?;
                Ok(())
            })?;
            paths.len()
        } else {
            stream::run(strategy, issuers, &mut engines, &files, length)?
        };
        let elapsed = watch.stop()?;
        let mut figures = Figures::from([
            ("files_per_s".to_owned(), done as f64 / elapsed.seconds),
            ("cpu_s".to_owned(), elapsed.cpu),
            ("others_percent".to_owned(), elapsed.others_percent),
        ]);
        if let (Some(before), Some(after)) = (before, counts()) {
            let did = after.since(before);
            let mut add = |key: &str, value: f64| figures.insert(key.to_owned(), value);
            add("device_writes", did.writes as f64);
            did.flushes.map(|flushes| add("device_flushes", flushes as f64));
            did.aggregation(done).map(|files| add("aggregation", files));
        }
        let recorded = recorded();
        if !recorded.is_empty() {
            for (key, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
                let micros = recorded.value_at_quantile(quantile) as f64 / 1e3;
                figures.insert(key.to_owned(), micros);
            }
        }
        Ok(figures)
    }

    /// Lets a child measure it, whose output goes to a file in `folder`.
    pub(crate) fn measure(&self, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Figures> {
        let options = [
            ("--shape", self.shape.name().to_owned()),
            ("--strategy", self.strategy.name().to_owned()),
            ("--issuers", self.issuers.to_string()),
            ("--dir", self.dir.display().to_string()),
            ("--files", self.files.to_string()),
            ("--size", self.size.to_string()),
            ("--milliseconds", self.milliseconds.to_string()),
            ("--warm", self.warm.to_string()),
        ];
        let limit = SLACK + SLOWEST.mul_f64(self.files as f64) * (1 + self.warm);
        let name = format!("{} by {} in {}", self.shape.name(), self.strategy, self.dir.display());
        ask(&name, "fsync-cell", &options, &[], limit, folder, interrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_makes_its_files_durable() {
        let place = tempfile::tempdir().unwrap();
        for strategy in Strategy::ALL {
            for shape in Shape::ALL {
                for issuers in strategy.issuers(shape, &[1, 4]) {
                    let dir = place.path().to_owned();
                    let cell = Cell {
                        shape,
                        strategy,
                        issuers,
                        dir,
                        files: 50,
                        size: 100,
                        // Long enough for its threads to get a CPU where others keep the machine
                        // busy.
                        milliseconds: 50,
                        warm: u32::from(shape == Shape::Bulk),
                    };
                    let figures = match cell.run() {
                        Ok(figures) => figures,
                        Err(error) if strategy.is_the_kernels() => {
                            eprintln!("skipped: {error:#}");
                            continue;
                        }
                        Err(error) => panic!("{strategy}: {error:#}"),
                    };
                    let key = if shape == Shape::Lone { "quiet_p50_us" } else { "files_per_s" };
                    assert!(figures[key] > 0.0, "{strategy} {shape:?}: {figures:?}");
                }
            }
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
