//! `homing-bench decide`: how long a scheduling decision takes, on machines of up to 1,024 CPUs.
//!
//! The decisions are functions of facts. Here the facts are plain fields, so the time to read the
//! runtime's atomics is not included: that is at most sixteen words for each set of CPUs. Only
//! whether an item is queued at all is asked of a runtime.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use homing::Runtime;
use homing_sched::{
    Affinity, Attributes, Idle, Layout, Nice, PoolId, Shares, Snapshot, Waiting, before_park, home,
    start, submit,
};
use homing_topology::{CpuId, CpuSet, Machine as Topology, Scope};
use serde::Serialize;

use crate::machine::Machine;
use crate::spread::Spread;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How often everything is measured.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Tell it in JSON.
    #[arg(long)]
    json: bool,
}

/// The machines: nodes, caches, cores, threads.
const MACHINES: [(&str, &str); 3] =
    [("2 CPUs", "1x1x2x1"), ("64 CPUs, 8 caches", "2x4x8x1"), ("1,024 CPUs, 64 caches", "8x8x8x2")];

/// Decisions in a measurement.
const DECISIONS: u32 = 20_000;

/// The situation that a decision finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    SubmitAllBusy,
    SubmitNearIdle,
    SubmitFarIdle,
    SubmitOthersIdle,
    SubmitSiblingsIdle,
    StartMoreWait,
    PullOwn,
    PullFar,
    PullNothing,
}

impl Case {
    const ALL: [Self; 9] = [
        Self::SubmitAllBusy,
        Self::SubmitNearIdle,
        Self::SubmitFarIdle,
        Self::SubmitOthersIdle,
        Self::SubmitSiblingsIdle,
        Self::StartMoreWait,
        Self::PullOwn,
        Self::PullFar,
        Self::PullNothing,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::SubmitAllBusy => "submit: nobody is idle",
            Self::SubmitNearIdle => "submit: a CPU of its pod is idle",
            Self::SubmitFarIdle => "submit: the farthest CPU is idle",
            Self::SubmitOthersIdle => "submit: all but its pod is idle",
            Self::SubmitSiblingsIdle => "submit: every second CPU is idle",
            Self::StartMoreWait => "start: more wait, the farthest CPU is idle",
            Self::PullOwn => "before_park: work in the own queue",
            Self::PullFar => "before_park: work in the farthest one",
            Self::PullNothing => "before_park: no work anywhere",
        }
    }
}

#[derive(Serialize)]
struct Row {
    decision: &'static str,
    machine: &'static str,
    pools: usize,
    ns: Spread,
}

/// Measures, and reports on standard output.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for case in Case::ALL {
        for (machine, grid) in MACHINES {
            let layout = Layout::new(&Topology::from_grid(grid)?).context("no CPU")?;
            for pools in [1, 8] {
                let ns = (0..options.rounds).map(|_| measure(&layout, case, pools));
                let ns = Spread::of(ns).context("no rounds")?;
                rows.push(Row { decision: case.name(), machine, pools, ns });
            }
        }
    }
    let runtime = Runtime::new()?;
    let ns = (0..options.rounds).map(|_| hand_off(&runtime));
    let ns = Spread::of(ns).context("no rounds")?;
    let asked = Row { decision: "hand_off", machine: "this one", pools: 1, ns };
    if options.json {
        rows.push(asked);
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{}\nns a decision, with 1 pool / with 8; medians of {}",
        Machine::read()?,
        options.rounds
    );
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["decision"].into_iter().chain(MACHINES.map(|(name, _)| name)));
    for of_case in rows.chunks(2 * MACHINES.len()) {
        let cell = |pair: &[Row]| format!("{:.0} / {:.0}", pair[0].ns.median, pair[1].ns.median);
        let figures = of_case.chunks(2).map(cell);
        table.add_row([of_case[0].decision.to_owned()].into_iter().chain(figures));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}\nhand_off, asked of a runtime on this machine: {:.0}", asked.ns.median);
    Ok(())
}

/// Nanoseconds in which an issuer finds out whether to queue an item.
fn hand_off(runtime: &Runtime) -> f64 {
    let workqueue = runtime.events();
    let began = Instant::now();
    for _ in 0..DECISIONS {
        black_box(workqueue.hand_off(black_box(300_000), true));
    }
    began.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
}

/// Nanoseconds that one decision takes.
fn measure(layout: &Layout, case: Case, pools: usize) -> f64 {
    let online = *layout.machine().online();
    let (first, last) = ends(&online);
    // Attributes that differ, as those of pools do.
    let nice = |level: usize| Nice::new(level as i8).unwrap_or(Nice::NORMAL);
    let attributes = |level| Attributes {
        nice: nice(level),
        ..Attributes::new(Affinity { scope: Scope::Cache, strict: false })
    };
    let pool = PoolId(pools as u8 - 1);
    let pools: Vec<Attributes> = (0..pools).map(attributes).collect();
    let mut facts = Snapshot::new(layout, &pools);
    (facts.now_ns, facts.item_ns) = (1_000_000_000, 10_000);
    let (near, far) = (home(layout, &facts, first, pool), home(layout, &facts, last, pool));
    let (idle, full) = match case {
        Case::SubmitAllBusy | Case::PullOwn => (CpuSet::EMPTY, Some(near)),
        Case::SubmitNearIdle => (near_of(layout, first), Some(near)),
        Case::SubmitFarIdle | Case::StartMoreWait => (CpuSet::of(last), Some(near)),
        Case::SubmitOthersIdle => (online.minus(layout.pod(Scope::Cache, first)), Some(near)),
        Case::SubmitSiblingsIdle => (online.iter().skip(1).step_by(2).collect(), Some(near)),
        Case::PullFar => (CpuSet::EMPTY, Some(far)),
        Case::PullNothing => (CpuSet::EMPTY, None),
    };
    facts.idle = idle;
    facts.waiting.extend(full.map(|queue| Waiting { queue, items: 9, since_ns: 0 }));
    let shares = Shares::NONE;
    let began = Instant::now();
    for _ in 0..DECISIONS {
        let facts = black_box(&facts);
        match case {
            Case::SubmitAllBusy
            | Case::SubmitNearIdle
            | Case::SubmitFarIdle
            | Case::SubmitOthersIdle
            | Case::SubmitSiblingsIdle => {
                black_box(submit(layout, facts, first, pool));
            }
            Case::StartMoreWait => {
                black_box(start(layout, facts, near, first));
            }
            Case::PullOwn | Case::PullFar | Case::PullNothing => {
                black_box(before_park(layout, facts, first, Idle::Any, &shares));
            }
        }
    }
    began.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
}

fn ends(online: &CpuSet) -> (CpuId, CpuId) {
    let mut cpus = online.iter();
    let first = cpus.next().expect("a machine has a CPU");
    (first, cpus.last().unwrap_or(first))
}

/// The last CPU of the cache of `cpu`.
fn near_of(layout: &Layout, cpu: CpuId) -> CpuSet {
    layout.pod(Scope::Cache, cpu).iter().last().into_iter().collect()
}
