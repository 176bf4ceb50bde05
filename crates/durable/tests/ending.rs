//! A runtime that ends, with syncs of items that it has accepted, beside other threads that go on.

mod support;

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use homing_durable::Log;
use support::World;

/// What an item of the runtime asks for is done, whichever thread hands the work on.
#[test]
fn items_that_were_accepted_make_their_files_and_records_durable() {
    for round in 0..20 {
        let uses_log = round % 2 == 0;
        let World { runtime, durable, folder, disk: _disk } = World::new();
        let (log, _) = Log::open(&durable, folder.path().join("log")).unwrap();
        let (done, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..3 {
                let (durable, log, end) = (&durable, &log, &end);
                let path = folder.path().join(format!("outside{number}"));
                scope.spawn(move || {
                    let mut file = File::create(path).unwrap();
                    while !end.load(SeqCst) {
                        log.commit_and_wait(log.append(b"x").unwrap()).unwrap();
                        file.write_all(b"x").unwrap();
                        durable.fsync_and_wait(&file).unwrap();
                    }
                });
            }
            for number in 0..16 {
                let (durable, log) = (durable.clone(), log.clone());
                let (done, failed) = (Arc::clone(&done), Arc::clone(&failed));
                let path = folder.path().join(format!("inside{number}"));
                runtime.events().execute(move || {
                    let mut file = File::create(path).unwrap();
                    for _ in 0..20 {
                        let synced = if uses_log {
                            log.commit(log.append(b"y").unwrap())
                        } else {
                            file.write_all(b"y").unwrap();
                            durable.fsync(&file)
                        };
                        match synced.wait() {
                            Ok(()) => _ = done.fetch_add(1, SeqCst),
                            Err(error) => failed.lock().unwrap().push(error.to_string()),
                        }
                    }
                });
            }
            thread::sleep(Duration::from_micros(200 * round));
            drop(runtime);
            end.store(true, SeqCst);
        });
        assert_eq!(*failed.lock().unwrap(), [""; 0], "round {round}");
        assert_eq!(done.load(SeqCst), 320);
    }
}
