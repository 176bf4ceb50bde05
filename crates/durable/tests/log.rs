//! The write-ahead log: what is committed is there, whatever becomes of the file behind that.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use homing_durable::{Durable, Kind, Log, LogError, Recovery, Sequence, Synced};
use support::{Call, World, segments};

const DATA: Call = Call::Sync(Kind::Data);

fn read(log: &Log) -> Vec<Vec<u8>> {
    let first = log.first_sequence().get();
    let records = log.records().map(Result::unwrap).enumerate().map(|(index, record)| {
        assert_eq!(record.sequence.get(), first + index as u64);
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
    let file = fs::File::open(&segments(&path)[0]).unwrap();
    world.disk.forget_calls();
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
    // Committers on a thread may have come after the second flush began.
    let flushes = world.disk.calls(&file).len();
    assert!((2..=4).contains(&flushes), "{flushes} flushes");
    let counters = world.durable.counters();
    let counts = [counters.files, counters.latency_ns.count(), counters.batches.count()];
    assert_eq!(counts, [flushes as u64; 3]);
    // The others' records may have been durable when they committed.
    assert!(counters.asked >= 11 && counters.shared + counters.files == counters.asked);
    assert_eq!(read(&log).len(), 21);
}

#[test]
fn a_failed_flush_is_heard_by_all_and_the_log_refuses_until_it_is_opened_anew() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, _) = open(&world.durable, &path);
    let file = fs::File::open(&segments(&path)[0]).unwrap();
    world.disk.forget_calls();
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
    assert_eq!((world.durable.counters().failed, world.durable.failures().len()), (1, 1));
    let listed = world.durable.failures();
    assert!(listed[0].file.ends_with("00000000000000000001.log"), "{listed:?}");
    log.commit_and_wait(fine).unwrap();
    assert_eq!((log.durable_sequence(), read(&log).len()), (fine, 1));
    // Who opens it while it is still in use finds out nothing.
    assert!(matches!(Log::open(&world.durable, &path), Err(LogError::InUse { .. })));
    assert_eq!(world.durable.failures(), listed);
    drop(log);
    let (log, _) = open(&world.durable, &path);
    assert!(world.durable.failures().is_empty(), "opening it has told what is there");
    assert_eq!(read(&log)[0], b"fine");
    log.commit_and_wait(log.append(b"again").unwrap()).unwrap();
    let file = fs::File::open(segments(&path).last().unwrap()).unwrap();
    world.disk.fail(DATA, &file, 1);
    let error = log.commit_and_wait(log.append(b"once more").unwrap()).unwrap_err();
    assert_eq!(world.durable.acknowledge(&error), Some(error));
    assert!(world.durable.failures().is_empty() && log.append(b"more").is_err(), "it stays closed");
}

#[test]
fn what_is_no_log_is_left_alone_and_a_log_has_one_user() {
    let world = World::new();
    let letter = world.folder.path().join("letter");
    fs::write(&letter, b"Dear reader, this is no log.").unwrap();
    // Nothing is made in a folder that holds something else, either.
    for path in [&*letter, world.folder.path()] {
        let error = Log::open(&world.durable, path).unwrap_err().to_string();
        assert!(error.contains("is not a log: give another path"), "{error}");
    }
    assert_eq!(fs::read(&letter).unwrap(), b"Dear reader, this is no log.");
    assert_eq!(fs::read_dir(world.folder.path()).unwrap().count(), 1);
    let path = world.folder.path().join("log");
    fs::create_dir(&path).unwrap();
    let (log, _) = open(&world.durable, &path);
    assert!(matches!(Log::open(&world.durable, &path), Err(LogError::InUse { .. })));
    drop(log);
    open(&world.durable, &path);
    let missing = world.folder.path().join("no/log");
    assert!(matches!(Log::open(&world.durable, missing), Err(LogError::Io { action: "make", .. })));
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

/// If the runtime drops the worker that was to write a record, the thread that waits for it writes
/// it.
#[test]
fn threads_that_commit_while_the_runtime_ends_are_not_refused() {
    for round in 0..100 {
        let World { runtime, durable, folder, .. } = World::new();
        let (log, _) = open(&durable, &folder.path().join("log"));
        let file = File::create(folder.path().join("file")).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        log.commit_and_wait(log.append(b"one").unwrap()).unwrap();
                        durable.fsync_and_wait(&file).unwrap();
                    }
                });
            }
            thread::sleep(Duration::from_micros(round * 20));
            runtime.shutdown_now();
        });
        assert_eq!(log.durable_sequence().get(), 150);
    }
}

