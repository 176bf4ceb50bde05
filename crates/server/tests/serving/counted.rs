//! What clients ask for is counted before they are answered.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use homing::control::AttributeTree;
use homing_nbd::wire::command;
use homing_server::{CryptOn, ServerAttributes, ServerOptions};

use crate::client::{Pipelined, encode};
use crate::{device, serve, socket};

fn stat(attributes: &ServerAttributes, export: &str) -> HashMap<String, u64> {
    let text = attributes.get(&format!("export/{export}/stat")).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    lines.map(|(name, figure)| (name.to_owned(), figure.parse().unwrap())).collect()
}

#[test]
fn requests_are_counted_whoever_carries_them_out() {
    for crypt_on in [CryptOn::Auto, CryptOn::Connection, CryptOn::Workqueue] {
        let options = ServerOptions { crypt_on, ..ServerOptions::default() };
        let (disk, other) = (device(), device());
        disk.fails_from.store(8 << 20, Ordering::Relaxed);
        let (_folder, endpoint) = socket();
        serve(&endpoint, &[("disk", &disk), ("other", &other)], &options, |served| {
            let mut client = Pipelined::connect(&served.endpoint);
            let long = 2 << 20;
            let requests = [
                (command::WRITE, 0, 4096, vec![1; 4096]),
                (command::WRITE, 9 << 20, 4096, vec![1; 4096]), // fails
                (command::READ, 0, 512, vec![]),
                (command::FLUSH, 0, 0, vec![]),
                (command::WRITE, 4096, long, vec![2; long as usize]),
                (command::READ, 4096, long, vec![]),
                (command::WRITE_ZEROES, 4096, 8192, vec![]),
                (command::TRIM, 0, 4096, vec![]),
                (command::CACHE, 0, 4096, vec![]),
                (99, 0, 0, vec![]), // no such command
            ];
            let replies = client.exchange(&requests);
            assert_eq!(replies.iter().filter(|(errno, _)| *errno == 0).count(), 8);
            let stat = |export| stat(&served.attributes, export);
            let of = |operation: &str| {
                let stat = stat("disk");
                ["requests", "bytes", "errors"].map(|figure| stat[&format!("{operation}_{figure}")])
            };
            assert_eq!(of("read"), [2, 512 + u64::from(long), 0], "{crypt_on:?}");
            assert_eq!(of("write"), [3, 4096 + u64::from(long), 1], "{crypt_on:?}");
            assert_eq!(of("write_zeroes"), [1, 8192, 0], "{crypt_on:?}");
            assert_eq!(of("trim"), [1, 4096, 0], "{crypt_on:?}");
            assert_eq!(of("flush"), [1, 0, 0], "{crypt_on:?}");
            assert_eq!(of("other"), [1, 0, 0], "{crypt_on:?}");
            assert_eq!((stat("disk")["clients"], stat("disk")["in_flight"]), (1, 0));
            assert!(stat("other").values().all(|figure| *figure == 0));

            let latency = served.attributes.get("export/disk/latency_ns").unwrap();
            let count = |operation: &str| -> u64 {
                let lines = latency.lines().map(|line| line.split(' ').collect::<Vec<_>>());
                let of = lines.filter(|line| line[0] == operation);
                of.map(|line| line[2].parse::<u64>().unwrap()).sum()
            };
            assert_eq!(["read", "write", "flush", "trim"].map(count), [2, 3, 1, 1]);
        });
    }
}

