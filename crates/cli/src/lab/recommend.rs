//! `homing lab recommend`: which scope to choose, with the evidence.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::bail;
use clap::Args;
use homing_lab::experiments::{Advice, Load, NamedMachine, recommend};
use serde_json::json;

use super::experiments::{bar, stop_flag};
use super::tables::{align, table};
use crate::output;

#[derive(Args)]
#[command(after_help = "A load is a JSON file; what it does not tell is as here:
  {\"issuers\": 0, \"depth\": 64, \"item_us\": 20, \"issuer_us\": 5, \"bytes\": 32768}
issuers 0: one for each CPU")]
pub(crate) struct RecommendArgs {
    /// The machine, as for homing lab run
    #[arg(long, value_name = "MACHINE", default_value = "here")]
    machine: String,

    /// The load [default: that of homing serve: 32 KiB items of 20 us from every CPU]
    #[arg(long = "workload", value_name = "FILE.json")]
    load: Option<PathBuf>,

    /// How many seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,

    /// Print for programs: the settings, the best first
    #[arg(long)]
    json: bool,
}

/// What is measured of each run.
const MEASURED_NS: u64 = 300_000_000;

pub(crate) fn run(args: &RecommendArgs) -> anyhow::Result<()> {
    let machine = NamedMachine::find(&args.machine)?;
    let load = args.load.as_deref().map(Load::read).transpose()?.unwrap_or_default();
    let stop = stop_flag()?;
    let bar = bar("simulating", 0);
    let advice = recommend(&machine, &load, args.seeds, MEASURED_NS, &stop, |progress| {
        bar.set_length(progress.of as u64);
        bar.set_position(progress.done as u64);
    })?;
    bar.finish_and_clear();
    if stop.load(Ordering::Relaxed) {
        bail!("stopped: what had ended says nothing of the rest");
    }
    if args.json {
        let entry = |advice: &Advice| {
            json!({
                "policy": advice.policy, "items_per_s": advice.rate.mean, "sd": advice.rate.sd,
                "cpu_us": advice.cpu_us, "p99_us": advice.p99_us, "pulled": advice.pulled,
            })
        };
        let all: Vec<_> = advice.iter().map(entry).collect();
        return output::print_line(&serde_json::to_string(&all)?);
    }
    output::print_line(&told(&machine.name, &advice))
}

fn told(machine: &str, advice: &[Advice]) -> String {
    let Some(best) = advice.first() else {
        return "stopped before any run had ended".to_owned();
    };
    let mut table = table(&[
        "setting",
        "items/s",
        "± %",
        "against the best, %",
        "CPU us/item",
        "p99 us",
        "pulled",
    ]);
    for entry in advice {
        let most = advice.iter().map(|other| other.rate.mean).fold(0.0, f64::max);
        table.add_row([
            entry.policy.clone(),
            format!("{:.0}", entry.rate.mean),
            format!("{:.1}", entry.rate.sd / entry.rate.mean * 100.0),
            format!("{:+.1}", (entry.rate.mean / most - 1.0) * 100.0),
            format!("{:.2}", entry.cpu_us),
            format!("{:.0}", entry.p99_us),
            format!("{:.2}", entry.pulled),
        ]);
    }
    align(&mut table, 1);
    let (scope, strict) = match best.policy.strip_suffix("+strict") {
        Some(scope) => (scope, 1),
        None => (best.policy.as_str(), 0),
    };
    format!(
        "on {machine}: affinity_scope {scope}, affinity_strict {strict}\n\
         Simulated. Settings within one per cent of the best, or within the noise, count as equal: the\n\
         default comes first among them, then what is not strict, then what needs less CPU time.\n{table}"
    )
}
