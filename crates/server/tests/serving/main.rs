//! A server and its load in one process, on volumes that misbehave on demand.

mod client;
mod counted;
mod durability;
mod idle;
mod memory;
mod pki;
mod stopping;
mod tls;
mod waiting;

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use homing::{Durable, Runtime, Scope, Workqueue};
use homing_nbd::wire::command;
use homing_server::load::{self, LoadError, Pattern, Phase, Written};
use homing_server::{
    CryptOn, Endpoint, ServedExport, Server, ServerAttributes, ServerHandle, ServerOptions,
};
use homing_volume::{Block, BlockError, Bytes, Durability, Extent, File, Write};

use client::Pipelined;

/// A device that can be told to fail or to be slow.
struct Faulty {
    below: Bytes<File>,
    /// Writes that begin here or later fail.
    fails_from: AtomicU64,
    batches: AtomicU64,
    /// Whoever holds this holds up reads.
    gate: Mutex<()>,
}

impl Block for Faulty {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        drop(self.gate.lock().unwrap());
        self.below.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8], d: Durability) -> Result<(), BlockError> {
        if offset >= self.fails_from.load(Ordering::Relaxed) {
            let source = std::io::Error::from_raw_os_error(5);
            return Err(BlockError::Io { action: "write", offset, length: 1, source });
        }
        self.below.write(offset, data, d)
    }

    /// Behaves, every other time, as if another client had the turn for a while.
    fn write_batch(&self, writes: &mut [Write<'_>], meanwhile: &mut dyn FnMut() -> bool) {
        if self.batches.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            while meanwhile() {}
        }
        for write in writes {
            write.result = self.write(write.offset, write.data, Durability::Written);
        }
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
    let (fails_from, batches) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    Arc::new(Faulty { below, fails_from, batches, gate: Mutex::default() })
}

/// Serves `device` while `client` runs, and checks that the server ends in good order.
fn with_server(device: &Arc<Faulty>, crypt_on: CryptOn, client: impl FnOnce(&Endpoint)) {
    let options = ServerOptions { crypt_on, ..ServerOptions::default() };
    with_server_of(device, &options, client);
}

fn with_server_of<D: Block + 'static>(
    device: &Arc<D>,
    options: &ServerOptions,
    client: impl FnOnce(&Endpoint),
) {
    with_server_and_handle(device, options, |endpoint, _| client(endpoint));
}

fn with_server_and_handle<D: Block + 'static>(
    device: &Arc<D>,
    options: &ServerOptions,
    client: impl FnOnce(&Endpoint, &ServerHandle),
) {
    let crypt_on = options.crypt_on;
    let (folder, endpoint) = socket();
    serve(&endpoint, &[("disk", device)], options, |served| {
        client(&served.endpoint, &served.handle);
        served.crypt.set_affinity_scope(Scope::Cpu).unwrap();
        let queued = served.crypt.counters().queued;
        assert!(crypt_on == CryptOn::Auto || (crypt_on == CryptOn::Workqueue) == (queued > 0));
    });
    drop(folder);
}

fn socket() -> (tempfile::TempDir, Endpoint) {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(folder.path().join("s.sock"));
    (folder, endpoint)
}

/// A running server.
struct Served {
    endpoint: Endpoint,
    handle: ServerHandle,
    crypt: Workqueue,
    durable: Durable,
    attributes: ServerAttributes,
    has_ended: AtomicBool,
}

/// Serves devices by their names while `client` runs, and checks that the server ends in good
/// order.
fn serve<D: Block + 'static>(
    endpoint: &Endpoint,
    devices: &[(&str, &Arc<D>)],
    options: &ServerOptions,
    client: impl FnOnce(&Served),
) {
    let runtime = Runtime::new().unwrap();
    let export = |(name, device): &(&str, &Arc<D>)| ServedExport {
        name: (*name).to_owned(),
        description: "as long as a description may be".repeat(100),
        read_only: false,
        device: Arc::clone(device) as Arc<dyn Block>,
    };
    let exports = devices.iter().map(export).collect();
    let server = Server::bind(&runtime, endpoint, exports, options).unwrap();
    let served = Served {
        endpoint: server.endpoint().unwrap(),
        handle: server.handle(),
        crypt: server.crypt_workqueue().clone(),
        durable: server.durable().clone(),
        attributes: server.attributes(),
        has_ended: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let ended = server.run();
            served.has_ended.store(true, Ordering::Release);
            ended
        });
        // A client that fails must not leave the server running, with this function waiting for it.
        let outcome = catch_unwind(AssertUnwindSafe(|| client(&served)));
        served.handle.stop();
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
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
        device.fails_from.store(0, Ordering::Relaxed);
        assert!(matches!(run(), Err(LoadError::Refused { errno: 5, .. })));
        device.fails_from.store(u64::MAX, Ordering::Relaxed);
        run().unwrap();
    });
}

