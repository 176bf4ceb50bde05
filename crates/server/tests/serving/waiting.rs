//! Requests that wait for the device, or for memory, do not hold up clients that could go on.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use homing_nbd::wire::{command, command_flag};
use homing_server::{CryptOn, ServerOptions};
use homing_volume::{Block, BlockError, Durability};

use crate::client::{Pipelined, Request, encode};
use crate::{device, with_server_and_handle, with_server_of};

/// A device of zeroes. Long reads, and zeroing, hang until they are let go, and reading ahead
/// panics.
#[derive(Default)]
struct Slow {
    let_go: Mutex<bool>,
    changed: Condvar,
}

impl Slow {
    fn hang(&self) {
        let let_go = self.let_go.lock().unwrap();
        drop(self.changed.wait_while(let_go, |let_go| !*let_go).unwrap());
    }
}

impl Block for Slow {
    fn size(&self) -> u64 {
        1 << 30
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, _: u64, data: &mut [u8]) -> Result<(), BlockError> {
        if data.len() > 4096 {
            self.hang();
        }
        data.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &mut [u8], _: Durability) -> Result<(), BlockError> {
        Ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Durability) -> Result<(), BlockError> {
        self.hang();
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }

    fn prefetch(&self, _: u64, _: u64) {
        panic!("for a test");
    }

    fn cost_ns(&self, length: u64) -> u64 {
        length
    }
}

/// A device that takes a millisecond for each MiB of zeroes, and records the most bytes that it had
/// to zero at a time.
#[derive(Debug, Default)]
struct Zeroed {
    longest: AtomicU64,
    count: AtomicU64,
    reads: AtomicU64,
}

impl Block for Zeroed {
    fn size(&self) -> u64 {
        4 << 30
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, _: u64, data: &mut [u8]) -> Result<(), BlockError> {
        self.reads.fetch_add(1, SeqCst);
        data.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &mut [u8], _: Durability) -> Result<(), BlockError> {
        Ok(())
    }

    fn write_zeroes(&self, _: u64, length: u64, _: Durability) -> Result<(), BlockError> {
        self.longest.fetch_max(length, SeqCst);
        self.count.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_micros(length >> 10));
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }

    fn cost_ns(&self, length: u64) -> u64 {
        length
    }
}

/// Lets everything go at the end, even if the test fails.
struct AtEnd<'a>(&'a Slow);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        *self.0.let_go.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

/// Sends all requests, and returns the first `count` that are answered while the others hang.
fn answered_first(requests: &[Request], count: usize) -> Vec<usize> {
    let slow = Arc::new(Slow::default());
    let options = ServerOptions { crypt_on: CryptOn::Workqueue, ..ServerOptions::default() };
    let mut answered = Vec::new();
    with_server_of(&slow, &options, |endpoint| {
        let mut client = Pipelined::connect(endpoint);
        let at_end = AtEnd(&slow);
        client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.0.write_all(&encode(requests)).unwrap();
        let mut reply = || {
            let mut header = [0; 16];
            client.0.read_exact(&mut header).unwrap();
            assert_eq!(header[4..8], [0; 4]);
            let cookie = u64::from_be_bytes(header[8..].try_into().unwrap()) as usize;
            let is_read = requests[cookie].0 == command::READ;
            let mut data = vec![0; if is_read { requests[cookie].2 as usize } else { 0 }];
            client.0.read_exact(&mut data).unwrap();
            cookie
        };
        answered.extend((0..count).map(|_| reply()));
        drop(at_end);
        for _ in count..requests.len() {
            reply();
        }
    });
    answered.sort_unstable();
    answered
}

#[test]
fn zeroing_much_holds_up_no_other_request_of_its_client() {
    let short = [(command::READ, 0, 4096, Vec::new()), (command::FLUSH, 0, 0, Vec::new())];
    let zeroes = (command::WRITE_ZEROES, 0, 200 << 20, Vec::new());
    assert_eq!(answered_first(&[&[zeroes], &short[..]].concat(), 2), [1, 2]);
}

/// It may be any amount.
#[test]
fn what_a_client_asked_for_and_left_is_not_read() {
    for crypt_on in [CryptOn::Connection, CryptOn::Workqueue] {
        let device = Arc::new(Zeroed::default());
        let options = ServerOptions { crypt_on, ..ServerOptions::default() };
        with_server_of(&device, &options, |endpoint| {
            let mut client = Pipelined::connect(endpoint);
            // 20 GB.
            let reads = vec![(command::READ, 0, 1 << 20, Vec::new()); 20_000];
            // As much as the server takes in without being read from.
            client.0.set_nonblocking(true).unwrap();
            let began = Instant::now();
            let bytes = encode(&reads);
            let mut rest = &bytes[..];
            while !rest.is_empty() && began.elapsed() < Duration::from_millis(200) {
                rest = &rest[client.0.write(rest).unwrap_or(0)..];
            }
        });
        let reads = device.reads.load(SeqCst);
        assert!(reads < 2_000, "{crypt_on:?}: {reads}");
    }
}

