//! XTS in safe Rust over the `aes` crate, 32 blocks at a time.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Aes256Enc, Block};

use super::{Direction, KEY_LEN};

/// Blocks that go through the cipher together: one 512-byte sector.
const BATCH: usize = 32;
const BLOCK_LEN: usize = 16;

pub(super) struct Xts {
    data: Aes256,
    tweak: Aes256Enc,
}

impl Xts {
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Self {
        let (data, tweak) = key.split_at(KEY_LEN / 2);
        let array = |half: &[u8]| Array::try_from(half).expect("half of KEY_LEN is 32 bytes");
        Self { data: Aes256::new(&array(data)), tweak: Aes256Enc::new(&array(tweak)) }
    }

    /// Transforms sectors, each with its number. Their lengths are multiples of 512.
    pub(super) fn apply<'a>(
        &self,
        direction: Direction,
        sectors: impl Iterator<Item = (u64, &'a mut [u8])>,
    ) {
        for (number, sector) in sectors {
            let mut first = Block::from(u128::from(number).to_le_bytes());
            self.tweak.encrypt_block(&mut first);
            let mut tweak = u128::from_le_bytes(first.into());
            for chunk in sector.chunks_exact_mut(BATCH * BLOCK_LEN) {
                let tweaks: [u128; BATCH] = std::array::from_fn(|_| {
                    let this = tweak;
                    tweak = double(tweak);
                    this
                });
                mix(chunk, &tweaks);
                let (blocks, _) = Block::slice_as_chunks_mut(chunk);
                match direction {
                    Direction::Encrypt => self.data.encrypt_blocks(blocks),
                    Direction::Decrypt => self.data.decrypt_blocks(blocks),
                }
                mix(chunk, &tweaks);
            }
        }
    }
}

impl std::fmt::Debug for Xts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Xts(key not shown)")
    }
}

/// Multiplies by x in GF(2^128) with the polynomial x^128 + x^7 + x^2 + x + 1.
fn double(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

fn mix(chunk: &mut [u8], tweaks: &[u128; BATCH]) {
    for (block, tweak) in chunk.as_chunks_mut::<BLOCK_LEN>().0.iter_mut().zip(tweaks) {
        *block = (u128::from_le_bytes(*block) ^ tweak).to_le_bytes();
    }
}
