//! A value that is being loaded: one caller loads it, and all others that want it wait for that
//! caller.
//!
//! | step | who | why nobody waits forever |
//! | --- | --- | --- |
//! | register | the first to miss, under the shard's lock | callers that come later find the flight |
//! | land | the loader: value or error, then wakes all | callers that wait look again under the flight's lock |
//! | abandon | the loader's guard, if the loader panics or is cancelled | callers that wait are woken, look again, and one of them registers a new flight |
//!
//! A flight is taken out of the shard's table before it lands, so nobody joins a flight that has
//! landed.

use std::any::Any;
use std::task::{Context, Poll, Waker};

use crate::panics;
use crate::sync::{Arc, Condvar, Mutex, lock};

/// An error of any type, shared by all callers that waited for it.
pub(super) type AnyError = std::sync::Arc<dyn Any + Send + Sync>;

/// A value that is being loaded.
pub(super) struct Flight<V> {
    state: Mutex<State<V>>,
    landed: Condvar,
}

enum State<V> {
    Loading {
        /// The wakers of futures that wait, indexed by the numbers that these got.
        wakers: Vec<Option<Waker>>,
        /// The numbers of futures that do not wait any more.
        free: Vec<usize>,
        /// Whether a thread waits: waking is a system call, and most flights have one caller.
        threads: bool,
    },
    Landed(Landing<V>),
}

/// How a flight ended.
pub(super) enum Landing<V> {
    Value(V),
    Error(AnyError),
    /// Its loader is gone: another caller has to load.
    Abandoned,
}

impl<V: Clone> Clone for Landing<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Value(value) => Self::Value(value.clone()),
            Self::Error(error) => Self::Error(std::sync::Arc::clone(error)),
            Self::Abandoned => Self::Abandoned,
        }
    }
}

impl<V: Clone> Flight<V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Loading {
                wakers: Vec::new(),
                free: Vec::new(),
                threads: false,
            }),
            landed: Condvar::new(),
        })
    }

    /// Ends the flight, and wakes all callers that wait.
    pub(super) fn land(&self, landing: Landing<V>) {
        let was = std::mem::replace(&mut *lock(&self.state), State::Landed(landing));
        let State::Loading { wakers, threads, .. } = was else { return };
        if threads {
            self.landed.notify_all();
        }
        // A waker that panics must not keep others from being woken. Its panic does not go on in
        // the loader, which may be panicking itself.
        if let Some(panicked) = panics::each(wakers.into_iter().flatten(), Waker::wake) {
            panics::drop_quietly(panicked);
        }
    }

    /// Blocks this thread until the flight has landed.
    pub(super) fn wait(&self) -> Landing<V> {
        let mut state = lock(&self.state);
        loop {
            match &mut *state {
                State::Landed(landing) => return landing.clone(),
                State::Loading { threads, .. } => *threads = true,
            }
            state = self.landed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Asks whether the flight has landed. `number` is that of this future, once it has one.
    pub(super) fn poll(
        &self,
        context: &Context<'_>,
        number: &mut Option<usize>,
    ) -> Poll<Landing<V>> {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Landed(landing) => Poll::Ready(landing.clone()),
            State::Loading { wakers, free, .. } => {
                let waker = Some(context.waker().clone());
                let at = *number.get_or_insert_with(|| free.pop().unwrap_or(wakers.len()));
                let was = if let Some(place) = wakers.get_mut(at) {
                    std::mem::replace(place, waker)
                } else {
                    wakers.push(waker);
                    None
                };
                // The old waker may be the last reference to a task that waits here, too.
                drop(state);
                drop(was);
                Poll::Pending
            }
        }
    }

    /// Notes that this future does not wait any more.
    pub(super) fn leave(&self, number: usize) {
        let mut state = lock(&self.state);
        if let State::Loading { wakers, free, .. } = &mut *state {
            let waker = wakers[number].take();
            free.push(number);
            drop(state);
            drop(waker);
        }
    }
}
