//! What `homing serve` promises beyond the protocol: readiness, names, limits, its end.

mod support;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, PipeWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::nbd::{self, Client, EPERM, OK};
use support::{DEADLINE, LoopDevice, Scratch, Server, hears_of_hang_ups, noise, wait_for};

#[test]
fn when_the_uri_is_printed_the_socket_accepts() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["my disk.img", "--size", "1M"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let printed = lines.any(|line| line.contains("nbd+unix:///my%20disk?socket=/"));
    // The socket is beside the image where no other place is given, and for its owner alone.
    let socket = scratch.path("my disk.img.sock");
    let served = std::panic::catch_unwind(|| Client::to_export(&socket, "my disk").size);
    let mode = fs::metadata(&socket).map(|metadata| metadata.mode() & 0o777);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(printed && served.unwrap() == 1 << 20 && mode.unwrap() == 0o600);
}

#[test]
fn systemd_is_told_when_clients_can_come_and_when_it_ends() {
    let scratch = Scratch::new();
    let path = scratch.path("notify");
    tells_systemd(&scratch, &UnixDatagram::bind(&path).unwrap(), path.into_os_string());
}

/// Opening takes seconds for each volume, and systemd gives up on a service that takes long.
#[test]
fn systemd_is_told_to_wait_while_several_volumes_are_opened() {
    let scratch = Scratch::new();
    let path = scratch.path("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    let mut command = scratch.command(&["a.img", "b.img", "--size", "1M", "--socket", "socket"]);
    command.env("NOTIFY_SOCKET", path);
    let server = Server::start(&mut command, Some(scratch.path("socket")));
    systemd.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "READY=1\n") {
        let mut message = [0; 100];
        let length = systemd.recv(&mut message).unwrap();
        told.push(String::from_utf8(message[..length].to_vec()).unwrap());
    }
    let wait = "EXTEND_TIMEOUT_USEC=120000000\n";
    let all = [
        "STATUS=opening 1 of 2\n",
        wait,
        "STATUS=opening 2 of 2\n",
        wait,
        "STATUS=\n",
        "READY=1\n",
    ];
    assert_eq!(told, all);
    server.stop();
}

#[cfg(target_os = "linux")]
#[test]
fn systemd_is_told_in_the_abstract_namespace_too() {
    use std::os::linux::net::SocketAddrExt as _;
    let name = format!("homing-notify-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let systemd = UnixDatagram::bind_addr(&address).unwrap();
    tells_systemd(&Scratch::new(), &systemd, format!("@{name}").into());
}

fn tells_systemd(scratch: &Scratch, systemd: &UnixDatagram, address: OsString) {
    systemd.set_read_timeout(Some(DEADLINE)).unwrap();
    let told = || {
        let mut message = [0; 100];
        let length = systemd.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let mut command = scratch.command(&["disk.img", "--size", "1M", "--socket", "socket"]);
    command.env("NOTIFY_SOCKET", address);
    let server = Server::start(&mut command, Some(scratch.path("socket")));
    assert_eq!(told(), "READY=1\n");
    assert_eq!(Client::new(server.socket()).flush(), OK);
    server.stop();
    assert_eq!(told(), "STOPPING=1\n");
}

#[test]
fn an_orderly_end_removes_the_socket() {
    let scratch = Scratch::new();
    let signals = [Signal::TERM, Signal::INT, Signal::HUP];
    let signals =
        signals.into_iter().filter(|signal| *signal != Signal::HUP || hears_of_hang_ups());
    for signal in signals {
        let server = scratch.serve(&["disk.img", "--size", "1M"]);
        let _client = Client::new(server.socket());
        server.stop_by(signal);
        assert!(!scratch.path("socket").exists());
    }
}

#[test]
fn an_image_that_is_gone_at_the_end_is_told() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "1M"]);
    fs::remove_file(scratch.path("disk.img")).unwrap();
    assert_eq!(Client::new(server.socket()).flush(), OK);
    let log = server.stop_and_tell();
    assert!(log.contains("disk.img was removed"), "{log}");
    // Nothing is said if nothing is amiss, nor of a volume that is thrown away.
    for args in [&["disk.img", "--size", "1M"][..], &["away.img", "--size", "1M", "--ephemeral"]] {
        let log = scratch.serve(args).stop_and_tell();
        assert!(!log.contains("removed"), "{log}");
    }
}

