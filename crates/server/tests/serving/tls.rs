//! Clients that speak TLS, and some that do not, or not as they should.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use homing_nbd::wire::{command, option, option_reply, option_request};
use homing_server::{CertificateError, Certificates, CryptOn, Endpoint, ServerOptions, VerifyPeer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Pipelined, Request};
use crate::pki::Authority;
use crate::{device, with_server_of};

type Tls = StreamOwned<ClientConnection, UnixStream>;

/// An authority, and a folder with one folder for the server and one for the client.
struct Setting {
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Setting {
    fn new() -> Self {
        let setting = Self { authority: Authority::new(), folder: tempfile::tempdir().unwrap() };
        setting.authority.certify("server", &setting.server());
        setting.authority.certify("client", &setting.client());
        setting
    }

    fn server(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    fn client(&self) -> PathBuf {
        self.folder.path().join("client")
    }

    fn options(&self, verify_peer: VerifyPeer) -> ServerOptions {
        let tls = Some(Certificates::load(&self.server(), verify_peer).unwrap());
        ServerOptions { tls, ..ServerOptions::default() }
    }
}

fn config(folder: &Path, shows: bool) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca-cert.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    if !shows {
        return Arc::new(builder.with_no_client_auth());
    }
    let certificate = CertificateDer::from_pem_file(folder.join("client-cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("client-key.pem")).unwrap();
    Arc::new(builder.with_client_auth_cert(vec![certificate], key).unwrap())
}

fn dial(endpoint: &Endpoint) -> UnixStream {
    let Endpoint::Unix(path) = endpoint else { unreachable!() };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Reads the reply to an option and returns its code.
fn reply(stream: &mut impl Read) -> io::Result<u32> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let [.., a, b, c, d] = header;
    stream.read_exact(&mut vec![0; u32::from_be_bytes([a, b, c, d]) as usize])?;
    Ok(u32::from_be_bytes(header[12..16].try_into().unwrap()))
}

/// Asks for TLS and is told to begin. `more` is sent with the request, and should not be.
fn asked_for_tls(endpoint: &Endpoint, more: &[u8]) -> UnixStream {
    let mut stream = dial(endpoint);
    stream.read_exact(&mut [0; 18]).unwrap();
    let start = option_request(option::STARTTLS, &[]);
    stream.write_all(&[&3_u32.to_be_bytes()[..], &start, more].concat()).unwrap();
    assert_eq!(reply(&mut stream).unwrap(), option_reply::ACK);
    stream
}

fn go(tls: &mut Tls) -> io::Result<()> {
    tls.write_all(&option_request(option::GO, b"\0\0\0\x04disk\0\0"))?;
    while reply(tls)? != option_reply::ACK {}
    Ok(())
}

fn connect(endpoint: &Endpoint, config: &Arc<ClientConfig>) -> io::Result<Pipelined<Tls>> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut tls = StreamOwned::new(connection, asked_for_tls(endpoint, &[]));
    go(&mut tls)?;
    Ok(Pipelined(tls))
}

fn noise(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + seed * 7) >> 3) as u8).collect()
}

/// Both directions carry more than sockets hold. Data that is cut anywhere comes out whole, from
/// the connection's thread and from workers.
#[test]
fn what_is_written_is_read_back() {
    let setting = Setting::new();
    for crypt_on in [CryptOn::Auto, CryptOn::Connection, CryptOn::Workqueue] {
        let options = ServerOptions { crypt_on, ..setting.options(VerifyPeer::No) };
        with_server_of(&device(), &options, |endpoint| {
            let mut client = connect(endpoint, &config(&setting.client(), false)).unwrap();
            for (round, length) in
                [4096, 512, 32 << 10, 1 << 20, 3 << 20, 100].into_iter().enumerate()
            {
                let write = |n: usize| {
                    let data = noise(n, length);
                    (command::WRITE, (n * length) as u64, length as u32, data)
                };
                let read = |n: usize| (command::READ, (n * length) as u64, length as u32, vec![]);
                let count = (8 << 20) / length.max(32 << 10);
                let requests: Vec<Request> = (0..count).map(write).collect();
                assert!(client.send_all_first(&requests).iter().all(|(errno, _)| *errno == 0));
                if round % 2 == 0 {
                    // All that follows is encrypted with other keys.
                    client.0.conn.refresh_traffic_keys().unwrap();
                }
                let requests: Vec<Request> = (0..count).map(read).collect();
                for (n, (errno, data)) in client.send_all_first(&requests).iter().enumerate() {
                    assert!(*errno == 0 && *data == noise(n, length), "{n} of {length}");
                }
            }
        });
    }
}

