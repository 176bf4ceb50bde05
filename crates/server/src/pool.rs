//! Memory for the buffers of all connections, and for the data of long requests that workers have.
//! A buffer with nothing in it gives its memory back; unused memory is kept for the next buffer, up
//! to a bound.
//!
//! The memory that was used last is given out first: with many connections on few CPUs a handful of
//! buffers are in use, and stay in the CPU's cache. The memory is mapped, since an allocator may
//! keep what it gets back.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard};

use memmap2::MmapMut;

use crate::sync::lock;

/// What a connection reads or writes at a time. Measured: beyond 256 KiB nothing is gained, and the
/// data leaves the L2 cache between decryption and the socket.
pub(crate) const BATCH_LEN: usize = 128 << 10;
/// A request with more data than this is long: it first leases some of the memory that clients
/// share.
pub(crate) const SHORT_MAX: usize = 2 * BATCH_LEN;
/// Room for the headers and short replies next to the data in a buffer.
const BESIDE_LEN: usize = 32 << 10;
/// A buffer that belongs to its connection: enough for what is not long.
pub(crate) const SHORT_LEN: usize = SHORT_MAX + BESIDE_LEN;
/// What a connection may take besides the memory that requests share: 576 KiB for its two buffers,
/// and 64 KiB for replies that wait until its client takes them. It has no buffers while nothing
/// has come for a second.
pub const CONNECTION_BYTES_MAX: usize = 2 * SHORT_LEN + OWN_REPLIES_MAX;
/// Bytes of replies that may wait for another thread to send them though no memory is leased for
/// them. Guessed: room for the replies to hundreds of writes.
pub(crate) const OWN_REPLIES_MAX: usize = 64 << 10;

/// Buffers of connections that are kept: 18 MiB.
const SHORT_KEPT: usize = 64;
/// Bytes of longer buffers that are kept. Measured: requests of 2 MiB take twice the CPU time if
/// each touches its memory for the first time. It is at most a fourth of the memory for requests.
const LONG_KEPT: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Pool {
    memory: Mutex<Memory>,
    long_kept: usize,
}

#[derive(Debug, Default)]
struct Memory {
    short: Vec<MmapMut>,
    /// The one that was used last is at the back.
    long: VecDeque<MmapMut>,
    long_bytes: usize,
    /// Bytes that buffers have.
    lent: usize,
}

/// What a buffer of `len` bytes takes. There are few sizes, so that one buffer fits where another
/// was.
pub(crate) const fn taken(len: usize) -> usize {
    if len <= SHORT_LEN { SHORT_LEN } else { (len - BESIDE_LEN).next_power_of_two() + BESIDE_LEN }
}

#[cfg(test)]
impl Default for Pool {
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl Pool {
    /// Where requests may have this much memory.
    pub(crate) fn new(request_memory_max: usize) -> Self {
        Self { memory: Mutex::default(), long_kept: LONG_KEPT.min(request_memory_max / 4) }
    }

    /// Bytes that buffers have at present.
    pub(crate) fn lent(&self) -> usize {
        self.memory().lent
    }

    fn take(&self, len: usize) -> io::Result<MmapMut> {
        let len = taken(len);
        let mut memory = self.memory();
        memory.lent += len;
        let kept = if len == SHORT_LEN { memory.short.pop() } else { memory.pop_long(len) };
        drop(memory);
        kept.map_or_else(|| self.map(len), Ok)
    }

    /// Maps memory that `lent` counts already. Its pages cost nothing until they are written.
    fn map(&self, len: usize) -> io::Result<MmapMut> {
        MmapMut::map_anon(len).map_err(|error| {
            self.memory().lent -= len;
            let message = format!("the system has no memory for a buffer of {len} bytes: {error}");
            io::Error::new(io::ErrorKind::OutOfMemory, message)
        })
    }

    fn give_back(&self, bytes: MmapMut) {
        let mut memory = self.memory();
        memory.lent -= bytes.len();
        let dropped = if bytes.len() > SHORT_LEN {
            memory.push_long(bytes, self.long_kept)
        } else if memory.short.len() < SHORT_KEPT {
            memory.short.push(bytes);
            return;
        } else {
            vec![bytes]
        };
        // Unmapping takes a while.
        drop(memory);
        drop(dropped);
    }

    /// A connection is idle. If all are, no memory is kept.
    pub(crate) fn rest(&self) {
        let mut memory = self.memory();
        if memory.lent == 0 {
            let kept = std::mem::take(&mut *memory);
            drop(memory);
            drop(kept);
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }
}

impl Memory {
    fn pop_long(&mut self, len: usize) -> Option<MmapMut> {
        let at = self.long.iter().rposition(|bytes| bytes.len() == len)?;
        self.long_bytes -= len;
        self.long.remove(at)
    }

    /// Keeps `bytes`, and returns what has to go for it, or `bytes` itself.
    fn push_long(&mut self, bytes: MmapMut, most: usize) -> Vec<MmapMut> {
        self.long_bytes += bytes.len();
        self.long.push_back(bytes);
        let mut dropped = Vec::new();
        while self.long_bytes > most {
            let oldest = self.long.pop_front().expect("the bytes are theirs");
            self.long_bytes -= oldest.len();
            dropped.push(oldest);
        }
        dropped
    }
}

/// Bytes that hold rubbish until they are written; none at first.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Option<MmapMut>,
    pool: Arc<Pool>,
}

impl Buffer {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { bytes: None, pool: Arc::clone(pool) }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Makes it at least `len` bytes long. Its first `keep` bytes stay.
    pub(crate) fn grow(&mut self, len: usize, keep: usize) -> io::Result<()> {
        if self.len() < len { self.replace(len, 0..keep) } else { Ok(()) }
    }

