//! `homing lab`: experiments without a server.

mod compare;
mod experiment_tables;
mod experiments;
mod fsync;
mod fsync_table;
mod json;
mod recommend;
mod replay;
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
    /// The published experiments that can be run
    List(experiments::ListArgs),
    /// Run a published experiment on a simulated machine, or that of fsync on this one, beside the
    /// published table
    Run(Box<experiments::RunArgs>),
    /// Join the parts of a sweep that were run with --shard
    Merge(experiments::MergeArgs),
    /// Compare homing with the kernel's settings on many machines, and say where it is behind
    Compare(compare::CompareArgs),
    /// Write one page with every table and plot
    Report(experiments::ReportArgs),
    /// Which affinity scope to choose on a machine, with the evidence
    Recommend(recommend::RecommendArgs),
    /// Make recorded decisions again, and say which ones come out differently
    Replay(replay::ReplayArgs),
    /// Replay access traces against cache policies: hit ratios, I/O, comparisons, plots
    Trace(Box<trace::TraceArgs>),
}

pub(crate) fn run(args: &LabArgs) -> anyhow::Result<()> {
    match &args.command {
        LabCommand::List(args) => experiments::list(args),
        LabCommand::Run(args) => experiments::run(args),
        LabCommand::Merge(args) => experiments::merge(args),
        LabCommand::Compare(args) => compare::run(args),
        LabCommand::Report(args) => experiments::report(args),
        LabCommand::Recommend(args) => recommend::run(args),
        LabCommand::Replay(args) => replay::run(args),
        LabCommand::Trace(args) => trace::run(args),
    }
}

/// Each of these once, in the order in which they first come.
fn once<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut some = Vec::new();
    for one in all {
        if !some.contains(&one) {
            some.push(one);
        }
    }
    some
}
