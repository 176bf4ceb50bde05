//! Compares sixteen bytes with one byte in a single step.

/// Which of these bytes are equal to this one, a bit for each, the first one lowest.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn equal(bytes: [u8; 16], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

    #[target_feature(enable = "sse2")]
    #[inline]
    fn equal(bytes: u128, byte: u8) -> u32 {
        let bytes = _mm_set_epi64x((bytes >> 64) as i64, bytes as i64);
        let equal = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed()));
        _mm_movemask_epi8(equal).cast_unsigned()
    }

    // SAFETY: each processor of this architecture has SSE2.
    unsafe { equal(u128::from_le_bytes(bytes), byte) }
}

/// Which of these bytes are equal to this one, a bit for each, the first one lowest.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn equal(bytes: [u8; 16], byte: u8) -> u32 {
    let bytes = bytes.into_iter().enumerate();
    bytes.fold(0, |all, (at, other)| all | u32::from(other == byte) << at)
}
