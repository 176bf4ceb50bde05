//! Who learns what of an error: a test for each row of the table in the crate's README, which has
//! the row's name, on a disk that does as the test says. `real_errors.rs` has those that the kernel
//! makes.

mod support;

use std::fs::File;
use std::sync::Arc;
use std::thread;

use homing_durable::{
    Commits, DurabilityError, Kind, Log, LogError, SharedFile, Sharing, Strategy, Synced, WriteBack,
};
use support::{Call, World, segments, with_a_flush_that_fails};

const FSYNC: Call = Call::Sync(Kind::All);

fn is_error(verdict: Result<(), DurabilityError>, file: &str, errno: i32) {
    let error = verdict.unwrap_err();
    assert_eq!(error.errno, errno);
    assert!(error.file.ends_with(file) && error.to_string().contains("may be lost"), "{error}");
    let of_file = std::fs::metadata(&error.file).unwrap().len();
    assert_eq!(error.range, 0..of_file, "{error}");
}

fn is_eio(verdict: Result<(), DurabilityError>, file: &str) {
    is_error(verdict, file, 5);
}

fn files(world: &World, count: usize) -> Vec<File> {
    (0..count).map(|number| world.file(&number.to_string())).collect()
}

/// Whatever error the kernel reports is sticky, for every caller, until it is acknowledged.
fn fails(errno: i32) {
    let world = World::new();
    let (file, other) = (world.file("lost"), world.file("other"));
    world.disk.say(errno);
    world.disk.fail(FSYNC, &file, 1);
    is_error(world.durable.fsync(&file).wait(), "lost", errno);
    is_error(world.durable.fsync_and_wait(&file), "lost", errno);
    is_error(world.durable.fdatasync(&file).wait(), "lost", errno);
    world.durable.fsync(&other).wait().unwrap();
    assert_eq!(world.disk.calls(&file), [FSYNC], "the kernel would say that all is well");
    let known = world.durable.failures();
    assert_eq!((known.len(), known[0].errno), (1, errno));
    let lost = world.durable.acknowledge_loss(&file).unwrap();
    assert_eq!((lost.operation, lost.kind, lost.errno), ("fsync", Kind::All, errno));
    assert_eq!((world.durable.acknowledge_loss(&file), world.durable.failures()), (None, vec![]));
    world.durable.fsync_and_wait(&file).unwrap();
    assert_eq!(world.disk.calls(&file), [FSYNC; 2]);
}

#[test]
fn eio_at_write_back() {
    fails(5);
}

#[test]
fn no_space_at_write_back() {
    fails(28);
    // And the error of a quota.
    fails(122);
}

#[test]
fn one_to_a_hundred_waiters() {
    for count in [1, 2, 10, 100] {
        let world = World::new();
        let (file, other) = (world.file("lost"), world.file("other"));
        world.disk.fail(FSYNC, &file, 1);
        world.disk.hold(true);
        let first = world.durable.fsync(&file);
        world.disk.until_asked(1);
        let waiting: Vec<_> = (0..count).map(|_| world.durable.fsync(&file)).collect();
        let fine = world.durable.fsync(&other);
        world.disk.hold(false);
        for synced in waiting.into_iter().chain([first]) {
            is_eio(synced.wait(), "lost");
        }
        fine.wait().unwrap();
        // Callers that share one sync, which was to cover all of them.
        world.durable.acknowledge_loss(&file).unwrap();
        world.disk.hold(true);
        world.disk.fail_after(FSYNC, &file, 1);
        let before = world.disk.book().calls.len();
        let first = world.durable.fsync(&file);
        // It has to begin first: otherwise it would wait for the callers that shared one before.
        world.disk.until_asked(before + 1);
        let waiting: Vec<_> = (0..count).map(|_| world.durable.fsync(&file)).collect();
        world.disk.hold(false);
        let verdicts: Vec<_> = waiting.into_iter().map(Synced::wait).collect();
        match first.wait() {
            Ok(()) => verdicts.into_iter().for_each(|verdict| is_eio(verdict, "lost")),
            Err(error) => panic!("it had begun before: {error}"),
        }
        assert_eq!(world.disk.calls(&file), [FSYNC; 3]);
    }
}