#[test]
fn it_ends_also_where_its_socket_was_removed_and_leaves_a_successors_alone() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "1M"]).stop();
    let server = scratch.serve(&["disk.img"]);
    fs::remove_file(server.socket()).unwrap();
    server.stop();

    let first = scratch.serve(&["disk.img"]);
    fs::remove_file(first.socket()).unwrap();
    let second = scratch.serve(&["second.img", "--size", "1M"]);
    first.stop();
    assert_eq!(Client::new(second.socket()).flush(), OK);
    second.stop();
}

#[test]
fn a_signal_ends_it_also_while_a_key_is_derived() {
    let scratch = Scratch::new();
    let before = scratch.snapshot();
    let args = ["disk.img", "--size", "1M", "--iter-time", "120000", "--pbkdf-memory", "32"];
    let mut child = scratch.command(&args).stdout(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    support::signal(&child, Signal::TERM);
    let status = wait_for(&mut child);
    let _ = child.kill();
    assert!(status.is_some_and(|status| !status.success()), "{status:?}");
    assert_eq!(scratch.snapshot(), before);
}

#[test]
fn it_serves_and_ends_also_where_nobody_reads_its_log() {
    let (reader, log) = std::io::pipe().unwrap();
    serves_and_ends(log, || drop(reader));
}

#[test]
fn it_ends_also_where_its_log_is_a_full_pipe() {
    let (_reader, log) = std::io::pipe().unwrap();
    serves_and_ends(log.try_clone().unwrap(), || fill(log));
}

/// Fills a pipe, however large it is. The thread that writes ends with the test.
fn fill(mut pipe: PipeWriter) {
    thread::spawn(move || pipe.write_all(&vec![b'\n'; 1 << 20]));
    thread::sleep(Duration::from_millis(100));
}

#[test]
fn it_serves_and_ends_also_where_nobody_reads_what_it_prints() {
    let scratch = Scratch::new();
    let (_reader, stdout) = std::io::pipe().unwrap();
    fill(stdout.try_clone().unwrap());
    let mut command = scratch.command(&["disk.img", "--size", "1M", "--socket", "socket"]);
    let child = command.stdout(stdout).spawn().unwrap();
    let began = std::time::Instant::now();
    // The file is there a moment before somebody listens.
    let socket = scratch.path("socket");
    while UnixStream::connect(&socket).is_err() && began.elapsed() < DEADLINE {
        thread::sleep(Duration::from_millis(2));
    }
    flushes_and_ends(&scratch, child);
}

/// The kernel keeps signals without a handler from the first process of a PID namespace.
#[test]
fn a_signal_ends_it_also_as_the_first_process_of_a_container() {
    let scratch = Scratch::new();
    let mut trial = Command::new("unshare");
    if !trial.args(["-pf", "true"]).status().is_ok_and(|status| status.success()) {
        return println!("skipped: there can be no PID namespace (it needs root)");
    }
    let args = ["disk.img", "--size", "1M", "--iter-time", "120000", "--pbkdf-memory", "32"];
    let server = scratch.command(&args);
    let mut command = Command::new("unshare");
    command.args(["-pf", "--kill-child"]).arg(server.get_program()).args(server.get_args());
    command.current_dir(scratch.path("")).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    let of = child.id();
    let first = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    let first = Pid::from_raw(first.trim().parse().unwrap()).unwrap();
    kill_process(first, Signal::TERM).unwrap();
    let status = wait_for(&mut child);
    let _ = child.kill();
    assert_eq!(status.and_then(|status| status.code()), Some(128 + 15));
}

/// Checks that a server serves and ends after `spoil`, which spoils its log.
fn serves_and_ends(log: impl Into<Stdio>, spoil: impl FnOnce()) {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["disk.img", "--size", "1M", "--socket", "socket"]);
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    // The command holds the log, too.
    drop(command);
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    spoil();
    for _ in 0..3 {
        // This is worth a warning.
        nbd::hello(&scratch.path("socket")).write_all(b"no option begins like this").unwrap();
    }
    flushes_and_ends(&scratch, child);
}

