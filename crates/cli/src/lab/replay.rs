//! `homing lab replay`: recorded decisions, made again.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use homing::recorded::DecisionLog;
use homing_lab::{Difference, Replayed};
use serde_json::json;

use crate::output;
use crate::table;

/// How many differences people are shown; programs get all of them.
const SHOWN: usize = 5;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// What homing wq record wrote; - for standard input
    file: PathBuf,

    /// Print JSON, every difference included
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Each decision is made again from the recorded facts, by the same code that the runtime and the \
simulator use. A decision that comes out differently means that a rule has changed since; that is \
an error, so that a script notices.

Examples:
  homing wq record --socket disk.control -o decisions.jsonl
  homing lab replay decisions.jsonl     here, or elsewhere with another version";

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let log: DecisionLog = read(args)?
        .parse()
        .with_context(|| format!("{} holds no recorded decisions", args.file.display()))?;
    let replayed = Replayed::of(&log);
    if args.json {
        output::print_json(&for_programs(&log, &replayed))?;
    } else {
        output::print(for_people(&log, &replayed).as_bytes())?;
    }
    if replayed.decisions() == 0 {
        bail!("no decision was recorded: record while the program has work");
    }
    let (all, others) = (replayed.decisions(), replayed.differences.len());
    if others > 0 {
        bail!("{others} of {all} decisions come out in another way than when they were recorded");
    }
    Ok(())
}

fn read(args: &ReplayArgs) -> anyhow::Result<String> {
    let read = if args.file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&args.file)
    };
    read.with_context(|| format!("cannot read {}", args.file.display()))
}

fn for_people(log: &DecisionLog, replayed: &Replayed) -> String {
    let row = |name: &str, all: u64, others: u64| {
        vec![name.to_owned(), all.to_string(), (all - others).to_string(), others.to_string()]
    };
    let kinds = replayed.kinds.iter().map(|of| row(of.name, of.decisions, of.different));
    let all = row("all", replayed.decisions(), replayed.differences.len() as u64);
    let header = ["DECISION", "RECORDED", "THE SAME", "OTHERS"];
    let mut text = format!("Decisions for {} CPUs\n\n", log.machine().cpus().len());
    text += &table::plain(&header, kinds.chain([all]), 1, &[]);
    for other in replayed.differences.iter().take(SHOWN) {
        let Difference { number, asked, then, now } = other;
        let _ = writeln!(text, "\nno. {number}: {asked}\n  then: {then}\n  now:  {now}");
    }
    let more = replayed.differences.len().saturating_sub(SHOWN);
    if more > 0 {
        let _ = writeln!(text, "\nand {more} more: --json has all");
    }
    text
}

fn for_programs(log: &DecisionLog, replayed: &Replayed) -> serde_json::Value {
    let kinds = replayed
        .kinds
        .iter()
        .map(|of| json!({ "name": of.name, "decisions": of.decisions, "different": of.different }));
    let differences = replayed.differences.iter().map(
        |of| json!({ "number": of.number, "asked": of.asked, "then": of.then, "now": of.now }),
    );
    json!({
        "cpus": log.machine().cpus().len(),
        "decisions": replayed.decisions(),
        "kinds": kinds.collect::<Vec<_>>(),
        "differences": differences.collect::<Vec<_>>(),
    })
}
