//! A worker's way from the number of a workqueue, which is all that an item has, to its counters.

use std::sync::Arc;

use crate::measure::books::WorkqueueBooks;
use crate::shared::Shared;
use crate::threads::crew::Member;
use crate::workqueues::state::WorkqueueState;

/// The workqueues that a worker has met lately.
#[derive(Default)]
pub(crate) struct BooksCache {
    known: Vec<Known>,
}

pub(crate) struct Known {
    number: u32,
    pub(crate) books: Arc<WorkqueueBooks>,
    /// `None` if the workqueue has been forgotten: then it has no items either.
    pub(crate) state: Option<Arc<WorkqueueState>>,
}

impl Known {
    /// Whether its items leave their CPU to others while they run.
    pub(crate) fn lends(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.kinds.lends())
    }
}

impl BooksCache {
    /// With more, the cache begins anew: workqueues may come and go.
    const LEN_MAX: usize = 64;

    #[inline]
    pub(crate) fn of(&mut self, shared: &Shared, me: &Member, workqueue: u32) -> &Known {
        // The one used last is mostly the one used next.
        if self.known.last().is_none_or(|known| known.number != workqueue) {
            self.find(shared, me, workqueue);
        }
        &self.known[self.known.len() - 1]
    }

    /// Makes that workqueue the last.
    #[cold]
    fn find(&mut self, shared: &Shared, me: &Member, workqueue: u32) {
        let found = self.known.iter().rposition(|known| known.number == workqueue);
        if let Some(place) = found {
            let last = self.known.len() - 1;
            return self.known.swap(place, last);
        }
        if self.known.len() == Self::LEN_MAX {
            self.known.clear();
        }
        let state = shared.workqueues.find(workqueue);
        // A workqueue is not forgotten while it has items in flight.
        let books = |state| shared.workqueues.books_of(state, &me.writer);
        let books = state.as_deref().map_or_else(Arc::default, books);
        self.known.push(Known { number: workqueue, books, state });
    }
}
