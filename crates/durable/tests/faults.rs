//! What each waiter learns, on a disk that does as a test says.

mod support;

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use homing_durable::{Commits, DurabilityError, Durable, Failure, Kind, Strategy, System};
use homing_runtime::Runtime;
use rustix::fs::{FileType, Mode};
use support::{Call, World};

const FSYNC: Call = Call::Sync(Kind::All);

fn is_eio(verdict: Result<(), DurabilityError>, file: &str) {
    let error = verdict.unwrap_err();
    assert_eq!(error.errno, 5);
    assert!(error.file.ends_with(file) && error.to_string().contains("may be lost"), "{error}");
}

#[test]
fn those_who_come_while_a_sync_runs_share_the_next_one_and_its_verdict() {
    let world = World::new();
    let file = world.file("shared");
    world.disk.hold(true);
    let first = world.durable.fsync(&file);
    world.disk.until_asked(1);
    let late: Vec<_> = (0..100).map(|_| world.durable.fdatasync(&file)).collect();
    let last = world.durable.fsync(&file);
    assert!(!first.is_finished() && !last.is_finished());
    world.disk.hold(false);
    first.wait().unwrap();
    for late in late {
        late.wait().unwrap();
    }
    last.wait().unwrap();
    assert_eq!(world.disk.calls(&file), [FSYNC, FSYNC], "all is more than the data");
    let counters = world.durable.counters();
    assert_eq!((counters.asked, counters.shared, counters.files), (102, 100, 2));
}

/// `DURABLE-1`: a caller that is told that all is well was covered by a call that began after it
/// had asked.
#[test]
fn no_verdict_is_of_a_sync_that_had_begun_before() {
    let world = World::new();
    let files: Vec<_> = (0..4).map(|number| world.file(&number.to_string())).collect();
    let files = Arc::new(files);
    let strategies = [Strategy::Auto, Strategy::Files, Strategy::Filesystem];
    let askers: Vec<_> = (0..6)
        .map(|asker| {
            let (durable, disk) = (world.durable.clone(), world.disk.clone());
            let files = Arc::clone(&files);
            thread::spawn(move || {
                for round in 0..500 {
                    let file = &files[(asker + round) % 4];
                    let before = disk.book().calls.len();
                    match round % 5 {
                        0 => durable.fsync_and_wait(file).unwrap(),
                        1 => durable.set_strategy(strategies[round / 5 % 3]),
                        _ => durable.fsync(file).wait().unwrap(),
                    }
                    if round % 5 == 1 {
                        continue;
                    }
                    let book = disk.book();
                    let covers = |(call, inode): &(Call, u64)| match call {
                        Call::Sync(_) => *inode == support::inode(file),
                        Call::Filesystem => true,
                        Call::Check | Call::Flush | Call::WriteBack => false,
                    };
                    assert!(book.calls[before..].iter().any(covers), "a lie");
                }
            })
        })
        .collect();
    for asker in askers {
        asker.join().unwrap();
    }
}

#[test]
fn forbidding_commits_syncs_each_file() {
    let world = World::new();
    let files: Vec<_> = (0..200).map(|number| world.file(&number.to_string())).collect();
    world.durable.set_strategy(Strategy::Files);
    let verdicts = world.durable.fsync_many(&files).wait();
    assert!(verdicts.into_iter().all(|verdict| verdict.is_ok()));
    assert_eq!((world.durable.counters().files, world.durable.counters().commits), (200, 0));
}

#[test]
fn when_the_runtime_ends_nobody_waits_for_ever() {
    let World { runtime, durable, disk, folder } = World::new();
    let files: Vec<_> = (0..200)
        .map(|number| File::create(folder.path().join(number.to_string())).unwrap())
        .collect();
    durable.set_strategy(Strategy::Files);
    durable.set_depth(2);
    disk.hold(true);
    let all: Vec<_> = files.iter().map(|file| durable.fsync(file)).collect();
    disk.until_asked(1);
    // On a worker: there the shutdown waits for nobody, and from then on the runtime ends.
    let events = runtime.events().clone();
    events.queue(move || runtime.shutdown_now()).join().unwrap();
    disk.hold(false);
    let verdicts: Vec<_> = all.into_iter().map(homing_durable::Synced::wait).collect();
    assert!(verdicts.iter().any(Result::is_err));
    for verdict in verdicts {
        if let Err(error) = verdict {
            assert!(error.operation.contains("runtime"), "{error}");
        }
    }
    assert!(durable.fsync(&files[0]).wait().is_err());
    assert_eq!(durable.acknowledge_loss(&files[0]), None, "nothing is known to be lost");
}

