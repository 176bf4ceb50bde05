//! Measures homing and its peers on the machine it runs on. Each subcommand is one comparison.

mod cache;
mod cell;
mod child;
mod decide;
mod exec;
mod fsync;
mod interrupt;
mod latency;
mod machine;
mod metric;
mod mixed;
mod nbd;
mod page;
mod procfs;
mod progress;
mod rounds;
mod simulate;
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
    /// The same servers under nbdcopy, with and without TLS.
    NbdCopy(nbd::CopyOptions),
    /// Executors on small work items: homing, rayon, tokio and others.
    Exec(exec::Options),
    /// What a scheduling decision takes, on machines of up to 1,024 CPUs.
    Decide(decide::Options),
    /// How many events of a simulated machine one CPU makes a second.
    Simulate(simulate::Options),
    /// Concurrent caches of objects: moka, foyer and others.
    #[command(after_long_help = cache::HELP)]
    Cache(cache::Options),
    /// Ways to make many files durable: threads, Linux AIO, `io_uring`, tokio, homing and others.
    #[command(after_long_help = fsync::HELP)]
    Fsync(fsync::Options),
    /// Two tenants of one page cache: clean reads of a large file, and a dirty working set.
    #[command(after_long_help = mixed::HELP)]
    Mixed(mixed::Options),
    /// One measurement of `mixed`, in a process of its own.
    #[command(hide = true)]
    MixedCell(mixed::Cell),
    /// One measurement of `fsync`, in a process of its own.
    #[command(hide = true)]
    FsyncCell(fsync::Cell),
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
        Command::NbdCopy(options) => nbd::run_copy(&options),
        Command::Exec(options) => exec::run(&options),
        Command::Decide(options) => decide::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Cache(options) => cache::run(&options),
        Command::Fsync(options) => fsync::run(&options),
        Command::Mixed(options) => mixed::run(&options),
        Command::MixedCell(cell) => mixed::run_cell(&cell),
        Command::FsyncCell(cell) => fsync::run_cell(&cell),
        Command::CacheCell(cell) => cache::run_cell(&cell),
        Command::ExecCell(cell) => exec::run_cell(&cell),
    }
}
