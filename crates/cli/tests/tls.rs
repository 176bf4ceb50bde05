//! TLS with clients that others wrote, and with folders of certificates that are of no use.

#[path = "../../server/tests/serving/pki.rs"]
mod pki;
mod support;

use std::fs;

use pki::Authority;
use support::{Scratch, Server, noise, tool};

/// A folder `pki` for a server, and `client` for its clients.
fn certified() -> (Scratch, Authority) {
    let (scratch, authority) = (Scratch::new(), Authority::new());
    authority.certify("server", &scratch.path("pki"));
    authority.certify("client", &scratch.path("client"));
    (scratch, authority)
}

/// The server's address for a client with these certificates.
fn uri(scratch: &Scratch, server: &Server, client: &str) -> String {
    let uri = server.printed_uri().replace("127.0.0.1", "localhost");
    assert!(uri.starts_with("nbds"), "{uri}");
    let separator = if uri.contains('?') { '&' } else { '?' };
    format!("{uri}{separator}tls-certificates={}", scratch.path(client).display())
}

const ON_TCP: [&str; 7] =
    ["disk.img", "--size", "64M", "--listen", "127.0.0.1:0", "--tls-certificates", "pki"];

#[test]
fn libnbd_copies_through_tls() {
    let (Some(nbdcopy), Some(nbdinfo)) = (tool("nbdcopy"), tool("nbdinfo")) else { return };
    let (scratch, _) = certified();
    let original = noise(1, 64 << 20);
    scratch.file("original", &original);
    for (n, listen) in [&ON_TCP[3..5], &[]].into_iter().enumerate() {
        let image = format!("disk{n}.img");
        let args = [&[&image, "--size", "64M"], listen, &ON_TCP[5..]].concat();
        let server = scratch.serve(&args);
        let uri = uri(&scratch, &server, "client");
        let info: serde_json::Value = serde_json::from_str(&nbdinfo.run(["--json", &uri])).unwrap();
        assert_eq!(info["TLS"], true, "{info}");
        for how in [&["--synchronous"][..], &["--connections=4", "--requests=32", "--flush"]] {
            let run = |from: &str, to: &str| {
                nbdcopy.run(how.iter().copied().chain([from, to]));
            };
            run(scratch.path("original").to_str().unwrap(), &uri);
            run(&uri, scratch.path("copy").to_str().unwrap());
            assert!(fs::read(scratch.path("copy")).unwrap() == original, "{listen:?} {how:?}");
        }
        server.stop();
    }
}

#[test]
fn qemu_copies_through_tls() {
    let Some(qemu_img) = tool("qemu-img") else { return };
    let (scratch, _) = certified();
    let original = scratch.file("original", &noise(1, 64 << 20)).display().to_string();
    let server = scratch.serve(&[&ON_TCP[..], &["--tls-verify-peer"]].concat());
    let uri = server.printed_uri();
    let port = uri.strip_prefix("nbds://127.0.0.1:").unwrap().split('/').next().unwrap();
    let folder = scratch.path("client").display().to_string();
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={folder}");
    let disk = format!(
        "driver=nbd,server.type=inet,server.host=localhost,server.port={port},export=disk,tls-creds=tls"
    );
    let with_object = ["--object", &object, "--image-opts"];
    let convert = ["-n", "--target-image-opts", "-f", "raw"];
    qemu_img.run([&["convert", "--object", &object], &convert[..], &[&original, &disk]].concat());
    let raw = format!("driver=raw,file.driver=file,file.filename={original}");
    qemu_img.run([&["compare"], &with_object[..], &[&raw, &disk]].concat());
    server.stop();
}

#[test]
fn who_has_no_certificate_or_does_without_tls_gets_nothing() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let (scratch, authority) = certified();
    authority.be_known_to(&scratch.path("anybody"));
    let stranger = Authority::new();
    stranger.certify("client", &scratch.path("stranger"));
    stranger.be_known_to(&scratch.path("stranger"));
    let server = scratch.serve(&[&ON_TCP[..], &["--tls-verify-peer"]].concat());
    let can = |uri: &str| nbdinfo.output(["--size", uri]).status.success();
    assert!(can(&uri(&scratch, &server, "client")));
    // The stranger does not know our authority, and `anybody` shows no certificate.
    assert!(!can(&uri(&scratch, &server, "stranger")));
    assert!(!can(&uri(&scratch, &server, "anybody")));
    assert!(!can(&server.printed_uri().replace("nbds", "nbd")));
    assert!(can(&uri(&scratch, &server, "client")), "{}", server.log());
    server.stop();
}

/// It is refused before a passphrase is asked for, and before an image is made.
#[test]
fn a_folder_without_certificates_is_refused() {
    let (scratch, _) = certified();
    let refused = |folder: &str, more: &[&str]| {
        let args = ["disk.img", "--size", "8M", "--tls-certificates", folder];
        let output = scratch.command(&[&args[..], more].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!scratch.path("disk.img").exists());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("nonesuch", &[]).contains("nonesuch/server-cert.pem"));
    assert!(refused("client", &[]).contains("client/server-cert.pem"));
    fs::remove_file(scratch.path("pki/ca-cert.pem")).unwrap();
    assert!(refused("pki", &["--tls-verify-peer"]).contains("pki/ca-cert.pem"));
    let lonely = scratch.command(&["disk.img", "--tls-verify-peer"]).output().unwrap();
    assert_eq!(lonely.status.code(), Some(2));
}