/// A log of ten records, a hundred bytes each, two in a segment.
fn ten(world: &World, path: &Path) -> Log {
    let (log, _) = Log::open_with(&world.durable, path, 300).unwrap();
    for number in 1..=10 {
        log.commit_and_wait(log.append(&[number; 100]).unwrap()).unwrap();
    }
    assert_eq!(segments(path).len(), 5);
    log
}

/// The same log, of which the first five are just being removed, which is held up.
fn removing(world: &World, path: &Path) -> (Log, Synced) {
    let log = ten(world, path);
    world.disk.hold_removals(true);
    let cut = log.truncate_before(6.into());
    world.disk.until_removing();
    (log, cut)
}

#[test]
fn records_go_on_from_segment_to_segment() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    let from = |log: &Log, first: u64| -> Vec<u64> {
        log.records_from(first.into()).map(|record| record.unwrap().sequence.get()).collect()
    };
    // A write is not divided.
    log.append(&[11; 200]).unwrap();
    log.commit_and_wait(log.append(&[12; 200]).unwrap()).unwrap();
    assert_eq!(segments(&path).len(), 6);
    for first in 0..14 {
        assert_eq!(from(&log, first), (first.max(1)..=12).collect::<Vec<_>>());
    }
    drop(log);
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.first.get(), recovery.records, recovery.dropped_bytes), (1, 12, 0));
    let all: Vec<_> = read(&log).iter().map(|data| u64::from(data[0])).collect();
    assert_eq!(all, (1..=12).collect::<Vec<_>>());
    // Each opening may want another length.
    log.commit_and_wait(log.append(&[13; 200]).unwrap()).unwrap();
    assert_eq!((from(&log, 12), segments(&path).len()), (vec![12, 13], 6));
}

#[test]
fn what_is_cut_off_gives_its_space_back_and_does_not_return() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    let early = log.records();
    for nothing in [0, 1, 2] {
        log.truncate_before(nothing.into()).wait().unwrap();
        assert_eq!((log.first_sequence().get(), segments(&path).len()), (1, 5));
    }
    log.truncate_before(6.into()).wait().unwrap();
    // The third to the fifth segment are there, half of the third unneeded, and a new one.
    assert_eq!((log.first_sequence().get(), segments(&path).len()), (6, 4));
    assert_eq!(early.map(Result::unwrap).count(), 10, "who reads already reads on");
    assert_eq!(read(&log), (6..=10).map(|number| vec![number; 100]).collect::<Vec<_>>());
    log.commit_and_wait(log.append(b"eleven").unwrap()).unwrap();
    drop(log);
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.first.get(), recovery.records, recovery.dropped_bytes), (6, 6, 0));
    assert_eq!(read(&log).len(), 6);

    // Cuts off all of it, also what has been appended meanwhile, which is durable then; again and
    // again.
    let last = log.append(b"twelve").unwrap();
    log.truncate_before(log.durable_sequence().next()).wait().unwrap();
    assert_eq!((log.durable_sequence(), log.first_sequence()), (last, last));
    assert_eq!((read(&log), segments(&path).len()), (vec![b"twelve".to_vec()], 1));
    for _ in 0..3 {
        log.truncate_before(last.next()).wait().unwrap();
        let bytes: u64 = segments(&path).iter().map(|path| path.metadata().unwrap().len()).sum();
        assert_eq!((read(&log).len(), segments(&path).len(), bytes), (0, 1, 40));
    }
    drop(log);
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.first, recovery.records), (last.next(), 0));
    assert_eq!((log.first_sequence(), log.last_sequence()), (last.next(), last));
    let next = log.append(b"thirteen").unwrap();
    assert_eq!(next, last.next());
    log.commit_and_wait(next).unwrap();
    assert_eq!(read(&log), [b"thirteen"]);
}

