//! The server: accepts clients, gives each a thread, and ends in good order.
//!
//! While it drains, the server accepts no more clients, and takes in nothing more. It finishes and
//! answers the requests that it has taken in, then flushes every device. It never says `ESHUTDOWN`:
//! QEMU would hand that on to its guest, while it sends again what has no answer when it is
//! connected again.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use homing::{Durable, Runtime, Scope, Workqueue, WorkqueueError};
use homing_nbd::{BlockSizes, Export, PAYLOAD_ACCEPTED_MAX};
use homing_socket::{RateLimit, check_room_for_thread};
use homing_volume::Block;

use crate::attributes::ServerAttributes;
use crate::busy_poll::Pollers;
use crate::certificates::Certificates;
use crate::clients::Clients;
use crate::connection;
use crate::listener::{Endpoint, ListenError, Listener};
use crate::negotiation::End;
use crate::peer::Peer;
use crate::pool::Pool;
use crate::stream::Stream;

/// Stack of a connection's thread. It has no deep calls and keeps its buffers on the heap.
const STACK_LEN: usize = 256 << 10;
/// How many durable writes and flushes may wait for a device at a time. Each may occupy a thread.
const FLUSHES_MAX: u32 = 256;

/// How long accepting pauses when the process is out of files or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a server that cannot end because a disk is full waits before it tries again.
const SPACE_PAUSE: Duration = Duration::from_secs(1);

/// How often a server that is ending says what it waits for.
const SLOW_FLUSH: Duration = Duration::from_secs(10);

/// A device under the name that clients ask for.
pub struct ServedExport {
    /// The name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The device. It must accept any offset and length.
    pub device: Arc<dyn Block>,
}

/// Which thread encrypts and decrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CryptOn {
    /// Whichever is cheaper for the request at the moment.
    Auto,
    /// The thread of the connection, always.
    Connection,
    /// A worker, always.
    Workqueue,
}

/// A longer time is taken for this one, so that it can be added to the clock's.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// If set, all clients have to speak TLS (NBD's STARTTLS).
    pub tls: Option<Certificates>,
    /// Clients at one time; more are turned away at once.
    pub connections_max: usize,
    /// How long a client may take to negotiate.
    pub handshake_timeout: Duration,
    /// What the requests of all clients may take together, in bytes, beyond
    /// [`CONNECTION_BYTES_MAX`] for each connection that has requests. If not enough is left, a
    /// client that sends or wants more than 256 KiB at a time waits until others are done; a single
    /// request is never too long. Of several exports each gets no more of it than it leaves free,
    /// except for a single client. The buffer of a client that has stopped for a second within a
    /// request counts here too.
    ///
    /// [`CONNECTION_BYTES_MAX`]: crate::CONNECTION_BYTES_MAX
    pub request_memory_max: usize,
    /// How long a client may keep others waiting for memory while it neither sends requests nor
    /// takes its replies, or does so at less than 256 KiB/s. Then it is cut off.
    pub stall_timeout: Duration,
    /// How long clients may take to read their replies when the server stops. Requests that are
    /// still being carried out then are waited for, and answered.
    pub drain_timeout: Duration,
    /// Whether a server that is to stop waits until there is space for what its caches have
    /// accepted.
    pub waits_for_space: bool,
    /// The scope of the `crypt` workqueue.
    pub affinity_scope: Scope,
    /// Whether its items never leave their pod.
    pub affinity_strict: bool,
    /// Which thread encrypts and decrypts.
    pub crypt_on: CryptOn,
    /// How long a connection polls for its next request before it sleeps, if its last request came
    /// within this time. While it polls, it yields its CPU to any thread that is to run there. It
    /// does not poll while more connections than half the number of CPUs are as lively.
    pub busy_poll: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            tls: None,
            connections_max: 10_000,
            handshake_timeout: Duration::from_secs(30),
            request_memory_max: 1 << 30,
            stall_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            waits_for_space: false,
            affinity_scope: Scope::Cache,
            affinity_strict: false,
            crypt_on: CryptOn::Auto,
            busy_poll: Duration::from_micros(50),
        }
    }
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) told: Vec<Export>,
    pub(crate) devices: Vec<Arc<dyn Block>>,
    pub(crate) crypt: Workqueue,
    /// One for each device, so that a device that hangs holds up no other.
    pub(crate) flushes: Vec<Workqueue>,
    pub(crate) durable: Durable,
    pub(crate) draining: Arc<AtomicBool>,
    pub(crate) crypt_on: CryptOn,
    pub(crate) pollers: Arc<Pollers>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) tls: Option<Certificates>,
    clients: Arc<Clients>,
}

