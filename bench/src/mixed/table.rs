//! The report as text: a table for each load, for a terminal or as Markdown, and the published one.

use comfy_table::{CellAlignment, Table, presets};
use homing::control::ByteSize;

use super::report::{Comparison, Line, Report};
use super::row::{Case, PUBLISHED};
use crate::page::{Form, TERMINAL, end, section};
use crate::spread::{Spread, figure};

const LEGEND: [&str; 6] = [
    "Figures are medians over the rounds. Every round measures everything, the rows of a load one \
     after the other and in another order each round, each in a process of its own.",
    "lru: one group, what was used longest ago goes. one group: the default policy, which does not \
     know of tenants there. two groups: it does. min: the dirty tenant's set is its min. isolation: \
     the hits, by arithmetic, of frames for all of the dirty tenant's set and the reader on the rest.",
    "The dirty tenant writes whole pages; they are written back when they have to go, not before.",
    "declined: of all misses, those that were read past the cache since they were not worth a frame. \
     Misses of tenants that share a group are told apart by what was read for the reader.",
    "CPU us/op is that of the tenant's own threads; all: of the process, divided by all operations. \
     disk us: what a request of the disk took on top, as measured; a sleep takes longer than asked.",
    "Ratios are medians of those of each round, with the least and the greatest. reached: against one \
     group both tenants gain in every round; against lru the dirty one's median is 3.5 and more, the \
     reader's 0.96 and more.",
];

/// The whole report.
pub(crate) fn render(report: &Report, form: Form) -> String {
    let setup = &report.setup;
    let [memory, reader, dirty] = [setup.memory, setup.reader_set, setup.dirty_set].map(ByteSize);
    let mut text = format!(
        "{}.\n{} round{} of {} s for each cell. {memory} of memory; the reader reads 4 KiB at random \
         from {reader}, the dirty tenant uses {dirty}, and {} in a hundred of its operations write. \
         {} thread{} each, the reader's times its depth; files in {}.",
        report.machine,
        setup.rounds,
        if setup.rounds == 1 { "" } else { "s" },
        setup.seconds,
        setup.writes,
        setup.threads,
        if setup.threads == 1 { "" } else { "s" },
        setup.dir,
    );
    for case in report.cases() {
        section(&mut text, &format!("{case}:"));
        section(&mut text, &rows(report, case, form));
        section(&mut text, &comparisons(report, case, form));
    }
    section(
        &mut text,
        "Published (fio's reads and memcached's operations, 36 threads each, disks in memory):",
    );
    section(&mut text, &published(form));
    end(&mut text, &report.notes, &LEGEND);
    text
}

/// The title of a column, the figure's name, and what it is divided by.
const COLUMNS: [(&str, &str, f64); 14] = [
    ("dirty k/s", "dirty_ops_per_s", 1e3),
    ("reader k/s", "reader_ops_per_s", 1e3),
    ("dirty hits %", "dirty_hit_percent", 1.0),
    ("reader hits %", "reader_hit_percent", 1.0),
    ("reader misses k/s", "reader_misses_per_s", 1e3),
    ("declined %", "declined_percent", 1.0),
    ("write-backs k/s", "write_backs_per_s", 1e3),
    ("dirty p50 us", "dirty_p50_us", 1.0),
    ("p99", "dirty_p99_us", 1.0),
    ("reader p50 us", "reader_p50_us", 1.0),
    ("p99", "reader_p99_us", 1.0),
    ("dirty CPU us/op", "dirty_cpu_us", 1.0),
    ("reader", "reader_cpu_us", 1.0),
    ("all", "cpu_us", 1.0),
];
/// How many of the first columns show their ranges.
const RANGED: usize = 2;

