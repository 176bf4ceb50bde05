//! The workqueues that the monitor has something to do for. There may be very many others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::state::WorkqueueState;
use crate::sync::{Mutex, lock};

/// Some workqueues, each at most once.
#[derive(Debug)]
pub(crate) struct Watched {
    /// What of a workqueue tells whether it is there.
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

    /// Adds a workqueue, unless it is there.
    pub(crate) fn add(&self, state: &Arc<WorkqueueState>) {
        // Pairs with `take`: whoever finds the mark set is seen by who takes the workqueue away next, with
        // what there is to do for it.
        if !(self.mark)(state).0.swap(true, Ordering::AcqRel) {
            lock(&self.list).push(Arc::clone(state));
        }
    }

    /// Takes all away: whoever still has something to be done is to be added again.
    pub(crate) fn take(&self) -> Vec<Arc<WorkqueueState>> {
        let taken = std::mem::take(&mut *lock(&self.list));
        for state in &taken {
            (self.mark)(state).0.swap(false, Ordering::AcqRel);
        }
        taken
    }
}
