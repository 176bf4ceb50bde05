//! Cutting off the beginning of a log: what goes, and what comes of it where something fails.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use homing_durable::{Kind, Log, LogError, Sequence, Synced};
use support::{Call, World, open, read, segments, with_a_flush_that_fails};

/// A log of ten records, a hundred bytes each, two in a segment.
fn ten(world: &World, path: &Path) -> Log {
    let (log, _) = Log::options().segment_length(300).open(&world.durable, path).unwrap();
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

/// Of two cuts, the second one waits for the first.
#[test]
fn a_cut_behind_one_that_fails_is_not_said_to_be_done() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, first) = removing(&world, &path);
    let second = log.truncate_before(9.into());
    log.commit_and_wait(log.append(b"eleven").unwrap()).unwrap();
    world.disk.fail(Call::Sync(Kind::All), &fs::File::open(&path).unwrap(), 1);
    world.disk.hold_removals(false);
    assert_eq!(first.wait().unwrap_err().errno, 5);
    assert_eq!(second.wait().unwrap_err().errno, 5);
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

/// As if it had gone before the one that could not be removed.
#[test]
fn a_segment_that_is_gone_already_is_no_failure_when_a_cut_is_tried_again() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    world.disk.fail_removals(1);
    log.truncate_before(6.into()).wait().unwrap_err();
    fs::remove_file(&segments(&path)[0]).unwrap();
    log.truncate_before(6.into()).wait().unwrap();
    assert_eq!((log.first_sequence().get(), segments(&path).len()), (6, 4));
}

#[test]
fn where_the_runtime_has_ended_a_thread_removes_what_could_not_be_removed_before() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    world.disk.fail_removals(1);
    log.truncate_before(6.into()).wait().unwrap_err();
    let World { runtime, folder: _folder, .. } = world;
    drop(runtime);
    let error = log.truncate_before(6.into()).wait().unwrap_err();
    assert_eq!(error.errno, 125, "{error}");
    log.truncate_before_and_wait(6.into()).unwrap();
    assert_eq!((log.first_sequence().get(), segments(&path).len()), (6, 4));
}

#[test]
fn what_is_cut_off_twice_with_nothing_between_is_cut_off_later_too() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let log = ten(&world, &path);
    for first in [4, 6] {
        log.truncate_before(first.into()).wait().unwrap();
    }
    log.commit_and_wait(log.append(b"eleven").unwrap()).unwrap();
    log.truncate_before(12.into()).wait().unwrap();
    assert_eq!((log.first_sequence().get(), segments(&path).len()), (12, 1));
}

/// The records stay in memory, and the cut is done without them.
#[test]
fn a_cut_needs_no_room_for_records_that_wait() {
    let world = World::new();
    let path = world.folder.path().join("log");
    drop(ten(&world, &path));
    let (log, _) = open(&world.durable, &path);
    let long = log.append(&[11; 5000]).unwrap();
    world.disk.leave_room(1000);
    log.truncate_before(6.into()).wait().unwrap();
    assert_eq!((log.first_sequence().get(), read(&log).len()), (6, 5));
    assert!(segments(&path)[0].ends_with(format!("{:020}.log", 5)), "those before are gone");
    let error = log.commit(long).wait().unwrap_err();
    assert!(error.errno == 28 && error.to_string().contains("no record is lost"), "{error}");
    world.disk.leave_room(usize::MAX);
    log.commit(long).wait().unwrap();
    drop(log);
    let (log, recovery) = open(&world.durable, &path);
    assert_eq!((recovery.first.get(), recovery.records), (6, 6));
    assert_eq!(read(&log).last().unwrap(), &[11; 5000]);
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

/// The commit may have written back what the cut has removed.
#[test]
fn a_cut_of_a_log_beside_a_commit_whose_flush_fails() {
    let (world, files) = with_a_flush_that_fails(3);
    let (log, _) = Log::options()
        .segment_length(300)
        .open(&world.durable, world.folder.path().join("log"))
        .unwrap();
    for number in 0..10 {
        log.commit_and_wait(log.append(&[number; 100]).unwrap()).unwrap();
    }
    world.disk.hold_removals(true);
    let cut = log.truncate_before(6.into());
    world.disk.until_removing();
    assert!(world.durable.fsync_many(&files).wait().iter().all(Result::is_err));
    world.disk.hold_removals(false);
    assert_eq!(cut.wait().unwrap_err().errno, 5);
    log.truncate_before(6.into()).wait().unwrap();
}

/// The commit may have written back the record, so that its own sync has nothing to flush.
#[test]
fn a_commit_of_a_log_beside_a_commit_whose_flush_fails() {
    let (world, files) = with_a_flush_that_fails(3);
    let path = world.folder.path().join("log");
    let (log, _) = Log::open(&world.durable, &path).unwrap();
    let segment = File::open(&segments(&path)[0]).unwrap();
    world.disk.hold_file(&segment, true);
    let committed = log.commit(log.append(b"record").unwrap());
    while !world.disk.calls(&segment).contains(&Call::Sync(Kind::Data)) {
        thread::yield_now();
    }
    assert!(world.durable.fsync_many(&files).wait().iter().all(Result::is_err));
    world.disk.hold_file(&segment, false);
    assert_eq!(committed.wait().unwrap_err().errno, 5);
    assert!(log.append(b"more").is_err(), "nobody knows what is there");
}
