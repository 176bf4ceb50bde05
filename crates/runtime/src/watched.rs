//! Workqueues that the monitor has something to do for: there may be very many others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::state::WorkqueueState;
use crate::sync::{Mutex, lock};

/// Some workqueues, each at most once.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<Vec<Arc<WorkqueueState>>>);

/// Whether a workqueue is among the [`Watched`].
#[derive(Debug, Default)]
pub(crate) struct IsWatched(AtomicBool);

impl Watched {
    /// Adds a workqueue, unless it is there. `of`: its mark for these.
    pub(crate) fn add(
        &self,
        state: &Arc<WorkqueueState>,
        of: impl FnOnce(&WorkqueueState) -> &IsWatched,
    ) {
        // Pairs with `take`: whoever finds the mark set is seen by who takes the workqueue away next, with
        // what there is to do for it.
        if !of(state).0.swap(true, Ordering::AcqRel) {
            lock(&self.0).push(Arc::clone(state));
        }
    }

    /// Takes all away: whoever still has something to be done is to be added again.
    pub(crate) fn take(
        &self,
        of: impl Fn(&WorkqueueState) -> &IsWatched,
    ) -> Vec<Arc<WorkqueueState>> {
        let taken = std::mem::take(&mut *lock(&self.0));
        for state in &taken {
            of(state).0.swap(false, Ordering::AcqRel);
        }
        taken
    }
}
