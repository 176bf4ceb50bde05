//! Clients that break the protocol, or break off: each is answered or dropped as the spec says, and
//! the others notice nothing.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use support::nbd::{self, Client, EINVAL, ENOSPC, OK, go_data, hangs_up, hello, option, reply};
use support::{DEADLINE, Scratch, Server, noise};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 128 * MIB;

/// Lets a test loose on a server that also has a well-behaved client. That client must be served
/// before and after, a new client must be served too, and the server must end in order.
fn beside_a_good_client(test: impl FnOnce(&Server)) {
    beside_a_good_client_of(&[], test);
}

fn beside_a_good_client_of(args: &[&str], test: impl FnOnce(&Server)) {
    let scratch = Scratch::new();
    let server = scratch.serve(&[&["disk.img", "--size", "128M"], args].concat());
    let mut good = Client::new(server.socket());
    let last = SIZE - 4096;
    assert_eq!(good.write(0, last, &noise(1, 4096)), OK);
    test(&server);
    assert_eq!(good.read(last, 4096).unwrap(), noise(1, 4096));
    assert_eq!(good.write(nbd::FUA, last, &noise(2, 4096)), OK);
    assert_eq!(Client::new(server.socket()).read(last, 4096).unwrap(), noise(2, 4096));
    server.stop();
}

/// Everything a client sends up to a write and a flush, with the places where a message ends.
fn whole_conversation() -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    bytes.extend(option(nbd::STRUCTURED_REPLY, &[]));
    bytes.extend(option(nbd::LIST, &[]));
    bytes.extend(option(nbd::GO, &go_data("disk")));
    bytes.extend(nbd::request(nbd::WRITE, 0, 1, 0, 512));
    bytes.extend(noise(3, 512));
    bytes.extend(nbd::request(nbd::FLUSH, 0, 2, 0, 0));
    bytes
}

#[test]
fn a_client_may_vanish_within_the_greeting() {
    beside_a_good_client(|server| {
        for count in [0, 1, 17, 18] {
            let mut stream = nbd::dial(server.socket());
            stream.read_exact(&mut vec![0; count]).unwrap();
        }
    });
}

#[test]
fn a_client_may_vanish_after_any_byte() {
    beside_a_good_client(|server| {
        let bytes = whole_conversation();
        for count in (0..bytes.len()).filter(|count| *count < 160 || count % 64 == 0) {
            let mut stream = nbd::dial(server.socket());
            stream.write_all(&bytes[..count]).unwrap();
        }
    });
}

#[test]
fn a_flood_of_bad_clients_is_no_flood_of_warnings() {
    beside_a_good_client(|server| {
        for _ in 0..1000 {
            let mut stream = nbd::dial(server.socket());
            stream.read_exact(&mut [0; 18]).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            assert!(hangs_up(&mut stream));
        }
        let log = server.log();
        let warnings = log.matches("connection ended").count();
        assert!((1..500).contains(&warnings), "{warnings} warnings");
    });
}

#[test]
fn handshake_flags_that_nobody_offered_end_the_connection() {
    beside_a_good_client(|server| {
        for flags in [1_u32 << 2, 0xffff_0003, u32::MAX] {
            let mut stream = nbd::dial(server.socket());
            stream.read_exact(&mut [0; 18]).unwrap();
            stream.write_all(&flags.to_be_bytes()).unwrap();
            assert!(hangs_up(&mut stream), "{flags:#x}");
        }
    });
}

#[test]
fn a_wrong_option_magic_ends_the_connection() {
    beside_a_good_client(|server| {
        let mut stream = hello(server.socket());
        stream.write_all(b"IHAVEOPS\0\0\0\x03\0\0\0\0").unwrap();
        assert!(hangs_up(&mut stream));
    });
}

#[test]
fn an_option_of_4_gib_ends_the_connection_and_takes_no_memory() {
    beside_a_good_client(|server| {
        for code in [nbd::EXPORT_NAME, nbd::LIST, nbd::GO, 0x1234_5678] {
            let mut stream = hello(server.socket());
            let mut bytes = option(code, &[]);
            bytes[12..].copy_from_slice(&u32::MAX.to_be_bytes());
            stream.write_all(&bytes).unwrap();
            assert!(hangs_up(&mut stream), "option {code:#x}");
        }
        assert!(server.peak_kib() < 1 << 20, "peak memory: {} KiB", server.peak_kib());
    });
}

