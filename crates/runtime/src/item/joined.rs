//! An item with a handle: whichever of the two lets go last frees it.
//!
//! States, as bits of the header's `state`:
//!
//! ```text
//! ITEM|HANDLE --claim--> +CLAIMED --run, write the result--> +DONE --release--> -ITEM
//!                                        the handle, at any time: +WAITER, -WAITER, -HANDLE
//! ```
//!
//! A thread that waits for an item may run it while it stands in its queue. A worker that comes to
//! what is left of it there notes its end. If this is before `DONE`, the worker sets `LEFT`
//! instead: then the thread that runs the item notes its end, and has the worker's reference.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::{Poll, Waker};

use super::header::{Books, Header, Item, Ran, Tag, Unrun, VTable};
use super::join_error::JoinError;
use super::memory;
use super::quiet::quietly;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};

/// The closure belongs to the thread that set this bit.
const CLAIMED: u32 = 1;
/// The result is there, for the handle.
const DONE: u32 = 2;
/// The handle lives.
const HANDLE: u32 = 4;
/// The item lives: it stands in a queue or runs.
const ITEM: u32 = 8;
/// There is a waker, and it belongs to the thread that sets `DONE`. Without this bit it is the
/// handle's.
const WAITER: u32 = 16;
/// It was aborted through the handle: for the books.
const ABORTED: u32 = 32;
/// The thread that sets `DONE` owns the item's reference.
const LEFT: u32 = 64;

/// What the handle knows of the allocation: its beginning.
#[repr(C)]
struct Front<T> {
    header: Header,
    operations: &'static Operations,
    result: UnsafeCell<Option<Result<T, JoinError>>>,
    waiter: UnsafeCell<Option<Waker>>,
}

#[repr(C)]
struct Cell<F, T> {
    front: Front<T>,
    work: UnsafeCell<Option<F>>,
}

/// What the handle needs of the closure's type.
struct Operations {
    /// Runs the closure that the caller has claimed. Returns whether it panicked.
    run: unsafe fn(NonNull<Header>) -> bool,
    /// Drops the closure that the caller has claimed.
    discard: unsafe fn(NonNull<Header>),
    /// Frees the allocation.
    free: unsafe fn(NonNull<Header>),
}

/// Makes an item of `work`, and a handle.
pub(crate) fn joined<F, T>(tag: Tag, work: F) -> (Item, Joined<T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // SAFETY: nothing is borrowed.
    unsafe { joined_borrowing(tag, work) }
}

/// As [`joined`], for `work` that borrows.
///
/// # Safety
/// The handle must be seen finished before anything that `F` borrows ends; and it must be gone
/// before anything that `T` borrows does.
pub(crate) unsafe fn joined_borrowing<F, T>(tag: Tag, work: F) -> (Item, Joined<T>)
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    struct For<F, T>(PhantomData<(F, T)>);
    impl<F: FnOnce() -> T + Send, T: Send> For<F, T> {
        const VTABLE: VTable =
            VTable { run: run::<F, T>, cancel: cancel::<F, T>, wanted, lasts: true };
        const OPERATIONS: Operations =
            Operations { run: execute::<F, T>, discard: discard::<F, T>, free: free::<F, T> };
    }
    let front: Front<T> = Front {
        header: Header::new(&For::<F, T>::VTABLE, ITEM | HANDLE, tag),
        operations: &For::<F, T>::OPERATIONS,
        result: UnsafeCell::new(None),
        waiter: UnsafeCell::new(None),
    };
    let cell = memory::place(Cell { front, work: UnsafeCell::new(Some(work)) });
    // SAFETY: it begins with the header. Item and handle hold a reference each: `ITEM`, `HANDLE`.
    unsafe {
        let header = cell.cast::<Header>();
        (Item::from_header(header), Joined { header, result: PhantomData })
    }
}

/// The worker's side: takes over the item's reference.
unsafe fn run<F, T>(header: NonNull<Header>, books: &dyn Books) -> Ran
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // SAFETY: the item's reference keeps the allocation alive until `release`.
    unsafe {
        let before = header.as_ref().state.fetch_or(CLAIMED, AcqRel);
        if before & CLAIMED == 0 {
            books.started();
            let panicked = execute::<F, T>(header);
            books.completed(panicked);
            finish::<T>(header);
        } else {
            if before & ABORTED != 0 {
                books.aborted();
            } else if header.as_ref().state.fetch_or(LEFT, AcqRel) & DONE == 0 {
                return Ran::Kept(None);
            }
            release(header, ITEM, HANDLE, free::<F, T>);
        }
    }
    Ran::Over
}

