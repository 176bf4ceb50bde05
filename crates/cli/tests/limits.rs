//! A server at the limits of its process: memory that the system does not give, and descriptors
//! that are used up. A client that needs more is refused or waits, and
//! the others go on.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, prlimit};
use support::nbd::{self, Client, ENOMEM, OK};
use support::{DEADLINE, Scratch, Server, noise};

const MIB: u64 = 1 << 20;
/// The longest request there may be.
const LONGEST: u32 = 32 << 20;

/// Sets the limit that can be raised again, and returns the previous one.
fn limit(server: &Server, resource: Resource, current: Option<u64>) -> Rlimit {
    let maximum = rustix::process::getrlimit(resource).maximum;
    prlimit(Some(server.pid()), resource, Rlimit { current, maximum }).unwrap()
}

/// The size of the address space that a process uses, in bytes.
fn address_space(server: &Server) -> u64 {
    let status =
        fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_request_for_which_there_is_no_memory_fails_alone() {
    let scratch = Scratch::new();
    // There is room for one of the longest requests, which could not be had again if an earlier
    // request had not given it back.
    let server = scratch.serve(&["disk.img", "--size", "64M", "--request-memory", "96M"]);
    let mut client = Client::new(server.socket());
    let mut other = Client::new(server.socket());
    let data = noise(1, MIB as usize);
    for client in [&mut client, &mut other] {
        assert_eq!(client.write(0, 0, &data), OK);
        assert!(client.read(0, MIB as u32).unwrap() == data);
    }
    let before = limit(&server, Resource::As, Some(address_space(&server) + 16 * MIB));
    for _ in 0..3 {
        assert_eq!(client.read(0, LONGEST).map(|data| data.len()), Err(ENOMEM));
        assert!(client.read(0, MIB as u32).unwrap() == data, "its other requests go on");
        // The write cannot be taken in, so there is no request to answer, and that connection ends.
        let mut writes = Client::new(server.socket());
        writes.send(nbd::WRITE, 0, 0, LONGEST);
        let _ = writes.stream.write_all(&[1]);
        assert!(nbd::hangs_up(&mut writes.stream));
        assert!(other.read(0, MIB as u32).unwrap() == data);
    }
    let told = || server.log().matches("no memory for a buffer of").count();
    let began = Instant::now();
    while told() < 6 {
        assert!(began.elapsed() < DEADLINE, "{}", server.log());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(!server.log().contains("panicked"), "{}", server.log());
    limit(&server, Resource::As, before.current);
    assert_eq!(client.read(0, LONGEST).map(|data| data.len()), Ok(LONGEST as usize));
    assert_eq!(other.write(0, 0, &noise(2, LONGEST as usize)), OK);
    server.stop();
}

/// Its thread could be created, as the stack of the client before is used again. But a thread that
/// then gets no memory for its signal stack ends the process.
#[test]
fn a_client_that_comes_when_memory_is_used_up_is_hung_up_on_alone() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "64M"]);
    let mut client = Client::new(server.socket());
    assert_eq!(client.write(0, 0, &[7; 4096]), OK);
    for room in 0..8 {
        drop(Client::new(server.socket()));
        // It takes a moment until its thread is gone.
        thread::sleep(Duration::from_millis(50));
        let before = limit(&server, Resource::As, Some(address_space(&server) + (room << 12)));
        assert!(nbd::hangs_up(&mut UnixStream::connect(server.socket()).unwrap()), "{room}");
        assert!(client.read(0, 4096).unwrap() == [7; 4096]);
        limit(&server, Resource::As, before.current);
    }
    assert!(server.log().contains("no thread for a connection"), "{}", server.log());
    server.stop();
}

/// The library says the same of headers that it has no descriptors for as of damaged ones.
#[test]
fn a_header_is_not_called_damaged_for_want_of_descriptors() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "1M"]).stop();
    let command = scratch.command(&["disk.img", "--socket", "socket"]);
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut told = false;
    for files in 5..20 {
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {files}; exec \"$@\"")]);
        limited.arg("sh").arg(command.get_program()).args(&args);
        let output = limited.current_dir(scratch.path("")).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{stderr}");
        assert!(!stderr.contains("not a LUKS container"), "{files}: {stderr}");
        told |= stderr.contains("cannot read the header of disk.img: Too many open files");
    }
    assert!(told, "or this shows nothing");
}

#[test]
fn clients_for_which_there_are_no_descriptors_wait_and_do_not_flood_the_log() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "1M"]);
    let mut first = Client::new(server.socket());
    let used =
        fs::read_dir(format!("/proc/{}/fd", server.pid().as_raw_nonzero())).unwrap().count() as u64;
    let before = limit(&server, Resource::Nofile, Some(used));
    let began = Instant::now();
    let waiting: Vec<_> = (0..3).map(|_| nbd::dial(server.socket())).collect();
    let warnings = || server.log().matches("cannot accept a connection").count();
    while warnings() < 10 {
        assert!(began.elapsed() < DEADLINE, "{}", server.log());
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(first.write(0, 0, b"on"), OK);
    // Meanwhile the server tries again and again.
    thread::sleep(Duration::from_secs(2));
    let at_most = 10 * (began.elapsed().as_secs() as usize / 5 + 1);
    assert!(warnings() <= at_most, "{}", server.log());
    limit(&server, Resource::Nofile, before.current);
    drop(waiting);
    assert_eq!(Client::new(server.socket()).flush(), OK);
    server.stop();
}
