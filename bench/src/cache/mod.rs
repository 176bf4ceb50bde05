//! `homing-bench cache`: concurrent caches of objects, side by side.
//!
//! Each cell, a workload on a peer with so many threads, is measured in a fresh child process of
//! this program. Rounds go over all cells, the peers of a case one after the other, in another
//! order each round, so that disturbances of the machine reach all of them.
//!
//! Read on in this order: `workload`, `requests`, `peers`, `load`, `cell`, `report`, `table`,
//! `html`.

mod cell;
mod help;
mod html;
mod load;
mod peers;
mod report;
mod requests;
mod table;
mod workload;

use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;

use self::cell::Outcome;
use self::peers::Kind;
use self::report::{Case, Report, Setup};
use self::workload::{KEYS, Workload};
use crate::cell::{Figures, check_seconds};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::rounds::Rounds;

pub(crate) use self::cell::{Cell, run_cell};
pub(crate) use self::help::HELP;

/// The numbers of threads if none are given, as far as there are CPUs.
const THREADS: [usize; 3] = [1, 2, 16];

/// How often a cell is measured at most if its threads had to share their CPUs with others.
const TRIES: usize = 3;

/// How much of the machine others may have, in percent, beyond what the threads leave them.
const OTHERS_PERCENT: f64 = 5.0;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only these workloads, by their names or their groups', as in read,write-5-1M.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Only these peers.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peers: Vec<Kind>,
    /// With how many threads [default: 1,2,16, as far as there are CPUs].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    threads: Vec<usize>,
    /// How many in a hundred requests of the write workloads overwrite.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [5, 25],
          value_parser = clap::value_parser!(u8).range(1..=100))]
    writes: Vec<u8>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each measurement lasts, after a warm-up of four million operations.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// How many operations each thread does, instead of going on for a time.
    #[arg(long, value_name = "N", conflicts_with = "seconds",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    operations: Option<u64>,
    /// Tell it in JSON.
    #[arg(long)]
    json: bool,
    /// Also write it as a page for a browser.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What is measured in each round.
