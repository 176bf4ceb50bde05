//! The server's side: a listening socket, and the file by which it is found.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, FlockOperation, Mode};
use rustix::net::Shutdown;

use crate::dial::{address, dial, new_socket};
use crate::error::BindError;

/// How long a server may take to let us in before it counts as alive and busy.
const PROBE_TIME: Duration = Duration::from_millis(200);

/// Listens until it is dropped or stopped. Dropping removes the file.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    /// The path as it was given.
    path: PathBuf,
    /// The same from the root, so that the file is found and removed even after a change of folder.
    file: PathBuf,
    /// Device and inode of the file; `None` if it was gone before we could look. No other file gets
    /// these numbers, since our socket holds the inode.
    identity: Option<(u64, u64)>,
    replaced_stale: bool,
    /// The file is left for the next server to find.
    stays: AtomicBool,
}

impl Listener {
    /// Listens at `path`, with a file of mode 0600; up to `backlog` clients may wait to be
    /// accepted. Replaces the socket of a server that is gone, and nothing else: the error says
    /// what is in the way.
    pub fn bind(path: &Path, backlog: i32) -> Result<Self, BindError> {
        let file = std::path::absolute(path).map_err(|error| BindError::io(path, error))?;
        let (socket, replaced_stale) = bind(path, &file, backlog)?;
        let identity = identity(&file);
        let stays = AtomicBool::new(false);
        Ok(Self { socket, path: path.to_owned(), file, identity, replaced_stale, stays })
    }

    /// Whether [`Listener::bind`] would succeed, as far as can be told without changing anything.
    /// For a caller that has much to do before it binds; binding itself decides in the end.
    pub fn check(path: &Path) -> Result<(), BindError> {
        let file = std::path::absolute(path).map_err(|error| BindError::io(path, error))?;
        address(path).ok_or_else(|| BindError::PathTooLong { path: file.clone() })?;
        is_stale(path, &file)?;
        // Inside the folder, so that a parent that is no folder is found, too.
        let within = file.parent().unwrap_or(&file).join(".");
        let needed = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::access(&within, needed).map_err(|errno| BindError::io(&file, errno))
    }

    /// Whether a server was there before that did not end in order: it left its file.
    pub fn replaced_stale(&self) -> bool {
        self.replaced_stale
    }

    /// Where it listens: the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a client.
    pub fn accept(&self) -> io::Result<UnixStream> {
        self.socket.accept().map(|(stream, _)| stream)
    }

    /// Removes the file, so that nobody finds it any more, unless another server's has taken its
    /// place.
    pub fn remove(&self) {
        // So that none binds between the look and the removal.
        let _turn = take_turn(&self.file);
        if self.identity.is_some() && identity(&self.file) == self.identity {
            // A file that is gone already is as good.
            let _ = fs::remove_file(&self.file);
        }
    }

    /// Leaves the file where it is, as if the program had been killed: who binds next is told
    /// ([`Listener::replaced_stale`]).
    pub fn leave(&self) {
        self.stays.store(true, Relaxed);
    }

    /// Makes every `accept` fail from now on that finds nobody waiting, and ends the one that
    /// waits. That one may return a client, so look after it whether you have called this. Call it
    /// before [`Listener::remove`].
    pub fn stop(&self) -> io::Result<()> {
        self.end_accept(rustix::net::shutdown(&self.socket, Shutdown::Both).map_err(Into::into))
    }

