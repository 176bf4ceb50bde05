//! The socket's file: made for its owner alone, never in place of a live server's, removed if it is
//! still ours.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketType};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 64;
/// How long a server may take to let us in before it counts as alive and busy.
const PROBE_TIME: Duration = Duration::from_millis(200);

/// Connects within a time: a server that is stopped lets nobody in once its backlog is full.
pub(crate) fn dial(path: &Path, time: Duration) -> io::Result<UnixStream> {
    let address = address(path)?;
    let socket = new_socket()?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(time))?; // bounds connecting too
    rustix::net::connect(&stream, &address)?;
    Ok(stream)
}

/// A socket that programs started by this one do not get.
fn new_socket() -> rustix::io::Result<OwnedFd> {
    #[cfg(not(target_vendor = "apple"))]
    {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    }
    // Not in one step: there is none.
    #[cfg(target_vendor = "apple")]
    {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(socket)
    }
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        let problem = "too long for a Unix socket: 107 bytes at most";
        io::Error::new(io::ErrorKind::InvalidInput, problem)
    })
}

/// A listening socket and the file by which it is found.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file; `None` where it was gone before we could look.
    identity: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at `path`; the error names it.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        // It must be found, to be removed, also after a change of folder.
        let path = std::path::absolute(path)?;
        let named = |error: io::Error| {
            let text = format!("cannot listen on {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        let socket = bind(&path).map_err(named)?;
        let identity = identity(&path);
        Ok(Self { socket, path, identity })
    }

    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        self.socket.accept().map(|(stream, _)| stream)
    }

    /// Removes the file, unless another server's has taken its place, and makes every `accept` fail
    /// from now on, the one that waits included.
    pub(crate) fn close(&self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
        if let Err(error) = rustix::net::shutdown(&self.socket, Shutdown::Both) {
            tracing::error!(%error, "cannot stop listening");
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let address = address(path)?;
    let _turn = take_turn(path);
    remove_stale(path)?;
    let socket = new_socket()?;
    // The mode of an unbound socket is the mode of the file that binding makes (the umask, which
    // is the whole process's, can only take from it): at no moment is there a file that others may
    // connect to. A private folder and a rename would do as well, but need a longer path, and the
    // rename would replace a live server's file without asking.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    match rustix::net::bind(&socket, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => return Err(in_use()),
        result => result?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Locks the folder: of two servers that start at once, the second must not take the first for dead
/// while it is bound and does not listen yet. At best effort: where the folder cannot be read, or
/// somebody holds its lock for long, that is no reason not to start.
fn take_turn(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    for _ in 0..50 {
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(folder); // closing it unlocks
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

fn in_use() -> io::Error {
    let text = "another program listens there: stop that one, or choose another path";
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

/// Removes the socket of a server that is no more; leaves everything else alone.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let text = "the file is there and is not a socket; nothing was changed";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match dial(path, PROBE_TIME) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Its backlog is full: alive, if not well.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use()),
        Err(error) => Err(error),
        Ok(_) => Err(in_use()),
    }
}

/// The last part of a path, for the names of threads.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(OsStr::new("control")).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn only_the_owner_may_connect_whatever_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        // The test's own process: other tests make no files that this would matter to.
        let before = rustix::process::umask(Mode::empty());
        let listener = Listener::bind(&path);
        rustix::process::umask(before);
        let _listener = listener.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap()); // dropping leaves the file: stale
        let first = Listener::bind(&path).unwrap();
        let second = Listener::bind(&path).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        assert!(second.to_string().contains(path.to_str().unwrap()), "{second}");
        first.close();
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        let third = Listener::bind(&path).unwrap_err().to_string();
        assert!(third.contains("not a socket"), "{third}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_file_that_took_its_place_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Listener::bind(&path).unwrap();
        first.close();
        assert!(path.exists());
    }

    #[test]
    fn a_server_that_lets_nobody_in_counts_as_alive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _first = Listener::bind(&path).unwrap();
        let dialled: Vec<_> =
            std::iter::from_fn(|| dial(&path, Duration::from_millis(20)).ok()).take(1000).collect();
        assert!(dialled.len() < 1000);
        assert_eq!(Listener::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn of_many_that_start_at_once_on_a_stale_file_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        // Without taking turns some round ends with two, or with one that nobody finds.
        for round in 0..200 {
            let path = folder.path().join(round.to_string());
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(4);
            let bind = || {
                start.wait();
                Listener::bind(&path).ok()
            };
            let listening: Vec<_> = thread::scope(|scope| {
                let starting = [0; 4].map(|_| scope.spawn(bind));
                starting.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(listening.len(), 1);
            assert!(dial(&path, PROBE_TIME).is_ok());
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_said_to_be() {
        let error = Listener::bind(Path::new(&"x".repeat(200))).unwrap_err().to_string();
        assert!(error.contains("107 bytes"), "{error}");
    }
}
