//! The thread of a workqueue that must make progress when memory is short. If no thread can be
//! created for CPUs that need one, it runs that workqueue's items, and no others. It also does if
//! they wait behind items that compute for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use homing_sched::{Facts, QueueId};

use crate::item::{Books, Item, Ran};
use crate::measure::books::WorkqueueBooks;
use crate::measure::clock::now_ns;
use crate::shared::Shared;
use crate::sync::{Mutex, lock, thread};
use crate::threads::affinity::pin_to;
use crate::threads::crew::Member;
use crate::threads::local;
use crate::threads::sleeper::Sleeper;
use crate::workqueues::state::WorkqueueState;

/// How long a CPU must have waited for a thread before rescuers are called, in nanoseconds: the
/// kernel's `MAYDAY_INITIAL_TIMEOUT`.
pub(crate) const MAYDAY_NS: u64 = 10_000_000;

/// How often that call is repeated as long as the need lasts: the kernel's `MAYDAY_INTERVAL`.
pub(crate) const MAYDAY_INTERVAL_NS: u64 = 100_000_000;

/// In a longer queue the rescuer does not look for items that wait behind others, and for no longer
/// than this at a call: looking through a queue holds its lock.
const BEHIND_MAX: u32 = 1 << 16;
const SEARCH_NS: u64 = 1_000_000;

/// Between two looks whether the last items of a workqueue have ended.
const LAST_ITEMS: Duration = Duration::from_millis(100);

/// A workqueue's side of its rescuer.
#[derive(Debug)]
pub(crate) struct Rescuer {
    bed: Arc<Bed>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct Bed {
    sleeper: Sleeper,
    /// Items wait behind others that compute for long.
    behind: AtomicBool,
    stopped: AtomicBool,
    let_go: AtomicBool,
    kernel_tid: AtomicU32,
}

impl Rescuer {
    /// Creates the thread up front: when it is needed, it may be too late.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        workqueue: &Arc<WorkqueueState>,
    ) -> std::io::Result<Self> {
        let sleeper = Sleeper::new();
        let [behind, stopped, let_go] = [(); 3].map(|()| AtomicBool::new(false));
        let bed = Arc::new(Bed { sleeper, behind, stopped, let_go, kernel_tid: AtomicU32::new(0) });
        let name = format!("{}/R-{}", shared.crew.name(), workqueue.name);
        let body = {
            let (shared, bed) = (Arc::clone(shared), Arc::clone(&bed));
            let workqueue = Arc::clone(workqueue);
            move || main(&shared, &workqueue, &bed)
        };
        let named = thread::Builder::new().name(name).stack_size(shared.settings.stack_size);
        let create = || named.spawn(body);
        let thread = shared.hooks.create_thread(create)?;
        Ok(Self { bed, thread: Mutex::new(Some(thread)) })
    }

    /// Calls for help.
    pub(crate) fn mayday(&self) {
        self.bed.sleeper.wake();
    }

    /// Calls for help with items that wait behind others that compute for long.
    pub(crate) fn mayday_behind(&self) {
        self.bed.behind.store(true, Ordering::Release);
        self.bed.sleeper.wake();
    }

    /// Ends the thread after what it runs at present.
    pub(crate) fn stop(&self) {
        self.bed.stopped.store(true, Ordering::Release);
        self.bed.sleeper.wake();
    }

    /// Ends the thread when the workqueue has no item and no future left. Nobody can queue one any
    /// more.
    pub(crate) fn let_go(&self) {
        self.bed.let_go.store(true, Ordering::SeqCst);
        self.bed.sleeper.wake();
    }

    /// To be called when the workqueue's last future has ended: a rescuer that was let go need not
    /// sleep on.
    pub(crate) fn futures_ended(&self) {
        // Pairs with `main`, which reads the flag and then the count of futures: one of the two
        // threads sees the other's change.
        if self.bed.let_go.load(Ordering::SeqCst) {
            self.bed.sleeper.wake();
        }
    }

    /// Waits for the thread, which has been told to stop. Must not be called on that thread.
    pub(crate) fn join(&self) {
        let thread = lock(&self.thread).take();
        // It does not panic; if it did, others must still be waited for.
        let _ = thread.map(thread::JoinHandle::join);
    }

    /// The kernel's number for the thread; 0 where there is none.
    #[cfg(feature = "control")]
    pub(crate) fn kernel_tid(&self) -> u32 {
        self.bed.kernel_tid.load(Ordering::Relaxed)
    }
}

