//! Clients that others wrote must find in our exports what they find in any NBD server.

mod support;

use std::fs;

use support::nbd::{Client, OK};
use support::{Scratch, noise, tool};

/// nbdinfo's name for each ability of an export, and whether ours has it.
const ABILITIES: [(&str, bool, bool); 10] = [
    // name, when writable, when read-only
    ("cache", true, true),
    ("df", true, true),
    ("fast-zero", true, false),
    ("flush", true, true),
    ("fua", true, true),
    ("multi-conn", true, true),
    ("structured-reply", true, true),
    ("trim", true, false),
    ("write", true, false),
    ("zero", true, false),
];

#[test]
fn nbdinfo_sees_what_is_promised() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let scratch = Scratch::new();
    for read_only in [false, true] {
        let how = if read_only { "--read-only" } else { "--size=64M" };
        let server = scratch.serve(&["disk.img", how]);
        for uri in [server.uri("disk"), server.uri(""), server.printed_uri().to_owned()] {
            let json = nbdinfo.run(["--json", &uri]);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["protocol"], "newstyle-fixed");
            assert_eq!(json["structured"], true);
            let export = &json["exports"][0];
            assert_eq!(export["export-size"], 64 << 20);
            assert_eq!(export["is_read_only"], read_only);
            assert_eq!(export["block_size_minimum"], 1);
            assert_eq!(export["block_size_preferred"], 4096);
            assert_eq!(export["block_size_maximum"], 64 << 20);
            assert_eq!(export["contexts"][0], "base:allocation");
        }
        for (ability, writable, when_read_only) in ABILITIES {
            let can = nbdinfo.output(["--can", ability, &server.uri("disk")]).status.success();
            let expected = if read_only { when_read_only } else { writable };
            assert_eq!(can, expected, "can {ability}, read-only: {read_only}");
        }
        server.stop();
    }
}

#[test]
fn every_image_is_listed_and_the_first_is_the_default() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let scratch = Scratch::new();
    scratch.serve(&["first.img", "--size", "8M"]).stop();
    scratch.serve(&["second.img", "--size", "16M"]).stop();
    let server = scratch.serve(&["first.img", "second.img"]);
    let list: serde_json::Value =
        serde_json::from_str(&nbdinfo.run(["--list", "--json", &server.uri("")])).unwrap();
    let exports = list["exports"].as_array().unwrap();
    let names: Vec<_> = exports.iter().map(|export| export["export-name"].as_str()).collect();
    assert_eq!(names, [Some("first"), Some("second")]);
    for (export, size) in [("", 8), ("first", 8), ("second", 16)] {
        let found = nbdinfo.run(["--size", &server.uri(export)]);
        assert_eq!(found.trim(), (size << 20).to_string(), "{export:?}");
    }
    assert!(!nbdinfo.output([server.uri("third")]).status.success());
    server.stop();
}

#[test]
fn the_map_covers_the_whole_export() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "8M"]);
    let map = nbdinfo.run(["--map", "--json", &server.uri("disk")]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let mut end = 0;
    for extent in map.as_array().unwrap() {
        assert_eq!(extent["offset"].as_u64(), Some(end));
        // Sectors that were never written read as noise, so none may be called zero.
        assert_eq!(extent["type"].as_u64().unwrap() & 2, 0, "{extent}");
        end += extent["length"].as_u64().unwrap();
    }
    assert_eq!(end, 8 << 20);
    server.stop();
}

#[test]
fn nbd_client_lists_the_exports() {
    let Some(nbd_client) = tool("nbd-client") else { return };
    let scratch = Scratch::new();
    let server = scratch.serve(&["disk.img", "--size", "8M", "--listen", "127.0.0.1:0"]);
    let (host, port) = server.host_and_port().rsplit_once(':').unwrap();
    let list = nbd_client.run(["-l", host, port]);
    assert!(list.lines().any(|line| line.starts_with("disk")), "{list}");
    server.stop();
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let scratch = Scratch::new();
    let original = noise(1, 64 << 20);
    scratch.file("original", &original);
    let mut images = 0;
    for listen in [None, Some("127.0.0.1:0")] {
        for how in [&["--synchronous"][..], &["--connections=4", "--requests=32", "--flush"]] {
            images += 1;
            let image = format!("disk{images}.img");
            let mut args = vec![image.as_str(), "--size", "64M"];
            args.extend(listen.iter().flat_map(|address| ["--listen", address]));
            let server = scratch.serve(&args);
            let run = |from: &str, to: &str| {
                let paths = [from, to].map(|end| match end {
                    "" => server.uri(""),
                    name => scratch.path(name).display().to_string(),
                });
                nbdcopy.run(how.iter().map(|arg| (*arg).to_owned()).chain(paths));
            };
            run("original", "");
            run("", "copy");
            assert!(fs::read(scratch.path("copy")).unwrap() == original, "{listen:?} {how:?}");
            server.stop();
            fs::remove_file(scratch.path(&image)).unwrap();
        }
    }
}

