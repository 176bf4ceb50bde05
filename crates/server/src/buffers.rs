//! The two buffers of a connection. They grow with what clients send, shrink afterwards, and hold
//! no memory while nothing comes or goes. Only what was read into them is ever looked at.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::Lease;
use crate::pool::{BATCH_LEN, Buffer, Pool, SHORT_LEN, SHORT_MAX, taken};
use crate::stream::Stream;

/// Requests taken in while a client does not take its replies. Guessed: twice what a client with 64
/// requests of 32 KiB in flight has sent.
pub(crate) const AHEAD_MAX: usize = 4 << 20;
/// The memory that these requests take.
pub(crate) const AHEAD_WEIGHT: usize = taken(AHEAD_MAX);

/// How much the first read after a long request asks for. Measured: with [`BATCH_LEN`] in its
/// place, 3 % fewer writes of a MiB are done.
const AFTER_LONG_LEN: usize = 4096;

/// Bytes that came and have not been consumed.
#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: Buffer,
    start: usize,
    end: usize,
    /// For what is taken in ahead, beyond a batch.
    lease: Option<Lease>,
    /// The previous request was long.
    was_long: bool,
}

impl Inbox {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { buffer: Buffer::new(pool), start: 0, end: 0, lease: None, was_long: false }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.buffer.pool()
    }

    /// The unconsumed bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// How many unconsumed bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Forgets the first `count` bytes. They must have come.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "only what came can be consumed");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Consumes `count` bytes and gives them out to be changed in place.
    pub(crate) fn take(&mut self, count: usize) -> &mut [u8] {
        let range = self.take_range(count);
        &mut self.buffer[range]
    }

    /// Consumes `count` bytes and says where they are until the next [`Inbox::fill`].
    pub(crate) fn take_range(&mut self, count: usize) -> Range<usize> {
        assert!(count <= self.len(), "only what came can be consumed");
        let start = self.start;
        self.start += count;
        start..start + count
    }

    /// The bytes of ranges that were taken, to be changed in place. The ranges must be in the order
    /// in which they were taken.
    pub(crate) fn taken(
        &mut self,
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> impl Iterator<Item = &mut [u8]> {
        let (mut rest, mut at) = (&mut self.buffer[..], 0);
        ranges.map(move |range| {
            let (before, after) = std::mem::take(&mut rest).split_at_mut(range.end - at);
            let skipped = range.start - at;
            (rest, at) = (after, range.end);
            &mut before[skipped..]
        })
    }

    /// Whether it may take in more than a batch, which takes a lease for [`AHEAD_WEIGHT`]: the one
    /// it has, or the one that `lease` gives it now.
    pub(crate) fn may_grow(&mut self, lease: impl FnOnce() -> Option<Lease>) -> bool {
        self.lease = self.lease.take().or_else(lease);
        if self.lease.is_some() && self.buffer.grow(AHEAD_MAX, self.end).is_err() {
            // The connection can go on without it.
            self.lease = None;
        }
        self.lease.is_some()
    }

    /// Whether it has leased memory for more than a batch.
    pub(crate) fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Gives back the memory of a long request that is done. Ranges that were taken must not be
    /// needed any more.
    pub(crate) fn end_long(&mut self) -> io::Result<()> {
        self.was_long = true;
        if self.lease.is_none() {
            self.shrink()
        } else if self.buffer.len() > AHEAD_WEIGHT {
            self.move_to(AHEAD_MAX)
        } else {
            Ok(())
        }
    }

    /// Gives back a buffer longer than what a connection has for itself, unless there is too much
    /// in it.
    pub(crate) fn shrink(&mut self) -> io::Result<()> {
        if self.buffer.len() > SHORT_LEN && self.len() <= SHORT_MAX {
            self.move_to(SHORT_LEN)?;
        }
        if self.buffer.len() <= SHORT_LEN {
            self.lease = None;
        }
        Ok(())
    }

    fn move_to(&mut self, len: usize) -> io::Result<()> {
        self.buffer.replace(len, self.start..self.end)?;
        (self.start, self.end) = (0, self.len());
        Ok(())
    }

    /// Gives back the buffer and the lease, if the inbox is empty.
    pub(crate) fn release(&mut self) {
        if self.len() == 0 {
            (self.start, self.end) = (0, 0);
            self.buffer.release();
            self.lease = None;
        }
    }

    /// Reads once from `stream`, making room for at least `wanted` unconsumed bytes in all. Returns
    /// the number of bytes read; 0 at the end of the stream.
    pub(crate) fn fill(&mut self, stream: &Stream, wanted: usize) -> io::Result<usize> {
        self.fill_by(wanted, |buffer| stream.read(buffer))
    }

    /// As [`Inbox::fill`], without waiting.
    pub(crate) fn try_fill(&mut self, stream: &Stream, wanted: usize) -> io::Result<usize> {
        self.fill_by(wanted, |buffer| stream.try_read(buffer))
    }

    /// As [`Inbox::fill`], but `read` reads into the room that it is given.
    pub(crate) fn fill_by(
        &mut self,
        wanted: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if wanted <= BATCH_LEN {
                self.shrink()?;
            }
        }
        // Use no more of the buffer than this, however long it is, so that the part in use stays in
        // the CPU's cache.
        let most = match (&self.lease, std::mem::take(&mut self.was_long)) {
            (Some(_), _) => AHEAD_MAX,
            // Another long request is likely: data that came with its header would have to be
            // moved.
            (None, true) => AFTER_LONG_LEN,
            (None, false) => BATCH_LEN,
        };
        let len = wanted.max(most);
        if self.start + wanted.max(BATCH_LEN / 4) > len && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.buffer.grow(len, self.end)?;
        let count = read(&mut self.buffer[self.end..len])?;
        self.end += count;
        Ok(count)
    }
}

