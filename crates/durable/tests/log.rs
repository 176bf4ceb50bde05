//! The write-ahead log: what is committed is there, whatever becomes of the file behind it.

mod support;

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use homing_durable::{Durable, Kind, Log, LogError, Recovery, Synced};
use homing_runtime::Runtime;
use proptest::collection::vec;
use proptest::prelude::*;
use support::{Call, World};

const DATA: Call = Call::Sync(Kind::Data);

fn read(log: &Log) -> Vec<Vec<u8>> {
    let records = log.records().map(Result::unwrap).enumerate().map(|(index, record)| {
        assert_eq!(record.sequence.get(), index as u64 + 1);
        record.data
    });
    records.collect()
}

fn open(durable: &Durable, path: &Path) -> (Log, Recovery) {
    Log::open(durable, path).unwrap()
}

#[test]
fn what_is_committed_is_read_back_and_what_is_only_appended_is_not_there() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.records, recovery.dropped_bytes), (0, 0));
    log.append(b"").unwrap();
    let second = log.append(&vec![7; 3_000_000]).unwrap();
    log.commit_and_wait(second).unwrap();
    let third = log.append(b"not committed").unwrap();
    assert_eq!((log.durable_sequence(), log.last_sequence()), (second, third));
    assert_eq!(read(&log), [vec![], vec![7; 3_000_000]]);
    log.commit(second).wait().unwrap();
    drop(log);
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.records, recovery.dropped_bytes), (2, 0));
    let again = log.append(b"third").unwrap();
    assert_eq!(again, third);
    log.commit(again).wait().unwrap();
    drop(log);
    assert_eq!(read(&open(&world.durable, &path).0)[2], b"third");
}

#[test]
fn many_who_commit_share_a_flush() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, _) = open(&world.durable, &path);
    let file = fs::File::open(&path).unwrap();
    world.disk.hold(true);
    let first = log.commit(log.append(b"first").unwrap());
    world.disk.until_asked(1);
    let (sender, receiver) = mpsc::channel();
    let committers: Vec<_> = (0..20_u8)
        .map(|number| {
            let (log, sender) = (log.clone(), sender.clone());
            thread::spawn(move || {
                let sequence = log.append(&[number]).unwrap();
                // Half of them wait on a thread, half have a future.
                let synced = (number % 2 == 0).then(|| log.commit(sequence));
                sender.send(()).unwrap();
                synced.map_or_else(|| log.commit_and_wait(sequence), Synced::wait).unwrap();
                assert!(log.durable_sequence() >= sequence);
            })
        })
        .collect();
    (0..20).for_each(|_| receiver.recv().unwrap());
    assert!(!first.is_finished());
    world.disk.hold(false);
    first.wait().unwrap();
    for committer in committers {
        committer.join().unwrap();
    }
    // Those on a thread may have come to commit after the second flush began.
    let flushes = world.disk.calls(&file).len();
    assert!((2..=4).contains(&flushes), "{flushes} flushes");
    assert_eq!(read(&log).len(), 21);
}

#[test]
fn a_failed_flush_is_heard_by_all_and_the_log_refuses_until_it_is_opened_anew() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, _) = open(&world.durable, &path);
    let file = fs::File::open(&path).unwrap();
    let fine = log.append(b"fine").unwrap();
    log.commit_and_wait(fine).unwrap();
    world.disk.fail(DATA, &file, 1);
    world.disk.hold(true);
    let first = log.commit(log.append(b"first").unwrap());
    world.disk.until_asked(2);
    let next = log.append(b"next").unwrap();
    let (second, third) = (log.commit(next), log.commit(next));
    drop(log.commit(next));
    world.disk.hold(false);
    for synced in [first, second, third] {
        assert_eq!(synced.wait().unwrap_err().errno, 5);
    }
    assert!(matches!(log.append(b"more"), Err(LogError::Failed(error)) if error.errno == 5));
    assert!(log.commit_and_wait(next).is_err() && log.commit(next).wait().is_err());
    assert_eq!(world.disk.calls(&file).len(), 2, "the kernel would say that all is well");
    log.commit_and_wait(fine).unwrap();
    assert_eq!((log.durable_sequence(), read(&log).len()), (fine, 1));
    drop(log);
    let (log, _) = open(&world.durable, &path);
    assert_eq!(read(&log)[0], b"fine");
    log.commit_and_wait(log.append(b"again").unwrap()).unwrap();
}

