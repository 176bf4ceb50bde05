//! A process that cannot open any more files. This test is a program of its own, because the limit
//! is the whole process's.
#![cfg(target_os = "linux")]

use homing_durable::{Durable, Log};
use homing_runtime::Runtime;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const EMFILE: i32 = 24;

/// Limits the descriptors that can be opened from now on.
fn limit_descriptors(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[test]
fn a_log_that_cannot_begin_a_segment_loses_nothing_and_goes_on() {
    let before = getrlimit(Resource::Nofile).current;
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let (log, _) = Log::options().segment_length(300).open(&durable, &path).unwrap();
    limit_descriptors(Some(0));
    let mut appended = 0;
    let error = loop {
        let last = log.append(&[7; 100]).unwrap();
        appended += 1;
        if let Err(error) = log.commit_and_wait(last) {
            break error;
        }
        assert!(appended < 10, "it has begun a segment: this shows nothing");
    };
    assert_eq!(error.errno, EMFILE, "{error}");
    assert!(error.to_string().contains("no record is lost"), "{error}");
    let last = log.append(&[8; 100]).unwrap();
    assert_eq!(log.commit_and_wait(last).unwrap_err().errno, EMFILE);
    limit_descriptors(before);
    log.commit_and_wait(last).unwrap();
    log.close();
    let (log, recovery) = Log::open(&durable, &path).unwrap();
    assert_eq!((recovery.records, recovery.dropped_bytes), (appended + 1, 0));
    assert_eq!(log.records().map(Result::unwrap).last().unwrap().data, [8; 100]);
}
