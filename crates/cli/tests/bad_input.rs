//! Command lines and containers that cannot be served: the program says what is wrong with which,
//! and damages nothing.

mod support;

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use support::nbd::{Client, OK};
use support::{LoopDevice, Scratch, Server, noise, succeed, text, tool, wait_for};

/// Runs a command that must fail, say each of `mentions`, and leave every file as it was.
fn refused_command(scratch: &Scratch, command: &mut Command, mentions: &[&str]) {
    let before = scratch.snapshot();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    if wait_for(&mut child).is_none() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let what = format!("{command:?}: {}\n{stdout}\n{stderr}", output.status);
    // 101 is a panic.
    assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{what}");
    assert!(stdout.is_empty(), "{what}");
    for mention in mentions {
        assert!(stderr.contains(mention), "no {mention:?} in\n{what}");
    }
    assert_eq!(scratch.snapshot(), before, "{what}");
}

fn refused(scratch: &Scratch, args: &[&str], mentions: &[&str]) {
    let mut command = scratch.command(args);
    if !args.iter().any(|arg| ["--socket", "--listen"].contains(arg)) {
        command.args(["--socket", "socket"]);
    }
    refused_command(scratch, &mut command, mentions);
}

/// A folder with a container of 8 MiB that holds `noise(1)`.
fn with_a_container() -> Scratch {
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "8M"]);
    assert_eq!(Client::new(server.socket()).write(0, 0, &noise(1, 8 << 20)), OK);
    server.stop();
    scratch
}

/// The container of [`with_a_container`] opens and has its contents; opening changes nothing.
fn still_serves(scratch: &Scratch) {
    let before = scratch.snapshot();
    let server = scratch.serve(&["disk.img"]);
    assert!(Client::new(server.socket()).read(0, 8 << 20).unwrap() == noise(1, 8 << 20));
    server.stop();
    assert_eq!(scratch.snapshot(), before);
}

#[test]
fn a_key_that_does_not_open_is_refused() {
    let scratch = with_a_container();
    scratch.file("wrong", b"another passphrase");
    refused(&scratch, &["disk.img", "--key-file", "wrong"], &["disk.img"]);
    let key = fs::read(scratch.path("key")).unwrap();
    fs::write(scratch.path("edited"), [&key[..], b"\n"].concat()).unwrap();
    refused(&scratch, &["disk.img", "--key-file", "edited"], &["disk.img", "ends with a newline"]);
    refused(&scratch, &["disk.img", "--key-file", "nonesuch"], &["nonesuch"]);
    still_serves(&scratch);
}

#[test]
fn a_negative_number_is_refused_with_what_is_accepted() {
    let scratch = Scratch::new();
    refused(&scratch, &["disk.img", "--size", "-5"], &["-5", "--size", "as in 10G"]);
}

/// These places are refused before anybody is asked for a passphrase.
#[test]
fn a_place_where_no_file_can_be_is_refused_at_once() {
    let scratch = Scratch::new();
    for (image, mentions) in [
        ("nonesuch/disk.img", ["nonesuch/disk.img cannot be made in nonesuch", "No such file"]),
        ("key/disk.img", ["key/disk.img", "Not a directory"]),
        ("disk.img/", ["disk.img/ is a folder's name", "give one of a file"]),
    ] {
        let mut command = scratch.command(&[image, "--size", "1M", "--key-file", "key"]);
        let refused = command.args(["--socket", "socket"]).output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(mentions.iter().all(|mention| told.contains(mention)), "{told}");
    }
}

#[test]
fn no_connections_are_refused_in_words() {
    let args = ["disk.img", "--connections-max", "0"];
    refused(&Scratch::new(), &args, &["\"0\"", "--connections-max", "at least 1"]);
}

#[test]
fn a_try_on_too_little_is_refused_with_what_is_enough() {
    refused(&Scratch::new(), &["disk.img", "--try", "--size", "1M"], &["1 MiB", "9 MiB"]);
}

