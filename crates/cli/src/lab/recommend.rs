//! `homing lab recommend`: which scope to choose, with the evidence.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use homing_lab::experiments::{
    Advice, GivenCost, GivenCosts, HOSTS, HostModel, Load, NamedMachine, Trial, recommend,
};
use serde_json::json;

use super::experiments::{bar, hosts, stop_flag};
use crate::output;
use crate::table::{align, grouped_digits, in_parts, table};

#[derive(Args)]
#[command(
    after_help = "A load is a JSON file. Members that it lacks have these values (0 issuers are one for each CPU):
  {\"issuers\": 0, \"depth\": 64, \"item_us\": 20, \"issuer_us\": 5, \"bytes\": 32768}

The advice comes from a model: try the best two or three settings on the machine itself. Ctrl-C ends \
the runs; what had ended is ranked.

With --json a setting has affinity_scope, affinity_strict (0 or 1), pull_cost (per cent of the usual; \
null for auto, which chooses it), items_per_s with its standard deviation sd over the seeds, cpu_us (CPU \
time of an item), p99_us (of an item's whole way) and pulled (the share of items pulled from other pods); \
whole is false if runs are missing.

Examples:
  homing lab recommend                  this machine, the load of homing serve
  homing lab recommend --machine epyc-9654-2s --workload load.json
  homing lab recommend --cost cold_node_ns=5000 --cost cold_remote_ns=12000"
)]
pub(crate) struct RecommendArgs {
    /// The machine, as for homing lab run
    #[arg(long, value_name = "MACHINE", default_value = "here")]
    machine: String,

    /// The load [default: that of homing serve: 32 KiB items of 20 us from every CPU]
    #[arg(long = "workload", value_name = "FILE.json")]
    load: Option<PathBuf>,

    /// The model of the host's scheduler
    #[arg(long, value_name = "MODEL", default_value = HostModel::Cfs.name(),
        value_parser = hosts())]
    host: String,

    /// What something costs, in place of the usual; homing lab list --costs shows the names and the
    /// usual values. May be given several times
    #[arg(long = "cost", value_name = "NAME=VALUE")]
    costs: Vec<GivenCost>,

    /// How many seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,

    /// Print JSON: {"machine", "host", "seeds", "load", "whole", "settings"}, the best setting
    /// first
    #[arg(long)]
    json: bool,
}

/// The least simulated time that is measured in each run.
const MEASURED_NS: u64 = 300_000_000;
/// A run is also measured for at least as long as this many items take, one after the other.
const ITEMS_MIN: f64 = 200.0;

pub(crate) fn run(args: &RecommendArgs) -> anyhow::Result<()> {
    let machine = NamedMachine::find(&args.machine)?;
    let load = args.load.as_deref().map(Load::read).transpose()?.unwrap_or_default();
    let host = HOSTS.into_iter().find(|host| host.name() == args.host).unwrap_or(HostModel::Cfs);
    let items = Duration::from_secs_f64(ITEMS_MIN * (load.item_us + load.issuer_us) / 1e6);
    let measured_ns = MEASURED_NS.max(items.as_nanos() as u64);
    let costs = GivenCosts::of(&args.costs)?;
    let trial = Trial { machine, load, host, seeds: args.seeds, measured_ns, costs };
    let stop = stop_flag()?;
    let bar = bar("simulating", 0);
    let advice = recommend(&trial, &stop, |progress| {
        bar.set_length(progress.of as u64);
        bar.set_position(progress.done as u64);
    })?;
    bar.finish_and_clear();
    let whole = !stop.load(Ordering::Relaxed);
    if advice.is_empty() {
        bail!("stopped before any run had ended");
    }
    if args.json {
        let entry = |advice: &Advice| {
            json!({
                "affinity_scope": advice.scope, "affinity_strict": u8::from(advice.strict),
                "pull_cost": advice.pull_cost_pct,
                "items_per_s": advice.rate.mean, "sd": advice.rate.sd,
                "cpu_us": advice.cpu_us, "p99_us": advice.p99_us, "pulled": advice.pulled,
            })
        };
        output::print_json(&json!({
            "machine": trial.machine.name, "host": trial.host.name(), "seeds": trial.seeds,
            "load": trial.load, "whole": whole,
            "settings": advice.iter().map(entry).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut text = table_of(&advice);
        // What has not been tried might have been better.
        if whole {
            text = format!("{}\n{text}", told(&trial, &advice));
        }
        output::print_text(&(text + "\n"))?;
    }
    if !whole {
        bail!("stopped: this ranks the runs that had ended, not all settings");
    }
    Ok(())
}

fn table_of(advice: &[Advice]) -> String {
    let mut table = table(&[
        "scope", "strict", "pull", "items/s", "± %", "to best", "CPU us", "p99 us", "pulled",
    ]);
    let most = advice.iter().map(|other| other.rate.mean).fold(0.0, f64::max);
    for entry in advice {
        table.add_row([
            entry.scope.clone(),
            u8::from(entry.strict).to_string(),
            entry.pull_cost_pct.map_or_else(String::new, |pct| format!("{pct} %")),
            grouped_digits(&format!("{:.0}", entry.rate.mean)),
            format!("{:.1}", entry.rate.sd / entry.rate.mean * 100.0),
            format!("{:+.1} %", (entry.rate.mean / most - 1.0) * 100.0),
            format!("{:.2}", entry.cpu_us),
            format!("{:.0}", entry.p99_us),
            format!("{:.2}", entry.pulled),
        ]);
    }
    align(&mut table, 1);
    let about = "pull: pull_cost   CPU us: of an item   p99 us: of an item's whole way\n\
                 pulled: share of items pulled from other pods";
    format!("{}\n{about}", in_parts(&table, 2))
}

/// What to choose, and why.
fn told(trial: &Trial, advice: &[Advice]) -> String {
    let best = &advice[0];
    let least = advice.iter().map(|entry| entry.rate.mean).fold(f64::INFINITY, f64::min);
    let all_alike = least >= best.rate.mean * 0.99;
    let threshold = best.pull_cost_pct;
    let threshold = threshold.map_or_else(String::new, |pct| format!(", pull_cost {pct} %"));
    format!(
        "on {machine}: affinity_scope {scope}, affinity_strict {strict}{threshold}\n\
         Simulated, on {host}. Settings within one per cent of the best, or within the noise, count as\n\
         equal: the default comes first among them, then what is not strict and pulls as usual, then\n\
         what needs less CPU time.{zen}{alike}",
        machine = trial.machine.name,
        scope = best.scope,
        strict = u8::from(best.strict),
        host = trial.host.name(),
        alike = if all_alike {
            " Under this load all settings do the same: try\none with fewer issuers (--workload)."
        } else {
            ""
        },
        zen = if trial.costs.is_empty() {
            " What cold data costs is Zen 2's, whatever the machine: see --cost."
        } else {
            ""
        },
    )
}
