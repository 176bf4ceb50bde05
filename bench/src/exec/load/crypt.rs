//! The work that a server for encrypted volumes hands to workers: blocks of 32 KiB, encrypted and
//! hashed.

use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use aes::Aes256;
use aes::cipher::{Array, KeyInit};
use sha2::{Digest, Sha512};
use xts_mode::{Xts128, get_tweak_default};

use super::super::count::count;
use super::super::peers::Pool;
use super::window::{Window, add_latencies};
use super::{Figures, Setting};
use crate::latency::record;

/// Bytes of an item.
const BLOCK: usize = 32 << 10;

/// Bytes of a sector, the unit of encryption.
const SECTOR: usize = 4096;

/// Items of one issuer in flight.
const IN_FLIGHT: usize = 64;

/// Any key will do.
static CIPHER: LazyLock<Xts128<Aes256>> = LazyLock::new(|| {
    let key = |byte| Aes256::new(&Array([byte; 32]));
    Xts128::new(key(1), key(2))
});

/// One of an issuer's blocks, on its way to a worker and back.
struct Slot {
    block: Vec<u8>,
    digest: [u8; 64],
    submitted: Instant,
    issuer: Sender<Box<Slot>>,
}

/// This many issuers, each with its blocks.
pub(super) fn issuers<P: Pool>(
    pool: &'static P,
    setting: &Setting,
    issuers: usize,
) -> anyhow::Result<Figures> {
    LazyLock::force(&CIPHER);
    for _ in 0..issuers {
        thread::Builder::new().spawn(move || issue(pool))?;
    }
    let span = Window::watch(setting)?;
    let items = span.count as f64;
    let mut figures = span.figures([
        ("items_per_s", items / span.seconds),
        ("mib_per_s", items * BLOCK as f64 / f64::from(1 << 20) / span.seconds),
        ("cpu_us_per_item", span.cpu * 1e6 / items),
    ]);
    add_latencies(&mut figures);
    Ok(figures)
}

fn issue<P: Pool>(pool: &'static P) {
    let (issuer, done): (_, Receiver<Box<Slot>>) = channel();
    for _ in 0..IN_FLIGHT {
        let block = vec![7; BLOCK];
        let issuer = issuer.clone();
        let slot = Slot { block, digest: [0; 64], submitted: Instant::now(), issuer };
        submit(pool, Box::new(slot));
    }
    for slot in done {
        submit(pool, slot);
    }
}

fn submit<P: Pool>(pool: &'static P, mut slot: Box<Slot>) {
    slot.submitted = Instant::now();
    pool.submit(move || {
        CIPHER.encrypt_area(&mut slot.block, SECTOR, 0, get_tweak_default);
        slot.digest = Sha512::digest(&slot.block).into();
        record(slot.submitted.elapsed());
        count();
        let issuer = slot.issuer.clone();
        // Issuers stay until the process ends.
        let _ = issuer.send(slot);
    });
}
