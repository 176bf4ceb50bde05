//! An item that is queued again and again. At most one worker runs it at a time. At most one of its
//! places in queues is more than a husk (`pending.rs`).
//!
//! The item is its own link in the queue, which counts like any other reference to it. A new
//! instance needs an allocation, a stand-in, only while a husk of the item still stands in a queue.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;

use super::header::{Books, Header, Item, Ran, Tag, Unrun, VTable};
use super::memory;
use super::pending::{Instance, Pending, Start};
use super::quiet::drop_quietly;
use crate::sync::{AtomicPtr, AtomicU32, Ordering};

/// What a work item belongs to.
pub(crate) trait Context: Send + Sync + 'static {
    /// An instance has ended for which somebody waits. `in_hand` is the place of a work item and
    /// the generation of an instance of it that this thread is to run next: nobody who is woken may
    /// wait for that.
    fn wake(&self, in_hand: Option<(usize, u32)>);

    /// An item that will not run, to be counted and ended.
    fn cancel(&self, item: Item);
}

/// The function of a work item.
pub(crate) trait Call<C>: Send + 'static {
    /// Runs it, and gives back the reference that keeps it alive meanwhile, with what the function
    /// panicked with. The reference is lent by value, so that a wrapper need not count it.
    fn call(&mut self, node: SharedNode<C>) -> (SharedNode<C>, thread::Result<()>);
}

impl<C, F: FnMut(&SharedNode<C>) + Send + 'static> Call<C> for F {
    fn call(&mut self, node: SharedNode<C>) -> (SharedNode<C>, thread::Result<()>) {
        let result = catch_unwind(AssertUnwindSafe(|| self(&node)));
        (node, result)
    }
}

/// A reference to a work item.
pub(crate) type SharedNode<C> = Arc<Node<C, dyn Call<C>>>;

/// An address that tells a work item from others while it exists.
pub(crate) fn place_of<C>(node: &SharedNode<C>) -> usize {
    Arc::as_ptr(node).cast::<()>().addr()
}

#[repr(C)]
pub(crate) struct Node<C, F: ?Sized> {
    header: Header,
    /// The generation of the instance that the header stands for in a queue.
    generation: AtomicU32,
    /// The instance that the thread that runs the item runs next, if it is not cancelled until
    /// then.
    deferred: AtomicPtr<Header>,
    pub(crate) pending: Pending,
    pub(crate) context: C,
    /// Belongs to the thread that has set `RUNNING`.
    call: UnsafeCell<F>,
}

// SAFETY: `call` is used by one thread at a time, and moves between threads: it is `Send`. The
// link in the header belongs to the owner of the item; the rest is atomics.
unsafe impl<C: Context, F: ?Sized + Send> Send for Node<C, F> {}
// SAFETY: as above.
unsafe impl<C: Context, F: ?Sized + Send> Sync for Node<C, F> {}

/// An instance that stands in a queue beside a husk of the same work item.
#[repr(C)]
struct StandIn<C: Context> {
    header: Header,
    node: SharedNode<C>,
    generation: u32,
}

impl<C: Context, F: Call<C>> Node<C, F> {
    const VTABLE: VTable = VTable {
        run: run_node::<C, F>,
        cancel: cancel_node::<C, F>,
        wanted: |_| false,
        lasts: false,
    };

    pub(crate) fn new(tag: Tag, context: C, call: F) -> Arc<Self> {
        Arc::new(Self {
            header: Header::new(&Self::VTABLE, 0, tag),
            generation: AtomicU32::new(0),
            deferred: AtomicPtr::new(ptr::null_mut()),
            pending: Pending::new(),
            context,
            call: UnsafeCell::new(call),
        })
    }
}

impl<C: Context> Node<C, dyn Call<C>> {
    /// The item that stands for an instance, which the caller has just made.
    pub(crate) fn item(self: &Arc<Self>, tag: Tag, instance: Instance) -> Item {
        Arc::clone(self).into_item_of(tag, instance)
    }

