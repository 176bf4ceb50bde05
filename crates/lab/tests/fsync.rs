//! The experiment of fsync on real files: every strategy has its rows, no file is left behind, it
//! can be stopped, and what cannot be measured is named.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use homing_lab::experiments::Progress;
use homing_lab::fsync::{FsyncError, Report, Setup, Strategy};

fn setup(dir: &Path) -> Setup {
    Setup { dir: dir.to_owned(), files: 21, size: 100, issuers: vec![1, 4], rounds: 2 }
}

fn left(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn stopped_after(setup: &Setup, measurements: usize) -> Report {
    let stop = AtomicBool::new(measurements == 0);
    let report = setup.run(&stop, |progress| {
        assert_eq!(progress.of, setup.measurements());
        stop.store(progress.done == measurements, Ordering::Relaxed);
    });
    report.unwrap()
}

#[test]
fn every_strategy_has_a_row_for_each_number_of_issuers() {
    let dir = tempfile::tempdir().unwrap();
    let setup = setup(dir.path());
    let report = stopped_after(&setup, usize::MAX);
    assert_eq!((report.rounds, report.is_whole), (2, true));
    let found: Vec<_> = report.rows.iter().map(|row| (row.strategy, row.issuers)).collect();
    let expected: Vec<_> = Strategy::ALL.into_iter().flat_map(|s| [(s, 1), (s, 4)]).collect();
    assert_eq!(found, expected);
    for row in &report.rows {
        assert!(0.0 < row.files_per_s_min && row.files_per_s_min <= row.files_per_s, "{row:?}");
        assert!(row.files_per_s <= row.files_per_s_max && row.to_serial.unwrap() > 0.0, "{row:?}");
        assert!(0.0 < row.p50_us && row.p50_us <= row.p99_us && row.cpu_s > 0.0, "{row:?}");
        assert!(row.device_flushes.is_none() || row.device_writes.is_some(), "{row:?}");
    }
    assert_eq!(report.rows[0].to_serial, Some(1.0));
    assert_eq!(left(dir.path()), 0);
}

#[test]
fn latencies_of_one_after_the_other_add_up_and_of_all_at_once_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { files: 200, issuers: vec![1], rounds: 1, ..setup(dir.path()) };
    let report = stopped_after(&setup, usize::MAX);
    let many = report.rows.iter().find(|row| row.strategy == Strategy::HomingMany).unwrap();
    assert_eq!(many.p50_us.to_bits(), many.p99_us.to_bits());
    let serial = &report.rows[0];
    assert!(serial.p50_us * 100.0 <= 200.0 / serial.files_per_s * 1e6, "{serial:?}");
}

#[test]
fn stopping_keeps_the_rounds_that_have_ended_and_removes_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let setup = setup(dir.path());
    let in_a_round = setup.measurements() / setup.rounds;
    for (measurements, rounds, rows) in
        [(0, 0, 0), (3, 0, 3), (in_a_round, 1, in_a_round), (in_a_round + 3, 1, in_a_round)]
    {
        let report = stopped_after(&setup, measurements);
        assert_eq!((report.rounds, report.rows.len()), (rounds, rows), "{measurements}");
        assert!(!report.is_whole);
        let spread = |row: &homing_lab::fsync::Row| row.files_per_s_max - row.files_per_s_min;
        assert!(report.rows.iter().all(|row| spread(row) == 0.0), "{report:?}");
        assert_eq!(left(dir.path()), 0);
    }
}

#[test]
fn a_measurement_that_is_stopped_midway_counts_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { files: 2_000, issuers: vec![4], ..setup(dir.path()) };
    let [begun, ended, stop] = [(); 3].map(|()| AtomicBool::new(false));
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Files are there: it has begun, and the measurement after it will not end.
            let is_under_way = || begun.load(Ordering::Relaxed) && left(dir.path()) > 0;
            while !is_under_way() && !ended.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        let told = |progress: Progress| begun.store(progress.done >= 1, Ordering::Relaxed);
        let report = setup.run(&stop, told);
        ended.store(true, Ordering::Relaxed);
        report
    });
    let report = report.unwrap();
    assert!(!report.is_whole && !report.rows.is_empty(), "{report:?}");
    assert!(report.rows.len() < Strategy::ALL.len(), "{report:?}");
    assert_eq!(left(dir.path()), 0);
}

#[test]
fn what_cannot_be_measured_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let good = setup(dir.path());
    let with_dir = |path: &Path| Setup { dir: path.to_owned(), ..good.clone() };
    let cases: [(Setup, &[&str]); 9] = [
        (with_dir(&dir.path().join("gone")), &["gone", "No such file", "make the folder"]),
        (with_dir(&file), &["file", "not a directory", "choose"]),
        (with_dir(Path::new("/proc")), &["cannot write in /proc", "choose"]),
        (Setup { files: 0, ..good.clone() }, &["the number of files cannot be 0", "1 or more"]),
        (Setup { size: 0, ..good.clone() }, &["the size of a file cannot be 0", "1 byte"]),
        (Setup { rounds: 0, ..good.clone() }, &["the number of rounds cannot be 0"]),
        (Setup { issuers: vec![1, 0], ..good.clone() }, &["the number of issuers cannot be 0"]),
        (Setup { issuers: vec![1, 22], ..good.clone() }, &["22 issuers", "21 files", "fewer"]),
        (Setup { size: 1 << 60, ..good.clone() }, &["too little space", "21 files of", "are free"]),
    ];
    for (setup, mentions) in cases {
        let error = setup.run(&AtomicBool::new(false), |_| ()).unwrap_err().to_string();
        for mention in mentions {
            assert!(error.contains(mention), "no {mention:?} in {error:?}");
        }
    }
    assert_eq!(left(dir.path()), 1);
    let needed = Setup { size: 1 << 60, ..good }.run(&AtomicBool::new(false), |_| ());
    let Err(FsyncError::TooLittleSpace { needed, free, .. }) = needed else { panic!("{needed:?}") };
    assert!(needed > free && needed >= 21 << 59, "{needed} {free}");
}
