//! Continuing a future: an item in the future's own allocation.
//!
//! `async-task` lets a task have at most one [`Runnable`] at a time, and its owner may continue the
//! future. So the item needs no memory of its own: it stands in the task's metadata. The owner of
//! the item owns that place, as well as the `Runnable` that the item holds.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use super::header::{Books, Header, Item, Ran, Tag, Unrun, VTable};
use super::quiet::drop_quietly;
use crate::threads::local;

/// The right to go on with a future.
pub(crate) type Runnable = async_task::Runnable<Place>;

/// Where the item of a future is, in its task.
#[repr(C)]
pub(crate) struct Place {
    header: Header,
    /// While the item stands in a queue: the runnable of the task that this is in.
    runnable: UnsafeCell<Option<NonNull<()>>>,
}

// SAFETY: the link and the runnable, which may move between threads, belong to the owner of the
// item; the rest is atomics.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

const VTABLE: VTable = VTable { run, cancel, wanted: |_| true, lasts: false };

impl Place {
    pub(crate) fn new(tag: Tag) -> Self {
        Self { header: Header::new(&VTABLE, 0, tag), runnable: UnsafeCell::new(None) }
    }

    /// An address that tells its future from all others that exist.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// The item that goes on with a future.
pub(crate) fn resumed(tag: Tag, runnable: Runnable) -> Item {
    let place = NonNull::from(runnable.metadata());
    // SAFETY: the owner of the runnable owns the place, which lives as long: from here on the item
    // has both. The place begins with the header (`repr(C)`).
    unsafe {
        *place.as_ref().runnable.get() = Some(runnable.into_raw());
        place.as_ref().header.set_tag(tag);
        let item = Item::from_header(place.cast());
        item.set_slot(None);
        item
    }
}

/// Takes the item apart. What is left may stand in a queue again as soon as the runnable has been
/// used.
///
/// # Safety
/// The header is that of an item made by [`resumed`], which nobody uses any more.
unsafe fn take(header: NonNull<Header>) -> Option<Runnable> {
    // SAFETY: the header begins a place, and the runnable, which was put there, keeps it alive.
    unsafe {
        let raw = (*header.cast::<Place>().as_ref().runnable.get()).take();
        raw.map(|raw| Runnable::from_raw(raw))
    }
}

unsafe fn run(header: NonNull<Header>, books: &dyn Books) -> Ran {
    // SAFETY: the item is ours, and we do not use it again.
    let runnable = unsafe { take(header) };
    books.started();
    // This future may run on top of another one.
    let swap = |now| AT_HAND.try_with(|at_hand| at_hand.replace(now)).unwrap_or_default();
    let beneath = swap((header.addr().get(), false));
    let go_on = || local::with_budget(true, || runnable.map(Runnable::run));
    let result = catch_unwind(AssertUnwindSafe(go_on));
    let (_, panicked) = swap(beneath);
    books.completed(panicked || result.is_err());
    drop_quietly(result);
    Ran::Over
}

unsafe fn cancel(header: NonNull<Header>) -> Unrun {
    // SAFETY: as in `run`.
    let runnable = unsafe { take(header) };
    // This drops the future, which may panic; that is not our caller's business.
    end(runnable);
    Unrun::Cancelled
}

/// Ending a future may wake another one, whose item is refused and ended in turn: this deep on the
/// stack, and the rest one after the other.
const DEPTH_MAX: u32 = 32;

/// Polls the future that this thread goes on with. `poll` catches the future's panic for its
/// handle, and `panicked` tells of it. A thread that is woken after that may have a new future at
/// its address.
pub(crate) fn polled<T>(poll: impl FnOnce() -> T, panicked: impl FnOnce(&T) -> bool) -> T {
    let at_hand = AT_HAND.try_with(Cell::get).unwrap_or_default();
    let _ = POLLED.try_with(|polled| polled.borrow_mut().push(at_hand.0));
    let polled = poll();
    let _ = POLLED.try_with(|polled| polled.borrow_mut().pop());
    let _ = AT_HAND.try_with(|at| at.set((at_hand.0, panicked(&polled))));
    polled
}

/// Whether the future with this address is being polled on this thread's stack.
pub(crate) fn is_polled_here(address: usize) -> bool {
    POLLED.try_with(|polled| polled.borrow().contains(&address)).unwrap_or(false)
}

crate::sync::thread_local! {
    /// The addresses of the futures that are being polled, each on top of the one before.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The address of the future that this thread goes on with, and whether it has panicked.
    static AT_HAND: Cell<(usize, bool)> = const { Cell::new((0, false)) };
}

thread_local! {
    /// How many futures are being ended on this thread, each by the one before.
    static ENDING: Cell<u32> = const { Cell::new(0) };
    /// What is to be ended by the deepest of them.
    static LATER: RefCell<Vec<Runnable>> = const { RefCell::new(Vec::new()) };
}

/// Drops a future whose item is refused.
fn end(runnable: Option<Runnable>) {
    let Some(runnable) = runnable else { return };
    let depth = ENDING.get();
    if depth >= DEPTH_MAX {
        let mut left = Some(runnable);
        let _ = LATER.try_with(|later| later.borrow_mut().extend(left.take()));
        drop_quietly(left);
        return;
    }
    ENDING.set(depth + 1);
    drop_quietly(runnable);
    if depth + 1 == DEPTH_MAX {
        while let Some(next) = LATER.try_with(|later| later.borrow_mut().pop()).ok().flatten() {
            drop_quietly(next);
        }
    }
    ENDING.set(depth);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{Arc, mpsc};
    use std::task::Poll;
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicUsize, AtomicUsize);