#[test]
fn what_is_named_twice_is_named_in_the_refusal() {
    let scratch = Scratch::new();
    let twice = ["--socket", "here", "--control", "./here"];
    let args = [&["disk.img", "--size", "8M"], &twice[..]].concat();
    refused(&scratch, &args, &["here", "--socket", "--control"]);
    let args = ["disk.img", "--size", "8M", "--control", "disk.img"];
    refused(&scratch, &args, &["disk.img", "--control"]);
    for again in ["disk.img", "./disk.img"] {
        refused(&scratch, &["disk.img", again, "--size", "8M"], &["disk.img", "twice"]);
    }
}

#[test]
fn where_one_of_several_images_is_refused_none_is_made() {
    let scratch = with_a_container();
    refused(&scratch, &["new.img", "disk.img", "--size", "9M"], &["disk.img", "--size"]);
    refused(&scratch, &["new.img", "nowhere/other.img", "--size", "9M"], &["nowhere"]);
    fs::hard_link(scratch.path("disk.img"), scratch.path("again.img")).unwrap();
    let twice = ["new.img", "disk.img", "again.img", "--size", "8M"];
    refused(&scratch, &twice, &["disk.img", "again.img"]);
    let both = ["new.img", "disk.img", "--size", "8M"];
    let server = scratch.serve(&["disk.img", "--socket", "elsewhere"]);
    refused(&scratch, &both, &["disk.img", "in use"]);
    server.stop();
    fs::write(scratch.path("key"), "another").unwrap();
    refused(&scratch, &both, &["disk.img", "passphrase"]);
    assert!(!scratch.path("new.img").exists());
}

#[test]
fn a_server_that_can_tell_nobody_leaves_no_socket() {
    let scratch = with_a_container();
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.args(["serve", "disk.img", "--key-file", "key"]).current_dir(scratch.path(""));
    command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!scratch.path("disk.img.sock").exists());
}

#[test]
fn without_a_key_file_and_a_terminal_nothing_waits() {
    let scratch = with_a_container();
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.args(["serve", "disk.img", "--socket", "socket"]).current_dir(scratch.path(""));
    refused_command(&scratch, &mut command, &["--key-file"]);
}

#[test]
fn a_container_cut_short_is_refused() {
    let scratch = with_a_container();
    let file = fs::OpenOptions::new().write(true).open(scratch.path("disk.img")).unwrap();
    for length in [16 << 20, (16 << 20) - 1, 1 << 20, 32768, 16384, 4096, 4095, 512, 1, 0] {
        file.set_len(length).unwrap();
        refused(&scratch, &["disk.img"], &["disk.img"]);
    }
}

/// Flips a byte in the metadata of the header copies chosen; each copy has a checksum.
fn corrupt(scratch: &Scratch, copies: &[u64]) {
    let mut bytes = fs::read(scratch.path("disk.img")).unwrap();
    let length = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
    for copy in copies {
        bytes[(copy * length) as usize + 4096 + 10] ^= 1;
    }
    scratch.file("disk.img", &bytes);
}

#[test]
fn one_good_copy_of_the_header_is_enough_and_opening_writes_nothing() {
    for copy in [0, 1] {
        let scratch = with_a_container();
        still_serves(&scratch);
        corrupt(&scratch, &[copy]);
        still_serves(&scratch);
    }
    let scratch = with_a_container();
    let mut bytes = fs::read(scratch.path("disk.img")).unwrap();
    bytes[..4096].fill(0); // of the first copy not even the magic is left
    scratch.file("disk.img", &bytes);
    still_serves(&scratch);
}

#[test]
fn a_container_whose_headers_are_both_damaged_is_refused() {
    let scratch = with_a_container();
    corrupt(&scratch, &[0, 1]);
    refused(&scratch, &["disk.img"], &["disk.img"]);
}

#[test]
fn a_container_whose_key_slots_are_wiped_is_refused() {
    let scratch = with_a_container();
    let mut bytes = fs::read(scratch.path("disk.img")).unwrap();
    bytes[32768..16 << 20].fill(0);
    scratch.file("disk.img", &bytes);
    refused(&scratch, &["disk.img"], &["disk.img"]);
}