fn rows(report: &Report, case: Case, form: Form) -> String {
    let lines: Vec<&Line> = report.rows.iter().filter(|line| line.case == case).collect();
    let disk = ("disk us", "disk_us", 1.0);
    let columns: Vec<_> =
        COLUMNS.iter().chain((case.disk_us > 0).then_some(&disk)).enumerate().collect();
    let titles = columns.iter().flat_map(|(at, (title, ..))| {
        [*title].into_iter().chain((*at < RANGED).then_some("min..max"))
    });
    let mut table = empty(form, ["memory shared by"].into_iter().chain(titles));
    for line in &lines {
        let cells = columns.iter().flat_map(|(at, (_, key, unit))| {
            let (median, range) = show(line.figures.get(*key), *unit);
            [median].into_iter().chain((*at < RANGED).then_some(range))
        });
        table.add_row([line.row.to_string()].into_iter().chain(cells));
    }
    let bound = |key: &str| show(lines.first().and_then(|line| line.figures.get(key)), 1.0).0;
    let [dirty, reader] = ["bound_dirty_hit_percent", "bound_reader_hit_percent"].map(bound);
    let dash = || "-".to_owned();
    let bounds = ["isolation".to_owned(), dash(), dash(), dash(), dash(), dirty, reader];
    table.add_row(bounds.into_iter().chain(columns.iter().skip(4).map(|_| dash())));
    form_of(table)
}

fn show(spread: Option<&Spread>, unit: f64) -> (String, String) {
    let Some(spread) = spread else { return ("-".to_owned(), "-".to_owned()) };
    let [median, min, max] = [spread.median, spread.min, spread.max].map(|one| figure(one / unit));
    (median, format!("{min}..{max}"))
}

fn comparisons(report: &Report, case: Case, form: Form) -> String {
    let mut table = empty(form, ["ratio", "dirty", "min..max", "reader", "min..max", "reached"]);
    for one in report.comparisons.iter().filter(|one| one.case == case) {
        let Comparison { over, under, dirty, reader, reached, .. } = one;
        let [(dirty, dirties), (reader, readers)] =
            [dirty, reader].map(|ratio| show(Some(ratio), 1.0));
        let reached = if *reached { "yes" } else { "no" }.to_owned();
        table.add_row([format!("{over} / {under}"), dirty, dirties, reader, readers, reached]);
    }
    form_of(table)
}

fn published(form: Form) -> String {
    let titles = ["the patch, beside", "memcached k/s", "ratio", "fio k/s", "ratio"];
    let mut table = empty(form, titles);
    for one in &PUBLISHED {
        let told = |[without, with]: [f64; 2]| {
            [format!("{} -> {}", figure(without), figure(with)), figure(with / without)]
        };
        let [dirty, dirty_ratio] = told(one.dirty.map(|rate| rate / 1e3));
        let [reader, reader_ratio] = told(one.reader_k);
        table.add_row([one.without.to_owned(), dirty, dirty_ratio, reader, reader_ratio]);
    }
    form_of(table)
}

fn empty<'a>(form: Form, titles: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(match form {
        Form::Terminal => TERMINAL,
        Form::Markdown => presets::ASCII_MARKDOWN,
    });
    table.set_header(titles);
    table
}

fn form_of(mut table: Table) -> String {
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
    fn rows_bounds_ratios_and_the_published_ones_are_beside_each_other() {
        let text = render(&report(), Form::Markdown);
        let cells = |start: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(&format!("| {start}")));
            let line = line.unwrap_or_else(|| panic!("no {start} in {text}"));
            line.split('|').map(str::trim).collect()
        };
        assert_eq!(
            cells("one group ")[2..8],
            ["0.052", "0.035..0.070", "0.142", "0.095..0.190", "70.0", "-"]
        );
        assert_eq!(cells("isolation")[6..8], ["100", "20.0"]);
        assert_eq!(cells("isolation").len(), cells("lru").len());
        assert_eq!(
            cells("two groups / lru")[2..7],
            ["3.60", "3.60..3.60", "0.960", "0.960..0.960", "yes"]
        );
        assert_eq!(cells("Linux 5.17-rc2")[2..6], ["314 -> 1968", "6.27", "2338 -> 2217", "0.948"]);
        let merged = cells("as merged (v14): the series");
        assert_eq!(merged[2..6], ["863 -> 1911", "2.21", "1880 -> 2252", "1.20"]);
        for told in ["files in memory:", "256 MiB of memory", "Note: odd"] {
            assert!(text.contains(told), "{text}");
        }
        assert!(!render(&report(), Form::Terminal).contains('|'));
    }
}
