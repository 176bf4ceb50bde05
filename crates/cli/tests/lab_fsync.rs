//! `homing lab run fsync`: rows for programs, a table for people, errors that say what to do, and
//! no files left behind, even after Ctrl-C.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Every key of a row.
const KEYS: [&str; 11] = [
    "aggregation",
    "cpu_s",
    "device_flushes",
    "device_writes",
    "files_per_s",
    "files_per_s_max",
    "files_per_s_min",
    "issuers",
    "p50_us",
    "p99_us",
    "strategy",
];

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.current_dir(folder).args(["lab", "run", "fsync"]).args(args);
    command
}

fn lab(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

fn succeeds(folder: &Path, args: &[&str]) -> String {
    let output = lab(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {errors}");
    // There is no progress bar without a terminal.
    assert_eq!(errors, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_row_is_a_line_with_these_keys() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--dir", ".", "--files", "12", "--size", "1K", "--issuers", "3,1,3", "--json"];
    let rows = rows(&succeeds(folder.path(), &args));
    let told = |row: &Value| format!("{} {}", row["strategy"].as_str().unwrap(), row["issuers"]);
    let told: Vec<_> = rows.iter().map(told).collect();
    let strategies = ["serial", "threads", "syncfs", "homing", "homing-many"];
    let expected: Vec<_> =
        strategies.iter().flat_map(|name| [1, 3].map(|count| format!("{name} {count}"))).collect();
    assert_eq!(told, expected);
    for row in &rows {
        let mut keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, KEYS);
        for key in ["files_per_s", "p50_us", "p99_us", "cpu_s"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{row}");
        }
        for key in ["device_writes", "device_flushes", "aggregation"] {
            assert!(row[key].is_null() || row[key].is_number(), "{row}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_table_stands_beside_the_published_one() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--dir", ".", "--files", "8", "--issuers", "1,4", "--rounds", "1"];
    let table = succeeds(folder.path(), &args);
    let said =
        ["8 files of 4 KiB, one round", "530 (1.0x), 1:1", "24,000 (45.3x), 35:1", "(bound)"];
    for text in said {
        assert!(table.contains(text), "no {text} in\n{table}");
    }
    let homing = table.lines().filter(|line| line.trim_start().starts_with("homing"));
    assert_eq!(homing.count(), 4, "{table}");
}

#[test]
fn it_is_listed_and_its_help_teaches() {
    let folder = tempfile::tempdir().unwrap();
    let list = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
        String::from_utf8(command.args(["lab", "list"]).args(args).output().unwrap().stdout)
            .unwrap()
    };
    assert!(list(&[]).lines().any(|line| line.trim_start().starts_with("fsync ")));
    let told: Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert!(told.as_array().unwrap().iter().any(|entry| entry["experiment"] == "fsync"));
    let help = succeeds(folder.path(), &["--help"]);
    for text in ["Examples:", "Durable::fsync_many", "--issuers", "Ctrl-C", "aio-fsync"] {
        assert!(help.contains(text), "no {text} in\n{help}");
    }
}

#[test]
fn what_cannot_be_done_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let cases: [(&[&str], &[&str]); 11] = [
        (&[], &["--dir <DIR>"]),
        (&["--dir", "gone"], &["gone", "No such file", "make the folder"]),
        (&["--dir", "file"], &["file", "not a directory", "choose"]),
        (&["--dir", "/proc"], &["cannot write in /proc", "choose"]),
        (&["--dir", ".", "--files", "0"], &["'0'", "--files", "1..="]),
        (&["--dir", ".", "--issuers", "4,0"], &["'0'", "--issuers", "1..="]),
        (&["--dir", ".", "--rounds", "0"], &["'0'", "--rounds", "1..="]),
        (&["--dir", ".", "--size", "0"], &["\"0\"", "--size", "1 byte to 1 GiB"]),
        (&["--dir", ".", "--size", "big"], &["\"big\"", "10G"]),
        (&["--dir", ".", "--files", "4"], &["8 issuers", "4 files", "fewer issuers"]),
        (
            &["--dir", ".", "--files", "1000000", "--size", "1G"],
            &["too little space in .", "1000000 files", "bytes, and", "are free", "fewer"],
        ),
    ];
    for (args, mentions) in cases {
        let output = lab(folder.path(), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code == 1 || code == 2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        for mention in mentions {
            assert!(errors.contains(mention), "{args:?}: no {mention} in {errors}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn ctrl_c_prints_what_has_ended_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--dir", ".", "--files", "64", "--issuers", "1,2", "--rounds", "1000", "--json"];
    let mut command = command(folder.path(), &args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Two folders, one after the other, show that a measurement has ended.
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended after {seen:?}");
        let names = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name());
        // The first folder probes whether files can be made, and stays empty.
        seen.extend(names.filter(|name| {
            fs::read_dir(folder.path().join(name)).is_ok_and(|mut files| files.next().is_some())
        }));
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.starts_with("homing: stopped"), "{errors}");
    assert!(!rows(&String::from_utf8(output.stdout).unwrap()).is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
