//! A log on a real disk that is full: it can be opened and cut off, and goes on with the space that
//! this gives.

use std::fs;
use std::io::Write;
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

/// A filesystem of 8 MiB, or the smallest that there is of its kind.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn new(kind: &str, at: &'a Path, image: &Path) -> Result<Self, String> {
        let (at_text, image_text) = (at.to_str().unwrap(), image.to_str().unwrap());
        if kind == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", "size=8m", "homing-test", at_text])?;
        } else {
            let length = if kind == "xfs" { 320 << 20 } else { 8 << 20 };
            fs::File::create(image).and_then(|file| file.set_len(length)).unwrap();
            run(&format!("mkfs.{kind}"), &["-q", image_text])?;
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

/// Appends records of `length` bytes until there is no room for one more.
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

/// Cuts off a log whose last record found no room: then that record is durable.
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
    let mut log = Log::options().segment_length(SEGMENT).open(&durable, path).unwrap().0;
    for round in 0..4 {
        let error = fill(&log, 5_000).to_string();
        assert!(error.contains("No space left"), "{error}");
        // Now no room is left for anybody.
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

        // This holds however often the log is opened again, and goes on a little.
        for _ in 0..5 {
            let (opened, _) = Log::options().segment_length(SEGMENT).open(&durable, path).unwrap();
            assert!(opened.durable_sequence() >= last);
            // There may be a little room.
            let sequence = opened.append(&[1; 10]).unwrap();
            if opened.commit_and_wait(sequence).is_ok() {
                last = sequence;
            }
        }
        let (opened, recovery) =
            Log::options().segment_length(SEGMENT).open(&durable, path).unwrap();
        assert!(opened.last_sequence() >= last, "{recovery:?}");
        let cut = opened.last_sequence();
        opened.truncate_before(cut).wait().unwrap();
        assert!(opened.first_sequence() > recovery.first);
        assert_eq!(opened.records().map(Result::unwrap).last().unwrap().sequence, cut);
        fs::remove_file(rest).unwrap();
        drop(opened);
        log = Log::options().segment_length(SEGMENT).open(&durable, path).unwrap().0;
    }
}

/// Leaves no free byte on a disk, and no room for a name.
fn fill_up(filler: &Path) {
    let mut filler = fs::File::options().create(true).append(true).open(filler).unwrap();
    for length in [1 << 20, 64 << 10, 4 << 10, 512] {
        while filler.write(&vec![7; length]).is_ok_and(|written| written > 0) {}
    }
    let _ = filler.sync_all();
}

/// A small folder of XFS is within its inode, and takes a block if one more name does not fit: also
/// that of a spare segment that is to become the last segment.
#[test]
fn names_of_segments_are_had_where_the_folder_cannot_grow() {
    let folder = tempfile::tempdir().unwrap();
    let (mount, image) = (folder.path().join("mount"), folder.path().join("image"));
    fs::create_dir(&mount).unwrap();
    let _small = match Small::new("xfs", &mount, &image) {
        Ok(small) => small,
        Err(why) => return println!("skipped: no xfs can be mounted: {why}"),
    };
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let (path, filler) = (mount.join("log"), mount.join("filler"));
    for (segments, other) in [(2, 0), (3, 0), (3, 9), (3, 17), (3, 34), (4, 0), (5, 0), (6, 0)] {
        let open = || Log::options().segment_length(8192).open(&durable, &path).unwrap().0;
        let log = open();
        if other > 0 {
            fs::write(path.join("x".repeat(other)), b"").unwrap();
        }
        for _ in 0..segments {
            let record = log.append(&[1; 8_000]).unwrap();
            log.commit_and_wait(record).unwrap();
        }
        fill_up(&filler);
        let last = log.append(&[2; 3_000]).unwrap();
        assert!(log.commit_and_wait(last).unwrap_err().to_string().contains("no record is lost"));
        let durable_until = log.durable_sequence();
        log.truncate_before(durable_until.next()).wait().unwrap();
        drop(log);
        fill_up(&filler);
        let log = open();
        assert!(log.last_sequence() >= durable_until, "{segments} segments");
        drop(log);
        fs::remove_file(&filler).unwrap();
        fs::remove_dir_all(&path).unwrap();
    }
}
