//! A server that is told to stop finishes what has begun, and one disk keeps no other from that.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing::Runtime;
use homing_nbd::wire::command;
use homing_server::{Endpoint, ServedExport, Server, ServerOptions};
use homing_volume::{Block, BlockError, Bytes, Durability, Extent, File};

use crate::client::{Pipelined, encode, shake_hands};

/// Its reads hang until they are let go.
struct Hangs {
    below: Bytes<File>,
    hangs: Mutex<bool>,
    changed: Condvar,
    begun: AtomicU64,
    flushes: AtomicU64,
}

impl Hangs {
    fn new(hangs: bool) -> Arc<Self> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        Arc::new(Self {
            below: Bytes::new(File::new(Arc::new(file), 0, 1 << 20, 4096)),
            hangs: Mutex::new(hangs),
            changed: Condvar::new(),
            begun: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        })
    }

    fn let_go(&self) {
        *self.hangs.lock().unwrap() = false;
        self.changed.notify_all();
    }
}

impl Block for Hangs {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let hangs = self.hangs.lock().unwrap();
        drop(self.changed.wait_while(hangs, |hangs| *hangs).unwrap());
        self.below.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8], d: Durability) -> Result<(), BlockError> {
        self.below.write(offset, data, d)
    }

    fn write_zeroes(&self, offset: u64, length: u64, d: Durability) -> Result<(), BlockError> {
        self.below.write_zeroes(offset, length, d)
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.below.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.below.discard(offset, length)
    }

    fn prefetch(&self, _: u64, _: u64) {}

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>, BlockError> {
        self.below.extents(offset, length, max)
    }

    fn cost_ns(&self, length: u64) -> u64 {
        self.below.cost_ns(length)
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} takes too long");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_disk_that_hangs_keeps_no_other_from_its_last_flush_and_is_waited_for() {
    let (stuck, sound) = (Hangs::new(true), Hangs::new(false));
    let export = |name: &str, device: &Arc<Hangs>| ServedExport {
        name: name.to_owned(),
        description: String::new(),
        read_only: false,
        device: Arc::clone(device) as Arc<dyn Block>,
    };
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(folder.path().join("s.sock"));
    let options =
        ServerOptions { drain_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let exports = vec![export("disk", &stuck), export("other", &sound)];
    let runtime = Runtime::new().unwrap();
    let server = Server::bind(&runtime, &endpoint, exports, &options).unwrap();
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    let mut client = Pipelined::connect(&endpoint);
    let requests = [(command::READ, 0, 4096, Vec::new())];
    client.0.write_all(&encode(&requests)).unwrap();
    wait_until("a read", || stuck.begun.load(Ordering::Relaxed) == 1);
    handle.stop();
    wait_until("the last flush", || sound.flushes.load(Ordering::Relaxed) > 0);
    // Far beyond its time, it is still owed its answer.
    thread::sleep(Duration::from_secs(2));
    assert!(!running.is_finished());
    let before = stuck.flushes.load(Ordering::Relaxed);
    stuck.let_go();
    let replies = client.replies(&requests);
    assert_eq!((replies[0].0, replies[0].1.len()), (0, 4096));
    running.join().unwrap().unwrap();
    assert!(stuck.flushes.load(Ordering::Relaxed) > before, "after what was done last");
}

#[test]
fn who_does_not_read_is_hung_up_on() {
    let device = Hangs::new(false);
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(folder.path().join("s.sock"));
    let options =
        ServerOptions { drain_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let export = ServedExport {
        name: "disk".to_owned(),
        description: String::new(),
        read_only: false,
        device: Arc::clone(&device) as Arc<dyn Block>,
    };
    let runtime = Runtime::new().unwrap();
    let server = Server::bind(&runtime, &endpoint, vec![export], &options).unwrap();
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    let mut client = Pipelined::connect(&endpoint);
    let requests = vec![(command::READ, 0, 1 << 20, Vec::new()); 20];
    client.0.write_all(&encode(&requests)).unwrap();
    wait_until("a read", || device.begun.load(Ordering::Relaxed) > 1);
    handle.stop();
    running.join().unwrap().unwrap();
}

/// The end of reading is found where nothing has come; TCP gives what still comes.
#[test]
fn who_goes_on_sending_does_not_keep_a_server_from_ending() {
    let device = Hangs::new(false);
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    let options =
        ServerOptions { drain_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let export = ServedExport {
        name: "disk".to_owned(),
        description: String::new(),
        read_only: false,
        device: Arc::clone(&device) as Arc<dyn Block>,
    };
    let runtime = Runtime::new().unwrap();
    let server = Server::bind(&runtime, &endpoint, vec![export], &options).unwrap();
    let Endpoint::Tcp(address) = server.endpoint().unwrap() else { unreachable!() };
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    let requests = encode(&vec![(command::READ, 0, 512, Vec::new()); 20_000]);
    let clients: Vec<_> =
        (0..4).map(|_| shake_hands(TcpStream::connect(address).unwrap())).collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| while (&mut &*client).write_all(&requests).is_ok() {});
            scope.spawn(|| std::io::copy(&mut &*client, &mut std::io::sink()));
        }
        wait_until("a read", || device.begun.load(Ordering::Relaxed) > 1000);
        handle.stop();
        let began = Instant::now();
        while !running.is_finished() && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(20));
        }
        let is_finished = running.is_finished();
        for client in &clients {
            let _ = client.shutdown(Shutdown::Both);
        }
        assert!(is_finished, "it still runs");
    });
    running.join().unwrap().unwrap();
}
