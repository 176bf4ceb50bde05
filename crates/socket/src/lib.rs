//! Unix sockets that a server listens on and that only their owner connects to.
//!
//! The hard part is the socket's file: it is made for its owner alone, never in place of a live
//! server's, and removed if it is still ours. What is said over the sockets is not this crate's
//! concern.
//!
//! ```
//! use std::time::Duration;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("disk.sock");
//! let listener = homing_socket::Listener::bind(&path, 64)?;
//! let client = homing_socket::dial(&path, Duration::from_secs(1))?;
//! let server = listener.accept()?;
//! let error = homing_socket::Listener::bind(&path, 64).unwrap_err();
//! assert!(error.to_string().contains("another program listens there"));
//! drop(listener); // removes the file
//! assert!(!path.exists());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read on in this order: `listener`, `dial`, `error`, `rate_limit`, `room`.
#![forbid(unsafe_code)]

mod dial;
mod error;
mod listener;
mod rate_limit;
mod room;

pub use dial::dial;
pub use error::BindError;
pub use listener::Listener;
pub use rate_limit::RateLimit;
pub use room::check_room_for_thread;
