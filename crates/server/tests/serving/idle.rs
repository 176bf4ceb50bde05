//! What a connection costs: little, while it is idle.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use homing_nbd::wire::command;
use homing_server::{CONNECTION_BYTES_MAX, ServerOptions};

use crate::client::{Pipelined, encode};
use crate::{device, with_server_and_handle};

const LONG: u32 = 1 << 20;

fn write_and_read(client: &mut Pipelined) {
    for (command, data) in [(command::WRITE, vec![1; LONG as usize]), (command::READ, Vec::new())] {
        let replies = client.exchange(&[(command, 1 << 20, LONG, data)]);
        assert_eq!(replies[0].0, 0);
    }
}

#[test]
fn a_connection_that_is_idle_has_no_buffers_and_gets_them_again() {
    with_server_and_handle(&device(), &ServerOptions::default(), |endpoint, handle| {
        let mut clients: Vec<_> = (0..20).map(|_| Pipelined::connect(endpoint)).collect();
        for _ in 0..2 {
            clients.iter_mut().for_each(write_and_read);
            let began = Instant::now();
            while handle.buffer_bytes() > 0 {
                let bytes = handle.buffer_bytes();
                assert!(began.elapsed() < Duration::from_secs(60), "{bytes} bytes are kept");
                thread::sleep(Duration::from_millis(20));
            }
        }
    });
}

/// The clients take no replies, so that the server is left with all that it takes in.
#[test]
fn buffers_take_no_more_than_is_said() {
    const COUNT: usize = 40;
    let options = ServerOptions {
        request_memory_max: 4 << 20,
        drain_timeout: Duration::from_millis(300),
        ..ServerOptions::default()
    };
    with_server_and_handle(&device(), &options, |endpoint, handle| {
        let most = COUNT * CONNECTION_BYTES_MAX + options.request_memory_max;
        let mut clients: Vec<_> = (0..COUNT).map(|_| Pipelined::connect(endpoint)).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            let length = [LONG, LONG, LONG, 256 << 10, 4096][index % 5];
            let mut requests = vec![(command::READ, 0, length, Vec::new()); 1000];
            requests.extend(vec![(command::WRITE, 0, length, vec![0; length as usize]); 8]);
            client.0.set_nonblocking(true).unwrap();
            // This sends as much as the server takes in.
            let _ = client.0.write_all(&encode(&requests));
        }
        for _ in 0..50 {
            let bytes = handle.buffer_bytes();
            assert!(bytes <= most, "{bytes} bytes are more than {most}");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(handle.buffer_bytes() > 0);
    });
}

/// Prints how much memory a thousand connections take that have written and read and are now idle.
#[test]
#[ignore = "a measurement"]
fn memory_of_many_connections() {
    const COUNT: usize = 1000;
    with_server_and_handle(&device(), &ServerOptions::default(), |endpoint, _| {
        drop(Pipelined::connect(endpoint));
        let before = resident();
        let tell = |what| println!("{what}: {} KiB each", (resident() - before) / COUNT / 1024);
        let mut clients: Vec<_> = (0..COUNT).map(|_| Pipelined::connect(endpoint)).collect();
        tell("connected");
        for _ in 0..2 {
            clients.iter_mut().for_each(write_and_read);
        }
        tell("at work");
        thread::sleep(Duration::from_secs(4));
        tell("idle");
    });
}

/// The resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