    impl Books for Counts {
        fn started(&self) {
            self.0.fetch_add(1, Relaxed);
        }
        fn completed(&self, _: bool) {
            self.1.fetch_add(1, Relaxed);
        }
        fn aborted(&self) {}
    }

    const TAG: Tag = Tag::new(7, 3);

    /// A task whose items come out of a queue.
    fn task<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
    ) -> (async_task::Task<T, Place>, mpsc::Receiver<Item>) {
        let (queue, items) = mpsc::channel();
        let schedule = move |runnable| queue.send(resumed(TAG, runnable)).unwrap();
        let builder = async_task::Builder::new().metadata(Place::new(Tag::new(0, 0)));
        let (runnable, task) = builder.spawn(move |_| future, schedule);
        runnable.schedule();
        (task, items)
    }

    /// Is ready the third time, and wakes itself until then, with a slot that is not its own.
    fn thrice(held: Arc<()>) -> impl Future<Output = usize> {
        let mut polls = 0;
        std::future::poll_fn(move |context| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready(Arc::strong_count(&held));
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[test]
    fn one_place_serves_a_future_again_and_again() {
        let (held, counts) = (Arc::new(()), Counts::default());
        let (task, items) = task(thrice(Arc::clone(&held)));
        for _ in 0..3 {
            let item = items.try_recv().unwrap();
            assert_eq!((item.tag(), item.slot()), (TAG, None));
            item.set_slot(Some(5));
            assert!(matches!(item.run(&counts), Ran::Over));
        }
        assert!(items.try_recv().is_err() && task.is_finished());
        assert_eq!((counts.0.into_inner(), counts.1.into_inner()), (3, 3));
        drop(task);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn an_item_that_is_dropped_drops_its_future() {
        let held = Arc::new(());
        let (task, items) = task(thrice(Arc::clone(&held)));
        let _ = items.recv().unwrap().run(&Counts::default());
        assert_eq!(items.recv().unwrap().cancel(), Unrun::Cancelled);
        assert_eq!(Arc::strong_count(&held), 1, "also while there is a handle");
        drop(task);
        assert!(items.recv().is_err(), "and there is nothing more to do");
    }

    /// The future is woken on one thread while it runs on another, and stands in the queue again
    /// before its run has ended.
    #[test]
    fn a_future_that_is_woken_elsewhere_while_it_runs() {
        let held = Arc::new(());
        let mut left = if cfg!(miri) { 20 } else { 2_000 };
        let keep = Arc::clone(&held);
        let (wake, wakers) = mpsc::channel::<std::task::Waker>();
        let (task, items) = task(std::future::poll_fn(move |context| {
            left -= Arc::strong_count(&keep) - 1;
            if left == 0 {
                return Poll::Ready(());
            }
            wake.send(context.waker().clone()).unwrap();
            Poll::Pending
        }));
        let counts = Counts::default();
        thread::scope(|scope| {
            scope.spawn(move || wakers.into_iter().for_each(std::task::Waker::wake));
            while !task.is_finished() {
                let _ = items.recv().unwrap().run(&counts);
            }
        });
        drop((task, items));
        assert_eq!(counts.0.into_inner(), counts.1.into_inner());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
