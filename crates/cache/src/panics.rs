//! What remains of several panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops what somebody panicked with. If that panics, too, the payload of that panic is leaked.
pub(crate) fn drop_quietly(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

/// Runs this for all of them, whatever panics. Returns the payload of the first panic.
pub(crate) fn each<T>(
    all: impl IntoIterator<Item = T>,
    mut run: impl FnMut(T),
) -> Option<Box<dyn Any + Send>> {
    let mut first = None;
    for one in all {
        if let Err(panicked) = catch_unwind(AssertUnwindSafe(|| run(one))) {
            match first {
                None => first = Some(panicked),
                Some(_) => drop_quietly(panicked),
            }
        }
    }
    first
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::panic::panic_any;
    use std::sync::Arc;

    use super::*;

    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("this panic is part of the test");
        }
    }

    #[test]
    fn what_several_panicked_with_is_dropped_even_if_that_panics() {
        let payload = Arc::new(());
        let first = each(0..4, |index| match index {
            2 => panic_any(Panics),
            _ => panic_any(Arc::clone(&payload)),
        });
        assert!(first.is_some_and(|first| first.is::<Arc<()>>()));
        assert_eq!(Arc::strong_count(&payload), 1);
    }
}
