//! The workqueues of a runtime, by number: items carry the number, not a reference, so that
//! queueing writes to no counter that all issuers share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use homing_sched::{Attributes, Auto, PoolId, WINDOW_ITEMS, WINDOW_NS, Window};
use homing_topology::Scope;

use crate::books::{Counters, Spread, WorkqueueBooks};
use crate::slot::ThreadId;

/// What is known of one workqueue.
#[derive(Debug)]
pub(crate) struct WorkqueueState {
    pub(crate) number: u32,
    pub(crate) name: Box<str>,
    /// The pool that new items go to.
    pool: AtomicU32,
    /// What the pool was made from: changes are made to this, one at a time.
    attributes: Mutex<Attributes>,
    pub(crate) queued: Spread,
    cancelled: AtomicU64,
    woken: AtomicU64,
    pub(crate) repatriated: AtomicU64,
    pub(crate) blocked: AtomicU64,
    pub(crate) cpu_intensive: AtomicU64,
    /// Chooses the scope, where the user leaves that to it.
    auto: Mutex<Option<Chooser>>,
    books: Mutex<AllBooks>,
    /// No handle is left: once nothing is in flight it can be forgotten.
    pub(crate) let_go: AtomicBool,
}

/// The parts of the counters that threads write.
#[derive(Debug, Default)]
struct AllBooks {
    of: BTreeMap<ThreadId, Arc<WorkqueueBooks>>,
    /// The sum of those of threads that have ended.
    closed: Counters,
}

/// [`Auto`], and where its present window began.
#[derive(Debug)]
struct Chooser {
    auto: Auto,
    began_ns: u64,
    before: Counters,
}

impl WorkqueueState {
    pub(crate) fn pool(&self) -> PoolId {
        PoolId(self.pool.load(Ordering::Acquire) as u8)
    }

    pub(crate) fn attributes(&self) -> Attributes {
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the attributes, and with them the pool for items queued from now on.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(Attributes) -> Attributes,
        pool_with: impl FnOnce(Attributes) -> PoolId,
    ) {
        let mut attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        *attributes = change(*attributes);
        self.pool.store(pool_with(*attributes).0.into(), Ordering::Release);
    }

    pub(crate) fn count_cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_woken(&self, woken: bool) {
        if woken {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The part of the counters that a thread writes.
    pub(crate) fn books_of(&self, thread: ThreadId) -> Arc<WorkqueueBooks> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let books = books.of.entry(thread);
        Arc::clone(books.or_insert_with(|| Arc::new(WorkqueueBooks::of(&self.name))))
    }

    /// Adds up what a thread has written that writes no more: threads come and go without end.
    fn close_books_of(&self, thread: ThreadId) {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let AllBooks { of, closed } = &mut *books;
        if let Some(books) = of.remove(&thread) {
            books.add_to(closed);
        }
    }

    /// Leaves the choice of the scope to what is measured, or no longer.
    pub(crate) fn set_auto(&self, auto: Option<Auto>) {
        let chooser = auto.map(|auto| Chooser { auto, began_ns: 0, before: self.counters() });
        *self.auto.lock().unwrap_or_else(PoisonError::into_inner) = chooser;
    }

    pub(crate) fn is_auto(&self) -> bool {
        self.auto.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// If the scope is chosen here, and a window is over: the scope to use next.
    pub(crate) fn choose(&self, now_ns: u64) -> Option<Scope> {
        let mut chooser = self.auto.lock().unwrap_or_else(PoisonError::into_inner);
        let chooser = chooser.as_mut()?;
        if now_ns < chooser.began_ns.saturating_add(WINDOW_NS) {
            return None;
        }
        let now = self.counters();
        let items = now.completed - chooser.before.completed;
        if items < WINDOW_ITEMS {
            return None;
        }
        chooser.auto.note(&Window {
            items,
            ran_ns: now.cpu_time_ns - chooser.before.cpu_time_ns,
            waited_ns: now.queue_age.mean_since_ns(&chooser.before.queue_age),
        });
        (chooser.began_ns, chooser.before) = (now_ns, now);
        Some(chooser.auto.scope())
    }

    pub(crate) fn counters(&self) -> Counters {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = books.closed;
        sum.cancelled += self.cancelled.load(Ordering::Relaxed);
        sum.woken += self.woken.load(Ordering::Relaxed);
        sum.repatriated += self.repatriated.load(Ordering::Relaxed);
        sum.blocked += self.blocked.load(Ordering::Relaxed);
        sum.cpu_intensive += self.cpu_intensive.load(Ordering::Relaxed);
        books.of.values().for_each(|books| books.add_to(&mut sum));
        // Last: an item is counted as queued before it can be counted as anything else.
        sum.queued = self.queued.sum();
        sum
    }
}

static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

/// All workqueues of a runtime.
#[derive(Debug)]
pub(crate) struct Registry {
    cpus: usize,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    states: BTreeMap<u32, Arc<WorkqueueState>>,
}

impl Registry {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { cpus, all: Mutex::default() }
    }

    pub(crate) fn add(
        &self,
        name: &str,
        attributes: Attributes,
        pool: PoolId,
    ) -> Arc<WorkqueueState> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody can use any more go now, so that nothing grows without end.
        all.states.retain(|_, state| {
            !state.let_go.load(Ordering::Acquire) || state.counters().in_flight() > 0
        });
        // Unique in the process: an item's number tells its runtime too.
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let state = Arc::new(WorkqueueState {
            number,
            name: name.into(),
            pool: AtomicU32::new(pool.0.into()),
            attributes: Mutex::new(attributes),
            queued: Spread::new(self.cpus),
            cancelled: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            repatriated: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            cpu_intensive: AtomicU64::new(0),
            auto: Mutex::new(None),
            books: Mutex::default(),
            let_go: AtomicBool::new(false),
        });
        all.states.insert(number, Arc::clone(&state));
        state
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<WorkqueueState>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.states.get(&number).cloned()
    }

    /// All that are in use.
    pub(crate) fn all(&self) -> Vec<Arc<WorkqueueState>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = |state: &&Arc<WorkqueueState>| !state.let_go.load(Ordering::Acquire);
        all.states.values().filter(in_use).cloned().collect()
    }

    /// A thread ends, and writes in no books any more.
    pub(crate) fn close_books_of(&self, thread: ThreadId) {
        let states: Vec<_> = {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.states.values().cloned().collect()
        };
        for state in states {
            state.close_books_of(thread);
        }
    }

    /// The part of a workqueue's counters that a thread writes.
    pub(crate) fn books_of(&self, number: u32, thread: ThreadId) -> Arc<WorkqueueBooks> {
        // It is there: a workqueue is not forgotten while it has items in flight.
        self.find(number).map_or_else(Arc::default, |state| state.books_of(thread))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use homing_sched::Affinity;

    use super::*;
    use crate::item::Books;

    #[test]
    fn books_of_threads_that_have_ended_are_added_up_and_let_go() {
        let registry = Registry::new(1);
        let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
        let state = registry.add("test", attributes, PoolId(0));
        for number in 1..=100 {
            let thread = ThreadId(number);
            let books = registry.books_of(state.number, thread);
            books.started();
            books.completed(true);
            books.waited(100);
            registry.close_books_of(thread);
            // One that never wrote anything.
            registry.close_books_of(ThreadId(1000 + number));
        }
        registry.books_of(state.number, ThreadId(101)).started();
        let counters = state.counters();
        assert_eq!((counters.started, counters.completed, counters.panicked), (101, 100, 100));
        assert_eq!(counters.queue_age.count(), 100);
        assert_eq!(state.books.lock().unwrap().of.len(), 1);
    }
}
