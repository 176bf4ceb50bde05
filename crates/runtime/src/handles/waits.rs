//! The waiters for the end of an instance of a work item.
//!
//! Two sides meet. A waiter joins the list, **then** sets `WAITERS`. The thread that ends an
//! instance clears `WAITERS`, **then** takes the list. So no waiter that was told to wait is left
//! in the list. A waiter that is woken for nothing looks again.

use std::sync::Arc;

use crate::item::{Awaited, Pending};
use crate::sync::{Mutex, lock};
use crate::workqueues::flush::{Wait, end_all, join};

#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Vec<Arc<Wait>>>);

impl Waits {
    /// Joins those who wait, unless what is waited for is over.
    pub(crate) fn begin(&self, pending: &Pending, awaited: Awaited) -> Option<Arc<Wait>> {
        let wait = Arc::new(Wait::default());
        join(&mut lock(&self.0), Arc::clone(&wait));
        if pending.wait(awaited) {
            return Some(wait);
        }
        lock(&self.0).retain(|other| !Arc::ptr_eq(other, &wait));
        None
    }

    /// Tells all of them to look again.
    pub(crate) fn wake(&self) {
        let waits = std::mem::take(&mut *lock(&self.0));
        end_all(&waits);
    }
}
