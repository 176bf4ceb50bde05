//! Panics that end here: those of values dropped and functions called where nobody could receive
//! them.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `foreign`. A panic in it goes no further.
///
/// The payload of the panic is dropped here too, and may panic in turn; then the rest of it is
/// leaked. `let _ = catch_unwind(..)` would let that second panic out.
///
/// The crates above use it, too.
#[doc(hidden)]
pub fn quietly(foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign))
        && let Err(of_payload) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        std::mem::forget(of_payload);
    }
}

/// Drops `value`; a panic in that goes no further.
pub(crate) fn drop_quietly<T>(value: T) {
    quietly(|| drop(value));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn not_even_what_was_panicked_with_gets_out() {
        struct Bomb(u32);
        impl Drop for Bomb {
            fn drop(&mut self) {
                if self.0 > 0 {
                    std::panic::panic_any(Self(self.0 - 1));
                }
            }
        }
        // Of deeper ones the rest is leaked, which miri would report.
        let deepest = if cfg!(miri) { 1 } else { 3 };
        (0..=deepest).for_each(|depth| drop_quietly(Bomb(depth)));
        quietly(|| std::panic::panic_any(Bomb(0)));
    }
}
