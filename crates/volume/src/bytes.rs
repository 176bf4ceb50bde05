//! The layer for clients that do not keep to blocks: any offset, any length.
//!
//! A write that covers part of a block reads the block, changes it and writes it back. No other
//! thread may write to that block in between, or its bytes would be undone; so partial writes take
//! the stripe of the block exclusively, and whole writes share it. The rules:
//!
//! * `BYTES-1` Every write holds the stripes of all blocks it touches, taken in rising order of
//!   their index, so two writes never wait for each other in a circle.
//! * `BYTES-2` A stripe is held exclusively by writes that read-modify-write a block of it, shared
//!   by the others. Reads hold none.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use homing_durable::Durable;

use crate::block::{Block, BlockError, Done, Durability, Extent, Write, write_each};

/// Bytes of neighbouring blocks that share a lock, and how many locks there are. Guessed: a
/// sequential writer takes a new one each 32 large writes, and 64 random writers rarely meet.
const STRIPE_LEN: u64 = 1 << 20;
const STRIPE_COUNT: u64 = 256;

/// Zeroes are written in pieces of this many bytes.
const ZEROES_LEN: u64 = 8 << 20;

/// A device with blocks of one byte over one with larger blocks.
#[derive(Debug)]
pub struct Bytes<B> {
    below: B,
    stripes: Box<[RwLock<()>]>,
}

/// A stripe that a write holds. The fields are only ever dropped.
#[allow(dead_code)]
enum Held<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

impl<B: Block> Bytes<B> {
    /// Puts byte access over `below`.
    pub fn new(below: B) -> Self {
        Self { below, stripes: (0..STRIPE_COUNT).map(|_| RwLock::new(())).collect() }
    }

    fn block(&self) -> u64 {
        u64::from(self.below.block_size())
    }

    fn is_whole(&self, offset: u64, length: u64) -> bool {
        (offset | length) & (self.block() - 1) == 0
    }

    /// Takes the stripes of a range (`BYTES-1`). Nothing is allocated for a range in one stripe.
    fn hold(&self, offset: u64, length: u64, exclusive: bool) -> (Option<Held<'_>>, Vec<Held<'_>>) {
        let take = |index: u64| {
            let stripe = &self.stripes[index as usize];
            if exclusive {
                Held::Exclusive(stripe.write().unwrap_or_else(PoisonError::into_inner))
            } else {
                Held::Shared(stripe.read().unwrap_or_else(PoisonError::into_inner))
            }
        };
        let (first, last) = (offset / STRIPE_LEN, (offset + length - 1) / STRIPE_LEN);
        if first == last {
            return (Some(take(first % STRIPE_COUNT)), Vec::new());
        }
        if last - first >= STRIPE_COUNT {
            return (None, (0..STRIPE_COUNT).map(take).collect());
        }
        // The stripes first..=last, modulo their count: at most two runs, the lower one first.
        let (a, b) = (first % STRIPE_COUNT, last % STRIPE_COUNT);
        let runs = if a <= b { [a..b + 1, 0..0] } else { [0..b + 1, a..STRIPE_COUNT] };
        (None, runs.into_iter().flatten().map(take).collect())
    }

