//! `homing lab list`, `run`, `merge` and `report`: what is asked for, run with a bar, and shown by
//! `experiment_tables`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Subcommand};
use homing::Features;
use homing_lab::experiments::{
    self, COMPARED, Cell, Cost, EXPERIMENTS, Experiment, Follows, GivenCost, GivenCosts, HOSTS,
    HostModel, Measure, Merged, NamedMachine, PRESETS, Part, Plan, Preset, Progress, Settings,
    Shard, ShardError, Sweep,
};
use homing_lab::fsync as real;
use indicatif::{HumanDuration, ProgressBar, ProgressState};
use serde_json::json;
use signal_hook::iterator::Signals;

use super::once;
use super::{compare, experiment_tables, fsync};
use crate::stop::{self, ending_signals, stop_then_end};
use crate::{output, progress, written};

/// How many runs are done at a time at most: each takes memory before the first one begins.
const RUNS_MAX: usize = 4_000_000;

/// How often a bar is drawn even if no run ends.
const REDRAWN: Duration = Duration::from_millis(250);

#[derive(Args)]
pub(crate) struct ListArgs {
    /// What things cost on a simulated machine, and where each figure comes from
    #[arg(long)]
    costs: bool,

    /// The machines that have a name of their own
    #[arg(long, conflicts_with = "costs")]
    machines: bool,

    /// Print JSON: an array of {"experiment", "about"}, of {"cost", "value", "source"}, or of
    /// {"machine", "about", "cpus"}
    #[arg(long)]
    json: bool,
}

/// What a run takes.
#[derive(Args)]
pub(crate) struct PlanArgs {
    /// The machine: a preset (homing lab list --machines), a grid such as 4x3x2 (caches x cores x
    /// threads, or nodes before them), an hwloc XML file, the folder of a captured /sys tree, or
    /// here [default: the published machines]
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,

    /// How many seeds: each is a run of its own
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,

    /// How many simulated seconds are measured in each run
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,

    #[command(flatten)]
    model: ModelArgs,
}

/// What is simulated besides the load: the host's scheduler, and homing.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// Models of the host's scheduler, if there are several [default: all but pinned]
    #[arg(long = "host", value_name = "MODEL", value_delimiter = ',',
        value_parser = hosts())]
    hosts: Vec<String>,

    /// Also run homing with only these parts of its policy
    #[arg(
        long,
        value_name = "LIST",
        value_parser = features,
        long_help = "Also run homing with only these parts of its policy (of SWQUEUE, XSTEAL, SIS_NODE and \
            SMT_AWARE, as in SWQUEUE,XSTEAL), or none. It runs with all parts anyway. May be given several \
            times (wq, wq-latency, compare)"
    )]
    features: Vec<Features>,

    /// How many nanoseconds old the view that homing's workers have of each other is at most (wq,
    /// wq-latency, compare). They share one view, which is new again whenever one of them looks
    /// closely, so it is far less old on average. That of real ones is some 100 ns old
    #[arg(long, value_name = "NS", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    stale_ns: u64,

    /// What something costs, in place of the usual; homing lab list --costs shows the names and the
    /// usual values. May be given several times (wq, wq-latency, udp-rr, compile, compare)
    #[arg(long = "cost", value_name = "NAME=VALUE")]
    costs: Vec<GivenCost>,
}

/// The models of the host's scheduler, with what they are.
pub(super) fn hosts() -> PossibleValuesParser {
    PossibleValuesParser::new(HOSTS.map(|host| PossibleValue::new(host.name()).help(host.about())))
}

/// A part of a sweep.
#[derive(Args)]
pub(crate) struct ShardArgs {
    /// Run only the i-th of n parts, and write its figures into the folder of --out. A part that
    /// was stopped continues where it was
    #[arg(long, value_name = "I/N", requires = "out")]
    shard: Option<Shard>,

    /// The folder for the figures of a part
    #[arg(long, value_name = "DIR", requires = "shard")]
    out: Option<PathBuf>,
}

