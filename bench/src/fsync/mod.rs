//! `homing-bench fsync`: ways to make many files durable, side by side.
//!
//! Each cell, a load with a strategy in a place, is measured in a fresh child process of this
//! program. Rounds go over all cells, the strategies one after the other, in another order each
//! round, so that disturbances of the machine reach all of them.
//!
//! The files and the device's counters are those of `homing lab run fsync`, in `homing_lab::fsync`.
//!
//! Read on in this order: `strategy`, `place`, `queue`, `engines`, `bulk`, `stream`, `lone`,
//! `cell`, `report`, `table`.

mod bulk;
mod cell;
mod engines;
mod fs_mark;
mod help;
mod lone;
mod place;
mod queue;
mod report;
mod strategy;
mod stream;
mod table;

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use homing_faultdisk::Filesystem;

use self::cell::{Key, Outcome};
use self::place::Place;
use self::report::{Report, Setup};
use self::strategy::{Shape, Strategy};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::page::Form;
use crate::rounds::Rounds;

pub(crate) use self::cell::{Cell, run_cell};
pub(crate) use self::help::HELP;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A folder on the filesystem to measure; filesystems that are made stand in files there.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// How many files a bulk has; a fifth on disks with --flush-delay.
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Bytes of a file.
    #[arg(long, value_name = "BYTES", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    size: u32,
    /// Threads, tasks, or requests at a time, each from 1 to 4096.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    issuers: Vec<usize>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Before each bulk, make and sync so many others that are not measured: the first one of a
    /// process also pays for its memory, its threads, and the kernel's.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    warm: u32,
    /// How long a stream lasts.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only these loads.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    shapes: Vec<Shape>,
    /// Only these strategies.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    strategies: Vec<Strategy>,
    /// Also on these filesystems, on loop devices: xfs, ext4, btrfs. Takes root.
    #[arg(long = "loop", value_name = "LIST", value_delimiter = ',', value_parser = filesystem)]
    loops: Vec<Filesystem>,
    /// Also with these on disks whose flush takes so many milliseconds.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "loops")]
    flush_delay: Vec<f64>,
    /// Also run `fs_mark` in each place, before and after (Debian has it in fsmark).
    #[arg(long)]
    fs_mark: bool,
    /// Do not measure in the folder itself.
    #[arg(long, requires = "loops")]
    only_loops: bool,
    /// Tell it in JSON.
    #[arg(long)]
    json: bool,
    /// Also write it as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

