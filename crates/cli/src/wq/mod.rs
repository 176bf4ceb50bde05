//! `homing wq`: the workqueues of a running program, seen through its attributes alone.

mod dump;
mod monitor;
mod record;

use clap::{Args, Subcommand};

#[derive(Args)]
pub(crate) struct WqArgs {
    #[command(subcommand)]
    command: WqCommand,
}

#[derive(Subcommand)]
enum WqCommand {
    /// Show how everything is set up: pods, pools, and which workqueue uses which
    Dump(dump::DumpArgs),
    /// Show what workqueues have done, again and again
    Monitor(monitor::MonitorArgs),
    /// Record decisions with all that they are made from, to be made again by homing lab replay
    Record(record::RecordArgs),
}

pub(crate) fn run(args: &WqArgs) -> anyhow::Result<()> {
    match &args.command {
        WqCommand::Dump(args) => dump::run(args),
        WqCommand::Monitor(args) => monitor::run(args),
        WqCommand::Record(args) => record::run(args),
    }
}
