//! `homing-bench exec`: executors on small work items, side by side.
//!
//! Each cell, a workload on a peer, is measured in a fresh child process of this program. Rounds go
//! over all cells, the peers of a workload one after the other, in another order each round, so
//! that disturbances of the machine reach all of them.
//!
//! Read on in this order: `workload`, `peers`, `load` and what it measures with (`spin`, `count`,
//! `signal`), `cell`, `report`, `table`.

mod cell;
mod count;
mod load;
mod peers;
mod report;
mod signal;
mod spin;
mod table;
mod workload;

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::Args;
use homing::Features;

use self::cell::Outcome;
use self::peers::Peer;
use self::report::{Report, Setup};
use self::workload::Workload;
use crate::cell::check_seconds;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::rounds::Rounds;

pub(crate) use self::cell::{Cell, run_cell};

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only these workloads, by their names or their groups', as in inside,crypt-8.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Only these peers.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each measurement lasts.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// How many workers every peer gets [default: one for each CPU that may be used].
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Only these parts of homing's policy, as in SWQUEUE,XSTEAL; all or none.
    #[arg(long, value_name = "LIST", default_value = "all")]
    features: Features,
    /// Tell it in JSON.
    #[arg(long)]
    json: bool,
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let machine = Machine::read()?;
    let workers = options.workers.unwrap_or(machine.usable_cpus);
    ensure!(
        (1..=machine.usable_cpus).contains(&workers),
        "--workers {workers} cannot be used: this process may use {} CPUs",
        machine.usable_cpus
    );
    check_seconds(options.seconds)?;
    let workloads = Workload::select(&options.workloads).map_err(|error| anyhow!(error))?;
    let wanted = |peer: &Peer| options.peers.is_empty() || options.peers.contains(peer);
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(wanted).collect();
    let interrupt = Interrupt::install()?;
    let setup = Setup {
        rounds: options.rounds,
        seconds: options.seconds,
        workers,
        steps_per_ms: spin::steps_per_ms(),
        features: options.features,
    };
    let (outcomes, notes) = measure_all(&setup, &workloads, &peers, &interrupt)?;
    let report = Report::new(machine, setup, notes, outcomes);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table::render(&report));
    }
    Ok(())
}

/// All rounds, or those until Ctrl-C, and notes about them. A cell that fails is left out, and does
/// not take the others with it.
fn measure_all(
    setup: &Setup,
    workloads: &[Workload],
    peers: &[Peer],
    interrupt: &Interrupt,
) -> anyhow::Result<(Vec<Outcome>, Vec<String>)> {
    let takers = |load: &Workload| peers.iter().filter(|peer| peer.takes(*load)).count();
    let count = u64::from(setup.rounds) * workloads.iter().map(takers).sum::<usize>() as u64;
    let mut rounds = Rounds::begin(count, interrupt)?;
    let mut outcomes = Vec::new();
    'all: for round in 1..=setup.rounds {
        for workload in workloads {
            let peers: Vec<Peer> = peers.iter().copied().filter(|p| p.takes(*workload)).collect();
            for turn in 0..peers.len() {
                // The one that comes first in one round comes last in the next.
                let peer = peers[(turn + round as usize - 1) % peers.len()];
                let cell = Cell {
                    workload: *workload,
                    peer,
                    milliseconds: Duration::from_secs_f64(setup.seconds).as_millis() as u64,
                    workers: setup.workers,
                    steps_per_ms: setup.steps_per_ms,
                    features: setup.features,
                };
                let name = format!("{} on {}", workload.name(), peer.name());
                let measured = rounds.measure(round, &name, |folder, it| cell.measure(folder, it));
                let ControlFlow::Continue(figures) = measured else { break 'all };
                let workload = *workload;
                outcomes.extend(figures.map(|figures| Outcome { round, workload, peer, figures }));
            }
        }
    }
    Ok((outcomes, rounds.end()))
}
