//! What a server shows its TLS clients, and what it wants to see of them: a folder of PEM files, by the names
//! that nbdkit and qemu use.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use homing_socket::RateLimit;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// The chain that the server shows, its own certificate first.
const CERTIFICATE: &str = "server-cert.pem";
/// The key of that certificate.
const KEY: &str = "server-key.pem";
/// Who signs the certificates of clients.
const CLIENTS_CA: &str = "ca-cert.pem";
/// Which of these do not count any more; there need be none.
const REVOKED: &str = "ca-crl.pem";

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
    read: Mutex<(Stamps, Arc<ServerConfig>)>,
}

/// Which file each is, and when it was changed last.
type Stamps = [Option<(u64, SystemTime)>; 4];

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file is missing, or is not what it should be.
    #[error("cannot take {what} from {}: {source}", path.display())]
    File {
        /// What was to be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// A file has nothing of what it should have.
    #[error("{} has no certificate: it needs one in PEM, from BEGIN CERTIFICATE to END CERTIFICATE", path.display())]
    Empty {
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
    /// By this no client can be verified.
    #[error("{} cannot say who is a client: {message}", path.display())]
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
        let (path, read) = (folder.to_owned(), Mutex::new((stamps, config)));
        Ok(Self(Arc::new(Folder { path, verify_peer, read })))
    }

    /// What holds for a client that comes now. Where files were replaced by some that are of no use, those
    /// before hold: one is replaced after the other, and nobody may be there to mend it.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let Folder { path, verify_peer, read } = &*self.0;
        let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(path);
        if read.0 != stamps {
            match config(path, *verify_peer) {
                Ok(config) => *read = (stamps, Arc::new(config)),
                Err(error) => {
                    static FAILURES: RateLimit = RateLimit::new();
                    let what = "new certificates cannot be used: those before still hold";
                    FAILURES.log(|left_out| tracing::warn!(%error, left_out, "{what}"));
                }
            }
        }
        Arc::clone(&read.1)
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
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has what these versions need");
    let builder = match verify_peer {
        VerifyPeer::No => builder.with_no_client_auth(),
        VerifyPeer::Yes => {
            let path = folder.join(CLIENTS_CA);
            let refused = |message| CertificateError::Clients { path: path.clone(), message };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&path)? {
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revoked(folder)?)
                .build();
            builder.with_client_cert_verifier(verifier.map_err(|error| refused(error.to_string()))?)
        }
    };
    let chain = certificates(&folder.join(CERTIFICATE))?;
    let path = folder.join(KEY);
    let key = PrivateKeyDer::from_pem_file(&path).map_err(|source| CertificateError::File {
        what: "a key",
        path,
        source,
    })?;
    let identity = |source| CertificateError::Identity { folder: folder.to_owned(), source };
    let mut config = builder.with_single_cert(chain, key).map_err(identity)?;
    // Clients stay for long, and come seldom: nothing is kept for the next time.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let what = "a certificate";
    let file = |source| CertificateError::File { what, path: path.to_owned(), source };
    let all = CertificateDer::pem_file_iter(path).map_err(file)?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(file)?;
    if all.is_empty() {
        return Err(CertificateError::Empty { path: path.to_owned() });
    }
    Ok(all)
}

fn revoked(folder: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
    let path = folder.join(REVOKED);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let lists = CertificateRevocationListDer::pem_file_iter(&path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>);
    lists.map_err(|source| CertificateError::File { what: "revocations", path, source })
}
