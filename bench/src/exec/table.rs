//! The report as tables: one for each group of workloads, a row for each figure, a column for each
//! peer.

use comfy_table::{CellAlignment, Table};

use super::peers::Peer;
use super::report::Report;
use super::workload::{METRICS, Workload};
use crate::metric::Metric;
use crate::page::{TERMINAL, end, section};
use crate::spread::{Spread, figure};

/// What the rows mean.
const LEGEND: [&str; 11] = [
    "Each figure is the median over the rounds, with the least and the greatest. The last column \
     is homing's figure divided by that of the best other peer, round by round.",
    "outside: one thread that is no worker submits items, 10,000 in flight at most; inside: an \
     item makes 1000 others, the last of which makes the next thousand. CPU time is that of the \
     whole process, the work itself and the submitter included.",
    "ping: an item each millisecond on an idle pool, submit to the submitter running again; \
     pairs-N: N clients that do so without a pause. Waiting is by park and unpark for all.",
    "crypt-N: N issuers with 64 items in flight each, an item being 32 KiB of AES-256-XTS and \
     SHA-512. Latency is from submitting to the item's end.",
    "blocking-mix: one item in ten blocks for 1 ms, the others compute for 10 us; latency is \
     that of the latter. homing+blocking, by which homing is judged there, and tokio+blocking are told which block, \
     the others are not.",
    "idle-burn: CPU time in the second after a burst of work.",
    "memory-N: resident memory for each of a million queued items with N bytes captured.",
    "issue, gate and live are homing beside itself; their last column is the one divided by the \
     other, round by round, with the least and the greatest. issue: empty items (they count) or of \
     1 us, queued one by one; with handles that are let go at once, and as work items, queued again \
     and again.",
    "gate: items of 50 ns, in a workqueue of 64 at a time (more are in flight), an ordered one, \
     which cannot use two CPUs, and a freezable one.",
    "live: items from outside, in a workqueue with a max_active that is never reached; \
     scope, strictness, nice, cpumask and max_active change in turn, one each 10 ms, or not.",
    "affinitypool cannot detach an item: its memory is never given back.",
];

/// The whole report.
pub(crate) fn render(report: &Report) -> String {
    let setup = &report.setup;
    let mut text = format!(
        "{}.\n{} round{} of {} s for each cell, {} workers in each pool.",
        report.machine,
        setup.rounds,
        if setup.rounds == 1 { "" } else { "s" },
        setup.seconds,
        setup.workers,
    );
    for loads in Workload::ALL.chunk_by(|one, next| one.group() == next.group()) {
        if report.rows.iter().any(|row| loads.contains(&row.workload)) {
            section(&mut text, &table(report, loads));
        }
    }
    end(&mut text, &report.notes, &LEGEND);
    text
}

fn table(report: &Report, loads: &[Workload]) -> String {
    let measured = |peer: &Peer| loads.iter().any(|load| report.row(*load, *peer).is_some());
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(measured).collect();
    let mut table = Table::new();
    table.load_style(TERMINAL);
    let last = if loads[0].is_of_ours() { "ratios" } else { "homing / best" };
    let names = peers.iter().map(|peer| peer.name());
    table.set_header(["workload", ""].into_iter().chain(names).chain([last]));
    for load in loads {
        let mut name = load.name();
        for metric in &METRICS {
            let spread = |peer: &Peer| report.row(*load, *peer)?.figures.get(metric.key);
            if peers.iter().all(|peer| spread(peer).is_none()) {
                continue;
            }
            // A workload's name is only in its first row.
            let mut cells = vec![std::mem::take(&mut name), metric.title.to_owned()];
            let shown = |peer| spread(peer).map_or_else(|| "-".to_owned(), |it| show(it, metric));
            cells.extend(peers.iter().map(shown));
            cells.push(if load.is_of_ours() {
                ratios(report, *load, metric)
            } else {
                ratio(report, *load, metric)
            });
            table.add_row(cells);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn show(spread: &Spread, metric: &Metric) -> String {
    let [median, min, max] =
        [spread.median, spread.min, spread.max].map(|value| figure(value / metric.unit));
    if min == max { median } else { format!("{median}\n{min}..{max}") }
}

fn ratio(report: &Report, load: Workload, metric: &Metric) -> String {
    let found =
        report.homing_to_best.iter().find(|it| (it.workload, it.metric) == (load, metric.key));
    found.map_or_else(
        || "-".to_owned(),
        |it| format!("{}\n{}", figure(it.ratio.median), it.best.name()),
    )
}

fn ratios(report: &Report, load: Workload, metric: &Metric) -> String {
    let found = report
        .homing_to_itself
        .iter()
        .filter(|it| (it.workload, it.metric) == (load, metric.key))
        .map(|it| {
            let [median, min, max] = [it.ratio.median, it.ratio.min, it.ratio.max].map(figure);
            // All of these are ours.
            let [over, under] = [it.over, it.under]
                .map(|peer| peer.name().strip_prefix("homing+").unwrap_or("homing"));
            format!("{over} / {under} {median} ({min}..{max})")
        });
    found.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn there_is_a_row_for_each_figure_and_a_column_for_each_peer_measured() {
        let text = render(&report());
        let line = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start));
            line.unwrap_or_else(|| panic!("no {start} in {text}")).split_whitespace()
        };
        let header: Vec<_> = line("workload").collect();
        assert_eq!(header, ["workload", "homing", "rayon", "cb-deque", "homing", "/", "best"]);
        let row: Vec<_> = line("outside-50ns").collect();
        assert_eq!(row, ["outside-50ns", "k", "items/s", "6.00", "3.00", "12.0", "0.500"]);
        assert!(text.contains("4.00..8.00") && text.contains("cb-deque"), "{text}");
        assert!(text.contains("Note: something odd") && text.contains("8 workers"), "{text}");
        assert!(!text.contains("peak RSS") && !text.contains("\ninside-"), "{text}");
    }
}
