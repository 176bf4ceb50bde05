//! Power cuts under load: the image lies on XFS or ext4, over a disk that forgets what was not flushed and tears
//! writes between sectors. What the server had called durable by then is there, and every unit holds one
//! thing that a client wrote, whole.
//!
//! Needs root, FUSE and loop devices, and says so where they are missing. `HOMING_POWER_CUTS` is how many cuts
//! there are of each filesystem and cache, `HOMING_POWER_CUT_SEED` where their dice begin.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_faultdisk::{Disk, Filesystem, Image, Random, Record, Volume, unavailable};
use support::nbd::{self, Client, OK};
use support::units::{CLIENTS, Unit, load, read_all, written_once};
use support::{Scratch, Server};

/// How long clients write.
const LOAD: Duration = Duration::from_secs(2);

/// What was known of all units, and when.
struct Known {
    units: Vec<Unit>,
    moment: usize,
}

fn serve(scratch: &Scratch, volume: &Volume, options: &[&str]) -> Server {
    let image = volume.path().join("disk.img");
    scratch.serve(&[&[image.to_str().unwrap()], options].concat())
}

/// Lets clients loose on a server until it is killed: what the disk had then, and what was known meanwhile.
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
            let units = units.lock().unwrap().clone();
            // Behind all that made it durable.
            known.push(Known { units, moment: disk.moment() });
            thread::sleep(Duration::from_millis(5));
        }
        server.kill();
    });
    known.push(Known { units: units.into_inner().unwrap(), moment: disk.moment() });
    let record = disk.stop_recording().unwrap();
    volume.unmount().unwrap();
    (record, known)
}

/// What is wrong with the volume after a cut, if anything, and how many units are older than what was replied.
fn verify(socket: &Path, before: &Known, sent: &[Unit]) -> (Option<String>, usize) {
    let (mut fault, mut older) = (None, 0);
    for (number, found) in read_all(socket).into_iter().enumerate() {
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

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect(variable))
}

/// Runs and cuts. What was wrong, and how much was lost that nobody had called durable.
fn losses(filesystem: Filesystem, cache: &[&str]) -> (Vec<String>, usize) {
    let seed = number("HOMING_POWER_CUT_SEED", 1);
    let cuts = number("HOMING_POWER_CUTS", 4) as usize;
    let mut random = Random::new(seed);
    let (record, known) = run(filesystem, cache, seed);
    let sent = &known.last().unwrap().units;
    let mut chosen: Vec<&Known> = (0..cuts).map(|_| &known[random.below(known.len())]).collect();
    chosen.sort_unstable_by_key(|known| known.moment);
    let mut cut = record.cuts();
    let (mut lost, mut older) = (Vec::new(), 0);
    for before in chosen {
        cut.move_to(before.moment);
        let disk = Arc::new(Disk::new(cut.image(&mut random), Duration::ZERO));
        let volume = Volume::open(&disk, filesystem, "").unwrap();
        let scratch = Scratch::new();
        let server = serve(&scratch, &volume, &[]);
        let (fault, more) = verify(server.socket(), before, sent);
        server.stop();
        volume.unmount().unwrap();
        older += more;
        let all = record.events.len();
        lost.extend(fault.map(|fault| format!("cut at {} of {all}: {fault}", before.moment)));
    }
    let durable: u64 = sent.iter().map(|unit| unit.durable).sum();
    println!(
        "{} {}: {cuts} cuts of {durable} durable writes, {} with a loss, {older} others lost",
        filesystem.name(),
        cache.join(" "),
        lost.len()
    );
    (lost, older)
}

#[test]
fn what_was_called_durable_survives_power_cuts() {
    for filesystem in Filesystem::ALL {
        if let Some(reason) = unavailable(filesystem) {
            println!("skipped: no {} here: {reason}", filesystem.name());
            continue;
        }
        for cache in [&[][..], &["--cache", "5M"]] {
            let (lost, older) = losses(filesystem, cache);
            assert!(lost.is_empty(), "{}", lost.join("\n"));
            // Or the disk forgot nothing, and nothing was shown.
            assert!(older > 0, "whatever was replied to was there");
        }
    }
}
