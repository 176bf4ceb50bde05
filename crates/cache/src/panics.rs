//! What remains of several panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does all of this, whatever panics. The first panic of them; the others are leaked: what one panicked with could
/// panic when it is dropped.
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
