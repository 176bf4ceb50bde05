//! `homing serve --control`: a server's attributes change while clients put load on it, and its
//! workqueues are watched meanwhile.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::nbd::{self, Client, OK};
use support::{DEADLINE, Scratch, noise, text};

/// Every request goes to a worker, so that its workqueue has something to do.
const SERVE: [&str; 8] = [
    "disk.img",
    "--size",
    "8M",
    "--ephemeral",
    "--crypt-on",
    "workqueue",
    "--control",
    "my control",
];

/// Runs a client that writes and reads until it is told to stop, and returns the number of its
/// rounds.
fn load(socket: &Path, number: u64, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    const LENGTH: usize = 256 << 10;
    let (mut client, stop) = (Client::new(socket), Arc::clone(stop));
    thread::spawn(move || {
        let offset = number * LENGTH as u64;
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            let data = noise(number << 32 | round, LENGTH);
            assert_eq!(client.write(0, offset, &data), OK);
            assert!(client.read(offset, LENGTH as u32) == Ok(data), "client {number}");
            assert_eq!(client.flush(), OK);
        }
        round
    })
}

/// Runs a command on the server's control socket.
fn run(scratch: &Scratch, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.current_dir(scratch.path("")).args(args).env("HOMING_SOCKET", "my control");
    command.output().unwrap()
}

/// Runs a command that must succeed, and returns what it prints.
fn printed(scratch: &Scratch, args: &[&str]) -> String {
    let output = run(scratch, args);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    text(&output.stdout)
}

/// The rows of the monitor, by workqueue.
fn monitor(scratch: &Scratch) -> BTreeMap<String, Value> {
    let lines = printed(scratch, &["wq", "monitor", "-i", "0", "--json"]);
    let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| (row["name"].as_str().unwrap().to_owned(), row)).collect()
}

