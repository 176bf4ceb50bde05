//! A workqueue: a name with attributes. It owns no threads; queues are shared by equal affinity.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use homing_sched::{Affinity, HandOff, HandOffFacts, Reach, hand_off};
use homing_topology::Scope;

use crate::spare::SpareCpus;
use crate::task::{Item, JoinHandle, Task};
use crate::worker::{self, Queued, Shared};

/// Longest name, in bytes: the kernel's.
const NAME_LEN_MAX: usize = 32;

/// Why a workqueue could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkqueueError {
    /// The name does not do as a name in the attribute tree.
    #[error(
        "{name:?} does not do as a workqueue name: use 1 to {NAME_LEN_MAX} letters, digits, '_', \
         '-' or '.', not beginning with '.'"
    )]
    Name {
        /// The name given.
        name: String,
    },
}

/// How to make a workqueue. The attributes can be changed afterwards.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct WorkqueueBuilder {
    shared: Arc<Shared>,
    spare: Arc<SpareCpus>,
    name: String,
    affinity: Affinity,
}

impl WorkqueueBuilder {
    pub(crate) fn new(shared: Arc<Shared>, spare: Arc<SpareCpus>, name: &str) -> Self {
        // The kernel's default since 7.1.
        let affinity = Affinity { scope: Scope::CacheShard, strict: false };
        Self { shared, spare, name: name.to_owned(), affinity }
    }

    /// How far items may spread before they leave home. Default: [`Scope::CacheShard`].
    pub fn affinity_scope(mut self, scope: Scope) -> Self {
        self.affinity.scope = scope;
        self
    }

    /// Whether items never run outside their home pod, even where CPUs are idle. Default: false.
    pub fn affinity_strict(mut self, strict: bool) -> Self {
        self.affinity.strict = strict;
        self
    }

    /// Makes the workqueue.
    ///
    /// # Errors
    /// [`WorkqueueError::Name`] where the name is empty, too long or has other characters.
    pub fn build(self) -> Result<Workqueue, WorkqueueError> {
        let fits = (1..=NAME_LEN_MAX).contains(&self.name.len())
            && !self.name.starts_with('.')
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if !fits {
            return Err(WorkqueueError::Name { name: self.name });
        }
        Ok(Workqueue {
            shared: self.shared,
            spare: self.spare,
            name: self.name.into(),
            affinity: Arc::new(AtomicUsize::new(self.affinity.index())),
            accounts: Arc::new(Accounts::default()),
        })
    }
}

/// A named stream of work with attributes. Cheap to clone; clones are the same workqueue.
#[derive(Clone)]
pub struct Workqueue {
    shared: Arc<Shared>,
    spare: Arc<SpareCpus>,
    name: Arc<str>,
    /// The index in [`Affinity::ALL`]: one word, so that scope and strictness change together.
    affinity: Arc<AtomicUsize>,
    accounts: Arc<Accounts>,
}

impl Workqueue {
    /// Queues `work`. It runs once, on a worker; a panic in it goes to the handle.
    ///
    /// What the issuer did before is visible to the item. After a shutdown the handle returns
    /// [`crate::JoinError::Cancelled`].
    pub fn queue<F, T>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let task = Task::new(work, Arc::clone(&self.accounts));
        let item: Arc<dyn Item> = Arc::clone(&task) as Arc<dyn Item>;
        let queued = Queued { item, accounts: Arc::clone(&self.accounts) };
        self.accounts.queued.fetch_add(1, Ordering::Relaxed);
        match self.shared.queues.put(worker::issuing_cpu(), self.affinity(), queued) {
            Ok(woken) => self.accounts.count_woken(woken),
            Err(refused) => refused.item.cancel(),
        }
        JoinHandle::new(task)
    }

    /// Whether an item of about `item_ns` nanoseconds is worth queueing at present, or better run
    /// where it arose. `issuer_has_more`: the issuer would do something else meanwhile.
    pub fn hand_off(&self, item_ns: u64, issuer_has_more: bool) -> HandOff {
        let mut facts = HandOffFacts { item_ns, issuer_has_more, spare_cpu_count: usize::MAX };
        // The machine's load is looked at only where the rest speaks for queueing.
        if hand_off(&facts) == HandOff::Queue {
            facts.spare_cpu_count = self.spare.count().min(self.shared.queues.idle_count());
        }
        hand_off(&facts)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The scope and strictness in force.
    pub fn affinity(&self) -> Affinity {
        Affinity::ALL[self.affinity.load(Ordering::Acquire)]
    }

    /// Changes the scope, for items queued from now on. Those already queued stay where they are
    /// and are served from there: none is lost or delayed.
    pub fn set_affinity_scope(&self, scope: Scope) {
        self.change_affinity(|affinity| Affinity { scope, ..affinity });
    }

    /// Changes the strictness, for items queued from now on.
    pub fn set_affinity_strict(&self, strict: bool) {
        self.change_affinity(|affinity| Affinity { strict, ..affinity });
    }

    fn change_affinity(&self, change: impl Fn(Affinity) -> Affinity) {
        let update = |index: usize| Some(change(Affinity::ALL[index]).index());
        // The closure never declines, so this cannot fail.
        let _ = self.affinity.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.accounts.read()
    }
}

impl fmt::Debug for Workqueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workqueue")
            .field("name", &self.name)
            .field("affinity", &self.affinity())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

/// What has happened to the items of a workqueue. Each figure is exact; together they need not be
/// of one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Items queued.
    pub queued: u64,
    /// Items that began to run.
    pub started: u64,
    /// Items that ended, by returning or by panicking.
    pub completed: u64,
    /// Items that panicked.
    pub panicked: u64,
    /// Sleeping workers woken for items.
    pub woken: u64,
    /// Items that a worker took, by how far it had to go: from its own pod, the same cache,
    /// another cache of the node, another node.
    pub taken: [u64; Reach::ALL.len()],
}

/// The books of one workqueue: relaxed counters, read by [`Workqueue::counters`].
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    queued: AtomicU64,
    started: AtomicU64,
    completed: AtomicU64,
    panicked: AtomicU64,
    woken: AtomicU64,
    taken: [AtomicU64; Reach::ALL.len()],
}

impl Accounts {
    pub(crate) fn count_started(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_completed(&self, panicked: bool) {
        self.panicked.fetch_add(u64::from(panicked), Ordering::Relaxed);
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_taken(&self, reach: Reach, woken: bool) {
        self.taken[reach as usize].fetch_add(1, Ordering::Relaxed);
        self.count_woken(woken);
    }

    fn count_woken(&self, woken: bool) {
        if woken {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            queued: read(&self.queued),
            started: read(&self.started),
            completed: read(&self.completed),
            panicked: read(&self.panicked),
            woken: read(&self.woken),
            taken: self.taken.each_ref().map(read),
        }
    }
}