/// Checks that this server answers a client and ends well.
fn flushes_and_ends(scratch: &Scratch, mut child: Child) {
    let written = std::panic::catch_unwind(|| Client::new(&scratch.path("socket")).flush());
    support::signal(&child, Signal::TERM);
    let status = wait_for(&mut child);
    let _ = child.kill();
    assert_eq!(written.unwrap(), OK);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[test]
fn what_only_a_cache_holds_is_kept_where_the_terminal_is_closed() {
    if !hears_of_hang_ups() {
        return;
    }
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "4M", "--cache", "8M"]);
    assert_eq!(Client::new(server.socket()).write(0, 0, b"kept"), OK);
    server.stop_by(Signal::HUP);
    let server = scratch.serve(&["disk.img"]);
    assert_eq!(Client::new(server.socket()).read(0, 4).unwrap(), b"kept");
    server.stop();
}

/// `timeout` signals a program and then its whole group.
#[test]
fn signals_that_come_together_are_one_wish() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "64M", "--cache", "128M"]);
    let mut client = Client::new(server.socket());
    for at in 0..8 {
        assert_eq!(client.write(0, at << 20, &noise(at, 1 << 20)), OK);
    }
    for signal in [Signal::TERM, Signal::INT] {
        server.signal(signal);
        thread::sleep(Duration::from_millis(2));
    }
    server.stop();
    let server = scratch.serve(&["disk.img"]);
    let mut client = Client::new(server.socket());
    for at in 0..8 {
        assert!(client.read(at << 20, 1 << 20).unwrap() == noise(at, 1 << 20));
    }
    server.stop();
}

#[test]
fn who_ignores_that_the_terminal_is_closed_goes_on() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    let line = "trap '' HUP; exec \"$0\" serve \"$@\"";
    command.current_dir(scratch.path("")).args(["-c", line, env!("CARGO_BIN_EXE_homing")]);
    command.args(["disk.img", "--size", "1M", "--key-file", "key", "--socket", "socket"]);
    command.args(support::CHEAP_KEYS);
    let server = Server::start(&mut command, Some(scratch.path("socket")));
    server.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(Client::new(server.socket()).flush(), OK);
    server.stop();
}

#[test]
fn a_fresh_volume_reads_as_noise_and_keeps_what_is_written() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "4M"]);
    let mut client = Client::new(server.socket());
    let fresh = client.read(0, 4 << 20).unwrap();
    assert!(fresh.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
    assert_eq!(client.write(0, 1000, &noise(1, 3_000_000)), OK);
    server.stop_by(Signal::INT);
    let server = scratch.serve(&["disk.img"]);
    let mut client = Client::new(server.socket());
    assert_eq!(client.read(1000, 3_000_000).unwrap(), noise(1, 3_000_000));
    assert_eq!(client.read(0, 1000).unwrap(), fresh[..1000]);
    server.stop();
}

#[test]
fn a_read_only_export_says_so_and_refuses_writes() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "1M"]).stop();
    let before = scratch.snapshot();
    let server = scratch.serve(&["disk.img", "--read-only"]);
    let mut client = Client::new(server.socket());
    assert_eq!(client.flags & 2, 2);
    assert_eq!(client.write(0, 0, b"no"), EPERM);
    assert_eq!(client.ask(nbd::TRIM, 0, 0, 4096), EPERM);
    assert_eq!(client.ask(nbd::WRITE_ZEROES, 0, 0, 4096), EPERM);
    assert_eq!(client.flush(), OK);
    assert_eq!(client.read(0, 4096).map(|data| data.len()), Ok(4096));
    server.stop();
    assert_eq!(scratch.snapshot(), before);
}

