//! The memory of items, used again and again.
//!
//! An item is made by its issuer and freed by the worker that ran it, which is the most expensive
//! pattern there is for a general allocator. Here each thread keeps two magazines of free blocks
//! (Bonwick's magazines, USENIX 2001). Full magazines go to a depot, and threads that have run out
//! fetch them there, so threads meet once for [`MAGAZINE`] items. What the depot cannot hold goes
//! back to the allocator: at most [`DEPOT_MAGAZINES`] magazines of each size are kept.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use super::prefetch::prefetch_to_write;

/// Sizes of blocks, in bytes: those that common allocators have, less their usual header. The
/// smallest is an item that captures nothing, the largest fits two cache lines.
const SIZES: [usize; 6] = [40, 56, 72, 88, 104, 120];

const ALIGN: usize = 16;

/// How many blocks a thread hands over at once.
const MAGAZINE: usize = 32;

/// A block's line is asked for when so many others are to be used before it.
const AHEAD: usize = 4;

/// 16,384 blocks: 0.7 to 2 MB of each size.
const DEPOT_MAGAZINES: usize = 512;

/// Some free blocks of one size. They are listed beside each other and not linked through their
/// own memory: the processor that freed a block still has its cache lines, and a thread that
/// followed links would wait for one after the other.
#[derive(Clone, Copy)]
struct Magazine {
    blocks: [Option<NonNull<u8>>; MAGAZINE],
    len: usize,
}

// SAFETY: it owns its blocks, which nobody else knows.
unsafe impl Send for Magazine {}

impl Magazine {
    const EMPTY: Self = Self { blocks: [None; MAGAZINE], len: 0 };

    fn pop(&mut self) -> Option<NonNull<u8>> {
        self.len = self.len.checked_sub(1)?;
        if let Some(next) = self.len.checked_sub(AHEAD) {
            prefetch_to_write(self.blocks[next]);
        }
        self.blocks[self.len]
    }

    fn push(&mut self, block: NonNull<u8>) {
        self.blocks[self.len] = Some(block);
        self.len += 1;
    }
}

static DEPOTS: [Mutex<Vec<Magazine>>; SIZES.len()] = [const { Mutex::new(Vec::new()) }; _];

/// Free blocks of one size that a thread has at hand.
struct AtHand {
    loaded: Magazine,
    previous: Magazine,
    size: usize,
}

impl AtHand {
    const fn new(size: usize) -> Self {
        Self { loaded: Magazine::EMPTY, previous: Magazine::EMPTY, size }
    }

    fn take(&mut self) -> Option<NonNull<u8>> {
        if self.loaded.len == 0 {
            std::mem::swap(&mut self.loaded, &mut self.previous);
        }
        if self.loaded.len == 0 {
            self.loaded = depot(self.size).pop()?;
            let first = self.loaded.len.saturating_sub(AHEAD);
            self.loaded.blocks[first..self.loaded.len]
                .iter()
                .for_each(|block| prefetch_to_write(*block));
        }
        self.loaded.pop()
    }

    fn give(&mut self, block: NonNull<u8>) {
        if self.loaded.len == MAGAZINE {
            std::mem::swap(&mut self.loaded, &mut self.previous);
        }
        if self.loaded.len == MAGAZINE {
            hand_in(self.size, std::mem::replace(&mut self.loaded, Magazine::EMPTY));
        }
        self.loaded.push(block);
    }
}

impl Drop for AtHand {
    /// The thread ends.
    fn drop(&mut self) {
        hand_in(self.size, self.loaded);
        hand_in(self.size, self.previous);
    }
}

thread_local! {
    static AT_HAND: UnsafeCell<[AtHand; SIZES.len()]> =
        const { UnsafeCell::new(at_hand()) };
}

const fn at_hand() -> [AtHand; SIZES.len()] {
    [AtHand::new(0), AtHand::new(1), AtHand::new(2), AtHand::new(3), AtHand::new(4), AtHand::new(5)]
}

fn depot(size: usize) -> std::sync::MutexGuard<'static, Vec<Magazine>> {
    DEPOTS[size].lock().unwrap_or_else(PoisonError::into_inner)
}

