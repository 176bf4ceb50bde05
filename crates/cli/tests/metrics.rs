//! `homing serve --metrics`, and what `homing top` says of the same clients.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;
use support::nbd::{Client, EPERM, OK};
use support::{DEADLINE, Scratch, Server, text};

/// Sends an HTTP request; returns the head of the answer and the rest of it.
fn http(server: &Server, request: &str) -> (String, String) {
    let url = server.ready()["metrics"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    (head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn prometheus_and_top_are_told_what_clients_got() {
    let scratch = Scratch::new();
    let args = ["a b.img", "--size", "8M", "--metrics", "127.0.0.1:0", "--control", "control"];
    let server = scratch.serve(&[&args[..], &["--cache", "8M"]].concat());
    let mut client = Client::to_export(server.socket(), "a b");
    assert_eq!(client.write(0, 0, &[7; 8192]), OK);
    assert_eq!(client.read(4096, 4096), Ok(vec![7; 4096]));
    assert_eq!(client.flush(), OK);

    let (head, body) = http(&server, "GET /metrics");
    assert!(head.starts_with("http/1.1 200 ok") && head.contains("text/plain; version=0.0.4"));
    for line in [
        r#"homing_export_requests_total{export="a b",operation="write"} 1"#,
        r#"homing_export_bytes_total{export="a b",operation="write"} 8192"#,
        r#"homing_export_bytes_total{export="a b",operation="read"} 4096"#,
        r#"homing_export_requests_total{export="a b",operation="flush"} 1"#,
        r#"homing_export_errors_total{export="a b",operation="write"} 0"#,
        r#"homing_export_latency_seconds_bucket{export="a b",operation="read",le="+Inf"} 1"#,
        r#"homing_export_clients{export="a b"} 1"#,
        r#"homing_page_cache_size_bytes{cache="server"} 8388608"#,
        r#"homing_durable_failures{durable="server"} 0"#,
    ] {
        assert!(body.lines().any(|known| known == line), "no {line} in\n{body}");
    }
    assert!(body.contains("homing_workqueue_queued_total{workqueue=\"crypt\"}"), "{body}");
    let of_reads = "homing_export_latency_seconds_bucket{export=\"a b\",operation=\"read\"";
    let buckets = body.lines().filter(|line| line.starts_with(of_reads));
    let counts: Vec<u64> =
        buckets.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(
        counts.len() > 20 && counts.contains(&1) && counts.iter().all(|count| *count <= 1),
        "{body}"
    );

    let mut top = Command::new(env!("CARGO_BIN_EXE_homing"));
    top.args(["top", "--json", "-n", "1", "-i", "0.1", "--socket", "control"]);
    let output = top.current_dir(scratch.path("")).output().unwrap();
    let look: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let export = &look["exports"][0];
    assert_eq!((&export["name"], &export["clients"]), (&"a b".into(), &1.into()), "{look}");
    assert_eq!(export["read"]["requests_per_s"], 0.0, "{look}");
    assert_eq!((&export["errors"], &export["in_flight"]), (&0.into(), &0.into()), "{look}");
    server.stop();
}

#[test]
fn requests_that_the_protocol_refuses_are_no_errors_of_the_export() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "1M"]).stop();
    let server = scratch.serve(&["disk.img", "--read-only", "--metrics", "127.0.0.1:0"]);
    assert_eq!(Client::new(server.socket()).write(0, 0, &[7; 512]), EPERM);
    let (_, body) = http(&server, "GET /metrics");
    let line = r#"homing_export_errors_total{export="disk",operation="write"} 0"#;
    assert!(body.lines().any(|known| known == line), "{body}");
    server.stop();
}

#[test]
fn other_requests_are_told_where_the_metrics_are() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "1M", "--metrics", "127.0.0.1:0"]);
    // Whoever connects and says nothing holds nobody up.
    let silent: Vec<_> = (0..3)
        .map(|_| {
            let url = server.ready()["metrics"].as_str().unwrap();
            TcpStream::connect(url.split('/').nth(2).unwrap()).unwrap()
        })
        .collect();
    let (head, body) = http(&server, "GET /");
    assert!(head.starts_with("http/1.1 404") && body.contains("/metrics"), "{head}\n{body}");
    let (head, _) = http(&server, "POST /metrics");
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{head}");
    let (head, body) = http(&server, "HEAD /metrics");
    assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head}\n{body}");
    let (head, _) = http(&server, "GET \u{1} rubbish");
    assert!(head.starts_with("http/1.1 400"), "{head}");
    assert!(http(&server, "GET /metrics?name=x").1.contains("homing_server_clients 0"));
    drop(silent);
    server.stop();
}

#[test]
fn an_address_that_is_taken_is_named_before_an_image_is_made() {
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        scratch.command(&["disk.img", "--size", "1M", "--metrics", &address]).output().unwrap();
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains("cannot offer metrics on"), "{error}");
    assert!(error.contains(&address) && error.contains("in use"), "{error}");
    assert!(!scratch.path("disk.img").exists());
    drop(taken);
    let args = ["disk.img", "--size", "1M", "--listen", &address, "--metrics", &address];
    let output = scratch.command(&args).output().unwrap();
    let error = text(&output.stderr);
    assert!(error.contains(&format!("--metrics {address} cannot be both: use two")), "{error}");
    assert!(!scratch.path("disk.img").exists());
}

/// A scraper that goes on asking, and one that holds a connection, do not hold up the end.
#[test]
fn the_server_ends_while_it_is_asked() {
    let scratch = Scratch::new();
    let args = ["disk.img", "--size", "1M", "--metrics", "127.0.0.1:0", "--cache", "8M"];
    let server = scratch.serve(&args);
    let url = server.ready()["metrics"].as_str().unwrap();
    let address = url.split('/').nth(2).unwrap().to_owned();
    let silent = TcpStream::connect(&address).unwrap();
    let asks = std::thread::spawn(move || {
        while let Ok(mut stream) = TcpStream::connect(&address) {
            // Once the server is gone, the connection may be one to itself.
            stream.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    server.stop();
    asks.join().unwrap();
    drop(silent);
}
