//! Asks for lines of memory before they are needed.
//!
//! A victim's frame, page and links are cold, for the same reason that makes it a victim, and a
//! thread would wait for each of them in turn. Locked instructions wait for loads, so early loads
//! do not help; nothing waits for a hint.
#![allow(unsafe_code)]

/// Asks the processor to fetch the line at which this begins. The processor may ignore it. Nothing
/// else changes.
#[inline]
pub fn prefetch<T>(place: &T) {
    let place = std::ptr::from_ref(place).cast::<u8>();
    // SAFETY: a hint. It reads nothing that the program could see, and never faults, whatever the
    // address.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    // SAFETY: as above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    let _ = place;
}
