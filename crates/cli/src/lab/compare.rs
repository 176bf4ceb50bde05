//! `homing lab compare`: homing against the kernel's settings on many machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use clap::Args;
use homing_lab::experiments::{
    Comparison, Described, Figure, MachineSet, Measure, NOISE_PCT, NamedMachine, Plan,
    PolicyChoice, STANDARD, Stat, Sweep, Worst, figures, standings,
};
use serde_json::{Value, json};

use super::experiments::{ModelArgs, ShardArgs, fail_if_stopped, simulate};
use super::once;
use crate::output;
use crate::table::{align, in_parts, table};

/// The machine of the published workqueue tables.
const DEFAULT_MACHINE: &str = "ryzen-9-3900x";

/// The name that stands for all presets.
const PRESETS: &str = "presets";

/// The prefix of the number of a machine that is drawn.
const RANDOM: &str = "random:";

/// How many machines are drawn at most.
const RANDOM_MAX: usize = 100_000;

/// How many of the worst places are listed.
const WORST: usize = 10;

#[derive(Args)]
#[command(after_help = "Examples:
  homing lab compare --random 100
  homing lab compare --machine epyc-9654-2s,ryzen-9-7950x --seeds 3 --scopes
  homing lab compare --machine presets --host pinned
  homing lab compare --machine random:8 --seeds 10    one of them, closely
  homing lab compare --random 100 --list              what was drawn for each
  homing lab compare --features SWQUEUE --features SWQUEUE,XSTEAL
                                                      what each part is worth
  homing lab compare --policy 'homing auto' --policy CACHE --cost wake_ns=5000
                                                      two, where waking is dear
  homing lab compare --random 1000 --shard 2/64 --out sweep
                                                      a part, to be merged")]
pub(crate) struct CompareArgs {
    /// Machines, as for homing lab run; presets stands for all presets, random:8 for number 8 of
    /// those that --random draws [default: the published Ryzen]
    #[arg(long = "machine", value_name = "MACHINE", value_delimiter = ',')]
    machines: Vec<String>,

    /// Draw this many random machines: shape, costs, disk, item lengths and depth
    #[arg(long, value_name = "N", conflicts_with = "machines",
        value_parser = clap::value_parser!(u64).range(1..=RANDOM_MAX as u64))]
    random: Option<u64>,

    /// Seed of the draw of random machines: another seed gives other machines [default: 1]
    #[arg(long, value_name = "SEED")]
    draw: Option<u64>,

    /// How many seeds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,

    /// How many simulated milliseconds are measured in each run
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    milliseconds: u64,

    #[command(flatten)]
    model: ModelArgs,

    /// Also run every scope of homing, to see what choosing it automatically is worth
    #[arg(long)]
    scopes: bool,

    /// Do not run anything, but show the machines, and what was drawn for them
    #[arg(long, conflicts_with_all = ["shard", "scopes", "policies"])]
    list: bool,

    /// Run only this policy and SYSTEM, with which all are compared: CACHE+STRICT, 'homing auto',
    /// 'homing numa+strict'. May be given several times
    #[arg(long = "policy", value_name = "NAME", conflicts_with = "scopes")]
    policies: Vec<String>,

    #[command(flatten)]
    shard: ShardArgs,

    /// Print JSON: {"whole", "policies", "default", "auto", "features"}: what each policy did in
    /// each place, then the places of each comparison, the worst first; with --list an array of
    /// machines
    #[arg(long)]
    json: bool,
}

impl CompareArgs {
    fn set(&self) -> anyhow::Result<MachineSet> {
        let draw = self.draw.unwrap_or(1);
        if let Some(count) = self.random {
            return Ok(MachineSet::random(usize::try_from(count)?, draw));
        }
        if self.draw.is_some() && !self.machines.iter().any(|name| name.starts_with(RANDOM)) {
            bail!(
                "--draw {draw}: no machine is drawn; give --random N, or --machine {RANDOM}NUMBER"
            );
        }
        let mut names: Vec<&str> = self.machines.iter().map(String::as_str).collect();
        if names.is_empty() {
            names.push(DEFAULT_MACHINE);
        }
        let mut set = MachineSet::named(Vec::new());
        for name in names {
            set.append(machines(name, draw)?);
        }
        Ok(set)
    }

    fn choice(&self, plan: &Plan) -> anyhow::Result<PolicyChoice> {
        let names = PolicyChoice::names(plan);
        if let Some(unknown) = self.policies.iter().find(|name| !names.contains(name)) {
            bail!("--policy {unknown:?}: there is none of that name, only {}", names.join("; "));
        }
        Ok(PolicyChoice { scopes: self.scopes, only: once(self.policies.clone()) })
    }
}

