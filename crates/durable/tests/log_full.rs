//! A log on a disk that is full, a real one: it can be opened and cut off, and goes on with the space that gives.

use std::fs;
use std::path::Path;
use std::process::Command;

use homing_durable::{Durable, Log, LogError};
use homing_runtime::Runtime;

const SEGMENT: u64 = 256 << 10;

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("{program}: {told}"))
}

/// A filesystem of 8 MiB.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn new(kind: &str, at: &'a Path, image: &Path) -> Result<Self, String> {
        let (at_text, image_text) = (at.to_str().unwrap(), image.to_str().unwrap());
        if kind == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", "size=8m", "homing-test", at_text])?;
        } else {
            fs::File::create(image).and_then(|file| file.set_len(8 << 20)).unwrap();
            run("mkfs.ext4", &["-q", image_text])?;
            run("mount", &["-o", "loop", image_text, at_text])?;
        }
        Ok(Self(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]).unwrap();
    }
}

/// Appends records of so many bytes until there is no room for one more.
fn fill(log: &Log, length: usize) -> LogError {
    loop {
        let sequence = log.append(&vec![7; length]).unwrap();
        if let Err(error) = log.commit_and_wait(sequence) {
            return error.into();
        }
    }
}

#[test]
fn a_log_on_a_disk_that_is_full_is_opened_and_cut_off() {
    for kind in ["tmpfs", "ext4"] {
        let folder = tempfile::tempdir().unwrap();
        let (mount, image) = (folder.path().join("mount"), folder.path().join("image"));
        fs::create_dir(&mount).unwrap();
        match Small::new(kind, &mount, &image) {
            Ok(_small) => fill_open_and_cut(&mount.join("log")),
            Err(why) => println!("skipped: no {kind} can be mounted: {why}"),
        }
    }
}

/// A log whose last record found no room is cut off, and has it durable then.
fn go_on(log: Log) -> Log {
    let (durable, appended) = (log.durable_sequence(), log.last_sequence());
    assert_eq!(durable.next(), appended);
    assert!(log.commit_and_wait(appended).is_err(), "there is still none");
    log.append(b"behind it").unwrap();
    log.truncate_before(durable).wait().unwrap();
    let last = log.append(b"last").unwrap();
    log.commit_and_wait(last).unwrap();
    let records: Vec<_> = log.records_from(durable).map(Result::unwrap).collect();
    let found: Vec<_> = records.iter().map(|record| (record.sequence, record.data.len())).collect();
    let behind = appended.next();
    assert_eq!(found, [(durable, 5_000), (appended, 5_000), (behind, 9), (behind.next(), 4)]);
    log
}

fn fill_open_and_cut(path: &Path) {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let mut log = Log::open_with(&durable, path, SEGMENT).unwrap().0;
    for round in 0..4 {
        let error = fill(&log, 5_000).to_string();
        assert!(error.contains("No space left"), "{error}");
        // Nothing is left for anybody.
        let rest = path.with_file_name(format!("rest{round}"));
        let _ = fs::write(&rest, vec![1; 1 << 20]);
        if round % 2 == 0 {
            log = go_on(log);
            fs::remove_file(&rest).unwrap();
            let _ = fill(&log, 5_000);
            let _ = fs::write(&rest, vec![1; 1 << 20]);
        }
        let mut last = log.durable_sequence();
        drop(log);

        // However often it is opened again, and goes on a little.
        for _ in 0..5 {
            let (opened, _) = Log::open_with(&durable, path, SEGMENT).unwrap();
            assert!(opened.durable_sequence() >= last);
            // There may be a little room.
            let sequence = opened.append(&[1; 10]).unwrap();
            if opened.commit_and_wait(sequence).is_ok() {
                last = sequence;
            }
        }
        let (opened, recovery) = Log::open_with(&durable, path, SEGMENT).unwrap();
        assert!(opened.last_sequence() >= last, "{recovery:?}");
        let cut = opened.last_sequence();
        opened.truncate_before(cut).wait().unwrap();
        assert!(opened.first_sequence() > recovery.first);
        assert_eq!(opened.records().map(Result::unwrap).last().unwrap().sequence, cut);
        fs::remove_file(rest).unwrap();
        drop(opened);
        log = Log::open_with(&durable, path, SEGMENT).unwrap().0;
    }
}