    /// Moves to memory for `len` bytes, which begins with the bytes of `range`. If there is none,
    /// the buffer stays as it is.
    pub(crate) fn replace(&mut self, len: usize, range: Range<usize>) -> io::Result<()> {
        let mut other = self.pool.take(len)?;
        other[..range.len()].copy_from_slice(&self[range]);
        self.release();
        self.bytes = Some(other);
        Ok(())
    }

    /// Gives back what it has.
    pub(crate) fn release(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.pool.give_back(bytes);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.release();
    }
}

/// The data of a request that a worker has, or its reply to the client.
#[derive(Debug)]
pub(crate) enum Payload {
    Short(Vec<u8>),
    Long { buffer: Buffer, len: usize },
}

impl Payload {
    pub(crate) fn new(pool: &Arc<Pool>, len: usize) -> io::Result<Self> {
        if len <= SHORT_LEN {
            return Ok(Self::Short(vec![0; len]));
        }
        let mut buffer = Buffer::new(pool);
        buffer.grow(len, 0)?;
        Ok(Self::Long { buffer, len })
    }

    pub(crate) fn copy_of(pool: &Arc<Pool>, bytes: &[u8]) -> io::Result<Self> {
        if bytes.len() <= SHORT_LEN {
            return Ok(Self::Short(bytes.to_vec()));
        }
        let mut copy = Self::new(pool, bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }

    /// The memory that a payload with `len` bytes of data takes, without small parts such as its
    /// header.
    pub(crate) fn weight(len: usize) -> usize {
        if len <= SHORT_MAX { len } else { taken(len) }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long { buffer, len } => &buffer[..*len],
        }
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long { buffer, len } => &mut buffer[..*len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_LEN: usize = (1 << 20) + BESIDE_LEN;

    #[test]
    fn memory_is_used_again_and_counted() {
        let pool = Arc::new(Pool::default());
        let mut buffers: Vec<_> = (0..100).map(|_| Buffer::new(&pool)).collect();
        assert_eq!(pool.lent(), 0);
        for buffer in &mut buffers {
            buffer.grow(1, 0).unwrap();
            assert_eq!(buffer.len(), SHORT_LEN);
            buffer[0] = 7;
            buffer.grow(1 << 20, 1).unwrap();
            assert_eq!((buffer.len(), buffer[0]), (LONG_LEN, 7));
        }
        assert_eq!(pool.memory().short.len(), 1, "it went from hand to hand");
        assert_eq!(pool.lent(), 100 * LONG_LEN);
        let longest = Payload::new(&pool, 32 << 20).unwrap();
        assert_eq!((longest.len(), pool.lent()), (32 << 20, 100 * LONG_LEN + taken(32 << 20)));
        drop(longest);
        pool.rest();
        assert_eq!(pool.memory().long.len(), 1, "not all are idle");
        drop(buffers);
        assert_eq!(pool.lent(), 0);
        let long: Vec<_> = pool.memory().long.iter().map(|bytes| bytes.len()).collect();
        assert_eq!(long, vec![LONG_LEN; LONG_KEPT / LONG_LEN]);
        let small = Arc::new(Pool::new(8 << 20));
        drop([(); 4].map(|()| Payload::new(&small, 1 << 20).unwrap()));
        assert_eq!(small.memory().long.len(), 1, "a fourth of what there is");
        pool.rest();
        assert!(pool.memory().long.is_empty() && pool.memory().short.is_empty());
    }

    #[test]
    fn what_the_system_has_no_memory_for_is_named_and_counts_for_nothing() {
        let pool = Arc::new(Pool::default());
        let mut buffer = Buffer::new(&pool);
        buffer.grow(1, 0).unwrap();
        buffer[0] = 7;
        let error = buffer.grow(1 << 60, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains(&taken(1 << 60).to_string()), "{error}");
        assert_eq!((buffer.len(), buffer[0], pool.lent()), (SHORT_LEN, 7, SHORT_LEN));
        assert!(Payload::new(&pool, 1 << 60).is_err());
        drop(buffer);
        assert_eq!(pool.lent(), 0);
    }

    #[test]
    fn what_is_sent_or_received_at_a_time_is_taken_once() {
        for len in [1, SHORT_MAX, SHORT_MAX + 1, 512 << 10, 1 << 20, 5 << 20, 32 << 20] {
            assert_eq!(taken(len), taken(len + 32), "{len} and its header");
            assert!(taken(len) >= len + 32 && taken(taken(len)) == taken(len));
        }
    }
}