/// Commits follow each other, put off or not, until the runtime ends.
#[test]
fn when_the_runtime_ends_between_commits_nobody_waits_for_ever() {
    for _ in 0..50 {
        let World { runtime, durable, disk: _disk, folder } = World::new();
        durable.set_strategy(Strategy::Filesystem);
        thread::scope(|scope| {
            for number in 0..8 {
                let file = File::create(folder.path().join(number.to_string())).unwrap();
                let durable = &durable;
                scope.spawn(move || while durable.fsync(&file).wait().is_ok() {});
            }
            while durable.counters().commits < 5 {
                thread::yield_now();
            }
            let events = runtime.events().clone();
            events.queue(move || runtime.shutdown_now()).join().unwrap();
        });
    }
}

/// All waiting callers are told, and the next ones are served.
#[test]
fn a_waker_that_panics_harms_nobody_else() {
    /// The payload of a panic may panic in turn.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(thread::panicking(), "as this test wants it");
        }
    }
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any(Bomb);
        }
    }
    let world = World::new();
    world.durable.set_strategy(Strategy::Filesystem);
    let files: Vec<File> = (0..3).map(|number| world.file(&number.to_string())).collect();
    world.disk.hold(true);
    let mut all = Box::pin(world.durable.fsync_many(&files));
    let waker = Waker::from(Arc::new(Panics));
    assert!(all.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    world.disk.hold(false);
    for file in &files {
        world.durable.fsync(file).wait().unwrap();
    }
    world.durable.fdatasync_and_then(&files[0], |_| std::panic::panic_any(Bomb));
    world.durable.fdatasync(&files[0]).wait().unwrap();
}

#[test]
fn futures_wait_without_a_thread() {
    let world = World::new();
    let files: Vec<_> = (0..50).map(|number| world.file(&number.to_string())).collect();
    let durable = world.durable.clone();
    let verdicts = world.runtime.spawn(async move {
        durable.fsync(&files[0]).await.unwrap();
        durable.fsync_many(&files).await
    });
    assert!(verdicts.join().unwrap().into_iter().all(|verdict| verdict.is_ok()));
}

#[test]
fn calls_wait_without_a_thread_and_share_a_sync() {
    let world = World::new();
    let file = Arc::new(world.file("called"));
    let (sender, receiver) = mpsc::channel();
    let ask = |durable: &Durable, number: u32| {
        let sender = sender.clone();
        durable.fdatasync_and_then(&file, move |verdict| {
            sender.send((number, verdict)).unwrap();
            assert!(number != 50, "one that panics takes nothing from the others");
        });
    };
    world.disk.hold(true);
    thread::scope(|scope| {
        // The first caller has the disk to itself, and waits for it.
        scope.spawn(|| ask(&world.durable, 0));
        world.disk.until_asked(1);
        (1..=100).for_each(|number| ask(&world.durable, number));
        assert!(receiver.try_recv().is_err());
        world.disk.fail_after(Call::Sync(Kind::Data), &file, 1);
        world.disk.hold(false);
    });
    let mut told: Vec<_> = (0..=100)
        .map(|_| receiver.recv_timeout(Duration::from_secs(20)).unwrap())
        .map(|(number, verdict)| (number, verdict.is_ok()))
        .collect();
    told.sort_unstable();
    let expected: Vec<_> = (0..=100).map(|number| (number, number == 0)).collect();
    assert_eq!(told, expected, "the first had begun before it failed");
    assert_eq!(world.disk.calls(&file), [Call::Sync(Kind::Data); 2]);
    ask(&world.durable, 101);
    is_eio(receiver.recv().unwrap().1, "called");
}

