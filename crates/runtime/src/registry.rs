//! The workqueues of a runtime, by number: items carry the number, not a reference, so that
//! queueing writes to no counter that all issuers share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use homing_sched::{Attributes, PoolId};

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
    /// Each thread's part of the counters.
    books: Mutex<BTreeMap<ThreadId, Arc<WorkqueueBooks>>>,
    /// No handle is left: once nothing is in flight it can be forgotten.
    pub(crate) let_go: AtomicBool,
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
        Arc::clone(books.entry(thread).or_default())
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters {
            cancelled: self.cancelled.load(Ordering::Relaxed),
            woken: self.woken.load(Ordering::Relaxed),
            repatriated: self.repatriated.load(Ordering::Relaxed),
            blocked: self.blocked.load(Ordering::Relaxed),
            cpu_intensive: self.cpu_intensive.load(Ordering::Relaxed),
            ..Counters::default()
        };
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.values().for_each(|books| books.add_to(&mut sum));
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

    /// The part of a workqueue's counters that a thread writes.
    pub(crate) fn books_of(&self, number: u32, thread: ThreadId) -> Arc<WorkqueueBooks> {
        // It is there: a workqueue is not forgotten while it has items in flight.
        self.find(number).map_or_else(Arc::default, |state| state.books_of(thread))
    }
}
