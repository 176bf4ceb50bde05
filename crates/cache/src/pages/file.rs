//! The handle of a file in the cache.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::PageCache;
use super::backing::Backing;
use super::core::Core;
use super::error::{FileError, OpenError};
use super::files::FileState;
use super::group::Group;

/// A file or volume in the cache, for reads and writes at any offset, by many threads at a time.
///
/// A write is in the cache when it returns; [`flush`](Self::flush) makes it durable. Calls that
/// overlap in time are not ordered, but aligned words are never torn in the cache.
///
/// Dropping the file closes it. If that fails, its dirty pages stay in the cache until they can be
/// written. The cache tries again as requests go on, and once more when its last handle is dropped;
/// what cannot be written even then is lost. To learn of a failure, call [`close`](Self::close).
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use homing_cache::pages::{Backing, PageCache};
///
/// struct Memory(Mutex<Vec<u8>>);
///
/// impl Backing for Memory {
///     fn size(&self) -> u64 {
///         self.0.lock().unwrap().len() as u64
///     }
///     fn read(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
///         data.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..data.len()]);
///         Ok(())
///     }
///     fn write(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
///         self.0.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
///         Ok(())
///     }
///     fn flush(&self) -> std::io::Result<()> {
///         Ok(())
///     }
/// }
///
/// let cache = PageCache::builder(8 << 20).build()?;
/// let group = cache.group("tenant").build();
/// let memory = Arc::new(Memory(Mutex::new(vec![0; 1 << 20])));
/// let file = cache.open(memory.clone(), &group)?;
/// file.write(5000, b"hello")?;
/// let mut data = [0; 5];
/// file.read(5000, &mut data)?;
/// assert_eq!(&data, b"hello");
/// file.flush(5000, 5)?;
/// assert_eq!(&memory.0.lock().unwrap()[5000..5005], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What is in the cache can be written to the disk step by step, or at once:
///
/// ```
/// # use homing_cache::pages::PageCache;
/// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
/// # struct Disk(File);
/// # impl homing_cache::pages::Backing for Disk {
/// #     fn size(&self) -> u64 { 1 << 20 }
/// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
/// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
/// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
/// # }
/// # let temporary = tempfile::tempfile()?;
/// # temporary.set_len(1 << 20)?;
/// # let disk = Arc::new(Disk(temporary));
/// # let cache = PageCache::builder(4 << 20).build()?;
/// # let group = cache.group("tenant").build();
/// let file = cache.open(disk, &group)?;
/// file.write(0, b"one")?; // dirty
/// assert_eq!((file.group().dirty(), file.size()), (4096, 1 << 20));
/// file.write_back(0, 3)?; // clean, but the disk may have it in its own cache
/// assert_eq!(group.dirty(), 0);
/// file.flush_all()?; // durable
/// file.write_through(4096, b"two")?; // durable at once
/// file.write_zeroes(4096, 8192)?; // durable with the next flush
/// file.discard(16384, 4096)?; // not needed any more
/// file.prefetch(32768, 4096); // needed soon: read in the background
/// file.close()?;
/// assert_eq!(group.usage(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CachedFile {
    cache: PageCache,
    state: Option<Arc<FileState>>,
}

/// A file that could not be closed. It can still be used, and closed again.
///
/// ```
/// use homing_cache::pages::{FileError, PageCache};
/// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
/// # struct Disk(File);
/// # impl homing_cache::pages::Backing for Disk {
/// #     fn size(&self) -> u64 { 1 << 20 }
/// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
/// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
/// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
/// # }
/// # let cache = PageCache::builder(4 << 20).build()?;
/// # let group = cache.group("tenant").build();
/// # let temporary = tempfile::NamedTempFile::new()?;
///
/// let read_only = Disk(File::open(temporary.path())?);
/// let file = cache.open(Arc::new(read_only), &group)?;
/// file.write(0, &[7; 4096])?;
/// let error = file.close().unwrap_err();
/// assert!(matches!(error.source, FileError::Write { offset: 0, .. }));
/// let mut data = [0; 4096];
/// error.file.read(0, &mut data)?; // nothing is lost
/// assert_eq!(data, [7; 4096]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("closing a cached file: {source}")]
pub struct CloseError {
    /// The file.
    pub file: CachedFile,
    /// Why.
    pub source: FileError,
}