unsafe fn cancel<F, T>(header: NonNull<Header>) -> Unrun
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // SAFETY: as in `run`.
    unsafe {
        let before = header.as_ref().state.fetch_or(CLAIMED, AcqRel);
        if before & CLAIMED == 0 {
            discard::<F, T>(header);
            finish::<T>(header);
            Unrun::Cancelled
        } else {
            release(header, ITEM, HANDLE, free::<F, T>);
            if before & ABORTED == 0 { Unrun::Ran } else { Unrun::Aborted }
        }
    }
}

/// Whether somebody has asked for its result in vain.
fn wanted(header: &Header) -> bool {
    header.state.load(Relaxed) & (WAITER | CLAIMED) == WAITER
}

/// Runs the closure and keeps its result. Returns whether it panicked.
///
/// # Safety
/// The caller has set `CLAIMED`, and `DONE` is not set.
unsafe fn execute<F, T>(header: NonNull<Header>) -> bool
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // SAFETY: closure and result are the claimer's until `DONE`.
    unsafe {
        let cell = header.cast::<Cell<F, T>>().as_ref();
        let work = (*cell.work.get()).take();
        let outcome = work.map(|work| {
            // The closure is gone whether it returns or panics: nothing half-changed is seen.
            catch_unwind(AssertUnwindSafe(work)).map_err(JoinError::panicked)
        });
        let panicked = matches!(outcome, Some(Err(_)));
        *cell.front.result.get() = outcome;
        panicked
    }
}

/// # Safety
/// As for `execute`.
unsafe fn discard<F, T>(header: NonNull<Header>)
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // SAFETY: closure and result are the claimer's until `DONE`.
    unsafe {
        let cell = header.cast::<Cell<F, T>>().as_ref();
        let work = (*cell.work.get()).take();
        // What the closure holds is dropped here; that it panics must not reach the caller.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(work)));
        let error = dropped.map_or_else(JoinError::panicked, |()| JoinError::Cancelled);
        *cell.front.result.get() = Some(Err(error));
    }
}

/// Publishes the result, wakes the waiter, and lets go of the item's reference.
///
/// # Safety
/// The caller has claimed, has written the result, and owns the item's reference.
unsafe fn finish<T>(header: NonNull<Header>) {
    // SAFETY: our reference is let go of last.
    unsafe {
        let front = header.cast::<Front<T>>().as_ref();
        let before = front.header.state.fetch_or(DONE, AcqRel);
        let free = front.operations.free;
        if before & HANDLE == 0 {
            // The handle was let go of before: nobody else knows the item.
            free(header);
            return;
        }
        if before & WAITER != 0
            && let Some(waker) = (*front.waiter.get()).take()
        {
            // A foreign waker that panics must not take the worker with it.
            quietly(|| waker.wake());
        }
        release(header, ITEM, HANDLE, free);
    }
}

/// # Safety
/// The caller owns the reference `mine` and does not touch the item again.
unsafe fn release(
    header: NonNull<Header>,
    mine: u32,
    other: u32,
    free: unsafe fn(NonNull<Header>),
) {
    // SAFETY: the second one to let go frees; `AcqRel` makes the first one's writes visible.
    unsafe {
        if header.as_ref().state.fetch_and(!mine, AcqRel) & other == 0 {
            free(header);
        }
    }
}

/// # Safety
/// Nobody else knows the item.
unsafe fn free<F, T>(header: NonNull<Header>) {
    let cell = header.cast::<Cell<F, T>>();
    // A result that nobody took may panic when it is dropped, and end the worker with that. It may
    // also make an item and wait for it, which must not get this one's place meanwhile.
    // SAFETY: `joined` made this allocation with these types, and what is in it is not used again.
    quietly(|| unsafe { cell.drop_in_place() });
    // SAFETY: as above; what is taken out is not initialized any more.
    let _ = unsafe { memory::take(cell.cast::<MaybeUninit<Cell<F, T>>>()) };
}

