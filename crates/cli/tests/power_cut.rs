//! Power cuts under load: the image lies on XFS, ext4 or btrfs, over a disk that forgets what was
//! not flushed and tears writes between sectors. What the server had called durable by then is
//! there, and every unit holds one thing that a client wrote, whole.
//!
//! Needs root, FUSE and loop devices, and says so where they are missing. `HOMING_POWER_CUTS` is
//! the number of cuts for each filesystem and cache, `HOMING_POWER_CUT_SEED` the seed of their
//! random choices.
#![cfg(target_os = "linux")]

mod support;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_faultdisk::{Disk, Filesystem, Image, Random, Record, Volume, available, number};
use support::nbd::{self, Client, OK};
use support::units::{CLIENTS, Unit, load, read_all, written_once};
use support::{Scratch, Server};

/// At most this many times as many cuts are made, until one takes something back.
const CUTS_MAX: usize = 10;

/// How long clients write.
const LOAD: Duration = Duration::from_secs(2);

/// What was known of all units at a moment of the disk.
struct Known {
    units: Vec<Unit>,
    moment: usize,
    /// Whether nothing reached the disk while that was noted.
    sharp: bool,
}

impl Known {
    /// Notes what is known now; the moment comes after everything that made it durable.
    fn now(units: &Mutex<Vec<Unit>>, disk: &Disk) -> Self {
        let units = units.lock().unwrap();
        let (before, units) = (disk.moment(), units.clone());
        let moment = disk.moment();
        Self { units, moment, sharp: before == moment }
    }

    /// The number of units that a cut may take back.
    fn volatile(&self) -> usize {
        self.units.iter().filter(|unit| unit.replied > unit.durable).count()
    }
}

fn serve(scratch: &Scratch, volume: &Volume, options: &[&str]) -> Server {
    let image = volume.path().join("disk.img");
    scratch.serve(&[&[image.to_str().unwrap()], options].concat())
}

/// Lets clients loose on a server until it is killed. Returns the record of the disk, and what was
/// known meanwhile.
fn run(filesystem: Filesystem, cache: &[&str], seed: u64) -> (Record, Vec<Known>) {
    let scratch = Scratch::new();
    let disk = Arc::new(Disk::new(Image::new(filesystem.size_min()), Duration::ZERO));
    let volume = Volume::make(&disk, filesystem, "").unwrap();
    let (first, units) = written_once();
    let server = serve(&scratch, &volume, &["--sector-size", "4096", "--size", "4M"]);
    assert_eq!(Client::new(server.socket()).write(nbd::FUA, 0, &first), OK);
    server.stop();
    disk.start_recording();
    let server = serve(&scratch, &volume, cache);
    let units = Mutex::new(units);
    let mut known = Vec::new();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (units, connection) = (&units, Client::new(server.socket()));
            scope.spawn(move || load(connection, client, seed << 8 | client, units));
        }
        let begin = Instant::now();
        while begin.elapsed() < LOAD {
            known.push(Known::now(&units, &disk));
            thread::sleep(Duration::from_millis(5));
        }
        server.kill();
    });
    known.push(Known::now(&units, &disk));
    let record = disk.stop_recording().unwrap();
    volume.unmount().unwrap();
    (record, known)
}

/// Returns what is wrong with the volume on the disk after a cut, if anything, and how many units
/// are older than what was replied.
fn verify(
    filesystem: Filesystem,
    disk: &Arc<Disk>,
    before: &Known,
    sent: &[Unit],
) -> (Option<String>, usize) {
    let volume = Volume::open(disk, filesystem, "").unwrap();
    let scratch = Scratch::new();
    let server = serve(&scratch, &volume, &[]);
    let generations = read_all(server.socket());
    server.stop();
    volume.unmount().unwrap();
    let (mut fault, mut older) = (None, 0);
    for (number, found) in generations.into_iter().enumerate() {
        let (known, sent) = (before.units[number], sent[number].sent);
        let expected = known.durable..=sent;
        match found {
            Some(found) if expected.contains(&found) => older += usize::from(found < known.replied),
            Some(found) => {
                fault = Some(format!("unit {number}: {found} is not in {expected:?}"));
            }
            None => fault = Some(format!("unit {number} holds nothing that a client wrote whole")),
        }
    }
    (fault, older)
}

/// Runs the load and makes the cuts. Returns what was wrong, and how much was lost that nobody had
/// called durable.
fn losses(filesystem: Filesystem, cache: &[&str]) -> (Vec<String>, usize) {
    let seed = number("HOMING_POWER_CUT_SEED", 1);
    let cuts = number("HOMING_POWER_CUTS", 4) as usize;
    let mut random = Random::new(seed);
    let (record, known) = run(filesystem, cache, seed);
    let sent = &known.last().unwrap().units;
    // Cuts are made where much may be lost. On a busy machine a flush may come between noting the
    // units and the moment.
    let mut sharp: Vec<&Known> = known.iter().filter(|known| known.sharp).collect();
    sharp.sort_by_key(|known| known.volatile());
    let sharp = &sharp[sharp.len() / 2..];
    let (mut lost, mut older, mut count) = (Vec::new(), 0, 0);
    // Without a cache little is volatile at a time: a few cuts may take nothing back.
    while count < cuts || older == 0 && count < CUTS_MAX * cuts {
        let mut chosen: Vec<&Known> = (0..cuts).map(|_| sharp[random.below(sharp.len())]).collect();
        chosen.sort_unstable_by_key(|known| known.moment);
        let mut cut = record.cuts();
        for before in chosen {
            cut.move_to(before.moment);
            let disk = Arc::new(Disk::new(cut.image(&mut random), Duration::ZERO));
            let (fault, more) = verify(filesystem, &disk, before, sent);
            older += more;
            let all = record.events.len();
            lost.extend(fault.map(|fault| format!("cut at {} of {all}: {fault}", before.moment)));
        }
        count += cuts;
    }
    let durable: u64 = sent.iter().map(|unit| unit.durable).sum();
    println!(
        "{} {}: {count} cuts of {durable} durable writes, {} with a loss, {older} others lost",
        filesystem.name(),
        cache.join(" "),
        lost.len()
    );
    (lost, older)
}

#[test]
fn what_was_called_durable_survives_power_cuts() {
    for filesystem in available() {
        for cache in [&[][..], &["--cache", "5M"]] {
            let (lost, older) = losses(filesystem, cache);
            assert!(lost.is_empty(), "{}", lost.join("\n"));
            // Otherwise the disk forgot nothing, and the test has shown nothing.
            assert!(older > 0, "whatever was replied to was there");
        }
    }
}
