//! Measures homing beside its peers, on the machine it runs on. Each subcommand is one comparison.

#![forbid(unsafe_code)]

mod cache;
mod cell;
mod child;
mod exec;
mod interrupt;
mod machine;
mod metric;
mod nbd;
mod page;
mod procfs;
mod progress;
mod size;
mod spread;
mod stopwatch;
mod tool;

use clap::{Parser, Subcommand};

/// Measures homing beside its peers, interleaved in one run.
#[derive(Parser)]
#[command(name = "homing-bench", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Encrypted NBD servers under fio: homing, nbdkit with its luks filter, qemu-nbd.
    Nbd(nbd::Options),
    /// Executors on small work items: homing, rayon, tokio and others.
    Exec(exec::Options),
    /// Concurrent caches of objects: moka, foyer and others.
    #[command(after_long_help = cache::HELP)]
    Cache(cache::Options),
    /// One measurement of `cache`, in a process of its own.
    #[command(hide = true)]
    CacheCell(cache::Cell),
    /// One measurement of `exec`, in a process of its own.
    #[command(hide = true)]
    ExecCell(exec::Cell),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Nbd(options) => nbd::run(&options),
        Command::Exec(options) => exec::run(&options),
        Command::Cache(options) => cache::run(&options),
        Command::CacheCell(cell) => cache::run_cell(&cell),
        Command::ExecCell(cell) => exec::run_cell(&cell),
    }
}
