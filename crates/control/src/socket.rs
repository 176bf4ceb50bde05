//! The control socket: a thread that lets clients in, and one for each of them. No client can hold
//! up another one, or the end of the socket: a client that sends half a line, reads no answers or
//! does nothing is cut off.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Scope};
use std::time::{Duration, Instant};

use homing_socket::{Listener, RateLimit, check_room_for_thread};

use crate::attribute::{AttributeError, AttributeTree};
use crate::lines::{Line, Lines};
use crate::wire::{self, Answer, Failure, REQUEST_LENGTH_MAX, Request};

/// Clients that may wait to be let in.
const BACKLOG: i32 = 64;
/// How many clients there may be at one time; more are turned away.
///
/// ```
/// # use std::sync::Arc;
/// # use homing_control::{CONNECTIONS_MAX, Client, ControlSocket, Trees};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// let socket = ControlSocket::listen(&path, Arc::new(Trees::default()))?;
/// let clients: Result<Vec<_>, _> = (0..CONNECTIONS_MAX).map(|_| Client::connect(&path)).collect();
/// assert!(clients.is_ok() && Client::connect(&path).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const CONNECTIONS_MAX: usize = 16;
/// How long a client may take from the first byte of a line to its last, or to read an answer.
const LINE_TIME: Duration = Duration::from_secs(10);
/// Bytes of an answer that are sent at a time.
const SENT_AT_A_TIME: usize = 16 << 10;
/// How long a client may say nothing.
const IDLE_TIME: Duration = Duration::from_secs(300);

/// Offers a tree on a Unix socket of mode 0600 until it is dropped. Dropping it removes the file,
/// cuts off the clients and waits for calls of the tree that are under way. If one of these drops
/// it, it waits for none.
///
/// ```
/// use std::sync::Arc;
/// use homing_control::{ControlSocket, Trees};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// ControlSocket::check(&path)?; // nothing is in the way
/// let socket = ControlSocket::listen(&path, Arc::new(Trees::default()))?;
/// assert_eq!(socket.path(), path);
/// assert!(ControlSocket::check(&path).is_err()); // now this is
/// drop(socket);
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ControlSocket {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens at `path`. Replaces the socket file of a server that is dead, and nothing else: the
    /// error says what is in the way. Its thread inherits the CPUs of the calling thread.
    pub fn listen(path: impl AsRef<Path>, tree: Arc<dyn AttributeTree>) -> io::Result<Self> {
        let path = path.as_ref();
        let listener = Listener::bind(path, BACKLOG)?;
        let shared = Arc::new(Shared { listener, clients: Mutex::default() });
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(file_name(path))
            .spawn(move || for_thread.run(tree.as_ref()))
            .map_err(|error| {
                let path = path.display();
                let text = format!("there can be no thread for the control socket {path}: {error}");
                io::Error::new(error.kind(), text)
            })?;
        Ok(Self { shared, thread: Some(thread), path: path.to_owned() })
    }

    /// Whether [`ControlSocket::listen`] would succeed, as far as can be told without changing
    /// anything. For callers that have much to do before they listen.
    pub fn check(path: impl AsRef<Path>) -> io::Result<()> {
        Ok(Listener::check(path.as_ref())?)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.shared.stop();
        if SERVES.get() == Arc::as_ptr(&self.shared) {
            return;
        }
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, that would have been said already.
            let _ = thread.join();
        }
    }
}

thread_local! {
    /// What the client belongs to whom this thread serves.
    static SERVES: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// The last part of a path, for the name of a thread.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(OsStr::new("control")).to_string_lossy().into_owned()
}

