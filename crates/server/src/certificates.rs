//! The certificates that a server shows its TLS clients, and those that it accepts from them: a
//! folder of PEM files, with the names that nbdkit and qemu use.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use homing_socket::RateLimit;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::{
    NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::version::TLS13;
use rustls::{CertificateError as Invalid, RootCertStore, ServerConfig};

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
/// How long before a certificate expires the server warns that it will.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyPeer {
    /// Anybody who can connect is a client.
    No,
    /// They show one that is signed by `ca-cert.pem` of the folder, and not listed in `ca-crl.pem` if there is one.
    Yes,
}

/// The certificates of a folder: `server-cert.pem`, `server-key.pem`, and `ca-cert.pem` where [clients are
/// verified](VerifyPeer). Files that are replaced later count for clients that connect after that.
#[derive(Clone)]
pub struct Certificates(Arc<Folder>);

struct Folder {
    path: PathBuf,
    verify_peer: VerifyPeer,
    config: Mutex<Arc<ServerConfig>>,
    /// Stamps of the files that `config` was read from. Locked while the files are looked at, which
    /// may take long.
    stamps: Mutex<Stamps>,
}

/// Each file's inode number, and when it was changed last.
type Stamps = [Option<(u64, SystemTime)>; 4];

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
        let config = Arc::new(config(folder, verify_peer)?);
        warn_of_readers(&folder.join(KEY));
        let (path, config, stamps) = (folder.to_owned(), Mutex::new(config), Mutex::new(stamps));
        Ok(Self(Arc::new(Folder { path, verify_peer, config, stamps })))
    }

    /// The configuration for a client that connects now. If the files were replaced by unusable
    /// ones, the previous configuration stays: files are replaced one after the other, and nobody
    /// may be there to repair them.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let Folder { path, verify_peer, config, stamps } = &*self.0;
        let config = || config.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that comes while another looks at the files does not wait for that.
        if let Ok(mut read) = stamps.try_lock() {
            let now = self::stamps(path);
            // Without the list, clients that it revoked would be served.
            let is_list_gone =
                *verify_peer == VerifyPeer::Yes && read[3].is_some() && now[3].is_none();
            let new = (*read != now).then(|| {
                if is_list_gone {
                    return Err(CertificateError::Empty { what: LIST, path: path.join(REVOKED) });
                }
                self::config(path, *verify_peer)
            });
            match new {
                None => {}
                Some(Ok(new)) => (*read, *config()) = (now, Arc::new(new)),
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
        Some((file.ino(), file.modified().ok()?))
    })
}

fn config(folder: &Path, verify_peer: VerifyPeer) -> Result<ServerConfig, CertificateError> {
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
                .with_crls(revoked(folder)?)
                // There may be lists for only some of those who sign.
                .allow_unknown_revocation_status()
                .build();
            let verifier = verifier.map_err(|error| match error {
                VerifierBuilderError::InvalidCrl(_) => {
                    refused(&folder.join(REVOKED), error.to_string())
                }
                _ => refused(&path, error.to_string()),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates(&folder.join(CERTIFICATE))?;
    if let Some(problem) = validity_problem(&chain, builder.crypto_provider(), UnixTime::now()) {
        tracing::warn!("{} {problem}", folder.join(CERTIFICATE).display());
    }
    let key = key(&folder.join(KEY))?;
    let identity = |source| CertificateError::Identity { folder: folder.to_owned(), source };
    let mut config = builder.with_single_cert(chain, key).map_err(identity)?;
    // Clients stay long and connect seldom, so nothing is kept for the next time.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    all_of("certificate", path)
}

/// What is to be said of a chain that clients refuse at this time, or soon will, because of the time.
fn validity_problem(
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: UnixTime,
) -> Option<&'static str> {
    let soon = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + EXPIRES_SOON);
    // Who has signed it is for clients to say: the check looks at the time before it looks for that.
    let nobody = RootCertStore::empty();
    let at = |certificate, time| {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let algorithms = provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], time, algorithms) {
            Err(rustls::Error::InvalidCertificate(invalid)) => Some(invalid),
            _ => None,
        }
    };
    chain.iter().find_map(|certificate| match (at(certificate, now)?, at(certificate, soon)?) {
        (Invalid::NotValidYet | Invalid::NotValidYetContext { .. }, _) => {
            Some("is not valid yet: clients that check it refuse this server; is the clock right?")
        }
        (Invalid::Expired | Invalid::ExpiredContext { .. }, _) => {
            Some("has expired: clients that check it refuse this server; replace it")
        }
        (_, Invalid::Expired | Invalid::ExpiredContext { .. }) => {
            Some("expires within 14 days: replace it before that")
        }
        _ => None,
    })
}

fn revoked(folder: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
    let path = folder.join(REVOKED);
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // An empty file must not count as no list: then all clients would be served.
        _ => all_of(LIST, &path),
    }
}

/// All items of a kind in a file, which must have some.
fn all_of<T: PemObject>(what: &'static str, path: &Path) -> Result<Vec<T>, CertificateError> {
    let file = |source| CertificateError::File { what, path: path.to_owned(), source };
    check_kind(path).map_err(file)?;
    let all = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(file)?;
    if all.is_empty() {
        return Err(CertificateError::Empty { what, path: path.to_owned() });
    }
    Ok(all)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let (what, path) = ("key", path.to_owned());
    let read = check_kind(&path).and_then(|()| PrivateKeyDer::from_pem_file(&path));
    read.map_err(|source| match source {
        pem::Error::Io(_) => CertificateError::File { what, path, source },
        _ if is_encrypted(&path) => CertificateError::Encrypted { path },
        pem::Error::NoItemsFound => CertificateError::Empty { what, path },
        _ => CertificateError::File { what, path, source },
    })
}

/// Accepts only a plain file: reading a pipe would wait.
fn check_kind(path: &Path) -> Result<(), pem::Error> {
    let is_file = path.metadata().map_err(pem::Error::Io)?.is_file();
    let error = || pem::Error::Io(io::Error::other("it is not a regular file"));
    is_file.then_some(()).ok_or_else(error)
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
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn a_certificate_says_when_clients_refuse_it_because_of_the_time() {
        let mut params = CertificateParams::new(["volumes.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2025, 6, 1);
        params.not_after = date_time_ymd(2026, 6, 1);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let (chain, provider) = ([made.der().clone()], aws_lc_rs::default_provider());
        let said = |year, month, day| {
            let then = date_time_ymd(year, month, day).unix_timestamp();
            let then = UnixTime::since_unix_epoch(Duration::from_secs(then.try_into().unwrap()));
            validity_problem(&chain, &provider, then).unwrap_or_default()
        };
        assert!(said(2025, 5, 31).starts_with("is not valid yet"));
        assert_eq!((said(2025, 6, 2), said(2026, 5, 17)), ("", ""));
        assert!(said(2026, 5, 19).starts_with("expires within 14 days"));
        assert!(said(2026, 6, 2).starts_with("has expired"));
    }
}
