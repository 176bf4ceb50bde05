//! What remains of several panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs this for all of them, whatever panics. Returns the payload of the first panic. Payloads of
/// others are leaked, because dropping one could panic.
pub(crate) fn each<T>(
    all: impl IntoIterator<Item = T>,
    mut run: impl FnMut(T),
) -> Option<Box<dyn Any + Send>> {
    let mut first = None;
    for one in all {
        if let Err(panicked) = catch_unwind(AssertUnwindSafe(|| run(one))) {
            match first {
                None => first = Some(panicked),
                Some(_) => std::mem::forget(panicked),
            }
        }
    }
    first
}