#[test]
fn what_is_no_container_is_refused() {
    let scratch = Scratch::new();
    scratch.file("notes.txt", "Remember the milk.\n".repeat(1000).as_bytes());
    scratch.file("empty.img", b"");
    scratch.file("noise.img", &noise(1, 20 << 20));
    fs::create_dir(scratch.path("folder")).unwrap();
    succeed(Command::new("mkfifo").arg(scratch.path("pipe")));
    for image in ["notes.txt", "empty.img", "noise.img", "folder", "/dev/null", "pipe"] {
        refused(&scratch, &[image], &[image]);
        // Creating a volume must not overwrite a file.
        refused(&scratch, &[image, "--size", "8M"], &[image]);
    }
}

#[test]
fn a_missing_image_needs_a_size() {
    let scratch = Scratch::new();
    refused(&scratch, &["missing.img"], &["missing.img", "--size"]);
    refused(&scratch, &["no/such/folder/disk.img", "--size", "8M"], &["no/such/folder"]);
    // A volume made there would be one behind another name.
    std::os::unix::fs::symlink("gone.img", scratch.path("link.img")).unwrap();
    for size in [&[][..], &["--size", "8M"]] {
        let said = ["link.img is a link to gone.img, which does not exist"];
        refused(&scratch, &[&["link.img"], size].concat(), &said);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let scratch = Scratch::new();
    for size in ["1000", "0", "-5", "", "12Q", "1.5.1M", "M", "15E", "99999999999999999999"] {
        refused(&scratch, &["disk.img", &format!("--size={size}")], &[size]);
    }
    refused(&scratch, &["disk.img", "--size", "99999999999G"], &["99999999999G", "too large"]);
    refused(&scratch, &["disk.img", "--size", "1M", "--sector-size", "1000"], &["1000"]);
    // Unlike the other sizes, this one is a multiple of a sector.
    refused(&scratch, &["disk.img", "--size", "9000P"], &["less than 8 EiB"]);
}

#[test]
fn what_an_image_is_not_is_refused() {
    let scratch = with_a_container();
    for size in ["4M", "16M"] {
        refused(&scratch, &["disk.img", "--size", size], &["disk.img"]);
    }
    let sectors = ["disk.img", "4096", "512", "--sector-size"];
    refused(&scratch, &["disk.img", "--sector-size", "512"], &sectors);
    refused(&scratch, &["disk.img", "--allow-discards"], &["disk.img", "--allow-discards"]);
    still_serves(&scratch);
}

#[test]
fn two_images_may_not_have_one_name() {
    let scratch = with_a_container();
    fs::create_dir(scratch.path("other")).unwrap();
    fs::copy(scratch.path("disk.img"), scratch.path("other/disk.img")).unwrap();
    refused(&scratch, &["disk.img", "other/disk.img"], &["disk"]);
    refused(&scratch, &["disk.img", "disk.img"], &["disk"]);
}

#[test]
fn two_names_of_one_file_are_not_two_exports() {
    let scratch = with_a_container();
    std::os::unix::fs::symlink("disk.img", scratch.path("soft.img")).unwrap();
    fs::hard_link(scratch.path("disk.img"), scratch.path("hard.img")).unwrap();
    for other in ["soft.img", "hard.img"] {
        refused(&scratch, &["disk.img", other], &["disk.img", other, "same file"]);
    }
}

#[test]
fn options_that_cannot_be_meant_are_refused_before_anything_is_done() {
    let scratch = with_a_container();
    refused(&scratch, &["disk.img", "--listen", "localhost:1"], &["localhost:1", "127.0.0.1:"]);
    refused(&scratch, &["disk.img", "--listen", "127.0.0.1"], &["as in 127.0.0.1:"]);
    refused(&scratch, &["disk.img", "--connections-max", "0"], &["--connections-max", "'0'"]);
    refused(&scratch, &["new.img", "--size", "1M", "--iter-time", "0"], &["--iter-time", "0"]);
}

#[test]
fn an_unknown_scope_is_refused_and_the_known_are_named() {
    let scratch = with_a_container();
    refused(&scratch, &["disk.img", "--affinity-scope", "nonsense"], &["nonsense", "cache"]);
}

#[test]
fn an_address_in_use_is_refused() {
    let scratch = with_a_container();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    refused(&scratch, &["disk.img", "--listen", &address], &[&address]);
    refused(&scratch, &["disk.img", "--listen", "nonsense"], &["nonsense"]);
}

#[test]
fn a_socket_of_a_live_server_is_left_alone() {
    let scratch = with_a_container();
    let server = scratch.serve(&["second.img", "--size", "1M"]);
    let mut client = Client::new(server.socket());
    refused(&scratch, &["disk.img"], &["socket"]);
    assert_eq!(client.write(0, 0, b"still here"), OK);
    assert_eq!(Client::new(server.socket()).read(0, 10).unwrap(), b"still here");
    server.stop();
}

#[test]
fn a_socket_of_a_dead_server_is_taken_over() {
    let scratch = with_a_container();
    scratch.serve(&["disk.img"]).kill();
    assert!(scratch.path("socket").exists());
    let server = scratch.serve(&["disk.img"]);
    // The one before may have had a cache, though this one has none.
    assert!(server.log().contains("did not end in order"), "{}", server.log());
    assert!(Client::new(server.socket()).read(0, 8 << 20).unwrap() == noise(1, 8 << 20));
    server.stop();
}

#[test]
fn a_file_where_the_socket_should_be_is_left_alone() {
    let scratch = with_a_container();
    scratch.file("precious", b"not a socket");
    refused(&scratch, &["disk.img", "--socket", "precious"], &["precious"]);
    refused(&scratch, &["disk.img", "--socket", "no/such/folder"], &["no/such/folder"]);
    let long = "long".repeat(50);
    refused(&scratch, &["disk.img", "--socket", &long], &[&long]);
}

#[test]
fn no_image_is_made_where_the_server_cannot_listen() {
    let scratch = with_a_container();
    let server = scratch.serve(&["disk.img"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let long = "long".repeat(50);
    for place in ["socket", "no/such/folder", "key", "key/socket", "new.img", &long] {
        refused(&scratch, &["new.img", "--size", "1M", "--socket", place], &[place]);
    }
    refused(&scratch, &["new.img", "--size", "1M", "--listen", &address], &[&address]);
    for place in ["socket", "no/such/folder", "key"] {
        let args = ["new.img", "--size", "1M", "--socket", "free", "--control", place];
        refused(&scratch, &args, &[place, "attributes"]);
    }
    server.stop();
}

#[test]
fn an_image_that_is_being_served_is_refused() {
    let scratch = with_a_container();
    let server = scratch.serve(&["disk.img", "--socket", "first"]);
    refused(&scratch, &["disk.img", "--socket", "second"], &["disk.img"]);
    server.stop();
    still_serves(&scratch);
}

/// This holds whichever of the two is served first.
#[test]
fn a_file_and_a_loop_device_over_it_are_not_both_served() {
    let scratch = with_a_container();
    let first = scratch.serve(&["disk.img", "--socket", "first"]);
    let Some(device) = LoopDevice::new(&scratch.path("disk.img"), &[]) else { return };
    refused(&scratch, &[&device.path], &[&device.path, "in use by another program"]);
    first.stop();
    refused(&scratch, &["disk.img"], &["disk.img", &device.path, "losetup -d"]);
    scratch.serve(&[&device.path]).stop();
    drop(device);
    still_serves(&scratch);
}

/// A mount holds the device as exclusively, and so do dm-crypt, md, and we.
#[test]
fn a_block_device_that_somebody_has_is_refused() {
    let scratch = with_a_container();
    let Some(device) = LoopDevice::new(&scratch.path("disk.img"), &[]) else { return };
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let mut options = fs::OpenOptions::new();
    let held = options.read(true).write(true).custom_flags(exclusive).open(&device.path).unwrap();
    refused(&scratch, &[&device.path], &[&device.path, "in use by another program"]);
    drop(held);
    let server = scratch.serve(&[&device.path]);
    assert!(options.open(&device.path).is_err(), "others can have it");
    assert!(Client::new(server.socket()).read(0, 8 << 20).unwrap() == noise(1, 8 << 20));
    server.stop();
}

/// `homing serve` without root's right to ignore permissions.
fn unprivileged(scratch: &Scratch, args: &[&str]) -> Option<Command> {
    let command = scratch.command(args);
    if !rustix::process::geteuid().is_root() {
        return Some(command);
    }
    let mut without = tool("setpriv")?.bare_command();
    without.arg("--bounding-set=-dac_override,-dac_read_search").arg(command.get_program());
    without.args(command.get_args()).current_dir(scratch.path(""));
    Some(without)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_read_only_file_is_served_read_only_or_not_at_all() {
    let scratch = with_a_container();
    set_mode(&scratch.path("disk.img"), 0o400);
    let args = ["disk.img", "--socket", "socket"];
    let Some(mut command) = unprivileged(&scratch, &args) else { return };
    refused_command(&scratch, &mut command, &["disk.img", "read-only"]);
    let socket = scratch.path("socket");
    let mut command = unprivileged(&scratch, &[&args[..], &["--read-only"]].concat()).unwrap();
    let server = Server::start(&mut command, Some(socket));
    let mut client = Client::new(server.socket());
    assert!(client.read(0, 8 << 20).unwrap() == noise(1, 8 << 20));
    assert_eq!(client.write(0, 0, b"no"), support::nbd::EPERM);
    server.stop();
}

#[test]
fn files_that_may_not_be_opened_or_made_are_named() {
    let scratch = with_a_container();
    fs::create_dir(scratch.path("locked")).unwrap();
    set_mode(&scratch.path("locked"), 0o500);
    let args = ["locked/disk.img", "--size", "8M", "--socket", "socket"];
    let Some(mut command) = unprivileged(&scratch, &args) else { return };
    refused_command(&scratch, &mut command, &["locked"]);
    let args = ["new.img", "locked/disk.img", "--size", "8M", "--socket", "socket"];
    refused_command(&scratch, &mut unprivileged(&scratch, &args).unwrap(), &["locked/disk.img"]);
    assert!(!scratch.path("new.img").exists());
    let args = ["disk.img", "--socket", "locked/socket"];
    refused_command(&scratch, &mut unprivileged(&scratch, &args).unwrap(), &["locked/socket"]);
    assert_eq!(fs::read_dir(scratch.path("locked")).unwrap().count(), 0);
    set_mode(&scratch.path("disk.img"), 0o000);
    let args = ["disk.img", "--socket", "socket"];
    let output = unprivileged(&scratch, &args).unwrap().output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("disk.img"), "{output:?}");
}

#[test]
fn a_cache_that_cannot_be_is_refused() {
    let scratch = with_a_container();
    let with = |args: &[&str], mentions: &[&str]| {
        refused(&scratch, &[&["disk.img"], args].concat(), mentions);
    };
    with(&["--cache", "1K"], &["--cache", "1 KiB", "too small", "leave --cache out", "at least"]);
    with(&["--cache", "0"], &["--cache", "leave --cache out", "at least"]);
    with(&["--cache", "100T"], &["--cache", "100 TiB", "of memory", "use at most"]);
    with(&["--cache", "much"], &["--cache", "\"much\" is not a size"]);
    with(&["--cache", "16M", "--cache-min", "nobody=1M"], &["\"nobody\"", "disk"]);
    with(
        &["--cache", "16M", "--cache-min", "8M", "--cache-max", "disk=4M"],
        &["--cache-min", "--cache-max", "8 MiB", "4 MiB"],
    );
    with(&["--cache", "16M", "--cache-max", "4K"], &["--cache-max", "4 KiB", "at least 1 MiB"]);
    with(&["--cache", "16M", "--cache-min", "1G"], &["1 GiB", "--cache-min", "16 MiB"]);
    with(&["--cache-mode", "write-through"], &["--cache"]);
    still_serves(&scratch);
}
