//! Flushing: waiting for the items queued until then, which are known by their colour.
//!
//! A workqueue has a colour, which its items carry. A flush gives the workqueue another colour,
//! which no item in flight has, and waits for the items of the other colours. What is queued later
//! cannot hold it up. If all colours are in use, flushes wait for one, and then share it. That is
//! the kernel's scheme.
//!
//! The counts are those of the books. Nothing of a colour is in flight when the number of items
//! that have ended, read first, equals the number of items queued, read after that.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::item::{Tag, quietly};
use crate::sync::{AtomicU32, Mutex, Ordering, fence, lock};

/// The flushes of a workqueue.
#[derive(Debug)]
pub(crate) struct Flushes {
    /// The bits of the [`Tag`] that new items get.
    tag: AtomicU32,
    /// The colours that somebody waits for, a bit for each.
    awaited: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pending: Vec<Pending>,
    /// Flushes for which there was no colour.
    overflow: Vec<Arc<Wait>>,
}

#[derive(Debug)]
struct Pending {
    /// The colours waited for.
    colours: u32,
    waits: Vec<Arc<Wait>>,
}

/// A wait of one thread or future.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    state: Mutex<WaitState>,
}

#[derive(Debug, Default)]
struct WaitState {
    over: bool,
    waker: Option<Waker>,
}

impl Wait {
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.over {
            return Poll::Ready(());
        }
        let before = state.waker.replace(context.waker().clone());
        drop(state);
        // Not under the lock: this may be anybody's code.
        drop(before);
        Poll::Pending
    }

    /// Nobody waits any more.
    pub(crate) fn forget(&self) {
        let waker = lock(&self.state).waker.take();
        // As above.
        drop(waker);
    }

    pub(crate) fn end(&self) {
        let waker = {
            let mut state = lock(&self.state);
            state.over = true;
            state.waker.take()
        };
        // This may be anybody's code: a panic in it goes no further.
        quietly(|| waker.into_iter().for_each(Waker::wake));
    }
}

/// Adds a wait. Before the list takes more memory, removes the waits that were given up.
pub(crate) fn join(waits: &mut Vec<Arc<Wait>>, wait: Arc<Wait>) {
    if waits.len() == waits.capacity() {
        waits.retain(|other| Arc::strong_count(other) > 1);
        // Room for as many again before they are looked through the next time.
        waits.reserve(waits.len() + 1);
    }
    waits.push(wait);
}

/// Ends all of these.
pub(crate) fn end_all(waits: &[Arc<Wait>]) {
    for wait in waits {
        wait.end();
    }
}

/// How many items of each colour are in flight.
pub(crate) type InFlight = [u64; Tag::COLOURS];

impl Flushes {
    pub(crate) fn new(workqueue: u32) -> Self {
        Self {
            tag: AtomicU32::new(Tag::new(workqueue, 0).bits()),
            awaited: AtomicU32::new(0),
            inner: Mutex::default(),
        }
    }

    /// The tag of new items. It may be a moment old: then they have one more colour that the next
    /// flush waits for.
    pub(crate) fn tag(&self) -> Tag {
        Tag::from_bits(self.tag.load(Ordering::Relaxed))
    }

    /// Begins a flush; `None` if nothing is in flight.
    pub(crate) fn begin(&self, in_flight: impl Fn() -> InFlight) -> Option<Arc<Wait>> {
        let mut inner = lock(&self.inner);
        // Before the counts are read.
        fence(Ordering::SeqCst);
        if busy(&in_flight()) == 0 {
            return None;
        }
        let wait = Arc::new(Wait::default());
        join(&mut inner.overflow, Arc::clone(&wait));
        let over = self.go_on(&mut inner, &in_flight);
        drop(inner);
        end_all(&over);
        Some(wait)
    }

    /// Whether an item of these colours that has just ended may end a flush: then `check` is to be
    /// called. The caller has counted the item before.
    pub(crate) fn awaits(&self, colours: u32) -> bool {
        // W2 pairs with F1 in `go_on`: either we see that the colour is awaited, or the thread
        // that awaits it sees that the item has ended.
        fence(Ordering::SeqCst);
        self.awaited.load(Ordering::Relaxed) & colours != 0
    }

    /// Ends the flushes whose items have ended.
    pub(crate) fn check(&self, in_flight: impl Fn() -> InFlight) {
        let mut inner = lock(&self.inner);
        let over = self.go_on(&mut inner, &in_flight);
        // A thread that is woken may flush again.
        drop(inner);
        end_all(&over);
    }