#[test]
fn stopping_does_not_wait_for_a_client_that_is_idle() {
    with_server(&device(), CryptOn::Auto, |endpoint| {
        let Endpoint::Unix(path) = endpoint else { unreachable!() };
        // This client connects and never says a word. The stream is forgotten, so that only the
        // server hangs up.
        std::mem::forget(UnixStream::connect(path).unwrap());
    });
}

#[test]
fn a_server_may_have_all_the_time_there_is() {
    let [handshake_timeout, stall_timeout, drain_timeout] = [Duration::MAX; 3];
    let options =
        ServerOptions { handshake_timeout, stall_timeout, drain_timeout, ..Default::default() };
    with_server_of(&device(), &options, |endpoint| {
        let phase = phase(Pattern::ReadWrite, 4096, 1);
        let some = Duration::from_millis(50);
        load::run(endpoint, "disk", &phase, some, &mut Written::default()).unwrap();
    });
}

/// Neither a byte now and then, nor options whose replies nobody reads, keep a place forever.
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
        // The replies to all options are more than the socket holds.
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
        // A client that has negotiated may take as long as it likes.
        let phase = phase(Pattern::Read, 4096, 1);
        let long = Duration::from_millis(600);
        load::run(endpoint, "disk", &phase, long, &mut Written::default()).unwrap();
    });
}

/// Requests that come together are done together. Yet a client sees what it would see had each been
/// done before the next: a read returns what was written before it, and every error is where it
/// belongs.
#[test]
fn requests_sent_at_once_come_out_as_if_one_by_one() {
    const LEN: usize = 96 << 10;
    const AT_END: u64 = 16 << 20;
    const FAILS_FROM: usize = 80 << 10;
    let device = device();
    device.fails_from.store(FAILS_FROM as u64, Ordering::Relaxed);
    with_server(&device, CryptOn::Connection, |endpoint| {
        let mut client = Pipelined::connect(endpoint);
        let mut model = vec![0_u8; LEN];
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for round in 0..300 {
            let (mut requests, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..=random(40) {
                let unit = [1, 512, 4096][random(3)];
                let at = random(LEN / unit) * unit;
                let length = (random(32_768 / unit) * unit + unit).min(LEN - at);
                let fails = at >= FAILS_FROM;
                let range = at..at + length;
                let (command, data, reply) = match random(9) {
                    0..4 => {
                        let data: Vec<_> = (0..length).map(|_| random(256) as u8).collect();
                        if !fails {
                            model[range].copy_from_slice(&data);
                        }
                        (command::WRITE, data, vec![])
                    }
                    4 => {
                        model[range].fill(0);
                        (command::WRITE_ZEROES, vec![], vec![])
                    }
                    5 => (command::FLUSH, vec![], vec![]),
                    6 if random(4) == 0 => (99, vec![], vec![]),
                    6 if random(8) == 0 => {
                        // These writes are long, so that the inbox grows, and are refused by the
                        // device or the server.
                        requests.push((command::WRITE, AT_END - 4096, 2 << 20, vec![1; 2 << 20]));
                        expected.push((28, vec![]));
                        requests.push((command::WRITE, 1 << 20, 2 << 20, vec![2; 2 << 20]));
                        expected.push((5, vec![]));
                        (command::CACHE, vec![], vec![])
                    }
                    _ => (command::READ, vec![], model[range].to_vec()),
                };
                let (at, length) = if command == command::FLUSH { (0, 0) } else { (at, length) };
                let errno = match command {
                    command::WRITE if fails => 5,
                    99 => 22,
                    _ => 0,
                };
                requests.push((command, at as u64, length as u32, data));
                expected.push((errno, reply));
            }
            let replies = client.exchange(&requests);
            for (n, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
                let (command, at, length, _) = &requests[n];
                assert!(reply == expected, "round {round}: {n}: {command} of {length} at {at}");
            }
        }
    });
}
