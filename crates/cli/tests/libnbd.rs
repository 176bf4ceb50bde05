//! libnbd with its own checks switched off sends what a careful client never would.

mod support;

use std::path::Path;

use support::{Scratch, python_with_nbd};

fn check(image_args: &[&str], mode: &str) {
    let Some(python) = python_with_nbd() else { return };
    let scratch = Scratch::new();
    let server = scratch.serve(&[&["disk.img", "--size=128M"], image_args].concat());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libnbd_checks.py");
    python.run([script.to_str().unwrap(), &server.uri("disk"), mode]);
    server.stop();
}

#[test]
fn requests_good_and_bad_are_answered_as_the_spec_says() {
    check(&[], "requests");
}

#[test]
fn parts_of_sectors_are_written_and_read() {
    check(&["--sector-size", "512"], "unaligned");
    check(&["--sector-size", "4096"], "unaligned");
}

#[test]
fn options_good_and_bad_are_answered_as_the_spec_says() {
    check(&[], "options");
}

#[test]
fn clients_without_structured_replies_or_fixed_newstyle_are_served() {
    check(&[], "old");
}

#[test]
fn over_tcp() {
    check(&["--listen", "127.0.0.1:0"], "requests");
}
