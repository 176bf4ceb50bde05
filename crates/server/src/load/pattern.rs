//! What the load writes, so that it knows a block when it reads it back.

/// The pattern's words: different for every block, generation and place in the block.
fn words(offset: u64, generation: u32) -> impl Iterator<Item = u64> {
    let seed = (offset ^ u64::from(generation) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..).map(move |place: u64| seed.wrapping_add(place.wrapping_mul(0xbf58_476d_1ce4_e5b9)))
}

/// Fills a block with the pattern of its place and generation.
pub(super) fn fill(block: &mut [u8], offset: u64, generation: u32) {
    for (bytes, word) in block.as_chunks_mut::<8>().0.iter_mut().zip(words(offset, generation)) {
        *bytes = word.to_le_bytes();
    }
}

/// Whether a block holds that pattern, every byte of it.
pub(super) fn holds(block: &[u8], offset: u64, generation: u32) -> bool {
    let expected = words(offset, generation);
    let differ = |(bytes, word): (&[u8; 8], u64)| u64::from_le_bytes(*bytes) ^ word;
    block.as_chunks::<8>().0.iter().zip(expected).map(differ).fold(0, |all, bits| all | bits) == 0
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK_LEN;
    use super::*;

    #[test]
    fn a_pattern_is_told_from_every_other() {
        let mut block = vec![0; BLOCK_LEN];
        fill(&mut block, 8192, 3);
        assert!(holds(&block, 8192, 3));
        assert!(!holds(&block, 8192, 2) && !holds(&block, 4096, 3));
        block[4095] ^= 1;
        assert!(!holds(&block, 8192, 3));
    }
}
