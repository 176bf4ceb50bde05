//! A block device in memory, for tests and benchmarks: its flushes take as long as its user wants,
//! and after a power cut it may have forgotten whatever was not flushed.
//!
//! ```text
//! filesystem (XFS, …)       volume.rs      made, mounted, unmounted when dropped
//!     │
//! loop device               volume.rs      attached by losetup
//!     │
//! file served by FUSE       fuse.rs        one file, which is the whole mount
//!     │
//! Disk                      disk.rs        flushes, and a record of what came in which order
//!     │
//! Image                     image.rs       sparse blocks; copies share them
//! ```
//!
//! Sectors and flushes can be made to fail, and flushes of the file to be interrupted. A record
//! (`record.rs`) gives the images that a cut at any moment may leave. Nothing here is part of what
//! homing offers: it needs root, FUSE and a loop device, and says so if they are missing.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod disk;
mod fuse;
mod image;
mod record;
mod volume;

pub use disk::{BAD, Broken, Disk};
pub use fuse::Served;
pub use image::{BLOCK, Image};
pub use record::{Cut, Event, Random, Record, number};
pub use volume::{Filesystem, Volume, available, missing, unavailable};
