//! `homing-bench nbd`: encrypted NBD servers side by side. Every round runs every load on every
//! server, so that disturbances of the machine reach all of them.

mod copy;
mod fill;
mod fio;
mod measure;
mod prepare;
mod report;
mod scenario;
mod server;
mod table;

use std::env;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;

pub(crate) use self::copy::{CopyOptions, run as run_copy};
use self::fill::{fill, read_through};
use self::fio::Fio;
use self::measure::{Cell, measure};
use self::prepare::Preparation;
use self::report::{Report, Setup};
use self::scenario::Scenario;
use self::server::Server;
use self::table::render;
use crate::child::Running;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::page::Form;
use crate::progress::bar;
use crate::tool::{FIO, Version, is_program};
use homing::control::ByteSize;

/// From this size on, each job has a useful slice, even in the load with the most jobs.
const SIZE_MIN: u64 = 64 << 20;

/// Containers hold whole sectors, and copies go in whole pieces.
const SIZE_UNIT: u64 = 1 << 20;

/// The exports that are compared.
#[derive(Args, Debug)]
struct Exports {
    /// The size of every export, as in 512M or 1G.
    #[arg(long, default_value = "1G")]
    size: ByteSize,

    /// The folder for the containers. It needs a little more than the size for each server.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,

    /// The homing to measure [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    homing: Option<PathBuf>,
}

