//! Where clients connect: a Unix socket of our own user, or a TCP address.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

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
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// The name of our socket, and what stood there once it was ours.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode; `None` where it was gone before we could look.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }

    /// Removes it, unless another server's socket has taken its place.
    fn remove(&self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Listener {
    pub(crate) fn bind(endpoint: &Endpoint) -> Result<Self, ListenError> {
        match endpoint {
            Endpoint::Unix(path) => bind_unix(path).map(|l| Self::Unix(l, SocketFile::new(path))),
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
            Self::Unix(_, file) => Ok(Endpoint::Unix(file.path.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
        }
    }

    /// Takes the socket's name away: nobody finds it any more.
    pub(crate) fn close(&self) {
        if let Self::Unix(_, file) = self {
            file.remove();
        }
    }

    /// Makes every `accept` fail from now on, the one that waits included. Not by connecting to
    /// ourselves: the socket's file may be gone by now, or another server's.
    pub(crate) fn wake(&self) {
        let ended = match self {
            Self::Unix(listener, _) => rustix::net::shutdown(listener, Shutdown::Both),
            Self::Tcp(listener) => rustix::net::shutdown(listener, Shutdown::Both),
        };
        if let Err(error) = ended {
            tracing::error!(%error, "cannot stop listening");
        }
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

        let first = Listener::bind(&Endpoint::Unix(path.clone())).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::bind(&Endpoint::Unix(path.clone())).unwrap();
        drop(first);
        assert!(path.exists(), "a socket that took its place is another's");
        drop(second);

        fs::write(&path, "precious").unwrap();
        let third = Listener::bind(&Endpoint::Unix(path.clone())).unwrap_err().to_string();
        assert!(third.contains("not a socket"), "{third}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn an_accept_that_waits_is_woken_also_where_the_socket_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let endpoints = [Endpoint::Unix(path.clone()), Endpoint::Tcp(([0, 0, 0, 0], 0).into())];
        for endpoint in &endpoints {
            let listener = Listener::bind(endpoint).unwrap();
            let _ = fs::remove_file(&path);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| listener.accept());
                std::thread::sleep(std::time::Duration::from_millis(50));
                listener.wake();
                assert!(waiting.join().unwrap().is_err(), "{endpoint:?}");
            });
        }
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
