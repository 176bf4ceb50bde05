//! `kill -9` under load: what the server called durable is there after it starts again, and every
//! unit holds one thing that a client wrote, whole.
//!
//! Each unit of 512 bytes is filled from its number and a generation, so that what is read shows
//! which write it comes from. The volume has sectors of 4096 bytes: clients write parts of the
//! same sector at the same time. A unit has one writer, so its generations come in order.

mod support;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use support::nbd::{self, Client, ESHUTDOWN, OK, reply};
use support::{Random, Scratch, noise};

const UNIT: u64 = 512;
const UNITS: u64 = 4096;
/// In the lower half neighbouring units belong to different clients, in the upper half runs do.
const INTERLEAVED: u64 = UNITS / 2;
const RUN: u64 = 128;
const CLIENTS: u64 = 4;
const IN_FLIGHT: usize = 8;

/// What is known of a unit, as generations: `durable <= replied <= sent`.
#[derive(Clone, Copy)]
struct Unit {
    sent: u64,
    replied: u64,
    durable: u64,
}

struct InFlight {
    cookie: u64,
    /// The units written with the generation of each; empty for a flush.
    written: Vec<(u64, u64)>,
    fua: bool,
    /// For a flush: everything replied to before it was sent, on any connection.
    covers: Vec<u64>,
}

fn content(unit: u64, generation: u64) -> Vec<u8> {
    let stamp = [unit.to_le_bytes(), generation.to_le_bytes()].concat();
    [stamp, noise(unit << 32 | generation, UNIT as usize - 16)].concat()
}

/// The generation that a unit holds, if it holds one, whole.
fn generation_of(unit: u64, bytes: &[u8]) -> Option<u64> {
    let generation = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    (bytes == content(unit, generation)).then_some(generation)
}

/// A first unit and a count, all of them this client's.
fn choose(random: &mut Random, client: u64) -> (u64, u64) {
    if random.below(2) == 0 {
        return (random.below(INTERLEAVED / CLIENTS) * CLIENTS + client, 1);
    }
    let runs = (UNITS - INTERLEAVED) / RUN / CLIENTS;
    let run = INTERLEAVED + (random.below(runs) * CLIENTS + client) * RUN;
    let first = random.below(RUN);
    (run + first, 1 + random.below(RUN - first))
}

/// Writes and flushes until the connection breaks or the server says that it ends.
fn load(socket: &Path, client: u64, seed: u64, units: &Mutex<Vec<Unit>>) {
    let mut random = Random(seed);
    let mut connection = Client::new(socket);
    let mut pending: Vec<InFlight> = Vec::new();
    let mut cookie = 0;
    loop {
        while pending.len() < IN_FLIGHT {
            cookie += 1;
            let (first, count) = choose(&mut random, client);
            let chosen = first..first + count;
            // Two writes to one unit in flight could be carried out in either order.
            if pending.iter().any(|p| p.written.iter().any(|(unit, _)| chosen.contains(unit))) {
                break;
            }
            let mut now = units.lock().unwrap();
            let (mut new, mut bytes) = (
                InFlight { cookie, written: Vec::new(), fua: false, covers: Vec::new() },
                Vec::new(),
            );
            if random.below(16) == 0 {
                new.covers = now.iter().map(|unit| unit.replied).collect();
                bytes.extend(nbd::request(nbd::FLUSH, 0, cookie, 0, 0));
            } else {
                new.fua = random.below(4) == 0;
                let (flags, length) = (u16::from(new.fua) * nbd::FUA, (count * UNIT) as u32);
                bytes.extend(nbd::request(nbd::WRITE, flags, cookie, first * UNIT, length));
                for unit in chosen {
                    now[unit as usize].sent += 1;
                    new.written.push((unit, now[unit as usize].sent));
                    bytes.extend(content(unit, now[unit as usize].sent));
                }
            }
            drop(now);
            pending.push(new);
            if connection.stream.write_all(&bytes).is_err() {
                return;
            }
        }
        let Ok((error, cookie)) = reply(&mut connection.stream) else { return };
        if error == ESHUTDOWN {
            return;
        }
        assert_eq!(error, OK);
        let at = pending.iter().position(|p| p.cookie == cookie).expect("a reply to a request");
        let done = pending.swap_remove(at);
        let mut now = units.lock().unwrap();
        for (unit, generation) in done.written {
            now[unit as usize].replied = generation;
            if done.fua {
                now[unit as usize].durable = generation;
            }
        }
        for (unit, replied) in now.iter_mut().zip(done.covers) {
            unit.durable = unit.durable.max(replied);
        }
    }
}

