//! A server and its load, in one process, on volumes that misbehave on demand.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use homing::{Runtime, Scope};
use homing_server::load::{self, LoadError, Pattern, Phase, Written};
use homing_server::{CryptOn, Endpoint, ServedExport, Server, ServerOptions};
use homing_volume::{Block, BlockError, Bytes, Durability, Extent, File};

/// A device that can be told to fail or to be slow.
struct Faulty {
    below: Bytes<File>,
    fail_writes: AtomicBool,
}

impl Block for Faulty {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        self.below.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8], d: Durability) -> Result<(), BlockError> {
        if self.fail_writes.load(Ordering::Relaxed) {
            let source = std::io::Error::from_raw_os_error(5);
            return Err(BlockError::Io { action: "write", offset, length: 1, source });
        }
        self.below.write(offset, data, d)
    }

    fn write_zeroes(&self, offset: u64, length: u64, d: Durability) -> Result<(), BlockError> {
        self.below.write_zeroes(offset, length, d)
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.below.discard(offset, length)
    }

    fn prefetch(&self, offset: u64, length: u64) {
        self.below.prefetch(offset, length);
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>, BlockError> {
        self.below.extents(offset, length, max)
    }

    fn cost_ns(&self, length: u64) -> u64 {
        self.below.cost_ns(length)
    }
}

fn device() -> Arc<Faulty> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(16 << 20).unwrap();
    let below = Bytes::new(File::new(Arc::new(file), 0, 16 << 20, 4096));
    Arc::new(Faulty { below, fail_writes: AtomicBool::new(false) })
}

/// Serves `device` while `client` runs; checks that the server ends in good order.
fn with_server(device: &Arc<Faulty>, crypt_on: CryptOn, client: impl FnOnce(&Endpoint)) {
    let options = ServerOptions { crypt_on, ..ServerOptions::default() };
    with_server_of(device, &options, client);
}

fn with_server_of(device: &Arc<Faulty>, options: &ServerOptions, client: impl FnOnce(&Endpoint)) {
    let crypt_on = options.crypt_on;
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(folder.path().join("s.sock"));
    let runtime = Runtime::new().unwrap();
    let export = ServedExport {
        name: "disk".to_owned(),
        description: "as long as a description may be".repeat(100),
        read_only: false,
        device: Arc::clone(device) as Arc<dyn Block>,
    };
    let server = Server::bind(&runtime, &endpoint, vec![export], options).unwrap();
    let handle = server.handle();
    std::thread::scope(|scope| {
        let crypt = server.crypt_workqueue().clone();
        let running = scope.spawn(move || server.run());
        client(&endpoint);
        crypt.set_affinity_scope(Scope::Cpu).unwrap();
        let queued = crypt.counters().queued;
        assert!(crypt_on == CryptOn::Auto || (crypt_on == CryptOn::Workqueue) == (queued > 0));
        handle.stop();
        running.join().unwrap().unwrap();
    });
}

fn phase(pattern: Pattern, request_len: usize, depth: usize) -> Phase {
    Phase { name: "test", pattern, request_len, clients: 3, depth }
}

#[test]
fn every_pattern_reads_back_what_it_wrote_whoever_does_the_work() {
    for crypt_on in [CryptOn::Auto, CryptOn::Connection, CryptOn::Workqueue] {
        with_server(&device(), crypt_on, |endpoint| {
            let mut written = Written::default();
            let mut run = |pattern, request_len, depth| {
                let phase = phase(pattern, request_len, depth);
                load::run(endpoint, "disk", &phase, Duration::from_millis(150), &mut written)
                    .unwrap()
            };
            let filled = run(Pattern::Fill, 64 << 10, 8);
            assert!(filled.bytes > 15 << 20);
            for (pattern, length, depth) in [
                (Pattern::ReadWrite, 32 << 10, 16),
                (Pattern::Read, 4096, 1),
                (Pattern::ReadWrite, 4096, 32),
                (Pattern::WriteAndFlush, 4096, 1),
                (Pattern::Read, 1 << 20, 2),
            ] {
                assert!(run(pattern, length, depth).requests > 0);
            }
        });
    }
}

#[test]
fn an_error_of_the_device_reaches_the_client_and_the_server_goes_on() {
    let device = device();
    with_server(&device, CryptOn::Workqueue, |endpoint| {
        let mut written = Written::default();
        let mut run = || {
            let phase = phase(Pattern::Fill, 4096, 4);
            load::run(endpoint, "disk", &phase, Duration::ZERO, &mut written)
        };
        device.fail_writes.store(true, Ordering::Relaxed);
        assert!(matches!(run(), Err(LoadError::Refused { errno: 5, .. })));
        device.fail_writes.store(false, Ordering::Relaxed);
        run().unwrap();
    });
}

#[test]
fn stopping_does_not_wait_for_a_client_that_is_idle() {
    with_server(&device(), CryptOn::Auto, |endpoint| {
        let Endpoint::Unix(path) = endpoint else { unreachable!() };
        // Connected, never says a word; dropped only when the server has hung up.
        std::mem::forget(UnixStream::connect(path).unwrap());
    });
}

/// Neither a byte now and then nor options whose replies nobody reads keep a place for ever.
#[test]
fn a_client_has_so_much_time_to_negotiate() {
    let handshake_timeout = Duration::from_millis(300);
    let options = ServerOptions { handshake_timeout, ..ServerOptions::default() };
    with_server_of(&device(), &options, |endpoint| {
        let Endpoint::Unix(path) = endpoint else { unreachable!() };
        let mut lists = 3_u32.to_be_bytes().to_vec();
        for _ in 0..4000 {
            lists.extend(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
        }
        // The replies to all of them are more than the socket holds.
        for piece_len in [1, lists.len()] {
            let mut stream = UnixStream::connect(path).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
            let began = Instant::now();
            let mut pieces = lists.chunks(piece_len).cycle();
            while stream.write_all(pieces.next().unwrap()).is_ok() {
                assert!(began.elapsed() < Duration::from_secs(20), "it is let go on");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(began.elapsed() >= handshake_timeout, "cut off for another reason");
        }
        // Who has negotiated may take as long as he likes.
        let phase = phase(Pattern::Read, 4096, 1);
        let long = Duration::from_millis(600);
        load::run(endpoint, "disk", &phase, long, &mut Written::default()).unwrap();
    });
}