#[test]
fn qemu_img_brings_back_what_it_took() {
    let Some(qemu_img) = tool("qemu-img") else { return };
    let scratch = Scratch::new();
    // Holes in the source become write-zeroes requests, so there are both these and writes.
    let mut original = vec![0; 64 << 20];
    for run in 0..16 {
        original[run << 22..][..3 << 20].copy_from_slice(&noise(run as u64, 3 << 20));
    }
    let original = scratch.file("original", &original).display().to_string();
    let copy = scratch.path("copy").display().to_string();
    for listen in [&[][..], &["--listen", "127.0.0.1:0"]] {
        let server = scratch.serve(&[&["disk.img", "--size=64M"], listen].concat());
        let uri = server.uri("disk");
        for how in [&[][..], &["-W", "-m", "8"]] {
            let convert = ["convert", "-n", "-f", "raw", "-O", "raw"];
            qemu_img.run([&convert, how, &[&original, &uri]].concat());
            qemu_img.run(["compare", "-f", "raw", "-F", "raw", &original, &uri]);
            let _ = fs::remove_file(&copy);
            let back = ["convert", "-f", "raw", "-O", "raw"];
            qemu_img.run([&back, how, &[&uri, &copy]].concat());
            qemu_img.run(["compare", "-f", "raw", "-F", "raw", &original, &copy]);
        }
        server.stop();
    }
}

#[test]
fn qemu_io_reads_the_patterns_it_wrote() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let scratch = Scratch::new();
    let steps = [
        "write -P 0xab 0 1M",
        "read -P 0xab 0 1M",
        "write -f -P 0xcd 4096 8192",
        "read -P 0xcd 4096 8192",
        "read -P 0xab 12k 1012k",
        "write -z 1M 1M",
        "read -P 0 1M 1M",
        "write -z -f 100 1000",
        "read -P 0 100 1000",
        "read -P 0xab 0 100",
        "read -P 0xab 1100 2996",
        "discard 64k 128k",
        "read -P 0xab 16k 48k", // beside what was discarded
        "flush",
        "write -P 0x33 513 1",
        "read -P 0x33 513 1",
        "write -P 0x44 2097151 4098",
        "read -P 0x44 2097151 4098",
        "read -P 0 1M 1048575",
        "write -P 0x55 8M 24M",
        "read -P 0x55 8M 24M",
    ];
    for sector_size in ["512", "4096"] {
        let image = format!("{sector_size}.img");
        let server = scratch.serve(&[&image, "--size", "64M", "--sector-size", sector_size]);
        let args = ["-f", "raw"].into_iter().chain(steps.iter().flat_map(|step| ["-c", step]));
        qemu_io.run(args.chain([server.uri("").as_str()]));
        server.stop();
        let server = scratch.serve(&[&image]);
        let after = ["-c", "read -P 0x44 2097151 4098", "-c", "read -P 0x55 8M 24M"];
        qemu_io.run([&["-r", "-f", "raw"], &after[..], &[&server.uri("")]].concat());
        server.stop();
    }
}

#[test]
fn nbdcopy_from_one_export_to_another_goes_through_no_file() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let scratch = Scratch::new();
    scratch.serve(&["first.img", "--size", "16M"]).stop();
    scratch.serve(&["second.img", "--size", "16M", "--sector-size", "512"]).stop();
    let server = scratch.serve(&["first.img", "second.img"]);
    let original = noise(2, 16 << 20);
    assert_eq!(Client::to_export(server.socket(), "first").write(0, 0, &original), OK);
    nbdcopy.run(["--connections=2", &server.uri("first"), &server.uri("second")]);
    let copy = Client::to_export(server.socket(), "second").read(0, 16 << 20).unwrap();
    assert!(copy == original);
    server.stop();
}
