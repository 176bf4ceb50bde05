//! What `homing lab run fsync` prints for people: what was measured beside what was published.

use homing_control::ByteSize;
use homing_lab::fsync::{Report, Row, Setup, Strategy};

use crate::table::{align, grouped, grouped_digits, in_parts, table};

/// A column: its title, and what it shows of a row.
type Column = (&'static str, fn(&Row) -> Option<String>);

const COLUMNS: [Column; 12] = [
    ("strategy", |row| Some(name(row.strategy))),
    ("issuers", |row| Some(row.issuers.to_string())),
    ("files/s", |row| Some(whole(row.files_per_s))),
    ("min..max", |row| {
        Some(format!("{}..{}", whole(row.files_per_s_min), whole(row.files_per_s_max)))
    }),
    ("/serial", |row| row.to_serial.map(|ratio| format!("{ratio:.2}"))),
    ("p50 us", |row| Some(whole(row.p50_us))),
    ("p99 us", |row| Some(whole(row.p99_us))),
    ("writes", |row| row.device_writes.map(whole)),
    ("flushes", |row| row.device_flushes.map(whole)),
    ("files/flush", |row| row.aggregation.map(|files| format!("{files:.1}"))),
    ("CPU s", |row| Some(format!("{:.2}", row.cpu_s))),
    ("published", |row| published(row.strategy, row.issuers)),
];

const LEGEND: &str = "\
/serial: files a second against those of serial with one issuer, the median of the rounds' ratios
p50, p99: from asking for a file's sync to knowing of its end; what is asked for together ends together
writes, flushes: of the partition and its disk, whoever asked   files/flush: files for each flush
CPU: of this process
(bound): nobody is told which file failed
published: files/s (against its own sync with one issuer), files for each write of the journal; D. Chinner,
29 October 2015, XFS on an SSD, 10,000 files of 4 KiB";

/// The whole text.
pub(super) fn told(setup: &Setup, report: &Report) -> String {
    let mut columns = COLUMNS.to_vec();
    // Columns that no row has a value for go: the device's figures, if there is no device.
    columns.retain(|(_, show)| report.rows.iter().any(|row| show(row).is_some()));
    let titles: Vec<_> = columns.iter().map(|(title, _)| *title).collect();
    let mut table = table(&titles);
    for row in &report.rows {
        table.add_row(columns.iter().map(|(_, show)| show(row).unwrap_or_default()));
    }
    align(&mut table, 1);
    let rounds = match report.rounds {
        0 | 1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds"),
    };
    let (files, size) = (grouped(setup.files as u64), ByteSize(setup.size as u64));
    let device = if report.rows.iter().all(|row| row.device_writes.is_none()) {
        "\nthe filesystem has no device of its own: writes and flushes are not known"
    } else {
        ""
    };
    let (dir, table) = (setup.dir.display(), in_parts(&table, 2));
    format!("fsync in {dir}: {files} files of {size}, {rounds}{device}\n{table}\n{LEGEND}")
}

fn name(strategy: Strategy) -> String {
    let bound = if strategy.is_bound() { " (bound)" } else { "" };
    format!("{strategy}{bound}")
}

fn published(strategy: Strategy, issuers: usize) -> Option<String> {
    let (rate, aggregation) = strategy.published(issuers)?;
    let (serial, _) = Strategy::Serial.published(1)?;
    Some(format!("{} ({:.1}x), {aggregation:.0}:1", whole(rate), rate / serial))
}

fn whole(value: f64) -> String {
    grouped_digits(&format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn row(strategy: Strategy, issuers: usize, flushes: Option<f64>) -> Row {
        Row {
            strategy,
            issuers,
            files_per_s: 12_345.6,
            files_per_s_min: 999.0,
            files_per_s_max: 20_000.0,
            p50_us: 1_500.4,
            p99_us: 2_500.0,
            device_writes: flushes.map(|flushes| flushes * 2.0),
            device_flushes: flushes,
            aggregation: flushes.map(|flushes| 100.0 / flushes),
            cpu_s: 0.125,
            to_serial: Some(23.456),
        }
    }

    fn shown(rows: Vec<Row>, rounds: usize) -> String {
        let setup = Setup {
            dir: PathBuf::from("/srv"),
            files: 10_000,
            size: 4096,
            issuers: vec![4],
            rounds: 3,
        };
        told(&setup, &Report { rows, rounds, is_whole: true })
    }

    #[test]
    fn rows_stand_beside_the_published_ones() {
        let rows = vec![row(Strategy::Homing, 4, Some(8.0)), row(Strategy::Syncfs, 4, None)];
        let text = shown(rows, 3);
        let line = text.lines().find(|line| line.trim_start().starts_with("homing")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected =
            "homing 4 12,346 999..20,000 23.46 1,500 2,500 16 8 12.5 0.12 24,000 (45.3x), 35:1";
        assert_eq!(words.join(" "), expected);
        assert!(text.contains("10,000 files of 4 KiB, medians of 3 rounds"), "{text}");
        assert!(text.contains("syncfs (bound)"), "{text}");
        assert!(!text.contains("no device"), "{text}");
    }

    #[test]
    fn without_a_device_its_columns_go_and_it_is_said() {
        let text = shown(vec![row(Strategy::Serial, 3, None)], 0);
        let header = text.lines().find(|line| line.contains("strategy")).unwrap();
        assert!(!header.contains("flush") && !header.contains("published"), "{text}");
        assert!(text.contains("no device of its own") && text.contains("one round"), "{text}");
    }
}
