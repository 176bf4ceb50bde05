//! The report as text: a table for each place and load, for a terminal or as Markdown.

use comfy_table::{CellAlignment, Table, presets};

use super::report::{Report, Row};
use super::strategy::Shape;
use crate::page::{Form, TERMINAL, end, section};
use crate::spread::{Spread, figure};

const LEGEND: [&str; 6] = [
    "Each figure is the median over the rounds. Every round measures everything, the strategies in \
     another order each time, in a process of its own.",
    "bulk: new files, written and closed; each is opened, made durable and closed again, all by \
     the clock. stream: each issuer writes a new file, syncs it, closes it, and goes on with the \
     next. lone: one issuer of such a stream, alone (quiet) and beside a bulk (busy).",
    "issuers: threads, tasks, or requests under way at a time. /best: files a second, divided by \
     those of the best peer that has a verdict for each file: of all in a bulk, of those with as \
     many issuers in a stream. /syncfs: by those of the bound. /serial: by those of one thread.",
    "p50 and p99 are those of one sync, as its caller waits for it. homing-many and homing-files \
     have none: all are asked for at once.",
    "writes, flushes: what the block device was asked for; files/flush: the aggregation. Of a loop \
     device it is the device itself, not the disk below.",
    "CPU is this process's, with its io_uring workers; not that of the kernel's other threads.",
];

/// A column: its title, and its cell for a row.
type Column = (&'static str, fn(&Row) -> Option<String>);

fn shown(row: &Row, key: &str) -> Option<String> {
    row.figures.get(key).map(|spread| figure(spread.median))
}

fn range(row: &Row, key: &str) -> Option<String> {
    row.figures.get(key).map(|spread| format!("{}..{}", figure(spread.min), figure(spread.max)))
}

fn ratio(spread: Option<Spread>) -> Option<String> {
    spread.map(|spread| figure(spread.median))
}

const RATES: [Column; 2] =
    [("files/s", |row| shown(row, "files_per_s")), ("min..max", |row| range(row, "files_per_s"))];
const COSTS: [Column; 6] = [
    ("p50 us", |row| shown(row, "p50_us")),
    ("p99 us", |row| shown(row, "p99_us")),
    ("writes", |row| shown(row, "device_writes")),
    ("flushes", |row| shown(row, "device_flushes")),
    ("files/flush", |row| shown(row, "aggregation")),
    ("CPU s", |row| shown(row, "cpu_s")),
];
const BEST: Column = ("/best", |row| ratio(row.to_best_peer));
const SYNCFS: Column = ("/syncfs", |row| ratio(row.to_syncfs));
const SERIAL: Column = ("/serial", |row| ratio(row.to_serial));
const TAIL: Column = ("p99.9 us", |row| shown(row, "p999_us"));
const LONE: [Column; 6] = [
    ("quiet p50 us", |row| shown(row, "quiet_p50_us")),
    ("quiet p99 us", |row| shown(row, "quiet_p99_us")),
    ("busy p50 us", |row| shown(row, "busy_p50_us")),
    ("busy p99 us", |row| shown(row, "busy_p99_us")),
    ("busy/quiet p99", |row| shown(row, "busy_to_quiet")),
    ("busy syncs", |row| shown(row, "busy_syncs")),
];

fn columns(shape: Shape) -> Vec<Column> {
    match shape {
        Shape::Bulk => [&RATES[..], &[BEST, SYNCFS, SERIAL], &COSTS].concat(),
        Shape::Stream => [&RATES[..], &[BEST], &COSTS[..2], &[TAIL], &COSTS[2..]].concat(),
        Shape::Lone => LONE.to_vec(),
    }
}

/// The whole report.
pub(crate) fn render(report: &Report, form: Form) -> String {
    let setup = &report.setup;
    let mut text = format!(
        "{}.\n{} round{}; bulks of {} files of {} bytes, on slow disks a fifth{}; streams of {} s; in {}.",
        report.machine,
        setup.rounds,
        if setup.rounds == 1 { "" } else { "s" },
        setup.files,
        setup.size,
        match setup.warm {
            0 => String::new(),
            warm => format!(", after {warm} others that are not measured"),
        },
        setup.seconds,
        setup.dir
    );
    for (place, shape) in report.cases() {
        section(&mut text, &format!("{place}, {}:", shape.name()));
        section(&mut text, &table(report, place, shape, form));
    }
    end(&mut text, &report.notes, &LEGEND);
    text
}

fn table(report: &Report, place: &str, shape: Shape, form: Form) -> String {
    let mut table = Table::new();
    table.load_style(match form {
        Form::Terminal => TERMINAL,
        Form::Markdown => presets::ASCII_MARKDOWN,
    });
    let rows = report.rows.iter().filter(|row| row.key.place == place && row.key.shape == shape);
    let rows: Vec<_> = rows.collect();
    let mut columns = columns(shape);
    // Drops columns for which this place has no figure.
    columns.retain(|(_, show)| rows.iter().any(|row| show(row).is_some()));
    table.set_header(
        ["strategy", "issuers"].into_iter().chain(columns.iter().map(|(title, _)| *title)),
    );
    for row in rows {
        let mut cells = vec![row.key.strategy.to_string(), row.key.issuers.to_string()];
        cells.extend(columns.iter().map(|(_, show)| show(row).unwrap_or_else(|| "-".to_owned())));
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn there_is_a_row_for_each_strategy_and_no_column_without_figures() {
        let text = render(&report(), Form::Markdown);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 2 + 5, "{text}");
        let ours: Vec<&str> = rows[6].split('|').map(str::trim).collect();
        assert_eq!(
            ours[1..9],
            ["homing-many", "1", "4500", "3000..6000", "3.00", "0.750", "30.0", "10.0"]
        );
        assert!(!rows[0].contains("p99"), "{text}");
        for told in ["xfs, bulk:", "10000 files of 4096 bytes", "Note: odd"] {
            assert!(text.contains(told), "{text}");
        }
        assert!(!render(&report(), Form::Terminal).contains('|'));
    }
}
