//! The certificates that a server shows its TLS clients, and those that it accepts from them: a
//! folder of PEM files, with the names that nbdkit and qemu use.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use homing_socket::RateLimit;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};

use crate::sync::lock;
use crate::validity;

/// The chain that the server shows, its own certificate first.
const CERTIFICATE: &str = "server-cert.pem";
/// The key of that certificate.
const KEY: &str = "server-key.pem";
/// The certificates of those who sign the certificates of clients.
const CLIENTS_CA: &str = "ca-cert.pem";
/// The list of clients' certificates that are revoked. The file is optional.
const REVOKED: &str = "ca-crl.pem";
/// What messages call that list.
const LIST: &str = "list of revoked certificates";
/// How often the server looks whether its certificate has expired or soon will.
const VALIDITY_CHECKED: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyPeer {
    /// Anybody who can connect is a client.
    No,
    /// They show one that is signed by `ca-cert.pem` of the folder, and not listed in `ca-crl.pem`
    /// if there is one.
    Yes,
}

/// The certificates of a folder: `server-cert.pem`, `server-key.pem`, and `ca-cert.pem` where
/// [clients are verified](VerifyPeer). Files that are replaced later count for clients that connect
/// after that.
#[derive(Clone)]
pub struct Certificates(Arc<Folder>);

struct Folder {
    path: PathBuf,
    verify_peer: VerifyPeer,
    config: Mutex<Arc<ServerConfig>>,
    /// Locked while the files are looked at, which may take long.
    read: Mutex<Loaded>,
}

/// What `config` was read from.
struct Loaded {
    stamps: Stamps,
    /// The chain that the server shows.
    chain: Vec<CertificateDer<'static>>,
    /// When it was last looked at whether the chain is valid at that time.
    checked: Instant,
}

impl Loaded {
    fn new(folder: &Path, stamps: Stamps, chain: Vec<CertificateDer<'static>>) -> Self {
        let mut loaded = Self { stamps, chain, checked: Instant::now() };
        loaded.check_validity(folder);
        loaded
    }

    /// Warns if clients refuse the chain because of the time, or soon will.
    fn check_validity(&mut self, folder: &Path) {
        self.checked = Instant::now();
        if let Some(problem) = validity::problem(&self.chain, UnixTime::now()) {
            tracing::warn!("{} {problem}", folder.join(CERTIFICATE).display());
        }
    }
}

