//! The one trait of all layers.

use std::io;

use homing_durable::Durable;

/// Whether a write is on stable storage when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is where later reads find it; a later [`Block::flush`] makes it durable.
    Written,
    /// It is durable (NBD's FUA).
    Flushed,
}

/// A stretch of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, not zero.
    pub length: u64,
    /// Whether space is allocated for it. A stretch that is not may still hold any data.
    pub allocated: bool,
}

/// Why a block device could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The operating system refused.
    #[error("{action} of {length} bytes at {offset} failed: {source}")]
    Io {
        /// `read`, `write`, `discard`...
        action: &'static str,
        /// Where, in this layer's bytes.
        offset: u64,
        /// How much.
        length: u64,
        /// Why.
        source: io::Error,
    },
    /// Making data durable failed. The kernel may have dropped it, so nothing after this can be
    /// trusted: every later write and flush fails with [`BlockError::Poisoned`].
    #[error("making data durable failed: {0}")]
    Flush(#[source] io::Error),
    /// An earlier flush failed, so what it covered may be lost, or the file was cut off. Reopen the
    /// volume to go on.
    #[error(
        "an earlier flush failed, or the file was cut off, and data may be lost: reopen the volume and check it"
    )]
    Poisoned,
    /// The cipher failed, which it has no reason to.
    #[error("the cipher failed on {length} bytes at {offset}")]
    Cipher {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
}

impl BlockError {
    /// Whether the device is full, or its file at its limit: nothing is lost, and it works again
    /// when there is space. A flush that found no space is no such case, since data that was
    /// accepted may be lost.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }
}

/// One of several writes that are made together.
#[derive(Debug)]
pub struct Write<'a> {
    /// Where, in bytes.
    pub offset: u64,
    /// The data. Layers work in place: afterwards it holds rubbish.
    pub data: &'a mut [u8],
    /// The result. A write whose result is an error already is passed over.
    pub result: Result<(), BlockError>,
}

/// The function that is called when a flush has ended.
pub type Done = Box<dyn FnOnce(Result<(), BlockError>) + Send>;

/// A device of [`Block::size`] bytes, usable by many threads at once.
///
/// Offsets and lengths are multiples of [`Block::block_size`] and lie inside the device: callers
/// see to that, layers assert it. A write that was cut short by a crash or an error leaves any
/// mixture of old and new sectors in its range; bytes outside its range never change. Reads and
/// writes that overlap in time may see such a mixture too, as on a disk. If a file lies below, the
/// mixture may be within a sector (ext4 copies without a lock); if that is encrypted, 16 bytes that
/// are partly old and partly new read as neither, until they are read again.
pub trait Block: Send + Sync {
    /// The size in bytes.
    fn size(&self) -> u64;

    /// What offsets and lengths are multiples of: a power of two.
    fn block_size(&self) -> u32;

    /// Identifies what lies below all layers, if that can be told: by device and inode of a file,
    /// say. Two devices with the same identity hold the same bytes.
    fn identity(&self) -> Option<(u64, u64)> {
        None
    }

    /// Fills `data` from `offset`.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError>;

    /// Writes `data` at `offset`. Layers work in place: afterwards `data` holds rubbish.
    fn write(&self, offset: u64, data: &mut [u8], durability: Durability)
    -> Result<(), BlockError>;

    /// Does several writes with [`Durability::Written`], in their order, and leaves the result of
    /// each in it; a write that fails does not stop those behind it. A layer that takes a lock for
    /// each write takes it once for all of them, and may call `meanwhile` while it waits for the
    /// lock: that does a piece of other work, or returns false if there is none. Layers hold locks
    /// during the call, so `meanwhile` may read this device, but do nothing else to it.
    fn write_batch(&self, writes: &mut [Write<'_>], meanwhile: &mut dyn FnMut() -> bool) {
        let _ = meanwhile;
        write_each(self, writes);
    }

    /// Writes `length` zeroes at `offset`.
    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Result<(), BlockError>;

    /// Makes everything durable whose write has returned before the call.
    fn flush(&self) -> Result<(), BlockError>;

    /// Does what [`Block::flush`] does, by a sync of the engine, which others may share. `done` is
    /// called when the flush has ended: before this returns, or later by a worker of the engine. A
    /// device that has no file below it, or a layer that does not override this, flushes by itself.
    fn flush_through(&self, durable: &Durable, done: Done) {
        let _ = durable;
        done(self.flush());
    }

    /// Does what [`Block::write`] does with [`Durability::Flushed`], perhaps by a sync of the
    /// engine, which others may share. `done` is called as by [`Block::flush_through`]; `data` is
    /// free when this returns. A layer that does not override this writes by itself.
    fn write_through(&self, durable: &Durable, offset: u64, data: &mut [u8], done: Done) {
        let _ = durable;
        done(self.write(offset, data, Durability::Flushed));
    }

    /// From now on, has the engine count the syncs that this device does without it, and keep their
    /// failures. A device that does no syncs itself tells the one below.
    fn report_to(&self, durable: &Durable) {
        let _ = durable;
    }

    /// Says that the contents are not needed any more; what they are afterwards is undefined.
    /// A device may ignore it, as one does that does not override this.
    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let _ = (offset, length);
        Ok(())
    }

    /// Says that the contents will be read soon. A hint: it cannot fail, and may be ignored.
    fn prefetch(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }

    /// Which parts of a range are allocated: at least one extent, at most `count_max`, from
    /// `offset` on without gaps, and not beyond `length`. Of a device that does not override this
    /// everything is.
    fn extents(
        &self,
        offset: u64,
        length: u64,
        count_max: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        let _ = (offset, count_max);
        Ok(vec![Extent { length, allocated: true }])
    }

    /// A guess at what moving `length` bytes through this layer and those below costs, in
    /// nanoseconds of CPU time.
    fn cost_ns(&self, length: u64) -> u64;
}

/// Does several writes one after the other.
pub(crate) fn write_each(device: &(impl Block + ?Sized), writes: &mut [Write<'_>]) {
    for write in writes.iter_mut().filter(|write| write.result.is_ok()) {
        write.result = device.write(write.offset, write.data, Durability::Written);
    }
}

/// Asserts what a layer requires of its callers.
pub(crate) fn check_range(device: &(impl Block + ?Sized), offset: u64, length: u64) {
    let block = u64::from(device.block_size());
    let inside = offset.checked_add(length).is_some_and(|end| end <= device.size());
    let aligned = offset.is_multiple_of(block) && length.is_multiple_of(block);
    assert!(inside && aligned, "{length} bytes at {offset} are not a range of this device");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_that_was_not_accepted_is_a_full_device() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let write = BlockError::Io { action: "write", offset: 0, length: 1, source: full() };
        assert!(write.is_full());
        assert!(!BlockError::Flush(full()).is_full());
    }
}
