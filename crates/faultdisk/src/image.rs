//! What a disk holds: blocks that are all zeroes take no memory, and copies share the others.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// Sparse bytes of a fixed size. Cloning copies references.
#[derive(Clone, Debug, Default)]
pub struct Image {
    size: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

impl Image {
    /// An image of `size` bytes, all zeroes.
    pub fn new(size: u64) -> Self {
        Self { size, blocks: BTreeMap::new() }
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `into` with what stands at `offset`; zeroes behind the end.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (number, at, part) in parts(offset, into.len()) {
            match self.blocks.get(&number) {
                Some(block) => into[part.clone()].copy_from_slice(&block[at..at + part.len()]),
                None => into[part].fill(0),
            }
        }
    }

    /// Puts `bytes` at `offset`. What would stand behind the end is dropped.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let room = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        for (number, at, part) in parts(offset, bytes.len()) {
            let bytes = &bytes[part];
            if bytes.len() == BLOCK && bytes.iter().all(|byte| *byte == 0) {
                self.blocks.remove(&number);
                continue;
            }
            let block = self.blocks.entry(number).or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// The blocks that a range touches: number, where in the block, and which part of the range.
pub(crate) fn parts(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let from = offset + done as u64;
        let at = (from % BLOCK as u64) as usize;
        let part = done..done + (BLOCK - at).min(len - done);
        done = part.end;
        Some((from / BLOCK as u64, at, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_across_blocks_and_copies_are_apart() {
        let mut image = Image::new(3 * BLOCK as u64);
        let bytes: Vec<u8> = (0..BLOCK + 1000).map(|at| (at % 251) as u8 + 1).collect();
        image.write(3000, &bytes);
        let copy = image.clone();
        image.write(3000, &[0]);
        let mut read = vec![9; bytes.len() + 2];
        copy.read(2999, &mut read);
        assert_eq!((read[0], &read[1..=bytes.len()], read[bytes.len() + 1]), (0, &bytes[..], 0));
        image.read(3000, &mut read[..1]);
        assert_eq!(read[0], 0);
    }

    #[test]
    fn zeroed_blocks_take_no_memory_and_nothing_stands_behind_the_end() {
        let mut image = Image::new(2 * BLOCK as u64);
        image.write(0, &[1; 3 * BLOCK]);
        assert_eq!(image.blocks.len(), 2);
        image.write(0, &[0; BLOCK]);
        assert_eq!(image.blocks.len(), 1);
    }

    #[test]
    fn what_was_never_written_is_zeroes_and_zeroes_in_a_block_leave_the_rest_of_it() {
        let mut image = Image::new(2 * BLOCK as u64);
        let mut read = [9; 8];
        image.read(0, &mut read);
        assert_eq!(read, [0; 8]);
        image.write(0, &[1; 8]);
        image.write(2, &[0; 2]);
        image.read(0, &mut read);
        assert_eq!(read, [1, 1, 0, 0, 1, 1, 1, 1]);
    }
}