/// Waits until both workqueues of the server have begun and ended more items.
fn goes_on(scratch: &Scratch) {
    let (began, before) = (Instant::now(), monitor(scratch));
    let more = |now: &BTreeMap<String, Value>, name: &str, key: &str| {
        now[name][key].as_u64().unwrap() > before[name][key].as_u64().unwrap()
    };
    loop {
        let now = monitor(scratch);
        let moved = ["started", "completed"]
            .into_iter()
            .all(|key| more(&now, "crypt", key) && more(&now, "flush", key));
        if moved && more(&now, "crypt", "cpu_time") {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "the load does not go on: {before:?}, {now:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn attributes_change_under_load_and_the_workqueues_are_watched() {
    let scratch = Scratch::new();
    let server = scratch.serve(&SERVE);
    let control = scratch.path("my control");
    assert_eq!(server.ready()["control"].as_str(), control.to_str());
    assert_eq!(fs::metadata(&control).unwrap().mode() & 0o777, 0o600);

    let stop = Arc::new(AtomicBool::new(false));
    let clients = [0, 1, 2].map(|number| load(server.socket(), number, &stop));
    goes_on(&scratch);

    let listed = printed(&scratch, &["ls", "workqueue/crypt"]);
    for line in ["rw workqueue/crypt/nice", "ro workqueue/crypt/counters"] {
        assert!(listed.lines().any(|known| known == line), "no {line} in {listed}");
    }
    let cpus = printed(&scratch, &["get", "module/cpumask"]);
    let get = |path: &str| printed(&scratch, &["get", path]).trim_end().to_owned();
    for (attribute, value) in [
        ("affinity_scope", "numa"),
        ("affinity_strict", "1"),
        ("max_active", "1"),
        ("max_active", "7"),
        ("min_active", "2"),
        ("cpumask", cpus.trim_end()),
        ("localize", "1"),
        ("pull_cost", "200"),
        ("nice", "-5"),
    ] {
        let path = format!("workqueue/crypt/{attribute}");
        assert_eq!(printed(&scratch, &["set", &path, value]), "");
        assert_eq!(get(&path), value, "{attribute}");
        goes_on(&scratch);
    }
    printed(&scratch, &["set", "module/default_affinity_scope", "system"]);
    assert_eq!(get("workqueue/events/affinity_scope"), "default (system)");

    let refused = run(&scratch, &["set", "workqueue/crypt/nice", "99"]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    let stderr = text(&refused.stderr);
    for mention in ["workqueue/crypt/nice", "99", "a number from -20 to 19"] {
        assert!(stderr.contains(mention), "no {mention} in {stderr}");
    }
    assert_eq!(get("workqueue/crypt/nice"), "-5");

    let dump: Value = serde_json::from_str(&printed(&scratch, &["wq", "dump", "--json"])).unwrap();
    assert_eq!(dump["default_affinity_scope"], "system");
    let crypt = dump["workqueues"].as_array().unwrap().iter().find(|w| w["name"] == "crypt");
    let crypt = crypt.unwrap();
    assert_eq!((&crypt["type"], &crypt["affinity_scope"]), (&"unbound,S".into(), &"numa".into()));
    assert_eq!((&crypt["min_active"], &crypt["max_active"]), (&"2".into(), &"7".into()));
    let pool = dump["pools"].as_array().unwrap().iter().find(|pool| pool["id"] == crypt["pool"]);
    assert_eq!(pool.unwrap()["attributes"]["nice"], "-5");
    assert!(printed(&scratch, &["wq", "dump"]).contains("node_nr/max_active"));

    goes_on(&scratch);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.join().unwrap() > 0);
    }
    server.stop();
    assert!(!control.exists() && !scratch.path("socket").exists());
}

#[test]
fn flushes_go_through_the_engine_whose_attributes_are_there_too() {
    let scratch = Scratch::new();
    let server = scratch.serve(&SERVE);
    let counter = |name: &str| {
        let counters = printed(&scratch, &["get", "durable/counters"]);
        let line = counters.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap().parse::<u64>().unwrap()
    };
    let mut client = Client::new(server.socket());
    (0..3).for_each(|_| assert_eq!(client.flush(), OK));
    assert_eq!((counter("asked"), counter("files"), counter("failed")), (3, 3, 0));

    assert_eq!(printed(&scratch, &["get", "durable/strategy"]), "auto\n");
    printed(&scratch, &["set", "durable/strategy", "files"]);
    assert_eq!(printed(&scratch, &["get", "durable/strategy"]), "files\n");
    let refused = run(&scratch, &["set", "durable/strategy", "none"]);
    let stderr = text(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("auto, files, filesystem"), "{stderr}");
    assert!(printed(&scratch, &["ls", "durable"]).contains("ro durable/failed"));

    let stop = Arc::new(AtomicBool::new(false));
    let clients = [0, 1, 2, 3].map(|number| load(server.socket(), number, &stop));
    goes_on(&scratch);
    stop.store(true, Ordering::Relaxed);
    let rounds: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(counter("asked"), 3 + rounds, "one for each flush");
    assert_eq!(counter("files") + counter("shared"), counter("asked"));
    server.stop();
}

/// This includes forced writes, zeroes and trims, with a cache and without.
#[test]
fn whatever_is_forced_goes_through_the_engine() {
    for cache in [&[][..], &["--cache", "16M"]] {
        let scratch = Scratch::new();
        let server = scratch.serve(&[&SERVE[..], cache, &["--allow-discards"]].concat());
        let mut client = Client::new(server.socket());
        assert_eq!(client.ask(nbd::WRITE_ZEROES, nbd::FUA, 0, 1 << 20), OK);
        assert_eq!(client.ask(nbd::TRIM, nbd::FUA, 1 << 20, 1 << 20), OK);
        let asked = || {
            let counters = printed(&scratch, &["get", "durable/counters"]);
            let line = counters.lines().find_map(|line| line.strip_prefix("asked "));
            line.unwrap().parse::<u64>().unwrap()
        };
        assert_eq!(asked(), 2);
        // Without a cache, a lone forced write needs no sync of the engine, but is counted there.
        for number in 0..5 {
            assert_eq!(client.write(nbd::FUA, 4096 * number, &noise(number, 4096)), OK);
        }
        assert_eq!(asked(), 2 + 5);
        assert_eq!(client.read(4096, 4096).unwrap(), noise(1, 4096));
        assert_eq!(client.read(512 << 10, 4096).unwrap(), [0; 4096]);
        server.stop();
    }
}

#[test]
fn a_second_server_on_the_same_control_socket_is_refused_and_leaves_the_first_alone() {
    let scratch = Scratch::new();
    let first = scratch.serve(&SERVE);
    let mut second = scratch.command(&[&["second.img"], &SERVE[1..]].concat());
    let output = second.args(["--socket", "second"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    for mention in ["my control", "another program listens there", "choose another path"] {
        assert!(stderr.contains(mention), "no {mention:?} in {stderr}");
    }
    assert!(stdout.is_empty(), "{stdout}");
    assert!(!scratch.path("second").exists() && !scratch.path("second.img").exists());
    assert_eq!(printed(&scratch, &["get", "workqueue/crypt/nice"]), "0\n");
    assert_eq!(Client::new(first.socket()).flush(), OK);
    first.stop();
    assert!(!scratch.path("my control").exists());
}

#[test]
fn what_it_says_to_try_with_the_control_socket_works_from_anywhere() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&[&SERVE[..], &["--socket", "socket"]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let lines: Vec<_> = lines.take_while(|line| !line.contains("Ctrl-C")).collect();
    let tried = std::panic::catch_unwind(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_homing"));
        let commands = lines.iter().filter_map(|line| line.trim().strip_prefix("homing "));
        let outputs = commands.map(|line| {
            // Without this they would go on.
            let once = match line.split(' ').next() {
                Some("wq") => " -i 0",
                Some("top") => " --json -n 1 -i 0.1",
                _ => "",
            };
            let line = format!("\"$0\" {line}{once}");
            let output = Command::new("sh").arg("-c").arg(line).arg(program).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            text(&output.stdout)
        });
        outputs.collect::<String>()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let (tried, lines) = (tried.unwrap(), lines.join("\n"));
    assert!(tried.contains("age_p99") && tried.contains("crypt"), "{tried}");
    assert!(lines.contains("homing wq monitor --socket '/"), "{lines}");
    assert!(lines.contains("homing set workqueue/crypt/"), "{lines}");
}

#[test]
fn a_cache_is_seen_and_set_while_it_is_used() {
    let scratch = Scratch::new();
    let cache = ["--cache", "12M", "--cache-min", "disk=1M", "--cache-max", "6M"];
    let server = scratch.serve(&[&SERVE, &cache[..]].concat());
    let mut client = Client::new(server.socket());
    let figure = |path: &str, name: &str| {
        let lines = printed(&scratch, &["get", path]);
        let line = lines.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        line.parse::<u64>().unwrap()
    };
    let stat = |name| figure("cache/group/disk/stat", name);
    assert_eq!(printed(&scratch, &["get", "cache/group/disk/min"]), "1048576\n");

    let data = noise(1, 1 << 20);
    assert_eq!(client.write(0, 0, &data), OK);
    assert_eq!((stat("usage"), stat("misses"), stat("write_back_errors")), (1 << 20, 256, 0));
    assert!(client.read(0, 1 << 20) == Ok(data.clone()));
    assert_eq!(stat("hits"), 256);
    assert_eq!(client.flush(), OK);
    assert_eq!(stat("dirty"), 0);
    let ages = printed(&scratch, &["get", "cache/debug/lru_gen"]);
    let pages = ages.lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let counts =
        pages.map(|words| words[2..].iter().map(|n| n.parse::<u64>().unwrap()).sum::<u64>());
    assert_eq!(counts.sum::<u64>(), 256, "{ages}");

    // All of the volume passes through the cache: its group has no more than it may have, and then
    // may have less.
    for megabyte in 1..8 {
        assert!(client.read(megabyte << 20, 1 << 20).is_ok());
    }
    assert!(stat("usage") <= 6 << 20);
    for (attribute, value) in
        [("group/disk/max", "2097152"), ("dirty_ratio", "40"), ("lru_gen/enabled", "n")]
    {
        let path = format!("cache/{attribute}");
        assert_eq!(printed(&scratch, &["set", &path, value]), "");
    }
    assert_eq!(printed(&scratch, &["get", "cache/lru_gen/enabled"]), "0x0000\n");
    assert!(client.read(0, 1 << 20) == Ok(data));

    // What is not in the policy's own hands is in its owner's.
    for (attribute, value) in [
        ("lru_gen/min_ttl_ms", "2000"),
        ("group/disk/swappiness", "30"),
        ("readahead/enabled", "0"),
        ("readahead/max_kb", "512"),
    ] {
        let path = format!("cache/{attribute}");
        assert_eq!(printed(&scratch, &["set", &path, value]), "");
        assert_eq!(printed(&scratch, &["get", &path]).trim(), value);
    }
    let lru_gen = "cache/debug/lru_gen";
    let epoch = || {
        let ages = printed(&scratch, &["get", lru_gen]);
        let words = ages.lines().last().unwrap().split_whitespace().map(str::to_owned);
        words.map(|word| word.parse::<u64>().unwrap()).next().unwrap()
    };
    for _ in 0..8 {
        assert_eq!(printed(&scratch, &["set", lru_gen, &format!("+ 0 0 {}", epoch())]), "");
    }
    let before = stat("usage");
    let command = format!("- 0 0 {} 100 16", epoch() - 4);
    assert_eq!(printed(&scratch, &["set", lru_gen, &command]), "");
    assert_eq!(before - stat("usage"), 16 * 4096);
    let full = printed(&scratch, &["get", "cache/debug/lru_gen_full"]);
    assert!(full.contains("tier"), "{full}");
    let refused = run(&scratch, &["set", lru_gen, "- 9 0 0"]);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("no group has the number 9"), "{said}");
    server.stop();
}