/// A listening server. [`Server::run`] serves until its [`ServerHandle`] says stop.
pub struct Server {
    listener: Arc<Listener>,
    shared: Arc<Shared>,
    waits_for_space: bool,
}

/// Stops a server from another thread. The handle keeps no device open.
#[derive(Clone)]
pub struct ServerHandle {
    listener: Arc<Listener>,
    draining: Arc<AtomicBool>,
    pool: Arc<Pool>,
}

impl Server {
    /// Listens on `endpoint`. Clients can connect from now on; they are served by [`Server::run`].
    ///
    /// # Errors
    /// [`ListenError`] names the path or address.
    pub fn bind(
        runtime: &Runtime,
        endpoint: &Endpoint,
        exports: Vec<ServedExport>,
        options: &ServerOptions,
    ) -> Result<Self, ListenError> {
        let queue = |name: &str, max_active: Option<u32>| -> Result<Workqueue, WorkqueueError> {
            let builder = runtime.workqueue(name).affinity_scope(options.affinity_scope);
            let builder = builder.affinity_strict(options.affinity_strict);
            match max_active {
                Some(max_active) => builder.max_active(max_active).build(),
                None => builder.build(),
            }
        };
        let told: Vec<_> = exports.iter().map(tell).collect();
        let flush = |export: &Export| {
            let name = if told.len() == 1 { "flush".to_owned() } else { flush_name(&export.name) };
            queue(&name, Some(FLUSHES_MAX))
        };
        let flushes = told.iter().map(flush).collect::<Result<_, _>>()?;
        let names = told.iter().map(|export| export.name.clone()).collect();
        let durable = Durable::of(runtime);
        for export in &exports {
            export.device.report_to(&durable);
        }
        Ok(Self {
            listener: Arc::new(Listener::bind(endpoint)?),
            waits_for_space: options.waits_for_space,
            shared: Arc::new(Shared {
                told,
                devices: exports.into_iter().map(|export| export.device).collect(),
                crypt: queue("crypt", None)?,
                flushes,
                durable,
                draining: Arc::default(),
                crypt_on: options.crypt_on,
                pollers: Arc::new(Pollers::new(options.busy_poll)),
                pool: Arc::new(Pool::new(options.request_memory_max)),
                handshake_timeout: options.handshake_timeout.min(FOR_EVER),
                tls: options.tls.clone(),
                clients: Arc::new(Clients::new(
                    options.connections_max,
                    options.request_memory_max,
                    names,
                    options.stall_timeout.min(FOR_EVER),
                    options.drain_timeout.min(FOR_EVER),
                )),
            }),
        })
    }