#[test]
fn trim_gives_space_back_only_where_that_is_allowed() {
    let scratch = Scratch::new();
    for allowed in [false, true] {
        let image = format!("{allowed}.img");
        let space = || fs::metadata(scratch.path(&image)).unwrap().blocks() * 512;
        let mut args = vec![image.as_str(), "--size", "16M"];
        args.extend(allowed.then_some("--allow-discards"));
        let server = scratch.serve(&args);
        let mut client = Client::new(server.socket());
        let full = noise(1, 16 << 20);
        assert_eq!(client.write(nbd::FUA, 0, &full), OK);
        let before = space();
        // The range begins and ends within sectors, which keep what is not trimmed.
        assert_eq!(client.ask(nbd::TRIM, nbd::FUA, 100, 8 << 20), OK);
        let kept = (8 << 20) + 100;
        assert_eq!(client.read(0, 100).unwrap(), full[..100]);
        assert!(client.read(kept as u64, (8 << 20) - 100).unwrap() == full[kept..]);
        if allowed {
            assert!(space() + (7 << 20) < before, "{before} before, {} after", space());
        } else {
            assert!(client.read(0, 16 << 20).unwrap() == full);
            assert_eq!(space(), before);
        }
        server.stop();
    }
}

#[test]
fn trim_of_less_than_a_block_of_the_disk_is_a_hint_not_taken() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "4M", "--sector-size", "512", "--allow-discards"]).stop();
    let image = scratch.path("disk.img");
    let Some(device) = LoopDevice::new(&image, &["--sector-size", "4096"]) else { return };
    let server = scratch.serve(&[&device.path]);
    let mut client = Client::new(server.socket());
    for (offset, length) in [(512, 512), (512, 8192), (0, 512)] {
        assert_eq!(client.ask(nbd::TRIM, nbd::FUA, offset, length), OK);
    }
    server.stop();
}

#[test]
fn beyond_the_limit_of_connections_a_client_waits_or_is_turned_away() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "1M", "--connections-max", "2"]);
    let (mut first, mut second) = (Client::new(server.socket()), Client::new(server.socket()));
    assert_eq!([first.flush(), second.flush()], [OK; 2]);
    let mut third = nbd::dial(server.socket());
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(!matches!(third.read(&mut [0; 18]), Ok(1..)), "a third was let in");
    assert_eq!(second.write(0, 0, b"on"), OK);
    drop((first, third));
    // The server may need a moment to see that the first has left.
    let begin = std::time::Instant::now();
    loop {
        let mut next = nbd::dial(server.socket());
        next.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        if matches!(next.read(&mut [0; 18]), Ok(1..)) {
            break;
        }
        assert!(begin.elapsed() < support::DEADLINE, "no place becomes free");
    }
    server.stop();
}

/// Otherwise whoever can connect could keep out those who have a certificate.
#[test]
fn who_says_nothing_makes_room_for_others() {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "1M", "--connections-max", "3"]);
    let mut first = Client::new(server.socket());
    assert_eq!(first.flush(), OK);
    let mut silent: Vec<_> = (0..10).map(|_| nbd::dial(server.socket())).collect();
    let mut second = Client::new(server.socket());
    assert_eq!([first.write(0, 0, b"on"), second.flush()], [OK; 2]);
    for stream in &mut silent[..8] {
        // It may have had its greeting before.
        let mut told = Vec::new();
        let ended = stream.read_to_end(&mut told);
        let is_reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(is_reset, |_| true), "{ended:?}");
        assert!(told.len() <= 18);
    }
    server.stop();
}

#[test]
fn every_scope_serves() {
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "1M"]).stop();
    for scope in ["cpu", "smt", "cache_shard", "cache", "numa", "system"] {
        let server = scratch.serve(&["disk.img", "--affinity-scope", scope]);
        let mut client = Client::new(server.socket());
        assert_eq!(client.write(0, 512, scope.as_bytes()), OK);
        assert_eq!(client.read(512, scope.len() as u32).unwrap(), scope.as_bytes());
        server.stop();
    }
}