/// The connection gives its buffers back while it idles, and gets them again.
#[test]
fn who_idles_within_a_record_goes_on() {
    let setting = Setting::new();
    with_server_of(&device(), &setting.options(VerifyPeer::No), |endpoint| {
        let Pipelined(mut tls) = connect(endpoint, &config(&setting.client(), false)).unwrap();
        let (requests, length) = ([(command::WRITE, 0, 8192, noise(1, 8192))], 8192 + 28);
        tls.conn.writer().write_all(&crate::client::encode(&requests)).unwrap();
        let mut enciphered = Vec::new();
        while tls.conn.wants_write() {
            tls.conn.write_tls(&mut enciphered).unwrap();
        }
        assert!(enciphered.len() > length);
        let (begin, rest) = enciphered.split_at(5000);
        tls.sock.write_all(begin).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        tls.sock.write_all(rest).unwrap();
        let mut client = Pipelined(tls);
        assert_eq!(client.replies(&requests)[0].0, 0);
        let read = [(command::READ, 0, 8192, vec![])];
        assert!(client.send_all_first(&read)[0].1 == noise(1, 8192));
    });
}

#[test]
fn without_tls_there_is_nothing_to_be_had() {
    let setting = Setting::new();
    with_server_of(&device(), &setting.options(VerifyPeer::No), |endpoint| {
        let mut stream = dial(endpoint);
        stream.read_exact(&mut [0; 18]).unwrap();
        let list = option_request(option::LIST, &[]);
        let go = option_request(option::GO, b"\0\0\0\x04disk\0\0");
        stream.write_all(&[&3_u32.to_be_bytes()[..], &list, &go].concat()).unwrap();
        assert_eq!(reply(&mut stream).unwrap(), option_reply::ERR_TLS_REQD);
        assert_eq!(reply(&mut stream).unwrap(), option_reply::ERR_TLS_REQD);
        // EXPORT_NAME allows no error reply, so the server hangs up.
        stream.write_all(&option_request(option::EXPORT_NAME, b"disk")).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    });
}

/// An attacker between client and server could insert requests before the client's.
#[test]
fn what_was_sent_before_tls_is_not_taken_for_what_follows() {
    let setting = Setting::new();
    with_server_of(&device(), &setting.options(VerifyPeer::No), |endpoint| {
        let injected = option_request(option::STRUCTURED_REPLY, &[]);
        let mut stream = asked_for_tls(endpoint, &injected);
        assert!(stream.read(&mut [0; 8]).map_or(true, |count| count == 0));
    });
}

