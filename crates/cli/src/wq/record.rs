//! `homing wq record`: what a running program decides, with all that it decides from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use homing_control::Client;

use crate::attributes::ControlArgs;
use crate::spans::seconds;
use crate::stop::Stop;
use crate::{output, written};

const LIMIT: &str = "module/record_decisions";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    control: ControlArgs,

    /// The file to write; - for standard output
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,

    /// How long to record
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,

    /// Keep this many of the latest decisions, up to 10000
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    decisions: u32,
}

const EXAMPLES: &str = "\
While decisions are recorded, each takes a lock that all workers share.

Examples:
  homing wq record --socket disk.control -o decisions.jsonl
  homing lab replay decisions.jsonl     does this version decide the same?

Ctrl-C ends the recording early and keeps what was recorded.";

pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<()> {
    let stop = Stop::on_signals()?;
    let mut client = args.control.connect()?;
    let before = client.get(LIMIT)?;
    if before != "0" {
        bail!(
            "decisions are being recorded already (the latest {before}): wait until that ends, or end it with `homing set \
             {LIMIT} 0`"
        );
    }
    let to_file = args.out != Path::new("-");
    if to_file {
        written::check(&args.out)?;
    }
    client.set(LIMIT, &args.decisions.to_string())?;
    let recorded = record(args, &stop, client);
    // Stop whatever has become of the recording, since it costs time. By a new connection, as an
    // idle one is closed.
    let ended = args.control.connect().and_then(|mut client| client.set(LIMIT, "0"));
    let recorded = recorded?;
    if !to_file {
        output::print(recorded.as_bytes())?;
        return Ok(ended?);
    }
    written::write(&args.out, &recorded)?;
    ended?;
    let (count, file) = (recorded.lines().count().saturating_sub(1), args.out.display());
    output::print_line(&format!("{file}: {count} decisions; homing lab replay {file}"))
}

fn record(args: &RecordArgs, stop: &Stop, mut client: Client) -> anyhow::Result<String> {
    client.get("module/decisions")?; // discards those of earlier recordings
    drop(client);
    stop.within(args.seconds)?;
    Ok(args.control.connect()?.get("module/decisions")?)
}
