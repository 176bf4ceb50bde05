//! Real files.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use homing_durable::{Durable, Strategy};
use homing_runtime::Runtime;

#[test]
fn thousands_of_new_files_become_durable_by_either_way() {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    for strategy in [Strategy::Auto, Strategy::Files, Strategy::Filesystem] {
        durable.set_strategy(strategy);
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<File> = (0..2000)
            .map(|number| {
                let mut file = File::create(folder.path().join(number.to_string())).unwrap();
                file.write_all(&[7; 4096]).unwrap();
                file
            })
            .collect();
        let verdicts = durable.fsync_many(&files).wait();
        assert_eq!(verdicts.len(), 2000);
        assert!(verdicts.into_iter().all(|verdict| verdict.is_ok()));
        durable.fsync_dir(&File::open(folder.path()).unwrap()).wait().unwrap();
    }
    assert_eq!(durable.counters().failed, 0);
}

#[test]
fn many_issuers_each_with_a_file_of_their_own_and_one_they_share() {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
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