    /// [`Node::item`], which takes over this reference.
    pub(crate) fn into_item_of(self: Arc<Self>, tag: Tag, instance: Instance) -> Item {
        if !instance.linked {
            return stand_in(tag, self, instance.generation);
        }
        // The link is this instance's: nobody else looks at these.
        self.generation.store(instance.generation, Ordering::Relaxed);
        self.header.set_tag(tag);
        let item = self.into_item();
        item.set_slot(None);
        item
    }

    fn into_item(self: Arc<Self>) -> Item {
        let header = Arc::into_raw(self).cast::<Header>().cast_mut();
        // SAFETY: not null; the node begins with the header (`repr(C)`), which is of a vtable that
        // takes over this reference.
        unsafe { Item::from_header(NonNull::new_unchecked(header)) }
    }

    /// Leaves the item of an instance to the thread that runs the node.
    fn keep(&self, item: Item, generation: u32) -> Ran {
        let before = self.swap_deferred(Some(item));
        if self.pending.defer(generation) {
            // There is one pending instance: what was kept before is a husk.
            if let Some(husk) = before {
                self.context.cancel(husk);
            }
            return Ran::Kept(None);
        }
        // No thread runs the node any more, or the instance was cancelled. A thread that took the
        // item meanwhile has it; and what was kept before may be newer. The older of two is a husk.
        let (husk, again) = match (before, self.swap_deferred(None)) {
            (Some(one), Some(other)) if self.is_newer(&one, &other) => (Some(other), Some(one)),
            (Some(one), Some(other)) => (Some(one), Some(other)),
            (before, back) => (None, before.or(back)),
        };
        if let Some(husk) = husk {
            self.context.cancel(husk);
        }
        Ran::Kept(again)
    }

    fn swap_deferred(&self, item: Option<Item>) -> Option<Item> {
        let header = item.map_or(ptr::null_mut(), |item| item.into_header().as_ptr());
        let before = NonNull::new(self.deferred.swap(header, Ordering::AcqRel));
        // SAFETY: only items' headers are put in `deferred`, and a swap takes each out once.
        before.map(|header| unsafe { Item::from_header(header) })
    }

    /// Of two items of this node: whether the first one's instance is the later one.
    fn is_newer(&self, one: &Item, other: &Item) -> bool {
        let age = self.generation_of(one).wrapping_sub(self.generation_of(other));
        age.cast_signed() > 0
    }

    fn generation_of(&self, item: &Item) -> u32 {
        let header = item.as_header();
        if ptr::eq(header.as_ptr(), &raw const self.header) {
            return self.generation.load(Ordering::Relaxed);
        }
        // SAFETY: an item of this node that is not its own link is a stand-in (`Self::item`).
        unsafe { header.cast::<StandIn<C>>().as_ref().generation }
    }

    /// An instance did not run.
    fn refused(&self, generation: u32) -> Unrun {
        let Some(cancelled) = self.pending.cancel_instance(generation) else {
            return Unrun::Aborted;
        };
        if cancelled.waiters {
            self.context.wake(None);
        }
        Unrun::Cancelled
    }
}

fn run<C: Context>(
    node: SharedNode<C>,
    (generation, linked): (u32, bool),
    books: &dyn Books,
    keep: impl FnOnce(SharedNode<C>) -> Item,
) -> Ran {
    match node.pending.start(generation, linked) {
        Start::Run => {}
        Start::Husk => {
            books.aborted();
            drop_quietly(node);
            return Ran::Over;
        }
        Start::Running => {
            let item = keep(Arc::clone(&node));
            let ran = node.keep(item, generation);
            drop_quietly(node);
            return ran;
        }
    }
    books.started();
    // SAFETY: we have set `RUNNING`; nobody else uses the function until `end`. It lives as long as
    // the reference that goes in and comes out.
    let call = unsafe { &mut *node.call.get() };
    let (node, result) = call.call(node);
    books.completed(result.is_err());
    drop_quietly(result);
    let ended = node.pending.end();
    let next = if ended.deferred { node.swap_deferred(None) } else { None };
    if ended.waiters {
        let in_hand = |item| (place_of(&node), node.generation_of(item));
        node.context.wake(next.as_ref().map(in_hand));
    }
    // The last reference may be this one: what the function holds may panic when it is dropped.
    drop_quietly(node);
    next.map_or(Ran::Over, Ran::Then)
}

