//! The reference implementation's own test client. No distribution packages it;
//! `scripts/fetch-nbd-tester FOLDER` builds it, and `NBD_TESTER_CLIENT` names the program, with
//! its traces beside it.

mod support;

use std::env;
use std::path::PathBuf;

use support::nbd::{Client, OK, WRITE_ZEROES};
use support::{Scratch, Server, Tool, skip, succeed};

fn tester() -> Option<PathBuf> {
    let tester = env::var_os("NBD_TESTER_CLIENT").map(PathBuf::from);
    if tester.is_none() {
        skip("NBD_TESTER_CLIENT does not name a program (scripts/fetch-nbd-tester builds it)");
    }
    tester
}

/// A server whose volume reads as zeroes, as the traces expect.
fn zeroed(scratch: &Scratch, listen: &[&str]) -> Server {
    let server = scratch.serve(&[&["disk.img", "--size=64M"], listen].concat());
    if listen.is_empty() {
        let mut client = Client::new(server.socket());
        for part in 0..2 {
            assert_eq!(client.ask(WRITE_ZEROES, 0, part << 25, 1 << 25), OK);
        }
    }
    server
}

fn passes(mode: &[&str]) {
    let Some(tester) = tester() else { return };
    let scratch = Scratch::new();
    let server = zeroed(&scratch, &[]);
    let mut command = Tool::at(tester.clone()).command();
    command.env("NBD_TEST_SILENT", "1").args(["-N", "disk", "-u"]).arg(server.socket());
    command.current_dir(tester.parent().unwrap());
    succeed(command.args(mode));
    server.stop();
}

#[test]
fn reads() {
    passes(&[]);
}

#[test]
fn writes() {
    passes(&["-w"]);
}

#[test]
fn writes_and_flushes() {
    passes(&["-w", "-f"]);
}

#[test]
fn oversized_requests() {
    passes(&["-o"]);
}

#[test]
fn handshake() {
    passes(&["-h"]);
}

#[test]
fn integrity() {
    passes(&["-i", "-t", "integrity-test.tr"]);
}

#[test]
fn integrity_with_huge_requests() {
    passes(&["-i", "-t", "integrityhuge-test.tr"]);
}

#[test]
fn reads_over_tcp() {
    let Some(tester) = tester() else { return };
    let scratch = Scratch::new();
    let server = zeroed(&scratch, &["--listen", "127.0.0.1:0"]);
    let (host, port) = server.host_and_port().rsplit_once(':').unwrap();
    let mut command = Tool::at(tester).command();
    succeed(command.env("NBD_TEST_SILENT", "1").args(["-N", "disk", host, port]));
    server.stop();
}