/// What is measured on real files, with options of its own.
#[derive(Subcommand)]
enum RealCommand {
    /// Make many files of this machine durable in several ways, beside the published table
    Fsync(fsync::FsyncArgs),
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  homing lab run wq                           the published workqueue tables
  homing lab run wq --machine epyc-9654-2s --seeds 3
  homing lab run wq --shard 2/8 --out sweep   one part; merge joins the parts
  homing lab run fsync --dir .                real files: see its own --help

With the defaults a large machine takes long: --seeds 1 --seconds 1 shows in a tenth of the time what \
the experiment is like.

With --json a run has experiment, machine, scenario, policy, host, seed and values. These are, where \
they apply: rate (items, transactions or files a second), mib_s, util_pct (CPU time used, of all CPUs), \
cpu_us (CPU time of an item), p50_us and p99_us (of an item's whole way), wakes_per_item, \
pulled_per_item, inline_share (of all items, those that issuers ran themselves), lost_wakes, \
exposed_max_us (the longest wait beside an idle CPU), lock_pct (CPU time spent waiting for a lock), \
files_per_s and aggregation (commits for each log write), uses_per_s, reads_per_s, use_hits_pct, \
read_hits_pct and written_per_s (two tenants), and events (of the simulator, the warm-up included).")]
pub(crate) struct RunArgs {
    /// The experiments; homing lab list shows them
    #[arg(required = true, value_name = "NAME",
        value_parser = PossibleValuesParser::new(EXPERIMENTS.map(|experiment| experiment.name)))]
    names: Vec<String>,

    #[command(subcommand)]
    real: Option<RealCommand>,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    shard: ShardArgs,

    /// Print JSON: an object for each run, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct MergeArgs {
    /// The folder that the parts were written into
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Write one page with tables and plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Print JSON: an object for each run, one a line (see homing lab run --help)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct ReportArgs {
    /// The page
    #[arg(long, short, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,

    #[command(flatten)]
    plan: PlanArgs,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is no number of seconds between 0.01 and 3600")),
    }
}

/// Nothing is not taken for no parts: it may be a variable that is empty.
fn features(text: &str) -> Result<Features, String> {
    if text.trim().is_empty() {
        return Err("name parts, or none".to_owned());
    }
    text.parse().map_err(|error: homing::ParseFeaturesError| error.to_string())
}

impl PlanArgs {
    /// An option that is given and has no effect is an error, not passed over.
    fn check(&self, experiment: &Experiment) -> anyhow::Result<()> {
        let ModelArgs { hosts, features, stale_ns, costs } = &self.model;
        let given = [
            ("--machine", self.machine.is_some(), Follows::Machine),
            ("--cost", !costs.is_empty(), Follows::Machine),
            ("--host", !hosts.is_empty(), Follows::All),
            ("--features", !features.is_empty(), Follows::All),
            ("--stale-ns", *stale_ns > 0, Follows::All),
        ];
        let unused = given.iter().find(|(_, given, needs)| *given && experiment.follows < *needs);
        if let Some((option, ..)) = unused {
            let takes = |e: &&Experiment| unused.is_some_and(|(.., needs)| e.follows >= *needs);
            let takes: Vec<_> = EXPERIMENTS.iter().filter(takes).map(|e| e.name).collect();
            bail!("{option} does not apply to {}, only to {}", experiment.name, takes.join(", "));
        }
        Ok(())
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let machine = self.machine.as_deref().map(NamedMachine::find).transpose()?;
        let measured_ns = Duration::from_secs_f64(self.seconds).as_nanos() as u64;
        self.model.plan(machine, self.seeds, measured_ns)
    }
}

impl ModelArgs {
    /// The plan for the models that were given, or for all but pinned.
    pub(super) fn plan(
        &self,
        machine: Option<NamedMachine>,
        seeds: u64,
        measured_ns: u64,
    ) -> anyhow::Result<Plan> {
        let chosen = |host: &HostModel| {
            if self.hosts.is_empty() {
                *host != HostModel::Pinned
            } else {
                self.hosts.iter().any(|name| name == host.name())
            }
        };
        Ok(Plan {
            machine,
            hosts: HOSTS.into_iter().filter(chosen).collect(),
            seeds,
            measured_ns,
            // The same twice would count as other seeds.
            features: once(self.features.clone()),
            stale_ns: self.stale_ns,
            costs: GivenCosts::of(&self.costs)?,
        })
    }
}

