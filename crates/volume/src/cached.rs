//! The layer that keeps pages in memory. Above it is plaintext, and below it whatever encrypts.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use homing_cache::pages::{Backing, CachedFile, FileError, Group, OpenError, PageCache};
use homing_durable::Durable;

use crate::block::{Block, BlockError, Done, Durability, Extent, check_range};

/// Copying in and out of the cache, in bytes per nanosecond; and finding the pages, in nanoseconds.
const COPY_BYTES_PER_NS: u64 = 10;
const CALL_NS: u64 = 200;

/// When writes reach the device below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// When they are flushed, or when their pages have to go: as a disk with a volatile cache does.
    #[default]
    Back,
    /// Before they return: what was written outlives this process, flushed or not.
    Through,
}

/// A device with a [`PageCache`] over it.
#[derive(Debug)]
pub struct Cached<B> {
    file: CachedFile,
    below: Arc<B>,
    policy: WritePolicy,
    /// A flush below has failed: see [`BlockError::Poisoned`].
    poisoned: Arc<AtomicBool>,
}

impl<B: Block> Cached<B> {
    /// Makes durable what was written to the device, by a sync that others share.
    fn sync_below(&self, durable: &Durable, done: Done) {
        let poisoned = Arc::clone(&self.poisoned);
        let noted = move |flushed: Result<(), BlockError>| {
            if let Err(error) = &flushed {
                note_poisoned(&poisoned, error);
            }
            done(flushed);
        };
        self.below.flush_through(durable, Box::new(noted));
    }

    /// Refuses writes to a poisoned device: what is written now would only be lost later.
    fn check(&self) -> Result<(), BlockError> {
        if self.poisoned.load(Ordering::Acquire) { Err(BlockError::Poisoned) } else { Ok(()) }
    }
}

impl<B: Block + 'static> Cached<B> {
    /// Puts pages of `below`, which takes any offset and length, into the cache, for a group.
    /// Nobody else may use `below` from now on.
    pub fn new(
        below: B,
        cache: &PageCache,
        group: &Group,
        policy: WritePolicy,
    ) -> Result<Self, OpenError> {
        assert_eq!(below.block_size(), 1, "the cache needs a device of bytes below");
        let below = Arc::new(below);
        let poisoned = Arc::default();
        let backing = Below { device: Arc::clone(&below), poisoned: Arc::clone(&poisoned) };
        let file = cache.open(Arc::new(backing), group)?;
        Ok(Self { file, below, policy, poisoned })
    }
}

/// What the cache reads from and writes to.
struct Below<B> {
    device: Arc<B>,
    poisoned: Arc<AtomicBool>,
}

impl<B> Below<B> {
    fn note<T>(&self, result: Result<T, BlockError>) -> io::Result<T> {
        result.inspect_err(|error| note_poisoned(&self.poisoned, error)).map_err(wrap)
    }
}

fn note_poisoned(poisoned: &AtomicBool, error: &BlockError) {
    // What was cut off is not to be made longer again: see `File`.
    let is_cut_off = |source: &io::Error| source.kind() == io::ErrorKind::UnexpectedEof;
    let lost = matches!(error, BlockError::Io { source, .. } if is_cut_off(source));
    if lost || matches!(error, BlockError::Flush(_) | BlockError::Poisoned) {
        poisoned.store(true, Ordering::Release);
    }
}

impl<B: Block> Backing for Below<B> {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.device.identity()
    }

    /// As [`Block`] says.
    fn reads_may_meet_writes(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.note(self.device.read(offset, data))
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.note(self.device.write(offset, data, Durability::Written))
    }

    fn write_durably(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.note(self.device.write(offset, data, Durability::Flushed))
    }

    fn flush(&self) -> io::Result<()> {
        self.note(self.device.flush())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.note(self.device.write_zeroes(offset, length, Durability::Written))
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.note(self.device.discard(offset, length))
    }
}

/// Wraps an error of the device, to take it through the cache.
fn wrap(error: BlockError) -> io::Error {
    let kind = if error.is_full() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    io::Error::new(kind, error)
}

/// Gives an error of the device back as what it was.
fn unwrap(error: FileError) -> BlockError {
    let (source, action, offset, length) = match error {
        FileError::Read { offset, length, source } => (source, "read", offset, length),
        FileError::Write { offset, length, source } => (source, "write", offset, length),
        FileError::Punch { action, offset, length, source } => (source, action, offset, length),
        FileError::Flush(source) => (source, "flush", 0, 0),
        other => (io::Error::other(other), "use", 0, 0),
    };
    match source.downcast::<BlockError>() {
        Ok(error) => error,
        Err(source) => BlockError::Io { action, offset, length, source },
    }
}

