//! Asks for lines of memory before they are needed.
//!
//! An item goes from one CPU to another, and so does its memory when it is used again: each of its
//! lines is in another CPU's cache when it is needed. Locked instructions wait for loads and
//! stores, so it is not enough to load or store early; nothing waits for a hint.
#![allow(unsafe_code)]

use std::ptr::NonNull;

/// Asks the processor for the line at this place, to write there. The processor may ignore it.
/// Nothing else changes.
#[inline]
pub(super) fn prefetch_to_write<T>(place: Option<NonNull<T>>) {
    let address = place.map_or(0, |place| place.addr().get());
    // SAFETY: a hint, which never faults, whatever the address; a processor without it does
    // nothing. The intrinsic asks for the line to read, unless it is compiled for a processor that
    // is known to have this instruction.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) address, options(nomem, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address, options(nomem, nostack, preserves_flags));
    }
    let _ = address;
}
