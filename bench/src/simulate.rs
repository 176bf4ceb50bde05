//! `homing-bench simulate`: how many events of a simulated machine one CPU makes a second.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use homing_sim::{
    Costs, CryptLoad, DmCrypt, HomingSettings, HostModel, KernelSettings, Policy, Preset, Rules,
    Trial,
};
use serde::Serialize;

use crate::machine::Machine;
use crate::spread::Spread;
use crate::stopwatch::cpu_time;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How often everything is measured, by turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// CPU seconds of a simulated run, at least.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Tell it in JSON.
    #[arg(long)]
    json: bool,
}

/// The published machine, and the largest preset.
const MACHINES: [&str; 2] = ["ryzen-9-3900x", "epyc-9654-2s"];

/// Nanoseconds that are simulated at a time.
const STEP_NS: u64 = 20_000_000;

#[derive(Serialize)]
struct Row {
    machine: &'static str,
    load: &'static str,
    policy: String,
    events_per_s: Spread,
}

/// One run that is measured.
struct Cell {
    machine: &'static str,
    load: &'static str,
    policy: Policy,
    load_of: CryptLoad,
}

fn cells() -> anyhow::Result<Vec<Cell>> {
    let [system, _, strict, ..] = KernelSettings::PUBLISHED;
    let policies =
        [Policy::Kernel(system), Policy::Kernel(strict), Policy::Homing(HomingSettings::default())];
    let mut cells = Vec::new();
    for machine in MACHINES {
        let cpus = Preset::find(machine).context("no such preset")?.machine().cpus().len();
        for (load, each) in CryptLoad::LOADS {
            let load_of = CryptLoad::published(1).on(cpus, each);
            for policy in &policies {
                let (policy, load_of) = (policy.clone(), load_of.clone());
                cells.push(Cell { machine, load, policy, load_of });
            }
        }
    }
    Ok(cells)
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(
        (0.01..=600.0).contains(&options.seconds),
        "--seconds {} cannot be used: it must be between 0.01 and 600",
        options.seconds
    );
    let cells = cells()?;
    let mut rates = vec![Vec::new(); cells.len()];
    for round in 0..options.rounds {
        for (cell, rates) in cells.iter().zip(&mut rates) {
            rates.push(measure(cell, round.into(), options.seconds)?);
        }
    }
    let row = |(cell, rates): (&Cell, Vec<f64>)| {
        let events_per_s = Spread::of(rates).context("no rounds")?;
        let policy = cell.policy.to_string();
        Ok(Row { machine: cell.machine, load: cell.load, policy, events_per_s })
    };
    let rows = cells.iter().zip(rates).map(row).collect::<anyhow::Result<Vec<_>>>()?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let machine = Machine::read()?;
    println!(
        "{machine}\nmillion events a CPU second; medians of {} (least to greatest)",
        options.rounds
    );
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let loads = CryptLoad::LOADS.map(|(load, _)| load);
    table.set_header(["machine", "policy"].into_iter().chain(loads));
    for machine in MACHINES {
        let of_machine = || rows.iter().filter(|row| row.machine == machine);
        for first in of_machine().filter(|row| row.load == CryptLoad::LOADS[0].0) {
            let of_policy = of_machine().filter(|row| row.policy == first.policy);
            let cell = |Spread { median, min, max }: Spread| {
                format!("{:.2} ({:.2} to {:.2})", median / 1e6, min / 1e6, max / 1e6)
            };
            let figures = of_policy.map(|row| cell(row.events_per_s));
            table.add_row([machine.to_owned(), first.policy.clone()].into_iter().chain(figures));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    Ok(())
}

/// Events in a CPU second: runs become longer until one is long enough.
fn measure(cell: &Cell, seed: u64, at_least_s: f64) -> anyhow::Result<f64> {
    let machine = Preset::find(cell.machine).context("no such preset")?.machine();
    let (costs, stop) = (Costs::default(), AtomicBool::new(false));
    let rules = Rules::new(HostModel::Cfs, machine.cpus().len());
    let mut measured_ns = STEP_NS;
    loop {
        let run = DmCrypt {
            load: cell.load_of.clone(),
            policy: cell.policy.clone(),
            warm_up_ns: STEP_NS,
            measured_ns,
        };
        let trial = Trial { machine: &machine, costs: &costs, rules: &rules, seed, stop: &stop };
        let before = cpu_time();
        let report = run.run(&trial).context("the run was stopped")?;
        let took_s = cpu_time() - before;
        if took_s >= at_least_s {
            return Ok(report.events as f64 / took_s);
        }
        measured_ns *= 2;
    }
}