#[test]
fn options_that_make_no_sense_are_refused_and_the_next_is_heard() {
    let wrong_name_length = [&1000_u32.to_be_bytes()[..], b"disk", &[0, 0]].concat();
    let wrong_count = [&4_u32.to_be_bytes()[..], b"disk", &[0, 9]].concat();
    let with_a_tail = [&go_data("disk")[..], b"tail"].concat();
    beside_a_good_client(|server| {
        let mut stream = hello(server.socket());
        let cases = [
            (nbd::LIST, b"payload".to_vec(), nbd::ERR_INVALID),
            (nbd::STRUCTURED_REPLY, b"payload".to_vec(), nbd::ERR_INVALID),
            (nbd::GO, Vec::new(), nbd::ERR_INVALID),
            (nbd::GO, u32::MAX.to_be_bytes().to_vec(), nbd::ERR_INVALID),
            (nbd::GO, wrong_name_length, nbd::ERR_INVALID),
            (nbd::GO, wrong_count, nbd::ERR_INVALID),
            (nbd::GO, with_a_tail, nbd::ERR_INVALID),
            (nbd::GO, go_data("nonesuch"), nbd::ERR_UNKNOWN),
            (0x1234_5678, b"payload".to_vec(), nbd::ERR_UNSUP),
        ];
        for (code, data, expected) in cases {
            stream.write_all(&option(code, &data)).unwrap();
            let (kind, _) = nbd::option_reply(&mut stream, code);
            assert_eq!(kind, expected, "option {code:#x} with {data:x?}");
        }
        stream.write_all(&option(nbd::GO, &go_data("disk"))).unwrap();
        assert_eq!(nbd::go_replies(&mut stream).unwrap().0, SIZE);
    });
}

#[test]
fn abort_is_acknowledged_and_the_connection_closed() {
    beside_a_good_client(|server| {
        let mut stream = hello(server.socket());
        stream.write_all(&option(nbd::ABORT, &[])).unwrap();
        assert_eq!(nbd::option_reply(&mut stream, nbd::ABORT).0, nbd::ACK);
        assert!(hangs_up(&mut stream));
    });
}

/// libnbd leaves like this.
#[test]
fn who_aborts_and_leaves_is_no_reason_to_warn() {
    beside_a_good_client(|server| {
        for _ in 0..100 {
            let mut stream = hello(server.socket());
            stream.write_all(&option(nbd::ABORT, &[])).unwrap();
        }
        // When this client is greeted, the server has seen the others.
        drop(hello(server.socket()));
        assert!(!server.log().contains("connection ended"), "{}", server.log());
    });
}

#[test]
fn export_name_of_nothing_ends_the_connection() {
    beside_a_good_client(|server| {
        let mut stream = hello(server.socket());
        stream.write_all(&option(nbd::EXPORT_NAME, b"nonesuch")).unwrap();
        assert!(hangs_up(&mut stream));
    });
}

/// Reads the replies to [`whole_conversation`] and checks its effect.
fn expect_the_answers(stream: &mut UnixStream, server: &Server) {
    stream.read_exact(&mut [0; 18]).unwrap();
    assert_eq!(nbd::option_reply(stream, nbd::STRUCTURED_REPLY).0, nbd::ACK);
    assert_eq!(nbd::option_reply(stream, nbd::LIST).0, nbd::SERVER);
    assert_eq!(nbd::option_reply(stream, nbd::LIST).0, nbd::ACK);
    assert_eq!(nbd::go_replies(stream).unwrap().0, SIZE);
    // The write and the flush may be answered in either order.
    let mut answers = [reply(stream).unwrap(), reply(stream).unwrap()];
    answers.sort_unstable();
    assert_eq!(answers, [(OK, 1), (OK, 2)]);
    assert_eq!(Client::new(server.socket()).read(0, 512).unwrap(), noise(3, 512));
}

#[test]
fn a_whole_conversation_may_come_in_one_piece() {
    beside_a_good_client(|server| {
        let mut stream = nbd::dial(server.socket());
        stream.write_all(&whole_conversation()).unwrap();
        expect_the_answers(&mut stream, server);
    });
}

#[test]
fn a_whole_conversation_may_come_byte_by_byte() {
    beside_a_good_client(|server| {
        let mut stream = nbd::dial(server.socket());
        for byte in whole_conversation() {
            stream.write_all(&[byte]).unwrap();
            // This lets the server take each byte alone, as far as a client can bring that about.
            thread::sleep(Duration::from_micros(200));
        }
        expect_the_answers(&mut stream, server);
    });
}