#[test]
fn a_throw_away_volume_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let before = scratch.snapshot();
    let server = scratch.serve(&["disk.img", "--size", "8M", "--ephemeral"]);
    let mut client = Client::new(server.socket());
    assert_eq!(client.write(nbd::FUA, 0, &noise(1, 8 << 20)), OK);
    assert!(client.read(0, 8 << 20).unwrap() == noise(1, 8 << 20));
    server.stop();
    assert_eq!(scratch.snapshot(), before);
}

#[test]
fn a_throw_away_volume_that_cannot_be_served_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let before = scratch.snapshot();
    let cache = ["--cache", "64M", "--cache-min", "disk=48M", "--cache-max", "disk=16M"];
    let args = ["disk.img", "--size", "8M", "--ephemeral", "--socket", "socket"];
    let output = scratch.command(&[&args[..], &cache].concat()).output().unwrap();
    assert!(!output.status.success(), "{}", support::text(&output.stderr));
    assert_eq!(scratch.snapshot(), before);
}

#[test]
fn a_key_from_standard_input_opens_all_images() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    let line = "exec \"$0\" serve \"$@\" < key";
    command.current_dir(scratch.path("")).args(["-c", line, env!("CARGO_BIN_EXE_homing")]);
    command.args(["a.img", "b.img", "--size", "8M", "--key-file", "-", "--socket", "socket"]);
    command.args(support::CHEAP_KEYS);
    Server::start(&mut command, Some(scratch.path("socket"))).stop();
    // This uses the folder's key file, by its name.
    scratch.serve(&["a.img", "b.img"]).stop();
}

#[test]
fn a_try_prints_a_table_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tmp")).unwrap();
    let before = scratch.snapshot();
    let mut command = scratch.command(&["--try", "--json", "--size", "16M"]);
    let printed = support::succeed(command.env("TMPDIR", scratch.path("tmp")));
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert!(printed.is_object() || printed.is_array());
    assert_eq!(scratch.snapshot(), before);
    assert_eq!(fs::read_dir(scratch.path("tmp")).unwrap().count(), 0);
}

#[test]
fn a_try_tells_what_it_has_measured() {
    let scratch = Scratch::new();
    let args = ["my.img", "--try", "--size", "9M", "--sector-size", "512", "--listen", "[::1]:0"];
    let printed = support::succeed(&mut scratch.command(&args));
    for mention in ["512-byte sectors", "in ., served over TCP"] {
        assert!(printed.contains(mention), "no {mention:?} in {printed}");
    }
}

/// This holds whenever the signal comes.
#[test]
fn a_try_that_a_signal_ends_leaves_nothing_behind() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tmp")).unwrap();
    let before = scratch.snapshot();
    for milliseconds in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let args = ["my.img", "--try", "--size", "16M", "--socket", "socket"];
        let mut command = scratch.command(&args);
        command.env("TMPDIR", scratch.path("tmp")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
        support::signal(&child, Signal::TERM);
        let status = wait_for(&mut child);
        let _ = child.kill();
        assert!(status.is_some_and(|status| !status.success()), "{milliseconds}: {status:?}");
        assert_eq!(scratch.snapshot(), before, "{milliseconds}");
        assert_eq!(fs::read_dir(scratch.path("tmp")).unwrap().count(), 0, "{milliseconds}");
    }
}

#[test]
fn a_try_that_is_stopped_says_so() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["my.img", "--try", "--size", "64M", "--socket", "socket"]);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    while !scratch.path("socket").exists() {
        assert!(began.elapsed() < support::DEADLINE, "it does not begin");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));
    support::signal(&child, Signal::INT);
    let status = wait_for(&mut child);
    let _ = child.kill();
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{told}");
    assert!(told.contains("stopped before the load had ended"), "{told}");
}
