//! The workqueues that the monitor has something to do for. There may be very many others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, lock};
use crate::workqueues::state::WorkqueueState;

/// Some workqueues, each at most once.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The field of a workqueue that says whether it is in the list.
    mark: fn(&WorkqueueState) -> &IsWatched,
    list: Mutex<Vec<Arc<WorkqueueState>>>,
}

/// Whether a workqueue is among the [`Watched`].
#[derive(Debug, Default)]
pub(crate) struct IsWatched(AtomicBool);

impl Watched {
    pub(crate) fn new(mark: fn(&WorkqueueState) -> &IsWatched) -> Self {
        Self { mark, list: Mutex::default() }
    }

    /// Adds a workqueue, unless it is in the list.
    pub(crate) fn add(&self, state: &Arc<WorkqueueState>) {
        // Pairs with `take`: if a thread finds the mark set, the thread that takes the workqueue
        // next sees what the first one wants done for it.
        if !(self.mark)(state).0.swap(true, Ordering::AcqRel) {
            lock(&self.list).push(Arc::clone(state));
        }
    }

    /// Takes all workqueues away. Those for which something is still to be done are to be added
    /// again.
    pub(crate) fn take(&self) -> Vec<Arc<WorkqueueState>> {
        let taken = std::mem::take(&mut *lock(&self.list));
        for state in &taken {
            (self.mark)(state).0.swap(false, Ordering::AcqRel);
        }
        taken
    }
}
