//! Syncs asked for on the runtime itself: one engine for all users of the runtime, as long as it
//! lasts.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use homing_durable::{Durable, Fsync, Log};
use homing_runtime::Runtime;

fn file() -> File {
    tempfile::tempfile().unwrap()
}

#[test]
fn all_who_have_the_runtime_share_its_engine() {
    let (one, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let asked_by_each = 20;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                (0..asked_by_each).for_each(|_| one.fsync(&file()).wait().unwrap());
            });
        }
    });
    assert_eq!(Durable::of(&one).counters().asked, 8 * asked_by_each);
    assert_eq!(other.durable().counters().asked, 0, "another runtime has its own");
    Durable::new(&one).unwrap().fsync(&file()).wait().unwrap();
    assert_eq!(one.durable().counters().asked, 8 * asked_by_each, "an engine besides");
}

#[test]
fn each_call_is_there() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = [file(), file()];
    runtime.fsync(&files[0]).wait().unwrap();
    runtime.fdatasync(&files[0]).wait().unwrap();
    runtime.fsync_and_wait(&files[0]).unwrap();
    runtime.fdatasync_and_wait(&files[0]).unwrap();
    runtime.sync_range(&files[0], 0..1).wait().unwrap();
    runtime.fsync_dir(&File::open(folder.path()).unwrap()).wait().unwrap();
    assert!(runtime.fsync_many(&files).wait().iter().all(Result::is_ok));
    assert_eq!(runtime.durable().counters().asked, 8);
}

/// Items that compute keep their CPUs, so each caller of a database would wait for its compaction.
#[test]
fn a_sync_does_not_wait_for_items_that_compute() {
    const TOO_LATE: Duration = Duration::from_secs(60);
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&runtime.durable(), folder.path().join("log")).unwrap();
    let (began, synced) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let (computes, all_compute) = mpsc::channel();
    let compaction = runtime.workqueue("compaction").build().unwrap();
    let compute = |_| {
        let (synced, computes) = (Arc::clone(&synced), computes.clone());
        compaction.queue(move || {
            computes.send(()).unwrap();
            while !synced.load(Ordering::Relaxed) && began.elapsed() < TOO_LATE {
                std::hint::spin_loop();
            }
        })
    };
    // As many as there are CPUs, and as many again that wait.
    let cpus = runtime.cpus().len();
    let items: Vec<_> = (0..2 * cpus).map(compute).collect();
    (0..cpus).for_each(|_| all_compute.recv().unwrap());
    runtime.fsync(&file()).wait().unwrap();
    log.commit(log.append(b"a record").unwrap()).wait().unwrap();
    assert!(began.elapsed() < TOO_LATE, "they have waited until nobody computed");
    synced.store(true, Ordering::Relaxed);
    for item in items {
        item.join().unwrap();
    }
}

#[test]
fn it_ends_with_the_runtime_and_finishes_what_it_has_begun() {
    let runtime = Runtime::new().unwrap();
    let durable = runtime.durable();
    let asked: Vec<_> = (0..100).map(|_| runtime.fsync(&file())).collect();
    drop(runtime);
    for synced in asked {
        synced.wait().unwrap();
    }
    // No thread works for it any more, and no caller is told that all is well.
    let error = durable.fsync(&file()).wait().unwrap_err();
    assert_eq!(io::Error::from(error).raw_os_error(), None);
}

/// The engine's rescuer is a thread, too, and cannot be created then.
#[test]
fn it_is_there_where_no_thread_can_be_had() {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = Runtime::builder().refuse_threads(Arc::clone(&refuse)).build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    assert!(Durable::new(&runtime).is_err(), "no rescuer");
    runtime.fsync(&file()).wait().unwrap();
}
