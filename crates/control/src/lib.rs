//! A program's live attributes, by path, and the socket on which others list, read and write them.
//!
//! ```text
//!  AttributeTree ── Trees ── ControlSocket ──── lines of JSON ──── Client
//!  (whose it is,    (many     (a Unix socket,                      (`homing get` and others)
//!   we don't know)   as one)   for its owner)
//! ```
//!
//! The protocol is in `README.md` next to this folder.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use homing_control::{Attribute, AttributeError, AttributeTree, Client, ControlSocket};
//!
//! #[derive(Default)]
//! struct Volume(Mutex<u8>);
//!
//! impl AttributeTree for Volume {
//!     fn list(&self) -> Vec<Attribute> {
//!         vec![Attribute { path: "volume".to_owned(), writable: true }]
//!     }
//!
//!     fn get(&self, path: &str) -> Result<String, AttributeError> {
//!         match path {
//!             "volume" => Ok(self.0.lock().unwrap().to_string()),
//!             _ => Err(AttributeError::not_found(path)),
//!         }
//!     }
//!
//!     fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
//!         self.get(path)?;
//!         let refused = |_| AttributeError::refused(path, value, "a number from 0 to 255");
//!         *self.0.lock().unwrap() = value.parse().map_err(refused)?;
//!         Ok(())
//!     }
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("control");
//! let socket = ControlSocket::listen(&path, Arc::new(Volume::default()))?;
//! let mut client = Client::connect(&path)?;
//! client.set("volume", "11")?;
//! assert_eq!(client.get("volume")?, "11");
//! assert!(client.set("volume", "loud").unwrap_err().to_string().contains("from 0 to 255"));
//! drop(socket); // ends its threads and removes the file
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read the modules in this order: `attribute`, `trees`, `below`, `wire`, `lines`, `socket`,
//! `client`, and those of values: `printable`, `byte_size`, `switch`, `flat_keyed`.
#![forbid(unsafe_code)]

mod attribute;
mod below;
mod byte_size;
mod client;
mod flat_keyed;
mod lines;
mod printable;
mod socket;
mod switch;
mod trees;
mod wire;

pub use attribute::{Attribute, AttributeError, AttributeTree};
pub use below::Below;
pub use byte_size::ByteSize;
pub use client::{Client, ClientError};
pub use flat_keyed::flat_keyed;
pub use printable::printable_name;
pub use socket::{CONNECTIONS_MAX, ControlSocket};
pub use switch::Switch;
pub use trees::Trees;
pub use wire::REQUEST_LENGTH_MAX;
