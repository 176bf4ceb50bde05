//! The workqueues of a runtime, by number: items carry the number, not a reference, so that
//! queueing writes to no counter that all issuers share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use homing_sched::{PoolId, PoolSet};
use homing_topology::Scope;

use crate::item::Tag;
use crate::measure::books::WorkqueueBooks;
use crate::sync::{Mutex, lock};
use crate::threads::slot::ThreadId;
use crate::workqueues::state::{Chosen, Kinds, PoolUsers, WorkqueueState};

static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

/// All workqueues of a runtime.
#[derive(Debug)]
pub(crate) struct Registry {
    cpus: usize,
    pool_users: Arc<PoolUsers>,
    all: Mutex<All>,
}

#[derive(Debug)]
struct All {
    states: BTreeMap<u32, Entry>,
    /// For each name, the last workqueue that had it.
    names: HashMap<String, u32>,
    /// At this number of entries, those that nobody needs are thrown out,
    sweep_at: usize,
    /// and also at this number of workqueues that were let go, some of which may still have items.
    sweep_let_go_at: usize,
    let_go: usize,
    /// The scope of workqueues that follow the default.
    default_scope: Scope,
}

/// Below so many entries, nobody looks whether all of them are needed.
const SWEEP_AT_LEAST: usize = 64;

/// A workqueue is kept while it is in use. After that, it is found as long as somebody holds it:
/// for example, a future that may go on.
#[derive(Debug)]
struct Entry {
    held: Weak<WorkqueueState>,
    kept: Option<Arc<WorkqueueState>>,
}

impl Entry {
    fn state(&self) -> Option<Arc<WorkqueueState>> {
        self.kept.clone().or_else(|| self.held.upgrade())
    }
}

impl All {
    /// Forgets workqueues that nobody can queue to and that are empty. Returns them, to be dropped
    /// when the lock is no longer held, because they may hold anybody's values. Those that somebody
    /// still holds can still be found.
    fn sweep(&mut self) -> Vec<Arc<WorkqueueState>> {
        let mut swept = Vec::new();
        self.let_go = 0;
        self.states.retain(|_, entry| {
            let done = |state: &mut Arc<WorkqueueState>| is_let_go(state) && state.is_empty();
            let Some(state) = entry.kept.take_if(done) else {
                self.let_go += usize::from(entry.kept.as_deref().is_some_and(is_let_go));
                return entry.kept.is_some() || entry.held.strong_count() > 0;
            };
            let held = Arc::strong_count(&state) > 1;
            swept.push(state);
            held
        });
        self.names.retain(|_, number| self.states.contains_key(number));
        self.sweep_at = SWEEP_AT_LEAST.max(self.states.len() * 2);
        self.sweep_let_go_at = SWEEP_AT_LEAST.max(self.states.len() / 2).max(self.let_go * 2);
        swept
    }

    fn named(&self, name: &str) -> Option<Arc<WorkqueueState>> {
        let kept = self.states.get(self.names.get(name)?)?.kept.as_ref();
        kept.filter(|state| !is_let_go(state)).cloned()
    }
}

fn is_let_go(state: &WorkqueueState) -> bool {
    state.let_go.load(Ordering::Acquire)
}

impl Registry {
    pub(crate) fn new(cpus: usize, default_scope: Scope) -> Self {
        let all = All {
            states: BTreeMap::new(),
            names: HashMap::new(),
            sweep_at: 0,
            sweep_let_go_at: SWEEP_AT_LEAST,
            let_go: 0,
            default_scope,
        };
        Self { cpus, pool_users: Arc::new(PoolUsers::new()), all: Mutex::new(all) }
    }

    pub(crate) fn default_scope(&self) -> Scope {
        lock(&self.all).default_scope
    }

    /// What `act` does with the default scope is done either before or after a change of the
    /// default. So a workqueue that begins to follow the default within `act` begins with the new
    /// one or is told of it.
    ///
    /// The lock is taken before those of workqueues. `act` must not call the registry.
    pub(crate) fn with_default_scope<T>(&self, act: impl FnOnce(Scope) -> T) -> T {
        let all = lock(&self.all);
        act(all.default_scope)
    }