    /// Where a sandbox refuses `shutdown(2)`, connects to ourselves, to end an `accept` that waits.
    /// That is second best: the file may be gone by now, or another server's.
    fn end_accept(&self, ended: io::Result<()>) -> io::Result<()> {
        let Err(error) = ended else { return Ok(()) };
        let _ = self.socket.set_nonblocking(true);
        let is_ours = self.identity.is_some() && identity(&self.file) == self.identity;
        if is_ours && dial(&self.file, PROBE_TIME).is_ok() { Ok(()) } else { Err(error) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.stays.load(Relaxed) {
            self.remove();
        }
    }
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(file).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Binds to the path as it was given, since it may be too long from the root; errors name it from
/// the root.
fn bind(path: &Path, file: &Path, backlog: i32) -> Result<(UnixListener, bool), BindError> {
    let address = address(path).ok_or_else(|| BindError::PathTooLong { path: file.to_owned() })?;
    let _turn = take_turn(file);
    let replaced_stale = remove_stale(path, file)?;
    let fail = |errno: rustix::io::Errno| BindError::io(file, errno);
    let socket = new_socket().map_err(fail)?;
    // The mode of an unbound socket is the mode of the file that binding makes (the umask, which is
    // the whole process's, can only take from it): at no moment is there a file that others may
    // connect to. A private folder and a rename would also work, but need a longer path, and the
    // rename would replace a live server's file without asking.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(fail)?;
    rustix::net::bind(&socket, &address).map_err(|errno| match errno {
        rustix::io::Errno::ADDRINUSE => BindError::in_use(file),
        errno => fail(errno),
    })?;
    rustix::net::listen(&socket, backlog).map_err(|errno| {
        // It is ours, and nobody listens there. If it stays, the next server removes it.
        let _ = fs::remove_file(path);
        fail(errno)
    })?;
    Ok((UnixListener::from(socket), replaced_stale))
}

/// Locks the folder: of two servers that start at once, the second must not take the first for dead
/// while that is bound and does not listen yet. This is best effort: if the folder cannot be read,
/// or its lock is held for long, the server starts all the same.
fn take_turn(file: &Path) -> Option<File> {
    let folder = File::open(file.parent()?).ok()?;
    for _ in 0..50 {
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(folder); // closing it unlocks
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Removes the socket of a server that is gone; leaves everything else alone. Returns whether there
/// was one.
fn remove_stale(path: &Path, file: &Path) -> Result<bool, BindError> {
    let stale = is_stale(path, file)?;
    if stale {
        fs::remove_file(path).map_err(|error| BindError::io(file, error))?;
    }
    Ok(stale)
}

/// Whether there is the socket of a server that is gone; an error if there is something else.
fn is_stale(path: &Path, file: &Path) -> Result<bool, BindError> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(false) };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket { path: file.to_owned() });
    }
    match dial(path, PROBE_TIME) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Its backlog is full: it is alive, if not well.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(BindError::in_use(file)),
        Err(error) => Err(BindError::io(file, error)),
        Ok(_) => Err(BindError::in_use(file)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;

    use super::*;

    fn listen(path: &Path) -> Result<Listener, BindError> {
        Listener::bind(path, 64)
    }

    #[test]
    fn only_the_owner_may_connect_whatever_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        // The umask is the whole process's: the other tests make no files to which this matters.
        let before = rustix::process::umask(Mode::empty());
        let listener = listen(&path);
        rustix::process::umask(before);
        let _listener = listener.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap()); // dropping leaves the file: stale
        let first = listen(&path).unwrap();
        let second = listen(&path).unwrap_err();
        assert!(matches!(second, BindError::InUse { .. }), "{second}");
        assert!(second.to_string().contains(path.to_str().unwrap()), "{second}");
        assert_eq!(io::Error::from(second).kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        let third = listen(&path).unwrap_err();
        assert!(matches!(third, BindError::NotASocket { .. }), "{third}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_check_finds_what_is_in_the_way_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        Listener::check(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        Listener::check(&path).unwrap();
        assert!(path.exists(), "the stale one is left to who binds");
        let _first = listen(&path).unwrap();
        assert!(matches!(Listener::check(&path).unwrap_err(), BindError::InUse { .. }));
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(Listener::check(&file).unwrap_err(), BindError::NotASocket { .. }));
        for folder in [file, folder.path().join("nonesuch")] {
            let error = Listener::check(&folder.join("s")).unwrap_err();
            assert!(matches!(error, BindError::Io { .. }), "{error}");
        }
    }

    #[test]
    fn a_file_that_took_its_place_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = listen(&path).unwrap();
        first.remove();
        let second = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _third = listen(&path).unwrap();
        drop((first, second));
        assert!(path.exists());
    }

    #[test]
    fn a_server_that_lets_nobody_in_counts_as_alive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _first = listen(&path).unwrap();
        let dialled: Vec<_> =
            std::iter::from_fn(|| dial(&path, Duration::from_millis(20)).ok()).take(1000).collect();
        assert!(dialled.len() < 1000);
        assert!(matches!(listen(&path).unwrap_err(), BindError::InUse { .. }));
    }

    #[test]
    fn of_many_that_start_at_once_on_a_stale_file_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        // Without turns some round ends with two that listen, or with one that nobody finds.
        for round in 0..200 {
            let path = folder.path().join(round.to_string());
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(4);
            let bind = || {
                start.wait();
                listen(&path).ok()
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
    fn an_accept_that_waits_is_woken_also_where_the_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.accept());
            thread::sleep(Duration::from_millis(50));
            listener.stop().unwrap();
            assert!(waiting.join().unwrap().is_err());
        });
    }

    #[test]
    fn an_accept_that_waits_is_woken_where_sockets_may_not_be_shut_down() {
        let folder = tempfile::tempdir().unwrap();
        let listener = listen(&folder.path().join("s")).unwrap();
        let refused = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.accept());
            thread::sleep(Duration::from_millis(50));
            listener.end_accept(refused()).unwrap();
            drop(waiting.join().unwrap());
        });
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        listener.remove();
        assert!(listener.end_accept(refused()).is_err(), "nobody can be reached");
    }

    #[test]
    fn a_path_that_is_too_long_is_said_to_be() {
        let path = "x".repeat(200);
        let error = listen(Path::new(&path)).unwrap_err();
        assert!(matches!(error, BindError::PathTooLong { .. }), "{error}");
        assert!(error.to_string().contains("107 bytes"), "{error}");
        let error = dial(Path::new(&path), PROBE_TIME).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
