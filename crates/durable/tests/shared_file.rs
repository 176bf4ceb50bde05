//! What callers learn that sync one file at the same time through [`SharedFile`], on a disk that
//! does as a test says.

mod support;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use homing_control::AttributeTree;
use homing_durable::{
    DurabilityError, Durable, Failure, Kind, SharedFile, Sharing, Strategy, System,
};
use homing_runtime::Runtime;
use support::{Call, World};

const FDATASYNC: Call = Call::Sync(Kind::Data);

/// This many descriptions of the file.
fn descriptions(path: &Path, count: usize) -> Vec<Arc<File>> {
    let open = |_| Arc::new(File::options().create(true).append(true).open(path).unwrap());
    (0..count).map(open).collect()
}

fn wait(durable: &Durable, file: &SharedFile) -> Result<(), DurabilityError> {
    let (sender, receiver) = mpsc::channel();
    durable.fdatasync_shared(file, move |verdict| sender.send(verdict).unwrap());
    receiver.recv().unwrap()
}

#[test]
fn those_who_come_while_a_shared_sync_runs_share_the_next_one_and_its_verdict() {
    let world = World::new();
    let all = descriptions(&world.folder.path().join("shared"), 3);
    world.durable.set_sharing(Sharing::Together);
    let file = SharedFile::new(all.clone()).unwrap();
    let (sender, receiver) = mpsc::channel();
    let ask = |number: u32| {
        let sender = sender.clone();
        world.durable.fdatasync_shared(&file, move |verdict| {
            sender.send((number, verdict.is_ok())).unwrap();
            assert!(number != 50, "one that panics takes nothing from the others");
        });
    };
    world.disk.hold(true);
    thread::scope(|scope| {
        scope.spawn(|| ask(0));
        world.disk.until_asked(1);
        (1..=100).for_each(ask);
        assert!(receiver.try_recv().is_err());
        world.disk.fail_after(FDATASYNC, &all[0], 1);
        world.disk.hold(false);
    });
    let told = || receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    let mut told: Vec<_> = (0..=100).map(|_| told()).collect();
    told.sort_unstable();
    let expected: Vec<_> = (0..=100).map(|number| (number, number == 0)).collect();
    assert_eq!(told, expected);
    assert_eq!(world.disk.calls(&all[0]), [FDATASYNC; 2]);
    let counters = world.durable.counters();
    assert_eq!((counters.asked, counters.shared, counters.files), (101, 99, 2));

    assert_eq!(wait(&world.durable, &file).unwrap_err().errno, 5, "it is sticky");
    assert_eq!(world.durable.fsync_and_wait(&*all[1]).unwrap_err().errno, 5, "for everybody");
    assert_eq!(world.disk.calls(&all[0]).len(), 2);
    world.durable.acknowledge_loss(&all[2]).unwrap();
    wait(&world.durable, &file).unwrap();
}

/// A disk that says how each description's sync ends, and when.
#[derive(Clone, Default)]
struct Gates(Arc<(Mutex<Book>, Condvar)>);

#[derive(Default)]
struct Book {
    under_way: Vec<RawFd>,
    ends: HashMap<RawFd, bool>,
}

impl Gates {
    fn until_under_way(&self, count: usize) -> Vec<RawFd> {
        let book = self.0.0.lock().unwrap();
        let few = |book: &mut Book| book.under_way.len() < count;
        let limit = Duration::from_secs(20);
        let (book, waited) = self.0.1.wait_timeout_while(book, limit, few).unwrap();
        assert!(!waited.timed_out(), "not side by side");
        book.under_way.clone()
    }

    fn end(&self, number: RawFd, well: bool) {
        self.0.0.lock().unwrap().ends.insert(number, well);
        self.0.1.notify_all();
    }

    /// Lets the sync through this description end that comes after the one that was told to end.
    fn end_when_under_way(&self, number: RawFd) {
        let book = self.0.0.lock().unwrap();
        let told = |book: &mut Book| book.ends.contains_key(&number);
        let mut book = self.0.1.wait_while(book, told).unwrap();
        book.ends.insert(number, true);
        self.0.1.notify_all();
    }
}