#[test]
fn who_commits_and_who_cuts_share_a_write() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    world.disk.forget_calls();
    world.disk.hold(true);
    let first = log.commit(log.append(b"eleven").unwrap());
    world.disk.until_asked(1);
    let committed = log.commit(log.append(b"twelve").unwrap());
    let cuts = [3, 9, 5].map(|first| log.truncate_before(first.into()));
    assert!(cuts.iter().all(|cut| !cut.is_finished()));
    assert_eq!((log.first_sequence().get(), read(&log).len()), (1, 10));
    world.disk.hold(false);
    for synced in cuts.into_iter().chain([first, committed]) {
        synced.wait().unwrap();
    }
    assert_eq!((log.first_sequence().get(), read(&log).len()), (9, 4));
}

#[test]
fn records_that_are_being_read_stay_when_the_log_is_opened_again() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    let records = log.records();
    drop(log);
    let (_again, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.records, recovery.dropped_bytes), (10, 0));
    assert_eq!(records.map(Result::unwrap).count(), 10);
}

#[test]
fn a_cut_that_fails_closes_the_log_and_loses_nothing_that_is_needed() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let folder = || fs::File::open(&path).unwrap();
    // The first sync of the folder is of the new segment's name, the second of the removal.
    for syncs in [0, 1] {
        fs::remove_dir_all(&path).unwrap_or_default();
        let log = ten(&world, &path);
        world.disk.fail_after(Call::Sync(Kind::All), &folder(), syncs);
        let cut = log.truncate_before(6.into());
        let error = cut.wait().unwrap_err();
        assert!(error.errno == 5 && error.file.ends_with("log"), "{error}");
        assert!(matches!(log.append(b"more"), Err(LogError::Failed(error)) if error.errno == 5));
        assert!(log.truncate_before(6.into()).wait().is_err());
        assert_eq!((log.first_sequence().get(), read(&log).len()), (6, 5));
        drop(log);
        let (log, recovery) = open(&world.durable, &path);
        assert_eq!((recovery.first.get(), recovery.records), (6, 5));
        assert_eq!((read(&log).len(), segments(&path).len()), (5, 4), "the removal is finished");
    }
}

/// The device may have forgotten what the commit beside the cut has written.
#[test]
fn a_cut_that_fails_fails_the_commits_beside_it_and_behind() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, cut) = removing(&world, &path);
    let newest = fs::File::open(segments(&path).last().unwrap()).unwrap();
    world.disk.fail(Call::Sync(Kind::All), &fs::File::open(&path).unwrap(), 1);
    world.disk.forget_calls();
    world.disk.hold_file(&newest, true);
    let beside = log.commit(log.append(b"beside").unwrap());
    world.disk.until_asked(1);
    let behind = log.commit(log.append(b"behind").unwrap());
    world.disk.hold_removals(false);
    assert_eq!(cut.wait().unwrap_err().errno, 5);
    world.disk.hold_file(&newest, false);
    assert_eq!(beside.wait().unwrap_err().errno, 5);
    assert_eq!(behind.wait().unwrap_err().errno, 5);
    assert_eq!(log.durable_sequence().get(), 10);
}