#[test]
fn unknown_commands_and_flags_are_refused_and_the_client_stays() {
    beside_a_good_client(|server| {
        let mut client = Client::new(server.socket());
        for (command, flags) in [(8, 0), (99, 0), (u16::MAX, u16::MAX), (nbd::READ, 1 << 15)] {
            assert_eq!(client.ask(command, flags, 0, 512), EINVAL, "{command} {flags:#x}");
        }
        assert_eq!(client.write(1 << 14, 0, &[0; 512]), EINVAL);
        assert_eq!(client.read(0, 512).map(|data| data.len()), Ok(512));
    });
}

#[test]
fn a_refused_write_takes_its_payload_with_it() {
    beside_a_good_client(|server| {
        let mut client = Client::new(server.socket());
        for offset in [SIZE, SIZE - 256, 1 << 40, u64::MAX - 100] {
            assert_eq!(client.write(0, offset, &noise(4, 512)), ENOSPC, "{offset:#x}");
            assert_eq!(client.read(offset, 512), Err(EINVAL), "{offset:#x}");
            assert_eq!(client.read(0, 512).map(|data| data.len()), Ok(512));
        }
    });
}

#[test]
fn a_write_of_65_mib_is_refused_and_the_client_stays_in_step() {
    beside_a_good_client(|server| {
        let mut client = Client::new(server.socket());
        let before = client.read(0, 4096).unwrap();
        assert_ne!(client.write(0, 0, &vec![0xab; 65 << 20]), OK);
        assert_eq!(client.read(0, 4096).unwrap(), before, "nothing of it was written");
        assert_eq!(client.write(0, 0, &noise(5, 4096)), OK);
    });
}

#[test]
fn a_write_of_4_gib_is_announced_to_no_avail() {
    beside_a_good_client(|server| {
        for _ in 0..4 {
            let mut client = Client::new(server.socket());
            client.send(nbd::WRITE, 0, 0, u32::MAX);
            client.stream.write_all(&vec![0xab; 4 << 20]).unwrap();
        }
        assert!(server.peak_kib() < 1 << 20, "peak memory: {} KiB", server.peak_kib());
    });
}

#[test]
fn a_wrong_request_magic_ends_the_connection() {
    beside_a_good_client(|server| {
        let mut client = Client::new(server.socket());
        let mut bytes = nbd::request(nbd::READ, 0, 1, 0, 512);
        bytes[0] ^= 1;
        client.stream.write_all(&bytes).unwrap();
        assert!(hangs_up(&mut client.stream));
    });
}

#[test]
fn a_client_may_vanish_within_a_payload() {
    beside_a_good_client(|server| {
        let mut client = Client::new(server.socket());
        assert_eq!(client.write(0, 0, &noise(6, 65536)), OK);
        for sent in [0, 1, 4096, 65535] {
            let mut leaving = Client::new(server.socket());
            leaving.send(nbd::WRITE, 0, 0, 65536);
            leaving.stream.write_all(&vec![0xee; sent]).unwrap();
            drop(leaving);
            // Neither a write that never came whole nor a part of it may be there.
            assert_eq!(client.read(0, 65536).unwrap(), noise(6, 65536), "{sent} bytes sent");
        }
    });
}

#[test]
fn what_was_sent_before_disc_is_carried_out() {
    beside_a_good_client(|server| {
        let mut client = Client::new(server.socket());
        for block in 0..64 {
            client.send(nbd::WRITE, 0, block * 65536, 65536);
            client.stream.write_all(&noise(block, 65536)).unwrap();
        }
        client.send(nbd::DISC, 0, 0, 0);
        // The server closes when it is done; until then replies may come or not.
        let _ = client.stream.read_to_end(&mut Vec::new());
        let mut other = Client::new(server.socket());
        for block in 0..64 {
            assert_eq!(other.read(block * 65536, 65536).unwrap(), noise(block, 65536), "{block}");
        }
    });
}