unsafe fn run_node<C: Context, F: Call<C>>(header: NonNull<Header>, books: &dyn Books) -> Ran {
    // SAFETY: `Node::new` made this allocation with this `F`; the item's reference becomes ours.
    let node: SharedNode<C> = unsafe { Arc::from_raw(header.cast::<Node<C, F>>().as_ptr()) };
    let instance = (node.generation.load(Ordering::Relaxed), true);
    // Kept with its slot and its tag: they are in the header.
    run(node, instance, books, Node::into_item)
}

unsafe fn cancel_node<C: Context, F: Call<C>>(header: NonNull<Header>) -> Unrun {
    // SAFETY: as in `run_node`.
    let node: SharedNode<C> = unsafe { Arc::from_raw(header.cast::<Node<C, F>>().as_ptr()) };
    let generation = node.generation.load(Ordering::Relaxed);
    node.pending.unlink();
    let ended = node.refused(generation);
    drop_quietly(node);
    ended
}

fn stand_in<C: Context>(tag: Tag, node: SharedNode<C>, generation: u32) -> Item {
    struct For<C>(C);
    impl<C: Context> For<C> {
        const VTABLE: VTable = VTable {
            run: run_stand_in::<C>,
            cancel: cancel_stand_in::<C>,
            wanted: |_| false,
            lasts: false,
        };
    }
    let header = Header::new(&For::<C>::VTABLE, 0, tag);
    let cell = memory::place(StandIn { header, node, generation });
    // SAFETY: it begins with the header (`repr(C)`), and we hand it over.
    unsafe { Item::from_header(cell.cast()) }
}

unsafe fn run_stand_in<C: Context>(header: NonNull<Header>, books: &dyn Books) -> Ran {
    // SAFETY: `stand_in` made this allocation, and the item owned it alone.
    let StandIn { header, node, generation } = unsafe { memory::take(header.cast::<StandIn<C>>()) };
    let (tag, slot) = (header.tag(), header.slot());
    run(node, (generation, false), books, |node| {
        let item = stand_in(tag, node, generation);
        item.set_slot(slot);
        item
    })
}

