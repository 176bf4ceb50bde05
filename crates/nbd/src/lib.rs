//! The NBD protocol: the server's side, and enough of the client's side to talk to oneself. Bytes
//! in, bytes out, no sockets here.
//!
//! The specification is <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md> ("the
//! spec" below). Supported are fixed newstyle negotiation, structured replies, the
//! `base:allocation` context, block size limits, STARTTLS, and every command but the experimental
//! ones. Anything else is refused as the spec says, and the connection goes on.
//!
//! ```text
//!            Handshake::advance            RequestHeader::parse     validate
//! greeting -> options ... -> Session   ->   header (+ payload)   ->  Command  -> reply::*
//! ```
//!
//! Read on in this order: `wire` (every number of the protocol), `export`, `handshake`, `request`,
//! `reply`, `client`.
#![forbid(unsafe_code)]

mod client;
mod error;
mod export;
mod handshake;
pub mod reply;
mod request;
pub mod wire;

pub use client::{ClientHandshake, ClientStep, Connected};
pub use error::PeerError;
pub use export::{BlockSizes, Export};
pub use handshake::{Handshake, Progress, Session, Tls, greeting};
pub use request::{Command, PAYLOAD_ACCEPTED_MAX, Refusal, RequestHeader, validate};
pub use wire::Errno;
