//! A server that is told to stop finishes what has begun, and no disk keeps another from that.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_nbd::wire::command;
use homing_server::{Endpoint, ServerOptions};
use homing_volume::{Block, BlockError, Bytes, Durability, Extent, File};
use rustix::net::SendFlags;

use crate::client::{Pipelined, encode, shake_hands};
use crate::{serve, socket};

/// A device whose reads hang until they are let go.
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

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>, BlockError> {
        self.below.extents(offset, length, max)
    }

    fn cost_ns(&self, length: u64) -> u64 {
        self.below.cost_ns(length)
    }
}

/// Lets the reads go at the end, even if the test fails.
struct AtEnd<'a>(&'a Hangs);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} takes too long");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Options for a server that soon hangs up on clients.
fn impatient() -> ServerOptions {
    ServerOptions { drain_timeout: Duration::from_millis(300), ..ServerOptions::default() }
}

#[test]
fn a_disk_that_hangs_keeps_no_other_from_its_last_flush_and_is_waited_for() {
    let (stuck, sound) = (Hangs::new(true), Hangs::new(false));
    let (_folder, endpoint) = socket();
    let devices = [("disk", &stuck), ("other", &sound)];
    serve(&endpoint, &devices, &impatient(), |served| {
        // This lets the reads go even if the test fails.
        let at_end = AtEnd(&stuck);
        let mut client = Pipelined::connect(&endpoint);
        let requests = [(command::READ, 0, 4096, Vec::new())];
        client.0.write_all(&encode(&requests)).unwrap();
        wait_until("a read", || stuck.begun.load(Ordering::Relaxed) == 1);
        served.handle.stop();
        wait_until("the last flush", || sound.flushes.load(Ordering::Relaxed) > 0);
        // This is far beyond the client's time, but it is still owed its answer.
        thread::sleep(Duration::from_secs(2));
        assert!(!served.has_ended.load(Ordering::Acquire));
        let before = stuck.flushes.load(Ordering::Relaxed);
        drop(at_end);
        let replies = client.replies(&requests);
        assert_eq!((replies[0].0, replies[0].1.len()), (0, 4096));
        wait_until("its end", || served.has_ended.load(Ordering::Acquire));
        assert!(stuck.flushes.load(Ordering::Relaxed) > before, "after what was done last");
    });
}

/// QEMU tells its guest of an error that it is given, and asks again for what has no answer.
#[test]
fn what_has_come_when_the_server_is_to_stop_is_done_and_nothing_is_refused() {
    let device = Hangs::new(true);
    let (_folder, endpoint) = socket();
    serve(&endpoint, &[("disk", &device)], &ServerOptions::default(), |served| {
        let at_end = AtEnd(&device);
        let mut client = Pipelined::connect(&endpoint);
        let first = [(command::READ, 0, 4096, Vec::new())];
        client.0.write_all(&encode(&first)).unwrap();
        wait_until("a read", || device.begun.load(Ordering::Relaxed) == 1);
        let later = [
            (command::WRITE, 4096, 3, b"new".to_vec()),
            (command::READ, 4096, 3, Vec::new()),
            (command::FLUSH, 0, 0, Vec::new()),
        ];
        client.0.write_all(&encode(&later)).unwrap();
        served.handle.stop();
        // It takes in no more then.
        let send_nothing = || rustix::net::send(&client.0, &[], SendFlags::NOSIGNAL);
        wait_until("its stop", || send_nothing().is_err());
        drop(at_end);
        let replies = client.replies(&first);
        assert_eq!(replies[0].0, 0);
        let replies = client.replies(&later);
        assert!(replies.iter().all(|reply| reply.0 == 0), "{replies:?}");
        assert_eq!(replies[1].1, b"new");
        wait_until("its end", || served.has_ended.load(Ordering::Acquire));
    });
}

#[test]
fn who_does_not_read_is_hung_up_on() {
    let device = Hangs::new(false);
    let (_folder, endpoint) = socket();
    serve(&endpoint, &[("disk", &device)], &impatient(), |served| {
        let mut client = Pipelined::connect(&endpoint);
        let requests = vec![(command::READ, 0, 1 << 20, Vec::new()); 20];
        client.0.write_all(&encode(&requests)).unwrap();
        wait_until("a read", || device.begun.load(Ordering::Relaxed) > 1);
        served.handle.stop();
        wait_until("its end", || served.has_ended.load(Ordering::Acquire));
    });
}

