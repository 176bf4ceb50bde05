//! `homing-bench mixed`: two tenants of one page cache, one of clean reads and one of dirty pages.
//!
//! Each cell, a way to share the memory under a load, is measured in a fresh child process of this
//! program. Rounds go over all cells, the rows of a load one after the other, in another order each
//! round, so that disturbances of the machine reach all of them.
//!
//! Read on in this order: `help`, `row`, `disk`, `load`, `cell`, `report`, `table`.

mod cell;
mod disk;
mod help;
mod load;
mod report;
mod row;
mod table;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use homing::control::ByteSize;
use tempfile::TempDir;

use self::cell::Outcome;
use self::report::{Report, Setup};
use self::row::{Case, Row};
use self::table::render;
use crate::cell::check_seconds;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::page::Form;
use crate::rounds::Rounds;

pub(crate) use self::cell::{Cell, run_cell};
pub(crate) use self::help::HELP;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// A smaller memory is not a cache.
const MEMORY_MIN: u64 = 4 << 20;

/// From this heading on, a Markdown file has text that was written by hand, and keeps it.
const BY_HAND: &str = "## What it says";

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Where the tenants' files are made; a folder in memory is a disk in memory.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Bytes of the cache.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: ByteSize,
    /// Bytes of the reader's file [default: twice the memory].
    #[arg(long, value_name = "SIZE")]
    reader_set: Option<ByteSize>,
    /// Bytes of the dirty tenant's working set [default: three fifths of the memory].
    #[arg(long, value_name = "SIZE")]
    dirty_set: Option<ByteSize>,
    /// How many in a hundred of the dirty tenant's operations write.
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(..=100))]
    writes: u8,
    /// What reads and writes of a disk take on top of the file's, in microseconds; 0: nothing.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0, 100],
          value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    disk_us: Vec<u64>,
    /// How many reads the reader has under way for each of the dirty tenant's threads, where it
    /// waits for a disk.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 8, 32])]
    reader_depth: Vec<usize>,
    /// Threads of the dirty tenant, and of the reader [default: as many as CPUs that may be used].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each measurement lasts.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Also write everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the tables as Markdown. What the file has from "## What it says" on stays.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let machine = Machine::read()?;
    let setup = options.setup(machine.usable_cpus)?;
    // An error now is better than one when the figures are there.
    for path in options.json.iter().chain(&options.markdown) {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let interrupt = Interrupt::install()?;
    let cases = Case::all(&options.disk_us, &options.reader_depth);
    let (outcomes, notes) = measure_all(options, &setup, &cases, &interrupt)?;
    let report = Report::new(machine, setup, notes, &cases, outcomes);
    print!("{}", render(&report, Form::Terminal));
    if let Some(path) = &options.markdown {
        let before = fs::read_to_string(path)?;
        fs::write(path, page(&render(&report, Form::Markdown), &before))?;
    }
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// The page with the tables `text`, and the text written by hand of the page `before`.
fn page(text: &str, before: &str) -> String {
    let by_hand = before.find(BY_HAND).map_or("", |at| &before[at..]);
    let page = format!("# Two tenants of one page cache, measured\n\n{text}\n{by_hand}");
    page.trim_end().to_owned() + "\n"
}

impl Options {
    /// The setup if this many CPUs may be used.
    fn setup(&self, cpus: usize) -> anyhow::Result<Setup> {
        check_seconds(self.seconds)?;
        ensure!(
            self.memory.0 >= MEMORY_MIN,
            "--memory {} cannot be used: it must be at least {}",
            self.memory,
            ByteSize(MEMORY_MIN)
        );
        let threads = self.threads.unwrap_or(cpus);
        let most = threads.saturating_mul(self.reader_depth.iter().copied().max().unwrap_or(1));
        ensure!(
            threads > 0 && !self.reader_depth.contains(&0) && most <= 4096,
            "--threads {threads} and --reader-depth cannot be used: they must be 1 and more, and \
             their product at most 4096"
        );
        let memory = self.memory.0;
        let whole = |set: Option<ByteSize>, default: u64, option: &str| {
            let set = set.map_or(default, |set| set.0) / PAGE * PAGE;
            ensure!(set > 0, "{option} cannot be used: it must be a page or more");
            Ok(set)
        };
        Ok(Setup {
            rounds: self.rounds,
            seconds: self.seconds,
            memory,
            reader_set: whole(self.reader_set, 2 * memory, "--reader-set")?,
            dirty_set: whole(self.dirty_set, memory * 3 / 5, "--dirty-set")?,
            threads,
            writes: self.writes,
            dir: self.dir.display().to_string(),
        })
    }
}

/// A folder in `dir` with a file for each tenant.
fn make_files(dir: &Path, reader_set: u64, dirty_set: u64) -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("homing-mixed-").tempdir_in(dir);
    let folder = folder.with_context(|| format!("cannot write in {}", dir.display()))?;
    let block = vec![1; 1 << 20];
    for (name, size) in [("reader", reader_set), ("dirty", dirty_set)] {
        let mut file = File::create(folder.path().join(name))?;
        for at in (0..size).step_by(block.len()) {
            let count = (size - at).min(block.len() as u64);
            let written = file.write_all(&block[..count as usize]);
            written.with_context(|| format!("no {} in {}", ByteSize(size), dir.display()))?;
        }
    }
    Ok(folder)
}

