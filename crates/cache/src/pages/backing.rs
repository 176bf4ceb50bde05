//! What a cached file is made of.

use std::io;

/// Where the pages of a file are read from and written to. Many threads use it at the same time.
/// While one of them writes a page, no other uses the same page, unless the backing [allows
/// that](Self::reads_may_meet_writes).
///
/// A page may be written at any time after it was changed. A backing that keeps a write-ahead log
/// of the changes waits here until the log is durable: it may block.
///
/// Whatever the backing holds, it must not drop the last handle of a cache while that cache is
/// calling it: the drop would wait for the answer to that call.
///
/// Offsets and lengths are those of whole pages, except where the file ends within its last page.
///
/// ```
/// use std::fs::File;
/// use std::io::{Error, Result};
/// use std::os::unix::fs::FileExt;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use homing_cache::pages::Backing;
///
/// struct Disk {
///     file: File,
///     failed: AtomicBool,
/// }
///
/// impl Backing for Disk {
///     fn size(&self) -> u64 {
///         1 << 20
///     }
///     fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
///         self.file.read_exact_at(data, offset)
///     }
///     fn write(&self, offset: u64, data: &mut [u8]) -> Result<()> {
///         self.file.write_all_at(data, offset)
///     }
///     fn flush(&self) -> Result<()> {
///         // The kernel tells once that it has lost data, and then forgets it.
///         if self.failed.load(Ordering::SeqCst) {
///             return Err(Error::other("an earlier flush has failed"));
///         }
///         self.file.sync_data().inspect_err(|_| self.failed.store(true, Ordering::SeqCst))
///     }
/// }
///
/// // The default methods are built from these; a disk with something better overrides them.
/// let disk = Disk { file: tempfile::tempfile()?, failed: AtomicBool::new(false) };
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

    /// The identity of what this reads and writes, if it can be told: for example the device and
    /// inode of a file. Two backings with the same identity are two ways to the same bytes.
    /// [`open`](super::PageCache::open) uses it to find what a dropped handle could not write.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// Whether a page may be read while it is written, zeroed or discarded. Such a read returns any
    /// mixture of the contents before and after, or, with encryption, what deciphering such a
    /// mixture gives. Only callers that read and write a page of the cache at the same time get
    /// that. In return, misses cost less if reading is fast.
    fn reads_may_meet_writes(&self) -> bool {
        false
    }

    /// Fills `data` from `offset`. If it fails, the contents of `data` are not used.
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`. It may change `data`, so a backing that encrypts can do so in
    /// place. If it fails, any part of the data may have been written; it will be written again.
    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset` and makes it durable.
    fn write_durably(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.write(offset, data)?;
        self.flush()
    }

    /// Makes durable what all writes that have returned have written. After it has failed, it must
    /// not succeed again unless everything accepted before is still sure to become durable: the
    /// cache has no copy of it. `sync_data` alone does not do: a second one succeeds. Examples that
    /// have nothing to lose leave that out.
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

    /// Says that the contents are no longer needed: they are undefined afterwards. It may do
    /// nothing.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }
}

/// Zeroes written at a time.
const ZEROES_LEN: u64 = 256 << 10;
