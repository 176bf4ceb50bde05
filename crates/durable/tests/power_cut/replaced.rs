//! Files that are replaced again and again, and what they must be after a power cut.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use homing_durable::{Durable, System};
use homing_faultdisk::{Disk, Filesystem, Image, Random, Record, Volume};
use homing_runtime::Runtime;

use crate::after_cuts;

/// Two of those who replace have a file for themselves, the others share one.
const FILES: [&str; 4] = ["one", "two", "shared", "shared"];
const ROUNDS: usize = 40;

/// That a file was replaced: by whom, in which round, and when this was known.
struct Promise {
    file: &'static str,
    by: usize,
    round: usize,
    moment: usize,
}

/// What somebody replaces a file with: nobody else does it with that, and its length tells.
fn contents(by: usize, round: usize) -> Vec<u8> {
    let length = (by * 7919 + round * 1237) % 30_000;
    [format!("{by} {round}\n").into_bytes(), vec![(by * 64 + round) as u8; length]].concat()
}

/// Whose contents these are, if they are whole.
fn whose(found: &[u8]) -> Option<(usize, usize)> {
    let line = found.split(|byte| *byte == b'\n').next()?;
    let (by, round) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let (by, round) = (by.parse().ok()?, round.parse().ok()?);
    (contents(by, round) == found).then_some((by, round))
}

fn run(filesystem: Filesystem, system: impl System) -> io::Result<(Record, Vec<Promise>)> {
    let disk = Arc::new(Disk::new(Image::new(filesystem.size_min()), Duration::ZERO));
    let volume = Volume::make(&disk, filesystem, "")?;
    let root = volume.path();
    disk.start_recording();
    let runtime = Runtime::new().map_err(io::Error::other)?;
    let durable = Durable::with_system(&runtime, system).map_err(io::Error::other)?;
    let promises = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (by, file) in FILES.into_iter().enumerate() {
            let (durable, disk, promises, path) = (&durable, &disk, &promises, root.join(file));
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let contents = contents(by, round);
                    if round % 2 == 0 {
                        durable.replace(&path, contents).wait().unwrap();
                    } else {
                        durable.replace_and_wait(&path, &contents).unwrap();
                    }
                    let moment = disk.moment();
                    promises.lock().unwrap().push(Promise { file, by, round, moment });
                }
            });
        }
    });
    drop((durable, runtime));
    let record = disk.stop_recording().unwrap();
    volume.unmount()?;
    Ok((record, promises.into_inner().unwrap()))
}

/// Checks the files after a power cut at this moment. The error says what is wrong.
fn verify(root: &Path, promises: &[Promise], moment: usize) -> Result<(), String> {
    for file in ["one", "two", "shared"] {
        let known = promises.iter().filter(|known| known.file == file && known.moment <= moment);
        let found = match std::fs::read(root.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found.map_err(|error| format!("{file}: {error}"))?),
        };
        let found = match found {
            None => None,
            Some(found) => {
                let whose = whose(&found);
                Some(whose.ok_or_else(|| format!("{file} is not whole: {} bytes", found.len()))?)
            }
        };
        for Promise { by, round, .. } in known {
            // Somebody else may have replaced it since.
            let is_kept = found.is_some_and(|(whose, found)| whose != *by || found >= *round);
            if !is_kept {
                return Err(format!("{file}: round {round} of {by} is lost: there is {found:?}"));
            }
        }
    }
    Ok(())
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
    let told: Vec<usize> = promises.iter().map(|promise| promise.moment).collect();
    let lost = after_cuts((&record, &told), filesystem, cuts, &mut random, |root, moment| {
        verify(root, &promises, moment)
    });
    eprintln!(
        "{}: {cuts} cuts of files that were replaced {} times, {} with a loss",
        filesystem.name(),
        promises.len(),
        lost.len()
    );
    lost
}
