//! Real files.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use homing_durable::{Backend, DurabilityError, Durable, Strategy, Synced};
use homing_runtime::Runtime;

/// Runs a test with an engine for each backend that is available here.
fn with_each_backend(test: impl Fn(&Runtime, &Durable)) {
    for backend in Backend::ALL {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        match durable.set_backend(backend) {
            Ok(()) => test(&runtime, &durable),
            Err(error) => eprintln!("skipped: no {} here: {error}", backend.name()),
        }
    }
}

#[test]
fn thousands_of_new_files_become_durable_by_either_way() {
    with_each_backend(|_, durable| thousands(durable));
}

fn thousands(durable: &Durable) {
    for strategy in [Strategy::Auto, Strategy::Files, Strategy::Filesystem] {
        durable.set_strategy(strategy);
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<File> = (0..1000)
            .map(|number| {
                let mut file = File::create(folder.path().join(number.to_string())).unwrap();
                file.write_all(&[7; 4096]).unwrap();
                file
            })
            .collect();
        let verdicts = durable.fsync_many(&files).wait();
        assert_eq!(verdicts.len(), 1000);
        assert!(verdicts.into_iter().all(|verdict| verdict.is_ok()));
        durable.fsync_dir(&File::open(folder.path()).unwrap()).wait().unwrap();
    }
    assert_eq!(durable.counters().failed, 0);
}

#[test]
fn many_issuers_each_with_a_file_of_their_own_and_one_they_share() {
    with_each_backend(|_, durable| issuers(durable));
}

fn issuers(durable: &Durable) {
    let folder = tempfile::tempdir().unwrap();
    let shared = Arc::new(File::create(folder.path().join("shared")).unwrap());
    let syncs = Arc::new(AtomicU64::new(0));
    let issuers: Vec<_> = (0..6)
        .map(|number| {
            let (durable, shared, syncs) =
                (durable.clone(), Arc::clone(&shared), Arc::clone(&syncs));
            let mut own = File::create(folder.path().join(format!("own-{number}"))).unwrap();
            thread::spawn(move || {
                for _ in 0..25 {
                    own.write_all(b"record").unwrap();
                    durable.fdatasync_and_wait(&own).unwrap();
                    durable.fdatasync(&shared).wait().unwrap();
                    syncs.fetch_add(2, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for issuer in issuers {
        issuer.join().unwrap();
    }
    assert_eq!(durable.counters().asked, syncs.load(Ordering::Relaxed));
}

/// A file that cannot be synced, on any system.
fn pipe() -> File {
    let (reader, _) = std::io::pipe().unwrap();
    File::from(OwnedFd::from(reader))
}

#[test]
fn an_error_is_of_its_file_alone_and_is_heard_by_all_who_wait_for_it() {
    with_each_backend(|_, durable| {
        durable.set_strategy(Strategy::Files);
        let folder = tempfile::tempdir().unwrap();
        let mut files: Vec<File> = (0..100)
            .map(|number| File::create(folder.path().join(number.to_string())).unwrap())
            .collect();
        files.push(pipe());
        let bad = files.last().unwrap();
        let dropped = durable.fsync(bad);
        let again: Vec<_> = (0..10).map(|_| durable.fdatasync(bad)).collect();
        drop(dropped);
        let mut verdicts = durable.fsync_many(&files).wait();
        let own = durable.fsync_and_wait(bad).unwrap_err();
        assert_eq!(own.errno, 22);
        let may_be_by_ring = durable.backend() == Backend::IoUring;
        let is_by_ring = |error: &DurabilityError| error.operation.ends_with("io_uring");
        for verdict in again.into_iter().map(Synced::wait).chain(verdicts.pop()) {
            let error = verdict.unwrap_err();
            assert_eq!((error.errno, &error.file), (22, &own.file));
            assert!(may_be_by_ring || !is_by_ring(&error), "{error}");
        }
        assert!(verdicts.into_iter().all(|verdict| verdict.is_ok()));
        // If the kernel has no worker for it at once, a thread does it instead, but not always.
        let is_next_by_ring = || is_by_ring(&durable.fsync(bad).wait().unwrap_err());
        assert_eq!((0..1000).any(|_| is_next_by_ring()), may_be_by_ring);
        assert_eq!((durable.failures(), durable.acknowledge_loss(bad)), (vec![], None), "no loss");
    });
}

#[test]
fn who_asks_may_end_and_the_backend_change_and_every_sync_comes_to_an_end() {
    with_each_backend(|_, durable| {
        durable.set_strategy(Strategy::Files);
        let backend = durable.backend();
        let folder = tempfile::tempdir().unwrap();
        let askers: Vec<_> = (0..8)
            .map(|number| {
                let durable = durable.clone();
                let file = File::create(folder.path().join(number.to_string())).unwrap();
                // The thread ends before its syncs do.
                thread::spawn(move || {
                    let file = Arc::new(file);
                    (0..20).map(|_| durable.fsync(&file)).collect::<Vec<_>>()
                })
            })
            .collect();
        durable.set_backend(Backend::Threads).unwrap();
        durable.set_depth(3);
        durable.set_backend(backend).unwrap();
        for synced in askers.into_iter().flat_map(|asker| asker.join().unwrap()) {
            synced.wait().unwrap();
        }
        let counters = durable.counters();
        assert_eq!(counters.asked, counters.shared + counters.files);
    });
}

#[test]
fn an_engine_that_is_dropped_finishes_what_it_has_begun() {
    with_each_backend(|runtime, durable| {
        let backend = durable.backend();
        for _ in 0..20 {
            let other = Durable::new(runtime).unwrap();
            other.set_backend(backend).unwrap();
            let synced = other.fsync(&tempfile::tempfile().unwrap());
            drop(other);
            synced.wait().unwrap();
        }
    });
}