/// All rounds, or those until Ctrl-C, and notes about them. A cell that fails is left out, and does
/// not take the others with it.
fn measure_all(
    options: &Options,
    setup: &Setup,
    cases: &[Case],
    interrupt: &Interrupt,
) -> anyhow::Result<(Vec<Outcome>, Vec<String>)> {
    let files = make_files(&options.dir, setup.reader_set, setup.dirty_set)?;
    let count = u64::from(setup.rounds) * (cases.len() * Row::ALL.len()) as u64;
    let mut rounds = Rounds::begin(count, interrupt)?;
    let mut outcomes = Vec::new();
    'all: for round in 1..=setup.rounds {
        for case in cases {
            for turn in 0..Row::ALL.len() {
                // The one that comes first in one round comes last in the next.
                let row = Row::ALL[(turn + round as usize - 1) % Row::ALL.len()];
                let cell = Cell {
                    row,
                    dir: files.path().to_owned(),
                    memory: setup.memory as usize,
                    threads: setup.threads,
                    depth: case.depth,
                    disk_us: case.disk_us,
                    writes: setup.writes,
                    milliseconds: Duration::from_secs_f64(setup.seconds).as_millis() as u64,
                };
                let name = format!("{case}, {row}");
                let measured = rounds.measure(round, &name, |folder, it| cell.measure(folder, it));
                let ControlFlow::Continue(figures) = measured else { break 'all };
                let case = *case;
                outcomes.extend(figures.map(|figures| Outcome { round, case, row, figures }));
            }
        }
    }
    Ok((outcomes, rounds.end()))
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

    fn setup(line: &str) -> Result<Setup, String> {
        let line = ["mixed"].into_iter().chain(line.split_whitespace());
        let options = Program::try_parse_from(line).map_err(|error| error.to_string())?.options;
        options.setup(4).map_err(|error| error.to_string())
    }

    #[test]
    fn sets_are_shares_of_the_memory_unless_said_otherwise() {
        let plain = setup("--memory 10M").unwrap();
        assert_eq!((plain.reader_set, plain.dirty_set, plain.threads), (20 << 20, 6 << 20, 4));
        let said = setup("--reader-set 1G --dirty-set 5000 --threads 2").unwrap();
        assert_eq!((said.reader_set, said.dirty_set, said.threads), (1 << 30, 4096, 2));
        assert_eq!(said.memory, 256 << 20);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (line, named) in [
            ("--seconds 0", "--seconds 0"),
            ("--memory 1M", "--memory 1 MiB"),
            ("--memory much", "\"much\""),
            ("--dirty-set 4095", "--dirty-set"),
            ("--threads 0", "--threads 0"),
            ("--reader-depth 0", "--reader-depth"),
            ("--threads 4096", "4096"),
            ("--writes 101", "101 is not in"),
            ("--rounds 0", "0 is not in"),
        ] {
            let error = setup(line).err().unwrap();
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn what_was_said_by_hand_stays() {
        let first = page("old\n", "");
        assert!(first.ends_with("\n\nold\n"), "{first:?}");
        let again = page("new\n", &format!("{first}\n{BY_HAND}\n\nMuch.\n"));
        assert!(!again.contains("old"), "{again:?}");
        assert!(again.ends_with(&format!("\n\nnew\n\n{BY_HAND}\n\nMuch.\n")), "{again:?}");
    }
}