#[test]
fn a_callers_own_sync() {
    let world = World::new();
    let file = world.file("own");
    world.disk.fail(FSYNC, &file, 1);
    world.disk.hold(true);
    thread::scope(|scope| {
        let own = scope.spawn(|| world.durable.fsync_and_wait(&file));
        world.disk.until_asked(1);
        let behind: Vec<_> = (0..10).map(|_| world.durable.fsync(&file)).collect();
        world.disk.hold(false);
        is_eio(own.join().unwrap(), "own");
        for behind in behind {
            is_eio(behind.wait(), "own");
        }
    });
    assert_eq!(world.disk.calls(&file), [FSYNC]);
}

#[test]
fn dropped_futures() {
    let world = World::new();
    let file = world.file("dropped");
    world.disk.fail(FSYNC, &file, 1);
    world.disk.hold(true);
    let all: Vec<_> = (0..10).map(|_| world.durable.fsync(&file)).collect();
    world.disk.until_asked(1);
    drop(all);
    world.disk.hold(false);
    is_eio(world.durable.fsync(&file).wait(), "dropped");
    assert_eq!(world.disk.calls(&file), [FSYNC]);
}

#[test]
fn a_file_that_nobody_has_open_any_more() {
    let world = World::new();
    let file = Arc::new(world.file("gone"));
    world.disk.fail(FSYNC, &file, 1);
    let error = world.durable.fsync_and_wait(&file).unwrap_err();
    assert_eq!(world.durable.failures(), std::slice::from_ref(&error));
    assert_eq!(Arc::strong_count(&file), 2, "its inode must not become another file's");
    assert_eq!(world.durable.acknowledge(&error), Some(error.clone()));
    assert_eq!((Arc::strong_count(&file), world.durable.acknowledge(&error)), (1, None));
    world.durable.fsync_and_wait(&file).unwrap();
}

/// A file that cannot be kept, as if there were no descriptors left.
struct CannotBeKept<'a>(&'a File);

impl homing_durable::Description for CannotBeKept<'_> {
    fn file(&self) -> &File {
        self.0
    }

    fn keep(&self) -> std::io::Result<Arc<File>> {
        Err(std::io::ErrorKind::OutOfMemory.into())
    }
}

#[test]
fn a_file_of_the_callers_own_batch_that_cannot_be_kept() {
    let world = World::new();
    let file = world.file("twice");
    let other = File::open(world.folder.path().join("twice")).unwrap();
    let mut batch = world.durable.batch();
    batch.fsync(&file).fsync(&CannotBeKept(&other));
    assert!(batch.begin().wait().iter().all(Result::is_ok));
    assert_eq!(world.disk.calls(&file), [FSYNC; 2]);
}

/// A caller that acknowledges an old failure has not seen the new one.
#[test]
fn a_failure_after_the_one_that_is_acknowledged() {
    let world = World::new();
    let file = world.file("again");
    world.disk.fail(FSYNC, &file, 2);
    let old = world.durable.fsync_and_wait(&file).unwrap_err();
    world.durable.acknowledge_loss(&file).unwrap();
    let new = world.durable.fsync_and_wait(&file).unwrap_err();
    assert_ne!(old, new);
    assert_eq!(world.durable.acknowledge(&old), None);
    assert_eq!(world.durable.fsync_and_wait(&file).unwrap_err(), new);
    assert_eq!(world.durable.acknowledge(&new), Some(new));
    world.durable.fsync_and_wait(&file).unwrap();
}

#[test]
fn duplicated_descriptors() {
    let world = World::new();
    let file = world.file("twice");
    let same = file.try_clone().unwrap();
    let other = File::open(world.folder.path().join("twice")).unwrap();
    let blocker = world.file("blocker");
    world.durable.set_depth(1);
    world.disk.hold(true);
    let blocked = world.durable.fsync(&blocker);
    world.disk.until_asked(1);
    let all: Vec<_> =
        [&file, &same, &other, &file].map(|file| world.durable.fsync(file)).into_iter().collect();
    // The sync that was asked for succeeds; another description has heard of an error.
    world.disk.fail(Call::Check, &file, 1);
    world.disk.hold(false);
    blocked.wait().unwrap();
    for verdict in all {
        is_eio(verdict.wait(), "twice");
    }
    assert_eq!(world.disk.calls(&file)[..2], [FSYNC, Call::Check]);
}