    /// Gives waiting flushes a colour if there is one, and returns the waits that are over.
    fn go_on(&self, inner: &mut Inner, in_flight: &impl Fn() -> InFlight) -> Vec<Arc<Wait>> {
        if !inner.overflow.is_empty() {
            // F1: while a colour is being chosen, any item that ends may end a flush.
            self.awaited.store(!0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        // F2
        let mut left = busy(&in_flight());
        if !inner.overflow.is_empty() && self.change_colour(left) {
            // F3: new items have the new colour, unless their issuer has read the tag before.
            fence(Ordering::SeqCst);
            left = busy(&in_flight());
            let colours = left & !(1 << self.tag().colour());
            let waits = std::mem::take(&mut inner.overflow);
            inner.pending.push(Pending { colours, waits });
        }
        // F4: flushes that wait for the same colours are merged, so there are no more than there
        // are sets of colours. This is done in place, because it is done for each batch that ends
        // during a flush.
        let (pending, mut over, mut kept) = (&mut inner.pending, Vec::new(), 0);
        for next in 0..pending.len() {
            let (before, rest) = pending.split_at_mut(next);
            let Pending { colours, waits } = &mut rest[0];
            *colours &= left;
            let same = before[..kept].iter_mut().find(|same| same.colours == *colours);
            match same {
                _ if *colours == 0 => over.append(waits),
                Some(same) => waits.drain(..).for_each(|wait| join(&mut same.waits, wait)),
                None => {
                    pending.swap(kept, next);
                    kept += 1;
                }
            }
        }
        pending.truncate(kept);
        if inner.overflow.is_empty() {
            let awaited = inner.pending.iter().fold(0, |all, pending| all | pending.colours);
            self.awaited.store(awaited, Ordering::Relaxed);
        }
        over
    }

    /// Gives new items a colour that no item in flight has; `false` if there is none.
    fn change_colour(&self, busy: u32) -> bool {
        let tag = self.tag();
        let free = (1..Tag::COLOURS).map(|step| (tag.colour() + step) % Tag::COLOURS);
        let Some(colour) = free.into_iter().find(|colour| busy & 1 << colour == 0) else {
            return false;
        };
        self.tag.store(Tag::new(tag.workqueue(), colour).bits(), Ordering::Relaxed);
        true
    }
}

fn busy(in_flight: &InFlight) -> u32 {
    let colours = in_flight.iter().enumerate();
    colours.fold(0, |busy, (colour, count)| busy | u32::from(*count > 0) << colour)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct World {
        flushes: Flushes,
        in_flight: Cell<InFlight>,
    }

    impl World {
        fn new() -> Self {
            Self { flushes: Flushes::new(3), in_flight: Cell::new([0; Tag::COLOURS]) }
        }

        fn queue(&self) -> Tag {
            let (tag, mut counts) = (self.flushes.tag(), self.in_flight.get());
            counts[tag.colour()] += 1;
            self.in_flight.set(counts);
            tag
        }

        fn end(&self, tag: Tag) {
            let mut counts = self.in_flight.get();
            counts[tag.colour()] -= 1;
            self.in_flight.set(counts);
            if self.flushes.awaits(1 << tag.colour()) {
                self.flushes.check(|| self.in_flight.get());
            }
        }

        fn flush(&self) -> Option<Arc<Wait>> {
            self.flushes.begin(|| self.in_flight.get())
        }
    }

    fn over(wait: &Wait) -> bool {
        wait.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn who_waits_no_more_takes_no_memory() {
        let world = World::new();
        let item = world.queue();
        let flush = world.flush().unwrap();
        (0..10_000).for_each(|_| drop(world.flush()));
        let inner = lock(&world.flushes.inner);
        let pending = inner.pending.iter().map(|pending| pending.waits.capacity());
        let room = pending.sum::<usize>() + inner.overflow.capacity();
        assert!(room < 100, "room for {room}");
        drop(inner);
        world.end(item);
        assert!(over(&flush));
    }

    #[test]
    fn a_flush_waits_for_what_was_there_and_not_for_newcomers() {
        let world = World::new();
        assert!(world.flush().is_none());
        let first = world.queue();
        let flush = world.flush().unwrap();
        let newcomer = world.queue();
        let later = world.flush().unwrap();
        assert!(first.colour() != newcomer.colour() && first.workqueue() == 3);
        world.end(first);
        assert!(over(&flush) && !over(&later));
        world.end(newcomer);
        assert!(over(&later));
    }

    #[test]
    fn a_later_flush_waits_for_earlier_items_too() {
        let world = World::new();
        let first = world.queue();
        let flushes: Vec<_> = (0..3).map(|_| world.flush().unwrap()).collect();
        assert!(!flushes.iter().any(|flush| over(flush)));
        world.end(first);
        assert!(flushes.iter().all(|flush| over(flush)));
    }

    #[test]
    fn where_colours_run_out_flushes_wait_for_one_and_share_it() {
        let world = World::new();
        let mut items = Vec::new();
        let mut flushes = Vec::new();
        for _ in 0..40 {
            items.push(world.queue());
            flushes.push(world.flush().unwrap());
        }
        for (number, item) in items.iter().enumerate() {
            world.end(*item);
            assert!(over(&flushes[number]) == (number < 15 || number == 39), "{number}");
        }
        assert!(flushes.iter().all(|flush| over(flush)));
        assert!(world.flush().is_none());
    }
}
