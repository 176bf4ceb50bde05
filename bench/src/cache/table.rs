//! The report as tables: one for each case, a row for each peer, a column for each figure.

use comfy_table::{CellAlignment, Table};

use super::help::LEGEND;
use super::report::{Case, Report, Row};
use super::workload::METRICS;
use crate::metric::Metric;
use crate::page::{TERMINAL, end, section};
use crate::spread::{Spread, figure};

/// A table before it has a form.
pub(crate) struct Grid {
    /// The workload and the threads.
    pub(crate) title: String,
    /// The names of the columns after the first, which has the peers.
    pub(crate) columns: Vec<&'static str>,
    /// Peers and their figures.
    pub(crate) rows: Vec<(String, Vec<Shown>)>,
}

/// A figure as text.
pub(crate) struct Shown {
    /// The median.
    pub(crate) median: String,
    /// The least and the greatest, or the peer that the median is relative to; may be empty.
    pub(crate) beside: String,
}

/// The whole report.
pub(crate) fn render(report: &Report) -> String {
    let mut text = headline(report);
    for grid in grids(report) {
        section(&mut text, &form(&grid));
    }
    end(&mut text, &report.notes, &LEGEND);
    text
}

/// The machine and the setup.
pub(crate) fn headline(report: &Report) -> String {
    let setup = &report.setup;
    let length = match (setup.operations, setup.seconds) {
        (Some(count), _) => format!("{count} operations of each thread"),
        (None, seconds) => format!("{} s", seconds.unwrap_or_default()),
    };
    format!(
        "{}.\n{} round{} of {length} for each cell, {} keys.",
        report.machine,
        setup.rounds,
        if setup.rounds == 1 { "" } else { "s" },
        setup.keys
    )
}

/// All tables.
pub(crate) fn grids(report: &Report) -> Vec<Grid> {
    report.cases().into_iter().map(|case| grid(report, case)).collect()
}

fn grid(report: &Report, case: Case) -> Grid {
    let measured =
        |metric: &&Metric| report.rows(case).any(|row| row.figures.contains_key(metric.key));
    let metrics: Vec<&Metric> = METRICS.iter().filter(measured).collect();
    let of_peer = |row: &Row| {
        let figures = metrics.iter().map(|metric| show(row.figures.get(metric.key), metric));
        (row.peer.to_owned(), figures.collect())
    };
    let mut rows: Vec<_> = report.rows(case).map(of_peer).collect();
    let ratios: Vec<_> = metrics.iter().map(|metric| ratio(report, case, metric)).collect();
    if ratios.iter().any(Option::is_some) {
        let ratios = ratios.into_iter().map(|found| found.unwrap_or_else(none)).collect();
        rows.push(("homing / best".to_owned(), ratios));
    }
    let threads = case.threads;
    let title =
        format!("{}, {threads} thread{}", case.workload, if threads == 1 { "" } else { "s" });
    Grid { title, columns: metrics.iter().map(|metric| metric.title).collect(), rows }
}

fn none() -> Shown {
    Shown { median: "-".to_owned(), beside: String::new() }
}

fn show(spread: Option<&Spread>, metric: &Metric) -> Shown {
    let Some(spread) = spread else {
        return none();
    };
    let [median, min, max] =
        [spread.median, spread.min, spread.max].map(|value| figure(value / metric.unit));
    let beside = if min == max { String::new() } else { format!("{min}..{max}") };
    Shown { median, beside }
}

fn ratio(report: &Report, case: Case, metric: &Metric) -> Option<Shown> {
    let found =
        report.homing_to_best.iter().find(|one| (one.case, one.metric) == (case, metric.key))?;
    Some(Shown { median: figure(found.ratio.median), beside: found.best.to_owned() })
}

fn form(grid: &Grid) -> String {
    let mut table = Table::new();
    table.load_style(TERMINAL);
    // The ranges have columns of their own: then medians stand below each other.
    let columns = grid.columns.iter().flat_map(|title| [*title, ""]);
    table.set_header([grid.title.as_str()].into_iter().chain(columns));
    for (peer, figures) in &grid.rows {
        let figures = figures.iter().flat_map(|shown| [&shown.median, &shown.beside]);
        table.add_row([peer].into_iter().chain(figures));
    }
    for column in table.column_iter_mut().skip(1).step_by(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn there_is_a_row_for_each_peer_and_a_column_for_each_figure_measured() {
        let text = render(&report());
        let line = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start));
            line.unwrap_or_else(|| panic!("no {start} in {text}")).split_whitespace()
        };
        let header: Vec<_> = line("read-0.99").collect();
        assert_eq!(header, ["read-0.99-100k,", "2", "threads", "CPU", "ns/op", "hits", "%"]);
        assert_eq!(line("moka").collect::<Vec<_>>(), ["moka", "450", "300..600", "80.0"]);
        let ratio: Vec<_> = line("homing /").collect();
        assert_eq!(ratio[..5], ["homing", "/", "best", "0.500", "quick_cache"]);
        assert!(text.contains("Note: something <odd>") && text.contains("3 rounds of 0.5 s"));
    }
}