/// Capacity that a waiting connection keeps for the next short reply; most take 16 bytes.
const SCRATCH_KEPT: usize = 512;

/// A cache line. Measured: reads of a MiB take 12 % less CPU time if their data begins with one.
const LINE_LEN: usize = 64;

/// Replies that have not been sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    buffer: Buffer,
    /// Where the replies begin and end in the buffer.
    start: usize,
    end: usize,
    /// Where a short reply is put together.
    scratch: Vec<u8>,
}

impl Outbox {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { buffer: Buffer::new(pool), start: 0, end: 0, scratch: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Appends `header` and `length` bytes for the caller to fill in; returns the latter, which
    /// hold rubbish. If the outbox was empty they begin with a cache line.
    pub(crate) fn reserve(&mut self, header: &[u8], length: usize) -> io::Result<&mut [u8]> {
        let is_empty = self.len() == 0;
        let (at, keep) = if is_empty {
            (header.len().next_multiple_of(LINE_LEN) - header.len(), 0)
        } else {
            (self.end, self.end)
        };
        let data = at + header.len();
        let end = data + length;
        self.buffer.grow(end, keep)?;
        self.buffer[at..data].copy_from_slice(header);
        self.start = if is_empty { at } else { self.start };
        self.end = end;
        Ok(&mut self.buffer[data..end])
    }

    /// Removes everything after the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
    }

    /// Appends what `encode` writes.
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        encode(&mut bytes);
        let pushed = self.reserve(&bytes, 0).map(drop);
        self.scratch = bytes;
        pushed
    }

    /// Forgets everything, since it has been sent. Gives back a buffer longer than what a
    /// connection has for itself.
    pub(crate) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
        if self.buffer.len() > SHORT_LEN {
            self.buffer.release();
        }
    }

    /// Gives back its memory, which others can use until there are replies. The outbox must be
    /// empty.
    pub(crate) fn release(&mut self) {
        assert_eq!(self.len(), 0, "nothing may be lost");
        (self.start, self.end) = (0, 0);
        self.buffer.release();
        if self.scratch.capacity() > SCRATCH_KEPT {
            self.scratch = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn requests_cut_anywhere_come_out_whole() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let copy = sent.clone();
        let writer = std::thread::spawn(move || {
            for piece in copy.chunks(77_777) {
                client.write_all(piece).unwrap();
            }
        });
        let (stream, mut got) = (Stream::from(server), Vec::new());
        let mut inbox = Inbox::new(&Arc::default());
        for wanted in [28, 32796, 28, 1_500_000, 5, 300_000].into_iter().cycle() {
            let wanted = wanted.min(sent.len() - got.len());
            while inbox.len() < wanted {
                assert!(inbox.fill(&stream, wanted).unwrap() > 0);
            }
            got.extend_from_slice(inbox.take(wanted));
            inbox.consume(0);
            if got.len() == sent.len() {
                break;
            }
        }
        writer.join().unwrap();
        assert!(got == sent);
    }

    #[test]
    fn what_a_long_request_took_is_given_back() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let (stream, pool) = (Stream::from(server), Arc::default());
        let mut inbox = Inbox::new(&pool);
        let writer =
            std::thread::spawn(move || client.write_all(&vec![7; (3 << 20) + 28]).unwrap());
        for wanted in [3 << 20, 28] {
            while inbox.len() < wanted {
                assert!(inbox.fill(&stream, wanted).unwrap() > 0);
            }
            inbox.take(wanted);
        }
        writer.join().unwrap();
        assert_eq!(inbox.fill(&stream, 28).unwrap(), 0);
        assert_eq!(pool.lent(), SHORT_LEN);
        inbox.release();
        assert_eq!(pool.lent(), 0);
    }

    /// This includes the longest data that is not long yet: the replies beside it have room.
    #[test]
    fn short_requests_fit_into_what_a_connection_has_for_itself() {
        let pool = Arc::default();
        let mut outbox = Outbox::new(&pool);
        for _ in 0..64 {
            outbox.reserve(&[0; 32], SHORT_MAX / 64).unwrap();
            outbox.push(|bytes| bytes.extend([0; 300])).unwrap();
        }
        assert_eq!(pool.lent(), SHORT_LEN);
        outbox.reserve(b"head", 1 << 20).unwrap();
        outbox.clear();
        assert_eq!(pool.lent(), 0, "a long one is given back at once");
    }

    #[test]
    fn the_first_data_begins_with_a_line() {
        let mut outbox = Outbox::new(&Arc::default());
        for header in [&[1; 16][..], &[2; 28], &[3; 64]] {
            let data = outbox.reserve(header, 1 << 20).unwrap();
            assert_eq!(data.as_ptr().addr() % LINE_LEN, 0, "{}", header.len());
            outbox.push(|bytes| bytes.extend(b"next")).unwrap();
            assert_eq!(outbox.len(), header.len() + (1 << 20) + 4);
            assert!(outbox.bytes().starts_with(header) && outbox.bytes().ends_with(b"next"));
            outbox.clear();
        }
    }

    #[test]
    fn what_is_reserved_follows_its_header_and_can_be_taken_back() {
        let mut outbox = Outbox::new(&Arc::default());
        outbox.reserve(b"head", 3).unwrap().copy_from_slice(b"abc");
        let before = outbox.len();
        outbox.reserve(b"more", 100_000).unwrap();
        outbox.truncate(before);
        assert!(outbox.reserve(b"none", 1 << 60).is_err());
        outbox.push(|bytes| bytes.extend(b"end")).unwrap();
        assert_eq!(outbox.bytes(), b"headabcend");
        outbox.clear();
        assert_eq!((outbox.len(), outbox.bytes()), (0, &b""[..]));
    }
}
