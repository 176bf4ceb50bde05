//! The report as text: tables for a terminal, or the same as Markdown.

use comfy_table::{CellAlignment, Table, TableStyle, presets};
use homing::control::ByteSize;

use super::report::{METRICS, Metric, Report, Row};
use crate::page::{Form, TERMINAL, end, section};
use crate::spread::{Spread, figure};

/// What the columns mean, wherever they are shown.
const LEGEND: [&str; 6] = [
    "Each figure is the median over the rounds, with the least and the greatest. Every round \
     measures every load on every server, the servers in another order each time.",
    "Servers are started anew for each round, and each export is read through before its first load: a \
     cache has all that fits into it then.",
    "rw: random reads and writes of 32 KiB, depth 64, on 24 (high), 8 (med) or 4 (low) \
     connections, each with its slice of the export. verify: the same, with what was written read \
     back and checked by SHA-512. read-4k: random reads of 4 KiB on one connection.",
    "MiB/s counts reads and writes; p99 is that of reads or of writes, whichever is worse. CPU is \
     user and system time per GiB moved: of the server's process, and of fio's jobs. Peak RSS is \
     the server's under the load, without its start.",
    "others is the share of the machine's CPU time that went neither to the server nor to fio, \
     time taken by a hypervisor included.",
    "All servers do AES-256-XTS: homing on LUKS2 in sectors of 4096 bytes, which is its default, the \
     others on LUKS1 in sectors of 512, which is all that they do, and on which homing is measured, \
     too.",
];

/// The whole report.
pub(crate) fn render(report: &Report, form: Form) -> String {
    let setup = &report.setup;
    let tools = report.tools.iter().map(|tool| format!("{} {}", tool.program, tool.version));
    let tools: Vec<String> = tools.collect();
    let paragraphs = [
        format!("{}.", report.machine),
        format!("{}.", tools.join(", ")),
        format!(
            "{} round{} of {} s per load, exports of {} in {}.",
            setup.rounds,
            if setup.rounds == 1 { "" } else { "s" },
            setup.seconds,
            ByteSize(setup.size),
            setup.dir
        ),
    ];
    let mut text = paragraphs.join(if form == Form::Markdown { "\n\n" } else { "\n" });
    let all: Vec<&Metric> = METRICS.iter().collect();
    section(&mut text, &table(&report.medians, &all, "server", form));
    if !report.ratios.is_empty() {
        section(&mut text, "homing divided by each of the others, round by round:");
        let compared: Vec<&Metric> = METRICS.iter().filter(|metric| metric.compared).collect();
        section(&mut text, &table(&report.ratios, &compared, "homing /", form));
    }
    end(&mut text, &report.notes, &LEGEND);
    text
}

fn table(rows: &[Row], metrics: &[&Metric], server: &str, form: Form) -> String {
    let style: TableStyle = match form {
        Form::Terminal => TERMINAL,
        Form::Markdown => presets::ASCII_MARKDOWN,
    };
    let mut table = Table::new();
    table.load_style(style);
    let titles = metrics.iter().map(|metric| metric.title);
    table.set_header(["load", server].into_iter().chain(titles));
    for (index, row) in rows.iter().enumerate() {
        // A load's name is only in its first row.
        let first = index == 0 || rows[index - 1].scenario != row.scenario;
        let name = if first { row.scenario.name() } else { String::new() };
        let mut cells = vec![name, row.server.name().to_owned()];
        cells.extend(metrics.iter().map(|metric| {
            row.figures.get(metric.key).map_or_else(|| "-".to_owned(), |spread| show(spread, form))
        }));
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A median with its range, where there is one.
pub(crate) fn show(spread: &Spread, form: Form) -> String {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(figure);
    if min == max {
        return median;
    }
    match form {
        Form::Terminal => format!("{median}\n{min}..{max}"),
        Form::Markdown => format!("{median} ({min}–{max})"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Setup;
    use super::super::report::tests::cell;
    use super::super::scenario::Scenario;
    use super::super::server::Kind;
    use super::*;
    use crate::machine;
    use crate::tool::Version;

    fn report() -> Report {
        let load = Scenario::RwHigh;
        let cells = vec![
            cell(1, load, Kind::Homing, 300.0),
            cell(1, load, Kind::Nbdkit, 100.0),
            cell(2, load, Kind::Homing, 500.0),
            cell(2, load, Kind::Nbdkit, 100.0),
        ];
        let tools = vec![Version { program: "fio".to_owned(), version: "3.33".to_owned() }];
        let setup = Setup { rounds: 2, seconds: 4, size: 1 << 30, dir: "/dev/shm".to_owned() };
        Report::new(machine::tests::some(), tools, setup, vec!["something odd".to_owned()], cells)
    }

    #[test]
    fn markdown_has_a_row_per_load_and_server() {
        let text = render(&report(), Form::Markdown);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 2 + 2 + 2 + 1, "{text}");
        assert!(rows[2].contains("rw-high") && rows[2].contains("| 400 (300–500) |"), "{text}");
        assert!(!rows[3].contains("rw-high") && rows[3].contains(" 100 |"), "{text}");
        assert!(rows[6].contains("4.00 (3.00–5.00)"), "{text}");
        for told in ["Some CPU, 4 cores, 8 CPUs, Linux 6.1.0", "fio 3.33", "Note: something odd"] {
            assert!(text.contains(told), "{text}");
        }
    }

    #[test]
    fn the_terminal_gets_ranges_on_their_own_lines() {
        let text = render(&report(), Form::Terminal);
        assert!(text.contains("300..500") && !text.contains('|'), "{text}");
    }
}