/// What to measure, and where to write the results.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// How long each load lasts.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,

    #[command(flatten)]
    exports: Exports,

    /// Only these loads.
    #[arg(long, value_name = "LOAD", value_delimiter = ',')]
    only: Vec<Scenario>,

    /// Also write everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also write the tables as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl Options {
    fn check(&self) -> anyhow::Result<()> {
        self.exports.check()?;
        // An error now is better than one when the figures are there.
        for path in self.json.iter().chain(&self.markdown) {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            opened.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn loads(&self) -> Vec<Scenario> {
        let wanted = |load: &Scenario| self.only.is_empty() || self.only.contains(load);
        Scenario::ALL.into_iter().filter(wanted).collect()
    }
}

impl Exports {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.size.0 >= SIZE_MIN && self.size.0.is_multiple_of(SIZE_UNIT),
            "--size {} cannot be used: it must be whole MiB, and at least {}",
            self.size,
            ByteSize(SIZE_MIN)
        );
        if let Some(path) = &self.homing {
            ensure!(is_program(path), "--homing {}: there is no such program", path.display());
        }
        Ok(())
    }

    fn homing(&self) -> anyhow::Result<PathBuf> {
        match &self.homing {
            Some(path) => Ok(path.canonicalize()?),
            None => Ok(env::current_exe()?.with_file_name("homing")),
        }
    }

    /// The folder's path without links and dots. It becomes part of addresses and option lists,
    /// where each tool would escape other characters in its own way.
    fn folder(&self) -> anyhow::Result<PathBuf> {
        let given = self.dir.display();
        let dir =
            self.dir.canonicalize().with_context(|| format!("--dir {given} cannot be used"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        ensure!(
            dir.to_str().is_some_and(|text| text.chars().all(plain)),
            "--dir {given} cannot be used: only letters, digits and ./_- may be in its path"
        );
        Ok(dir)
    }
}

/// A temporary folder in `dir`, which is removed when it is dropped.
fn temporary_in(dir: &Path) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("homing-bench-").tempdir_in(dir);
    folder.with_context(|| format!("cannot write in {}", dir.display()))
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    options.check()?;
    let exports = &options.exports;
    let dir = exports.folder()?;
    let interrupt = Interrupt::install()?;
    let machine = Machine::read()?;
    let fio = FIO.find()?;

    let folder = temporary_in(&dir)?;
    let mut preparation = Preparation::new(folder.path(), exports.size.0)?;
    preparation.versions.insert(0, Version::of(FIO.program, &fio));
    preparation.write_passphrase()?;
    let found = preparation.find(&exports.homing()?);
    ensure!(!found.is_empty(), "nothing to measure: {}", preparation.left_out.join("; "));
    eprintln!("{}", preparation.space(found.len(), &dir)?);

    let servers = prepare(&mut preparation, found, &interrupt)?;
    let fio = Fio {
        program: fio,
        folder: folder.path().to_owned(),
        seconds: options.seconds,
        size: exports.size.0,
    };
    let cells = measure_all(options, &fio, &preparation.nbdcopy, &servers, &interrupt)?;

    let setup = Setup {
        rounds: options.rounds,
        seconds: options.seconds,
        size: exports.size.0,
        dir: dir.display().to_string(),
    };
    let Preparation { versions, left_out, .. } = preparation;
    let notes = left_out.into_iter().map(|line| format!("left out: {line}")).collect();
    let report = Report::new(machine, versions, setup, notes, cells);
    print!("{}", render(&report, Form::Terminal));
    if let Some(path) = &options.markdown {
        write(path, &render(&report, Form::Markdown))?;
    }
    if let Some(path) = &options.json {
        write(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    Ok(())
}

/// Makes and fills the containers. Peers that fail are left out.
fn prepare(
    preparation: &mut Preparation,
    found: Vec<Server>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Server>> {
    let mut served = Vec::new();
    for server in found {
        match preparation.serve(&server, interrupt) {
            Ok(running) => served.push((server, running)),
            Err(error) => {
                interrupt.check()?;
                preparation.leave_out(server.kind, error)?;
            }
        }
    }

    ensure!(!served.is_empty(), "nothing is left to measure");
    let size = preparation.size;
    let bar = bar(size, "{wide_bar} {binary_bytes} of {binary_total_bytes}{msg}, {eta} left")?;
    bar.set_message(" written to each container");
    let to_fill: Vec<&Server> = served.iter().map(|(server, _)| server).collect();
    let filled = fill(&preparation.nbdcopy, &to_fill, size, &bar, interrupt)?;
    bar.finish_and_clear();

    let mut servers = Vec::new();
    for ((server, running), filled) in served.into_iter().zip(filled) {
        let said = running.last_words();
        let filled = filled.with_context(|| format!("it last said: {said}"));
        match filled.and_then(|()| running.stop()) {
            Ok(()) => servers.push(server),
            Err(error) => preparation.leave_out(server.kind, error)?,
        }
    }
    ensure!(!servers.is_empty(), "nothing is left to measure");
    Ok(servers)
}

/// All rounds. Servers are started anew for each round, all at once, and their exports are read
/// through. Idle servers take no CPU time, which the report checks.
fn measure_all(
    options: &Options,
    fio: &Fio,
    nbdcopy: &Path,
    servers: &[Server],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Cell>> {
    let loads = options.loads();
    let count = u64::from(options.rounds) * (loads.len() * servers.len()) as u64;
    let bar = bar(count, "{wide_bar} {pos}/{len} {msg}, {eta} left")?;
    let mut cells = Vec::new();
    for round in 1..=options.rounds {
        let started = servers.iter().map(|server| Ok((server, server.start(interrupt)?)));
        let started: Vec<(&Server, Running)> = started.collect::<anyhow::Result<_>>()?;
        for (server, running) in &started {
            let name = server.kind.name();
            bar.set_message(format!("round {round}: reading {name} through"));
            let read = read_through(nbdcopy, server, interrupt);
            read.with_context(|| format!("{name} last said: {}", running.last_words()))?;
        }
        for load in &loads {
            for turn in 0..servers.len() {
                // The one that comes first in one round comes last in the next.
                let index = (turn + round as usize - 1) % servers.len();
                let name = servers[index].kind.name();
                bar.set_message(format!("round {round}: {} on {name}", load.name()));
                let cell = measure(fio, round, *load, &started, index, interrupt);
                let cell = cell.with_context(|| {
                    let said = started[index].1.last_words();
                    format!("round {round}, {} on {name}, which last said: {said}", load.name())
                });
                cells.push(cell?);
                bar.inc(1);
            }
        }
        for (_, running) in started {
            running.stop().with_context(|| format!("after round {round}"))?;
        }
    }
    bar.finish_and_clear();
    Ok(cells)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
