//! `kill -9` of a program that commits and cuts its log off: every record that it called durable
//! and did not cut off is there, and no record that it called gone.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use homing_durable::{Durable, Log};
use homing_runtime::Runtime;

/// Where the child's log is.
const PATH: &str = "HOMING_TEST_LOG";

/// What a record holds: its committer and that committer's count, with a length of its own.
fn content(committer: u64, count: u64) -> Vec<u8> {
    let stamp = format!("{committer} {count} ");
    [stamp.into_bytes(), vec![committer as u8; (count * 37 % 5000) as usize]].concat()
}

/// Short segments, so that many begin and go.
const SEGMENT: u64 = 64 << 10;

fn tell(line: String) {
    std::io::stdout().write_all((line + "\n").as_bytes()).unwrap();
}

/// The child: commits, and prints what it has done, until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var(PATH) else { return };
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let (log, _) = Log::options().segment_length(SEGMENT).open(&durable, path).unwrap();
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
                    tell(format!("durable {committer} {count} {sequence}"));
                    // Cuts off some of what is there, or all.
                    if committer == 3 && count % 8 == 7 {
                        let last = log.durable_sequence().get();
                        let first = last + 1 - (count % 3) * 20.min(last);
                        tell(format!("cuts {first} 0 0"));
                        log.truncate_before(first.into()).wait().unwrap();
                        tell(format!("gone {} 0 0", log.first_sequence()));
                    }
                }
            });
        }
    });
}

/// What the child has printed: a word and three numbers.
type Told = (String, [u64; 3]);

fn run_and_kill(path: &Path, lines: usize) -> Vec<Told> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(PATH, path).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let parse = |line: String| -> Option<Told> {
        let (word, numbers) = line.split_once(' ')?;
        let word = ["durable", "cuts", "gone"].into_iter().find(|known| *known == word)?;
        let numbers = numbers.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
        Some((word.to_owned(), numbers.ok()?.try_into().ok()?))
    };
    let mut all: Vec<_> = told.by_ref().filter_map(parse).take(lines).collect();
    child.kill().unwrap();
    // What it had printed by then counts, too.
    all.extend(told.filter_map(parse));
    child.wait().unwrap();
    assert!(all.len() >= lines, "the child died early");
    all
}

#[test]
fn what_was_called_durable_survives_kill_9_and_what_was_cut_off_does_not_return() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let (mut last_before, mut gone, mut may_go) = (0, 1, 1);
    for round in 0..8 {
        let told = run_and_kill(&path, 20 + 150 * round);
        let (log, recovery) = Log::options().segment_length(SEGMENT).open(&durable, &path).unwrap();
        let records: Vec<_> = log.records().map(Result::unwrap).collect();
        assert_eq!(records.len() as u64, recovery.records);
        let first = recovery.first.get();
        let of = |word: &'static str| {
            told.iter().filter(move |(known, _)| known == word).map(|(_, numbers)| *numbers)
        };
        gone = of("gone").map(|[first, ..]| first).fold(gone, u64::max);
        may_go = of("cuts").map(|[first, ..]| first).fold(may_go, u64::max);
        assert!((gone..=may_go).contains(&first), "{first} is not in {gone}..={may_go}");
        for [committer, count, sequence] in of("durable") {
            assert!(sequence > last_before);
            if sequence >= first {
                let record = &records[(sequence - first) as usize];
                assert!(record.data == content(committer, count), "record {sequence}");
            }
        }
        last_before = log.last_sequence().get();
    }
    assert!(gone > 1, "nothing was cut off");
}
