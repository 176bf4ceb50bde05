//! An allocator that counts the allocations of each thread.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: `System` does the work, with the same arguments. Counting allocates nothing: a `Cell` of
// a number needs neither initialization nor dropping.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller promises to us what `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller promises to us what `System` requires.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller promises to us what `System` requires.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// How often this thread has allocated.
pub(crate) fn count() -> u64 {
    COUNT.with(Cell::get)
}

/// How often this thread allocates while `work` runs.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> u64 {
    let before = count();
    let result = work();
    let allocated = count() - before;
    drop(result);
    allocated
}
