//! `homing lab trace`: what is asked for, read, replayed, and shown by `tables` or `json`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use homing_lab::compare::{Candidate, Plan, Progress};
use homing_lab::{Column, Format, REQUESTS_MAX, Size, Trace, TraceError, policies};
use indicatif::ProgressBar;

use super::{json, once, tables};
use crate::count::count;
use crate::{output, progress, written};

/// Sizes if none are given: to look at one policy, to compare many, to draw curves.
const ONE_SIZE: [&str; 1] = ["5%"];
const COMPARED_SIZES: [&str; 4] = ["1%", "5%", "10%", "25%"];
const PLOTTED_SIZES: [&str; 6] = ["1%", "2%", "5%", "10%", "20%", "40%"];

#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools)] // each is a flag of its own
pub(crate) struct TraceArgs {
    /// The traces
    #[arg(value_name = "FILE", required_unless_present = "list")]
    files: Vec<PathBuf>,

    /// What the traces are [default: by their names: .txt, .csv, either with .zst, and else ctr]
    #[arg(long = "trace-type", short = 't', value_enum, value_name = "TYPE")]
    trace_type: Option<TraceType>,

    /// The column of CSV that has the keys: its name in the header, or its number, from 1, if there
    /// is no header
    #[arg(long, value_name = "COLUMN")]
    obj_id_col: Option<Column>,

    /// Size of the cache: a share of the trace's different pages, rounded down, or a number of
    /// pages [default: 5%; 1%,5%,10%,25% to compare; 1%,2%,5%,10%,20%,40% to plot]
    #[arg(long = "size", short, value_name = "SIZE", value_delimiter = ',')]
    sizes: Vec<Size>,

    /// The policy; several may be given [default: the first that --list has; all to compare]
    #[arg(
        long = "policy", short, value_name = "NAME", value_delimiter = ',', hide_possible_values = true,
        value_parser = PossibleValuesParser::new(policies::names())
    )]
    policies: Vec<String>,

    /// Compare the policies: hit ratios, the best of each column marked, and the mean share of the
    /// distance from FIFO to the optimum that each closes
    #[arg(long)]
    compare: bool,

    /// Compare, and draw the hit ratios over the sizes
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// Mix the traces into one, in proportion to their lengths, each a tenant with its own pages
    #[arg(long)]
    mix: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    /// List the policies and what they do
    #[arg(long, conflicts_with_all = ["files", "compare", "plot", "mix"])]
    list: bool,

    /// How many replays run at once [default: the number of CPUs to compare, else 1, so that times
    /// can be believed]
    #[arg(long, short = 'j', value_name = "N", value_parser = count)]
    threads: Option<NonZeroUsize>,

    /// Refuse traces of more requests: each takes 4 bytes of memory, and up to 64 if its key is
    /// new, and a few bytes of a file can stand for very many
    #[arg(long, value_name = "N", default_value_t = REQUESTS_MAX)]
    requests_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TraceType {
    /// A CTR1 container
    Ctr,
    /// A key on each line
    Txt,
    /// A key in a column of each line: --obj-id-col
    Csv,
}

impl TraceType {
    /// What a file is by its name.
    fn of(path: &Path) -> Self {
        let is =
            |path: &Path, wanted| path.extension().is_some_and(|extension| extension == wanted);
        let plain = if is(path, "zst") { path.with_extension("") } else { path.to_owned() };
        if is(&plain, "txt") {
            Self::Txt
        } else if is(&plain, "csv") {
            Self::Csv
        } else {
            Self::Ctr
        }
    }
}

const EXAMPLES: &str = "\
A trace is a CTR1 container or text, plain or compressed with zstd. Each access is to one page, \
and is a hit if the cache holds that page. I/O is what a disk below would have to do: reads that miss, and \
dirty pages that are written back, when they are evicted or at the end.

Examples:
  homing lab trace oltp.ctr.zst --size 5%            one policy, one size
  homing lab trace oltp.ctr.zst -s 1%,5% -p lru,arc  four replays, a line each
  homing lab trace *.ctr.zst --compare               compare all policies
  homing lab trace oltp.ctr.zst --plot oltp.svg      the same, with curves
  homing lab trace a.ctr.zst b.ctr.zst --mix         two tenants in one cache
  homing lab trace oltp.ctr.zst --json | jq .hit_ratio
  homing lab trace ids.txt --compare                 text: a key on each line
  homing lab trace a.csv --obj-id-col obj_id         the column named obj_id
  homing lab trace a.log -t csv --obj-id-col 2       column 2; no header
  homing lab trace --list                            the policies

Keys in text are numbers or any words; all accesses in text are reads. In CSV the fields up to the \
key may not be quoted.

CTR1 is little-endian: the bytes CTR1, a u32 version (1), a u64 number of records, and the records: \
a u64 page, a u32 run (accesses to that many pages, beginning with it), u16 flags (1: a write), a \
u16 tenant (0).

With --json one replay is an object: trace, policy, size, capacity (in pages), pages, requests, \
hits, hit_ratio (0 to 1), evictions, writebacks, io, seconds, accesses_per_second, and tenants \
if there are several. Several replays are an array of such objects. A comparison is an object: \
cells, such an array, and policies, with the share (0 to 1) of each and its worst cell against LRU.";

pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<()> {
    if args.list {
        let text = if args.json { json::policies()? } else { tables::policies() };
        return output::print_line(&text);
    }
    let compare = args.compare || args.plot.is_some();
    if let Some(path) = &args.plot {
        check_plot(path)?;
    }
    let bar = progress::bar("{msg}", 0);
    let traces = load(args, &bar)?;
    let sizes = sizes(args);
    let candidates = candidates(args, compare);
    let threads = args.threads.map_or_else(|| default_threads(compare), NonZeroUsize::get);
    let plan = Plan { traces: &traces, sizes: &sizes, candidates: &candidates, threads };
    let tell = |progress: Progress| {
        bar.set_length(progress.all);
        bar.set_position(progress.done);
    };
    bar.set_style(progress::style("replaying {bar:30} {percent}%, {eta} left"));
    let mut plotted = Ok(());
    let text = if compare {
        let comparison = plan.run(&tell);
        bar.finish_and_clear();
        if let Some(path) = &args.plot {
            let plot = comparison.plot()?;
            plotted = written::write(path, &plot);
        }
        if args.json {
            json::comparison(&comparison)?
        } else {
            tables::comparison(&comparison, &traces)
        }
    } else {
        let cells = plan.cells(&tell);
        bar.finish_and_clear();
        let tenants: Vec<String> = if args.mix { names(&args.files) } else { Vec::new() };
        if args.json {
            json::cells(&cells, &tenants)?
        } else {
            tables::cells(&cells, &traces, &tenants)
        }
    };
    output::print_line(&if args.json { output::printable_json(&text) } else { text })?;
    // Only now, so that the table is printed in any case.
    plotted
}

fn load(args: &TraceArgs, bar: &ProgressBar) -> anyhow::Result<Vec<Trace>> {
    let is_csv = |path: &PathBuf| type_of(args, path) == TraceType::Csv;
    if args.obj_id_col.is_some() && !args.files.iter().any(is_csv) {
        bail!(
            "--obj-id-col has no effect, because no file is CSV: add --trace-type csv if they are"
        );
    }
    let mut traces = Vec::new();
    for path in &args.files {
        bar.set_message(format!("reading {}", output::printable(&path.display().to_string())));
        let format = format(args, path)?;
        let trace = Trace::load_as(path, &format, args.requests_max).map_err(with_advice)?;
        if trace.is_empty() {
            bail!("{} has no requests: there is nothing to replay", path.display());
        }
        traces.push(trace);
    }
    Ok(if args.mix { vec![Trace::interleave(&traces)?] } else { traces })
}

fn type_of(args: &TraceArgs, path: &Path) -> TraceType {
    args.trace_type.unwrap_or_else(|| TraceType::of(path))
}

fn format(args: &TraceArgs, path: &Path) -> anyhow::Result<Format> {
    Ok(match (type_of(args, path), &args.obj_id_col) {
        (TraceType::Ctr, _) => Format::Ctr,
        (TraceType::Txt, _) => Format::Txt,
        (TraceType::Csv, Some(column)) => Format::Csv(column.clone()),
        (TraceType::Csv, None) => bail!(
            "{} is CSV: say with --obj-id-col which column has the keys, by its name in the header, or by its number \
             where there is none",
            path.display()
        ),
    })
}

/// The library says what is wrong; which option helps is known here.
fn with_advice(error: TraceError) -> anyhow::Error {
    match error {
        TraceError::Magic { .. } => anyhow!("{error}; text is read with --trace-type txt or csv"),
        TraceError::TooManyRequests { .. } | TraceError::TooManyLines { .. } => {
            anyhow!("{error} (--requests-max)")
        }
        error => error.into(),
    }
}

fn sizes(args: &TraceArgs) -> Vec<Size> {
    let defaults: &[&str] = match (args.compare, &args.plot) {
        (_, Some(_)) => &PLOTTED_SIZES,
        (true, None) => &COMPARED_SIZES,
        (false, None) => &ONE_SIZE,
    };
    let mut sizes = args.sizes.clone();
    if sizes.is_empty() {
        sizes = defaults.iter().map(|size| size.parse().expect("these are sizes")).collect();
    }
    once(sizes)
}

fn candidates(args: &TraceArgs, compare: bool) -> Vec<Candidate> {
    let names = match (args.policies.is_empty(), compare) {
        (true, true) => policies::names().into_iter().map(str::to_owned).collect(),
        (true, false) => vec![policies::default_name().to_owned()],
        (false, _) => once(args.policies.clone()),
    };
    let named = |name: &String| Candidate::named(name).expect("clap knows the names");
    names.iter().map(named).collect()
}

/// What the tenants of a mix are called.
fn names(files: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().map(name).collect()
}

/// Checks before the long work that the plot can be written.
fn check_plot(path: &Path) -> anyhow::Result<()> {
    if path.extension().is_none_or(|extension| extension != "svg") {
        bail!("--plot {}: plots are SVG, so give a name that ends in .svg", path.display());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("--plot {}: there is no folder {}", path.display(), folder.display());
    }
    written::check(path)
}

fn default_threads(compare: bool) -> usize {
    if compare { thread::available_parallelism().map_or(1, NonZeroUsize::get) } else { 1 }
}