/// Its replies cannot be sent, which must not stop what it asked for before it said good-bye: the
/// rest of a long request that workers do in pieces, and requests that were not looked at yet.
#[test]
fn what_was_sent_before_disc_is_carried_out_for_a_client_that_is_gone() {
    const LENGTH: u32 = 20 << 20;
    let ask = |server: &Server, crypt_on: &str| {
        for round in 0..4 {
            let mut client = Client::new(server.socket());
            for block in (0..LENGTH).step_by(1 << 20) {
                assert_eq!(client.write(0, block.into(), &noise(round, 1 << 20)), OK);
            }
            let far = u64::from(LENGTH) + round * 65536;
            client.send(nbd::READ, 0, 0, 1 << 20);
            client.send(nbd::WRITE, 0, far, 4096);
            client.stream.write_all(&noise(round, 4096)).unwrap();
            client.send(nbd::WRITE_ZEROES, 0, 0, LENGTH);
            client.send(nbd::DISC, 0, 0, 0);
            drop(client);
            let mut other = Client::new(server.socket());
            let begin = Instant::now();
            loop {
                let zeroed = (0..LENGTH).step_by(1 << 20).all(|block| {
                    other.read(block.into(), 1 << 20).unwrap().iter().all(|byte| *byte == 0)
                });
                if zeroed && other.read(far, 4096).unwrap() == noise(round, 4096) {
                    break;
                }
                let what = format!("--crypt-on {crypt_on}, round {round}: zeroed: {zeroed}");
                assert!(begin.elapsed() < DEADLINE, "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        }
    };
    for crypt_on in ["auto", "connection", "workqueue"] {
        beside_a_good_client_of(&["--crypt-on", crypt_on], |server| ask(server, crypt_on));
    }
}

/// Asks for data without ever reading any, until the server takes no more requests.
fn ask_and_never_read(server: &Server) -> Client {
    let mut client = Client::new(server.socket());
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let requests = nbd::request(nbd::READ, 0, 1, 0, 1 << 20).repeat(1 << 16);
    let begin = Instant::now();
    let mut sent = 0;
    while let Ok(count) = client.stream.write(&requests[sent % requests.len()..]) {
        sent += count;
        assert!(sent < 64 << 20, "the server takes in requests without end");
        assert!(begin.elapsed() < DEADLINE);
    }
    client
}

#[test]
fn a_client_that_never_reads_holds_up_nobody() {
    for crypt_on in ["auto", "connection", "workqueue"] {
        beside_a_good_client_of(&["--crypt-on", crypt_on], |server| {
            let lazy: Vec<_> = (0..4).map(|_| ask_and_never_read(server)).collect();
            let mut client = Client::new(server.socket());
            for round in 0..200 {
                assert_eq!(client.write(0, round * 4096, &noise(round, 4096)), OK);
                assert_eq!(client.read(round * 4096, 4096).unwrap(), noise(round, 4096));
            }
            let peak = server.peak_kib();
            assert!(peak < 2 << 20, "--crypt-on {crypt_on}, peak memory: {peak} KiB");
            drop(lazy);
        });
    }
}

/// The replies to its reads are stuck, a reply to a bad request comes on top, and only then come
/// writes.
#[test]
fn a_client_may_send_everything_before_it_reads_anything() {
    for crypt_on in ["auto", "connection", "workqueue"] {
        beside_a_good_client_of(&["--crypt-on", crypt_on], |server| {
            let mut client = Client::new(server.socket());
            let stream = &mut client.stream;
            for cookie in 0..8 {
                stream.write_all(&nbd::request(nbd::READ, 0, cookie, 0, 1 << 20)).unwrap();
            }
            thread::sleep(Duration::from_millis(200));
            stream.write_all(&nbd::request(99, 0, 8, 0, 0)).unwrap();
            thread::sleep(Duration::from_millis(100));
            for cookie in 9..12 {
                stream.write_all(&nbd::request(nbd::WRITE, 0, cookie, MIB, 1 << 20)).unwrap();
                stream.write_all(&noise(cookie, 1 << 20)).unwrap();
            }
            let mut answers = [false; 12];
            while answers.contains(&false) {
                let (error, cookie) = reply(stream).unwrap();
                assert_eq!(error, if cookie == 8 { EINVAL } else { OK }, "{cookie}");
                if cookie < 8 {
                    stream.read_exact(&mut vec![0; 1 << 20]).unwrap();
                }
                answers[cookie as usize] = true;
            }
        });
    }
}

#[test]
fn a_client_that_never_reads_does_not_hold_up_the_end() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "128M"]);
    let _lazy = ask_and_never_read(&server);
    server.stop();
}

#[test]
fn a_client_that_stops_half_way_does_not_hold_up_the_end() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "128M"]);
    let _silent = nbd::dial(server.socket());
    let _idle = Client::new(server.socket());
    let mut half = Client::new(server.socket());
    half.send(nbd::WRITE, 0, 0, 1 << 20);
    half.stream.write_all(&[0; 1000]).unwrap();
    server.stop();
}

#[test]
fn five_hundred_idle_clients_leave_one_to_work() {
    beside_a_good_client(|server| {
        let idle: Vec<_> = (0..500).map(|_| Client::new(server.socket())).collect();
        let mut client = Client::new(server.socket());
        for round in 0..200 {
            assert_eq!(client.write(0, round * 4096, &noise(round, 4096)), OK);
            assert_eq!(client.read(round * 4096, 4096).unwrap(), noise(round, 4096));
        }
        for mut client in idle {
            assert_eq!(client.flush(), OK);
        }
    });
}
