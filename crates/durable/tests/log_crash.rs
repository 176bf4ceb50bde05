//! `kill -9` of a program that commits: every record that it called durable is there.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use homing_durable::{Durable, Log};
use homing_runtime::Runtime;

/// Where the child's log is.
const PATH: &str = "HOMING_TEST_LOG";

/// What a record holds: its committer and that one's count, with a length of its own.
fn content(committer: u64, count: u64) -> Vec<u8> {
    let stamp = format!("{committer} {count} ");
    [stamp.into_bytes(), vec![committer as u8; (count * 37 % 5000) as usize]].concat()
}

/// The child: commits and tells, until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var(PATH) else { return };
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let (log, _) = Log::open(&durable, path).unwrap();
    thread::scope(|scope| {
        for committer in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for count in 0.. {
                    let sequence = log.append(&content(committer, count)).unwrap();
                    if committer % 2 == 0 {
                        log.commit_and_wait(sequence).unwrap();
                    } else {
                        log.commit(sequence).wait().unwrap();
                    }
                    let line = format!("durable {committer} {count} {sequence}\n");
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

fn run_and_kill(path: &Path, lines: usize) -> Vec<[u64; 3]> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(PATH, path).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let parse = |line: String| -> Option<[u64; 3]> {
        let numbers = line.strip_prefix("durable ")?.split(' ').map(str::parse);
        numbers.collect::<Result<Vec<u64>, _>>().ok()?.try_into().ok()
    };
    let mut all: Vec<_> = told.by_ref().filter_map(parse).take(lines).collect();
    child.kill().unwrap();
    // What it had said by then counts, too.
    all.extend(told.filter_map(parse));
    child.wait().unwrap();
    assert!(all.len() >= lines, "the child died early");
    all
}

#[test]
fn what_was_called_durable_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let mut durable_before = 0;
    for round in 0..8 {
        let told = run_and_kill(&path, 20 + 150 * round);
        let (log, recovery) = Log::open(&durable, &path).unwrap();
        let records: Vec<_> = log.records().map(Result::unwrap).collect();
        assert_eq!(records.len() as u64, recovery.records);
        for [committer, count, sequence] in told {
            assert!(sequence > durable_before);
            let record = &records[sequence as usize - 1];
            assert!(record.data == content(committer, count), "record {sequence}");
        }
        durable_before = recovery.records;
    }
}