impl ShardArgs {
    /// Runs the part that is asked for, if one is; otherwise returns the runs.
    pub(super) fn run(
        &self,
        sweep: impl FnOnce() -> Sweep,
        cells: impl IntoIterator<Item = Cell>,
        count: usize,
    ) -> anyhow::Result<Option<Vec<Cell>>> {
        let (Some(shard), Some(folder)) = (self.shard, &self.out) else {
            if count > RUNS_MAX {
                bail!(
                    "these are {count} runs, more than {RUNS_MAX} and too many for one command: ask for fewer machines \
                     or --seeds, or for one part of them after the other with --shard"
                );
            }
            return Ok(Some(cells.into_iter().collect()));
        };
        let part = Part::open(folder, shard, sweep())?;
        let all = shard.of(cells);
        let (runs, left) = (all.len(), part.left(all));
        let failed = Mutex::new(None);
        let (measures, whole) = simulate(&left, |measure| {
            let noted = part.note(measure);
            let goes_on = noted.is_ok();
            if let Err(error) = noted {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            goes_on
        })?;
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let kept = part.kept();
        let no_room = |error: ShardError| {
            anyhow!(
                "{error}; {kept} of {runs} runs are kept, and the same command goes on with the rest when there is room"
            )
        };
        if let (Some(error), false) = (failed, whole) {
            return Err(no_room(error));
        }
        if !whole {
            bail!(
                "stopped: {kept} of {runs} runs are kept in {}, and the same command goes on with the rest",
                part.unfinished().display(),
            );
        }
        let path = part.path().display().to_string();
        // The whole result is written next to what was noted, so it may be what does not fit.
        let runs = part.finish(measures).map_err(no_room)?;
        output::print_line(&format!("{path}: {runs} runs"))?;
        Ok(None)
    }
}

pub(crate) fn list(args: &ListArgs) -> anyhow::Result<()> {
    if args.machines {
        if !args.json {
            return output::print_line(&experiment_tables::machines());
        }
        let entry = |preset: &Preset| json!({ "machine": preset.name, "about": preset.about, "cpus": preset.machine().cpus().len() });
        return output::print_json(&PRESETS.iter().map(entry).collect::<Vec<_>>());
    }
    if args.costs {
        let costs = GivenCosts::default().usual().all();
        if !args.json {
            return output::print_line(&experiment_tables::costs(&costs));
        }
        let entry = |(name, cost): (&str, Cost)| json!({ "cost": name, "value": cost.value, "source": cost.source.to_string() });
        return output::print_json(&costs.into_iter().map(entry).collect::<Vec<_>>());
    }
    if args.json {
        let entry = |name, about| json!({ "experiment": name, "about": about });
        let simulated = EXPERIMENTS.iter().map(|found| entry(found.name, found.about));
        let all: Vec<_> = simulated.chain([entry(real::NAME, real::ABOUT)]).collect();
        return output::print_json(&all);
    }
    output::print_line(&experiment_tables::list())
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    if let Some(RealCommand::Fsync(args)) = &args.real {
        return fsync::run(args);
    }
    let plan = args.plan.plan()?;
    let mut cells = Vec::new();
    // In one order, so that it does not matter to the parts of a sweep in which they were named.
    let mut names = once(args.names.clone());
    names.sort();
    for name in &names {
        let experiment = Experiment::find(name).context("clap knows the names")?;
        args.plan.check(experiment)?;
        cells.extend(experiment.cells(&plan));
    }
    let count = cells.len();
    let Some(cells) = args.shard.run(|| Sweep::new(&names, &plan), cells, count)? else {
        return Ok(());
    };
    let (measures, whole) = simulate(&cells, |_| true)?;
    show(&measures, args.json, &plan.costs)?;
    fail_if_stopped(whole)
}

pub(crate) fn merge(args: &MergeArgs) -> anyhow::Result<()> {
    let Merged { measures, settings } = experiments::merge(&args.folder)?;
    if let Some(path) = &args.report {
        let written = written::write(path, &experiments::report(&measures, true, &settings));
        show(&measures, args.json, &settings.costs)?;
        return written;
    }
    show(&measures, args.json, &settings.costs)
}

pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<()> {
    let plan = args.plan.plan()?;
    written::check(&args.output)?;
    let cells: Vec<Cell> = EXPERIMENTS.iter().flat_map(|e| e.cells(&plan)).collect();
    let (measures, whole) = simulate(&cells, |_| true)?;
    if !whole && args.output.exists() {
        show(&measures, false, &plan.costs)?;
        bail!(
            "stopped: these are the runs that had ended; {} is left as it is",
            args.output.display()
        );
    }
    write_report(&args.output, &measures, whole, &plan.settings())?;
    output::print_line(&format!("{}: {} runs", args.output.display(), measures.len()))?;
    fail_if_stopped(whole)
}

/// If the report cannot be written, its figures are printed.
fn write_report(
    path: &Path,
    measures: &[Measure],
    whole: bool,
    settings: &Settings,
) -> anyhow::Result<()> {
    let written = written::write(path, &experiments::report(measures, whole, settings));
    if written.is_err() {
        show(measures, false, &settings.costs)?;
    }
    written
}

fn show(measures: &[Measure], json: bool, costs: &GivenCosts) -> anyhow::Result<()> {
    if !json {
        let (compared, others): (Vec<_>, Vec<_>) =
            measures.iter().cloned().partition(|measure| measure.key.experiment == COMPARED);
        if !others.is_empty() || compared.is_empty() {
            output::print_text(&(experiment_tables::measures(&others, costs) + "\n"))?;
        }
        if !compared.is_empty() {
            output::print_text(&(compare::told(&compared) + "\n"))?;
        }
        return Ok(());
    }
    let mut text = String::new();
    for measure in measures {
        text.push_str(&output::printable_json(&serde_json::to_string(measure)?));
        text.push('\n');
    }
    output::print(text.as_bytes())
}

/// Fails if the runs were stopped: a program that reads the output, and no message, is to learn of
/// it too.
pub(super) fn fail_if_stopped(whole: bool) -> anyhow::Result<()> {
    if !whole {
        bail!("stopped: these are the runs that had ended");
    }
    Ok(())
}

/// Runs the cells with a bar. Ctrl-C keeps what has ended; a second one ends the program. `ended`
/// is called with each result, and says whether to go on.
pub(super) fn simulate(
    cells: &[Cell],
    ended: impl Fn(&Measure) -> bool + Sync,
) -> anyhow::Result<(Vec<Measure>, bool)> {
    let stop = stop_flag()?;
    let bar = bar("simulating", cells.len());
    let measures = experiments::run(cells, &stop, |measure: &Measure, progress: Progress| {
        if !ended(measure) {
            stop.store(true, Ordering::SeqCst);
        }
        bar.set_position(progress.done as u64);
    })?;
    bar.finish_and_clear();
    let whole = measures.len() == cells.len();
    Ok((measures, whole))
}

pub(super) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    // Batch systems send SIGTERM when a job's time is over.
    let signals = Signals::new(ending_signals()).context("cannot handle Ctrl-C")?;
    let stopped = Arc::clone(&stop);
    let wait = move || stop_then_end(signals, || stopped.store(true, Ordering::SeqCst), || {});
    stop::beside(wait).context("cannot handle Ctrl-C")?;
    Ok(stop)
}

/// A bar on a terminal, and nothing anywhere else.
pub(super) fn bar(doing: &str, runs: usize) -> ProgressBar {
    let template = format!("{doing} {{bar:30}} {{pos}}/{{len}} runs{{left}}");
    let bar = progress::bar(&template, runs);
    if bar.is_hidden() {
        return bar;
    }
    // Before a run has ended, nothing tells how long they take.
    bar.set_style(progress::style(&template).with_key(
        "left",
        |state: &ProgressState, to: &mut dyn fmt::Write| {
            if state.pos() > 0 {
                let _ = write!(to, ", {:#} left", HumanDuration(state.eta()));
            }
        },
    ));
    // The first run may take long, and a blank terminal looks like a program that hangs.
    bar.enable_steady_tick(REDRAWN);
    bar
}
