//! What may fail, and what it is about.

use std::io;

/// Why a cached file could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The range does not lie in the file. Nothing was done.
    #[error("{length} bytes at {offset} reach beyond the end of the file at {size}")]
    OutOfRange {
        /// Where it begins.
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
    /// The backing could not write. What was to be written is still in the cache, and will be
    /// written again, unless it was a write that went past the cache.
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
    /// The backing could not discard or zero. The pages that are affected hold what they did, or
    /// what they were to hold.
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

/// Of the kind of what the backing said.
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
    /// It has more pages than there are numbers for.
    #[error("a file of {size} bytes is too large for pages of {page_size}: at most {max} bytes")]
    TooLarge {
        /// The size of the file.
        size: u64,
        /// That of pages.
        page_size: usize,
        /// The largest size that a file may have.
        max: u64,
    },
    /// As many files are open as may be.
    #[error("{0} files are open, as many as may be: close one")]
    TooManyFiles(usize),
    /// A handle of the same backing was dropped, and what it could not write cannot be written now either. It
    /// would go over what the new handle writes.
    #[error(
        "what was written to this file by a handle that was dropped cannot be written back: {0}; \
         open it again when it can, or abandon it (PageCache::abandon_dropped)"
    )]
    Unwritten(#[source] FileError),
    /// The group is another cache's, or was removed.
    #[error("the group {0} is not of this cache: it was removed, or is another cache's")]
    ForeignGroup(String),
}

/// Why a group was not removed: it has files. Nothing was changed.
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
    /// Its name.
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
    /// No page has this size.
    #[error("pages of {0} bytes: the size must be a power of two from 512 to 65536")]
    PageSize(usize),
    /// Too small for what it takes to keep a few pages.
    #[error("a cache of {bytes} bytes is too small: at least {least}")]
    TooSmall {
        /// The size that it was to have.
        bytes: usize,
        /// With the same settings, the least that it can have.
        least: usize,
    },
    /// Too large for so many shards.
    #[error("a cache of {bytes} bytes is too large for {shards} shards: give it more of them")]
    TooLarge {
        /// The size that it was to have.
        bytes: usize,
        /// Its shards.
        shards: usize,
    },
    /// The system has not so much memory.
    #[error("no memory for a cache of {bytes} bytes: {source}")]
    Memory {
        /// The size that it was to have.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
}

/// Why a cache did not get another size: it has the one that it had.
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
    /// It is more than whoever made the cache allows.
    #[error("a cache of {bytes} bytes is more than it may have here: at most {max}")]
    AboveMax {
        /// The size that it was to have.
        bytes: usize,
        /// The largest that it may have.
        max: usize,
    },
    /// What the groups in it take leaves too little for pages. Groups that are removed take nothing.
    #[error("a cache of {bytes} bytes is too small for its {groups} groups: at least {least}")]
    TooManyGroups {
        /// The size that it was to have.
        bytes: usize,
        /// How many there are.
        groups: usize,
        /// The least size that it can have with them.
        least: usize,
    },
    /// Whoever [runs its jobs](super::Background) wants it in the midst of another change of the size, which
    /// asked for a job.
    #[error("a cache of {bytes} bytes: its size is being changed by who asks for this job")]
    Nested {
        /// The size that it was to have.
        bytes: usize,
    },
    /// It cannot have this size.
    #[error(transparent)]
    Size(#[from] BuildError),
    /// Pages that would have to go cannot: they are dirty and cannot be written, or not for long, or are
    /// a group's `min`.
    #[error(
        "{pages} pages too many for {bytes} bytes cannot go: they are not written back, or groups must keep them"
    )]
    Held {
        /// The size that the cache was to have.
        bytes: usize,
        /// How many are too many, in the part of the cache where this was found.
        pages: usize,
    },
}