/// The program that made it may have died before that, or may not have been told that it was done.
#[test]
fn the_name_of_a_log_that_was_there_is_durable_once_it_is_open() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let parent = fs::File::open(world.folder.path()).unwrap();
    for fails in [false, true, false] {
        world.disk.forget_calls();
        world.disk.fail(Call::Sync(Kind::All), &parent, usize::from(fails));
        assert_eq!(Log::open(&world.durable, &path).is_err(), fails);
        assert_eq!(world.disk.calls(&parent), [Call::Sync(Kind::All)]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_may_be_in_a_folder_that_may_not_be_read() {
    use std::os::unix::fs::{PermissionsExt, chown};

    use rustix::process::{Uid, geteuid};
    use rustix::thread::set_thread_uid;

    const NOBODY: u32 = 65534;
    let world = World::new();
    let (parent, path) = (world.folder.path(), world.folder.path().join("log"));
    fs::create_dir(&path).unwrap();
    fs::set_permissions(parent, fs::Permissions::from_mode(0o311)).unwrap();
    let is_root = geteuid().is_root();
    if is_root {
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (durable, log_path) = (world.durable.clone(), path.clone());
    let opens = thread::spawn(move || {
        if is_root {
            set_thread_uid(Uid::from_raw(NOBODY)).unwrap(); // root may read all folders
        }
        let (log, _) = open(&durable, &log_path);
        log.commit_and_wait(log.append(b"kept").unwrap()).unwrap();
        drop(log);
        read(&open(&durable, &log_path).0)
    });
    let records = opens.join();
    fs::set_permissions(parent, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(records.unwrap(), [b"kept"]);
    let folder = fs::File::open(&path).unwrap();
    let calls = world.disk.calls(&folder);
    assert!(calls.starts_with(&[Call::Filesystem, Call::Sync(Kind::All)]), "{calls:?}");
}

#[test]
#[should_panic(expected = "records before 3 are needed: the last that is durable is 1")]
fn to_cut_off_what_is_not_durable_is_a_bug() {
    let world = World::new();
    let (log, _) = open(&world.durable, &world.folder.path().join("log"));
    log.commit_and_wait(log.append(b"one").unwrap()).unwrap();
    log.append(b"two").unwrap();
    drop(log.truncate_before(Sequence::from(3)));
}

#[test]
fn who_commits_does_not_wait_for_segments_to_be_removed() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, cut) = removing(&world, &path);
    let later = log.append(b"eleven").unwrap();
    log.commit_and_wait(later).unwrap();
    log.commit(log.append(b"twelve").unwrap()).wait().unwrap();
    // Nor do callers that cut off more, or nothing more, hear that it is done before it is.
    let cuts = [6, 9, 2].map(|first| log.truncate_before(first.into()));
    while segments(&path).len() < 7 {
        std::thread::yield_now();
    }
    let finished = cuts.iter().chain([&cut]).filter(|cut| cut.is_finished()).count();
    let seen = (finished, segments(&path).len(), read(&log).len());
    world.disk.hold_removals(false);
    assert_eq!(seen, (0, 7, 4));
    cut.wait().unwrap();
    for cut in cuts {
        cut.wait().unwrap();
    }
    assert_eq!((segments(&path).len(), read(&log).len()), (3, 4));
}

#[test]
fn a_cut_without_room_is_none_and_leaves_nothing_behind() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    let bytes = || segments(&path).iter().map(|path| path.metadata().unwrap().len()).sum::<u64>();
    let before = bytes();
    world.disk.fill(true);
    let error = log.truncate_before(6.into()).wait().unwrap_err();
    assert!(error.errno == 28 && error.to_string().contains("no record is lost"), "{error}");
    log.commit_and_wait(log.append(&[11; 200]).unwrap()).unwrap_err();
    assert_eq!((segments(&path).len(), bytes()), (5, before));
    assert!(!path.join("segment.new").exists());
    world.disk.fill(false);
    // Nobody waits for the cut any more, so it is not made up for.
    for number in 12..15 {
        log.commit_and_wait(log.append(&[number; 100]).unwrap()).unwrap();
    }
    assert_eq!((log.first_sequence().get(), read(&log).len()), (1, 14));
    assert!(path.join(format!("{:020}.log", 3)).exists());
    log.truncate_before(6.into()).wait().unwrap();
    assert_eq!((log.first_sequence().get(), read(&log).len()), (6, 9));
    assert!(!path.join(format!("{:020}.log", 3)).exists());
}

/// Nor does a cut for which there is no room for a name, but the space that it took is there for
/// the next one.
#[test]
fn a_cut_without_room_for_a_name_is_none_and_leaves_nothing_behind() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()).collect();
        names.sort_unstable();
        names
    };
    let before = names();
    for spare in ["segment.spare-1", "segment.spare-3"] {
        // The log tries once more, with the room of the name that is kept for that.
        world.disk.fail_renames(2);
        // As if the spare one had become the segment.
        let _ = fs::remove_file(path.join(spare));
        let error = log.truncate_before(6.into()).wait().unwrap_err();
        assert!(error.errno == 28 && error.to_string().contains("no record is lost"), "{error}");
        assert_eq!(names(), before);
    }
    log.commit_and_wait(log.append(&[11; 200]).unwrap()).unwrap();
    log.truncate_before(6.into()).wait().unwrap();
    assert_eq!((log.first_sequence().get(), read(&log).len()), (6, 6));
}