unsafe fn cancel_stand_in<C: Context>(header: NonNull<Header>) -> Unrun {
    // SAFETY: as in `run_stand_in`.
    let StandIn { node, generation, .. } = unsafe { memory::take(header.cast::<StandIn<C>>()) };
    let ended = node.refused(generation);
    drop_quietly(node);
    ended
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Counts {
        started: AtomicUsize,
        completed: AtomicUsize,
        aborted: AtomicUsize,
        cancelled: AtomicUsize,
        woken: AtomicUsize,
    }

    impl Counts {
        fn read(&self) -> [usize; 5] {
            let Self { started, completed, aborted, cancelled, woken } = self;
            [started, completed, aborted, cancelled, woken].map(|count| count.load(Relaxed))
        }
    }

    impl Books for Arc<Counts> {
        fn started(&self) {
            self.started.fetch_add(1, Relaxed);
        }
        fn completed(&self, _: bool) {
            self.completed.fetch_add(1, Relaxed);
        }
        fn aborted(&self) {
            self.aborted.fetch_add(1, Relaxed);
        }
    }

    impl Context for Arc<Counts> {
        fn wake(&self, _in_hand: Option<(usize, u32)>) {
            self.woken.fetch_add(1, Relaxed);
        }
        fn cancel(&self, item: Item) {
            self.cancelled.fetch_add(1, Relaxed);
            item.cancel();
        }
    }

    const TAG: Tag = Tag::new(7, 3);

    type Shared = SharedNode<Arc<Counts>>;

    fn queue(node: &Shared) -> Option<Item> {
        node.pending.queue(false).map(|instance| node.item(TAG, instance))
    }

    #[test]
    fn runs_once_for_each_instance_and_frees_itself() {
        let (counts, alive) = (Arc::new(Counts::default()), Arc::new(()));
        let held = Arc::clone(&alive);
        let node: Shared = Node::new(TAG, Arc::clone(&counts), move |_: &Shared| {
            assert!(Arc::strong_count(&held) > 1);
        });
        for _ in 0..3 {
            let item = queue(&node).unwrap();
            assert!(queue(&node).is_none());
            assert_eq!((item.tag(), item.slot()), (TAG, None));
            assert!(matches!(item.run(&counts), Ran::Over));
        }
        let last = queue(&node).unwrap();
        drop(node);
        assert!(matches!(last.run(&counts), Ran::Over));
        assert_eq!(counts.read(), [4, 4, 0, 0, 0]);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn husks_are_passed_over_and_stand_ins_take_their_place() {
        let counts = Arc::new(Counts::default());
        let node: Shared = Node::new(TAG, Arc::clone(&counts), |_: &Shared| ());
        let husk = queue(&node).unwrap();
        assert!(node.pending.cancel().is_some());
        let instance = queue(&node).unwrap();
        assert!(matches!(husk.run(&counts), Ran::Over));
        assert_eq!(counts.read(), [0, 0, 1, 0, 0]);
        assert!(matches!(instance.run(&counts), Ran::Over));
        assert_eq!(counts.read(), [1, 1, 1, 0, 0]);
        let refused = queue(&node).unwrap();
        assert_eq!(refused.cancel(), Unrun::Cancelled);
        assert!(!node.pending.is_pending());
        let refused = queue(&node).unwrap();
        assert!(node.pending.cancel().is_some());
        assert_eq!(refused.cancel(), Unrun::Aborted, "it has been taken back");
        drop(queue(&node).unwrap());
        assert!(!node.pending.is_pending());
    }

    #[test]
    fn an_instance_that_comes_up_during_the_run_is_run_after_it() {
        let counts = Arc::new(Counts::default());
        let again = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&again);
        let mut runs = 0;
        let books = Arc::clone(&counts);
        let node: Shared = Node::new(TAG, Arc::clone(&counts), move |node: &Shared| {
            runs += 1;
            if runs == 1 {
                // Another worker comes by, twice: the first time it is cancelled afterwards.
                for round in 0..2 {
                    let item = queue(node).unwrap();
                    item.set_slot(Some(round));
                    assert!(matches!(item.run(&books), Ran::Kept(None)));
                    assert!(node.pending.is_pending());
                    if round == 0 {
                        assert!(node.pending.cancel().is_some());
                    }
                }
            }
            keep.lock().unwrap().push(runs);
        });
        let Ran::Then(next) = queue(&node).unwrap().run(&counts) else { panic!("one was kept") };
        assert_eq!((next.tag(), next.slot()), (TAG, Some(1)));
        assert!(matches!(next.run(&counts), Ran::Over));
        assert_eq!(*again.lock().unwrap(), [1, 2]);
        assert_eq!(counts.read(), [2, 2, 0, 1, 0]);
    }

    #[test]
    fn a_panic_ends_the_run_and_not_the_work() {
        let counts = Arc::new(Counts::default());
        let node: Shared = Node::new(TAG, Arc::clone(&counts), |_: &Shared| panic!("on purpose"));
        for _ in 0..2 {
            assert!(matches!(queue(&node).unwrap().run(&counts), Ran::Over));
        }
        assert!(!node.pending.is_running());
    }
}
