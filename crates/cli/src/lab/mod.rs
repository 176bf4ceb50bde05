//! `homing lab`: experiments without a server.

mod json;
mod tables;
mod trace;

use clap::{Args, Subcommand};

#[derive(Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    /// Replay access traces against cache policies: hit ratios, I/O, comparisons, plots
    Trace(Box<trace::TraceArgs>),
}

pub(crate) fn run(args: &LabArgs) -> anyhow::Result<()> {
    match &args.command {
        LabCommand::Trace(args) => trace::run(args),
    }
}