/// Zeroing does not hold up the flushes and reads of other clients either, however much is asked
/// for. When its client goes, little of it is still done.
#[test]
fn zeroing_without_end_holds_up_nobody_else() {
    for (crypt_on, flag) in [
        (CryptOn::Auto, command_flag::FUA),
        (CryptOn::Workqueue, command_flag::FUA),
        (CryptOn::Workqueue, 0),
    ] {
        let zeroed = Arc::new(Zeroed::default());
        let options = ServerOptions { crypt_on, ..ServerOptions::default() };
        let began = Instant::now();
        with_server_of(&zeroed, &options, |endpoint| {
            let mut client = Pipelined::connect(endpoint);
            // 2 TB: this would take hours.
            let zeroes = vec![(command::WRITE_ZEROES, 0, 1 << 30, Vec::new()); 2000];
            let mut bytes = encode(&zeroes);
            // The flags come after the magic.
            bytes
                .chunks_mut(28)
                .for_each(|request| request[4..6].copy_from_slice(&flag.to_be_bytes()));
            client.0.write_all(&bytes).unwrap();
            let mut other = Pipelined::connect(endpoint);
            other.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            for _ in 0..5 {
                let requests =
                    [(command::READ, 0, 4096, Vec::new()), (command::FLUSH, 0, 0, Vec::new())];
                assert!(other.exchange(&requests).iter().all(|(errno, _)| *errno == 0));
            }
            // Only the pieces under way are still done; nobody will hear of the others.
            drop(client);
        });
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert!(zeroed.longest.load(SeqCst) <= 8 << 20);
    }
}

#[test]
fn zeroes_of_a_client_that_has_gone_are_given_up() {
    let zeroed = Arc::new(Zeroed::default());
    with_server_of(&zeroed, &ServerOptions::default(), |endpoint| {
        let mut client = Pipelined::connect(endpoint);
        // 512 pieces, which take 4 seconds.
        let all = u32::MAX - 4095;
        client.0.write_all(&encode(&[(command::WRITE_ZEROES, 0, all, Vec::new())])).unwrap();
        while zeroed.count.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(client);
        let goes_on = || {
            let before = zeroed.count.load(SeqCst);
            std::thread::sleep(Duration::from_millis(500));
            zeroed.count.load(SeqCst) > before
        };
        while goes_on() {}
    });
    assert!(zeroed.count.load(SeqCst) < 400, "{zeroed:?}");
}

/// Whoever says good-bye may rely on it that what was asked for before is done.
#[test]
fn zeroes_of_a_client_that_has_said_good_bye_are_written_to_their_end() {
    let zeroed = Arc::new(Zeroed::default());
    with_server_of(&zeroed, &ServerOptions::default(), |endpoint| {
        let mut client = Pipelined::connect(endpoint);
        // 64 pieces, which take half a second.
        let zeroes = (command::WRITE_ZEROES, 0, 512 << 20, Vec::new());
        let good_bye = (command::DISC, 0, 0, Vec::new());
        client.0.write_all(&encode(&[zeroes, good_bye])).unwrap();
        drop(client);
        let began = Instant::now();
        while zeroed.count.load(SeqCst) < 64 {
            assert!(began.elapsed() < Duration::from_secs(60), "{zeroed:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn what_is_done_is_answered_where_as_much_is_under_way_as_may_be() {
    let mut requests = vec![(command::READ, 0, 1 << 20, Vec::new()); 127];
    requests.push((command::TRIM, 0, 4096, Vec::new()));
    requests.push((command::READ, 0, 1 << 20, Vec::new()));
    assert_eq!(answered_first(&requests, 1), [127]);
}

/// The client takes no reply before it has sent all, which is its right.
#[test]
fn who_alone_has_memory_does_not_wait_for_himself() {
    const LONG: u32 = 2 << 20;
    let options = ServerOptions {
        crypt_on: CryptOn::Workqueue,
        request_memory_max: 8 << 20,
        stall_timeout: Duration::from_secs(1),
        ..ServerOptions::default()
    };
    with_server_of(&device(), &options, |endpoint| {
        let mut requests = vec![(command::READ, 8 << 20, 1 << 20, Vec::new()); 5];
        requests.push((command::WRITE, 0, LONG, vec![2; LONG as usize]));
        let replies = Pipelined::connect(endpoint).send_all_first(&requests);
        assert!(replies.iter().all(|(errno, _)| *errno == 0));
    });
}

/// Meanwhile another thread waits for the client to take its replies.
#[test]
fn a_connection_that_panics_keeps_no_memory() {
    let slow = Arc::new(Slow::default());
    *slow.let_go.lock().unwrap() = true;
    let options = ServerOptions { crypt_on: CryptOn::Workqueue, ..ServerOptions::default() };
    with_server_and_handle(&slow, &options, |endpoint, handle| {
        let wait_for = |what, done: &dyn Fn(usize) -> bool| {
            let began = Instant::now();
            while !done(handle.buffer_bytes()) {
                let bytes = handle.buffer_bytes();
                assert!(began.elapsed() < Duration::from_secs(30), "{what}: {bytes} bytes");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let mut client = Pipelined::connect(endpoint);
        // These replies are more than the socket takes.
        let reads = vec![(command::READ, 0, 1 << 20, Vec::new()); 8];
        client.0.write_all(&encode(&reads)).unwrap();
        wait_for("replies", &|bytes| bytes > 2 << 20);
        client.0.write_all(&encode(&[(command::CACHE, 0, 4096, Vec::new())])).unwrap();
        wait_for("nothing", &|bytes| bytes == 0);
    });
}
