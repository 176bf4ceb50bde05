//! A log that several threads commit to and that is cut off, and what must be in it after a power
//! cut.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use homing_durable::{Durable, Log, Record as LogRecord, System};
use homing_faultdisk::{Disk, Filesystem, Image, Random, Record, Volume};
use homing_runtime::Runtime;

use crate::after_cuts;

/// Short segments, so that many begin and go.
const SEGMENT: u64 = 64 << 10;
const COMMITTERS: u64 = 3;
/// How many records each committer appends.
const RECORDS: u64 = 120;
/// How many records one committer appends between two cuts of the log.
const BETWEEN_CUTS: u64 = 10;

/// What was promised about the log, and by when.
#[derive(Default)]
struct Promises {
    /// For each record: whose it is, and when it was known to be durable.
    durable: BTreeMap<u64, ((u64, u64), usize)>,
    /// From which record on the log was asked to keep its records, with the moment before that; and
    /// from which on it said that it keeps them, with the moment after.
    asked: Vec<(u64, usize)>,
    gone: Vec<(u64, usize)>,
}

/// What a record holds: its committer and that committer's count, with a length of its own.
fn content((committer, count): (u64, u64)) -> Vec<u8> {
    let length = (count * 37 + committer * 11) % 5000;
    [format!("{committer} {count} ").into_bytes(), vec![committer as u8; length as usize]].concat()
}

/// Commits and cuts off on a disk. Returns what came to the disk, and what was promised.
fn run(filesystem: Filesystem, system: impl System) -> io::Result<(Record, Promises)> {
    let image = Image::new(filesystem.size_min());
    let disk = Arc::new(Disk::new(image, Duration::ZERO));
    let volume = Volume::make(&disk, filesystem, "")?;
    disk.start_recording();
    let runtime = Runtime::new().map_err(io::Error::other)?;
    let durable = Durable::with_system(&runtime, system).map_err(io::Error::other)?;
    let (log, _) =
        Log::options().segment_length(SEGMENT).open(&durable, volume.path().join("log")).unwrap();
    let promises = Mutex::new(Promises::default());
    thread::scope(|scope| {
        for committer in 0..COMMITTERS {
            let (log, disk, promises) = (&log, &disk, &promises);
            scope.spawn(move || commit(committer, log, disk, promises));
        }
    });
    drop((log, durable, runtime));
    let record = disk.stop_recording().unwrap();
    volume.unmount()?;
    Ok((record, promises.into_inner().unwrap()))
}

fn commit(committer: u64, log: &Log, disk: &Disk, promises: &Mutex<Promises>) {
    for count in 0..RECORDS {
        let sequence = log.append(&content((committer, count))).unwrap();
        // The committer's own thread writes, or another's, or a worker.
        if committer.is_multiple_of(2) {
            log.commit_and_wait(sequence).unwrap();
        } else {
            log.commit(sequence).wait().unwrap();
        }
        let durable = ((committer, count), disk.moment());
        promises.lock().unwrap().durable.insert(sequence.get(), durable);
        if committer == 0 && count % BETWEEN_CUTS == BETWEEN_CUTS - 1 {
            let last = log.durable_sequence().get();
            let first = last + 1 - ((count % 3) * 20).min(last);
            promises.lock().unwrap().asked.push((first, disk.moment()));
            log.truncate_before(first.into()).wait().unwrap();
            let gone = (log.first_sequence().get(), disk.moment());
            promises.lock().unwrap().gone.push(gone);
        }
    }
}

impl Promises {
    fn moments(&self) -> Vec<usize> {
        let durable = self.durable.values().map(|(_, moment)| *moment);
        durable.chain(self.gone.iter().map(|(_, moment)| *moment)).collect()
    }

    /// Checks the log in this folder after a power cut at this moment, and that it goes on. The
    /// error says what is wrong.
    fn verify(&self, path: &Path, moment: usize) -> Result<(), String> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let durable = Durable::new(&runtime).map_err(|error| error.to_string())?;
        let open = || {
            Log::options()
                .segment_length(SEGMENT)
                .open(&durable, path)
                .map_err(|error| error.to_string())
        };
        let (log, recovery) = open()?;
        let records = read(&log)?;
        let first = recovery.first.get();
        let latest = |said: &[(u64, usize)]| {
            said.iter().filter(|(_, when)| *when <= moment).map(|(first, _)| *first).max()
        };
        let (gone, asked) = (latest(&self.gone).unwrap_or(1), latest(&self.asked).unwrap_or(1));
        if !(gone..=asked).contains(&first) {
            return Err(format!("it begins with {first}, and not with one of {gone}..={asked}"));
        }
        for (at, record) in records.iter().enumerate() {
            if record.sequence.get() != first + at as u64 {
                return Err(format!("record {} is the {at}th from {first} on", record.sequence));
            }
        }
        let mut promised = self.durable.range(first..).filter(|(_, (_, when))| *when <= moment);
        let lost = promised.find(|(sequence, (whose, _))| {
            let found = records.get((**sequence - first) as usize);
            found.is_none_or(|record| record.data != content(*whose))
        });
        if let Some((sequence, (whose, _))) = lost {
            let left = records.len();
            return Err(format!("record {sequence} of {whose:?} of {left} from {first} on"));
        }
        let added = log.append(b"goes on").map_err(|error| error.to_string())?;
        log.commit_and_wait(added).map_err(|error| error.to_string())?;
        drop(log);
        let again = read(&open()?.0)?;
        let goes_on = again.last().is_some_and(|record| record.data == b"goes on");
        (goes_on && again[..again.len() - 1] == records)
            .then_some(())
            .ok_or_else(|| "it is not the same when it is opened again".to_owned())
    }
}

fn read(log: &Log) -> Result<Vec<LogRecord>, String> {
    log.records().map(|record| record.map_err(|error| error.to_string())).collect()
}

/// Runs, and cuts the power this many times. Returns what was wrong.
pub(crate) fn losses(
    filesystem: Filesystem,
    system: impl System,
    cuts: usize,
    seed: u64,
) -> Vec<String> {
    let mut random = Random::new(seed);
    let (record, promises) = run(filesystem, system).unwrap();
    let told: Vec<usize> = promises.moments();
    let lost = after_cuts((&record, &told), filesystem, cuts, &mut random, |root, moment| {
        promises.verify(&root.join("log"), moment)
    });
    eprintln!(
        "{}: {cuts} cuts of a log of {} records that was cut off {} times, {} with a loss",
        filesystem.name(),
        promises.durable.len(),
        promises.gone.len(),
        lost.len()
    );
    lost
}
