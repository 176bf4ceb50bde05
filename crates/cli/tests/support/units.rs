//! Clients that write units of 512 bytes at random, and what is known of each unit.
//!
//! Each unit is filled from its number and a generation, so its contents show which write they come
//! from. The volume has sectors of 4096 bytes, so clients write parts of the same sector at the
//! same time. A unit has one writer, so its generations come in order.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use super::nbd::{self, Client, OK, reply};
use super::{Random, noise};

pub(crate) const UNIT: u64 = 512;
pub(crate) const UNITS: u64 = 4096;
/// In the lower half neighboring units belong to different clients, in the upper half neighboring
/// runs do.
const INTERLEAVED: u64 = UNITS / 2;
const RUN: u64 = 128;
/// The number of clients, each with a connection of its own.
pub(crate) const CLIENTS: u64 = 4;
/// Requests of each client at a time.
const IN_FLIGHT: usize = 8;

/// What is known of a unit, as generations: `durable <= replied <= sent`.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    pub(crate) sent: u64,
    pub(crate) replied: u64,
    pub(crate) durable: u64,
}

struct InFlight {
    cookie: u64,
    /// The units written with the generation of each; empty for a flush.
    written: Vec<(u64, u64)>,
    fua: bool,
    /// For a flush: everything replied to before it was sent, on any connection.
    covers: Vec<u64>,
}

pub(crate) fn content(unit: u64, generation: u64) -> Vec<u8> {
    let stamp = [unit.to_le_bytes(), generation.to_le_bytes()].concat();
    [stamp, noise(unit << 32 | generation, UNIT as usize - 16)].concat()
}

/// The generation that a unit holds, if it holds one, whole.
pub(crate) fn generation_of(unit: u64, bytes: &[u8]) -> Option<u64> {
    let generation = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    (bytes == content(unit, generation)).then_some(generation)
}

/// Chooses a first unit and a count, all of them this client's.
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
pub(crate) fn load(mut connection: Client, client: u64, seed: u64, units: &Mutex<Vec<Unit>>) {
    let mut random = Random(seed);
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

/// The bytes of all units as they are first written, and what is known of them.
pub(crate) fn written_once() -> (Vec<u8>, Vec<Unit>) {
    let first = (0..UNITS).flat_map(|unit| content(unit, 1)).collect();
    (first, vec![Unit { sent: 1, replied: 1, durable: 1 }; UNITS as usize])
}

/// The generations that a volume holds.
pub(crate) fn read_all(socket: &Path) -> Vec<Option<u64>> {
    let bytes = Client::new(socket).read(0, (UNITS * UNIT) as u32).unwrap();
    let units = bytes.chunks(UNIT as usize).zip(0..);
    units.map(|(bytes, number)| generation_of(number, bytes)).collect()
}