/// All presets, a machine by its name, or one of a draw by its number.
fn machines(name: &str, draw: u64) -> anyhow::Result<MachineSet> {
    if name == PRESETS {
        let presets: Result<_, _> = NamedMachine::preset_names().map(NamedMachine::find).collect();
        return Ok(MachineSet::named(presets?));
    }
    let Some(number) = name.strip_prefix(RANDOM) else {
        return Ok(MachineSet::named(vec![NamedMachine::find(name)?]));
    };
    let number = number.parse().ok().filter(|&number| number < RANDOM_MAX);
    let number = number.with_context(|| {
        format!("--machine {name}: {RANDOM} is followed by a number below {RANDOM_MAX}")
    })?;
    Ok(MachineSet::random_one(number, draw))
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let set = args.set()?;
    if args.list {
        let machines = set.described();
        return if args.json {
            output::print_json(&machines)
        } else {
            output::print_text(&(machine_table(&machines) + "\n"))
        };
    }
    let plan = args.model.plan(None, args.seeds, args.milliseconds * 1_000_000)?;
    let choice = args.choice(&plan)?;
    let sweep = || Sweep::of_machines(&set, &choice, &plan);
    let count = set.count(&plan, &choice);
    let Some(cells) = args.shard.run(sweep, set.cells(&plan, &choice), count)? else {
        return Ok(());
    };
    let (measures, whole) = simulate(&cells, |_| true)?;
    if args.json {
        let text = json!({
            "whole": whole,
            "policies": figures(&measures).iter().map(figure).collect::<Vec<_>>(),
            "default": places(&Comparison::of_default(&measures)),
            "auto": places(&Comparison::of_auto(&measures)),
            "features": Comparison::of_parts(&measures).iter().map(|(name, comparison)| {
                ((*name).to_owned(), places(comparison))
            }).collect::<BTreeMap<_, _>>(),
        });
        output::print_json(&text)?;
        return fail_if_stopped(whole);
    }
    output::print_text(&(told(&measures) + "\n"))?;
    fail_if_stopped(whole)
}

fn machine_table(machines: &[Described]) -> String {
    let costs: BTreeSet<&str> = machines.iter().flat_map(|of| of.drawn.keys().copied()).collect();
    let loads = ["item, us", "issuer, us", "depth", "placement", "disk read, us"];
    let header: Vec<&str> = ["machine"].into_iter().chain(loads).chain(costs.clone()).collect();
    let mut table = table(&header);
    for of in machines {
        let load = [
            of.machine.clone(),
            format!("{:.0}", of.item_us),
            format!("{:.0}", of.issuer_us),
            of.depth.to_string(),
            of.placement.to_owned(),
            format!("{:.0}", of.disk_read_us),
        ];
        let cost = |name: &&str| of.drawn.get(name).map_or_else(String::new, u64::to_string);
        table.add_row(load.into_iter().chain(costs.iter().map(cost)));
    }
    align(&mut table, 1);
    in_parts(&table, 1)
}

fn figure(of: &Figure) -> Value {
    json!({
        "machine": of.machine, "scenario": of.scenario, "host": of.host, "policy": of.policy,
        "items_per_s": of.rate.mean, "sd": of.rate.sd, "ahead_pct": of.ahead_pct, "first": of.first,
    })
}

fn places(comparison: &Comparison) -> Vec<Value> {
    let place = |place: &Worst| {
        json!({
            "machine": place.machine, "scenario": place.scenario, "host": place.host,
            "best": place.best, "ahead_pct": place.ahead_pct, "noise_pct": place.noise_pct,
        })
    };
    comparison.places.iter().map(place).collect()
}

/// All that the measures of a comparison tell.
pub(super) fn told(measures: &[Measure]) -> String {
    let mut parts = vec![standing_table(measures)];
    parts.extend(Comparison::all(measures).iter().map(|(title, of)| table_of(title, of)));
    if measures.iter().all(|measure| measure.key.seed == 0) {
        parts.push(format!(
            "one seed tells nothing of noise: what is behind by {NOISE_PCT} % counts; see --seeds"
        ));
    }
    parts.join("\n\n")
}

fn standing_table(measures: &[Measure]) -> String {
    let mut table =
        table(&["load", "policy", "places", "worst", "median", "mean", "best", "first in"]);
    for of in standings(&figures(measures)) {
        let Stat { mean, median, min, max, count, .. } = of.ahead_pct;
        let figures = [min, median, mean, max].map(|pct| format!("{pct:+.2}"));
        let first = [of.scenario, of.policy, count.to_string()];
        table.add_row(first.into_iter().chain(figures).chain([of.first.to_string()]));
    }
    align(&mut table, 2);
    format!(
        "each policy against {STANDARD}; % ahead, and where nobody is further ahead\n{}",
        in_parts(&table, 2)
    )
}

fn table_of(title: &str, comparison: &Comparison) -> String {
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
    let _ = writeln!(text, "{}\n\nthe worst places", in_parts(&summary, 1));
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
    text.push_str(&in_parts(&worst, 3));
    text
}