#[test]
fn what_is_no_log_is_left_alone_and_a_log_has_one_user() {
    let world = World::new();
    let path = world.folder.path().join("letter");
    fs::write(&path, b"Dear reader, this is no log.").unwrap();
    let error = Log::open(&world.durable, &path).unwrap_err().to_string();
    assert!(error.contains("letter is no log of ours"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"Dear reader, this is no log.");
    fs::write(&path, b"").unwrap();
    let (log, _) = open(&world.durable, &path);
    assert!(matches!(Log::open(&world.durable, &path), Err(LogError::InUse { .. })));
    drop(log);
    open(&world.durable, &path);
    let missing = world.folder.path().join("no/log");
    assert!(matches!(Log::open(&world.durable, missing), Err(LogError::Io { action: "open", .. })));
}

#[test]
#[should_panic(expected = "record 2 was not appended, the last is 1")]
fn a_commit_of_what_was_never_appended_is_a_bug() {
    let world = World::new();
    let (log, _) = open(&world.durable, &world.folder.path().join("log"));
    let (other, _) = open(&world.durable, &world.folder.path().join("other"));
    log.append(b"one").unwrap();
    other.append(b"one").unwrap();
    drop(log.commit(other.append(b"two").unwrap()));
}

#[test]
fn where_the_runtime_has_ended_a_future_says_so_and_a_thread_still_commits() {
    let World { runtime, durable, folder, .. } = World::new();
    let (log, _) = open(&durable, &folder.path().join("log"));
    runtime.shutdown_now();
    let sequence = log.append(b"late").unwrap();
    let error = log.commit(sequence).wait().unwrap_err();
    assert!(error.operation.contains("runtime"), "{error}");
    log.commit_and_wait(sequence).unwrap();
    assert_eq!(read(&log).len(), 1);
}

/// A log with these records; the file's length behind each.
fn written(durable: &Durable, path: &Path, records: &[Vec<u8>]) -> Vec<u64> {
    let (log, _) = open(durable, path);
    let mut ends = vec![16];
    for record in records {
        log.commit_and_wait(log.append(record).unwrap()).unwrap();
        ends.push(ends[ends.len() - 1] + 16 + record.len() as u64);
    }
    ends
}

/// Whatever was damaged: what is found is a beginning of what was appended, the log goes on from
/// there, and what was dropped does not come back.
fn goes_on(durable: &Durable, path: &Path, records: &[Vec<u8>]) -> usize {
    let (log, recovery) = open(durable, path);
    let found = read(&log);
    assert_eq!(found.len() as u64, recovery.records);
    assert_eq!(found, records[..found.len()]);
    drop(log);
    // Also where the next crash comes before anything is appended.
    let (log, recovery) = open(durable, path);
    assert_eq!((recovery.records, recovery.dropped_bytes), (found.len() as u64, 0));
    // As long as the first that was dropped: those behind it would stand where they did.
    let length = records.get(found.len()).map_or(3, Vec::len);
    log.commit_and_wait(log.append(&vec![0xEE; length]).unwrap()).unwrap();
    drop(log);
    let (log, recovery) = open(durable, path);
    let again = read(&log);
    assert_eq!((again.len(), recovery.dropped_bytes), (found.len() + 1, 0));
    assert_eq!(again[found.len()], vec![0xEE; length]);
    found.len()
}

fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 0..40), 0..12)
}

fn real() -> (Arc<Runtime>, Durable, tempfile::TempDir) {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    (Arc::new(runtime), durable, tempfile::tempdir().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_file_that_is_cut_has_all_that_ended_before(records in records(), cut in any::<prop::sample::Index>()) {
        let (_runtime, durable, folder) = real();
        let path = folder.path().join("log");
        let ends = written(&durable, &path, &records);
        // Also within the zeroes behind the records, now and then.
        let cut = cut.index(*ends.last().unwrap() as usize + 20) as u64;
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
        prop_assert_eq!(goes_on(&durable, &path, &records), whole);
    }

    #[test]
    fn a_byte_that_is_flipped_ends_the_log_before_it(
        records in records(),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let (_runtime, durable, folder) = real();
        let path = folder.path().join("log");
        let ends = written(&durable, &path, &records);
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(*ends.last().unwrap() as usize + 40).min(bytes.len() - 1);
        bytes[at] ^= flip;
        fs::write(&path, &bytes).unwrap();
        if at < 16 {
            let refused = matches!(Log::open(&durable, &path), Err(LogError::NotALog { .. }));
            prop_assert!(refused);
            prop_assert_eq!(fs::read(&path).unwrap(), bytes);
        } else {
            let whole = ends.iter().filter(|end| **end <= at as u64).count() - 1;
            prop_assert_eq!(goes_on(&durable, &path, &records), whole);
        }
    }

    /// Write-back keeps no order: of what was not committed any block may be there.
    #[test]
    fn holes_in_what_was_not_committed_harm_nothing_that_was(
        records in records(),
        committed in any::<prop::sample::Index>(),
        lost in vec(any::<bool>(), 64),
    ) {
        let (_runtime, durable, folder) = real();
        let path = folder.path().join("log");
        let ends = written(&durable, &path, &records);
        let committed = committed.index(ends.len());
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(*ends.last().unwrap() as usize);
        for (block, lost) in bytes[ends[committed] as usize..].chunks_mut(16).zip(lost) {
            if lost {
                block.fill(0);
            }
        }
        fs::write(&path, &bytes).unwrap();
        prop_assert!(goes_on(&durable, &path, &records) >= committed);
    }

    #[test]
    fn no_bytes_make_recovery_panic(bytes in vec(any::<u8>(), 0..300), is_headed in any::<bool>()) {
        let (_runtime, durable, folder) = real();
        let path = folder.path().join("log");
        written(&durable, &path, &[]);
        let header = fs::read(&path).unwrap();
        let all = if is_headed { [&header[..16], &bytes].concat() } else { bytes };
        fs::write(&path, &all).unwrap();
        match Log::open(&durable, &path) {
            Ok((log, recovery)) => prop_assert_eq!(read(&log).len() as u64, recovery.records),
            Err(LogError::NotALog { .. }) => prop_assert_eq!(fs::read(&path).unwrap(), all),
            Err(error) => panic!("{error}"),
        }
    }
}
