//! A server in a control group with little memory: with the cache and the clients that it says
//! are fine it is never killed, and it loses nothing.

mod support;

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use support::nbd::{self, Client, OK};
use support::{Scratch, Server, noise, skip, text};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 128 * MIB;
/// Busy clients, for as many of which there is room in any case.
const CLIENTS: u64 = 32;
const DEPTH: usize = 16;
const REQUEST: usize = 128 << 10;
const TMPFS: i64 = 0x0102_1994;

/// A control group with a limit of memory, until it is dropped.
struct Group {
    folder: PathBuf,
    /// The file with the number of processes that were killed for want of memory.
    kills: &'static str,
}

impl Group {
    /// Of the version that this machine has, if it limits memory and we may.
    fn new() -> io::Result<Self> {
        let second = || Self::below("/sys/fs/cgroup", "memory.max", "memory.events");
        let first = || {
            let (limit, kills) = ("memory.limit_in_bytes", "memory.oom_control");
            Self::below("/sys/fs/cgroup/memory", limit, kills)
        };
        second().or_else(|_| first())
    }

    fn below(root: &str, limit: &str, kills: &'static str) -> io::Result<Self> {
        let folder = Path::new(root).join(format!("homing-test-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder, kills };
        group.set(limit, &LIMIT.to_string())?;
        // There may be no swap, or no count of it.
        let _ = group.set("memory.swap.max", "0");
        let _ = group.set("memory.memsw.limit_in_bytes", &LIMIT.to_string());
        Ok(group)
    }

    /// A folder of some hierarchy has this file only if that hierarchy is for memory: none is made.
    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.folder.join(file))?.write_all(value.as_bytes())
    }

    /// How many of its processes were killed for want of memory.
    fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.kills)).unwrap();
        let killed = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        killed.expect("there is such a count").parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// `homing serve` of this command, started within the group.
fn within(group: &Group, command: &Command) -> Command {
    let mut inside = Command::new("sh");
    inside.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(group.folder.join("cgroup.procs"));
    inside.arg(command.get_program()).args(command.get_args());
    inside.current_dir(command.get_current_dir().unwrap());
    inside
}

#[test]
fn the_cache_that_it_says_is_fine_leaves_room_for_its_clients() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(error) => return skip(&format!("no control group that limits memory: {error}")),
    };
    let scratch = Scratch::new();
    if rustix::fs::statfs(scratch.path("key")).unwrap().f_type == TMPFS {
        return skip(
            "the folder for temporary files is in memory, which would count as the server's",
        );
    }
    let ours = |args: &[&str]| within(&group, &scratch.command(args));
    let refused = ours(&["disk.img", "--size", "256M", "--cache", "1G"]).output().unwrap();
    let told = text(&refused.stderr);
    let most = told.split("use at most ").nth(1).expect(&told).trim().replace(' ', "");
    let args = ["disk.img", "--size", "256M", "--cache", &most, "--socket", "socket"];
    let server = Server::start(&mut ours(&args), Some(scratch.path("socket")));
    assert!(!server.log().contains("it may be killed"), "{}", server.log());
    // Twice, so that pages are read, changed and written back.
    let each = 256 * MIB / CLIENTS;
    for round in 0..2 {
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let socket = server.socket();
                scope.spawn(move || use_it(socket, client * each..(client + 1) * each, round));
            }
        });
    }
    assert_eq!(group.killed(), 0, "{}", server.log());
    server.stop();
}

/// A client with many requests at a time: reads what it wrote the round before, and writes anew.
fn use_it(socket: &Path, part: Range<u64>, round: u64) {
    let mut client = Client::new(socket);
    let data = |offset: u64, round: u64| noise(offset + round, REQUEST);
    let offsets: Vec<u64> = part.step_by(REQUEST).collect();
    for some in offsets.chunks(DEPTH) {
        if round > 0 {
            let cookies: Vec<u64> = some
                .iter()
                .map(|&offset| client.send(nbd::READ, 0, offset, REQUEST as u32))
                .collect();
            for _ in some {
                let (error, cookie) = nbd::reply(&mut client.stream).unwrap();
                assert_eq!(error, OK);
                let at = cookies.iter().position(|sent| *sent == cookie).unwrap();
                let mut read = vec![0; REQUEST];
                client.stream.read_exact(&mut read).unwrap();
                assert!(read == data(some[at], round - 1), "at {}", some[at]);
            }
        }
        for &offset in some {
            client.send(nbd::WRITE, 0, offset, REQUEST as u32);
            client.stream.write_all(&data(offset, round)).unwrap();
        }
        for _ in some {
            assert_eq!(nbd::reply(&mut client.stream).unwrap().0, OK);
        }
    }
    assert_eq!(client.flush(), OK);
}