impl System for Gates {
    fn sync(&self, file: &File, _: Kind) -> Result<(), Failure> {
        let mut book = self.0.0.lock().unwrap();
        let number = file.as_raw_fd();
        assert!(!book.under_way.contains(&number), "one description for two syncs");
        book.under_way.push(number);
        self.0.1.notify_all();
        let held = |book: &mut Book| !book.ends.contains_key(&number);
        let mut book = self.0.1.wait_while(book, held).unwrap();
        book.under_way.retain(|other| *other != number);
        let well = book.ends.remove(&number);
        self.0.1.notify_all();
        if well == Some(true) {
            return Ok(());
        }
        Err(Failure { operation: "fdatasync", error: io::Error::from_raw_os_error(5) })
    }
    fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
        unreachable!()
    }
    fn check(&self, _: &File) -> Result<(), Failure> {
        unreachable!()
    }
    fn flush_device(&self, _: &File) -> Result<(), Failure> {
        unreachable!()
    }
}

/// Also if a worker leads.
#[test]
fn a_call_that_takes_long_holds_up_no_shared_sync() {
    let (runtime, disk) = (Runtime::new().unwrap(), Gates::default());
    let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let all = descriptions(&folder.path().join("shared"), 1);
    durable.set_sharing(Sharing::Together);
    let file = SharedFile::new(all).unwrap();
    let (tell, told) = mpsc::channel();
    let (let_go, goes_on) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let first = tell.clone();
        scope.spawn(|| durable.fdatasync_shared(&file, move |_| first.send(true).unwrap()));
        let number = disk.until_under_way(1)[0];
        durable.fdatasync_shared(&file, move |_| {
            let waited = goes_on.recv_timeout(Duration::from_secs(20));
            tell.send(waited.is_ok()).unwrap();
        });
        disk.end(number, true);
        assert!(told.recv().unwrap());
        // A worker leads the second one; the third is asked for meanwhile, and lets the second's
        // call go.
        disk.until_under_way(1);
        durable.fdatasync_shared(&file, move |_| let_go.send(()).unwrap());
        disk.end(number, true);
        disk.end_when_under_way(number);
        assert!(told.recv().unwrap());
    });
    drop(runtime);
}

#[test]
fn a_failure_reaches_syncs_beside_it_and_whoever_waits() {
    let (runtime, disk) = (Runtime::new().unwrap(), Gates::default());
    let durable = Durable::with_system(&runtime, disk.clone()).unwrap();
    durable.set_strategy(Strategy::Files);
    let folder = tempfile::tempdir().unwrap();
    let all = descriptions(&folder.path().join("beside"), 4);
    durable.set_sharing(Sharing::Beside);
    let file = SharedFile::new(all[..3].to_vec()).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        // Two sync side by side. The third finds no description except the one for shared syncs,
        // for which the fourth waits. Then a caller comes by itself, and another one behind it.
        for count in 1..=3 {
            let sender = sender.clone();
            let done = move |verdict| sender.send(verdict).unwrap();
            scope.spawn(|| durable.fdatasync_shared(&file, done));
            disk.until_under_way(count);
        }
        let waits = sender.clone();
        durable.fdatasync_shared(&file, move |verdict| waits.send(verdict).unwrap());
        let himself = durable.fdatasync(&all[3]);
        let numbers = disk.until_under_way(4);
        let behind = durable.fdatasync(&all[3]);
        disk.end(numbers[0], true);
        receiver.recv().unwrap().unwrap();
        disk.end(numbers[1], false);
        assert_eq!(receiver.recv().unwrap().unwrap_err().errno, 5);
        assert_eq!(behind.wait().unwrap_err().errno, 5);
        disk.end(numbers[2], true);
        disk.end(numbers[3], true);
        for _ in 0..2 {
            let verdict = receiver.recv().unwrap();
            assert_eq!(verdict.unwrap_err().errno, 5, "the device may have forgotten what it had");
        }
        assert_eq!(himself.wait().unwrap_err().errno, 5);
    });
    assert_eq!(wait(&durable, &file).unwrap_err().errno, 5);
    assert!(disk.until_under_way(0).is_empty(), "the disk was asked again");
}

/// `DURABLE-1`, while the ways take turns.
#[test]
fn no_verdict_is_of_a_sync_that_had_begun_before() {
    let world = World::new();
    let files = [1, 2, 3].map(|number: u32| {
        let all = descriptions(&world.folder.path().join(number.to_string()), 3);
        (support::inode(&all[0]), SharedFile::new(all).unwrap())
    });
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for round in 0..600 {
                    world.durable.set_sharing(Sharing::ALL[round / 7 % 3]);
                    let (inode, file) = &files[round % 3];
                    let before = world.disk.book().calls.len();
                    wait(&world.durable, file).unwrap();
                    let book = world.disk.book();
                    assert!(book.calls[before..].contains(&(FDATASYNC, *inode)), "a lie");
                }
            });
        }
    });
}