#[derive(Debug)]
struct Shared {
    listener: Listener,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    stopping: bool,
    streams: BTreeMap<u64, Arc<UnixStream>>,
    next: u64,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut clients = self.clients();
        // A client that is let in from here on is turned away under this lock. The flag is set
        // before `accept` fails, which would otherwise be logged as an error.
        clients.stopping = true;
        if let Err(error) = self.listener.stop() {
            tracing::error!(%error, "cannot stop listening");
        }
        self.listener.remove();
        for stream in clients.streams.values() {
            // Wakes its thread from reading and from writing alike.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets clients in until stopped, then waits for their threads.
    fn run(&self, tree: &dyn AttributeTree) {
        let failures = RateLimit::new();
        thread::scope(|scope| {
            loop {
                match self.listener.accept() {
                    _ if self.clients().stopping => return,
                    Ok(stream) => self.admit(scope, stream, tree),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        // Most likely out of descriptors, which may pass or not.
                        failures.log(|left_out| {
                            let what = "the control socket cannot let a client in";
                            tracing::warn!(%error, left_out, "{what}");
                        });
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        });
    }

    fn admit<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        stream: UnixStream,
        tree: &'scope dyn AttributeTree,
    ) {
        let mut clients = self.clients();
        if clients.stopping {
            return;
        }
        if clients.streams.len() >= CONNECTIONS_MAX {
            let message =
                format!("{CONNECTIONS_MAX} clients are connected, as many as may be: try later");
            turn_away(&stream, wire::BUSY, &message);
            return;
        }
        let stream = Arc::new(stream);
        let number = clients.next;
        clients.next += 1;
        clients.streams.insert(number, Arc::clone(&stream));
        drop(clients);
        let place = Place { shared: self, number };
        let named = thread::Builder::new().name("control client".to_owned());
        let body = {
            let stream = Arc::clone(&stream);
            move || {
                SERVES.set(place.shared);
                let _place = place;
                // An error means that the client is gone.
                let _ = serve(&stream, tree);
            }
        };
        let spawned = check_room_for_thread().and_then(|()| named.spawn_scoped(scope, body));
        if let Err(error) = spawned {
            turn_away(&stream, wire::BUSY, &format!("there is no thread for you: {error}"));
        }
    }
}

/// One of the [`CONNECTIONS_MAX`] places; free again when dropped, even in a panic.
struct Place<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.clients().streams.remove(&self.number);
    }
}

/// Says why a connection ends. This is the last thing that is written, so it need not arrive.
fn turn_away(mut stream: &UnixStream, kind: &str, message: &str) {
    let _ = stream.write_all(&Answer::Failed(Failure::new(kind, message)).line());
}

/// Answers a client until it leaves or takes too long.
fn serve(mut stream: &UnixStream, tree: &dyn AttributeTree) -> io::Result<()> {
    send(stream, &wire::greeting())?;
    let mut lines = Lines::new(REQUEST_LENGTH_MAX);
    let mut deadline = Instant::now() + IDLE_TIME;
    let mut buffer = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // 0 would mean: wait forever.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let (time, what) = if lines.is_within_line() {
                    (LINE_TIME, "half a line")
                } else {
                    (IDLE_TIME, "no request")
                };
                let message = format!("{what} came in {} s: connect again", time.as_secs());
                turn_away(stream, wire::TIMEOUT, &message);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let was_within_line = lines.is_within_line();
        lines.push(&buffer[..count]);
        let mut answered = false;
        while let Some(line) = lines.next() {
            send(stream, &answer(&line, tree).line())?;
            answered = true;
        }
        // Bytes that come one by one do not put off the end of their line.
        if !lines.is_within_line() {
            deadline = Instant::now() + IDLE_TIME;
        } else if answered || !was_within_line {
            deadline = Instant::now() + LINE_TIME;
        }
    }
}

/// Sends all bytes in [`LINE_TIME`], however slowly they are taken.
fn send(mut stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + LINE_TIME;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // 0 would mean: wait forever.
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        // The timeout applies to each piece into which the kernel cuts what it is given.
        match stream.write(&bytes[..bytes.len().min(SENT_AT_A_TIME)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn answer(line: &Line, tree: &dyn AttributeTree) -> Answer {
    let line = match line {
        Line::Whole(line) => line,
        Line::TooLong => {
            let message = format!("a request is at most {REQUEST_LENGTH_MAX} bytes long");
            return Answer::Failed(Failure::new(wire::TOO_LONG, message));
        }
    };
    let request = match Request::parse(line) {
        Err(failure) => return Answer::Failed(failure),
        Ok(request) => request,
    };
    let path = match &request {
        Request::List { prefix: path } | Request::Get { path } | Request::Set { path, .. } => path,
    };
    // The tree is the program's, and a mistake in it is one for this request alone.
    let asked = catch_unwind(AssertUnwindSafe(|| match &request {
        Request::List { prefix } => {
            let mut list = tree.list();
            list.retain(|attribute| attribute.is_below(prefix));
            Ok(Answer::Attributes(list))
        }
        Request::Get { path } => tree.get(path).map(Answer::Value),
        Request::Set { path, value } => tree.set(path, value).map(|()| Answer::Done),
    }));
    let result = asked.unwrap_or_else(|payload| {
        // Dropping it may panic as well.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(another);
        }
        let reason = "the program's code for it panicked, and says why on its standard error";
        Err(AttributeError::failed(path, reason))
    });
    result.unwrap_or_else(Answer::Refused)
}