/// The handle's side of an item.
pub(crate) struct Joined<T> {
    header: NonNull<Header>,
    result: PhantomData<T>,
}

// SAFETY: the handle moves the result between threads, and the rest of the item is atomics or
// owned through its bits. `&Joined` only reads the state, and may run the closure, which is `Send`.
unsafe impl<T: Send> Send for Joined<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Joined<T> {}
// The closure's panics are caught; the result is whole or absent.
impl<T> std::panic::UnwindSafe for Joined<T> {}
impl<T> std::panic::RefUnwindSafe for Joined<T> {}
impl<T> Unpin for Joined<T> {}

impl<T> Joined<T> {
    fn front(&self) -> &Front<T> {
        // SAFETY: our reference keeps the allocation alive, and it begins with a `Front<T>`.
        unsafe { self.header.cast::<Front<T>>().as_ref() }
    }

    /// Whether the result is there.
    pub(crate) fn is_done(&self) -> bool {
        self.front().header.state.load(Acquire) & DONE != 0
    }

    /// Its workqueue and colour.
    pub(crate) fn tag(&self) -> Tag {
        self.front().header.tag()
    }

    /// Where its item is, or was: [`Item::place`].
    pub(crate) fn place(&self) -> usize {
        self.header.addr().get()
    }

    /// Runs the item here and now, unless another thread has begun it. Returns whether this call
    /// did, and what is left of the item if a worker has come to it meanwhile: then the caller
    /// notes that it has ended.
    pub(crate) fn run_here(&self, books: &dyn Books) -> (bool, Option<Item>) {
        let before = self.end_here(0, |header| {
            books.started();
            // SAFETY: `end_here` has claimed.
            let panicked = unsafe { (self.front().operations.run)(header) };
            books.completed(panicked);
        });
        let is_left = before.is_some_and(|before| before & LEFT != 0);
        // SAFETY: the worker that set `LEFT` has left its reference to the thread that set `DONE`:
        // us.
        (before.is_some(), is_left.then(|| unsafe { Item::from_header(self.header) }))
    }

    /// Drops the item's closure, unless a thread has begun it. Returns whether this call did.
    pub(crate) fn abort(&self) -> bool {
        // SAFETY: `end_here` has claimed.
        let discard = |header| unsafe { (self.front().operations.discard)(header) };
        self.end_here(ABORTED, discard).is_some()
    }

    /// The state before `DONE`, if this call ends the item.
    fn end_here(&self, how: u32, end: impl FnOnce(NonNull<Header>)) -> Option<u32> {
        let state = &self.front().header.state;
        if state.load(Acquire) & CLAIMED != 0
            || state.fetch_or(CLAIMED | how, AcqRel) & CLAIMED != 0
        {
            return None;
        }
        end(self.header);
        let before = state.fetch_or(DONE, AcqRel);
        if before & WAITER != 0 {
            // SAFETY: with `WAITER` set, the waker belongs to the thread that sets `DONE`: us.
            let waker = unsafe { (*self.front().waiter.get()).take() };
            quietly(|| waker.into_iter().for_each(Waker::wake));
        }
        Some(before)
    }

    /// Takes the result if it is there, else leaves `waker` to be woken when it is.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<T, JoinError>> {
        let state = &self.front().header.state;
        let mut seen = state.load(Acquire);
        if seen & DONE == 0 && seen & WAITER != 0 {
            seen = state.fetch_and(!WAITER, AcqRel);
        }
        if seen & DONE == 0 {
            // SAFETY: without `WAITER` the waker is ours, and only we set the bit.
            let waiter = unsafe { &mut *self.front().waiter.get() };
            match waiter {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            seen = state.fetch_or(WAITER, AcqRel);
        }
        if seen & DONE == 0 {
            return Poll::Pending;
        }
        // SAFETY: `DONE` is set, and we are the only handle: the result is ours.
        let result = unsafe { (*self.front().result.get()).take() };
        Poll::Ready(result.expect("a JoinHandle was polled after it had returned its result"))
    }
}