#[test]
fn a_batch_begins_together_and_also_where_it_is_dropped() {
    let world = World::new();
    let (data, all) = (world.file("data"), world.file("all"));
    let path = world.folder.path().join("all");
    world.durable.set_strategy(Strategy::Filesystem);
    let mut batch = world.durable.batch();
    batch.fdatasync(&data).fsync(&all).fsync(&all);
    batch.sync_parent(&path).unwrap();
    assert!(batch.sync_parent("/").unwrap_err().to_string().contains("no parent"));
    assert_eq!(world.disk.book().calls.len(), 0);
    world.disk.fail(Call::Check, &all, 1);
    let [first, second, third, parent] = batch.begin().wait().try_into().unwrap();
    first.unwrap();
    is_eio(second, "all");
    is_eio(third, "all");
    parent.unwrap();
    let counters = world.durable.counters();
    assert_eq!((counters.commits, counters.committed), (1, 2), "the third was not made durable");
    let folder = File::open(world.folder.path()).unwrap();
    assert_eq!(world.disk.calls(&folder), [Call::Check]);

    let mut batch = world.durable.batch();
    batch.fdatasync(&data);
    let shares = world.durable.clone();
    drop(batch);
    shares.fdatasync(&data).wait().unwrap();
    world.durable.sync_parent(&path).unwrap().wait().unwrap();
    assert!(world.durable.sync_parent("/no/such/folder").is_err());
}

/// A FUSE server, for one, is not told of `syncfs`.
#[test]
fn a_filesystem_of_which_it_is_not_known_what_a_commit_does_is_never_committed() {
    // Or another filesystem has its device's number by the time that it is committed.
    for times in [0, 1] {
        let world = World::new();
        world.disk.commits(times);
        let files: Vec<File> = (0..50).map(|number| world.file(&number.to_string())).collect();
        for strategy in Strategy::ALL {
            world.durable.set_strategy(strategy);
            world.disk.forget_calls();
            let verdicts = world.durable.fsync_many(&files).wait();
            assert!(verdicts.into_iter().all(|verdict| verdict.is_ok()));
            world.durable.fsync_and_wait(&files[0]).unwrap();
            let book = world.disk.book();
            let syncs =
                book.calls.iter().filter(|(call, _)| *call == Call::Sync(Kind::All)).count();
            assert_eq!(syncs, 51);
            assert!(!book.calls.iter().any(|(call, _)| *call == Call::Filesystem));
        }
        assert_eq!(world.durable.counters().commits, 0);
    }
}

/// A description on a filesystem over another one has heard of nothing by itself.
#[test]
fn other_descriptions_are_synced_where_it_is_not_known_what_they_hear() {
    for (times, asked) in [(0, Call::Sync(Kind::All)), (100, Call::Check)] {
        let world = World::new();
        world.disk.commits(times);
        world.durable.set_strategy(Strategy::Files);
        let file = world.file("file");
        let other = File::open(world.folder.path().join("file")).unwrap();
        world.disk.hold(true);
        let first = world.durable.fsync(&file);
        world.disk.until_asked(1);
        let [next, with] = [world.durable.fsync(&file), world.durable.fsync(&other)];
        world.disk.hold(false);
        assert!([first, next, with].into_iter().all(|synced| synced.wait().is_ok()));
        assert_eq!(world.disk.calls(&file)[1..], [Call::Sync(Kind::All), asked]);
    }
}

/// As if the number of the file's device had become that of another filesystem since.
#[test]
fn other_descriptions_are_synced_where_a_commit_finds_another_filesystem() {
    let world = World::new();
    // It says this often that it can be committed, and then that it cannot.
    world.disk.commits(1);
    world.durable.set_strategy(Strategy::Filesystem);
    let file = world.file("file");
    let other = File::open(world.folder.path().join("file")).unwrap();
    let mut batch = world.durable.batch();
    batch.fsync(&file).fsync(&other);
    assert!(batch.begin().wait().iter().all(Result::is_ok));
    assert_eq!(world.disk.calls(&file), [FSYNC; 2]);
}