impl<B: Block> Block for Cached<B> {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        check_range(self, offset, data.len() as u64);
        self.file.read(offset, data).map_err(unwrap)
    }

    fn write(
        &self,
        offset: u64,
        data: &mut [u8],
        durability: Durability,
    ) -> Result<(), BlockError> {
        check_range(self, offset, data.len() as u64);
        self.check()?;
        let written = match (durability, self.policy) {
            (Durability::Flushed, _) => self.file.write_through(offset, data),
            (Durability::Written, WritePolicy::Back) => self.file.write(offset, data),
            (Durability::Written, WritePolicy::Through) => self
                .file
                .write(offset, data)
                .and_then(|()| self.file.write_back(offset, data.len() as u64)),
        };
        written.map_err(unwrap)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Result<(), BlockError> {
        check_range(self, offset, length);
        self.check()?;
        self.file.write_zeroes(offset, length).map_err(unwrap)?;
        match (durability, self.policy) {
            (Durability::Flushed, _) => self.file.flush(offset, length).map_err(unwrap),
            (Durability::Written, WritePolicy::Back) => Ok(()),
            // Pages that are zeroed in part are dirty.
            (Durability::Written, WritePolicy::Through) => {
                self.file.write_back(offset, length).map_err(unwrap)
            }
        }
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.file.flush_all().map_err(unwrap)
    }

    /// Writes the data to the device at once; a sync that others share makes it durable.
    fn write_through(&self, durable: &Durable, offset: u64, data: &mut [u8], done: Done) {
        check_range(self, offset, data.len() as u64);
        if let Err(error) = self.check() {
            return done(Err(error));
        }
        let length = data.len() as u64;
        let written = self.file.write(offset, data);
        match written.and_then(|()| self.file.write_back(offset, length)) {
            Ok(()) => self.sync_below(durable, done),
            Err(error) => done(Err(unwrap(error))),
        }
    }

    fn flush_through(&self, durable: &Durable, done: Done) {
        match self.file.begin_flush() {
            Ok(()) => self.sync_below(durable, done),
            Err(error) => {
                // The rest of what was written is to be durable all the same.
                let flushed = self.below.flush();
                if let Err(error) = &flushed {
                    note_poisoned(&self.poisoned, error);
                }
                done(flushed.and(Err(unwrap(error))));
            }
        }
    }

    fn report_to(&self, durable: &Durable) {
        self.below.report_to(durable);
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        check_range(self, offset, length);
        self.check()?;
        self.file.discard(offset, length).map_err(unwrap)
    }

    fn prefetch(&self, offset: u64, length: u64) {
        self.file.prefetch(offset, length);
    }

    /// Data that is only in the cache is no hole, wherever it will be stored.
    fn extents(
        &self,
        offset: u64,
        length: u64,
        count_max: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        // Ask the cache first, so that data that is written back after that is still called
        // allocated, perhaps by both.
        let unwritten = self.file.unwritten(offset, length).map_err(unwrap)?;
        if unwritten.len() > STREWN {
            // A caller that goes on asking would have all parts looked through each time. A
            // write-back that fails here is tried again.
            let _ = self.file.write_back(offset, length);
        }
        let below = self.below.extents(offset, length, count_max)?;
        Ok(overlaid(offset, &below, &unwritten, count_max))
    }

    /// The cost of a hit.
    fn cost_ns(&self, length: u64) -> u64 {
        CALL_NS + length / COPY_BYTES_PER_NS
    }
}

/// If a range has more parts than this that are not written back, they are written back before the
/// extents are told. Guessed.
const STREWN: usize = 256;