fn main(shared: &Arc<Shared>, workqueue: &Arc<WorkqueueState>, bed: &Bed) {
    let member = Arc::new(shared.crew.outsider());
    local::enter(shared, &member);
    member.note_kernel_tid();
    bed.kernel_tid.store(member.kernel_tid.load(Ordering::Relaxed), Ordering::Relaxed);
    loop {
        let let_go = bed.let_go.load(Ordering::SeqCst);
        if bed.stopped.load(Ordering::Acquire) || (let_go && workqueue.is_over()) {
            break;
        }
        // The end of the last future wakes this thread, the end of the last item does not.
        let looks_again = let_go && workqueue.futures.load(Ordering::SeqCst) == 0;
        bed.sleeper.sleep(looks_again.then_some(LAST_ITEMS));
        let behind = bed.behind.swap(false, Ordering::AcqRel);
        // If the need lasts, the monitor calls again.
        let until_ns = if behind { now_ns() + MAYDAY_NS } else { 0 };
        rescue(shared, workqueue, &member, until_ns);
    }
    local::leave();
    // Also the books of other workqueues, whose items its items have waited for and run here.
    shared.workqueues.close_books_of(&member.writer);
}

/// Runs items of the workqueue while there are any and threads are missing; and until this time,
/// because they wait behind others, those that are in the queues of the present attributes.
fn rescue(
    shared: &Arc<Shared>,
    workqueue: &Arc<WorkqueueState>,
    member: &Arc<Member>,
    until_ns: u64,
) {
    let dispatch = &shared.dispatch;
    let mut searched_ns = 0;
    while !shared.is_stopping_now() {
        let (short, pool) = (shared.crew.is_short(), workqueue.mode().pool());
        if !short && now_ns() >= until_ns {
            break;
        }
        let looks_at = |queue: &QueueId| {
            short || (queue.pool == pool && (1..=BEHIND_MAX).contains(&dispatch.waiting(*queue)))
        };
        let mut found = false;
        for queue in dispatch.queue_ids().filter(looks_at) {
            shared.holding_items(|| {
                // One at a time, unlike in the kernel: the item may wait for the next one, which
                // somebody must be able to run.
                let own = |item: &Item| item.tag().workqueue() == workqueue.number;
                if !short && (now_ns() >= until_ns || searched_ns >= SEARCH_NS) {
                    return;
                }
                let began_ns = now_ns();
                let item = dispatch.pools.queue(queue).extract(own);
                searched_ns += now_ns().saturating_sub(began_ns);
                let Some(item) = item else { return };
                found = true;
                if shared.settings.pinned {
                    // Strict items stay in their pod here too.
                    let active = dispatch.active();
                    let home = dispatch.home_cpus(queue).and(&active);
                    let _ = pin_to(if home.is_empty() { &active } else { &home });
                }
                local::move_to(shared, queue.leader);
                run(shared, workqueue, member, item);
            });
        }
        if !found {
            break;
        }
    }
    if shared.settings.pinned {
        let _ = pin_to(&dispatch.active());
    }
}

fn run(shared: &Arc<Shared>, workqueue: &Arc<WorkqueueState>, member: &Arc<Member>, item: Item) {
    let books = shared.workqueues.books_of(workqueue, &member.writer);
    let mut next = Some(item);
    while let Some(item) = next.take() {
        if shared.is_stopping_now() {
            member.workqueue.store(0, Ordering::Relaxed);
            shared.cancel(item);
            break;
        }
        let (tag, slot) = (item.tag(), item.slot());
        member.workqueue.store(workqueue.number, Ordering::Relaxed);
        member.item.store(item.place(), Ordering::Relaxed);
        member.running_since_ns.store(now_ns(), Ordering::Relaxed);
        let ran = item.run(&Rescued { workqueue, books: &books });
        member.running_since_ns.store(0, Ordering::Relaxed);
        let over = !matches!(ran, Ran::Kept(_));
        next = match ran {
            Ran::Over => None,
            Ran::Then(item) => Some(item),
            Ran::Kept(item) => item,
        };
        // What a waker runs is no part of the item, and may wait for others of its workqueue, but
        // not for the item that is run next.
        let in_hand = next.as_ref().map_or((0, 0), |next| (workqueue.number, next.place()));
        member.workqueue.store(in_hand.0, Ordering::Relaxed);
        member.item.store(in_hand.1, Ordering::Relaxed);
        if over {
            books.ended(tag);
            workqueue.settle(1 << tag.colour());
            if let Some(slot) = slot {
                shared.release(workqueue, slot);
            }
        }
    }
}

/// Counts the items that have run: not husks, nor items that another thread runs and ends.
struct Rescued<'a> {
    workqueue: &'a WorkqueueState,
    books: &'a WorkqueueBooks,
}

impl Books for Rescued<'_> {
    fn started(&self) {
        self.books.started();
    }

    fn completed(&self, panicked: bool) {
        self.workqueue.rescued.fetch_add(1, Ordering::Relaxed);
        self.books.completed(panicked);
    }

    fn aborted(&self) {
        self.books.aborted();
    }
}
