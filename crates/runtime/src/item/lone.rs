//! An item that nobody waits for: its closure, and nothing else.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use super::header::{Books, Header, Item, Ran, Tag, Unrun, VTable};
use super::memory;
use super::quiet::drop_quietly;

#[repr(C)]
struct Lone<F> {
    header: Header,
    work: F,
}

/// Makes an item of `work`.
pub(crate) fn lone<F: FnOnce() + Send + 'static>(tag: Tag, work: F) -> Item {
    struct For<F>(F);
    impl<F: FnOnce() + Send> For<F> {
        const VTABLE: VTable =
            VTable { run: run::<F>, cancel: cancel::<F>, wanted: |_| false, lasts: false };
    }
    let header = Header::new(&For::<F>::VTABLE, 0, tag);
    let cell = memory::place(Lone { header, work });
    // SAFETY: it begins with the header (`repr(C)`), and we hand it over.
    unsafe { Item::from_header(cell.cast()) }
}

unsafe fn run<F: FnOnce() + Send>(header: NonNull<Header>, books: &dyn Books) -> Ran {
    // SAFETY: `lone` made this allocation with this `F`, and the item owned it alone.
    let Lone { work, .. } = unsafe { memory::take(header.cast::<Lone<F>>()) };
    books.started();
    // The closure is gone whether it returns or panics: nothing half-changed is seen again.
    let result = catch_unwind(AssertUnwindSafe(work));
    books.completed(result.is_err());
    drop_quietly(result);
    Ran::Over
}

unsafe fn cancel<F: FnOnce() + Send>(header: NonNull<Header>) -> Unrun {
    // SAFETY: as in `run`.
    let cell = unsafe { memory::take(header.cast::<Lone<F>>()) };
    // What the closure holds may panic when it is dropped; that is not our caller's business.
    drop_quietly(cell);
    Unrun::Cancelled
}