    /// Where it listens. If the port was 0, this has the actual one.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        self.listener.endpoint()
    }

    /// A handle to stop it.
    pub fn handle(&self) -> ServerHandle {
        let Shared { draining, pool, .. } = &*self.shared;
        ServerHandle {
            listener: Arc::clone(&self.listener),
            draining: Arc::clone(draining),
            pool: Arc::clone(pool),
        }
    }

    /// Whether a server was there before that left its socket: it was killed, or its last flush
    /// failed. With a write-back cache, what it had answered and not flushed is lost, and clients
    /// that have connected again since are not told.
    pub fn follows_one_that_did_not_end(&self) -> bool {
        self.listener.replaced_stale()
    }

    /// The workqueue that long requests go to; its attributes are live.
    pub fn crypt_workqueue(&self) -> &Workqueue {
        &self.shared.crypt
    }

    /// The engine that flushes go through; its attributes are live.
    pub fn durable(&self) -> &Durable {
        &self.shared.durable
    }

    /// What clients ask of it, live.
    pub fn attributes(&self) -> ServerAttributes {
        ServerAttributes(Arc::clone(&self.shared.clients))
    }

    /// Serves until told to stop; then finishes what was received, and makes every device durable.
    ///
    /// # Errors
    /// The names of exports whose last flush failed, with the reason; not for want of space if
    /// [`ServerOptions::waits_for_space`].
    pub fn run(self) -> Result<(), Vec<(String, homing_volume::BlockError)>> {
        loop {
            let accepted = self.listener.accept();
            let draining = self.shared.draining.load(Ordering::Acquire);
            match accepted {
                _ if draining => break,
                Ok(stream) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of files or memory: the connections that exist go on, and may free some.
                    static FAILURES: RateLimit = RateLimit::new();
                    FAILURES.log(|left_out| {
                        tracing::warn!(%error, left_out, "cannot accept a connection");
                    });
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
        // From here on no client can connect, or wait for us to accept it.
        self.hang_up_on_the_waiting();
        let all_left = self.shared.clients.drain();
        // The clients may have held all files that may be open, so that accepting failed before.
        self.hang_up_on_the_waiting();
        let mut failed = self.shared.flush_all();
        if !all_left {
            // The remaining clients wait for their disk. They must not keep the others from their
            // last flush, which is why that came first.
            self.shared.clients.wait_for_the_rest();
            self.hang_up_on_the_waiting();
            failed = self.shared.flush_all();
        }
        if self.waits_for_space {
            failed = self.shared.wait_for_space(failed);
        }
        // Only now: if this program is ended before, the next one finds the name.
        if failed.is_empty() {
            self.listener.close();
            return Ok(());
        }
        self.listener.leave();
        Err(failed)
    }

    /// A client that had connected but was not accepted would otherwise wait for as long as a
    /// handle keeps the listener open.
    fn hang_up_on_the_waiting(&self) {
        let goes_on = [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted];
        while self.listener.accept().map_or_else(|error| goes_on.contains(&error.kind()), |_| true)
        {
        }
    }

    fn admit(&self, stream: Stream) {
        stream.tune();
        let clients = &self.shared.clients;
        let peer = Arc::new(Peer::new(stream, clients));
        let Some(id) = clients.register(&peer) else { return };
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let registered = Registered { shared: &shared, peer: &peer, id };
            // Now: later the connection may be gone.
            let from = peer.stream.peer();
            match connection::serve(&shared, &peer) {
                Ok(()) => tracing::debug!(id, from, "client left"),
                // A machine that was switched off, say. Others hear of what is lost when they look.
                Err(End::Stream(error)) if is_hang_up(&error) => {
                    tracing::debug!(id, from, %error, "client left without a word");
                }
                Err(error) => {
                    // Anybody can connect and send nonsense.
                    static ENDS: RateLimit = RateLimit::new();
                    let what = "connection ended";
                    ENDS.log(|left_out| tracing::warn!(id, from, %error, left_out, "{what}"));
                }
            }
            drop(registered);
        };
        let builder = thread::Builder::new().name(format!("nbd/{id}")).stack_size(STACK_LEN);
        if let Err(error) = check_room_for_thread().and_then(|()| builder.spawn(body)) {
            static FAILURES: RateLimit = RateLimit::new();
            let what = "no thread for a connection: it is closed";
            FAILURES.log(|left_out| tracing::warn!(%error, left_out, "{what}"));
            self.shared.clients.unregister(id);
        }
    }
}

