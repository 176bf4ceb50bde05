//! A disk whose flushes hang, below one of two exports.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use homing_faultdisk::{Disk, Image, Served};
use rustix::process::Signal;
use support::nbd::{self, Client, OK};
use support::{DEADLINE, Scratch, noise, skip};

const MIB: usize = 1 << 20;

/// A disk whose flushes hang until this is dropped.
struct Hung<'a>(&'a Disk);

impl<'a> Hung<'a> {
    fn new(disk: &'a Disk) -> Self {
        disk.hang_flushes(true);
        Self(disk)
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.hang_flushes(false);
    }
}

/// The other export goes on, and so do reads (FUSE lets writes wait for a flush). The end waits for
/// the disk, and says so; nothing is lost when the disk goes on.
fn check(options: &[&str]) {
    let scratch = Scratch::new();
    scratch.serve(&["hung.img", "--size", "16M"]).stop();
    let container = fs::read(scratch.path("hung.img")).unwrap();
    let mut image = Image::new(container.len() as u64);
    image.write(0, &container);
    let disk = Arc::new(Disk::new(image, Duration::ZERO));
    let _served = match Served::start(&disk, &scratch.path("hung.img")) {
        Ok(served) => served,
        Err(error) => return skip(&format!("no FUSE, which takes root: {error}")),
    };
    let both = ["hung.img", "other.img", "--size", "16M"];
    let server = scratch.serve(&[&both, options].concat());
    let client = |export| Client::to_export(server.socket(), export);
    let data = noise(1, MIB);
    let mut waits = client("hung");
    assert_eq!(waits.write(0, 0, &data), OK);
    // Dropped before the server, which cannot even be killed while it hangs.
    let _goes_on = Hung::new(&disk);
    let flush = waits.send(nbd::FLUSH, 0, 0, 0);
    let (mut hung, mut other) = (client("hung"), client("other"));
    for at in 0..8 {
        assert!(hung.read(0, MIB as u32).unwrap() == data);
        assert_eq!(other.write(nbd::FUA, at * MIB as u64, &data), OK);
        assert_eq!(other.flush(), OK);
    }
    drop((hung, other));
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !server.log().contains("still making durable") && began.elapsed() < 3 * DEADLINE {
                thread::sleep(Duration::from_millis(20));
            }
            disk.hang_flushes(false);
        });
        // The message takes 21 s.
        waits.stream.set_read_timeout(Some(3 * DEADLINE)).unwrap();
        server.signal(Signal::TERM);
        assert_eq!(nbd::reply(&mut waits.stream).unwrap(), (OK, flush));
    });
    let log = server.log();
    assert!(log.contains("still making durable what was written exports=\"hung\""), "{log}");
    assert_eq!(server.end(), Some(0));
    let server = scratch.serve(&both[..1]);
    assert!(Client::new(server.socket()).read(0, MIB as u32).unwrap() == data);
    server.stop();
}

#[test]
fn a_disk_that_hangs_stops_only_who_waits_for_it() {
    check(&[]);
}

#[test]
fn a_disk_that_hangs_below_a_cache_stops_only_who_waits_for_it() {
    check(&["--cache", "8M"]);
}