impl PageCache {
    /// Opens a file for a group. Have one handle of a backing at a time: the new handle does not
    /// know what another has in the cache, which may overwrite what the new one writes.
    ///
    /// What a dropped handle of the same file could not write is written first. If that fails, the
    /// file is not opened. The cache recognizes the file by its backing, or by its
    /// [identity](Backing::identity). Dropped files of this group and size may also be the same
    /// file if an identity is missing: the cache tries to write those too, which may take as long
    /// as their disk takes, but it ignores a failure. So give identities.
    pub fn open(&self, backing: Arc<dyn Backing>, group: &Group) -> Result<CachedFile, OpenError> {
        let state = self.core().open(backing, group)?;
        Ok(CachedFile { cache: self.clone(), state: Some(state) })
    }
}

impl CachedFile {
    pub(super) fn parts(&self) -> (&Core, &FileState) {
        (self.cache.core(), self.state.as_ref().expect("only closing takes it"))
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.parts().1.size
    }

    /// Its group.
    pub fn group(&self) -> Group {
        Group(Arc::clone(&self.parts().1.group))
    }

    /// Fills `data` from `offset`. If it fails, `data` may hold anything.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), FileError> {
        let (core, file) = self.parts();
        core.read(file, offset, data)
    }

    /// Writes `data` at `offset`. The write goes past the cache if no frame is available, or if too
    /// much is dirty and cannot be written back. If it fails, part of the data may be written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), FileError> {
        let (core, file) = self.parts();
        core.write(file, offset, data)
    }

    /// Writes `data` at `offset`, and makes it durable (FUA). If it fails, the data may be in the
    /// cache: then it is dirty, and a flush may still make it durable.
    pub fn write_through(&self, offset: u64, data: &[u8]) -> Result<(), FileError> {
        let (core, file) = self.parts();
        core.write(file, offset, data)?;
        match data.len() as u64 {
            0 => Ok(()),
            length => core.write_durably(file, &core.pages_of(offset, length)),
        }
    }

    /// Writes the dirty pages of a range back, without making them durable. Pages that could not be
    /// written are still dirty.
    pub fn write_back(&self, offset: u64, length: u64) -> Result<(), FileError> {
        let (core, file) = self.parts();
        Core::check_range(file, offset, length)?;
        core.write_range(file, &core.pages_of(offset, length))
    }

    /// The parts of a range, in bytes, that may differ from what the backing has, because their
    /// pages are dirty or just being written back. They are in order, with gaps between them.
    /// Whatever a write that has returned wrote is in one of them, or has been written back by the
    /// time this returns.
    ///
    /// # Errors
    /// [`FileError::OutOfRange`] if the range is not within the file.
    ///
    /// ```
    /// # use homing_cache::pages::PageCache;
    /// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
    /// # struct Disk(File);
    /// # impl homing_cache::pages::Backing for Disk {
    /// #     fn size(&self) -> u64 { 1 << 20 }
    /// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
    /// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
    /// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
    /// # }
    /// # let temporary = tempfile::tempfile()?;
    /// # temporary.set_len(1 << 20)?;
    /// # let cache = PageCache::builder(1 << 20).build()?;
    /// # let group = cache.group("group").build();
    /// # let file = cache.open(Arc::new(Disk(temporary)), &group)?;
    /// file.write(5000, b"not there yet")?;
    /// assert_eq!(file.unwritten(0, 1 << 20)?, [4096..8192]);
    /// file.flush_all()?;
    /// assert_eq!(file.unwritten(0, 1 << 20)?, []);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unwritten(&self, offset: u64, length: u64) -> Result<Vec<Range<u64>>, FileError> {
        let (core, file) = self.parts();
        Core::check_range(file, offset, length)?;
        let mut parts: Vec<Range<u64>> = Vec::new();
        if length == 0 {
            return Ok(parts);
        }
        for page in core.unwritten_in(file, &core.pages_of(offset, length)) {
            let begin = page * core.page_size() as u64;
            let end = (begin + core.page_size() as u64).min(offset + length);
            match parts.last_mut() {
                Some(last) if last.end == begin => last.end = end,
                _ => parts.push(begin.max(offset)..end),
            }
        }
        Ok(parts)
    }

    /// Makes durable what writes that have returned have written to a range.
    ///
    /// It also returns, once, an error of a write-back since the last flush, even if that was
    /// outside the range. Pages that could not be written are still dirty, and the next flush tries
    /// again. An earlier lack of room is not returned: a flush finds that out for the pages that it
    /// writes, and the others are still in the cache.
    pub fn flush(&self, offset: u64, length: u64) -> Result<(), FileError> {
        let (core, file) = self.parts();
        Core::check_range(file, offset, length)?;
        // Pages that were dirty, or being written, may go now.
        core.holding_to_max(&file.group, || core.flush(file, &core.pages_of(offset, length)))
    }

    /// Does what [`flush_all`](Self::flush_all) does, except that it does not flush the backing.
    /// This is for callers that flush it in their own way; they must do so after this call,
    /// whatever it returns.
    ///
    /// ```
    /// # use homing_cache::pages::PageCache;
    /// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
    /// # struct Disk(File);
    /// # impl homing_cache::pages::Backing for Disk {
    /// #     fn size(&self) -> u64 { 1 << 20 }
    /// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
    /// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
    /// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
    /// # }
    /// # let temporary = tempfile::tempfile()?;
    /// # temporary.set_len(1 << 20)?;
    /// # let disk = Arc::new(Disk(temporary));
    /// # let cache = PageCache::builder(4 << 20).build()?;
    /// # let group = cache.group("tenant").build();
    /// # let file = cache.open(disk.clone(), &group)?;
    /// file.write(0, b"hello")?;
    /// let written = file.begin_flush();
    /// disk.0.sync_all()?; // one for many files, perhaps
    /// written?;
    /// assert_eq!(group.dirty(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_flush(&self) -> Result<(), FileError> {
        let (core, file) = self.parts();
        let pages = core.pages_of(0, file.size);
        let written = core.holding_to_max(&file.group, || core.write_range(file, &pages));
        Core::with_earlier(file, written)
    }

    /// Makes durable what all writes that have returned have written. It returns the errors that
    /// [`flush`](Self::flush) returns.
    pub fn flush_all(&self) -> Result<(), FileError> {
        self.flush(0, self.size())
    }

    /// Says that the contents are no longer needed: the contents of the pages that lie in the range
    /// are undefined afterwards.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), FileError> {
        let (core, file) = self.parts();
        core.discard(file, offset, length)
    }

    /// Writes zeroes, 8 MiB at a time. If it fails, some are written, and the rest is unchanged.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), FileError> {
        let (core, file) = self.parts();
        core.write_zeroes(file, offset, length)
    }

    /// Says that the contents will be read soon: they are read in the background if frames are
    /// available. What lies beyond the end is ignored. This is a hint: of all that is hinted for a
    /// group at a time, what comes first is read, up to a quarter of what the group may have. To
    /// make room, it evicts pages of the group and those that other groups have above their `high`.
    pub fn prefetch(&self, offset: u64, length: u64) {
        let (core, file) = self.parts();
        let length = length.min(file.size.saturating_sub(offset));
        core.prefetch(file, core.pages_of(offset, length));
    }

    /// Makes all data durable and drops the pages. A file that could not be closed is given back.
    pub fn close(mut self) -> Result<(), CloseError> {
        let (core, file) = self.parts();
        match core.close(file) {
            Ok(()) => {
                self.state = None;
                Ok(())
            }
            Err(source) => Err(CloseError { file: self, source }),
        }
    }

    /// Drops the pages without writing what has not been written: that data is lost. Waits for
    /// writes under way.
    ///
    /// ```
    /// use homing_cache::pages::PageCache;
    /// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
    /// # struct Disk(File);
    /// # impl homing_cache::pages::Backing for Disk {
    /// #     fn size(&self) -> u64 { 1 << 20 }
    /// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
    /// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
    /// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
    /// # }
    /// # let cache = PageCache::builder(4 << 20).build()?;
    /// # let group = cache.group("tenant").build();
    /// # let temporary = tempfile::NamedTempFile::new()?;
    ///
    /// let read_only = Disk(File::open(temporary.path())?);
    /// let file = cache.open(Arc::new(read_only), &group)?;
    /// file.write(0, &[7; 4096])?;
    /// file.close().unwrap_err().file.abandon();
    /// assert_eq!(group.dirty(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abandon(mut self) {
        if let Some(file) = self.state.take() {
            self.cache.core().abandon(&file);
        }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        if let Some(file) = &self.state {
            // A kept error is returned only once, so the second try may succeed. Otherwise dirty
            // pages stay, and so does the file, for the jobs that write them.
            let core = self.cache.core();
            if core.try_close(file).or_else(|_| core.try_close(file)).is_err() {
                core.orphans.add(file);
            }
        }
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.state.as_ref().map(|file| file.size);
        f.debug_struct("CachedFile").field("size", &size).finish_non_exhaustive()
    }
}
