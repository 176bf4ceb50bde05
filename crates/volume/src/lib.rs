//! A volume is a block device made of layers, each a [`Block`] over a [`Block`]:
//!
//! ```text
//!  Cached        pages in memory, written back later; if there is a cache
//!   └ Bytes      any offset and length; read-modify-write of partial sectors
//!      └ Crypt   AES-256-XTS, sector by sector, in place
//!         └ File a range of a file: pread, pwrite, fdatasync; sticky errors
//! ```
//!
//! [`luks`] makes and opens the containers (the header is `libcryptsetup`'s business) and stacks
//! the layers. The data path is ours.
//!
//! ```no_run
//! use homing_volume::Block;
//! use homing_volume::luks::{self, FormatOptions};
//!
//! let path = std::path::Path::new("disk.img");
//! luks::format(path, &FormatOptions::new(1 << 30), b"a passphrase")?;
//! let volume = luks::open(path, b"a passphrase", luks::Access::ReadWrite)?;
//! volume.write(4096, &mut b"hello".to_vec(), homing_volume::Durability::Flushed)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read on in this order: `block`, `file`, `length`, `descriptions`, `syncs`, `forced`, `xts`,
//! `crypt`, `bytes`, `cached`, `luks`. Unsafe code is in `xts/aws_lc.rs` and `luks/hold.rs` alone.

mod block;
mod bytes;
mod cached;
mod crypt;
mod descriptions;
mod file;
mod forced;
#[cfg(test)]
mod layers_tests;
mod length;
#[cfg(target_os = "linux")]
pub mod luks;
mod syncs;
mod xts;

#[cfg(test)]
mod memory;

pub use block::{Block, BlockError, Done, Durability, Extent, Write};
pub use bytes::Bytes;
pub use cached::{Cached, WritePolicy};
pub use crypt::Crypt;
pub use file::File;
pub use syncs::FILES_EACH;
pub use xts::{Cipher, KeyError, SectorSize, XtsKey};