#[test]
fn what_is_no_file_of_the_filesystem_is_no_part_of_a_commit() {
    let world = World::new();
    let path = world.folder.path().join("pipe");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
    let pipe = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (file, folder) = (world.file("file"), File::open(world.folder.path()).unwrap());
    world.durable.set_strategy(Strategy::Filesystem);
    let mut batch = world.durable.batch();
    batch.fsync(&pipe).fsync_dir(&folder).fsync(&file);
    assert!(batch.begin().wait().into_iter().all(|verdict| verdict.is_ok()));
    assert_eq!(world.disk.calls(&pipe), [Call::Sync(Kind::All)]);
    let flushed = world.disk.calls(&file);
    assert_eq!(flushed, [Call::Check, Call::Flush], "not by the directory");
}

/// `DURABLE-4`: also if there is no plain file through which to do it.
#[test]
fn a_commit_of_directories_alone_flushes_the_device_too() {
    let world = World::new();
    world.durable.set_strategy(Strategy::Filesystem);
    let paths = ["one", "two"].map(|name| world.folder.path().join(name));
    let directories = paths.map(|path| {
        std::fs::create_dir(&path).unwrap();
        File::open(path).unwrap()
    });
    let mut batch = world.durable.batch();
    batch.fsync_dir(&directories[0]).fsync_dir(&directories[1]);
    assert!(batch.begin().wait().into_iter().all(|verdict| verdict.is_ok()));
    assert_eq!(world.durable.counters().commits, 1);
    let flushes = world.disk.book().calls.iter().filter(|(call, _)| *call == Call::Flush).count();
    assert_eq!(flushes, 1);
}

/// The flush has flushed nothing, and its error is about data written to one of the files
/// meanwhile.
#[test]
fn where_the_flush_after_a_commit_finds_no_room_each_file_is_synced() {
    for errno in [28, 122] {
        let world = World::new();
        world.durable.set_strategy(Strategy::Filesystem);
        let files = [world.file("one"), world.file("two")];
        world.disk.say(errno);
        world.disk.fail(Call::Flush, &files[0], 1);
        world.disk.fail(FSYNC, &files[1], 1);
        let [first, second] = world.durable.fsync_many(&files).wait().try_into().unwrap();
        first.unwrap();
        assert_eq!(second.unwrap_err().errno, errno);
        for file in &files {
            assert_eq!(world.disk.calls(file).last(), Some(&FSYNC), "nothing else has flushed it");
        }
    }
}

#[test]
fn files_of_a_commit_that_are_synced_one_by_one_are_counted_as_such() {
    for (call, errno) in [(Call::Filesystem, 1), (Call::Filesystem, 28), (Call::Flush, 28)] {
        let world = World::new();
        world.durable.set_strategy(Strategy::Filesystem);
        let files = [world.file("one"), world.file("two")];
        world.disk.say(errno);
        world.disk.fail(call, &files[0], 1);
        world.durable.fsync_many(&files).wait().into_iter().for_each(Result::unwrap);
        let counters = world.durable.counters();
        assert_eq!((counters.files, counters.commits, counters.committed), (2, 1, 0));
        assert_eq!(counters.flushes_saved(), 0);
    }
}

/// A description that is not asked now would report the error later, of other data.
#[test]
fn all_descriptions_of_a_file_are_asked_whatever_the_first_ones_say() {
    for fails in [FSYNC, Call::Check] {
        let world = World::new();
        world.durable.set_strategy(Strategy::Files);
        let file = world.file("file");
        let others = [(); 2].map(|()| File::open(world.folder.path().join("file")).unwrap());
        world.disk.hold(true);
        let first = world.durable.fsync(&file);
        world.disk.until_asked(1);
        let next = world.durable.fsync(&file);
        let with = others.each_ref().map(|other| world.durable.fsync(other));
        world.disk.fail_after(fails, &file, usize::from(fails == FSYNC));
        world.disk.hold(false);
        first.wait().unwrap();
        for synced in [next].into_iter().chain(with) {
            is_eio(synced.wait(), "file");
        }
        assert_eq!(world.disk.calls(&file)[1..], [FSYNC, Call::Check, Call::Check]);
    }
}

