//! `kill -9` under load: what the server called durable is there after it starts again, and every
//! unit holds one thing that a client wrote, whole.

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::nbd::{self, Client, OK};
use support::units::{CLIENTS, Unit, load, read_all, written_once};
use support::{DEADLINE, Scratch, noise};

/// Compares the volume with what is known of it, and takes its contents as the new state.
fn check(socket: &Path, units: &mut [Unit]) {
    for (number, (unit, found)) in units.iter_mut().zip(read_all(socket)).enumerate() {
        let Some(found) = found else {
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

/// Lets clients loose on a server and ends it in the middle of their work, again and again.
fn ended_under_load(end: End, rounds: u64, cache: &[&str]) {
    let scratch = Scratch::new();
    let serve = || scratch.serve(&[&["disk.img"], cache].concat());
    let server = scratch.serve(&["disk.img", "--sector-size", "4096", "--size", "4M"]);
    let (first, units) = written_once();
    assert_eq!(Client::new(server.socket()).write(nbd::FUA, 0, &first), OK);
    server.kill();
    let units = Arc::new(Mutex::new(units));
    let replied = || units.lock().unwrap().iter().map(|unit| unit.replied).sum::<u64>();
    for round in 0..rounds {
        let server = serve();
        check(server.socket(), &mut units.lock().unwrap());
        let before = replied();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (units, connection) = (Arc::clone(&units), Client::new(server.socket()));
                thread::spawn(move || load(connection, client, round << 8 | client, &units))
            })
            .collect();
        thread::sleep(Duration::from_millis(200 + 100 * round));
        // On a busy machine clients take their time.
        let began = Instant::now();
        while replied() < before + 1000 && began.elapsed() < DEADLINE {
            thread::sleep(Duration::from_millis(10));
        }
        match end {
            End::Kill => server.kill(),
            End::Orderly => server.stop(),
        }
        for client in clients {
            client.join().unwrap();
        }
        assert!(replied() >= before + 1000, "there was hardly any load");
        if end == End::Orderly {
            // After an orderly end, whatever was replied to is durable.
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

/// The cache has room for about half of the volume.
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