struct Plan {
    setup: Setup,
    cases: Vec<Case>,
    peers: Vec<Kind>,
    /// How many CPUs the machine has.
    cpus: usize,
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let machine = Machine::read()?;
    let plan = Plan::of(options, machine.usable_cpus, machine.cpus)?;
    // An error now is better than one when the figures are there.
    if let Some(path) = &options.html {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let interrupt = Interrupt::install()?;
    let (outcomes, notes) = measure_all(&plan, &interrupt)?;
    let names: Vec<_> = plan.peers.iter().map(|peer| peer.name()).collect();
    let report = Report::new(machine, plan.setup, notes, &plan.cases, &names, outcomes);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table::render(&report));
    }
    if let Some(path) = &options.html {
        let written = fs::write(path, html::render(&report));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Plan {
    /// The plan for `options` if `usable` of `cpus` CPUs may be used.
    fn of(options: &Options, usable: usize, cpus: usize) -> anyhow::Result<Self> {
        check_seconds(options.seconds)?;
        let mut threads = options.threads.clone();
        if threads.is_empty() {
            threads.extend(THREADS.into_iter().filter(|threads| *threads <= usable));
        }
        for threads in &threads {
            ensure!(
                (1..=usable).contains(threads),
                "--threads {threads} cannot be used: this process may use {usable} CPUs"
            );
        }
        let all = Workload::all(&options.writes);
        let workloads =
            Workload::select(&all, &options.workloads).map_err(|error| anyhow!(error))?;
        let cases = workloads.into_iter().flat_map(|workload| {
            // Filling always has one thread.
            let threads = if workload == Workload::Memory { &[1] } else { threads.as_slice() };
            threads.iter().map(move |threads| Case { workload, threads: *threads })
        });
        let wanted = |peer: &Kind| options.peers.is_empty() || options.peers.contains(peer);
        let setup = Setup {
            rounds: options.rounds,
            seconds: options.operations.is_none().then_some(options.seconds),
            operations: options.operations,
            keys: KEYS,
        };
        let peers = Kind::all().filter(wanted).collect();
        Ok(Self { setup, cases: cases.collect(), peers, cpus })
    }

    fn takers(&self, case: Case) -> Vec<Kind> {
        self.peers.iter().copied().filter(|peer| peer.takes(case.workload)).collect()
    }

    fn cell(&self, Case { workload, threads }: Case, peer: Kind) -> Cell {
        let Setup { seconds, operations, .. } = self.setup;
        let length = Duration::from_secs_f64(seconds.unwrap_or_default());
        Cell { workload, peer, threads, milliseconds: length.as_millis() as u64, operations }
    }
}

impl Plan {
    /// Whether others had so much of the machine that threads of `case` were without a CPU. Threads
    /// that take turns do not contend with each other, so such figures are not those of so many
    /// threads.
    fn is_crowded(&self, case: Case, figures: &Figures) -> bool {
        let left = 100.0 * (1.0 - case.threads as f64 / self.cpus as f64);
        figures.get("others_percent").is_some_and(|others| *others > left + OTHERS_PERCENT)
    }

    /// The least disturbed of a few measurements. Stops as soon as one is good enough.
    fn measure(
        &self,
        case: Case,
        peer: Kind,
        folder: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Figures> {
        let others = |figures: &Figures| figures.get("others_percent").copied().unwrap_or_default();
        let mut best = self.cell(case, peer).measure(folder, interrupt)?;
        for _ in 1..TRIES {
            if !self.is_crowded(case, &best) {
                break;
            }
            let again = self.cell(case, peer).measure(folder, interrupt)?;
            if others(&again) < others(&best) {
                best = again;
            }
        }
        Ok(best)
    }
}

/// All rounds, or those until Ctrl-C, and notes about them. A cell that fails is left out, and does
/// not take the others with it.
fn measure_all(plan: &Plan, interrupt: &Interrupt) -> anyhow::Result<(Vec<Outcome>, Vec<String>)> {
    let takers: usize = plan.cases.iter().map(|case| plan.takers(*case).len()).sum();
    let count = u64::from(plan.setup.rounds) * takers as u64;
    let mut rounds = Rounds::begin(count, interrupt)?;
    let mut outcomes = Vec::new();
    let mut crowded = 0;
    'all: for round in 1..=plan.setup.rounds {
        for case in &plan.cases {
            let peers = plan.takers(*case);
            for turn in 0..peers.len() {
                // The one that comes first in one round comes last in the next.
                let kind = peers[(turn + round as usize - 1) % peers.len()];
                let (Case { workload, threads }, peer) = (*case, kind.name());
                let name = format!("{workload} on {peer}");
                let measured = rounds.measure(round, &name, |folder, interrupt| {
                    plan.measure(*case, kind, folder, interrupt)
                });
                let ControlFlow::Continue(figures) = measured else { break 'all };
                let Some(figures) = figures else { continue };
                crowded += usize::from(plan.is_crowded(*case, &figures));
                outcomes.push(Outcome { round, workload, threads, peer, figures });
            }
        }
    }
    let mut notes = rounds.end();
    if crowded > 0 {
        notes.push(format!(
            "in {crowded} of {count} cells others left too few CPUs for all threads, even in the \
             best of {TRIES} tries: threads that take turns are not in each other's way, and cost \
             less CPU time"
        ));
    }
    Ok((outcomes, notes))
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

    fn plan(line: &str, cpus: usize) -> Result<Plan, String> {
        let line = ["cache"].into_iter().chain(line.split_whitespace());
        let program = Program::try_parse_from(line).map_err(|error| error.to_string())?;
        Plan::of(&program.options, cpus, cpus).map_err(|error| error.to_string())
    }

    #[test]
    fn without_options_everything_is_measured() {
        let plan = plan("", 4).unwrap();
        assert_eq!(plan.cases.len(), 10 * 2 + 1);
        assert_eq!(plan.peers, Kind::all().collect::<Vec<_>>());
        assert_eq!((plan.setup.seconds, plan.setup.operations), (Some(0.5), None));
        assert!(plan.takers(*plan.cases.last().unwrap()).len() < plan.peers.len());
    }

    #[test]
    fn options_choose() {
        let plan =
            plan("--workloads write --writes 50 --threads 3 --peers moka --operations 1000", 4);
        let plan = plan.unwrap();
        let cases: Vec<_> =
            plan.cases.iter().map(|case| (case.workload.to_string(), case.threads)).collect();
        assert_eq!(cases, [("write-50-100k".to_owned(), 3), ("write-50-1M".to_owned(), 3)]);
        let cell = plan.cell(plan.cases[0], plan.peers[0]);
        assert_eq!((cell.peer.name(), cell.operations, cell.threads), ("moka", Some(1000), 3));
    }

    #[test]
    fn threads_without_a_cpu_are_noticed() {
        let plan = plan("--workloads read-0.99-1M --threads 1,4", 4).unwrap();
        let crowded = |case: usize, percent| {
            let figures = [("others_percent".to_owned(), percent)].into();
            plan.is_crowded(plan.cases[case], &figures)
        };
        assert!(!crowded(0, 70.0) && crowded(0, 90.0));
        assert!(!crowded(1, 4.0) && crowded(1, 20.0));
        assert!(!plan.is_crowded(plan.cases[1], &Figures::new()));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (line, named) in [
            ("--threads 5", "--threads 5"),
            ("--threads 0", "--threads 0"),
            ("--seconds 0", "--seconds 0"),
            ("--workloads rd", "\"rd\""),
            ("--peers redis", "\"redis\""),
            ("--writes 0", "0 is not in 1..=100"),
            ("--operations 10 --seconds 1", "cannot be used with"),
        ] {
            let error = plan(line, 4).err().unwrap();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
