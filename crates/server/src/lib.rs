//! The block server: NBD clients on one side, volumes on the other.
//!
//! ```text
//!  client ── stream ── connection ──┬── inline ─────────────── device
//!                       (a thread)  └── crypt workqueue ────── device ── reply by the worker
//!                                   └── flush workqueue ────── device ── reply by the worker
//! ```
//!
//! Each connection has a thread that reads requests in batches, carries them out in place and
//! answers in batches. Requests that are long enough to be worth it go to the `crypt` workqueue if
//! CPUs are idle (`homing-sched` decides). Flushes go to the `flush` workqueue, so that the
//! connection can go on meanwhile, and from there to the engine of `homing-durable`, where the
//! flushes of all connections share syncs if that is faster. The thread that finishes a request
//! sends its reply.
//!
//! Rules:
//!
//! * `SERVE-1` A reply is sent after its request is done; FLUSH and FUA are done when the device
//!   says so. A connection has no state that a flush on another connection would miss, and a flush
//!   is never answered by a sync that began before the flush came (`DURABLE-1`). This is what makes
//!   `CAN_MULTI_CONN` true.
//! * `SERVE-2` Replies are written whole, by one thread at a time, and no worker waits for a
//!   client.
//! * `SERVE-3` A connection holds at most [`IN_FLIGHT_BYTES_MAX`] of queued requests; it reads no
//!   further until some are done.
//! * `SERVE-4` All connections together hold at most [`ServerOptions::request_memory_max`] of
//!   requests and replies, beyond [`CONNECTION_BYTES_MAX`] each and a fourth of it, of 64 MiB at
//!   most, that is kept for the next ones. A client that keeps others waiting
//!   for this memory is cut off. A connection without requests gives its buffers back; the buffer
//!   of a client that idles within a request counts as part of this memory.
//!
//! Read on in this order: `listener`, `stream`, `tls`, `certificates`, `validity`, `server`,
//! `clients`, `memory`, `patience`, `negotiation`, `connection`, `busy_poll`, `job`, `batch`,
//! `punching`, `peer`, `pool`, `buffers`, `counters`, `attributes`, `metrics`, `background`,
//! `load`, `sync`.
#![forbid(unsafe_code)]

mod attributes;
mod background;
mod batch;
mod buffers;
mod busy_poll;
mod certificates;
mod clients;
mod connection;
mod counters;
mod job;
mod listener;
pub mod load;
mod memory;
mod metrics;
mod negotiation;
mod patience;
mod peer;
mod pool;
mod punching;
mod server;
mod stream;
mod sync;
mod tls;
mod validity;

pub use attributes::ServerAttributes;
pub use background::OnWorkqueue;
pub use certificates::{CertificateError, Certificates, VerifyPeer};
pub use listener::{Endpoint, ListenError};
pub use peer::IN_FLIGHT_BYTES_MAX;
pub use pool::CONNECTION_BYTES_MAX;
pub use server::{CryptOn, ServedExport, Server, ServerHandle, ServerOptions};
