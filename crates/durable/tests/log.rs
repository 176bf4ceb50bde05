//! The write-ahead log: what is committed is there, whatever becomes of the file behind that.

mod support;

use std::fs::{self, File};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use homing_durable::{Kind, Log, LogError, Synced};
use support::{Call, World, open, read, segments};

const DATA: Call = Call::Sync(Kind::Data);

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
fn who_closes_a_log_waits_for_what_is_under_way_and_can_open_it_again() {
    let world = World::new();
    let path = world.folder.path().join("log");
    for round in 0..20 {
        let (log, _) = Log::options().segment_length(300).open(&world.durable, &path).unwrap();
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

#[test]
fn a_filesystem_of_its_own_is_a_folder_for_a_log() {
    let world = World::new();
    let path = world.folder.path().join("root");
    std::fs::create_dir_all(path.join("lost+found")).unwrap();
    let (log, _) = Log::open(&world.durable, &path).unwrap();
    log.commit_and_wait(log.append(b"one").unwrap()).unwrap();
    drop(log);
    assert_eq!(Log::open(&world.durable, &path).unwrap().1.records, 1);
}

/// Somebody who can write in the folder could have any file of the process's user overwritten.
#[test]
fn a_link_at_the_place_of_a_file_of_the_log_is_not_followed() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, _) = open(&world.durable, &path);
    log.commit_and_wait(log.append(b"one").unwrap()).unwrap();
    drop(log);
    let other = world.folder.path().join("precious");
    fs::write(&other, "precious").unwrap();
    for name in ["segment.new", "segment.spare-1", "segment.spare-2"] {
        let link = path.join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&other, &link).unwrap();
        // It is refused, or done without that file.
        let _ = Log::open(&world.durable, &path);
        assert_eq!(fs::read(&other).unwrap(), b"precious", "{name}");
        let _ = fs::remove_file(&link);
    }
    let (log, _) = open(&world.durable, &path);
    assert_eq!(read(&log), [b"one"]);
}