/// Holds what is on the volume against what is known, and takes it as the new state.
fn check(socket: &Path, units: &mut [Unit]) {
    let bytes = Client::new(socket).read(0, (UNITS * UNIT) as u32).unwrap();
    for (number, (unit, bytes)) in units.iter_mut().zip(bytes.chunks(UNIT as usize)).enumerate() {
        let Some(found) = generation_of(number as u64, bytes) else {
            panic!("unit {number} holds nothing that a client wrote whole");
        };
        let expected = unit.durable..=unit.sent;
        assert!(expected.contains(&found), "unit {number}: {found} is not in {expected:?}");
        *unit = Unit { sent: found, replied: found, durable: found };
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Kill,
    Orderly,
}

/// Lets clients loose on a server and ends it in the middle of that, again and again.
fn ended_under_load(end: End, rounds: u64, cache: &[&str]) {
    let scratch = Scratch::new();
    let serve = || scratch.serve(&[&["disk.img"], cache].concat());
    let server = scratch.serve(&["disk.img", "--sector-size", "4096", "--size", "4M"]);
    let first: Vec<u8> = (0..UNITS).flat_map(|unit| content(unit, 1)).collect();
    assert_eq!(Client::new(server.socket()).write(nbd::FUA, 0, &first), OK);
    server.kill();
    let written_once = Unit { sent: 1, replied: 1, durable: 1 };
    let units = Arc::new(Mutex::new(vec![written_once; UNITS as usize]));
    let replied = || units.lock().unwrap().iter().map(|unit| unit.replied).sum::<u64>();
    for round in 0..rounds {
        let server = serve();
        check(server.socket(), &mut units.lock().unwrap());
        let before = replied();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (units, socket) = (Arc::clone(&units), server.socket().to_owned());
                thread::spawn(move || load(&socket, client, round << 8 | client, &units))
            })
            .collect();
        thread::sleep(Duration::from_millis(200 + 100 * round));
        match end {
            End::Kill => server.kill(),
            End::Orderly => server.stop(),
        }
        for client in clients {
            client.join().unwrap();
        }
        assert!(replied() > before + 100, "there was hardly any load");
        if end == End::Orderly {
            // Then whatever was replied to is durable.
            units.lock().unwrap().iter_mut().for_each(|unit| unit.durable = unit.replied);
        }
    }
    let server = serve();
    check(server.socket(), &mut units.lock().unwrap());
    server.stop();
}

#[test]
fn what_was_called_durable_survives_kill_9_and_no_sector_is_torn() {
    ended_under_load(End::Kill, 8, &[]);
}

#[test]
fn an_orderly_end_under_load_loses_nothing_that_was_replied_to() {
    ended_under_load(End::Orderly, 5, &[]);
}

/// Room for about half of the volume.
const SMALL_CACHE: [&str; 2] = ["--cache", "5M"];

#[test]
fn with_a_cache_what_was_called_durable_survives_kill_9() {
    ended_under_load(End::Kill, 8, &SMALL_CACHE);
    ended_under_load(End::Kill, 2, &["--cache", "5M", "--cache-mode", "write-through"]);
}

#[test]
fn with_a_cache_an_orderly_end_loses_nothing_that_was_replied_to() {
    ended_under_load(End::Orderly, 5, &SMALL_CACHE);
}

#[test]
fn a_write_with_fua_survives_kill_9() {
    for cache in [&[][..], &SMALL_CACHE] {
        a_write_with_fua_survives(cache);
    }
}

fn a_write_with_fua_survives(cache: &[&str]) {
    let scratch = Scratch::new();
    let server = scratch.serve(&[&["disk.img", "--size", "4M"], cache].concat());
    let mut client = Client::new(server.socket());
    for block in 0..16 {
        assert_eq!(client.write(nbd::FUA, block * 65536, &noise(block, 65536)), OK);
    }
    server.kill();
    let server = scratch.serve(&["disk.img"]);
    let mut client = Client::new(server.socket());
    for block in 0..16 {
        assert_eq!(client.read(block * 65536, 65536).unwrap(), noise(block, 65536));
    }
    server.stop();
}

#[test]
fn a_flush_covers_what_was_replied_to_on_other_connections() {
    for cache in [&[][..], &SMALL_CACHE] {
        a_flush_covers_other_connections(cache);
    }
}

fn a_flush_covers_other_connections(cache: &[&str]) {
    let scratch = Scratch::new();
    let server = scratch.serve(&[&["disk.img", "--size", "4M"], cache].concat());
    for block in 0..16 {
        let mut writer = Client::new(server.socket());
        assert_eq!(writer.write(0, block * 65536, &noise(block, 65536)), OK);
    }
    assert_eq!(Client::new(server.socket()).flush(), OK);
    server.kill();
    let server = scratch.serve(&["disk.img"]);
    let mut client = Client::new(server.socket());
    for block in 0..16 {
        assert_eq!(client.read(block * 65536, 65536).unwrap(), noise(block, 65536));
    }
    server.stop();
}

#[test]
fn an_orderly_end_makes_everything_durable_without_a_flush() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "4M"]);
    let mut client = Client::new(server.socket());
    assert_eq!(client.write(0, 12345, &noise(1, 1_000_001)), OK);
    server.stop();
    let server = scratch.serve(&["disk.img"]);
    assert_eq!(Client::new(server.socket()).read(12345, 1_000_001).unwrap(), noise(1, 1_000_001));
    server.stop();
}

#[test]
fn written_through_a_cache_it_survives_kill_9_without_a_flush() {
    let scratch = Scratch::new();
    let through = ["disk.img", "--size", "4M", "--cache", "5M", "--cache-mode", "write-through"];
    let server = scratch.serve(&through);
    assert_eq!(Client::new(server.socket()).write(0, 12345, &noise(1, 1_000_001)), OK);
    server.kill();
    let server = scratch.serve(&["disk.img"]);
    assert_eq!(Client::new(server.socket()).read(12345, 1_000_001).unwrap(), noise(1, 1_000_001));
    server.stop();
}
