//! What can fail, and what the failure is about.

use std::io;

/// Why a cached file could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The range is not within the file. Nothing was done.
    #[error("{length} bytes at {offset} reach beyond the end of the file at {size}")]
    OutOfRange {
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        length: u64,
        /// The size of the file.
        size: u64,
    },
    /// The backing could not read.
    #[error("reading {length} bytes at {offset} failed: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Why.
        source: io::Error,
    },
    /// The backing could not write. The data is still in the cache, and will be written again,
    /// unless it was a write past the cache.
    #[error("writing {length} bytes at {offset} failed: {source}")]
    Write {
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Why.
        source: io::Error,
    },
    /// The backing could not make durable what it had accepted.
    #[error("making data durable failed: {0}")]
    Flush(#[source] io::Error),
    /// The backing could not discard or zero. The affected pages hold either their old contents or
    /// those that they were to hold.
    #[error("{action} of {length} bytes at {offset} failed: {source}")]
    Punch {
        /// `discarding` or `zeroing`.
        action: &'static str,
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Why.
        source: io::Error,
    },
}

impl FileError {
    /// Whether the backing had no room for what was to be written, which is still in the cache.
    pub(super) fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Self::Write { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }
}

/// The kind is that of the backing's error.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        let kind = match &error {
            FileError::OutOfRange { .. } => io::ErrorKind::InvalidInput,
            FileError::Read { source, .. }
            | FileError::Write { source, .. }
            | FileError::Flush(source)
            | FileError::Punch { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file has more pages than there are page numbers.
    #[error("a file of {size} bytes is too large for pages of {page_size}: at most {max} bytes")]
    TooLarge {
        /// The size of the file.
        size: u64,
        /// The size of a page.
        page_size: usize,
        /// The largest size that a file may have.
        max: u64,
    },
    /// As many files are open as the cache allows.
    #[error("{0} files are open, as many as may be: close one")]
    TooManyFiles(usize),
    /// What a dropped handle of the same backing could not write still cannot be written. It would
    /// later overwrite what the new handle writes.
    #[error(
        "what was written to this file by a handle that was dropped cannot be written back: {0}; \
         open it again when it can, or abandon it (PageCache::abandon_dropped)"
    )]
    Unwritten(#[source] FileError),
    /// The group belongs to another cache, or was removed.
    #[error("the group {0} is not of this cache: it was removed, or is another cache's")]
    ForeignGroup(String),
}

/// Why a group was not removed: it still has files. Nothing was changed.
///
/// ```
/// use homing_cache::pages::{GroupInUse, PageCache};
///
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
/// let group = cache.group("tenant").build();
/// let file = cache.open(disk, &group)?;
/// file.read(0, &mut [0; 4096])?;
/// let error = GroupInUse { group: "tenant".to_owned(), files: 1 };
/// assert_eq!(cache.remove_group(&group), Err(error));
/// file.close()?;
/// cache.remove_group(&group)?;
/// assert_eq!(cache.stats().total.misses, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the group {group} has {files} open files: close them first")]
pub struct GroupInUse {
    /// The group's name.
    pub group: String,
    /// How many of its files are open, or could not be closed.
    pub files: usize,
}

/// Why a cache could not be made.
///
/// ```
/// use homing_cache::pages::{BuildError, PageCache};
///
/// let error = PageCache::builder(4 << 20).page_size(1000).build().unwrap_err();
/// assert!(matches!(error, BuildError::PageSize(1000)));
/// let error = PageCache::builder(4096).build().unwrap_err();
/// assert!(matches!(error, BuildError::TooSmall { bytes: 4096, .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Pages cannot have this size.
    #[error("pages of {0} bytes: the size must be a power of two from 512 to 65536")]
    PageSize(usize),
    /// The size is too small for what the cache needs to keep a few pages.
    #[error("a cache of {bytes} bytes is too small: at least {least}")]
    TooSmall {
        /// The requested size.
        bytes: usize,
        /// The least size that it can have with the same settings.
        least: usize,
    },
    /// The size is too large for this number of shards.
    #[error("a cache of {bytes} bytes is too large for {shards} shards: give it more of them")]
    TooLarge {
        /// The requested size.
        bytes: usize,
        /// The number of shards.
        shards: usize,
    },
    /// The system does not have that much memory.
    #[error("no memory for a cache of {bytes} bytes: {source}")]
    Memory {
        /// The requested size.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
}

/// Why the size of a cache was not changed: it keeps the size that it had.
///
/// ```
/// use homing_cache::pages::{PageCache, ResizeError};
///
/// let cache = PageCache::builder(4 << 20).size_max(8 << 20).build()?;
/// cache.set_size(8 << 20)?;
/// let error = cache.set_size(9 << 20).unwrap_err();
/// assert!(matches!(error, ResizeError::AboveMax { max: 8_388_608, .. }));
/// assert!(matches!(cache.set_size(4096), Err(ResizeError::Size(_))));
/// assert_eq!(cache.stats().size, 8 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The size is more than the creator of the cache allows.
    #[error("a cache of {bytes} bytes is more than it may have here: at most {max}")]
    AboveMax {
        /// The requested size.
        bytes: usize,
        /// The largest size allowed.
        max: usize,
    },
    /// What its groups take leaves too little for pages. Removing groups frees that memory.
    #[error("a cache of {bytes} bytes is too small for its {groups} groups: at least {least}")]
    TooManyGroups {
        /// The requested size.
        bytes: usize,
        /// The number of groups.
        groups: usize,
        /// The least size that the cache can have with these groups.
        least: usize,
    },
    /// The code that [runs the cache's jobs](super::Background) asked for this size in the middle
    /// of another change of the size, which had asked for a job.
    #[error("a cache of {bytes} bytes: its size is being changed by who asks for this job")]
    Nested {
        /// The requested size.
        bytes: usize,
    },
    /// The cache cannot have this size.
    #[error(transparent)]
    Size(#[from] BuildError),
    /// Some pages would have to go but cannot: they are dirty and cannot be written, or not for a
    /// long time, or they are within a group's `min`.
    #[error(
        "{pages} pages too many for {bytes} bytes cannot go: they are not written back, or groups must keep them"
    )]
    Held {
        /// The requested size.
        bytes: usize,
        /// How many pages are too many, in the part of the cache where this was found.
        pages: usize,
    },
}
