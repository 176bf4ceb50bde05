//! The workqueues of a runtime, by number: items carry the number, not a reference, so that
//! queueing writes to no counter that all issuers share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use homing_sched::PoolId;
use homing_topology::Scope;

use crate::item::Tag;
use crate::slot::ThreadId;
use crate::state::{Chosen, Kinds, WorkqueueState};
use crate::sync::{Mutex, lock};

static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

/// All workqueues of a runtime.
#[derive(Debug)]
pub(crate) struct Registry {
    cpus: usize,
    all: Mutex<All>,
}

#[derive(Debug)]
struct All {
    states: BTreeMap<u32, Entry>,
    /// By name, the last one that had it.
    names: HashMap<String, u32>,
    /// At this number of entries those that nobody needs are thrown out.
    sweep_at: usize,
    /// The scope of those that follow it.
    default_scope: Scope,
}

/// Below so many entries nobody looks whether all are needed.
const SWEEP_AT_LEAST: usize = 64;

/// A workqueue is kept while it is in use. Then it is found as long as somebody holds it: a future
/// that may go on, for one.
#[derive(Debug)]
struct Entry {
    held: Weak<WorkqueueState>,
    kept: Option<Arc<WorkqueueState>>,
}

impl Entry {
    fn state(&self) -> Option<Arc<WorkqueueState>> {
        self.kept.clone().or_else(|| self.held.upgrade())
    }

    /// Lets go of one that nobody can queue to and that is empty. Whether somebody still holds it.
    fn sweep(&mut self) -> bool {
        let done = |state: &mut Arc<WorkqueueState>| is_let_go(state) && state.is_empty();
        drop(self.kept.take_if(done));
        self.held.strong_count() > 0
    }
}

impl All {
    fn named(&self, name: &str) -> Option<Arc<WorkqueueState>> {
        let kept = self.states.get(self.names.get(name)?)?.kept.as_ref();
        kept.filter(|state| !is_let_go(state)).cloned()
    }
}

fn is_let_go(state: &WorkqueueState) -> bool {
    state.let_go.load(Ordering::Acquire)
}

impl Registry {
    pub(crate) fn new(cpus: usize) -> Self {
        // The kernel's default since 7.1.
        let all = All {
            states: BTreeMap::new(),
            names: HashMap::new(),
            sweep_at: 0,
            default_scope: Scope::CacheShard,
        };
        Self { cpus, all: Mutex::new(all) }
    }

    pub(crate) fn default_scope(&self) -> Scope {
        lock(&self.all).default_scope
    }

    /// What `act` does with the default scope is done before somebody changes that, or after it: who
    /// begins to follow it in there begins with the one or is told of the other.
    ///
    /// The lock is taken before those of workqueues: `act` is not to come back here.
    pub(crate) fn with_default_scope<T>(&self, act: impl FnOnce(Scope) -> T) -> T {
        let all = lock(&self.all);
        act(all.default_scope)
    }

    /// Changes the default, and with it, by `follow`, the workqueues that follow it.
    pub(crate) fn set_default_scope(&self, scope: Scope, follow: impl Fn(&WorkqueueState)) {
        // Under the lock: whoever is added meanwhile begins with the one or the other, and follows.
        let mut all = lock(&self.all);
        all.default_scope = scope;
        all.states.values().filter_map(Entry::state).for_each(|state| follow(&state));
    }

    /// Adds a workqueue: its pool is made from what is chosen, with the default scope filled in.
    pub(crate) fn add(
        &self,
        name: &str,
        kinds: Kinds,
        mut chosen: Chosen,
        pool_with: impl FnOnce(&Chosen) -> Option<PoolId>,
    ) -> Option<Arc<WorkqueueState>> {
        let mut all = lock(&self.all);
        // Those that nobody can use any more go now, so that nothing grows without end.
        if all.states.len() >= all.sweep_at {
            let All { states, names, .. } = &mut *all;
            states.retain(|_, entry| entry.sweep());
            names.retain(|_, number| states.contains_key(number));
            all.sweep_at = SWEEP_AT_LEAST.max(all.states.len() * 2);
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
        let state = WorkqueueState::new(number, &unique, kinds, chosen, pool, self.cpus);
        let state = Arc::new(state);
        let entry = Entry { held: Arc::downgrade(&state), kept: Some(Arc::clone(&state)) };
        all.states.insert(number, entry);
        Some(state)
    }

    /// The one in use that has this name.
    #[cfg(feature = "control")]
    pub(crate) fn named(&self, name: &str) -> Option<Arc<WorkqueueState>> {
        lock(&self.all).named(name)
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<WorkqueueState>> {
        lock(&self.all).states.get(&number)?.state()
    }

    /// All that are in use.
    pub(crate) fn all(&self) -> Vec<Arc<WorkqueueState>> {
        let mut all = self.with_items();
        all.retain(|state| !is_let_go(state));
        all
    }

    /// All that may have items.
    pub(crate) fn with_items(&self) -> Vec<Arc<WorkqueueState>> {
        lock(&self.all).states.values().filter_map(Entry::state).collect()
    }

    /// How many items are being run.
    pub(crate) fn running(&self) -> u64 {
        self.with_items().iter().map(|state| state.counters().running()).sum()
    }

    /// A thread ends, and writes in no books any more.
    pub(crate) fn close_books_of(&self, thread: ThreadId) {
        for state in self.with_items() {
            state.close_books_of(thread);
        }
    }

    /// The part of a workqueue's counters that a thread writes.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn books_of(
        &self,
        number: u32,
        thread: ThreadId,
    ) -> Arc<crate::books::WorkqueueBooks> {
        self.find(number).map_or_else(Arc::default, |state| state.books_of(thread))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use homing_sched::{Affinity, Attributes};

    use super::*;
    use crate::item::Books;

    #[test]
    fn books_of_threads_that_have_ended_are_added_up_and_let_go() {
        let registry = Registry::new(1);
        let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
        let chosen =
            Chosen { attributes, scope_is_default: false, cpumask: None, max_active: None };
        let pool = |_: &Chosen| Some(PoolId(0));
        let state = registry.add("test", Kinds::default(), chosen.clone(), pool).unwrap();
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
        assert_eq!(state.open_books(), 1);
        let twin = registry.add("test", Kinds::default(), chosen, pool).unwrap();
        assert_eq!(*twin.name, format!("test~{}", twin.number));
    }
}