#[test]
fn who_is_connected_and_what_is_under_way_can_be_seen() {
    let (_folder, endpoint) = socket();
    let disk = device();
    serve(&endpoint, &[("disk", &disk)], &ServerOptions::default(), |served| {
        let clients = || served.attributes.get("server/clients").unwrap();
        assert_eq!(clients(), "");
        let mut client = Pipelined::connect(&served.endpoint);
        client.exchange(&[(command::WRITE, 0, 4096, vec![1; 4096])]);
        // The data of the write does not come to its end.
        let bytes =
            encode(&[(command::READ, 0, 512, vec![]), (command::WRITE, 0, 8192, vec![1; 8192])]);
        let held_up = disk.gate.lock().unwrap();
        client.0.write_all(&bytes[..bytes.len() - 1]).unwrap();
        let wait_for = |what: &str| {
            let began = Instant::now();
            while !clients().contains(what) {
                assert!(began.elapsed() < Duration::from_secs(20), "no {what:?}: {}", clients());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for("requests=1 bytes=4096 in_flight=1");
        let told = clients();
        assert!(told.starts_with(&format!("1 from=pid:{} ", std::process::id())), "{told}");
        assert!(told.contains(" export=\"disk\" tls=no seconds="), "{told}");
        assert_eq!(stat(&served.attributes, "disk")["in_flight"], 1);
        std::thread::sleep(Duration::from_millis(50));
        drop(held_up);
        wait_for("requests=2 bytes=4608 in_flight=0");
        client.0.write_all(&bytes[bytes.len() - 1..]).unwrap();
        wait_for("requests=3 bytes=12800 in_flight=0");
        let stat_now = stat(&served.attributes, "disk");
        assert!(stat_now["read_ns"] >= 50_000_000, "{stat_now:?}");
        drop(client);
        let began = Instant::now();
        while !clients().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "{}", clients());
        }
        assert_eq!(stat(&served.attributes, "disk")["clients"], 0);
        assert_eq!(stat(&served.attributes, "disk")["write_requests"], 2);
    });
}

#[test]
fn what_is_counted_is_a_tree_that_can_only_be_read() {
    let (_folder, endpoint) = socket();
    let (one, two) = (device(), device());
    serve(&endpoint, &[("a/b c", &one), ("a", &two)], &ServerOptions::default(), |served| {
        let tree = &served.attributes;
        let paths: Vec<_> = tree.list().into_iter().map(|attribute| attribute.path).collect();
        let expected = [
            "export/a/b c/latency_ns",
            "export/a/b c/stat",
            "export/a/latency_ns",
            "export/a/stat",
            "server/clients",
        ];
        assert_eq!(paths, expected);
        for path in &paths {
            tree.get(path).unwrap();
            assert!(tree.set(path, "0").unwrap_err().to_string().contains("read"), "{path}");
        }
        assert!(tree.get("export/b/stat").is_err());
    });
}

#[test]
fn a_client_that_takes_no_replies_makes_no_request_slow() {
    let (_folder, endpoint) = socket();
    serve(&endpoint, &[("disk", &device())], &ServerOptions::default(), |served| {
        let mut client = Pipelined::connect(&served.endpoint);
        // More than fits into the socket.
        let requests: Vec<_> = (0..256).map(|_| (command::READ, 0, 32 << 10, vec![])).collect();
        let began = Instant::now();
        client.0.write_all(&encode(&requests)).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        client.replies(&requests);
        let took = began.elapsed().as_nanos() as u64;
        let stat = stat(&served.attributes, "disk");
        assert_eq!(stat["read_requests"], 256);
        // Most of them would have waited for all that time.
        assert!(stat["read_ns"] / 256 < took / 4, "{stat:?}");
    });
}

#[test]
fn what_is_given_up_for_a_client_that_has_left_is_no_error() {
    let (_folder, endpoint) = socket();
    serve(&endpoint, &[("disk", &device())], &ServerOptions::default(), |served| {
        let zeroes = |offset| (command::WRITE_ZEROES, offset, 16 << 20, vec![]);
        for _ in 0..20 {
            let mut client = Pipelined::connect(&served.endpoint);
            client.0.write_all(&encode(&vec![zeroes(0); 8])).unwrap();
        }
        let began = Instant::now();
        while !served.attributes.get("server/clients").unwrap().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        let stat = stat(&served.attributes, "disk");
        assert!(stat["write_zeroes_requests"] < 20 * 8, "nothing was given up: {stat:?}");
        assert_eq!(stat["write_zeroes_errors"], 0);
    });
}
