//! cryptsetup and we read and write the same containers. No privileges are needed: cryptsetup
//! decrypts and encrypts files offline. For LUKS1, where it cannot, qemu-img does.

mod support;

use std::fs;
use std::process::Command;

use support::nbd::{Client, FUA, OK};
use support::{Scratch, Tool, noise, succeed, tool};

const HEADER: u64 = 16 << 20;
const SIZE: usize = 8 << 20;
const SECTOR_SIZES: [&str; 2] = ["512", "4096"];
const CHEAP_KEYS: [&str; 8] = [
    "--pbkdf=argon2id",
    "--pbkdf-memory=32",
    "--pbkdf-force-iterations=4",
    "--pbkdf-parallel=1",
    "--cipher=aes-xts-plain64",
    "--key-size=512",
    "--key-file=key",
    "-q",
];

/// cryptsetup with an action, in the test's folder.
fn cryptsetup(tool: &Tool, scratch: &Scratch, action: &[&str]) -> Command {
    let mut command = tool.command();
    command.current_dir(scratch.path("")).args(action);
    command
}

/// Removes the encryption from `image` and returns the beginning of the plaintext.
fn decrypt_offline(tool: &Tool, scratch: &Scratch, image: &str) -> Vec<u8> {
    let header = format!("{image}.header");
    let action = ["reencrypt", "--decrypt", "--force-offline-reencrypt", "-q", "--key-file=key"];
    succeed(cryptsetup(tool, scratch, &action).args(["--header", &header, image]));
    let mut plain = fs::read(scratch.path(image)).unwrap();
    plain.truncate(SIZE);
    plain
}

#[test]
fn cryptsetup_accepts_our_container_and_its_passphrase() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    scratch.file("wrong", b"another passphrase");
    for sector_size in SECTOR_SIZES {
        let image = format!("{sector_size}.img");
        scratch.serve(&[&image, "--size", "8M", "--sector-size", sector_size]).stop();
        assert_eq!(fs::metadata(scratch.path(&image)).unwrap().len(), HEADER + SIZE as u64);
        let dump = ["luksDump", "--dump-json-metadata", &image];
        let json = succeed(&mut cryptsetup(&tool, &scratch, &dump));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let segment = &json["segments"]["0"];
        assert_eq!(segment["encryption"], "aes-xts-plain64");
        assert_eq!(segment["sector_size"].to_string(), sector_size);
        assert_eq!(segment["offset"], HEADER.to_string());
        assert_eq!(json["keyslots"]["0"]["key_size"], 64);
        assert_eq!(json["keyslots"]["0"]["kdf"]["type"], "argon2id");
        for (key, opens) in [("key", true), ("wrong", false)] {
            let action = ["open", "--test-passphrase", "--key-file", key, &image];
            let output = cryptsetup(&tool, &scratch, &action).output().unwrap();
            assert_eq!(output.status.success(), opens, "{key}: {output:?}");
        }
    }
}

#[test]
fn the_whole_key_file_is_the_passphrase() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    scratch.file("odd", b"two\nlines, a nul \0 and a newline at the end\n");
    scratch.file("shorter", b"two\nlines, a nul \0 and a newline at the end");
    scratch.serve(&["disk.img", "--size", "1M", "--key-file", "odd"]).stop();
    for (key, opens) in [("odd", true), ("shorter", false)] {
        let action = ["open", "--test-passphrase", "--key-file", key, "disk.img"];
        let output = cryptsetup(&tool, &scratch, &action).output().unwrap();
        assert_eq!(output.status.success(), opens, "{key}: {output:?}");
    }
}

#[test]
fn cryptsetup_decrypts_what_clients_wrote() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    for sector_size in SECTOR_SIZES {
        let image = format!("{sector_size}.img");
        let server = scratch.serve(&[&image, "--size", "8M", "--sector-size", sector_size]);
        let mut client = Client::new(server.socket());
        let mut expected = noise(1, SIZE);
        assert_eq!(client.write(0, 0, &expected), OK);
        expected[5001..8000].fill(0x5a); // parts of sectors
        assert_eq!(client.write(FUA, 5001, &expected[5001..8000]), OK);
        server.stop();
        assert!(decrypt_offline(&tool, &scratch, &image) == expected, "{sector_size}");
    }
}

#[test]
fn containers_of_cryptsetup_are_served() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    for sector_size in SECTOR_SIZES {
        let image = format!("{sector_size}.img");
        let file = fs::File::create(scratch.path(&image)).unwrap();
        file.set_len(HEADER + SIZE as u64).unwrap();
        let mut format = cryptsetup(&tool, &scratch, &["luksFormat", "--type=luks2"]);
        succeed(format.args(CHEAP_KEYS).args(["--sector-size", sector_size, &image]));
        let before = fs::read(scratch.path(&image)).unwrap();
        scratch.serve(&[&image]).stop();
        assert!(fs::read(scratch.path(&image)).unwrap() == before, "opening changes nothing");
        let server = scratch.serve(&[&image]);
        let mut client = Client::new(server.socket());
        assert_eq!(client.size, SIZE as u64);
        assert_eq!(client.write(0, 0, &noise(2, SIZE)), OK);
        server.stop();
        let server = scratch.serve(&[&image]);
        assert!(Client::new(server.socket()).read(0, SIZE as u32).unwrap() == noise(2, SIZE));
        server.stop();
        assert!(decrypt_offline(&tool, &scratch, &image) == noise(2, SIZE), "{sector_size}");
    }
}

