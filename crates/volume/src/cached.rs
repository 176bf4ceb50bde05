//! The layer that keeps pages in memory: plaintext above, and below whatever encrypts.

use std::io;
use std::sync::Arc;

use homing_cache::pages::{Backing, CachedFile, FileError, Group, OpenError, PageCache};
use homing_durable::Durable;

use crate::block::{Block, BlockError, Done, Durability, Extent, check_range};

/// Copying in and out of the cache, in bytes per nanosecond; and finding the pages.
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
}

impl<B: Block + 'static> Cached<B> {
    /// Puts pages of `below`, which takes any offset and length, into the cache, for a group. Nobody
    /// else may use `below` from now on.
    pub fn new(
        below: B,
        cache: &PageCache,
        group: &Group,
        policy: WritePolicy,
    ) -> Result<Self, OpenError> {
        assert_eq!(below.block_size(), 1, "the cache needs a device of bytes below");
        let below = Arc::new(below);
        let file = cache.open(Arc::new(Below(Arc::clone(&below))), group)?;
        Ok(Self { file, below, policy })
    }
}

/// What the cache reads from and writes to.
struct Below<B>(Arc<B>);

impl<B: Block> Backing for Below<B> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    /// As [`Block`] says.
    fn reads_may_meet_writes(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, data).map_err(wrap)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.write(offset, data, Durability::Written).map_err(wrap)
    }

    fn write_durably(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.write(offset, data, Durability::Flushed).map_err(wrap)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush().map_err(wrap)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.write_zeroes(offset, length, Durability::Written).map_err(wrap)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.discard(offset, length).map_err(wrap)
    }
}

/// Takes an error of the device through the cache.
fn wrap(error: BlockError) -> io::Error {
    let kind = if error.is_full() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    io::Error::new(kind, error)
}

/// And gives it back, as what it was.
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

    fn flush_through(&self, durable: &Durable, done: Done) {
        match self.file.begin_flush() {
            Ok(()) => self.below.flush_through(durable, done),
            Err(error) => {
                // The rest of what was written is to be durable all the same.
                let flushed = self.below.flush();
                done(flushed.and(Err(unwrap(error))));
            }
        }
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        check_range(self, offset, length);
        self.file.discard(offset, length).map_err(unwrap)
    }

    fn prefetch(&self, offset: u64, length: u64) {
        self.file.prefetch(offset, length);
    }

    /// What is in the cache only is written back first: it is no hole.
    fn extents(
        &self,
        offset: u64,
        length: u64,
        count_max: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        self.file.write_back(offset, length).map_err(unwrap)?;
        self.below.extents(offset, length, count_max)
    }

    /// That of a hit.
    fn cost_ns(&self, length: u64) -> u64 {
        CALL_NS + length / COPY_BYTES_PER_NS
    }
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
