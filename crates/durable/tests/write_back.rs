//! Write-back that is begun early, on a disk that does as a test says.

mod support;

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, mpsc};
use std::thread;

use homing_durable::{Backend, Durable, Kind, SharedFile, Sharing, Strategy, WriteBack};
use homing_runtime::Runtime;
use support::{Call, World};

const FSYNC: Call = Call::Sync(Kind::All);

fn world(write_back: WriteBack) -> (World, Vec<File>) {
    let world = World::new();
    world.durable.set_strategy(Strategy::Files);
    world.durable.set_write_back(write_back);
    let files = (0..200).map(|number| world.file(&number.to_string())).collect();
    (world, files)
}

fn calls(world: &World) -> Vec<Call> {
    world.disk.book().calls.iter().map(|(call, _)| *call).collect()
}

#[test]
fn the_write_back_of_all_begins_before_the_first_is_synced() {
    let (world, files) = world(WriteBack::Early);
    assert!(world.durable.fsync_many(&files).wait().iter().all(Result::is_ok));
    let calls = calls(&world);
    assert_eq!(calls.len(), 400);
    assert!(calls[..200].iter().all(|call| *call == Call::WriteBack));
    assert!(calls[200..].iter().all(|call| *call == FSYNC));
    let counters = world.durable.counters();
    assert_eq!((counters.early, counters.files, counters.commits), (200, 200, 0));
    for file in &files {
        assert_eq!(world.disk.calls(file), [Call::WriteBack, FSYNC]);
    }
}

#[test]
fn none_begins_early_where_that_is_forbidden_or_nobody_waits() {
    let (world, files) = world(WriteBack::Late);
    assert!(world.durable.fsync_many(&files).wait().iter().all(Result::is_ok));
    world.durable.set_write_back(WriteBack::Early);
    world.durable.fsync(&files[0]).wait().unwrap();
    world.durable.fsync_and_wait(&files[1]).unwrap();
    // As many as are synced side by side.
    world.durable.set_write_back(WriteBack::Auto);
    assert!(world.durable.fsync_many(&files[..64]).wait().iter().all(Result::is_ok));
    assert!(!calls(&world).contains(&Call::WriteBack));
    assert_eq!(world.durable.counters().early, 0);
    // If there are more, it is tried.
    assert!(world.durable.fsync_many(&files).wait().iter().all(Result::is_ok));
    assert_eq!(world.durable.counters().early, 200);
}

/// The sync that follows may be told nothing of data that was dropped then.
#[test]
fn what_fails_as_it_begins_or_is_synced_has_failed() {
    for strategy in [Strategy::Files, Strategy::Filesystem] {
        let (world, files) = world(WriteBack::Early);
        world.durable.set_strategy(strategy);
        let later = if strategy == Strategy::Files { FSYNC } else { Call::Check };
        world.disk.fail(Call::WriteBack, &files[3], 1);
        world.disk.fail(later, &files[5], 1);
        for (number, verdict) in world.durable.fsync_many(&files).wait().into_iter().enumerate() {
            assert_eq!(verdict.is_err(), [3, 5].contains(&number), "{number}: {verdict:?}");
        }
        for number in [3, 5] {
            let error = world.durable.fsync(&files[number]).wait().unwrap_err();
            assert_eq!(error.errno, 5, "it is sticky");
        }
    }
}

/// A caller that waited for the sync hears of the failure even if somebody has acknowledged it by
/// then.
#[test]
fn what_has_failed_as_it_began_is_told_though_it_was_acknowledged_meanwhile() {
    let (world, files) = world(WriteBack::Early);
    world.disk.fail(Call::WriteBack, &files[3], 1);
    world.disk.hold_file(&files[199], true);
    let all = world.durable.fsync_many(&files);
    while world.durable.failures().is_empty() {
        thread::yield_now();
    }
    // Its sync has not begun, because the write-back of the last file has still to begin.
    world.durable.acknowledge_loss(&files[3]).unwrap();
    world.disk.hold_file(&files[199], false);
    for (number, verdict) in all.wait().into_iter().enumerate() {
        assert_eq!(verdict.is_err(), number == 3, "{number}: {verdict:?}");
    }
}

/// A file failed as its write-back began, and nobody has it open: its inode does not become another
/// file's.
#[test]
fn what_fails_as_it_begins_is_kept_open() {
    let (world, files) = world(WriteBack::Early);
    world.durable.set_strategy(Strategy::Files);
    let files: Vec<_> = files.into_iter().map(std::sync::Arc::new).collect();
    world.disk.fail(Call::WriteBack, &files[3], 1);
    let verdicts = world.durable.fsync_many(&files).wait();
    assert_eq!(std::sync::Arc::strong_count(&files[3]), 2);
    world.durable.acknowledge(verdicts[3].as_ref().unwrap_err()).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&files[3]), 1);
}