    /// Takes the stripes of several whole writes, shared (`BYTES-1`).
    fn hold_all(&self, writes: &[Write<'_>]) -> Vec<RwLockReadGuard<'_, ()>> {
        let mut touched = [0_u64; STRIPE_COUNT as usize / 64];
        for Write { offset, data, .. } in writes {
            let (first, last) =
                (offset / STRIPE_LEN, (offset + data.len() as u64 - 1) / STRIPE_LEN);
            for stripe in (first..=last).take(STRIPE_COUNT as usize) {
                let stripe = (stripe % STRIPE_COUNT) as usize;
                touched[stripe / 64] |= 1 << (stripe % 64);
            }
        }
        let rising = (0..STRIPE_COUNT as usize).filter(|n| touched[n / 64] >> (n % 64) & 1 == 1);
        rising.map(|n| self.stripes[n].read().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Cuts a range into a head in a partial block, whole blocks, and a tail in a partial block.
    fn cut(&self, offset: u64, length: u64) -> (u64, u64) {
        let block = self.block();
        let end = offset + length;
        let body_start = offset.next_multiple_of(block).min(end);
        let body_end = (end / block * block).max(body_start);
        (body_start - offset, body_end - offset)
    }

    /// Reads the block around `offset..offset + length`, lets `change` change those bytes of it,
    /// and writes it back.
    fn change_block(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), BlockError> {
        if length == 0 {
            return Ok(());
        }
        let start = offset / self.block() * self.block();
        let mut data = vec![0; self.block() as usize];
        self.below.read(start, &mut data)?;
        let at = (offset - start) as usize;
        change(&mut data[at..at + length as usize]);
        self.below.write(start, &mut data, durability)
    }

    /// The blocks that lie entirely inside a range, as offset and length.
    fn inner(&self, offset: u64, length: u64) -> Option<(u64, u64)> {
        let (start, end) = self.cut(offset, length);
        (end > start).then_some((offset + start, end - start))
    }

    /// The blocks that a range touches.
    fn outer(&self, offset: u64, length: u64) -> (u64, u64) {
        let start = offset / self.block() * self.block();
        (start, (offset + length).next_multiple_of(self.block()) - start)
    }
}

impl<B: Block> Block for Bytes<B> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.below.identity()
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        let length = data.len() as u64;
        if self.is_whole(offset, length) {
            return self.below.read(offset, data);
        }
        let (start, length) = self.outer(offset, length);
        let mut blocks = vec![0; length as usize];
        self.below.read(start, &mut blocks)?;
        let at = (offset - start) as usize;
        data.copy_from_slice(&blocks[at..at + data.len()]);
        Ok(())
    }

    fn write(
        &self,
        offset: u64,
        data: &mut [u8],
        durability: Durability,
    ) -> Result<(), BlockError> {
        let length = data.len() as u64;
        if length == 0 {
            return Ok(());
        }
        if self.is_whole(offset, length) {
            let _held = self.hold(offset, length, false);
            return self.below.write(offset, data, durability);
        }
        let _held = self.hold(offset, length, true); // BYTES-2
        let (body, tail) = self.cut(offset, length);
        let (head, rest) = data.split_at_mut(body as usize);
        let (middle, end) = rest.split_at_mut((tail - body) as usize);
        self.change_block(offset, body, durability, |bytes| bytes.copy_from_slice(head))?;
        if !middle.is_empty() {
            self.below.write(offset + body, middle, durability)?;
        }
        self.change_block(offset + tail, length - tail, durability, |b| b.copy_from_slice(end))
    }

    /// If one is partial, the writes are done one after the other: the partial one needs a stripe
    /// exclusively, which another may share.
    fn write_batch(&self, writes: &mut [Write<'_>], meanwhile: &mut dyn FnMut() -> bool) {
        let whole =
            |w: &Write<'_>| !w.data.is_empty() && self.is_whole(w.offset, w.data.len() as u64);
        if writes.iter().all(whole) {
            let _held = self.hold_all(writes);
            return self.below.write_batch(writes, meanwhile);
        }
        write_each(self, writes);
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Result<(), BlockError> {
        let end = offset + length;
        let mut at = offset;
        // Piece by piece, so that others can write meanwhile: there may be gigabytes of zeroes.
        while end - at > ZEROES_LEN {
            let next = (at + ZEROES_LEN) / self.block() * self.block();
            self.write_zeroes(at, next - at, Durability::Written)?;
            at = next;
        }
        if at > offset {
            self.write_zeroes(at, end - at, Durability::Written)?;
            return if durability == Durability::Flushed { self.below.flush() } else { Ok(()) };
        }
        if length == 0 {
            return Ok(());
        }
        let whole = self.is_whole(offset, length);
        let _held = self.hold(offset, length, !whole);
        if whole {
            return self.below.write_zeroes(offset, length, durability);
        }
        let (body, tail) = self.cut(offset, length);
        self.change_block(offset, body, durability, |bytes| bytes.fill(0))?;
        if tail > body {
            self.below.write_zeroes(offset + body, tail - body, durability)?;
        }
        self.change_block(offset + tail, length - tail, durability, |bytes| bytes.fill(0))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.below.flush()
    }

    fn flush_through(&self, durable: &Durable, done: Done) {
        self.below.flush_through(durable, done);
    }

    /// A write with partial blocks is several writes, each of which is made durable by itself.
    fn write_through(&self, durable: &Durable, offset: u64, data: &mut [u8], done: Done) {
        let length = data.len() as u64;
        if length == 0 || !self.is_whole(offset, length) {
            return done(self.write(offset, data, Durability::Flushed));
        }
        // Held until the data is written; others may write while it is made durable.
        let _held = self.hold(offset, length, false);
        self.below.write_through(durable, offset, data, done);
    }

    fn report_to(&self, durable: &Durable) {
        self.below.report_to(durable);
    }

    /// Only whole blocks are discarded: the rest of a partial one is still needed.
    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let Some((offset, length)) = self.inner(offset, length) else { return Ok(()) };
        let _held = self.hold(offset, length, false);
        self.below.discard(offset, length)
    }

    fn prefetch(&self, offset: u64, length: u64) {
        let (offset, length) = self.outer(offset, length);
        self.below.prefetch(offset, length);
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        count_max: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        let (start, outer) = self.outer(offset, length);
        let mut extents = self.below.extents(start, outer, count_max)?;
        // The first and last extent may reach beyond the range that was asked for. None ends before
        // that begins, because each covers at least a block.
        let mut rest = length;
        if let Some(first) = extents.first_mut() {
            first.length -= offset - start;
        }
        for extent in &mut extents {
            extent.length = extent.length.min(rest);
            rest -= extent.length;
        }
        extents.retain(|extent| extent.length > 0);
        Ok(extents)
    }

    fn cost_ns(&self, length: u64) -> u64 {
        self.below.cost_ns(length)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use homing_runtime::Runtime;
    use proptest::prelude::*;

    use super::*;
    use crate::crypt::Crypt;
    use crate::memory::Memory;
    use crate::xts::{Cipher, SectorSize, XtsKey};

    const SIZE: usize = 64 << 10;

    fn volume(sector_size: SectorSize) -> Bytes<Crypt<Memory>> {
        let key = XtsKey::new(&std::array::from_fn::<u8, 64, _>(|i| i as u8)).unwrap();
        let memory = Memory::new(SIZE, 512);
        Bytes::new(Crypt::new(memory, Cipher::new(&key, sector_size), true))
    }

    #[test]
    fn durable_writes_through_an_engine_are_read_back_whole_or_partial() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        let (volume, told) = (volume(SectorSize::B4096), Arc::new(AtomicU64::new(0)));
        for (offset, length) in [(0, 4096), (8192, 8192), (20_001, 9000), (3, 7), (40_000, 0)] {
            let counts = Arc::clone(&told);
            let done = Box::new(move |result: Result<(), BlockError>| {
                result.unwrap();
                counts.fetch_add(1, Ordering::Relaxed);
            });
            volume.write_through(&durable, offset, &mut vec![offset as u8; length], done);
            let mut data = vec![0xFF; length];
            volume.read(offset, &mut data).unwrap();
            assert_eq!(data, vec![offset as u8; length]);
        }
        assert_eq!(told.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn many_zeroes_are_written_in_pieces_up_to_their_ends() {
        let size = 3 * ZEROES_LEN as usize;
        for (from, to) in [(1, size - 1), (0, size), (4095, 2 * ZEROES_LEN as usize + 4096)] {
            let volume = Bytes::new(Memory::new(size, 4096));
            volume.write(0, &mut vec![1; size], Durability::Written).unwrap();
            let length = (to - from) as u64;
            volume.write_zeroes(from as u64, length, Durability::Flushed).unwrap();
            let mut data = vec![2; size];
            volume.read(0, &mut data).unwrap();
            let is_right = |(at, byte): (usize, &u8)| *byte == u8::from(!(from..to).contains(&at));
            assert!(data.iter().enumerate().all(is_right), "{from}..{to}");
        }
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Write(usize, Vec<u8>),
        WriteBatch(Vec<(usize, Vec<u8>)>),
        Zero(usize, usize),
        Read(usize, usize),
        Discard(usize, usize),
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let near_edges = prop_oneof![
            Just(0_usize),
            Just(1),
            Just(511),
            Just(512),
            Just(4095),
            Just(4096),
            0..9000_usize
        ];
        let range = (0..SIZE, near_edges).prop_map(|(at, n)| (at, n.min(SIZE - at)));
        let whole =
            (0..SIZE / 4096, any::<u8>()).prop_map(|(n, byte)| (n * 4096, vec![byte; 4096]));
        let anywhere = (range.clone(), any::<u8>()).prop_map(|((at, n), byte)| (at, vec![byte; n]));
        let batch =
            prop_oneof![prop::collection::vec(whole, 0..6), prop::collection::vec(anywhere, 0..6)];
        let operation = (range, any::<u8>(), 0..4).prop_map(|((at, n), seed, kind)| match kind {
            0 => Operation::Write(at, (0..n).map(|i| (i as u8) ^ seed).collect()),
            1 => Operation::Zero(at, n),
            2 => Operation::Discard(at, n),
            _ => Operation::Read(at, n),
        });
        let operation = prop_oneof![4 => operation, 1 => batch.prop_map(Operation::WriteBatch)];
        prop::collection::vec(operation, 1..40)
    }

    proptest! {
        /// Whatever is written at whatever offset, every byte is what an array would hold.
        #[test]
        fn behaves_as_an_array(operations in operations(), big: bool) {
            let volume = volume(if big { SectorSize::B4096 } else { SectorSize::B512 });
            let block = volume.block() as usize;
            let mut model = vec![0; SIZE];
            volume.write_zeroes(0, SIZE as u64, Durability::Written).unwrap();
            for operation in operations {
                match operation {
                    Operation::Write(at, data) => {
                        volume.write(at as u64, &mut data.clone(), Durability::Flushed).unwrap();
                        model[at..at + data.len()].copy_from_slice(&data);
                    }
                    Operation::WriteBatch(mut batch) => {
                        for (at, data) in &batch {
                            model[*at..at + data.len()].copy_from_slice(data);
                        }
                        let mut writes: Vec<_> = batch
                            .iter_mut()
                            .map(|(at, data)| Write { offset: *at as u64, data, result: Ok(()) })
                            .collect();
                        volume.write_batch(&mut writes, &mut || false);
                        prop_assert!(writes.iter().all(|write| write.result.is_ok()));
                    }
                    Operation::Zero(at, n) => {
                        volume.write_zeroes(at as u64, n as u64, Durability::Written).unwrap();
                        model[at..at + n].fill(0);
                    }
                    Operation::Read(at, n) => {
                        let mut data = vec![0; n];
                        volume.read(at as u64, &mut data).unwrap();
                        prop_assert_eq!(&data, &model[at..at + n]);
                    }
                    Operation::Discard(at, n) => {
                        volume.discard(at as u64, n as u64).unwrap();
                        // Undefined inside, untouched outside: take over what is there now.
                        let first = at.next_multiple_of(block).min(SIZE);
                        let last = ((at + n) / block * block).max(first);
                        volume.read(first as u64, &mut model[first..last]).unwrap();
                    }
                }
            }
            let mut all = vec![0; SIZE];
            volume.read(0, &mut all).unwrap();
            prop_assert_eq!(all, model);
        }
    }

    /// Threads that write neighbouring bytes of the same sectors, some of them whole sectors, do
    /// not undo each other's writes.
    #[test]
    fn neighbours_in_a_sector_do_not_undo_each_other() {
        let volume = Arc::new(volume(SectorSize::B4096));
        volume.write_zeroes(0, SIZE as u64, Durability::Written).unwrap();
        let writers = (0..8_u64).map(|writer| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || {
                for round in 1..=100_u8 {
                    for sector in 0..4 {
                        // Each writer owns the bytes writer * 512 .. + 500 of every sector.
                        let offset = sector * 4096 + writer * 512;
                        volume.write(offset, &mut vec![round; 500], Durability::Written).unwrap();
                        let mut back = vec![0; 500];
                        volume.read(offset, &mut back).unwrap();
                        assert!(
                            back.iter().all(|byte| *byte == round),
                            "writer {writer} was undone"
                        );
                    }
                }
            })
        });
        writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
    }

    #[test]
    fn extents_are_cut_to_what_was_asked() {
        let volume = volume(SectorSize::B4096);
        for (offset, length) in [(0, 10), (5, 4096), (4090, 5000), (0, SIZE as u64)] {
            let extents = volume.extents(offset, length, 8).unwrap();
            assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), length);
        }
    }

    #[test]
    fn every_stripe_of_a_range_is_held_once() {
        let volume = volume(SectorSize::B512);
        for (first, count) in [(0, 1), (250, 10), (3, 256), (7, 300), (255, 2)] {
            let (one, many) = volume.hold(first * STRIPE_LEN, count * STRIPE_LEN, true);
            let held = many.len() + usize::from(one.is_some());
            assert_eq!(held as u64, count.min(STRIPE_COUNT));
        }
        let block = &mut [0; 512][..];
        for (stripes, count) in [(&[3, 259, 3, 1][..], 2), (&[][..], 0), (&[255, 256, 0], 2)] {
            let mut blocks = vec![block.to_vec(); stripes.len()];
            let writes: Vec<_> = stripes
                .iter()
                .zip(&mut blocks)
                .map(|(n, data)| Write { offset: n * STRIPE_LEN, data, result: Ok(()) })
                .collect();
            assert_eq!(volume.hold_all(&writes).len(), count);
        }
    }
}
