//! The memory that the requests of all clients together may take.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use homing_nbd::RequestHeader;
use homing_nbd::wire::command;
use homing_server::{CryptOn, ServerOptions};

use crate::client::{Pipelined, encode};
use crate::{device, with_server_and_handle, with_server_of};

/// The clients send long requests, far more of them than there is memory for at a time.
#[test]
fn who_finds_no_memory_waits_for_others_to_be_done() {
    for crypt_on in [CryptOn::Connection, CryptOn::Workqueue] {
        let options =
            ServerOptions { crypt_on, request_memory_max: 5 << 20, ..ServerOptions::default() };
        with_server_of(&device(), &options, |endpoint| {
            std::thread::scope(|scope| {
                for number in 0..3 {
                    let mut client = Pipelined::connect(endpoint);
                    scope.spawn(move || long_requests(&mut client, number));
                }
            });
        });
    }
}

/// Writes and reads a quarter of the device, in requests that are longer than a server's buffers.
fn long_requests(client: &mut Pipelined, number: u8) {
    const LEN: u32 = (1 << 20) + 4096;
    let offset = |at: u8| (u64::from(number) << 22) + u64::from(at) * u64::from(LEN);
    for round in 0..5 {
        let data = |at| vec![number * 50 + round * 5 + at; LEN as usize];
        let writes = [0, 1, 2].map(|at| (command::WRITE, offset(at), LEN, data(at)));
        assert!(client.exchange(&writes).iter().all(|(errno, _)| *errno == 0));
        let reads = [0, 1, 2].map(|at| (command::READ, offset(at), LEN, Vec::new()));
        for (at, (errno, got)) in (0..).zip(client.exchange(&reads)) {
            assert!(errno == 0 && got == data(at));
        }
    }
}

#[test]
fn a_client_that_keeps_memory_and_others_waiting_is_cut_off() {
    const LONG: u32 = 2 << 20;
    let stall_timeout = Duration::from_secs(2);
    let options =
        ServerOptions { request_memory_max: 5 << 20, stall_timeout, ..ServerOptions::default() };
    with_server_of(&device(), &options, |endpoint| {
        let request = |command, length| {
            RequestHeader { flags: 0, command, cookie: 7, offset: 0, length }.encode()
        };
        for (command, sent) in [(command::WRITE, LONG / 2), (command::READ, 0)] {
            // It sends half of what it wants to write, or takes nothing of what it wants to read.
            let mut stalls = Pipelined::connect(endpoint);
            stalls.0.write_all(&request(command, LONG)).unwrap();
            stalls.0.write_all(&vec![1; sent as usize]).unwrap();
            // By then the server has come to the request.
            std::thread::sleep(Duration::from_millis(300));
            let began = Instant::now();
            let mut short = Pipelined::connect(endpoint);
            let replies = short.exchange(&[(command::READ, 0, 4096, Vec::new())]);
            assert_eq!(replies[0].0, 0);
            assert!(began.elapsed() < stall_timeout / 2, "short requests wait, too");
            let replies = short.exchange(&[(command::READ, 0, LONG, Vec::new())]);
            assert_eq!((replies[0].0, replies[0].1.len()), (0, LONG as usize));
            assert!(began.elapsed() > stall_timeout / 2, "it was given no time");
            stalls.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut rest = Vec::new();
            // A reset is as good as an end of the stream, but a time-out is not.
            let ended = stalls.0.read_to_end(&mut rest);
            let timed_out = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            assert!(!ended.is_err_and(timed_out) && rest.len() < LONG as usize);
        }
    });
}

/// Each could have sent its data while it waited for those before it.
#[test]
fn clients_that_do_not_go_on_are_not_given_all_the_time_one_after_the_other() {
    const LONG: u32 = 2 << 20;
    let stall_timeout = Duration::from_secs(5);
    let options =
        ServerOptions { request_memory_max: 5 << 20, stall_timeout, ..ServerOptions::default() };
    with_server_of(&device(), &options, |endpoint| {
        let request =
            RequestHeader { flags: 0, command: command::WRITE, cookie: 7, offset: 0, length: LONG };
        let stalls = || {
            let mut client = Pipelined::connect(endpoint);
            client.0.write_all(&request.encode()).unwrap();
            client
        };
        let began = Instant::now();
        let stalled: Vec<_> = (0..6).map(|_| stalls()).collect();
        // By then the server has come to their requests.
        std::thread::sleep(Duration::from_millis(300));
        let mut other = Pipelined::connect(endpoint);
        let replies = other.exchange(&[(command::READ, 0, LONG, Vec::new())]);
        assert_eq!((replies[0].0, replies[0].1.len()), (0, LONG as usize));
        let took = began.elapsed();
        assert!(took < 4 * stall_timeout, "{took:?}");
        drop(stalled);
    });
}

