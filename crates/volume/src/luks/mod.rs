//! LUKS2 containers (and LUKS1, to open): made and opened so that `cryptsetup` and this crate can
//! use each other's.
//!
//! The header belongs to `libcryptsetup`. It never sees the container itself when one is opened:
//! it gets a copy of the header area in memory, so that opening writes nothing, waits for no lock
//! and needs no path. Key slots are managed with `cryptsetup luksAddKey` and its like.
//!
//! Read on in this order: `error`, `hold`, `library`, `header`, `format`.

mod error;
mod format;
mod header;
mod hold;
mod library;

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use homing_cache::pages::{Group, PageCache};

pub use error::LuksError;
pub use format::{FormatOptions, Kdf, format};

use crate::block::Block;
use crate::bytes::Bytes;
use crate::cached::{Cached, WritePolicy};
use crate::crypt::Crypt;
use crate::file::File;
use crate::xts::{Cipher, SectorSize, XtsKey};

/// What an opened container may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only; the file may be read-only too.
    ReadOnly,
    /// Reading and writing. Nobody else may have the container open for writing.
    ReadWrite,
}

/// Opens the container at `path` with a passphrase and stacks its layers: byte access over
/// encryption over the file.
///
/// The key derivation takes as long and as much memory as the container's maker chose: about 1 s
/// and 1 GiB by default. Opening never writes to the file. If one of the two header copies is
/// damaged, the other is used.
///
/// # Errors
/// [`LuksError`] names the file and what to do.
pub fn open(
    path: &Path,
    passphrase: &[u8],
    access: Access,
) -> Result<Bytes<Crypt<File>>, LuksError> {
    let (file, lock) = hold::open(path, access)?;
    let length = length_of(path, &file)?;
    let (header, key) = header::unlock(path, &file, length, passphrase)?;
    let size = header.data_size(path, length)?;
    let key = XtsKey::new(&key).map_err(|problem| {
        LuksError::unsupported(path, format!("its key will not do: {problem}"))
    })?;
    let cipher = Cipher::new(&key, header.sector_size);
    let sector = header.sector_size.bytes();
    let mut file = File::new(file, header.data_offset, size, sector);
    file.keep_locked(lock);
    Ok(Bytes::new(Crypt::new(file, cipher, header.allow_discards)))
}

/// Opening a pipe would wait for its other end, so look before.
fn check_kind(path: &Path) -> Result<fs::Metadata, LuksError> {
    let metadata = fs::metadata(path).map_err(|source| LuksError::io("open", path, source))?;
    if metadata.is_dir() {
        let directory = io::Error::from(io::ErrorKind::IsADirectory);
        return Err(LuksError::io("open", path, directory));
    }
    if metadata.is_file() || metadata.file_type().is_block_device() {
        return Ok(metadata);
    }
    Err(LuksError::NotLuks { path: path.to_owned() })
}

/// The length in bytes of a file or block device.
fn length_of(path: &Path, file: &fs::File) -> Result<u64, LuksError> {
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    end.map_err(|errno| LuksError::io("examine", path, errno.into()))
}

/// What a container says of itself without a passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// The size of what it holds, in bytes.
    pub size: u64,
    /// What it encrypts at a time.
    pub sector_size: SectorSize,
    /// Whether discards reach the file.
    pub allows_discards: bool,
}

/// Looks at the container at `path`, without opening it.
///
/// # Errors
/// [`LuksError`] if there is no usable container.
pub fn look_at(path: &Path) -> Result<Container, LuksError> {
    check_kind(path)?;
    let file = fs::File::open(path).map_err(|source| LuksError::io("open", path, source))?;
    let length = length_of(path, &file)?;
    let header = header::read(path, &file, length)?;
    let (sector_size, allows_discards) = (header.sector_size, header.allow_discards);
    Ok(Container { size: header.data_size(path, length)?, sector_size, allows_discards })
}

/// Whether one of the two copies of a header is damaged, so that only the other one is left.
/// [`open`] works all the same, and does not repair it.
///
/// # Errors
/// [`LuksError`] if there is no usable container.
pub fn has_damaged_header(path: &Path) -> Result<bool, LuksError> {
    check_kind(path)?;
    let file = fs::File::open(path).map_err(|source| LuksError::io("open", path, source))?;
    let length = length_of(path, &file)?;
    header::is_repaired(path, &file, length)
}

/// The block device that [`open`] gives, with a cache over it.
///
/// # Errors
/// As [`open`], or [`LuksError::Unsupported`] if the volume is too large for the cache.
pub fn open_cached(
    path: &Path,
    passphrase: &[u8],
    access: Access,
    (cache, group): (&PageCache, &Group),
    policy: WritePolicy,
) -> Result<Arc<dyn Block>, LuksError> {
    let volume = open(path, passphrase, access)?;
    let cached = Cached::new(volume, cache, group, policy);
    Ok(Arc::new(cached.map_err(|problem| LuksError::unsupported(path, problem.to_string()))?))
}

/// The block device that [`open`] gives, without its type.
pub fn open_boxed(
    path: &Path,
    passphrase: &[u8],
    access: Access,
) -> Result<Arc<dyn Block>, LuksError> {
    Ok(Arc::new(open(path, passphrase, access)?))
}

#[cfg(test)]
mod tests;