#[test]
fn a_descriptor_opened_after_the_failure() {
    let world = World::new();
    let file = world.file("lost");
    world.disk.fail(FSYNC, &file, 1);
    is_eio(world.durable.fsync(&file).wait(), "lost");
    drop(file);
    // The kernel would report nothing to this description.
    let again = File::open(world.folder.path().join("lost")).unwrap();
    is_eio(world.durable.fdatasync(&again).wait(), "lost");
    let shared = SharedFile::new(vec![Arc::new(again)]).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    world.durable.fdatasync_shared(&shared, move |verdict| sender.send(verdict).unwrap());
    is_eio(receiver.recv().unwrap(), "lost");
    let again = File::open(world.folder.path().join("lost")).unwrap();
    assert_eq!(world.disk.calls(&again), [FSYNC]);
    world.durable.acknowledge_loss(&again).unwrap();
    world.durable.fsync(&again).wait().unwrap();
}

#[test]
fn a_directory() {
    let world = World::new();
    let (file, folder) = (world.file("new"), File::open(world.folder.path()).unwrap());
    world.disk.fail(FSYNC, &folder, 1);
    let name = world.folder.path().file_name().unwrap().to_str().unwrap();
    is_eio(world.durable.fsync_dir(&folder).wait(), name);
    // This concerns callers that sync another name in the folder, but not those that sync a file.
    is_eio(world.durable.sync_parent(world.folder.path().join("new")).unwrap().wait(), name);
    world.durable.fsync(&file).wait().unwrap();
    world.durable.acknowledge_loss(&folder).unwrap();
    world.durable.fsync_dir(&folder).wait().unwrap();
}

#[test]
fn a_batch() {
    for strategy in [Strategy::Files, Strategy::Filesystem] {
        let world = World::new();
        world.durable.set_strategy(strategy);
        let (good, bad) = (world.file("good"), world.file("bad"));
        let by_itself = strategy == Strategy::Files;
        let call = if by_itself { FSYNC } else { Call::Check };
        world.disk.fail(call, &bad, 1);
        let mut batch = world.durable.batch();
        batch.fsync(&good).fsync(&bad).fdatasync(&good).fdatasync(&bad);
        let [one, two, three, four] = batch.begin().wait().try_into().unwrap();
        one.and(three).unwrap();
        is_eio(two, "bad");
        is_eio(four, "bad");
        // A sync that was dropped has begun all the same, and a later caller hears of its failure.
        world.durable.acknowledge_loss(&bad).unwrap();
        world.disk.fail(call, &bad, 1);
        world.disk.forget_calls();
        let mut batch = world.durable.batch();
        batch.fsync(&bad);
        drop(batch);
        world.disk.until_asked(1);
        is_eio(world.durable.fsync(&bad).wait(), "bad");
    }
}

#[test]
fn write_back_of_a_file_in_a_commit() {
    let world = World::new();
    let files = files(&world, 10);
    world.durable.set_strategy(Strategy::Filesystem);
    world.disk.fail(Call::Check, &files[3], 1);
    let verdicts = world.durable.fsync_many(&files).wait();
    for (number, verdict) in verdicts.into_iter().enumerate() {
        if number == 3 { is_eio(verdict, "3") } else { verdict.unwrap() }
    }
    let calls: Vec<Call> = world.disk.book().calls.iter().map(|(call, _)| *call).collect();
    assert_eq!(calls[0], Call::Filesystem);
    assert!(calls[1..11].iter().all(|call| *call == Call::Check));
    assert_eq!(calls[11..], [Call::Flush]);
    let counters = world.durable.counters();
    assert_eq!((counters.commits, counters.committed, counters.failed), (1, 9, 1));
    is_eio(world.durable.fsync(&files[3]).wait(), "3");
    world.durable.fsync(&files[4]).wait().unwrap();
}

