//! A value that is being loaded: one caller loads it, and all others that want it wait for that.
//!
//! | step | who | why nobody waits for ever |
//! | --- | --- | --- |
//! | register | the first to miss, under the shard's lock | whoever comes next finds the flight there |
//! | land | the loader: value or error, then wakes all | those who wait look again under the flight's lock |
//! | abandon | the loader's guard, where it panics or is cancelled | those who wait are woken, look again, and one of them registers a new flight |
//!
//! A flight is taken out of the shard's table before it lands: nobody joins what has landed.

use std::any::Any;
use std::task::{Context, Poll, Waker};

use crate::panics;
use crate::sync::{Arc, Condvar, Mutex, lock};

/// An error of any type, shared by all who waited for it.
pub(super) type AnyError = std::sync::Arc<dyn Any + Send + Sync>;

/// A value on its way.
pub(super) struct Flight<V> {
    state: Mutex<State<V>>,
    landed: Condvar,
}

enum State<V> {
    Loading {
        /// Those who wait without a thread, by the number that they got.
        wakers: Vec<Option<Waker>>,
        /// Numbers of those who wait no more.
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
    /// Its loader is gone: somebody else has to load.
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

    /// Ends it, and wakes all who wait.
    pub(super) fn land(&self, landing: Landing<V>) {
        let was = std::mem::replace(&mut *lock(&self.state), State::Landed(landing));
        let State::Loading { wakers, threads, .. } = was else { return };
        if threads {
            self.landed.notify_all();
        }
        // One that panics keeps no other from being woken, and is no matter of whoever has loaded: he may be panicking
        // himself.
        std::mem::forget(panics::each(wakers.into_iter().flatten(), Waker::wake));
    }

    /// Waits until it has landed, on this thread.
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

    /// Asks whether it has landed. `number` is this waiter's, once it has one.
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
                // It may be the last of a task that waits here, too.
                drop(state);
                drop(was);
                Poll::Pending
            }
        }
    }

    /// This waiter does not wait any more.
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
