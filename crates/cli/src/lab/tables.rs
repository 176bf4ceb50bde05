//! What `homing lab trace` prints for people.

use std::fmt::Write as _;
use std::io::IsTerminal;

use comfy_table::{Attribute, CellAlignment};
use homing_control::printable_name;
use homing_lab::compare::{Cell, Comparison, Summary};
use homing_lab::{Trace, policies};

use crate::table::{align, grouped, in_parts, table, texts};

/// A line for each replay, and for each tenant if there are several.
pub(super) fn cells(cells: &[Cell], traces: &[Trace], files: &[String]) -> String {
    let mut text = String::new();
    for trace in traces {
        let _ = writeln!(text, "{}", told(trace));
    }
    let mut table = table(&[
        "trace",
        "policy",
        "size",
        "pages",
        "hits, %",
        "evictions",
        "write-backs",
        "I/O",
        "M requests/s",
    ]);
    for cell in cells {
        let outcome = &cell.outcome;
        table.add_row([
            printable_name(&cell.trace),
            cell.policy.clone(),
            cell.size.to_string(),
            grouped(cell.capacity as u64),
            percent(outcome.hit_ratio()),
            grouped(outcome.evictions),
            grouped(outcome.writebacks),
            grouped(outcome.io()),
            format!("{:.1}", cell.speed() / 1e6),
        ]);
    }
    align(&mut table, 2);
    text.push_str(&in_parts(&table, 3));
    if cells.iter().any(|cell| !cell.outcome.tenants.is_empty()) {
        let _ = write!(text, "\n\n{}", tenants(cells, files));
    }
    text
}

/// Hits of each tenant.
fn tenants(cells: &[Cell], files: &[String]) -> String {
    let mut table = table(&["tenant", "policy", "size", "requests", "hits, %"]);
    for cell in cells {
        for (index, own) in cell.outcome.asking_tenants() {
            table.add_row([
                files.get(index).map_or_else(
                    || index.to_string(),
                    |name| format!("{index}: {}", printable_name(name)),
                ),
                cell.policy.clone(),
                cell.size.to_string(),
                grouped(own.requests),
                percent(own.hit_ratio()),
            ]);
        }
    }
    align(&mut table, 2);
    in_parts(&table, 3)
}

/// Hit ratios of each trace, and what the policies come to over all of them.
pub(super) fn comparison(comparison: &Comparison, traces: &[Trace]) -> String {
    let mut text = String::new();
    let single = traces.len() == 1;
    for (index, trace) in traces.iter().enumerate() {
        let _ = writeln!(text, "{}; hits in %", told(trace));
        let _ = writeln!(text, "{}\n", hit_ratios(comparison, index, single));
    }
    if !single {
        let _ = writeln!(text, "{} traces", traces.len());
        let _ = writeln!(text, "{}\n", summaries(comparison));
    }
    text.push_str(
        "* the best that does not see the future\n\
         share: of the distance from FIFO to the optimum, the mean of all cells where that is half \
         a point or more",
    );
    text
}

/// Policies by sizes for one trace.
fn hit_ratios(comparison: &Comparison, trace: usize, single: bool) -> String {
    let mut header = vec!["policy".to_owned()];
    header.extend(comparison.sizes().iter().map(ToString::to_string));
    if single {
        header.extend(SUMMARY.map(str::to_owned));
    }
    let mut table = table(&header);
    for name in comparison.policies() {
        let mut row = vec![comfy_table::Cell::new(name)];
        for size in 0..comparison.sizes().len() {
            let Some(cell) = comparison.cell(name, trace, size) else { continue };
            let ratio = cell.outcome.hit_ratio();
            let best = comparison.best(trace, size).is_some_and(|best| ratio >= best);
            row.push(marked(ratio, best && !name.starts_with("opt")));
        }
        if single && let Some(summary) = comparison.summary(name) {
            row.extend(summary_cells(&summary).map(comfy_table::Cell::new));
        }
        table.add_row(row);
    }
    align(&mut table, 1);
    in_parts(&table, 1)
}

/// The headers of the cells that [`summary_cells`] gives.
const SUMMARY: [&str; 2] = ["share, %", "worst against LRU, points"];

fn summaries(comparison: &Comparison) -> String {
    let mut table = table(&["policy", SUMMARY[0], SUMMARY[1], "at"]);
    for name in comparison.policies() {
        let Some(summary) = comparison.summary(name) else { continue };
        let at = summary.worst.as_ref();
        let at = at
            .map(|worst| format!("{} {}", printable_name(&worst.trace), worst.size))
            .unwrap_or_default();
        let [share, worst] = summary_cells(&summary);
        table.add_row([name.clone(), share, worst, at]);
    }
    align(&mut table, 1);
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    in_parts(&table, 1)
}

fn summary_cells(summary: &Summary) -> [String; 2] {
    let share =
        summary.share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", share * 100.0));
    let worst =
        summary.worst.as_ref().map_or_else(String::new, |worst| format!("{:+.2}", worst.points));
    [share, worst]
}

/// The policies and what they do.
pub(super) fn policies() -> String {
    let mut table = table(&["policy", "what it does"]);
    for entry in policies::ALL {
        let default = entry.name == policies::default_name();
        let note = if default { " (the default)" } else { "" };
        table.add_row([entry.name.to_owned(), format!("{}{note}", entry.about)]);
    }
    texts(&table)
}

/// A trace in a line.
fn told(trace: &Trace) -> String {
    let (requests, pages) = (grouped(trace.len() as u64), grouped(trace.pages() as u64));
    let writes = match trace.writes() {
        0 => "all of them reads".to_owned(),
        writes => format!("{} of them writes", grouped(writes)),
    };
    format!("{}: {requests} requests for {pages} pages, {writes}", printable_name(trace.name()))
}

/// A hit ratio, marked if it is the best; bold too, on a terminal.
fn marked(ratio: f64, best: bool) -> comfy_table::Cell {
    let text = format!("{}{}", percent(ratio), if best { " *" } else { "  " });
    let cell = comfy_table::Cell::new(text);
    let bold = best && std::io::stdout().is_terminal();
    if bold { cell.add_attribute(Attribute::Bold) } else { cell }
}

fn percent(ratio: f64) -> String {
    format!("{:.2}", ratio * 100.0)
}