/// A description that is asked twice reports the error once.
#[test]
fn write_back_of_a_file_before_a_commit() {
    for syncfs_fails in [false, true] {
        let world = World::new();
        let files = files(&world, 10);
        world.durable.set_strategy(Strategy::Filesystem);
        world.durable.set_write_back(WriteBack::Early);
        world.disk.fail(Call::Check, &files[3], 1);
        world.disk.fail(Call::Filesystem, &files[0], usize::from(syncfs_fails));
        let verdicts = world.durable.fsync_many(&files).wait();
        for (number, verdict) in verdicts.into_iter().enumerate() {
            if number == 3 { is_eio(verdict, "3") } else { verdict.unwrap() }
        }
        let calls: Vec<Call> = world.disk.book().calls.iter().map(|(call, _)| *call).collect();
        assert!(calls[..10].iter().all(|call| *call == Call::WriteBack));
        assert!(calls[10..20].iter().all(|call| *call == Call::Check));
        assert_eq!(calls[20], Call::Filesystem);
        assert!(calls[21..31].iter().all(|call| *call == Call::Check));
        assert!(!syncfs_fails || calls[31..41].iter().all(|call| *call == FSYNC));
        is_eio(world.durable.fsync(&files[3]).wait(), "3");
        world.durable.fsync(&files[4]).wait().unwrap();
    }
}

#[test]
fn the_flush_after_a_commit() {
    let (world, files) = with_a_flush_that_fails(3);
    for (number, verdict) in world.durable.fsync_many(&files).wait().into_iter().enumerate() {
        is_eio(verdict, &number.to_string());
    }
    for (number, file) in files.iter().enumerate() {
        is_eio(world.durable.fsync(file).wait(), &number.to_string());
    }
}

/// The data of such a caller may have been on its way with that commit.
#[test]
fn who_waits_as_the_flush_fails() {
    let (world, files) = with_a_flush_that_fails(5);
    world.disk.hold(true);
    let committed = world.durable.fsync_many(&files[..3]);
    world.disk.until_asked(1);
    let waits = world.durable.fsync(&files[3]);
    world.disk.hold(false);
    committed.wait().into_iter().for_each(|verdict| _ = verdict.unwrap_err());
    is_eio(waits.wait(), "3");
    is_eio(world.durable.fsync(&files[3]).wait(), "3");
    world.durable.fsync(&files[4]).wait().unwrap();
}

/// Also if its own flush succeeds: what that covers may have been lost with the one that failed.
#[test]
fn who_is_synced_beside_a_commit_whose_flush_fails() {
    let world = World::new();
    let committed = files(&world, 30);
    let [before, own, queued, unkept, later] =
        ["before", "own", "queued", "unkept", "later"].map(|name| world.file(name));
    let [beside, together] = ["beside", "together"].map(|name| Arc::new(world.file(name)));
    let path = world.folder.path().join("log");
    let (log, _) = Log::open(&world.durable, &path).unwrap();
    let segment = File::open(&segments(&path)[0]).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let share = |files: Vec<Arc<File>>, sharing| {
        let (shared, sender) = (SharedFile::new(files).unwrap(), sender.clone());
        world.durable.set_sharing(sharing);
        world.durable.fdatasync_shared(&shared, move |verdict| sender.send(verdict).unwrap());
    };
    world.disk.forget_calls();
    world.disk.fail(Call::Flush, &committed[0], 1);
    let beside_it = [&own, &queued, &unkept, &beside, &together, &segment];
    for file in beside_it.into_iter().chain([&committed[0]]) {
        world.disk.hold_file(file, true);
    }
    let many = world.durable.fsync_many(&committed);
    world.disk.until_asked(1);
    world.durable.fsync_and_wait(&before).unwrap();
    thread::scope(|scope| {
        let own = scope.spawn(|| world.durable.fsync_and_wait(&own));
        let queued = world.durable.fsync(&queued);
        let unkept = scope.spawn(|| world.durable.fsync(&CannotBeKept(&unkept)).wait());
        let other = Arc::new(File::open(world.folder.path().join("beside")).unwrap());
        scope.spawn(|| share(vec![Arc::clone(&beside), other], Sharing::Beside));
        world.disk.until_asked(6);
        scope.spawn(|| share(vec![Arc::clone(&together)], Sharing::Together));
        let logged = log.commit(log.append(b"record").unwrap());
        world.disk.until_asked(8);
        world.disk.hold_file(&committed[0], false);
        many.wait().into_iter().for_each(|verdict| _ = verdict.unwrap_err());
        for file in beside_it {
            world.disk.hold_file(file, false);
        }
        is_eio(own.join().unwrap(), "own");
        is_eio(queued.wait(), "queued");
        is_eio(unkept.join().unwrap(), "unkept");
        is_eio(logged.wait(), ".log");
    });
    let shared = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    assert!(shared.iter().all(Result::is_err), "{shared:?}");
    for (file, name) in [(&*beside, "beside"), (&*together, "together"), (&own, "own")] {
        is_eio(world.durable.fsync(file).wait(), name);
    }
    world.durable.fsync_and_wait(&before).unwrap();
    world.durable.fsync(&later).wait().unwrap();
}