    /// Changes the default and, by `follow`, the workqueues that follow it; but nothing, if `can`
    /// says of one that it cannot follow. Returns that one's name.
    pub(crate) fn set_default_scope(
        &self,
        scope: Scope,
        can: impl Fn(&WorkqueueState) -> bool,
        follow: impl Fn(&WorkqueueState),
    ) -> Result<(), String> {
        // Under the lock: a workqueue that is added meanwhile begins with the old or the new
        // default, and follows.
        let mut all = lock(&self.all);
        let states: Vec<_> = all.states.values().filter_map(Entry::state).collect();
        let cannot = states.iter().find(|state| !can(state)).map(|state| state.name.to_string());
        if cannot.is_none() {
            all.default_scope = scope;
            for state in &states {
                follow(state);
            }
        }
        drop(all);
        // Perhaps the last references, which must not go under the lock.
        drop(states);
        cannot.map_or(Ok(()), Err)
    }

    /// Adds a workqueue. Its pool is made from what is chosen, with the default scope filled in.
    pub(crate) fn add(
        &self,
        name: &str,
        kinds: Kinds,
        mut chosen: Chosen,
        pool_with: impl FnOnce(&Chosen) -> Option<PoolId>,
    ) -> Option<Arc<WorkqueueState>> {
        // Dropped last, when the lock is no longer held.
        let _swept;
        let mut all = lock(&self.all);
        // Workqueues that nobody can use any more go now, so that nothing grows without end.
        if all.states.len() >= all.sweep_at {
            _swept = all.sweep();
        }
        if chosen.scope_is_default {
            chosen.attributes.affinity.scope = all.default_scope;
        }
        let pool = pool_with(&chosen)?;
        // Unique in the process: an item's number tells its runtime too.
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number < Tag::NUMBERS, "268 million workqueues have been made in this process");
        // Names may repeat, paths of attributes may not.
        let taken = all.named(name).is_some();
        let unique = if taken { format!("{name}~{number}") } else { name.to_owned() };
        all.names.insert(unique.clone(), number);
        let users = Arc::clone(&self.pool_users);
        let state = WorkqueueState::new(number, &unique, kinds, chosen, pool, self.cpus, users);
        let state = Arc::new(state);
        let entry = Entry { held: Arc::downgrade(&state), kept: Some(Arc::clone(&state)) };
        all.states.insert(number, entry);
        Some(state)
    }

    /// To be called when nobody has a handle of the workqueue any more, or it was destroyed. It is
    /// forgotten some time after its last item has ended.
    pub(crate) fn let_go(&self, state: &WorkqueueState) {
        if state.let_go.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut all = lock(&self.all);
        all.let_go += 1;
        let swept = if all.let_go >= all.sweep_let_go_at { all.sweep() } else { Vec::new() };
        drop(all);
        drop(swept);
    }

    /// Forgets workqueues that had items when they were let go, if there are many. To be called now
    /// and then.
    pub(crate) fn sweep_if_many(&self) {
        let mut all = lock(&self.all);
        let many = all.let_go >= SWEEP_AT_LEAST.max(all.states.len() / 2);
        let swept = if many { all.sweep() } else { Vec::new() };
        drop(all);
        drop(swept);
    }

    /// The pools that workqueues use.
    pub(crate) fn used_pools(&self) -> PoolSet {
        self.pool_users.used()
    }

    /// The workqueue in use that has this name.
    #[cfg(feature = "control")]
    pub(crate) fn named(&self, name: &str) -> Option<Arc<WorkqueueState>> {
        lock(&self.all).named(name)
    }

    /// The runtime's own workqueue, which is made first.
    pub(crate) fn first(&self) -> Option<Arc<WorkqueueState>> {
        lock(&self.all).states.values().next()?.state()
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<WorkqueueState>> {
        lock(&self.all).states.get(&number)?.state()
    }

    /// All workqueues that are in use.
    #[cfg(any(test, feature = "control", feature = "metrics"))]
    pub(crate) fn all(&self) -> Vec<Arc<WorkqueueState>> {
        let mut all = self.with_items();
        all.retain(|state| !is_let_go(state));
        all
    }

    /// All workqueues that may have items.
    pub(crate) fn with_items(&self) -> Vec<Arc<WorkqueueState>> {
        lock(&self.all).states.values().filter_map(Entry::state).collect()
    }

    /// How many items are being run.
    pub(crate) fn running(&self) -> u64 {
        self.with_items().iter().map(|state| state.counters().running()).sum()
    }

    /// The part of a workqueue's counters that a thread writes.
    pub(crate) fn books_of(&self, state: &WorkqueueState, by: &Writer) -> Arc<WorkqueueBooks> {
        let mut opened = false;
        let books = state.books_of(by.thread, || opened = true);
        if opened {
            let mut numbers = lock(&by.opened);
            if numbers.len() == numbers.capacity() {
                // Workqueues come and go, for as long as the thread lives.
                let all = lock(&self.all);
                numbers.retain(|number| all.states.contains_key(number));
                let more = numbers.len().max(SWEEP_AT_LEAST);
                numbers.reserve(more);
            }
            numbers.push(state.number);
        }
        books
    }

    /// To be called when a thread ends, and writes in no books any more.
    pub(crate) fn close_books_of(&self, by: &Writer) {
        let opened = std::mem::take(&mut *lock(&by.opened));
        for state in opened.into_iter().filter_map(|number| self.find(number)) {
            state.close_books_of(by.thread);
        }
    }
}

