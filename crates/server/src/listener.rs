//! Where clients connect: a Unix socket of our own user, or a TCP address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use homing::WorkqueueError;
use homing_socket::BindError;
use rustix::net::Shutdown;

use crate::stream::Stream;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// How long a connection to ourselves may take.
const DIAL_TIME: Duration = Duration::from_millis(200);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket at a path; only its owner may connect (mode 0600).
    Unix(PathBuf),
    /// A TCP address. Without [TLS](crate::ServerOptions::tls) traffic is not encrypted: then it is
    /// for trusted networks only.
    Tcp(SocketAddr),
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another process listens there.
    #[error("{endpoint} is in use by another process: stop that one, or choose another")]
    InUse {
        /// The path or address.
        endpoint: String,
    },
    /// The file that is there is not a socket.
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
    /// The runtime takes no workqueue with these attributes any more.
    #[error(transparent)]
    Workqueue(#[from] WorkqueueError),
    /// The operating system refused.
    #[error("cannot listen on {endpoint}: {source}")]
    Io {
        /// The path or address.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
}

impl Endpoint {
    /// Whether [`Server::bind`] could listen there now. For a caller that has to make something
    /// before that, which would be of no use without it.
    ///
    /// # Errors
    /// [`ListenError`] names the path or address.
    ///
    /// [`Server::bind`]: crate::Server::bind
    pub fn check(&self) -> Result<(), ListenError> {
        match self {
            Self::Unix(path) => {
                homing_socket::Listener::check(path).map_err(|error| of_path(path, error))
            }
            Self::Tcp(address) => bind_tcp(*address).map(drop),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Listener {
    Unix(homing_socket::Listener),
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn bind(endpoint: &Endpoint) -> Result<Self, ListenError> {
        match endpoint {
            Endpoint::Unix(path) => bind_unix(path).map(Self::Unix),
            Endpoint::Tcp(address) => bind_tcp(*address).map(Self::Tcp),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => Ok(listener.accept()?.into()),
            Self::Tcp(listener) => Ok(listener.accept()?.0.into()),
        }
    }

    /// Where it listens. If the port was 0, this has the actual one.
    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Unix(listener) => Ok(Endpoint::Unix(listener.path().to_owned())),
            Self::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
        }
    }

    /// Whether a server was here before that did not end in order.
    pub(crate) fn replaced_stale(&self) -> bool {
        matches!(self, Self::Unix(listener) if listener.replaced_stale())
    }

    /// Leaves the socket's name, so that the next server is told.
    pub(crate) fn leave(&self) {
        if let Self::Unix(listener) = self {
            listener.leave();
        }
    }

    /// Removes the socket's name, so that nobody finds it any more.
    pub(crate) fn close(&self) {
        if let Self::Unix(listener) = self {
            listener.remove();
        }
    }

    /// Makes every `accept` fail from now on that finds nobody waiting, and ends the one that
    /// waits.
    pub(crate) fn wake(&self) {
        let ended = match self {
            Self::Unix(listener) => listener.stop(),
            Self::Tcp(listener) => rustix::net::shutdown(listener, Shutdown::Both)
                .map_err(io::Error::from)
                .or_else(|_| end_accept(listener)),
        };
        if let Err(error) = ended {
            tracing::error!(%error, "cannot stop listening");
        }
    }
}

/// Ends an `accept` that waits where a sandbox refuses `shutdown(2)`: by a connection of our own.
fn end_accept(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut address = listener.local_addr()?;
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    TcpStream::connect_timeout(&address, DIAL_TIME).map(drop)
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let endpoint = address.to_string();
    TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { endpoint },
        _ => ListenError::Io { endpoint, source: error },
    })
}

fn bind_unix(path: &Path) -> Result<homing_socket::Listener, ListenError> {
    homing_socket::Listener::bind(path, BACKLOG).map_err(|error| of_path(path, error))
}

/// The error in the words of this crate, with the path as it was given.
fn of_path(path: &Path, error: BindError) -> ListenError {
    let endpoint = || path.display().to_string();
    match error {
        BindError::InUse { .. } => ListenError::InUse { endpoint: endpoint() },
        BindError::NotASocket { .. } => ListenError::NotASocket { path: path.to_owned() },
        BindError::PathTooLong { .. } => ListenError::PathTooLong { path: path.to_owned() },
        BindError::Io { source, .. } => ListenError::Io { endpoint: endpoint(), source },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_in_the_way_of_a_socket_is_named_as_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let first = Listener::bind(&Endpoint::Unix(path.clone())).unwrap();
        assert_eq!(first.endpoint().unwrap(), Endpoint::Unix(path.clone()));
        let second = Listener::bind(&Endpoint::Unix(path.clone())).unwrap_err().to_string();
        assert!(second.contains("in use") && second.contains("s.sock"), "{second}");
        drop(first);
        assert!(!path.exists(), "the socket is removed with its listener");
        fs::write(&path, "precious").unwrap();
        let third = Listener::bind(&Endpoint::Unix(path)).unwrap_err().to_string();
        assert!(third.contains("not a socket") && third.contains("s.sock"), "{third}");
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
                std::thread::sleep(Duration::from_millis(50));
                listener.wake();
                assert!(waiting.join().unwrap().is_err(), "{endpoint:?}");
            });
        }
    }

    #[test]
    fn an_accept_that_waits_is_woken_where_sockets_may_not_be_shut_down() {
        for any in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(any).unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| listener.accept());
                std::thread::sleep(Duration::from_millis(50));
                end_accept(&listener).unwrap();
                drop(waiting.join().unwrap());
            });
            assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
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