/// An iterator that promises more than there is.
struct Long<I>(I, usize);
impl<I: Iterator> Iterator for Long<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.1, None)
    }
}

/// The first commit of a bulk covers the data of the other files, too.
#[test]
fn a_bulk_whose_first_commit_fails_to_flush() {
    let (world, files) = with_a_flush_that_fails(16);
    world.disk.hold(true);
    let mut asked = 0;
    let all = files.iter().inspect(|_| {
        if asked == 8 {
            world.disk.until_asked(1);
        }
        if asked == 12 {
            world.disk.hold(false);
            while world.durable.failures().len() < 12 {
                thread::yield_now();
            }
        }
        asked += 1;
    });
    let verdicts = world.durable.fsync_many(Long(all, 5000)).wait();
    let oks: Vec<bool> = verdicts.iter().map(Result::is_ok).collect();
    assert!(!oks.contains(&true), "{oks:?}");
}

#[test]
fn syncfs_itself() {
    let world = World::new();
    let files = files(&world, 3);
    world.durable.set_strategy(Strategy::Filesystem);
    world.disk.fail(Call::Filesystem, &files[0], 1);
    world.disk.fail(Call::Check, &files[1], 1);
    let [first, second, third] = world.durable.fsync_many(&files).wait().try_into().unwrap();
    first.unwrap();
    is_eio(second, "1");
    third.unwrap();
    for (number, file) in files.iter().enumerate() {
        let own = |(call, inode): &&(Call, u64)| *call == FSYNC && *inode == support::inode(file);
        assert_eq!(world.disk.book().calls.iter().filter(own).count(), 1, "{number}");
    }
}

#[test]
fn syncfs_itself_where_it_flushes_the_device_or_may() {
    const ENOSPC: i32 = 28;
    let of = |worth: Commits, errno: Option<i32>, bad: bool| {
        let world = World::new();
        world.disk.commits_are(worth);
        let files = files(&world, 3);
        world.durable.set_strategy(Strategy::Filesystem);
        world.disk.fail(Call::Filesystem, &files[0], 1);
        if bad {
            world.disk.fail(Call::Check, &files[1], 1);
        }
        if let Some(errno) = errno {
            world.disk.say(errno);
        }
        let failed = |verdict: &Result<_, _>| verdict.is_err();
        let verdicts = world.durable.fsync_many(&files).wait();
        let later = files.iter().map(|file| world.durable.fsync(file).wait());
        let [now, later] =
            [verdicts.iter().map(failed).collect(), later.map(|l| failed(&l)).collect()];
        let (now, later): (Vec<_>, Vec<_>) = (now, later);
        assert_eq!(now, later);
        now
    };
    for worth in [Commits::Flushed, Commits::MayFlush] {
        assert_eq!(of(worth, None, false), [true; 3], "nobody else says why");
        assert_eq!(of(worth, None, true), [false, true, false]);
        let of_strangers = of(worth, Some(ENOSPC), false);
        assert_eq!(of_strangers, [false; 3], "no flush fails for that");
    }
}