fn hand_in(size: usize, mut magazine: Magazine) {
    if magazine.len == 0 {
        return;
    }
    {
        let mut depot = depot(size);
        // All at once, so that nobody waits while it grows; if that can be had.
        let has_room = depot.capacity() > 0 || depot.try_reserve_exact(DEPOT_MAGAZINES).is_ok();
        if has_room && depot.len() < DEPOT_MAGAZINES {
            depot.push(magazine);
            return;
        }
    }
    while let Some(block) = magazine.pop() {
        // SAFETY: `place` made it with this layout, and we own it.
        unsafe { dealloc(block.as_ptr(), layout(size)) };
    }
}

const fn layout(size: usize) -> Layout {
    match Layout::from_size_align(SIZES[size], ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("sizes and alignment are constants that fit"),
    }
}

/// Which size of block holds a `T`; `None` if none does. The model checkers have threads that the
/// thread-local variables do not know of: there the allocator is always used.
const fn size_for<T>() -> Option<usize> {
    if cfg!(any(loom, shuttle)) || align_of::<T>() > ALIGN {
        return None;
    }
    let mut size = 0;
    while size < SIZES.len() {
        if size_of::<T>() <= SIZES[size] {
            return Some(size);
        }
        size += 1;
    }
    None
}

/// Puts `value` on the heap. The counterpart is [`take`].
pub(super) fn place<T>(value: T) -> NonNull<T> {
    let Some(size) = (const { size_for::<T>() }) else {
        // SAFETY: a box is never null.
        return unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(value))) };
    };
    let at_hand = AT_HAND.try_with(|at_hand| {
        // SAFETY: the variable is this thread's, and nothing in here comes back to it.
        unsafe { (*at_hand.get())[size].take() }
    });
    // The variable is gone while its thread ends.
    let block = at_hand.ok().flatten().unwrap_or_else(|| {
        // SAFETY: the layout is not of size 0.
        let block = unsafe { alloc(layout(size)) };
        NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout(size)))
    });
    let place = block.cast::<T>();
    // SAFETY: the block is ours, and large and aligned enough.
    unsafe { place.write(value) };
    place
}

/// Takes the value off the heap and frees its place.
///
/// # Safety
/// [`place`] has made it, with this `T`, and nobody else uses it any more.
pub(super) unsafe fn take<T>(place: NonNull<T>) -> T {
    let Some(size) = (const { size_for::<T>() }) else {
        // SAFETY: `place` has made it from a box.
        return *unsafe { Box::from_raw(place.as_ptr()) };
    };
    // SAFETY: the value is there, and not looked at again.
    let value = unsafe { place.read() };
    let block = place.cast();
    let given = AT_HAND.try_with(|at_hand| {
        // SAFETY: the variable is this thread's, and nothing in here comes back to it.
        unsafe { (*at_hand.get())[size].give(block) };
    });
    if given.is_err() {
        // SAFETY: `place` made it with this layout, and it is ours.
        unsafe { dealloc(block.as_ptr().cast(), layout(size)) };
    }
    value
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_sizes_come_back() {
        #[repr(align(64))]
        #[derive(Debug, PartialEq)]
        struct Aligned(u8);
        for round in 0..3_u8 {
            let small: Vec<_> = (0..200).map(|n: u64| place([n; 2])).collect();
            let middle: Vec<_> = (0..200).map(|n: u64| place([n; 15])).collect();
            let large = place([round; 500]);
            let aligned = place(Aligned(round));
            // SAFETY: made above, and taken once.
            unsafe {
                for (n, place) in (0..200).zip(small) {
                    assert_eq!(take(place), [n; 2]);
                }
                for (n, place) in (0..200).zip(middle) {
                    assert_eq!(take(place), [n; 15]);
                }
                assert_eq!(take(large), [round; 500]);
                assert_eq!(take(aligned), Aligned(round));
            }
        }
    }

    #[test]
    fn blocks_travel_between_threads_and_outlive_them() {
        struct Sent(NonNull<u64>);
        // SAFETY: it owns the value.
        unsafe impl Send for Sent {}
        let (sender, receiver) = std::sync::mpsc::channel::<Sent>();
        let maker = std::thread::spawn(move || {
            for n in 0..1000 {
                sender.send(Sent(place(n))).unwrap();
            }
        });
        // SAFETY: made there, taken once, here.
        let taken: u64 = receiver.iter().map(|sent| unsafe { take(sent.0) }).sum();
        maker.join().unwrap();
        assert_eq!(taken, 499_500);
    }
}
