//! `homing lab run fsync`: what is asked for, measured with a bar, and shown by `fsync_table`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use clap::Args;
use homing_control::ByteSize;
use homing_lab::fsync::{Report, Setup};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::experiments::bar;
use super::fsync_table;
use crate::output;

/// The longest file.
const SIZE_MAX: u64 = 1 << 30;

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct FsyncArgs {
    /// A folder on the filesystem to measure; the files are made in a new folder there, which is
    /// removed afterwards
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// How many files are made durable each time
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,

    /// Size of a file: bytes, or as in 64K
    #[arg(long, value_name = "SIZE", default_value = "4096", value_parser = size)]
    size: ByteSize,

    /// How many issuers share the files; each number is measured by itself
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,8,16,32",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    issuers: Vec<u32>,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Print JSON: an object for each row, one a line
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
What is measured: new files are written and closed, which leaves them in memory. Then the clock \
starts, and each file is opened, made durable and closed again (for syncfs, one file for each \
issuer). Every round does this with each strategy and number of issuers, in a different order; the \
figures are medians over the rounds.

Strategies:
  serial        each issuer calls fsync of its files one after the other
  threads       issuers hand their files to 16 threads that call fsync
  syncfs        each issuer calls syncfs: a bound, as no file has a verdict
  homing        each issuer begins Durable::fsync of all its files, awaits all
  homing-many   each issuer awaits one Durable::fsync_many of all its files

The table shows the published experiment (D. Chinner, 29 October 2015, XFS on an SSD) beside the \
results: its sync corresponds to serial, its async to homing. Its aggregation counts the journal's \
writes, ours the device's flushes, of which a new file may take two. homing lab run aio-fsync \
simulates the experiment; homing-bench fsync measures more peers and loads, also on slower disks.

What is measured is the filesystem below DIR: on tmpfs a sync does nothing, and shows nothing. \
With the defaults, a disk that takes 1 ms for a sync is busy for some minutes. After Ctrl-C nothing \
new is begun; syncs under way are awaited, the files are removed, and the rounds that have ended \
are printed.

Examples:
  homing lab run fsync --dir .
  homing lab run fsync --dir /srv --files 1000 --issuers 1,8
  homing lab run fsync --dir /srv --size 64K --rounds 5
  homing lab run fsync --dir /srv --json |
      jq -r '[.strategy, .issuers, .files_per_s] | @tsv'

With --json a row has strategy, issuers, files_per_s (with files_per_s_min and files_per_s_max), \
p50_us and p99_us (from the request for a file's sync until its end is known; files requested \
together end together), device_writes and device_flushes (of the whole partition and disk, by any \
program; null for filesystems without a device, such as tmpfs and overlays), aggregation (files \
for each flush) and cpu_s (of this process).";

fn size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if (1..=SIZE_MAX).contains(&size.0) {
        return Ok(size);
    }
    Err(format!("{text:?} is not a size for these files: use 1 byte to {}", ByteSize(SIZE_MAX)))
}

pub(crate) fn run(args: &FsyncArgs) -> anyhow::Result<()> {
    let mut issuers: Vec<usize> = args.issuers.iter().map(|issuers| *issuers as usize).collect();
    issuers.sort_unstable();
    issuers.dedup();
    let setup = Setup {
        dir: args.dir.clone(),
        files: args.files as usize,
        size: usize::try_from(args.size.0)?,
        issuers,
        rounds: args.rounds as usize,
    };
    let stop = stop_flag()?;
    let bar = bar("measuring", setup.measurements());
    let report = setup.run(&stop, |progress| bar.set_position(progress.done as u64));
    bar.finish_and_clear();
    let report = report?;
    if args.json {
        output::print(lines(&report)?.as_bytes())?;
    } else if !report.rows.is_empty() {
        output::print_line(&fsync_table::told(&setup, &report))?;
    }
    if !report.is_whole {
        // A program that reads the output, and no message, is to learn of it, too.
        bail!(stopped(&report, setup.rounds));
    }
    Ok(())
}

fn lines(report: &Report) -> anyhow::Result<String> {
    let line = |row| Ok(serde_json::to_string(row)? + "\n");
    report.rows.iter().map(line).collect()
}

fn stopped(report: &Report, asked: usize) -> String {
    match report.rounds {
        0 if report.rows.is_empty() => "stopped before anything had ended".to_owned(),
        0 => "stopped in the first round: this is what had ended of it".to_owned(),
        rounds => format!("stopped: these are the {rounds} of {asked} rounds that had ended"),
    }
}

/// A flag that any signal for the end sets. Unlike where nothing has to be removed, a second signal
/// does not end the program at once.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle Ctrl-C")?;
    }
    Ok(stop)
}