/// The journal has failed, or the flush: another file's sync may succeed without what was lost by
/// that.
#[test]
fn syncfs_itself_and_the_sync_of_a_file_whose_data_is_well() {
    for worth in [Commits::ThenFlush, Commits::MayFlush, Commits::Flushed] {
        let world = World::new();
        world.disk.commits_are(worth);
        let files = files(&world, 3);
        world.durable.set_strategy(Strategy::Filesystem);
        world.disk.fail(Call::Filesystem, &files[0], 1);
        world.disk.fail(FSYNC, &files[1], 1);
        for (number, verdict) in world.durable.fsync_many(&files).wait().into_iter().enumerate() {
            is_eio(verdict, &number.to_string());
        }
        for (number, file) in files.iter().enumerate() {
            is_eio(world.durable.fsync(file).wait(), &number.to_string());
        }
    }
}

/// As if a sandbox forbade it: that is no failure of anybody's data.
#[test]
fn syncfs_itself_where_this_program_may_not() {
    for errno in [1, 38] {
        for worth in [Commits::ThenFlush, Commits::MayFlush, Commits::Flushed] {
            let world = World::new();
            world.disk.commits_are(worth);
            world.disk.say(errno);
            let files = files(&world, 30);
            world.disk.fail(Call::Filesystem, &files[0], 2);
            for _ in 0..2 {
                world.durable.fsync_many(&files).wait().into_iter().for_each(Result::unwrap);
            }
            assert_eq!(world.durable.counters().commits, 1, "it is not asked again");
        }
    }
}

#[test]
fn the_log() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, _) = Log::open(&world.durable, &path).unwrap();
    let fine = log.append(b"fine").unwrap();
    log.commit_and_wait(fine).unwrap();
    let file = File::open(&segments(&path)[0]).unwrap();
    world.disk.forget_calls();
    world.disk.fail(Call::Sync(Kind::Data), &file, 1);
    world.disk.hold(true);
    let first = log.commit(log.append(b"first").unwrap());
    world.disk.until_asked(1);
    let next = log.append(b"next").unwrap();
    let waiting: Vec<_> = (0..100).map(|_| log.commit(next)).collect();
    drop(log.commit(next));
    world.disk.hold(false);
    for synced in waiting.into_iter().chain([first]) {
        is_eio(synced.wait(), "00000000000000000001.log");
    }
    is_eio(log.commit(next).wait(), ".log");
    is_eio(log.truncate_before(fine).wait(), ".log");
    assert!(matches!(log.append(b"more"), Err(LogError::Failed(error)) if error.errno == 5));
    log.commit(fine).wait().unwrap();
    assert_eq!(world.disk.calls(&file), [Call::Sync(Kind::Data)]);
    // A clone is the same log.
    assert!(log.clone().append(b"more").is_err());
    drop(log);
    let (log, recovery) = Log::open(&world.durable, &path).unwrap();
    assert!(recovery.records >= 1);
    log.commit_and_wait(log.append(b"again").unwrap()).unwrap();
}

#[test]
fn no_descriptor_is_left() {
    /// A description that cannot be kept.
    struct Unkept<'a>(&'a File);
    impl homing_durable::Description for Unkept<'_> {
        fn file(&self) -> &File {
            self.0
        }
        fn keep(&self) -> std::io::Result<Arc<File>> {
            Err(std::io::Error::from_raw_os_error(24))
        }
    }
    let world = World::new();
    let file = world.file("unkept");
    let synced = world.durable.fsync(&Unkept(&file));
    assert!(synced.is_finished(), "the caller has waited");
    synced.wait().unwrap();
    world.disk.fail(FSYNC, &file, 1);
    is_eio(world.durable.fsync(&Unkept(&file)).wait(), "unkept");
    is_eio(world.durable.fsync(&file).wait(), "unkept");
    assert_eq!(world.disk.calls(&file), [FSYNC; 2]);
}