#[test]
fn what_cryptsetup_encrypted_is_served_decrypted() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    let plain = noise(3, SIZE);
    for sector_size in SECTOR_SIZES {
        let image = format!("{sector_size}.img");
        scratch.file(&image, &plain);
        // Half of what is added goes to the header, the other half stays at the end.
        let file = fs::OpenOptions::new().write(true).open(scratch.path(&image)).unwrap();
        file.set_len(SIZE as u64 + 2 * HEADER).unwrap();
        let action = ["reencrypt", "--encrypt", "--type=luks2", "--force-offline-reencrypt"];
        let mut encrypt = cryptsetup(&tool, &scratch, &action);
        encrypt.args(CHEAP_KEYS).args(["--reduce-device-size", "32M"]);
        succeed(encrypt.args(["--sector-size", sector_size, &image]));
        let server = scratch.serve(&[&image, "--read-only"]);
        let mut client = Client::new(server.socket());
        assert_eq!(client.size, SIZE as u64 + HEADER);
        assert!(client.read(0, SIZE as u32).unwrap() == plain, "{sector_size}");
        server.stop();
    }
}

#[test]
fn any_key_slot_opens() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    scratch.file("second", b"another passphrase");
    scratch.serve(&["disk.img", "--size", "1M"]).stop();
    let mut add = cryptsetup(&tool, &scratch, &["luksAddKey"]);
    succeed(add.args(&CHEAP_KEYS[..4]).args(["-q", "--key-file=key", "disk.img", "second"]));
    for key in ["key", "second"] {
        scratch.serve(&["disk.img", "--key-file", key]).stop();
    }
}

#[test]
fn a_container_in_the_middle_of_reencryption_is_refused() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    scratch.serve(&["disk.img", "--size", "8M"]).stop();
    let action = ["reencrypt", "--init-only", "--force-offline-reencrypt"];
    succeed(cryptsetup(&tool, &scratch, &action).args(CHEAP_KEYS).arg("disk.img"));
    let before = scratch.snapshot();
    let output = scratch.command(&["disk.img", "--socket", "socket"]).output().unwrap();
    let stderr = support::text(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("disk.img") && stderr.contains("reencrypt"), "{stderr}");
    assert_eq!(scratch.snapshot(), before);
}

/// If it were served as a container, its data would be the header itself.
#[test]
fn a_detached_header_is_refused_and_stays_whole() {
    let Some(tool) = tool("cryptsetup") else { return };
    let scratch = Scratch::new();
    fs::File::create(scratch.path("data.img")).unwrap().set_len(8 << 20).unwrap();
    let luks1 = ["luksFormat", "--type=luks1", "--pbkdf-force-iterations=1000", "--key-size=512"];
    let luks2 = &[&["luksFormat", "--type=luks2"][..], &CHEAP_KEYS[..4]].concat();
    for (header, action) in [("luks1.header", &luks1[..]), ("luks2.header", luks2)] {
        let mut format = cryptsetup(&tool, &scratch, action);
        succeed(format.args(["-q", "--key-file=key", "--header", header, "data.img"]));
        let before = scratch.snapshot();
        let output = scratch.command(&[header, "--socket", "socket"]).output().unwrap();
        let stderr = support::text(&output.stderr);
        assert!(!output.status.success(), "{stderr}");
        assert!(stderr.contains(header) && stderr.contains("detached"), "{stderr}");
        assert_eq!(scratch.snapshot(), before);
    }
}

#[test]
fn luks1_containers_are_served() {
    let (Some(tool), Some(qemu_img)) = (tool("cryptsetup"), tool("qemu-img")) else { return };
    let scratch = Scratch::new();
    let file = fs::File::create(scratch.path("old.img")).unwrap();
    file.set_len((2 << 20) + SIZE as u64).unwrap();
    let mut format = cryptsetup(&tool, &scratch, &["luksFormat", "--type=luks1", "-q"]);
    format.args(["--cipher=aes-xts-plain64", "--key-size=512", "--key-file=key"]);
    succeed(format.args(["--pbkdf-force-iterations=1000", "old.img"]));

    scratch.file("plain", &noise(4, SIZE));
    let plain = "driver=raw,file.filename=plain";
    let luks = "driver=luks,key-secret=key,file.filename=old.img";
    let qemu = |action: &str, args: &[&str]| {
        let mut command = qemu_img.command();
        command.current_dir(scratch.path("")).args([action, "--object", "secret,id=key,file=key"]);
        succeed(command.args(args));
    };
    qemu("convert", &["-n", "--image-opts", plain, "--target-image-opts", luks]);
    let server = scratch.serve(&["old.img"]);
    let mut client = Client::new(server.socket());
    assert_eq!(client.size, SIZE as u64);
    assert!(client.read(0, SIZE as u32).unwrap() == noise(4, SIZE));
    assert_eq!(client.write(FUA, 0, &noise(5, SIZE)), OK);
    server.stop();
    scratch.file("plain", &noise(5, SIZE));
    qemu("compare", &["--image-opts", plain, luks]);
}
