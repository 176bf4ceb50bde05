//! What opening a log makes of files that a crash or a disk has changed: records that were durable
//! are never silently skipped, and what was dropped does not come back.

mod given_up;
#[path = "../support/mod.rs"]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use homing_durable::{Commits, Durable, Failure, Kind, Log, LogError, Strategy, System};
use homing_runtime::Runtime;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use support::{Call, Disk, segments};

const HEADER: u64 = 40;

struct World {
    _runtime: Runtime,
    durable: Durable,
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn world() -> World {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    World { _runtime: runtime, durable, _folder: folder, path }
}

/// Where a record stands: in which segment, and its first byte and the one behind it there.
#[derive(Clone, Copy, Debug)]
struct Place {
    segment: usize,
    begin: u64,
    end: u64,
    /// The last record of its write.
    last_of_write: u64,
}

/// Writes a log of these writes in segments of 200 bytes, and cuts its first records off. Returns
/// where each record is, also those that are gone.
fn written(world: &World, writes: &[Vec<Vec<u8>>], cut: Option<Index>) -> Vec<Place> {
    let (log, _) = Log::options().segment_length(200).open(&world.durable, &world.path).unwrap();
    let cut_after = cut.map(|cut| cut.index(writes.len()));
    let mut places: Vec<Place> = Vec::new();
    let (mut segment, mut end, mut removed) = (0, HEADER, 0);
    for (number, write) in writes.iter().enumerate() {
        let length: u64 = write.iter().map(|record| 16 + record.len() as u64).sum();
        if end > HEADER && end + length > 200 {
            (segment, end) = (segment + 1, HEADER);
        }
        let last_of_write = (places.len() + write.len()) as u64;
        for record in write {
            let begin = end;
            end += 16 + record.len() as u64;
            places.push(Place { segment, begin, end, last_of_write });
            log.append(record).unwrap();
        }
        log.commit_and_wait(log.last_sequence()).unwrap();
        if let Some(cut) = cut.filter(|_| cut_after == Some(number)) {
            // The cut may be in the midst of a segment, so that some records in it are not needed.
            let first = cut.index(places.len() + 1);
            removed = places.get(first).map_or(segment + 1, |place| place.segment);
            log.truncate_before((first as u64 + 1).into()).wait().unwrap();
            if removed > 0 {
                (segment, end) = (segment + 1, HEADER);
            }
        }
    }
    // Segments are counted as they are now.
    for place in &mut places {
        place.segment = place.segment.wrapping_sub(removed);
    }
    places
}

fn writes() -> impl proptest::strategy::Strategy<Value = Vec<Vec<Vec<u8>>>> {
    vec(vec(vec(any::<u8>(), 0..60), 1..4), 1..12)
}

fn set_length(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

fn content(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    segments(path).into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

/// Opens the log: these records are found, up to `last`. The log goes on from there, and what was
/// dropped does not come back.
fn goes_on(world: &World, first: u64, records: &[Vec<u8>], last: u64) {
    let open = || {
        let (log, recovery) =
            Log::options().segment_length(200).open(&world.durable, &world.path).unwrap();
        let records: Vec<_> = log.records().map(|record| record.unwrap().data).collect();
        assert_eq!((recovery.first.get(), recovery.records), (first, records.len() as u64));
        assert_eq!(log.last_sequence().get(), first + records.len() as u64 - 1);
        (log, records, recovery.dropped_bytes)
    };
    let (log, found, _) = open();
    assert_eq!(found, records[first as usize - 1..last as usize]);
    drop(log);
    // Also if the next crash comes before anything is appended.
    let (log, found, dropped) = open();
    assert_eq!((found.len() as u64, dropped), (last + 1 - first, 0));
    // As long as the first record that was dropped: those behind it would stand where they did.
    let length = records.get(last as usize).map_or(3, Vec::len);
    log.commit_and_wait(log.append(&vec![0xEE; length]).unwrap()).unwrap();
    drop(log);
    let (_, again, dropped) = open();
    assert_eq!((again.len(), dropped), (found.len() + 1, 0));
    assert_eq!(again[found.len()], vec![0xEE; length]);
}

/// Opens the log: this is damaged, and nothing has changed. Then the log goes on with the records
/// before, and no others.
fn is_damaged(world: &World, records: &[Vec<u8>], segment: &Path, offset: u64, sequence: u64) {
    let before = content(&world.path);
    // Giving up another record gives up none.
    let opened = [
        Log::open(&world.durable, &world.path),
        Log::open_before(&world.durable, &world.path, (sequence + 1).into()),
        Log::open_before(&world.durable, &world.path, (sequence - 1).into()),
    ];
    for opened in opened {
        match opened {
            Err(LogError::Damaged { segment: named, offset: at, sequence: record }) => {
                assert_eq!((&*named, at, record), (segment, offset, sequence));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(content(&world.path), before);
    let kept = (!segment.ends_with(before.last().unwrap().0.file_name().unwrap()) || offset > 0)
        .then(|| first_kept(&segments(&world.path)));
    let (log, recovery) = Log::open_before(&world.durable, &world.path, sequence.into()).unwrap();
    let first = recovery.first.get();
    let last = log.last_sequence().get();
    // The first record is what the newest header says, if that can be read; or less, down to what
    // is there.
    let is_gone = kept.is_some_and(|kept| kept == sequence && kept < first);
    assert!(kept.is_none_or(|kept| kept == first) || is_gone, "{kept:?} {first}");
    assert_eq!(last, (sequence - 1).max(first - 1));
    assert_eq!(first + recovery.records, last + 1);
    drop(log);
    // What was given up does not come back, even if these records are as long.
    goes_on(world, first, records, last);
}

/// Checks what comes of a log of which a segment is changed: from this byte on if `cut` is set,
/// else this byte alone.
fn check(world: &World, places: &[Place], records: &[Vec<u8>], segment: usize, at: u64, cut: bool) {
    let all = segments(&world.path);
    let name = &all[segment];
    let begins: u64 = name.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    if at < HEADER {
        return is_damaged(world, records, name, 0, begins);
    }
    let first = first_kept(&all);
    let hit = (0_u64..).zip(places).find(|(_, place)| place.segment == segment && place.end > at);
    let last = records.len() as u64;
    let Some((before, place)) = hit else { return goes_on(world, first, records, last) };
    let is_last = segment + 1 == all.len();
    if is_last && (cut || place.last_of_write == last) {
        goes_on(world, first, records, before);
    } else {
        is_damaged(world, records, name, place.begin, before + 1);
    }
}

/// The first record that is kept, as the newest segment says.
fn first_kept(all: &[PathBuf]) -> u64 {
    let newest = fs::read(all.last().unwrap()).unwrap();
    u64::from_le_bytes(newest[32..40].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_byte_that_is_flipped_is_damage_or_in_the_last_write(
        writes in writes(), gone in any::<Index>(), segment in any::<Index>(), at in any::<Index>(),
        flip in 1_u8..,
    ) {
        let world = world();
        let places = written(&world, &writes, Some(gone));
        let all = segments(&world.path);
        let segment = segment.index(all.len());
        let mut bytes = fs::read(&all[segment]).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fs::write(&all[segment], &bytes).unwrap();
        check(&world, &places, &writes.concat(), segment, at as u64, false);
    }

    #[test]
    fn a_segment_that_is_cut_is_damaged_unless_it_is_the_last(
        writes in writes(), gone in any::<Index>(), segment in any::<Index>(), at in any::<Index>(),
    ) {
        let world = world();
        let places = written(&world, &writes, Some(gone));
        let all = segments(&world.path);
        let segment = segment.index(all.len());
        let at = at.index(fs::metadata(&all[segment]).unwrap().len() as usize) as u64;
        set_length(&all[segment], at);
        check(&world, &places, &writes.concat(), segment, at, true);
    }

    /// Write-back keeps no order: any block of what was not committed may be there.
    #[test]
    fn holes_in_what_was_not_committed_harm_nothing_that_was(
        writes in writes(), gone in any::<Index>(), lost in vec(any::<bool>(), 64),
    ) {
        let world = world();
        let places = written(&world, &writes, Some(gone));
        let records = writes.concat();
        let all = segments(&world.path);
        let name = all.last().unwrap();
        // The last write, unless a segment was begun since.
        let mut uncommitted = (0..).zip(&places).filter(|(_, place)| {
            place.last_of_write == records.len() as u64 && place.segment == all.len() - 1
        });
        let mut bytes = fs::read(name).unwrap();
        let mut whole = records.len() as u64;
        if let Some((before, first)) = uncommitted.next() {
            whole = before;
            for (block, lost) in bytes[first.begin as usize..].chunks_mut(16).zip(lost) {
                if lost {
                    block.fill(0);
                }
            }
        }
        fs::write(name, &bytes).unwrap();
        let (log, recovery) = Log::open(&world.durable, &world.path).unwrap();
        let last = log.last_sequence().get();
        prop_assert!(last >= whole && recovery.first.get() == first_kept(&all));
        drop(log);
        goes_on(&world, recovery.first.get(), &records, last);
    }

    /// Whatever bytes are there: opening gives an error and changes nothing, or gives a log.
    #[test]
    fn no_bytes_make_recovery_panic(
        bytes in vec(any::<u8>(), 0..300), keeps in 0_usize..120, number in 0_u64..4,
    ) {
        let world = world();
        written(&world, &[vec![b"one".to_vec()], vec![b"two".to_vec()]], None);
        let name = world.path.join(format!("{number:020}.log"));
        let mut all = fs::read(&segments(&world.path)[0]).unwrap();
        all.truncate(keeps);
        all.extend(bytes);
        fs::write(&name, &all).unwrap();
        let before = content(&world.path);
        match Log::open(&world.durable, &world.path) {
            Ok((log, recovery)) => {
                prop_assert_eq!(log.records().map(Result::unwrap).count() as u64, recovery.records);
            }
            Err(LogError::Damaged { sequence, .. }) => {
                prop_assert_eq!(&content(&world.path), &before);
                let opened = Log::open_before(&world.durable, &world.path, sequence.into());
                let (log, recovery) = opened.unwrap();
                prop_assert_eq!(log.records().map(Result::unwrap).count() as u64, recovery.records);
                drop(log);
                prop_assert_eq!(Log::open(&world.durable, &world.path).unwrap().1.dropped_bytes, 0);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Five segments of two records.
fn five(world: &World) -> (Vec<PathBuf>, Vec<Vec<u8>>) {
    let writes: Vec<_> = (1..=10).map(|number| vec![vec![number; 60]]).collect();
    written(world, &writes, None);
    let all = segments(&world.path);
    assert_eq!(all.len(), 5);
    (all, writes.concat())
}

#[test]
fn a_segment_that_is_gone_is_damage_unless_it_is_not_needed() {
    for (gone, sequence) in [(0, 1), (1, 3), (3, 7)] {
        let world = world();
        let (all, records) = five(&world);
        fs::remove_file(&all[gone]).unwrap();
        // The missing record should be behind what is there, or before everything.
        if gone == 0 {
            is_damaged(&world, &records, &all[1], 0, sequence);
        } else {
            is_damaged(&world, &records, &all[gone - 1], HEADER + 2 * 76, sequence);
        }
    }
}

#[test]
fn the_newest_segments_are_missed_because_the_one_before_is_sealed() {
    for left in [4, 3] {
        let world = world();
        let (all, records) = five(&world);
        all[left..].iter().for_each(|path| fs::remove_file(path).unwrap());
        is_damaged(&world, &records, &all[left], 0, 2 * left as u64 + 1);
    }
    // Nor is a damaged record before it taken for one that was torn.
    let world = self::world();
    let (all, records) = five(&world);
    fs::remove_file(&all[4]).unwrap();
    let mut bytes = fs::read(&all[3]).unwrap();
    bytes[HEADER as usize + 76 + 20] ^= 1;
    fs::write(&all[3], bytes).unwrap();
    is_damaged(&world, &records, &all[3], HEADER + 76, 8);
    // A crash may lose the seal: it is not flushed.
    let world = self::world();
    let (all, records) = five(&world);
    fs::remove_file(&all[4]).unwrap();
    set_length(&all[3], HEADER + 2 * 76);
    goes_on(&world, 1, &records, 8);
}

/// Opening a log gives the last write a segment of its own.
#[test]
fn the_segment_that_opening_makes_is_missed_too() {
    let world = world();
    let records = [vec![1; 300 << 10], vec![2; 9]];
    let (log, _) = Log::open(&world.durable, &world.path).unwrap();
    for record in &records {
        log.commit_and_wait(log.append(record).unwrap()).unwrap();
    }
    drop(log);
    assert_eq!(segments(&world.path).len(), 1);
    drop(Log::open(&world.durable, &world.path).unwrap());
    let all = segments(&world.path);
    assert_eq!(all.len(), 2);
    fs::remove_file(&all[1]).unwrap();
    is_damaged(&world, &records, &all[1], 0, 2);
}

#[test]
fn a_log_of_which_no_segment_is_left_is_not_taken_for_a_new_one() {
    let world = world();
    let (all, _) = five(&world);
    for path in &all {
        fs::remove_file(path).unwrap();
    }
    for opened in [
        Log::open(&world.durable, &world.path),
        Log::open_before(&world.durable, &world.path, 1.into()),
        Log::options().create_new(true).open(&world.durable, &world.path),
        Log::options().create(false).open(&world.durable, &world.path),
    ] {
        let error = opened.unwrap_err();
        assert!(matches!(&error, LogError::Gone { path } if *path == world.path), "{error}");
    }
    assert!(content(&world.path).is_empty());
}

#[test]
fn an_empty_folder_is_no_log_yet() {
    let world = world();
    fs::create_dir(&world.path).unwrap();
    for opened in [
        Log::options().create(false).open(&world.durable, &world.path),
        Log::open_before(&world.durable, &world.path, 1.into()),
    ] {
        assert!(matches!(opened.unwrap_err(), LogError::NotFound { .. }));
    }
    assert_eq!(fs::read_dir(&world.path).unwrap().count(), 0);
    drop(Log::options().create_new(true).open(&world.durable, &world.path).unwrap());
    Log::options().create(false).open(&world.durable, &world.path).unwrap();
}

/// A crash while segments were removed: unless the folder was synced, any may be left.
#[test]
fn segments_that_are_not_needed_are_removed_whichever_of_them_are_left() {
    for left in 0_u8..8 {
        let world = world();
        let (all, records) = five(&world);
        let before = content(&world.path);
        let (log, _) = Log::open(&world.durable, &world.path).unwrap();
        log.truncate_before(7.into()).wait().unwrap();
        drop(log);
        for (number, (path, mut bytes)) in before.into_iter().take(3).enumerate() {
            if left & 1 << number != 0 {
                // Segments that are not needed may be damaged.
                bytes[usize::from(left)] ^= 1;
                fs::write(path, bytes).unwrap();
            }
        }
        goes_on(&world, 7, &records, 10);
        assert!(all[..3].iter().all(|path| !path.exists()) && all[3].exists());
    }
}

/// The program may have ended when the newest segment had its name, which was not durable yet.
#[test]
fn nothing_is_removed_before_it_is_durable_what_says_that_it_is_not_needed() {
    let world = world();
    let _ = five(&world);
    let before = content(&world.path);
    let (log, _) = Log::open(&world.durable, &world.path).unwrap();
    log.truncate_before(7.into()).wait().unwrap();
    drop(log);
    for (path, bytes) in &before[..3] {
        fs::write(path, bytes).unwrap();
    }
    let (synced, removed) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let (noted, counted) = (Arc::clone(&synced), Arc::clone(&removed));
    let folder = fs::canonicalize(&world.path).unwrap();
    let sync = move |file: &File| {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        noted.fetch_or(path == folder, Ordering::SeqCst);
    };
    let may_remove = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        synced.load(Ordering::SeqCst)
    };
    let disk = Disk::default();
    let system = Around { disk, sync: Box::new(sync), may_remove: Box::new(may_remove) };
    let durable = Durable::with_system(&Runtime::new().unwrap(), system).unwrap();
    drop(Log::open(&durable, &world.path).unwrap());
    assert_eq!(removed.load(Ordering::SeqCst), 3);
}

#[test]
fn a_later_write_that_ends_in_zeroes_tells_of_the_damage_before_it() {
    let world = world();
    let places = written(&world, &[vec![vec![7; 9]], vec![vec![0; 30]]], None);
    let name = segments(&world.path).remove(0);
    let mut bytes = fs::read(&name).unwrap();
    bytes[places[0].end as usize - 1] ^= 1;
    fs::write(&name, bytes).unwrap();
    is_damaged(&world, &[vec![7; 9], vec![0; 30]], &name, HEADER, 1);
}

#[test]
fn a_segment_of_another_log_or_of_another_version_is_not_taken() {
    let (world, other) = (world(), self::world());
    let (all, ours_records) = five(&world);
    let (others, records) = five(&other);
    let ours = all[4].clone();
    fs::copy(&others[2], &all[2]).unwrap();
    // Nor do its records count: not even as a sign that those before them were durable.
    let mut bytes = fs::read(&others[4]).unwrap();
    bytes[HEADER as usize..].copy_from_slice(&fs::read(&ours).unwrap()[HEADER as usize..]);
    fs::write(&others[4], bytes).unwrap();
    goes_on(&other, 1, &records, 8);
    is_damaged(&world, &ours_records, &all[2], 0, 5);

    let newest = self::world();
    let (all, _) = five(&newest);
    let mut bytes = fs::read(&all[4]).unwrap();
    bytes[8] = 3;
    let checksum = crc32c(&[&bytes[..12], &bytes[16..40]].concat());
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&all[4], bytes).unwrap();
    let error = Log::open(&newest.durable, &newest.path).unwrap_err();
    assert!(matches!(&error, LogError::Version { version: 3, path } if *path == all[4]), "{error}");
}

/// The checksum computed bit by bit, by the polynomial.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc));
    !bytes.iter().fold(!0, byte)
}

/// A disk that calls a function before each sync, and another before each removal.
struct Around {
    disk: Disk,
    sync: Box<dyn Fn(&File) + Send + Sync>,
    may_remove: Box<dyn Fn() -> bool + Send + Sync>,
}

impl System for Around {
    fn commits(&self, file: &File) -> Commits {
        System::commits(&self.disk, file)
    }
    fn sync(&self, file: &File, kind: Kind) -> Result<(), Failure> {
        (self.sync)(file);
        System::sync(&self.disk, file, kind)
    }
    fn sync_filesystem(&self, file: &File) -> Result<(), Failure> {
        self.disk.sync_filesystem(file)
    }
    fn check(&self, file: &File) -> Result<(), Failure> {
        self.disk.check(file)
    }
    fn flush_device(&self, file: &File) -> Result<(), Failure> {
        self.disk.flush_device(file)
    }
    fn remove(&self, path: &Path) -> Result<(), Failure> {
        if (self.may_remove)() {
            return self.disk.remove(path);
        }
        Err(Failure { operation: "unlink", error: io::ErrorKind::Other.into() })
    }
}

/// The commit may have written the segment back, so that its own sync has nothing to flush.
#[test]
fn what_a_flush_has_lost_beside_the_opening_is_not_said_to_be_durable() {
    let (runtime, disk) = (Runtime::new().unwrap(), Disk::default());
    let (armed, others) =
        (Arc::<AtomicBool>::default(), Arc::<OnceLock<(Durable, Vec<File>)>>::default());
    let (set, known) = (Arc::clone(&armed), Arc::clone(&others));
    // As the segment is synced for the first time, others commit the filesystem, and that is lost.
    let sync = move |file: &File| {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        if path.ends_with("segment.new") && set.swap(false, Ordering::SeqCst) {
            let (durable, files) = known.get().unwrap();
            assert!(durable.fsync_many(files).wait().iter().all(Result::is_err));
        }
    };
    let system = Around { disk: disk.clone(), sync: Box::new(sync), may_remove: Box::new(|| true) };
    let durable = Durable::with_system(&runtime, system).unwrap();
    durable.set_strategy(Strategy::Filesystem);
    let folder = tempfile::tempdir().unwrap();
    let file = |n: u32| File::create(folder.path().join(n.to_string())).unwrap();
    let files: Vec<_> = (0..3).map(file).collect();
    disk.fail(Call::Flush, &files[0], 1);
    assert!(others.set((durable.clone(), files)).is_ok());
    let path = folder.path().join("log");
    let (log, _) = Log::open(&durable, &path).unwrap();
    log.commit_and_wait(log.append(b"record").unwrap()).unwrap();
    drop(log);
    armed.store(true, Ordering::SeqCst);
    let error = Log::open(&durable, &path).err().unwrap();
    assert!(error.to_string().contains("flush the device of"), "{error}");
    assert_eq!(Log::open(&durable, &path).unwrap().1.records, 1);
}

#[test]
fn who_opens_a_log_again_and_again_takes_no_room_for_it() {
    let world = world();
    let mut payload = 0;
    for (opens, length) in [(100, 14), (20, 300_000)] {
        for _ in 0..opens {
            let (log, _) = Log::open(&world.durable, &world.path).unwrap();
            let record = vec![7; length];
            log.commit_and_wait(log.append(&record).unwrap()).unwrap();
            payload += length as u64;
        }
        let files =
            fs::read_dir(&world.path).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        let (count, bytes) = files.fold((0, 0), |(count, bytes), it| (count + 1, bytes + it.len()));
        // The newest segment is longer, and a spare one may be there.
        assert!(bytes < payload + (3 << 20), "{bytes} bytes for {payload}");
        assert!(count < 5 || length > 100_000, "{count} files");
    }
    let (log, recovery) = Log::open(&world.durable, &world.path).unwrap();
    assert_eq!((recovery.records, recovery.dropped_bytes), (120, 0));
    let lengths = log.records().map(|record| record.unwrap().data.len());
    assert_eq!(lengths.sum::<usize>() as u64, payload);
}

/// Numbers do not begin again after the last one.
#[test]
fn a_segment_that_is_named_like_the_last_number_begins_nothing() {
    let world = world();
    fs::create_dir(&world.path).unwrap();
    fs::write(world.path.join(format!("{:020}.log", u64::MAX)), b"garbage").unwrap();
    assert!(Log::open(&world.durable, &world.path).is_err());
    let (log, _) = Log::open_before(&world.durable, &world.path, u64::MAX.into()).unwrap();
    let error = log.append(b"record").unwrap_err();
    assert!(error.to_string().contains("begin another log"), "{error}");
}