#[test]
fn a_filesystem_that_flushes_its_device_is_not_asked_to_do_it_again() {
    let world = World::new();
    world.disk.commits_are(Commits::Flushed);
    world.durable.set_strategy(Strategy::Filesystem);
    let files = [world.file("one"), world.file("two")];
    let all = |expected: bool| {
        let verdicts = world.durable.fsync_many(&files).wait();
        assert!(verdicts.into_iter().all(|verdict| verdict.is_ok() == expected));
    };
    all(true);
    assert_eq!(world.disk.calls(&files[0]), [Call::Filesystem, Call::Check]);
    // Each file has a verdict of its own all the same.
    for file in &files {
        world.disk.fail(Call::Check, file, 1);
    }
    all(false);
}

#[test]
fn a_range_is_durable_with_all_of_its_file() {
    let world = World::new();
    world.durable.set_strategy(Strategy::Files);
    let file = world.file("range");
    world.durable.sync_range(&file, 7..7).wait().unwrap();
    assert_eq!(world.disk.calls(&file), []);
    world.durable.sync_range(&file, 0..4096).wait().unwrap();
    assert_eq!(world.disk.calls(&file), [Call::Sync(Kind::Data)]);
    world.disk.fail(Call::Sync(Kind::Data), &file, 1);
    is_eio(world.durable.fdatasync_and_wait(&file), "range");
    is_eio(world.durable.sync_range(&file, 7..7).wait(), "range");
    let counters = world.durable.counters();
    assert_eq!((counters.asked, counters.failed), (2, 2), "what asks for nothing is not counted");
}

#[test]
fn a_range_that_ends_before_it_begins_is_no_empty_one() {
    let world = World::new();
    let file = world.file("wrapped");
    // As if the sum for the range's end had overflowed.
    let (offset, length) = (4096_u64, u64::MAX);
    world.durable.sync_range(&file, offset..offset.wrapping_add(length)).wait().unwrap();
    assert_eq!(world.disk.calls(&file).len(), 1, "it was to be durable");
}

/// A call waits for somebody who waits for the file's next sync: that sync goes on meanwhile.
#[test]
fn a_call_that_takes_long_holds_up_no_sync_of_its_file() {
    let world = World::new();
    world.durable.set_strategy(Strategy::Files);
    let (file, other) = (Arc::new(world.file("called")), world.file("other"));
    let (let_go, goes_on) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    world.disk.hold(true);
    let beside = world.durable.fsync(&other);
    world.durable.fdatasync_and_then(&file, move |verdict| {
        let waited = goes_on.recv_timeout(Duration::from_secs(20));
        tell.send((verdict.is_ok(), waited.is_ok())).unwrap();
    });
    world.disk.until_asked(2);
    let behind = world.durable.fsync(&file);
    world.disk.hold(false);
    behind.wait().unwrap();
    let_go.send(()).unwrap();
    assert_eq!(told.recv().unwrap(), (true, true));
    beside.wait().unwrap();
}

/// What each call asked for, and on which thread.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<(&'static str, ThreadId)>>>);

impl Noted {
    fn note(&self, call: &'static str) {
        self.0.lock().unwrap().push((call, thread::current().id()));
    }
}

impl System for Noted {
    fn sync(&self, _: &File, _: Kind) -> Result<(), Failure> {
        self.note("sync");
        Ok(())
    }
    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        self.note("sync_filesystem");
        Ok(())
    }
    fn check(&self, _: &File) -> Result<(), Failure> {
        self.note("check");
        Ok(())
    }
    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        self.note("flush_device");
        Ok(())
    }
    fn begin_write_back(&self, _: &File) -> Result<(), Failure> {
        self.note("begin_write_back");
        Ok(())
    }
    fn unwritten(&self) -> Option<u64> {
        self.note("unwritten");
        None
    }
}

/// This is why it takes no longer than the call itself.
#[test]
fn a_lone_sync_is_one_call_on_the_callers_thread() {
    let (runtime, noted) = (Runtime::new().unwrap(), Noted::default());
    let durable = Durable::with_system(&runtime, noted.clone()).unwrap();
    let files: Vec<File> = (0..10).map(|_| tempfile::tempfile().unwrap()).collect();
    for round in 0..1000 {
        durable.fsync_and_wait(&files[round % 10]).unwrap();
        durable.fdatasync_and_wait(&files[round % 10]).unwrap();
    }
    let mine = ("sync", thread::current().id());
    assert_eq!(*noted.0.lock().unwrap(), vec![mine; 2000]);
}
