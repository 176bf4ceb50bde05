//! `homing lab compare`: homing against the kernel's settings on many machines.

use std::fmt::Write as _;

use clap::Args;
use homing_lab::experiments::{Comparison, HOSTS, HostModel, MachineSet, NamedMachine};
use serde_json::json;

use super::experiments::simulate;
use super::tables::{align, table};
use crate::output;

/// What counts as noise beside the spread of the seeds, in per cent.
const NOISE_PCT: f64 = 0.5;

/// The machine of the published workqueue tables.
const DEFAULT_MACHINE: &str = "ryzen-9-3900x";

/// The worst places that are told one by one.
const WORST: usize = 10;

#[derive(Args)]
#[command(after_help = "Examples:
  homing lab compare --random 100
  homing lab compare --machine epyc-9654-2s,ryzen-9-7950x --seeds 3 --scopes")]
pub(crate) struct CompareArgs {
    /// Machines, as for homing lab run [default: the published Ryzen]
    #[arg(long = "machine", value_name = "MACHINE", value_delimiter = ',')]
    machines: Vec<String>,

    /// So many random machines: shape, costs, disk, lengths and depth are drawn
    #[arg(long, value_name = "N", conflicts_with = "machines")]
    random: Option<usize>,

    /// How many seeds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,

    /// How many simulated milliseconds are measured in each run
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    milliseconds: u64,

    /// Every scope of homing too, to see what choosing it automatically is worth
    #[arg(long)]
    scopes: bool,

    /// Print for programs: the places, the worst first
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let set = if let Some(count) = args.random {
        MachineSet::random(count, 1)
    } else {
        let default = vec![DEFAULT_MACHINE.to_owned()];
        let names = if args.machines.is_empty() { &default } else { &args.machines };
        let machines = names.iter().map(|name| NamedMachine::find(name));
        MachineSet::named(machines.collect::<Result<_, _>>()?)
    };
    let hosts: Vec<HostModel> =
        HOSTS.into_iter().filter(|host| *host != HostModel::Pinned).collect();
    let cells = set.cells(&hosts, args.seeds, args.milliseconds * 1_000_000, args.scopes);
    let (measures, whole) = simulate(&cells)?;
    let default = homing_lab::experiments::default_policy();
    let against_kernel =
        Comparison::new(&measures, |name| name == default, |name| !name.starts_with("homing"));
    let fixed = |name: &str| name.starts_with("homing") && name != "homing auto";
    let auto = args.scopes.then(|| Comparison::new(&measures, |name| name == "homing auto", fixed));
    if args.json {
        let places = |comparison: &Comparison| -> Vec<serde_json::Value> {
            let place = |place: &homing_lab::experiments::Worst| {
                json!({
                    "machine": place.machine, "scenario": place.scenario, "host": place.host,
                    "best": place.best, "ahead_pct": place.ahead_pct, "noise_pct": place.noise_pct,
                })
            };
            comparison.places.iter().map(place).collect()
        };
        let text = json!({
            "whole": whole, "default": places(&against_kernel), "auto": auto.as_ref().map(places),
        });
        return output::print_line(&text.to_string());
    }
    let mut text =
        told(&format!("{default} against the best of the kernel's settings"), &against_kernel);
    if let Some(auto) = &auto {
        text.push_str("\n\n");
        text.push_str(&told("homing auto against the best fixed scope of homing", auto));
    }
    if !whole {
        text.push_str("\n\nstopped: these are the runs that had ended");
    }
    output::print_line(&text)
}

fn told(title: &str, comparison: &Comparison) -> String {
    let mut text = format!("{title}; % ahead\n");
    let mut summary = table(&["load", "places", "behind", "worst", "median", "best"]);
    for scenario in ["HIGH", "MED", "LOW"] {
        let Some((worst, median, best)) = comparison.spread(scenario) else { continue };
        let (places, behind) = comparison.behind(scenario, NOISE_PCT);
        summary.add_row([
            scenario.to_owned(),
            places.to_string(),
            behind.to_string(),
            format!("{worst:+.2}"),
            format!("{median:+.2}"),
            format!("{best:+.2}"),
        ]);
    }
    align(&mut summary, 1);
    let _ = writeln!(text, "{summary}\n\nthe worst places");
    let mut worst = table(&["machine", "load", "host", "best of the others", "%", "noise"]);
    for place in comparison.places.iter().take(WORST) {
        worst.add_row([
            place.machine.clone(),
            place.scenario.clone(),
            place.host.clone(),
            place.best.clone(),
            format!("{:+.2}", place.ahead_pct),
            format!("{:.2}", place.noise_pct),
        ]);
    }
    align(&mut worst, 4);
    let _ = write!(text, "{worst}");
    text
}
