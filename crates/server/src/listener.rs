//! Where clients connect: a Unix socket of our own user, or a TCP address.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::stream::Stream;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket at a path; only its owner may connect (mode 0600).
    Unix(PathBuf),
    /// A TCP address. Traffic is not encrypted: use it on trusted networks only.
    Tcp(SocketAddr),
}

/// Why there is no listening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another process listens there.
    #[error("{endpoint} is in use by another process: stop that one, or choose another")]
    InUse {
        /// The path or address.
        endpoint: String,
    },
    /// There is a file that is no socket.
    #[error("{} exists and is not a socket: nothing was changed", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A path that is too long for a Unix socket.
    #[error("{} is too long for a Unix socket: 107 bytes at most; use a shorter --socket", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot listen on {endpoint}: {source}")]
    Io {
        /// The path or address.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
}

#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn bind(endpoint: &Endpoint) -> Result<Self, ListenError> {
        match endpoint {
            Endpoint::Unix(path) => bind_unix(path).map(|l| Self::Unix(l, path.clone())),
            Endpoint::Tcp(address) => match TcpListener::bind(address) {
                Ok(listener) => Ok(Self::Tcp(listener)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    Err(ListenError::InUse { endpoint: address.to_string() })
                }
                Err(source) => Err(ListenError::Io { endpoint: address.to_string(), source }),
            },
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
            Self::Tcp(listener) => Ok(Stream::Tcp(listener.accept()?.0)),
        }
    }

    /// Where it listens; the port is known now if it was 0.
    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Unix(_, path) => Ok(Endpoint::Unix(path.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
        }
    }

    /// Takes the socket's name away: nobody finds it any more.
    pub(crate) fn close(&self) {
        if let Self::Unix(_, path) = self {
            // Gone already is as good.
            let _ = fs::remove_file(path);
        }
    }

    /// Makes one `accept` return, by connecting to ourselves.
    pub(crate) fn poke(&self) {
        // A listener that cannot be reached has no accept to be woken from.
        let _ = match self {
            Self::Unix(_, path) => UnixStream::connect(path).map(drop),
            Self::Tcp(listener) => {
                listener.local_addr().and_then(std::net::TcpStream::connect).map(drop)
            }
        };
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

fn bind_unix(path: &Path) -> Result<UnixListener, ListenError> {
    let fail = |source| ListenError::Io { endpoint: path.display().to_string(), source };
    let address = SocketAddrUnix::new(path)
        .map_err(|_| ListenError::PathTooLong { path: path.to_owned() })?;
    remove_stale(path)?;
    let bind = || {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The mode of an unbound socket is the mode of the file that binding makes: at no moment
        // is there one that others may connect to.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok::<_, rustix::io::Errno>(UnixListener::from(socket))
    };
    bind().map_err(|errno| match errno {
        rustix::io::Errno::ADDRINUSE => ListenError::InUse { endpoint: path.display().to_string() },
        errno => fail(errno.into()),
    })
}

/// Removes the socket of a server that is no more; leaves everything else alone.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let fail = |source| ListenError::Io { endpoint: path.display().to_string(), source };
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(fail)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(fail(error)),
        Ok(_) => Err(ListenError::InUse { endpoint: path.display().to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        drop(UnixListener::bind(&path).unwrap()); // dropping leaves the file: stale
        let listener = Listener::bind(&Endpoint::Unix(path.clone())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = Listener::bind(&Endpoint::Unix(path.clone())).unwrap_err().to_string();
        assert!(second.contains("in use") && second.contains("s.sock"), "{second}");
        drop(listener);
        assert!(!path.exists(), "the socket is removed with its listener");

        fs::write(&path, "precious").unwrap();
        let third = Listener::bind(&Endpoint::Unix(path.clone())).unwrap_err().to_string();
        assert!(third.contains("not a socket"), "{third}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_port_in_use_is_named() {
        let first = Listener::bind(&Endpoint::Tcp(([127, 0, 0, 1], 0).into())).unwrap();
        let endpoint = first.endpoint().unwrap();
        let Endpoint::Tcp(address) = endpoint else { panic!("{endpoint:?}") };
        let error = Listener::bind(&Endpoint::Tcp(address)).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_is_said_to_be() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let error = Listener::bind(&Endpoint::Unix(path)).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }
}
