//! A disk without space left, and files that may not grow. The first takes a small file system, and
//! so root.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, prlimit};
use support::nbd::{Client, ENOSPC, FUA, OK, TRIM};
use support::{DEADLINE, Scratch, noise, text, tool};

const MIB: u64 = 1 << 20;

/// A file system in memory, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    /// Mounts one. Where that is not permitted, says so and returns `None`.
    fn new(at: &Path, size: &str) -> Option<Self> {
        let mount = tool("mount")?;
        fs::create_dir(at).unwrap();
        let size = format!("size={size}");
        let args = ["-t", "tmpfs", "-o", &size, "small", at.to_str().unwrap()];
        let output = mount.output(args);
        if output.status.success() {
            return Some(Self(at.to_owned()));
        }
        println!("skipped: {}", text(&output.stderr).trim());
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn an_image_for_which_there_is_no_space_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let Some(small) = Small::new(&scratch.path("small"), "64k") else { return };
    let args = ["small/disk.img", "--size", "8M", "--socket", "socket"];
    let output = scratch.command(&args).output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{stderr}");
    assert!(stderr.contains("small/disk.img"), "{stderr}");
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0, "{stderr}");
}

#[test]
fn a_write_without_space_fails_alone() {
    let scratch = Scratch::new();
    let Some(small) = Small::new(&scratch.path("small"), "24m") else { return };
    let server = scratch.serve(&["small/disk.img", "--size", "64M"]);
    let mut client = Client::new(server.socket());
    let write =
        |client: &mut Client, at: u64, seed| client.write(0, at * MIB, &noise(seed, MIB as usize));
    let written = (0..64).find(|at| write(&mut client, *at, *at) != OK).expect("a full disk");
    assert!(written > 2, "hardly anything fits");
    assert_eq!(write(&mut client, written + 1, 99), ENOSPC);
    assert_eq!(client.write(FUA, (written + 1) * MIB, &noise(99, MIB as usize)), ENOSPC);

    // Existing data stays and can still be overwritten, and the server goes on.
    assert_eq!(write(&mut client, 0, 100), OK);
    let expect = |client: &mut Client| {
        assert!(client.read(0, MIB as u32).unwrap() == noise(100, MIB as usize));
        for at in 1..written {
            let found = client.read(at * MIB, MIB as u32).unwrap();
            assert!(found == noise(at, MIB as usize), "{at}");
        }
    };
    expect(&mut client);
    assert_eq!(client.flush(), OK);
    expect(&mut Client::new(server.socket()));
    server.stop();

    let server = scratch.serve(&["small/disk.img"]);
    expect(&mut Client::new(server.socket()));
    server.stop();
    drop(small);
}

#[test]
fn a_write_beyond_the_limit_of_a_file_fails_alone() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "8M"]);
    // This leaves 4 MiB behind the header.
    let limit = Rlimit { current: Some(20 * MIB), maximum: Some(20 * MIB) };
    let pid = Some(server.pid());
    prlimit(pid, Resource::Fsize, limit).unwrap();
    let mut client = Client::new(server.socket());
    let data = noise(1, MIB as usize);
    for flags in [0, FUA] {
        assert_eq!(client.write(flags, 6 * MIB, &data), ENOSPC);
        assert_eq!(client.write(flags, 0, &data), OK);
    }
    assert_eq!(client.flush(), OK);
    assert!(client.read(0, MIB as u32).unwrap() == data);
    server.stop();
}

/// Data that was accepted is not forgotten, whoever asks for a flush and however often. It does not
/// keep other data from the disk.
#[test]
fn what_a_cache_cannot_write_back_stays_dirty_and_fails_each_flush() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "8M", "--cache", "32M"]);
    let pid = Some(server.pid());
    // This leaves 4 MiB behind the header.
    let limit = Rlimit { current: Some(20 * MIB), maximum: None };
    prlimit(pid, Resource::Fsize, limit).unwrap();
    let mut client = Client::new(server.socket());
    let data = [noise(1, MIB as usize), noise(2, MIB as usize), noise(3, MIB as usize)];
    for (at, data) in [(5, &data[0]), (7, &data[1]), (0, &data[2])] {
        assert_eq!(client.write(0, at * MIB, data), OK);
    }
    for _ in 0..2 {
        assert_eq!(client.flush(), ENOSPC);
        assert_eq!(Client::new(server.socket()).flush(), ENOSPC);
    }
    // The log may be read later than the replies.
    let began = Instant::now();
    while !server.log().contains("at 5242880 failed: File too large") {
        assert!(began.elapsed() < DEADLINE, "{}", server.log());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(client.read(5 * MIB, MIB as u32).unwrap() == data[0]);
    // A client that no longer needs the data can say so.
    assert_eq!(client.ask(TRIM, 0, 7 * MIB, MIB as u32), OK);
    assert_eq!(client.flush(), ENOSPC);
    let limit = Rlimit { current: Some(22 * MIB), maximum: None };
    prlimit(pid, Resource::Fsize, limit).unwrap();
    assert_eq!(client.flush(), OK);
    server.kill();

    let server = scratch.serve(&["disk.img"]);
    let mut client = Client::new(server.socket());
    for (at, data) in [(5, &data[0]), (0, &data[2])] {
        assert!(client.read(at * MIB, MIB as u32).unwrap() == *data, "{at}");
    }
    server.stop();
}

/// Clients that connect again, such as virtual machines, rely on what was accepted.
#[test]
fn a_server_that_is_to_stop_waits_for_space_unless_told_once_more() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "8M"]).stop();
    for ends_at_once in [false, true] {
        let server = scratch.serve(&["disk.img", "--cache", "32M"]);
        let limit = |bytes| {
            let limit = Rlimit { current: Some(bytes), maximum: None };
            prlimit(Some(server.pid()), Resource::Fsize, limit).unwrap();
        };
        limit(20 * MIB); // This leaves 4 MiB behind the header.
        let data = noise(u64::from(ends_at_once), MIB as usize);
        let mut client = Client::new(server.socket());
        assert_eq!(client.write(0, 0, &data), OK);
        assert_eq!(client.write(0, 5 * MIB, &data), OK);
        server.signal(Signal::TERM);
        let began = Instant::now();
        while server.log().matches("no space for what has been written").count() < 2 {
            assert!(began.elapsed() < DEADLINE, "{}", server.log());
            thread::sleep(Duration::from_millis(10));
        }
        if ends_at_once {
            server.signal(Signal::TERM);
        } else {
            limit(22 * MIB);
        }
        assert_eq!(server.end(), Some(if ends_at_once { 128 + 15 } else { 0 }));
        let server = scratch.serve(&["disk.img", "--cache", "32M"]);
        assert_eq!(server.log().contains("did not end in order"), ends_at_once);
        let mut client = Client::new(server.socket());
        assert!(client.read(0, MIB as u32).unwrap() == data, "there was space for this");
        assert_eq!(client.read(5 * MIB, MIB as u32).unwrap() == data, !ends_at_once);
        server.stop();
    }
}

#[test]
fn an_image_beyond_the_limit_of_a_file_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let command = scratch.command(&["disk.img", "--size", "64M", "--socket", "socket"]);
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1000; exec \"$@\"", "sh"]).arg(command.get_program());
    let output = limited.args(args).current_dir(scratch.path("")).output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{stderr}");
    assert!(stderr.contains("disk.img") && !scratch.path("disk.img").exists(), "{stderr}");
}