/// `DURABLE-1`: callers that come while write-back begins are covered by a sync that follows.
#[test]
fn those_who_come_while_it_begins_wait_for_a_sync_that_follows() {
    let (world, files) = world(WriteBack::Early);
    world.disk.hold(true);
    let first = world.durable.fsync_many(&files[..100]);
    world.disk.until_asked(1);
    let later = world.durable.fsync_many(&files);
    world.disk.hold(false);
    assert!(first.wait().iter().chain(&later.wait()).all(Result::is_ok));
    for file in &files {
        assert_eq!(*world.disk.calls(file).last().unwrap(), FSYNC);
    }
    let counters = world.durable.counters();
    assert_eq!((counters.shared, counters.files), (100, 200));
}

#[test]
fn waves_follow_each_other_also_where_files_fail_or_are_committed() {
    let (world, files) = world(WriteBack::Early);
    for round in 0..6 {
        world.disk.fail(FSYNC, &files[round], 1);
        world.disk.hold(true);
        world.disk.forget_calls();
        let first = world.durable.fsync_many(&files);
        world.disk.until_asked(1);
        let second = world.durable.fsync_many(&files[..9]);
        let strategies = [Strategy::Files, Strategy::Filesystem, Strategy::Auto];
        world.durable.set_strategy(strategies[round % 3]);
        world.disk.hold(false);
        drop((first.wait(), second.wait()));
        world.durable.set_strategy(Strategy::Files);
        world.durable.acknowledge_loss(&files[round]);
        // If it was committed, nobody has heard of it yet.
        world.disk.fail(FSYNC, &files[round], 0);
        // The last wave has ended: there is another.
        let before = world.durable.counters().early;
        let verdicts = world.durable.fsync_many(&files).wait();
        assert_eq!(verdicts.iter().filter(|verdict| verdict.is_err()).count(), 0);
        // A worker that is still at work may have begun with the first ones, before all were asked
        // for.
        let begun = world.durable.counters().early - before;
        assert!((100..=200).contains(&begun), "{begun}");
    }
}

#[test]
fn a_file_that_fails_elsewhere_leaves_its_wave() {
    let (world, files) = world(WriteBack::Early);
    let own = Arc::new(File::open(world.folder.path().join("7")).unwrap());
    world.durable.set_sharing(Sharing::Together);
    let shared = SharedFile::new(vec![own]).unwrap();
    world.disk.fail(Call::Sync(Kind::Data), &files[7], 1);
    world.disk.hold(true);
    let verdicts = thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (durable, shared) = (&world.durable, &shared);
        scope.spawn(move || {
            durable.fdatasync_shared(shared, move |verdict| sender.send(verdict).unwrap());
        });
        world.disk.until_asked(1);
        let all = world.durable.fsync_many(&files);
        world.disk.until_asked(2);
        world.disk.hold(false);
        assert_eq!(receiver.recv().unwrap().unwrap_err().errno, 5);
        all.wait()
    });
    assert!(verdicts.iter().filter(|verdict| verdict.is_err()).count() <= 1);
    world.durable.acknowledge_loss(&files[7]);
    assert!(world.durable.fsync_many(&files).wait().iter().all(Result::is_ok));
    assert_eq!(world.durable.counters().early, 400, "the wave has ended: there is another");
}

#[test]
fn when_the_runtime_ends_nobody_waits_for_ever() {
    let (World { runtime, durable, disk, folder: _folder }, files) = world(WriteBack::Early);
    durable.set_depth(2);
    disk.hold(true);
    let all = durable.fsync_many(&files);
    disk.until_asked(1);
    let events = runtime.events().clone();
    events.queue(move || runtime.shutdown_now()).join().unwrap();
    disk.hold(false);
    let verdicts = all.wait();
    assert!(verdicts.iter().any(Result::is_err));
    for error in verdicts.into_iter().filter_map(Result::err) {
        assert!(error.operation.contains("runtime"), "{error}");
    }
}

#[test]
fn real_files_become_durable_by_either_backend() {
    for backend in Backend::ALL {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        if let Err(error) = durable.set_backend(backend) {
            eprintln!("skipped: no {} here: {error}", backend.name());
            continue;
        }
        durable.set_strategy(Strategy::Files);
        let folder = tempfile::tempdir().unwrap();
        for write_back in WriteBack::ALL.into_iter().cycle().take(9) {
            durable.set_write_back(write_back);
            let files: Vec<File> = (0..150)
                .map(|number| {
                    let mut file = File::create(folder.path().join(number.to_string())).unwrap();
                    file.write_all(&[7; 4096]).unwrap();
                    file
                })
                .collect();
            assert!(durable.fsync_many(&files).wait().iter().all(Result::is_ok));
        }
        assert!(durable.counters().early >= 450);
    }
}