#[test]
fn when_the_runtime_ends_nobody_waits_for_ever() {
    let World { runtime, durable, disk, folder } = World::new();
    let all = descriptions(&folder.path().join("ends"), 1);
    durable.set_sharing(Sharing::Together);
    let file = SharedFile::new(all).unwrap();
    disk.hold(true);
    let ((first, of_first), (sender, receiver)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| durable.fdatasync_shared(&file, move |told| first.send(told).unwrap()));
        disk.until_asked(1);
        durable.fdatasync_shared(&file, move |told| sender.send(told).unwrap());
        runtime.shutdown_now();
        disk.hold(false);
    });
    of_first.recv().unwrap().unwrap();
    let error = receiver.recv().unwrap().unwrap_err();
    assert!(error.operation.contains("runtime"), "{error}");
    wait(&durable, &file).unwrap();
}

#[test]
fn descriptions_are_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = descriptions(&folder.path().join("one"), 2);
    SharedFile::new(all.clone()).unwrap();
    all.extend(descriptions(&folder.path().join("other"), 1));
    assert!(SharedFile::new(all).unwrap_err().to_string().contains("several files"));
    assert!(SharedFile::new(Vec::new()).unwrap_err().to_string().contains("no description"));
    // If two callers synced through one description, the kernel would tell only one of them.
    let own = descriptions(&folder.path().join("one"), 1).remove(0);
    let twice = own.try_clone().unwrap();
    for same in [Arc::clone(&own), Arc::new(twice)] {
        let error = SharedFile::new(vec![Arc::clone(&own), same]).unwrap_err();
        assert!(error.to_string().contains("several times"), "{error}");
    }
}

/// Each call asks for the next sync, which has its verdict at once if nobody else syncs, or if the
/// file has failed.
#[test]
fn a_call_may_sync_again_however_often() {
    fn again(files: &Arc<(Durable, SharedFile, Arc<File>)>, left: u32, end: mpsc::Sender<u32>) {
        let same = Arc::clone(files);
        let done = move |verdict: Result<(), DurabilityError>| match left {
            0 => end.send(u32::from(verdict.is_err())).unwrap(),
            _ => again(&same, left - 1, end),
        };
        let (durable, shared, file) = &**files;
        match left % 3 {
            0 => durable.fdatasync_shared(shared, done),
            _ => durable.fdatasync_and_then(file, done),
        }
    }
    let world = World::new();
    let all = descriptions(&world.folder.path().join("shared"), 2);
    let shared = SharedFile::new(all.clone()).unwrap();
    let files = Arc::new((world.durable.clone(), shared, all[0].clone()));
    for failed in 0..=1 {
        let (end, ended) = mpsc::channel();
        again(&files, 20_000, end);
        assert_eq!(ended.recv().unwrap(), failed);
        world.disk.fail(FDATASYNC, &all[0], 1);
        let _ = world.durable.fdatasync_and_wait(&all[0]);
    }
}

/// A call may wait for the next sync, also where few may run at a time.
#[test]
fn calls_that_wait_for_syncs_do_not_use_up_the_workqueues_limit() {
    let world = World::new();
    world.runtime.attributes().set("workqueue/durable/max_active", "1").unwrap();
    world.durable.set_sharing(Sharing::Together);
    let all = descriptions(&world.folder.path().join("shared"), 2);
    let shared = SharedFile::new(all.clone()).unwrap();
    let (file, other) = (all[0].clone(), Arc::new(world.file("other")));
    for is_shared in [false, true] {
        let (sender, receiver) = mpsc::channel();
        world.durable.fdatasync(&file).detach();
        for _ in 0..20 {
            let (durable, other, sender) = (world.durable.clone(), other.clone(), sender.clone());
            let done = move |verdict: Result<(), _>| {
                let next = verdict.and_then(|()| durable.fsync(&other).wait());
                sender.send(next).unwrap();
            };
            if is_shared {
                world.durable.fdatasync_shared(&shared, done);
            } else {
                world.durable.fdatasync(&file).detach();
                world.durable.fdatasync_and_then(&file, done);
            }
        }
        for told in 0..20 {
            let verdict = receiver.recv_timeout(Duration::from_secs(20));
            verdict.unwrap_or_else(|error| panic!("{told} of 20: {error}")).unwrap();
        }
    }
}