#[test]
fn a_segment_that_cannot_be_removed_closes_nothing_and_is_tried_again() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    world.disk.fail_removals(1);
    let error = log.truncate_before(6.into()).wait().unwrap_err();
    assert!(error.errno == 5 && error.to_string().contains("no record is lost"), "{error}");
    log.commit_and_wait(log.append(b"eleven").unwrap()).unwrap();
    assert_eq!((log.first_sequence().get(), segments(&path).len()), (6, 6));
    log.truncate_before(6.into()).wait().unwrap();
    assert_eq!((log.first_sequence().get(), segments(&path).len()), (6, 4));
    // Or it is removed when the log is opened again.
    world.disk.fail_removals(1);
    log.truncate_before(9.into()).wait().unwrap_err();
    log.close();
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.first.get(), recovery.records), (9, 3));
    assert_eq!(read(&log).len(), 3);
}

/// Nothing is removed once another program may have the folder.
#[test]
fn who_closes_a_log_waits_until_what_is_cut_off_is_removed() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, cut) = removing(&world, &path);
    thread::scope(|scope| {
        let closing = scope.spawn(move || log.close());
        thread::sleep(Duration::from_millis(100));
        let is_closed = closing.is_finished();
        world.disk.hold_removals(false);
        assert!(!is_closed);
    });
    cut.wait().unwrap();
    assert_eq!(open(&world.durable, &path).1.first.get(), 6);
}

#[test]
fn who_cuts_off_what_is_just_being_cut_off_waits_for_it() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    world.disk.forget_calls();
    world.disk.hold(true);
    let first = log.truncate_before(6.into());
    world.disk.until_asked(1);
    let second = log.truncate_before(6.into());
    let are_over = [first.is_finished(), second.is_finished()];
    world.disk.fail(Call::Sync(Kind::All), &fs::File::open(&path).unwrap(), 1);
    world.disk.hold(false);
    assert_eq!(are_over, [false, false]);
    assert!(first.wait().is_err() && second.wait().is_err());
}

#[test]
fn who_closes_a_log_waits_for_what_is_under_way_and_can_open_it_again() {
    let world = World::new();
    let path = world.folder.path().join("log");
    for round in 0..20 {
        let (log, _) = Log::open_with(&world.durable, &path, 300).unwrap();
        let all = log.durable_sequence();
        let last = (0..5).map(|number| log.append(&[number; 100]).unwrap()).max().unwrap();
        if round % 2 == 0 {
            drop(log.truncate_before(all.next()));
        }
        drop(log.commit(last));
        let other = log.clone();
        log.close();
        assert_eq!(other.durable_sequence(), last);
        assert!(other.append(b"more").unwrap_err().to_string().contains("after it was closed"));
        assert!(other.truncate_before(last).wait().is_err());
    }
}