/// The first `count_max` extents from `offset` on: those of `below`, in which the parts in
/// `allocated` count as allocated in any case.
fn overlaid(
    offset: u64,
    below: &[Extent],
    allocated: &[Range<u64>],
    count_max: usize,
) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    let mut parts = allocated.iter().peekable();
    let mut at = offset;
    for extent in below {
        let end = at + extent.length;
        while at < end {
            while parts.next_if(|part| part.end <= at).is_some() {}
            let (until, within) = match parts.peek() {
                Some(part) if part.start <= at => (part.end, true),
                Some(part) => (part.start, false),
                None => (end, false),
            };
            let (length, allocated) = (until.min(end) - at, within || extent.allocated);
            at += length;
            let count = all.len();
            match all.last_mut() {
                Some(last) if last.allocated == allocated => last.length += length,
                _ if count == count_max => return all,
                _ => all.push(Extent { length, allocated }),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::memory::Memory;

    fn cached(policy: WritePolicy) -> Cached<Bytes<Memory>> {
        let cache = PageCache::builder(16 << 20).build().unwrap();
        let group = cache.group("test").build();
        Cached::new(Bytes::new(Memory::new(1 << 20, 512)), &cache, &group, policy).unwrap()
    }

    fn below(device: &Cached<Bytes<Memory>>, offset: u64) -> [u8; 5] {
        let mut data = [0; 5];
        device.below.read(offset, &mut data).unwrap();
        data
    }

    #[test]
    fn what_is_flushed_is_below_and_what_is_not_need_not_be() {
        let device = cached(WritePolicy::Back);
        device.write(1000, &mut b"first".to_vec(), Durability::Written).unwrap();
        assert_eq!(below(&device, 1000), [0; 5]);
        device.flush().unwrap();
        assert_eq!(&below(&device, 1000), b"first");
        device.write(9000, &mut b"forced".to_vec(), Durability::Flushed).unwrap();
        assert_eq!(&below(&device, 9000), b"force");
        device.write_zeroes(1001, 2, Durability::Written).unwrap();
        let mut data = [1; 5];
        device.read(1000, &mut data).unwrap();
        assert_eq!(&data, b"f\0\0st");
    }

    #[test]
    fn written_through_it_is_below_at_once() {
        let device = cached(WritePolicy::Through);
        device.write(4094, &mut b"first".to_vec(), Durability::Written).unwrap();
        assert_eq!(&below(&device, 4094), b"first");
        device.write_zeroes(4095, 2, Durability::Written).unwrap();
        assert_eq!(&below(&device, 4094), b"f\0\0st");
        device.write_zeroes(4000, 5000, Durability::Written).unwrap();
        assert_eq!(below(&device, 4094), [0; 5]);
    }

    /// Memory whose flushes fail, and whose writes fail if it is full.
    struct Bad {
        memory: Bytes<Memory>,
        is_full: bool,
    }

    impl Block for Bad {
        fn size(&self) -> u64 {
            self.memory.size()
        }
        fn identity(&self) -> Option<(u64, u64)> {
            Some((7, 7))
        }
        fn block_size(&self) -> u32 {
            1
        }
        fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
            self.memory.read(offset, data)
        }
        fn write(&self, offset: u64, data: &mut [u8], how: Durability) -> Result<(), BlockError> {
            if self.is_full {
                let (action, length) = ("write", data.len() as u64);
                let source = io::ErrorKind::StorageFull.into();
                return Err(BlockError::Io { action, offset, length, source });
            }
            self.memory.write(offset, data, how)
        }
        fn write_zeroes(&self, at: u64, length: u64, how: Durability) -> Result<(), BlockError> {
            self.memory.write_zeroes(at, length, how)
        }
        fn flush(&self) -> Result<(), BlockError> {
            Err(BlockError::Flush(io::Error::from_raw_os_error(5)))
        }
        fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
            self.memory.discard(offset, length)
        }
        fn extents(&self, _: u64, length: u64, _: usize) -> Result<Vec<Extent>, BlockError> {
            Ok(vec![Extent { length, allocated: false }])
        }
        fn cost_ns(&self, _: u64) -> u64 {
            0
        }
    }

    #[test]
    fn what_is_not_written_back_is_allocated_and_stays_where_it_is() {
        let cache = PageCache::builder(16 << 20).build().unwrap();
        let group = cache.group("test").build();
        let below = Bad { memory: Bytes::new(Memory::new(1 << 20, 512)), is_full: true };
        let device = Cached::new(below, &cache, &group, WritePolicy::Back).unwrap();
        device.write(8192, &mut [7; 4096], Durability::Written).unwrap();
        let extents = |at, length, most| {
            let extents = device.extents(at, length, most).unwrap();
            extents.iter().map(|extent| (extent.length, extent.allocated)).collect::<Vec<_>>()
        };
        assert_eq!(extents(0, 16384, 10), [(8192, false), (4096, true), (4096, false)]);
        assert_eq!(extents(512, 16384, 2), [(7680, false), (4096, true)]);
        assert_eq!(extents(8704, 1024, 2), [(1024, true)]);
        assert_eq!(extents(9216, 8192, 2), [(3072, true), (5120, false)]);
        let mut data = [0; 4096];
        device.read(8192, &mut data).unwrap();
        assert_eq!(data, [7; 4096]);
        // Data that could not be written would later overwrite what another handle of the same
        // device writes.
        drop(device);
        let below = Bad { memory: Bytes::new(Memory::new(1 << 20, 512)), is_full: false };
        let refused = Cached::new(below, &cache, &group, WritePolicy::Back).err().unwrap();
        assert!(matches!(refused, OpenError::Unwritten(_)), "{refused}");
    }

    #[test]
    fn what_is_strewn_is_written_back_before_it_is_told_of() {
        let cache = PageCache::builder(64 << 20).build().unwrap();
        let group = cache.group("test").build();
        let below = Bytes::new(Memory::new(8 << 20, 512));
        let device = Cached::new(below, &cache, &group, WritePolicy::Back).unwrap();
        let unwritten = || device.file.unwritten(0, 8 << 20).unwrap().len();
        for parts in [STREWN, 2 * STREWN] {
            for part in 0..parts as u64 {
                device.write(part * 8192, &mut [7; 4096], Durability::Written).unwrap();
            }
            assert_eq!(unwritten(), parts);
            device.extents(0, 8 << 20, 10).unwrap();
            assert_eq!(unwritten(), if parts > STREWN { 0 } else { parts });
        }
    }

    #[test]
    fn a_file_that_was_cut_off_is_not_made_longer_by_what_is_written_back() {
        for reads in [true, false] {
            let cache = PageCache::builder(16 << 20).build().unwrap();
            let group = cache.group("test").build();
            let file = Arc::new(tempfile::tempfile().unwrap());
            file.set_len(1 << 20).unwrap();
            let below = Bytes::new(crate::File::new(Arc::clone(&file), 0, 1 << 20, 512));
            let device = Cached::new(below, &cache, &group, WritePolicy::Back).unwrap();
            device.write(1 << 19, &mut [7; 4096], Durability::Written).unwrap();
            file.set_len(4096).unwrap();
            let noticed =
                if reads { device.read(900 << 10, &mut [0; 512]) } else { device.flush() };
            assert!(noticed.is_err());
            let refused = device.write(0, &mut [7; 4096], Durability::Written);
            assert!(matches!(refused, Err(BlockError::Poisoned)), "{refused:?}");
            assert!(device.flush().is_err());
            assert_eq!(file.metadata().unwrap().len(), 4096);
        }
    }

    #[test]
    fn after_a_flush_that_failed_nothing_is_accepted() {
        let runtime = homing_runtime::Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        for through in [false, true] {
            let cache = PageCache::builder(16 << 20).build().unwrap();
            let group = cache.group("test").build();
            let below = Bad { memory: Bytes::new(Memory::new(1 << 20, 512)), is_full: false };
            let device = Cached::new(below, &cache, &group, WritePolicy::Back).unwrap();
            let write = || device.write(1000, &mut b"data".to_vec(), Durability::Written);
            write().unwrap();
            let flushed = if through {
                let (done, ended) = std::sync::mpsc::channel();
                device
                    .flush_through(&durable, Box::new(move |flushed| done.send(flushed).unwrap()));
                ended.recv().unwrap()
            } else {
                device.flush()
            };
            assert!(matches!(flushed, Err(BlockError::Flush(_))));
            assert!(matches!(write(), Err(BlockError::Poisoned)));
            let zeroed = device.write_zeroes(0, 512, Durability::Written);
            assert!(matches!(zeroed, Err(BlockError::Poisoned)));
            assert!(matches!(device.discard(0, 512), Err(BlockError::Poisoned)));
            let mut data = [0; 4];
            device.read(1000, &mut data).unwrap();
            assert_eq!(&data, b"data", "it can still be read");
        }
    }

    #[test]
    fn errors_come_through_as_what_they_were() {
        let poisoned = FileError::Flush(wrap(BlockError::Poisoned));
        assert!(matches!(unwrap(poisoned), BlockError::Poisoned));
        let source = io::ErrorKind::StorageFull.into();
        let full = BlockError::Io { action: "write", offset: 4096, length: 512, source };
        let full = unwrap(FileError::Write { offset: 4096, length: 512, source: wrap(full) });
        assert!(full.is_full());
        assert!(full.to_string().contains("512 bytes at 4096"), "{full}");
    }
}