fn filesystem(name: &str) -> Result<Filesystem, String> {
    let found = Filesystem::ALL.into_iter().find(|filesystem| filesystem.name() == name);
    let known = || Filesystem::ALL.map(Filesystem::name).join(" or ");
    found.ok_or_else(|| format!("{name:?} cannot be made: use {}", known()))
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    options.check()?;
    if !options.loops.is_empty() {
        place::with_own_mounts()?;
    }
    let interrupt = Interrupt::install()?;
    let machine = Machine::read()?;
    let files = options.files as usize;
    let (mut places, mut notes) =
        place::all(&options.dir, files, &options.loops, &options.flush_delay)?;
    if options.only_loops {
        places.remove(0);
    }
    for note in &notes {
        eprintln!("{note}");
    }
    let keys: Vec<Key> = places.iter().flat_map(|place| options.keys(place)).collect();
    let before = options.marks(&places);
    let outcomes = measure_all(options, &places, &keys, &mut notes, &interrupt)?;
    for ((place, before), after) in places.iter().zip(before).zip(options.marks(&places)) {
        notes.push(match (before, after) {
            (Ok(before), Ok(after)) => fs_mark::told(&place.name, &before, &after),
            (Err(error), _) | (_, Err(error)) => {
                format!("skipped: fs_mark in {}: {error:#}", place.name)
            }
        });
    }
    drop(places);
    let setup = Setup {
        rounds: options.rounds,
        files,
        warm: options.warm,
        size: options.size as usize,
        seconds: options.seconds,
        dir: options.dir.display().to_string(),
    };
    let report = Report::new(machine, setup, notes, &keys, outcomes);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table::render(&report, Form::Terminal));
    }
    if let Some(path) = &options.markdown {
        let written = fs::write(path, table::render(&report, Form::Markdown));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Options {
    fn check(&self) -> anyhow::Result<()> {
        for issuers in &self.issuers {
            ensure!(
                (1..=4096).contains(issuers),
                "--issuers {issuers} cannot be used: it must be from 1 to 4096"
            );
        }
        for delay in &self.flush_delay {
            ensure!(
                (0.0..=1000.0).contains(delay),
                "--flush-delay {delay} cannot be used: it must be from 0 to 1000"
            );
        }
        ensure!(
            (0.01..=600.0).contains(&self.seconds),
            "--seconds {} cannot be used: it must be from 0.01 to 600",
            self.seconds
        );
        Ok(())
    }

    /// The results of `fs_mark` in each place, if they are wanted.
    fn marks(&self, places: &[Place]) -> Vec<anyhow::Result<fs_mark::Marks>> {
        let places = if self.fs_mark { places } else { &[] };
        places.iter().map(|place| fs_mark::run(place, self.size as usize)).collect()
    }

    /// What is measured in one place, in the order of the rows.
    fn keys(&self, place: &Place) -> Vec<Key> {
        let shapes = Shape::ALL.into_iter();
        let shapes = shapes.filter(|shape| self.shapes.is_empty() || self.shapes.contains(shape));
        let strategies = |shape: Shape| {
            let wanted = |strategy: &Strategy| {
                self.strategies.is_empty() || self.strategies.contains(strategy)
            };
            let strategies = Strategy::ALL.into_iter().filter(wanted);
            strategies.flat_map(move |strategy| {
                let issuers = strategy.issuers(shape, &self.issuers).into_iter();
                issuers.map(move |issuers| Key {
                    place: place.name.clone(),
                    shape,
                    strategy,
                    issuers,
                })
            })
        };
        shapes.flat_map(strategies).collect()
    }

    fn cell(&self, key: &Key, place: &Place) -> Cell {
        Cell {
            shape: key.shape,
            strategy: key.strategy,
            issuers: key.issuers,
            dir: place.path.clone(),
            files: place.files,
            size: self.size as usize,
            milliseconds: Duration::from_secs_f64(self.seconds).as_millis() as u64,
            warm: if key.shape == Shape::Bulk { self.warm } else { 0 },
        }
    }
}

/// All rounds, or those until Ctrl-C. A cell that fails is left out, and does not take the others
/// with it.
fn measure_all(
    options: &Options,
    places: &[Place],
    keys: &[Key],
    notes: &mut Vec<String>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Outcome>> {
    let count = u64::from(options.rounds) * keys.len() as u64;
    let mut rounds = Rounds::begin(count, interrupt)?;
    let mut outcomes = Vec::new();
    'all: for round in 1..=options.rounds {
        for place in places {
            let keys: Vec<_> = keys.iter().filter(|key| key.place == place.name).collect();
            for turn in 0..keys.len() {
                // The strategy that comes first in one round comes late in the next.
                let key = keys[(turn + keys.len() * (round as usize - 1) / 3) % keys.len()];
                let name = format!("{}, {}", key.place, key.strategy);
                let cell = options.cell(key, place);
                let measured = rounds.measure(round, &name, |folder, it| cell.measure(folder, it));
                let ControlFlow::Continue(figures) = measured else { break 'all };
                let key = key.clone();
                outcomes.extend(figures.map(|figures| Outcome { round, key, figures }));
            }
        }
    }
    notes.extend(rounds.end());
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Result<Options, String> {
        let line = ["fsync", "--dir", "."].into_iter().chain(line.split_whitespace());
        let options = Program::try_parse_from(line).map_err(|error| error.to_string())?.options;
        options.check().map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn options_choose() {
        let options =
            options("--strategies fsync,homing-many --issuers 1,8 --shapes bulk").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (places, _) = place::all(dir.path(), 7, &[], &[]).unwrap();
        let keys = options.keys(&places[0]);
        let told: Vec<_> = keys.iter().map(|key| (key.strategy.name(), key.issuers)).collect();
        assert_eq!(told, [("fsync", 1), ("fsync", 8), ("homing-many", 1)]);
        let cell = options.cell(&keys[1], &places[0]);
        assert_eq!((cell.files, cell.size, cell.milliseconds), (7, 4096, 1000));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (line, named) in [
            ("--issuers 0", "--issuers 0"),
            ("--files 0", "0 is not in"),
            ("--seconds 0", "--seconds 0"),
            ("--loop zfs", "\"zfs\""),
            ("--flush-delay 1", "--loop"),
            ("--loop xfs --flush-delay -1", "unexpected argument"),
            ("--loop xfs --flush-delay 5000", "--flush-delay 5000"),
            ("--strategies sync", "\"sync\""),
        ] {
            let error = options(line).err().unwrap();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