/// They are let go at once, not one after the other, each after a time-out of its own.
#[test]
fn those_who_wait_for_memory_are_let_go_when_the_server_ends() {
    const LONG: u32 = 4 << 20;
    let options = ServerOptions {
        request_memory_max: 5 << 20,
        stall_timeout: Duration::from_secs(60),
        drain_timeout: Duration::from_secs(1),
        ..ServerOptions::default()
    };
    let mut stopped = None;
    let mut waiting = Vec::new();
    with_server_of(&device(), &options, |endpoint| {
        for _ in 0..20 {
            let mut client = Pipelined::connect(endpoint);
            let request = RequestHeader {
                flags: 0,
                command: command::WRITE,
                cookie: 7,
                offset: 0,
                length: LONG,
            };
            client.0.write_all(&request.encode()).unwrap();
            client.0.write_all(&[1; 4096]).unwrap();
            waiting.push(client);
        }
        // By then the server has come to the requests.
        std::thread::sleep(Duration::from_millis(300));
        stopped = Some(Instant::now());
    });
    let took = stopped.unwrap().elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// The server keeps what such clients have sent, however small the parts are, but together no more
/// than all requests may take.
#[test]
fn clients_that_idle_within_a_request_keep_no_more_than_requests_may() {
    const LEN: u32 = 200 << 10;
    let options = ServerOptions {
        request_memory_max: 4 << 20,
        stall_timeout: Duration::from_secs(1),
        ..ServerOptions::default()
    };
    with_server_and_handle(&device(), &options, |endpoint, handle| {
        let requests = [(command::WRITE, 0, LEN, vec![1; LEN as usize])];
        let bytes = encode(&requests);
        let (begin, rest) = bytes.split_at(bytes.len() / 2);
        let idle = (0..40).map(|_| {
            let mut client = Pipelined::connect(endpoint);
            client.0.write_all(begin).unwrap();
            client
        });
        let idle: Vec<_> = idle.collect();
        let began = Instant::now();
        let all_came = || handle.buffer_bytes() >= idle.len() * LEN as usize;
        while !all_came() && began.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(5));
        }
        while handle.buffer_bytes() > options.request_memory_max {
            let bytes = handle.buffer_bytes();
            assert!(began.elapsed() < Duration::from_secs(30), "{bytes} bytes are kept");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Clients for which there is memory are served as ever.
        let served = idle.into_iter().filter_map(|mut client| {
            client.0.write_all(rest).ok()?;
            let mut reply = [0; 16];
            client.0.read_exact(&mut reply).ok()
        });
        assert!(served.count() > 0);
    });
}

/// Bytes that are taken in ahead of requests count too. But no client waits for itself because of
/// them, and an idle one gives them back.
#[test]
fn what_is_taken_in_ahead_keeps_nobody_from_going_on() {
    const LONG: u32 = 2 << 20;
    let options = ServerOptions { request_memory_max: 8 << 20, ..ServerOptions::default() };
    with_server_of(&device(), &options, |endpoint| {
        let mut requests = vec![(command::READ, 0, 1 << 20, Vec::new()); 6];
        requests.extend(vec![(command::WRITE, 8 << 20, 4096, vec![1; 4096]); 64]);
        requests.push((command::WRITE, 10 << 20, LONG, vec![2; LONG as usize]));
        let mut idle = Vec::new();
        for _ in 0..3 {
            let mut client = Pipelined::connect(endpoint);
            client.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.0.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
            let short = &requests[..70];
            for requests in [short, &requests] {
                let replies = client.send_all_first(requests);
                assert!(replies.iter().all(|(errno, _)| *errno == 0));
            }
            // It begins another request, but sends no more of it.
            client.send_all_first(short);
            client.0.write_all(&[0x25, 0x60, 0x95]).unwrap();
            idle.push(client);
        }
    });
}

/// A client may send all its requests before it takes a reply. While it sends, it goes on, even
/// though one of our threads waits for it to take replies, and other clients wait for the memory of
/// those.
#[test]
fn a_client_that_still_sends_is_not_cut_off() {
    const LONG: u32 = 1 << 20;
    let options = ServerOptions {
        crypt_on: CryptOn::Workqueue,
        request_memory_max: 8 << 20,
        stall_timeout: Duration::from_secs(2),
        ..ServerOptions::default()
    };
    with_server_of(&device(), &options, |endpoint| {
        let mut sends = Pipelined::connect(endpoint);
        sends.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        sends.0.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        // These replies are more than the socket takes, so the memory of some is kept.
        let mut requests = vec![(command::READ, 0, LONG, Vec::new()); 3];
        sends.0.write_all(&encode(&requests)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let mut waits = Pipelined::connect(endpoint);
        let waiting =
            std::thread::spawn(move || waits.exchange(&[(command::READ, 0, 6 << 20, Vec::new())]));
        let began = Instant::now();
        while began.elapsed() < 3 * options.stall_timeout {
            let write = (command::WRITE, 8 << 20, 128 << 10, vec![1; 128 << 10]);
            requests.push(write);
            // Its cookie is its place among all requests.
            let all = encode(&requests[requests.len() - 1..]);
            let cookie = (requests.len() as u64 - 1).to_be_bytes();
            sends.0.write_all(&[&all[..8], &cookie, &all[16..]].concat()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!waiting.is_finished(), "nobody waited for the memory");
        let replies = sends.replies(&requests);
        assert!(replies.iter().all(|(errno, _)| *errno == 0));
        let replies = waiting.join().unwrap();
        assert_eq!((replies[0].0, replies[0].1.len()), (0, 6 << 20));
    });
}
