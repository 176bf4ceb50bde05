//! Open file descriptions of which each thread that syncs has one to itself; those who wait get one
//! in the order in which they came.

use std::collections::VecDeque;
use std::fs;
use std::ops::Deref;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct Descriptions {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: Vec<Arc<fs::File>>,
    /// Only while none is free.
    waiting: VecDeque<SyncSender<Arc<fs::File>>>,
}

/// A description that nobody else has meanwhile. Dropping it lets the next one have it.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    of: &'a Descriptions,
    file: Arc<fs::File>,
}

impl Descriptions {
    /// There must be one at least.
    pub(crate) fn new(files: Vec<Arc<fs::File>>) -> Self {
        assert!(!files.is_empty(), "nobody would ever get one");
        Self { state: Mutex::new(State { free: files, waiting: VecDeque::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one is free, and until those who came earlier have had theirs.
    pub(crate) fn take(&self) -> Taken<'_> {
        let mut state = self.state();
        if let Some(file) = state.free.pop() {
            return Taken { of: self, file };
        }
        let (sender, receiver) = sync_channel(1);
        state.waiting.push_back(sender);
        drop(state);
        let file = receiver.recv().expect("who has one passes it on");
        Taken { of: self, file }
    }
}

impl Deref for Taken<'_> {
    type Target = Arc<fs::File>;

    fn deref(&self) -> &Arc<fs::File> {
        &self.file
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let file = Arc::clone(&self.file);
        let mut state = self.of.state();
        match state.waiting.pop_front() {
            // It has room for one, and who waits does not go away.
            Some(next) => drop(next.send(file)),
            None => state.free.push(file),
        }
    }
}

#[cfg(test)]
impl Descriptions {
    pub(crate) fn free(&self) -> Vec<Arc<fs::File>> {
        self.state().free.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;

    use super::*;

    fn files(count: usize) -> Vec<Arc<fs::File>> {
        (0..count).map(|_| Arc::new(tempfile::tempfile().unwrap())).collect()
    }

    #[test]
    fn each_is_had_by_one_at_a_time_and_given_in_order() {
        let descriptions = Descriptions::new(files(2));
        let (one, two) = (descriptions.take(), descriptions.take());
        assert_ne!(one.as_raw_fd(), two.as_raw_fd());
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for came in 0..8 {
                while descriptions.state().waiting.len() < came {
                    thread::yield_now();
                }
                let (descriptions, order) = (&descriptions, &order);
                scope.spawn(move || {
                    let taken = descriptions.take();
                    order.lock().unwrap().push(came);
                    drop(taken);
                });
            }
            while descriptions.state().waiting.len() < 8 {
                thread::yield_now();
            }
            drop(two);
        });
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
        drop(one);
        assert_eq!(descriptions.free().len(), 2);
    }

    #[test]
    fn a_panic_gives_its_own_back() {
        let descriptions = Descriptions::new(files(1));
        let panicked = thread::scope(|scope| {
            let panics = || {
                let _taken = descriptions.take();
                panic!("as a sync might");
            };
            scope.spawn(panics).join()
        });
        assert!(panicked.is_err());
        drop(descriptions.take());
    }
}