/// Ending the reading is not enough: the end is found only where nothing has come, and TCP still
/// delivers what comes.
#[test]
fn who_goes_on_sending_does_not_keep_a_server_from_ending() {
    let device = Hangs::new(false);
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    serve(&endpoint, &[("disk", &device)], &impatient(), |served| {
        let Endpoint::Tcp(address) = served.endpoint else { unreachable!() };
        let requests = encode(&vec![(command::READ, 0, 512, Vec::new()); 20_000]);
        let clients: Vec<_> =
            (0..4).map(|_| shake_hands(TcpStream::connect(address).unwrap())).collect();
        thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| while (&mut &*client).write_all(&requests).is_ok() {});
                scope.spawn(|| std::io::copy(&mut &*client, &mut std::io::sink()));
            }
            wait_until("a read", || device.begun.load(Ordering::Relaxed) > 1000);
            served.handle.stop();
            let began = Instant::now();
            let has_ended = || served.has_ended.load(Ordering::Acquire);
            while !has_ended() && began.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(20));
            }
            let has_ended = has_ended();
            for client in &clients {
                let _ = client.shutdown(Shutdown::Both);
            }
            assert!(has_ended, "it still runs");
        });
    });
}

/// Replies that were under way when the server stopped still come, even if the client, which cannot
/// know, has sent one more request.
#[test]
fn a_request_that_comes_too_late_costs_no_reply() {
    let device = Hangs::new(false);
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    serve(&endpoint, &[("disk", &device)], &ServerOptions::default(), |served| {
        let Endpoint::Tcp(address) = served.endpoint else { unreachable!() };
        // A narrow window stands for a long way between client and server.
        let stream = TcpStream::connect(address).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 16 << 10).unwrap();
        let mut client = shake_hands(stream);
        let requests = vec![(command::READ, 0, 256 << 10, Vec::new()); 3];
        client.write_all(&encode(&requests)).unwrap();
        wait_until("reads", || device.begun.load(Ordering::Relaxed) == 3);
        thread::sleep(Duration::from_millis(200));
        served.handle.stop();
        thread::sleep(Duration::from_millis(300));
        let late = client.write_all(&encode(&requests[..1]));
        thread::sleep(Duration::from_millis(100));
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got);
        // The late request is answered too if the server still takes it.
        let each = 16 + (256 << 10);
        assert!([3 * each, 4 * each].contains(&got.len()), "{}: {end:?} {late:?}", got.len());
    });
}

/// The connection is woken while it waits without a buffer.
#[test]
fn an_idle_client_over_tcp_is_let_go_at_once() {
    let device = Hangs::new(false);
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    serve(&endpoint, &[("disk", &device)], &ServerOptions::default(), |served| {
        let Endpoint::Tcp(address) = served.endpoint else { unreachable!() };
        let mut client = shake_hands(TcpStream::connect(address).unwrap());
        thread::sleep(Duration::from_millis(1_500));
        let began = Instant::now();
        served.handle.stop();
        assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
        drop(client);
        wait_until("the end", || served.has_ended.load(Ordering::Acquire));
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    });
}

/// A handle keeps the listener open.
#[test]
fn who_had_connected_and_was_not_accepted_is_hung_up_on() {
    for _ in 0..20 {
        let device = Hangs::new(false);
        let (_folder, endpoint) = socket();
        serve(&endpoint, &[("disk", &device)], &ServerOptions::default(), |served| {
            let Endpoint::Unix(path) = &endpoint else { unreachable!() };
            let clients: Vec<_> = (0..64).map(|_| UnixStream::connect(path).unwrap()).collect();
            served.handle.stop();
            for mut client in clients {
                client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let end = client.read_to_end(&mut Vec::new());
                let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
                assert!(!end.as_ref().is_err_and(waits), "{end:?}");
            }
        });
    }
}
