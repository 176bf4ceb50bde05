//! What a cached file is made of.

use std::io;

/// Where the pages of a file are read from and written to. Many threads use it at a time, but never
/// two for the same page if one of them writes, unless it [allows that](Self::reads_may_meet_writes).
///
/// A page may be written at any time after it was changed. Who keeps a write-ahead log of the changes waits here until
/// that is durable: it may block.
///
/// Whatever it holds, it is not to be who drops the last handle of a cache while that asks it for something: the cache
/// would wait for its answer.
///
/// Offsets are those of whole pages; lengths, too, but where the file ends within its last page.
///
/// ```
/// use std::{fs::File, io::Result, os::unix::fs::FileExt};
/// use homing_cache::pages::Backing;
///
/// struct Disk(File);
///
/// impl Backing for Disk {
///     fn size(&self) -> u64 {
///         1 << 20
///     }
///     fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
///         self.0.read_exact_at(data, offset)
///     }
///     fn write(&self, offset: u64, data: &mut [u8]) -> Result<()> {
///         self.0.write_all_at(data, offset)
///     }
///     fn flush(&self) -> Result<()> {
///         self.0.sync_data()
///     }
/// }
///
/// // The rest is made of these, unless the disk has something better.
/// let disk = Disk(tempfile::tempfile()?);
/// disk.write_durably(0, &mut [7; 4096])?;
/// disk.write_zeroes(512, 512)?;
/// disk.discard(1024, 512)?;
/// let mut data = [1; 1024];
/// disk.read(0, &mut data)?;
/// assert!(data[..512] == [7; 512] && data[512..] == [0; 512]);
/// assert!(!disk.reads_may_meet_writes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Backing: Send + Sync {
    /// The size in bytes. It does not change while the file is open.
    fn size(&self) -> u64;

    /// What it is that this reads and writes, where that can be told: device and inode of a file, say. Two with the
    /// same identity are two ways to the same bytes. [`open`](super::PageCache::open) asks, to find what a handle
    /// that was dropped could not write.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// Whether a page may be read while it is written, zeroed or discarded. What the read gives then is
    /// any mixture of before and after, or over encryption what comes of deciphering one. Only who reads and writes a page of the cache at the same time
    /// gets that, and misses cost less where reading is fast.
    fn reads_may_meet_writes(&self) -> bool {
        false
    }

    /// Fills `data` from `offset`. What it leaves in `data` when it fails is not used.
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`. It may change `data`, so what encrypts can do so in place. When it
    /// fails, any part of it may be written: it will be written again.
    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes, and makes what was written durable.
    fn write_durably(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.write(offset, data)?;
        self.flush()
    }

    /// Makes durable whatever a write that has returned wrote. After it has failed, none may succeed
    /// any more unless what was accepted before is still sure to become durable: the cache has no
    /// copy of it.
    fn flush(&self) -> io::Result<()>;

    /// Writes zeroes.
    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut zeroes = vec![0; length.min(ZEROES_LEN) as usize];
        for at in (0..length).step_by(ZEROES_LEN as usize) {
            let count = (length - at).min(ZEROES_LEN) as usize;
            zeroes.fill(0);
            self.write(offset + at, &mut zeroes[..count])?;
        }
        Ok(())
    }

    /// The contents are not needed any more: what they are afterwards is undefined. It may do
    /// nothing.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }
}

/// Zeroes written at a time.
const ZEROES_LEN: u64 = 256 << 10;
