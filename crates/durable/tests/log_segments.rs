//! A log of many segments, read and cut off.

mod support;

use std::fs::{self, File};
use std::path::Path;

use homing_durable::{Log, Record};
use support::{World, segments};

/// A reader holds a few files open, however many there are, and is not overtaken by cuts.
#[test]
fn a_log_of_many_segments_is_read_while_it_is_cut_off() {
    let world = World::new();
    let path = world.folder.path().join("log");
    let (log, _) = Log::options().segment_length(4096).open(&world.durable, &path).unwrap();
    for number in 0..60_u64 {
        let last = log.append(&[&number.to_le_bytes()[..], &[7; 4000]].concat()).unwrap();
        log.commit_and_wait(last).unwrap();
    }
    let count = segments(&path).len();
    assert!(count >= 60, "{count}");
    let open = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = open();
    let mut records = log.records();
    // Other tests of this process open files, too.
    assert!(open() < before + 40 || cfg!(not(target_os = "linux")), "{before} {}", open());
    let number = |record: Result<Record, _>| {
        let record: Record = record.unwrap();
        u64::from_le_bytes(record.data[..8].try_into().unwrap())
    };
    assert_eq!(number(records.next().unwrap()), 0);
    log.truncate_before(60.into()).wait().unwrap();
    let left = segments(&path).len();
    assert!(left < count && left >= 60 - 20, "{left} of {count}");
    assert!(records.map(number).eq(1..60));
    log.append(b"one more").unwrap();
    log.truncate_before(61.into()).wait().unwrap();
    let left = segments(&path).len();
    assert!(left <= 3, "nobody reads any more: {left}");
}

/// The last thing that a program does: its runtime has ended by then.
#[test]
fn without_a_runtime_a_log_is_cut_off_and_names_are_synced_by_those_who_wait() {
    let World { runtime, durable, folder, .. } = World::new();
    let path = folder.path().join("log");
    let (log, _) = Log::options().segment_length(4096).open(&durable, &path).unwrap();
    for _ in 0..10 {
        let last = log.append(&[7; 4000]).unwrap();
        log.commit_and_wait(last).unwrap();
    }
    drop(runtime);
    let error = log.truncate_before(5.into()).wait().unwrap_err().to_string();
    assert!(error.contains("_and_wait"), "{error}");
    for first in [8, 8, 11] {
        log.truncate_before_and_wait(first.into()).unwrap();
        assert_eq!(log.first_sequence().get(), first);
        assert!(segments(&path).len() as u64 <= 12 - first);
    }
    durable.sync_parent_and_wait(&path).unwrap();
    durable.fsync_dir_and_wait(&File::open(&path).unwrap()).unwrap();
    let error = durable.fsync_dir_and_wait(&tempfile::tempfile().unwrap()).unwrap_err();
    assert_eq!(error.errno, libc::ENOTDIR);
    let missing = durable.sync_parent_and_wait(path.join("none/name")).unwrap_err().to_string();
    assert!(missing.contains("none/name"), "{missing}");
}

/// What is written to a file without a name is durable, and yet nobody will find it.
#[test]
fn a_segment_that_was_removed_or_replaced_takes_no_more_records() {
    let replace = |segment: &Path| {
        let copy = segment.with_extension("copy");
        fs::copy(segment, &copy).unwrap();
        fs::rename(copy, segment).unwrap();
    };
    let removals: [&dyn Fn(&Path); 2] = [&|segment| fs::remove_file(segment).unwrap(), &replace];
    for remove in removals {
        let world = World::new();
        let path = world.folder.path().join("log");
        let (log, _) = Log::open(&world.durable, &path).unwrap();
        log.commit_and_wait(log.append(b"one").unwrap()).unwrap();
        let [segment] = &segments(&path)[..] else { panic!("there is one") };
        remove(segment);
        for _ in 0..2 {
            let Ok(two) = log.append(b"two") else { break };
            let error = log.commit_and_wait(two).unwrap_err().to_string();
            assert!(error.contains(segment.to_str().unwrap()), "{error}");
            assert!(error.contains("No such file"), "{error}");
            assert!(error.contains("removed or replaced"), "{error}");
        }
        let error = log.append(b"three").unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
        assert_eq!(world.durable.failures().len(), 1);
    }
}
