//! A damaged log that is opened without the records behind the damage.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use homing_durable::{Durable, Log, LogError};
use homing_runtime::Runtime;

use super::*;

/// Opening a log writes its last write anew: the copy left in the old place is not found instead.
#[test]
fn old_copies_of_what_is_given_up_do_not_come_back() {
    let world = world();
    // A short segment is written anew as a whole, and takes its own place.
    let records = [vec![1; 300 << 10], vec![2; 9], vec![3; 9]];
    written(&world, &[records[..1].to_vec(), records[1..].to_vec()], None);
    drop(Log::open(&world.durable, &world.path).unwrap());
    let all = segments(&world.path);
    let mut bytes = fs::read(&all[1]).unwrap();
    bytes[20] ^= 1;
    fs::write(&all[1], bytes).unwrap();
    is_damaged(&world, &records, &all[1], 0, 2);
}

/// Damage behind is found first if it is in the newest header.
#[test]
fn what_is_damaged_before_what_is_given_up_is_named_and_changes_nothing() {
    let world = world();
    let (all, records) = five(&world);
    for (segment, at) in [(1, HEADER + 20), (4, 20)] {
        let mut bytes = fs::read(&all[segment]).unwrap();
        bytes[at as usize] ^= 1;
        fs::write(&all[segment], bytes).unwrap();
    }
    let before = content(&world.path);
    for (given_up, named) in [(0, 9), (9, 3), (2, 9), (4, 9)] {
        let error = Log::open_before(&world.durable, &world.path, given_up.into()).unwrap_err();
        assert!(
            matches!(error, LogError::Damaged { sequence, .. } if sequence == named),
            "{error}"
        );
    }
    assert_eq!(content(&world.path), before);
    drop(Log::open_before(&world.durable, &world.path, 3.into()).unwrap());
    goes_on(&world, 1, &records, 2);
}

/// The newest says what is kept: without it, what was cut off would be found again.
#[test]
fn of_what_is_given_up_the_newest_segment_goes_once_the_others_are_gone_for_good() {
    let world = world();
    let (all, _) = five(&world);
    let mut bytes = fs::read(&all[1]).unwrap();
    bytes[HEADER as usize + 20] ^= 1;
    fs::write(&all[1], bytes).unwrap();
    let events = Arc::<Mutex<String>>::default();
    let (syncs, removals) = (Arc::clone(&events), Arc::clone(&events));
    let folder = fs::canonicalize(&world.path).unwrap();
    let sync = move |file: &File| {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        if path == folder {
            syncs.lock().unwrap().push_str("sync ");
        }
    };
    let may_remove = move || {
        removals.lock().unwrap().push_str("remove ");
        true
    };
    let disk = Disk::default();
    let system = Around { disk, sync: Box::new(sync), may_remove: Box::new(may_remove) };
    let durable = Durable::with_system(&Runtime::new().unwrap(), system).unwrap();
    drop(Log::open_before(&durable, &world.path, 3.into()).unwrap());
    let events = events.lock().unwrap();
    assert!(events.ends_with("remove remove remove sync remove sync "), "{events}");
}

#[test]
fn what_was_given_up_is_counted_with_the_segments_that_are_removed() {
    let world = world();
    let (all, _) = five(&world);
    let mut bytes = fs::read(&all[2]).unwrap();
    bytes[HEADER as usize + 76 + 20] ^= 1;
    fs::write(&all[2], &bytes).unwrap();
    let behind: u64 = all[3..].iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    let (_log, recovery) = Log::open_before(&world.durable, &world.path, 6.into()).unwrap();
    // The record, and the seal as far as it is not zero: it names record 7.
    assert_eq!(bytes[HEADER as usize + 2 * 76 + 8..][..8], 7_u64.to_le_bytes());
    assert_eq!((recovery.records, recovery.dropped_bytes), (5, 76 + 9 + behind));
}

/// Then nothing says what is kept: everything that is there may be.
#[test]
fn where_no_header_can_be_read_nothing_goes_that_was_not_named() {
    let world = world();
    let (all, records) = five(&world);
    for path in &all {
        let mut bytes = fs::read(path).unwrap();
        bytes[20] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let before = content(&world.path);
    let error = Log::open_before(&world.durable, &world.path, 9.into()).unwrap_err();
    assert!(matches!(error, LogError::Damaged { sequence: 1, .. }), "{error}");
    assert_eq!(content(&world.path), before);
    drop(Log::open_before(&world.durable, &world.path, 1.into()).unwrap());
    goes_on(&world, 1, &records, 0);
}

/// As after a crash: what is still to be given up is found again, and what was cut off stays cut
/// off.
#[test]
fn to_give_up_may_be_begun_anew() {
    for left in 0..4 {
        let world = world();
        let (all, records) = five(&world);
        let (log, _) =
            Log::options().segment_length(200).open(&world.durable, &world.path).unwrap();
        log.truncate_before(4.into()).wait().unwrap();
        drop(log);
        // Behind segment 5 are segments 7 and 9, and those that opening and cutting have made.
        let mut bytes = fs::read(&all[2]).unwrap();
        bytes[HEADER as usize + 20] ^= 1;
        fs::write(&all[2], bytes).unwrap();
        let files = AtomicUsize::new(left);
        let one_less = |left: usize| left.checked_sub(1);
        let may_remove =
            move || files.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        let system = Around {
            disk: Disk::default(),
            sync: Box::new(|_| ()),
            may_remove: Box::new(may_remove),
        };
        let durable = Durable::with_system(&Runtime::new().unwrap(), system).unwrap();
        let error = Log::open_before(&durable, &world.path, 5.into()).unwrap_err();
        assert!(matches!(error, LogError::Io { action: "clear", .. }), "{left}: {error}");
        let error = Log::open(&world.durable, &world.path).unwrap_err();
        assert!(matches!(error, LogError::Damaged { sequence: 5, .. }), "{left}: {error}");
        let (log, _) = Log::open_before(&world.durable, &world.path, 5.into()).unwrap();
        drop(log);
        goes_on(&world, 4, &records, 4);
        let (log, _) = Log::open_before(&world.durable, &world.path, 5.into()).unwrap();
        assert_eq!(log.last_sequence().get(), 5, "nothing is damaged now");
    }
}

/// An older segment says that more is kept.
#[test]
fn what_was_cut_off_last_does_not_come_back_with_what_is_left() {
    let world = world();
    let (all, records) = five(&world);
    let (log, _) = Log::options().segment_length(200).open(&world.durable, &world.path).unwrap();
    log.truncate_before(4.into()).wait().unwrap();
    log.commit_and_wait(log.append(b"between two cuts").unwrap()).unwrap();
    log.truncate_before(6.into()).wait().unwrap();
    drop(log);
    let mut bytes = fs::read(&all[3]).unwrap();
    bytes[HEADER as usize + 76 + 20] ^= 1;
    fs::write(&all[3], bytes).unwrap();
    drop(Log::open_before(&world.durable, &world.path, 8.into()).unwrap());
    goes_on(&world, 6, &records, 7);
}