/// A thread, and the workqueues in whose books it writes, by number.
#[derive(Debug)]
pub(crate) struct Writer {
    thread: ThreadId,
    opened: Mutex<Vec<u32>>,
}

impl Writer {
    pub(crate) fn new(thread: ThreadId) -> Self {
        Self { thread, opened: Mutex::default() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use homing_sched::{Affinity, Attributes};
    use homing_topology::CpuId;

    use super::*;
    use crate::item::Books;

    #[test]
    fn books_of_threads_that_have_ended_are_added_up_and_let_go() {
        let registry = Registry::new(1, Scope::CacheShard);
        let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
        let chosen =
            Chosen { attributes, scope_is_default: false, cpumask: None, max_active: None };
        let pool = |_: &Chosen| Some(PoolId(0));
        let state = registry.add("test", Kinds::default(), chosen.clone(), pool).unwrap();
        for number in 1..=100 {
            let writer = Writer::new(ThreadId(number));
            let books = registry.books_of(&state, &writer);
            books.started();
            books.completed(true);
            books.waited(100);
            assert!(Arc::ptr_eq(&books, &registry.books_of(&state, &writer)));
            registry.close_books_of(&writer);
            // One that never wrote anything.
            registry.close_books_of(&Writer::new(ThreadId(1000 + number)));
        }
        registry.books_of(&state, &Writer::new(ThreadId(101))).started();
        let counters = state.counters();
        assert_eq!((counters.started, counters.completed, counters.panicked), (101, 100, 100));
        assert_eq!(counters.queue_age.count(), 100);
        assert_eq!(state.open_books(), 1);
        let twin = registry.add("test", Kinds::default(), chosen, pool).unwrap();
        assert_eq!(*twin.name, format!("test~{}", twin.number));
    }

    #[test]
    fn those_that_were_let_go_are_forgotten_in_time_and_none_with_items() {
        let registry = Registry::new(1, Scope::CacheShard);
        let chosen = Chosen {
            attributes: Attributes::new(Affinity { scope: Scope::Cache, strict: false }),
            scope_is_default: false,
            cpumask: None,
            max_active: None,
        };
        let pool = |number: usize| move |_: &Chosen| Some(PoolId((number % 3) as u8));
        let add = |number: usize| {
            registry.add("test", Kinds::default(), chosen.clone(), pool(number)).unwrap()
        };
        let states: Vec<_> = (0..1000).map(add).collect();
        let last = Arc::clone(&states[999]);
        last.queued.add(CpuId::new(0).unwrap(), last.tag(), 1);
        assert_eq!(registry.used_pools(), PoolSet::first(3));
        for state in states {
            registry.let_go(&state);
            registry.let_go(&state);
        }
        assert!(registry.with_items().len() <= 2 * SWEEP_AT_LEAST, "the others went meanwhile");
        assert!(registry.all().is_empty());
        lock(&registry.all).sweep();
        let left = registry.with_items();
        assert!(left.len() == 1 && Arc::ptr_eq(&left[0], &last), "it has an item");
        assert!(registry.used_pools().iter().eq([PoolId(0)]));
        last.count_unrun(last.tag(), true);
        lock(&registry.all).sweep();
        assert!(registry.find(last.number).is_some(), "somebody holds it");
        drop((left, last));
        lock(&registry.all).sweep();
        assert!(registry.with_items().is_empty() && registry.used_pools().iter().eq([]));
    }
}