#[test]
fn nonsense_in_place_of_tls_ends_the_connection_and_a_stalled_one_ends_in_time() {
    let setting = Setting::new();
    let handshake_timeout = Duration::from_millis(300);
    let options = ServerOptions { handshake_timeout, ..setting.options(VerifyPeer::No) };
    with_server_of(&device(), &options, |endpoint| {
        let mut stream = asked_for_tls(endpoint, &[]);
        stream.write_all(&noise(1, 300)).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 16, "an alert at most: {said:?}");

        // The client sends a byte now and then, of a record that claims to have many.
        let mut stream = asked_for_tls(endpoint, &[]);
        let began = Instant::now();
        let mut hello =
            [&[22, 3, 1, 0x3f, 0, 1, 0, 0x3e, 0, 3, 3][..], &[0; 500]].concat().into_iter();
        while stream.write_all(&[hello.next().unwrap()]).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(20), "it is let go on");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(began.elapsed() >= handshake_timeout, "cut off for another reason");

        // The same within TLS, with a record and the option in it.
        let name = ServerName::try_from("localhost").unwrap();
        let client = config(&setting.client(), false);
        let connection = ClientConnection::new(client, name).unwrap();
        let mut tls = StreamOwned::new(connection, asked_for_tls(endpoint, &[]));
        tls.flush().unwrap();
        let began = Instant::now();
        let mut record = [&[23, 3, 3, 0x40, 0][..], &[0; 2000]].concat().into_iter();
        while tls.sock.write_all(&[record.next().unwrap()]).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(20), "it is let go on");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(began.elapsed() >= handshake_timeout / 2, "cut off for another reason");

        // Other clients are served meanwhile.
        connect(endpoint, &config(&setting.client(), false)).unwrap();
    });
}

/// The server hangs up on a client whose record is not encrypted as agreed. It copes with one that
/// is cut off within a record.
#[test]
fn a_record_that_was_changed_ends_the_connection() {
    let setting = Setting::new();
    with_server_of(&device(), &setting.options(VerifyPeer::No), |endpoint| {
        let Pipelined(mut tls) = connect(endpoint, &config(&setting.client(), false)).unwrap();
        tls.conn.writer().write_all(&[0; 100]).unwrap();
        let mut record = Vec::new();
        tls.conn.write_tls(&mut record).unwrap();
        record[50] ^= 1;
        tls.sock.write_all(&record).unwrap();
        assert!(tls.read(&mut [0; 8]).map_or(true, |count| count == 0));

        let Pipelined(mut tls) = connect(endpoint, &config(&setting.client(), false)).unwrap();
        tls.conn.writer().write_all(&[0; 100]).unwrap();
        tls.conn.write_tls(&mut record).unwrap();
        tls.sock.write_all(&record[..10]).unwrap();
        tls.sock.shutdown(Shutdown::Write).unwrap();
        assert!(tls.sock.read(&mut [0; 8]).is_ok());
    });
}

#[test]
fn clients_show_a_certificate_where_they_are_verified() {
    let setting = Setting::new();
    let (client, stranger) = (setting.client(), setting.folder.path().join("stranger"));
    // Another authority signs this one.
    Authority::new().certify("client", &stranger);
    setting.authority.be_known_to(&stranger);
    let revoked = setting.folder.path().join("revoked");
    let serial = setting.authority.certify("client", &revoked);
    let options = setting.options(VerifyPeer::Yes);
    with_server_of(&device(), &options, |endpoint| {
        let served = |folder: &Path, shows| connect(endpoint, &config(folder, shows)).is_ok();
        assert!(served(&client, true) && served(&revoked, true));
        assert!(!served(&client, false) && !served(&stranger, true));
        setting.authority.revoke(serial, &setting.server());
        assert!(served(&client, true) && !served(&revoked, true));
        // A list that is emptied or removed still holds. Certificates of another authority, which
        // has no list, are accepted as well.
        let list = setting.server().join("ca-crl.pem");
        let text = std::fs::read(&list).unwrap();
        std::fs::write(&list, "").unwrap();
        assert!(served(&client, true) && !served(&revoked, true));
        std::fs::remove_file(&list).unwrap();
        assert!(served(&client, true) && !served(&revoked, true));
        std::fs::write(&list, text).unwrap();
        let other = Authority::new();
        other.certify("client", &stranger);
        let both =
            ["client", "stranger"].map(|name| setting.folder.path().join(name).join("ca-cert.pem"));
        let both = both.map(|path| std::fs::read_to_string(path).unwrap()).concat();
        std::fs::write(setting.server().join("ca-cert.pem"), both).unwrap();
        setting.authority.be_known_to(&stranger);
        assert!(served(&client, true) && served(&stranger, true) && !served(&revoked, true));
    });
}