impl ServerHandle {
    /// Tells the server to stop. Returns at once; [`Server::run`] returns when it is done.
    pub fn stop(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            self.listener.wake();
        }
    }

    /// Bytes of the buffers that all connections have at present.
    pub fn buffer_bytes(&self) -> usize {
        self.pool.lent()
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

/// Hangs up and unregisters a connection, even if its thread panics: nothing else would end the
/// wait for a client that takes no replies.
struct Registered<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
    id: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.peer.shutdown(Shutdown::Both);
        self.shared.clients.unregister(self.id);
    }
}

/// The names of exports whose last flush failed, with the reason.
type Failed = Vec<(String, homing_volume::BlockError)>;

impl Shared {
    /// Flushes again and again until no flush fails for want of space. Returns those that fail for
    /// another reason.
    fn wait_for_space(&self, mut failed: Failed) -> Failed {
        let mut tries = 0;
        while failed.iter().any(|(_, error)| error.is_full()) {
            if tries < 2 || tries % 60 == 0 {
                for (export, error) in &failed {
                    tracing::error!(export, %error, "the last flush failed");
                }
                let what = "no space for what has been written: make room (or raise the quota, or the \
                    limit on files), and this server ends; if it is ended at once, that is lost";
                tracing::error!("{what}");
            }
            tries += 1;
            thread::sleep(SPACE_PAUSE);
            failed = self.flush_all();
        }
        failed
    }

    /// Makes every device durable, all at the same time, so that a disk that hangs delays no other.
    /// Returns the names of the exports where that failed, and why.
    fn flush_all(&self) -> Failed {
        let exports = self.told.iter().zip(&self.devices).filter(|(export, _)| !export.read_only);
        thread::scope(|scope| {
            let (done, ended) = mpsc::channel::<()>();
            let flushes = exports.map(|(export, device)| {
                let done = done.clone();
                let flush = move || {
                    let error = device.flush().err();
                    // That it is dropped is told.
                    drop(done);
                    error
                };
                let begun = thread::Builder::new().name("last flush".to_owned());
                let begun = check_room_for_thread().and_then(|()| begun.spawn_scoped(scope, flush));
                (export, device, begun)
            });
            let (threads, here): (Vec<_>, Vec<_>) = flushes.partition(|(.., begun)| begun.is_ok());
            // If there can be no thread, this one flushes the device, before it waits for any
            // other.
            let here = here.into_iter().map(|(export, device, _)| (export, device.flush().err()));
            let here: Vec<_> = here.collect();
            drop(done);
            while ended.recv_timeout(SLOW_FLUSH) == Err(RecvTimeoutError::Timeout) {
                let slow = threads
                    .iter()
                    .filter(|(.., begun)| begun.as_ref().is_ok_and(|thread| !thread.is_finished()));
                let slow: Vec<_> = slow.map(|(export, ..)| &*export.name).collect();
                tracing::info!(exports = slow.join(", "), "still making durable what was written");
            }
            let threads = threads.into_iter().map(|(export, device, begun)| {
                let ended = begun.ok().and_then(|thread| thread.join().ok());
                // If the thread panicked, flush here.
                (export, ended.unwrap_or_else(|| device.flush().err()))
            });
            let ended = here.into_iter().chain(threads);
            ended.filter_map(|(export, error)| Some((export.name.clone(), error?))).collect()
        })
    }
}

/// The name of the workqueue that flushes one export of several. Names of workqueues allow fewer
/// characters than those of exports, and are shorter.
fn flush_name(export: &str) -> String {
    let fitting = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    format!("flush-{export}").chars().map(fitting).take(32).collect()
}

fn tell(export: &ServedExport) -> Export {
    Export {
        name: export.name.clone(),
        description: export.description.clone(),
        size: export.device.size(),
        read_only: export.read_only,
        block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: PAYLOAD_ACCEPTED_MAX },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_an_export_makes_one_of_a_workqueue() {
        assert_eq!(flush_name("db-1.old"), "flush-db-1.old");
        let runtime = Runtime::new().unwrap();
        for export in ["", "a/b c", "größe", &"x".repeat(4000)] {
            let name = flush_name(export);
            assert!(runtime.workqueue(&name).build().is_ok(), "{name}");
        }
    }
}
