//! fio writes at random through several connections and verifies every block it wrote.

mod support;

use support::{Scratch, tool};

const JOBS: u64 = 4;
const VOLUME: u64 = 128 << 20;

/// Runs fio's verification on a fresh volume; each job has a slice of its own.
fn verify(image_args: &[&str], job: &[&str]) {
    let Some(fio) = tool("fio") else { return };
    let scratch = Scratch::new();
    let server = scratch.serve(&[&["disk.img", "--size=128M"], image_args].concat());
    let slice = VOLUME / JOBS / 32768 * 32768;
    let mut args = [
        "--name=verify",
        "--ioengine=nbd",
        "--rw=randrw",
        "--verify=sha512",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--group_reporting",
    ]
    .map(str::to_owned)
    .to_vec();
    args.extend([
        format!("--uri={}", server.uri("disk")),
        format!("--numjobs={JOBS}"),
        format!("--size={slice}"),
        format!("--offset_increment={slice}"),
    ]);
    args.extend(job.iter().map(|arg| (*arg).to_owned()));
    fio.run(args);
    server.stop();
}

const ALIGNED: [&str; 2] = ["--bs=32k", "--iodepth=64"];
/// Sizes and offsets are multiples of 512, so with larger sectors most begin within one.
const UNALIGNED: [&str; 3] = ["--bsrange=512-131072", "--bs_unaligned", "--iodepth=16"];

#[test]
fn whole_sectors_of_4096() {
    verify(&["--sector-size", "4096"], &ALIGNED);
}

#[test]
fn whole_sectors_of_512() {
    verify(&["--sector-size", "512"], &ALIGNED);
}

#[test]
fn parts_of_sectors_of_4096() {
    verify(&["--sector-size", "4096"], &UNALIGNED);
}

#[test]
fn parts_of_sectors_of_512() {
    verify(&["--sector-size", "512"], &UNALIGNED);
}

#[test]
fn over_tcp() {
    verify(&["--listen", "127.0.0.1:0"], &ALIGNED);
}