#[test]
fn certificates_that_are_replaced_count_for_the_next_client() {
    let setting = Setting::new();
    with_server_of(&device(), &setting.options(VerifyPeer::No), |endpoint| {
        let old = config(&setting.client(), false);
        let mut before = connect(endpoint, &old).unwrap();
        // The times of files are coarse.
        std::thread::sleep(Duration::from_millis(30));
        let next = Authority::new();
        next.certify("server", &setting.server());
        next.be_known_to(&setting.client());
        let new = config(&setting.client(), false);
        assert!(connect(endpoint, &new).is_ok() && connect(endpoint, &old).is_err());
        // Where no client is verified, neither a list nor the removal of one matters.
        next.revoke(99, &setting.server());
        assert!(connect(endpoint, &new).is_ok());
        std::fs::remove_file(setting.server().join("ca-crl.pem")).unwrap();
        let last = Authority::new();
        last.certify("server", &setting.server());
        last.be_known_to(&setting.client());
        let new = config(&setting.client(), false);
        assert!(connect(endpoint, &new).is_ok());
        // This key is of no use, so the server keeps the certificates that it has.
        std::fs::write(setting.server().join("server-key.pem"), "nonsense").unwrap();
        assert!(connect(endpoint, &new).is_ok());
        let read = [(command::READ, 0, 4096, vec![])];
        assert_eq!(before.send_all_first(&read)[0].0, 0, "who was there before stays");
    });
}

#[test]
fn what_is_wrong_with_a_folder_is_said_and_where() {
    let setting = Setting::new();
    let folder = setting.server();
    let fails = |named: &str| {
        let error = Certificates::load(&folder, VerifyPeer::Yes).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
        error
    };
    let put = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    put("ca-crl.pem", "-----BEGIN X509 CRL-----\n!\n-----END X509 CRL-----\n");
    fails("ca-crl.pem");
    for useless in ["", "rubbish"] {
        put("ca-crl.pem", useless);
        assert!(matches!(fails("ca-crl.pem"), CertificateError::Empty { .. }));
    }
    put("ca-crl.pem", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    let refused = fails("ca-crl.pem");
    assert!(matches!(refused, CertificateError::Clients { .. }));
    assert!(refused.to_string().contains("version 2"), "{refused}");
    std::fs::remove_file(folder.join("ca-crl.pem")).unwrap();
    put("ca-cert.pem", "");
    assert!(matches!(fails("ca-cert.pem"), CertificateError::Empty { .. }));
    put("ca-cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(matches!(fails("ca-cert.pem"), CertificateError::Clients { .. }));
    setting.authority.be_known_to(&folder);
    Authority::new().certify("server", &setting.client());
    std::fs::copy(setting.client().join("server-key.pem"), folder.join("server-key.pem")).unwrap();
    assert!(matches!(fails("server-key.pem"), CertificateError::Identity { .. }));
    put("server-key.pem", "");
    assert!(matches!(fails("server-key.pem"), CertificateError::Empty { .. }));
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    put("server-key.pem", encrypted);
    assert!(matches!(fails("server-key.pem"), CertificateError::Encrypted { .. }));
    std::fs::remove_file(folder.join("server-key.pem")).unwrap();
    // Opening a FIFO would wait for a writer.
    let made = std::process::Command::new("mkfifo").arg(folder.join("server-key.pem")).status();
    assert!(made.unwrap().success());
    assert!(fails("server-key.pem").to_string().contains("not a regular file"));
    std::fs::remove_file(folder.join("server-cert.pem")).unwrap();
    assert!(matches!(fails("server-cert.pem"), CertificateError::File { .. }));
}