impl<T> Drop for Joined<T> {
    fn drop(&mut self) {
        // SAFETY: this is the handle's reference, and its last use.
        unsafe { release(self.header, HANDLE, ITEM, self.front().operations.free) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct NoBooks;

    impl Books for NoBooks {
        fn started(&self) {}
        fn completed(&self, _: bool) {}
        fn aborted(&self) {}
    }

    fn make<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Item, Joined<T>) {
        joined(Tag::new(0, 0), work)
    }

    fn result<T>(handle: &mut Joined<T>) -> Option<Result<T, JoinError>> {
        match handle.poll(Waker::noop()) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    #[test]
    fn either_side_may_let_go_first_and_nothing_leaks() {
        let alive = Arc::new(AtomicUsize::new(0));
        let held = Arc::clone(&alive);
        let (item, mut handle) = make(move || held);
        assert!(result(&mut handle).is_none());
        let _ = item.run(&NoBooks);
        assert!(result(&mut handle).is_some());
        drop(handle);

        let held = Arc::clone(&alive);
        let (item, handle) = make(move || held);
        drop(handle);
        let _ = item.run(&NoBooks);

        let held = Arc::clone(&alive);
        let (item, mut handle) = make(move || held);
        drop(item);
        assert!(matches!(result(&mut handle), Some(Err(JoinError::Cancelled))));
        drop(handle);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn an_item_runs_once_whoever_comes_first() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let (item, mut handle) = make(move || counter.fetch_add(1, Ordering::Relaxed));
        assert!(matches!(handle.run_here(&NoBooks), (true, None)));
        assert!(!handle.abort() && handle.is_done());
        let _ = item.run(&NoBooks);
        assert!(matches!(result(&mut handle), Some(Ok(0))));
        assert_eq!(runs.load(Ordering::Relaxed), 1);

        // A worker comes to it while it runs.
        let (item, handle) = make(|| 2);
        let worker = std::sync::Mutex::new(Some(item));
        let ran = handle.end_here(0, |header| {
            let item = worker.lock().unwrap().take().unwrap();
            assert!(matches!(item.run(&NoBooks), Ran::Kept(None)));
            // SAFETY: `end_here` has claimed.
            unsafe { (handle.front().operations.run)(header) };
        });
        assert_eq!(ran.map(|before| before & LEFT), Some(LEFT));
        // SAFETY: with `LEFT` the item's reference is ours.
        drop(unsafe { Item::from_header(handle.header) });
        let mut handle = handle;
        assert!(matches!(result(&mut handle), Some(Ok(2))));

        let (item, mut handle) = make(|| 1);
        assert!(handle.abort());
        let _ = item.run(&NoBooks);
        assert!(matches!(result(&mut handle), Some(Err(JoinError::Cancelled))));
    }

    /// As at the end of a scope: a worker still has the item when what that borrowed is gone.
    #[test]
    fn what_is_borrowed_is_not_touched_once_the_result_is_there() {
        for aborts in [false, true] {
            let number = Box::into_raw(Box::new(1));
            // SAFETY: the box lives, and nobody else borrows from it. The handle is seen finished
            // before it goes; the result borrows nothing.
            let (item, mut handle) = unsafe {
                let borrows = &mut *number;
                joined_borrowing(Tag::new(0, 0), move || *borrows += 1)
            };
            std::thread::scope(|scope| {
                let worker = scope.spawn(move || drop(item.run(&NoBooks)));
                let aborted = aborts && handle.abort();
                while !handle.is_done() {
                    std::thread::yield_now();
                }
                // SAFETY: it was made by `into_raw`, and is not borrowed any more.
                assert_eq!(*unsafe { Box::from_raw(number) }, if aborted { 1 } else { 2 });
                assert_eq!(result(&mut handle).map(|result| result.is_err()), Some(aborted));
                drop(handle);
                worker.join().unwrap();
            });
        }
    }

    #[test]
    fn panics_go_to_the_handle_also_those_of_what_is_dropped() {
        struct Loud;
        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let (item, mut handle) = make(|| panic!("on purpose"));
        let _ = item.run(&NoBooks);
        let Some(Err(error)) = result::<()>(&mut handle) else { panic!("no error") };
        assert!(error.to_string().contains("on purpose"));

        let loud = Loud;
        let (item, mut handle) = make(move || {
            let _loud = &loud;
        });
        drop(item);
        let Some(Err(error)) = result(&mut handle) else { panic!("no error") };
        assert!(error.to_string().contains("dropped"));

        let (item, handle) = make(|| Loud);
        drop(handle);
        let _ = item.run(&NoBooks);
    }
}
