//! The two buffers of a connection. They grow with what clients send and shrink afterwards, and
//! are never filled with zeroes again: what is read into them is all that is looked at.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::Lease;
use crate::stream::Stream;

/// What a connection reads or writes at a time. Measured: beyond 256 KiB nothing is won, and the
/// data leaves the L2 cache between decryption and the socket.
pub(crate) const BATCH_LEN: usize = 128 << 10;
/// Buffers that one long request has made longer than this are given back after it.
pub(crate) const KEEP_LEN: usize = 1 << 20;

/// Bytes that came and have not been consumed.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// For more than a batch.
    lease: Option<Lease>,
}

impl Inbox {
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

    /// The bytes of ranges that were taken, to be changed in place. They must be in their order.
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

    /// Whether it may take in more than a batch: it has been lent memory for that, or is now.
    pub(crate) fn may_grow(&mut self, lease: impl FnOnce() -> Option<Lease>) -> bool {
        self.lease = self.lease.take().or_else(lease);
        self.lease.is_some()
    }

    /// Whether it has been lent memory for more than a batch.
    pub(crate) fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Gives back what a long request took. What was taken out must not be needed any more.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.len() > KEEP_LEN && self.len() <= BATCH_LEN {
            self.buffer = self.bytes().to_vec();
            (self.start, self.end) = (0, self.buffer.len());
        }
        if self.buffer.len() <= KEEP_LEN {
            self.lease = None;
        }
    }

    /// Reads once from `stream`, making room for at least `wanted` unconsumed bytes in all. The
    /// number of bytes read; 0 at the end of the stream.
    pub(crate) fn fill(&mut self, stream: &Stream, wanted: usize) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if wanted <= BATCH_LEN {
                self.shrink();
            }
        }
        if self.start + wanted.max(BATCH_LEN / 4) > self.buffer.len() && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() < wanted.max(BATCH_LEN) {
            // `resize` of an empty vector takes zeroed pages that cost nothing until written.
            let mut larger = vec![0; wanted.max(BATCH_LEN)];
            larger[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = larger;
        }
        let count = stream.read(&mut self.buffer[self.end..])?;
        self.end += count;
        Ok(count)
    }
}

/// Outboxes that nobody uses at present. The one used last is given out first: with many
/// connections on few CPUs a handful of them are in use, and stay in the CPU's cache.
#[derive(Debug, Default)]
pub(crate) struct Outboxes(Mutex<Vec<Outbox>>);

/// Kept for later; more are given back to the system.
const OUTBOX_COUNT_MAX: usize = 64;

impl Outboxes {
    pub(crate) fn take(&self) -> Outbox {
        self.kept().pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, outbox: Outbox) {
        let mut kept = self.kept();
        if kept.len() < OUTBOX_COUNT_MAX {
            kept.push(outbox);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Outbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replies that have not been sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    buffer: Vec<u8>,
    len: usize,
    /// Where a short reply is put together.
    scratch: Vec<u8>,
}

impl Outbox {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Appends `header` and `length` bytes to be filled in; gives those out. They hold rubbish.
    pub(crate) fn reserve(&mut self, header: &[u8], length: usize) -> &mut [u8] {
        let data = self.len + header.len();
        let end = data + length;
        if end > self.buffer.len() {
            // Nothing follows a long reply before it is sent: it needs no room to spare.
            let is_long = end > 2 * BATCH_LEN;
            let len = if is_long { end } else { end.next_power_of_two().max(BATCH_LEN / 4) };
            let mut larger = vec![0; len];
            larger[..self.len].copy_from_slice(&self.buffer[..self.len]);
            self.buffer = larger;
        }
        self.buffer[self.len..data].copy_from_slice(header);
        self.len = end;
        &mut self.buffer[data..end]
    }

    /// Takes back everything after the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends what `encode` writes.
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        encode(&mut bytes);
        self.reserve(&bytes, 0);
        self.scratch = bytes;
    }

    /// Forgets everything: it has been sent.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        if self.buffer.len() > KEEP_LEN {
            self.buffer = Vec::new();
        }
        if self.scratch.len() > BATCH_LEN {
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
        let (stream, mut inbox, mut got) = (Stream::Unix(server), Inbox::default(), Vec::new());
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
        let (stream, mut inbox) = (Stream::Unix(server), Inbox::default());
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
        assert!(inbox.buffer.len() <= BATCH_LEN);
    }

    #[test]
    fn a_long_reply_takes_no_more_than_it_has() {
        let mut outbox = Outbox::default();
        outbox.reserve(b"head", 1 << 20);
        assert_eq!(outbox.buffer.len(), (1 << 20) + 4);
    }

    #[test]
    fn what_is_reserved_follows_its_header_and_can_be_taken_back() {
        let mut outbox = Outbox::default();
        outbox.reserve(b"head", 3).copy_from_slice(b"abc");
        let before = outbox.len();
        outbox.reserve(b"more", 100_000);
        outbox.truncate(before);
        outbox.push(|bytes| bytes.extend(b"end"));
        assert_eq!(outbox.bytes(), b"headabcend");
        outbox.clear();
        assert_eq!(outbox.len(), 0);
    }
}