/// Each file's inode number and length, and when it was changed last.
type Stamps = [Option<(u64, u64, SystemTime)>; 4];

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file is missing, or is not what it should be.
    #[error("cannot take a {what} from {}: {source}", path.display())]
    File {
        /// What was to be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// A file has nothing of what it should have.
    #[error("{} has no {what} in PEM, from BEGIN to END", path.display())]
    Empty {
        /// What was to be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A key that takes a passphrase.
    #[error(
        "{} is encrypted, and the server asks for no passphrase: store it without one, as by `openssl pkey -in OLD -out \
         NEW`, readable for its owner alone",
        path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// The server's certificate and key are of no use together.
    #[error("{} and {} in {} do not make a server: {source}", CERTIFICATE, KEY, folder.display())]
    Identity {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// With this file no client can be verified.
    #[error("{} cannot be used to verify clients: {message}", path.display())]
    Clients {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

impl Certificates {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`CertificateError`] names the file.
    pub fn load(folder: &Path, verify_peer: VerifyPeer) -> Result<Self, CertificateError> {
        let stamps = stamps(folder);
        let (config, chain) = config(folder, verify_peer, stamps[3].is_some())?;
        warn_of_readers(&folder.join(KEY));
        let read = Mutex::new(Loaded::new(folder, stamps, chain));
        let (path, config) = (folder.to_owned(), Mutex::new(Arc::new(config)));
        Ok(Self(Arc::new(Folder { path, verify_peer, config, read })))
    }

    /// The configuration for a client that connects now. If the files were replaced by unusable
    /// ones, the previous configuration stays: files are replaced one after the other, and nobody
    /// may be there to repair them.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let Folder { path, verify_peer, config, read } = &*self.0;
        let config = || lock(config);
        // A thread that comes while another looks at the files does not wait for that.
        if let Ok(mut read) = read.try_lock() {
            let now = stamps(path);
            // Without the list, clients that it revoked would be served.
            let has_list = [read.stamps, now].iter().any(|stamps| stamps[3].is_some());
            let new = (read.stamps != now).then(|| self::config(path, *verify_peer, has_list));
            match new {
                None if read.checked.elapsed() < VALIDITY_CHECKED => {}
                None => read.check_validity(path),
                Some(Ok((new, chain))) => {
                    warn_of_readers(&path.join(KEY));
                    (*read, *config()) = (Loaded::new(path, now, chain), Arc::new(new));
                }
                Some(Err(error)) => {
                    static FAILURES: RateLimit = RateLimit::new();
                    let what = "new certificates cannot be used: those before still hold";
                    FAILURES.log(|left_out| tracing::warn!(%error, left_out, "{what}"));
                }
            }
        }
        Arc::clone(&config())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Folder { path, verify_peer, .. } = &*self.0;
        f.debug_struct("Certificates")
            .field("folder", path)
            .field("verify_peer", verify_peer)
            .finish_non_exhaustive()
    }
}

fn stamps(folder: &Path) -> Stamps {
    [CERTIFICATE, KEY, CLIENTS_CA, REVOKED].map(|name| {
        let file = folder.join(name).metadata().ok()?;
        Some((file.ino(), file.len(), file.modified().ok()?))
    })
}

/// Reads a folder. Returns what it says, and the chain that the server shows. If it has had a list
/// of revoked certificates, that must be there.
fn config(
    folder: &Path,
    verify_peer: VerifyPeer,
    has_list: bool,
) -> Result<(ServerConfig, Vec<CertificateDer<'static>>), CertificateError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    // TLS 1.3 alone: with keys of 1.2 a connection is over after 2^24 records, which is half an
    // hour at 10,000 a second.
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has what this version needs");
    let builder = match verify_peer {
        VerifyPeer::No => builder.with_no_client_auth(),
        VerifyPeer::Yes => {
            let path = folder.join(CLIENTS_CA);
            let refused =
                |path: &Path, message| CertificateError::Clients { path: path.to_owned(), message };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&path)? {
                roots.add(certificate).map_err(|error| refused(&path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revoked(folder, has_list)?)
                // There may be lists for only some of those who sign.
                .allow_unknown_revocation_status()
                .build();
            let verifier = verifier.map_err(|error| match error {
                VerifierBuilderError::InvalidCrl(_) => {
                    let hint = "is it of version 2, with a number? (`crlnumber` and \
                                `crl_extensions` in openssl's configuration)";
                    refused(&folder.join(REVOKED), format!("{error}: {hint}"))
                }
                _ => refused(&path, error.to_string()),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates(&folder.join(CERTIFICATE))?;
    let key = key(&folder.join(KEY))?;
    let identity = |source| CertificateError::Identity { folder: folder.to_owned(), source };
    let mut config = builder.with_single_cert(chain.clone(), key).map_err(identity)?;
    // Clients stay long and connect seldom, so nothing is kept for the next time.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((config, chain))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    all_of("certificate", path)
}

fn revoked(
    folder: &Path,
    has_list: bool,
) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
    let path = folder.join(REVOKED);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_list => Ok(Vec::new()),
        // An empty file must not count as no list: then all clients would be served.
        _ => all_of(LIST, &path),
    }
}

/// All items of a kind in a file, which must have some.
fn all_of<T: PemObject>(what: &'static str, path: &Path) -> Result<Vec<T>, CertificateError> {
    let file = |source| CertificateError::File { what, path: path.to_owned(), source };
    check_kind(path).map_err(file)?;
    let all = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(in_words).map_err(file)?;
    if all.is_empty() {
        return Err(CertificateError::Empty { what, path: path.to_owned() });
    }
    Ok(all)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let (what, path) = ("key", path.to_owned());
    let read = check_kind(&path).and_then(|()| PrivateKeyDer::from_pem_file(&path));
    read.map_err(in_words).map_err(|source| match source {
        pem::Error::Io(_) => CertificateError::File { what, path, source },
        _ if is_encrypted(&path) => CertificateError::Encrypted { path },
        pem::Error::NoItemsFound => CertificateError::Empty { what, path },
        _ => CertificateError::File { what, path, source },
    })
}

/// Far more than all certificates and lists that anybody has.
const LENGTH_MAX: u64 = 16 << 20;

/// Accepts only a plain file of a sensible length: reading a pipe would wait, and all that is read
/// is held in memory.
fn check_kind(path: &Path) -> Result<(), pem::Error> {
    let metadata = path.metadata().map_err(pem::Error::Io)?;
    let refused = |why| Err(pem::Error::Io(io::Error::other(why)));
    match metadata.len() {
        _ if !metadata.is_file() => refused("it is not a regular file".to_owned()),
        length if length > LENGTH_MAX => {
            refused(format!("it has {length} bytes, and more than {LENGTH_MAX} are not read"))
        }
        _ => Ok(()),
    }
}

/// The same, where the library's message has the bytes of a text as numbers.
fn in_words(error: pem::Error) -> pem::Error {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let end = String::from_utf8_lossy(&end_marker);
            let why = format!("it ends before `-----END {end}-----`: is it cut off?");
            pem::Error::Io(io::Error::new(io::ErrorKind::UnexpectedEof, why))
        }
        other => other,
    }
}

fn is_encrypted(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.windows(9).any(|word| word == b"ENCRYPTED"))
}

fn warn_of_readers(key: &Path) {
    if key.metadata().is_ok_and(|file| file.mode() & 0o077 != 0) {
        tracing::warn!("{} is not for its owner alone: chmod 600 it", key.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_file_is_refused_and_one_that_is_cut_off_is_told_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CERTIFICATE);
        fs::File::create(&path).unwrap().set_len(50 << 30).unwrap();
        let of = || certificates(&path).unwrap_err();
        let source = |error: CertificateError| match error {
            CertificateError::File { source, .. } => source.to_string(),
            other => panic!("{other}"),
        };
        let why = source(of());
        assert!(why.contains("53687091200 bytes") && why.contains("16777216"), "{why}");
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nMIIB\n").unwrap();
        let why = source(of());
        assert!(why.contains("before `-----END CERTIFICATE-----`"), "{why}");
    }

    /// It may go between the look at the files and their reading.
    #[test]
    fn a_list_that_has_been_there_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        assert!(revoked(folder.path(), false).unwrap().is_empty());
        let gone = revoked(folder.path(), true).unwrap_err().to_string();
        assert!(gone.contains(LIST) && gone.contains(REVOKED), "{gone}");
    }
}
