//! Where one worker sleeps: a token that a waker leaves and the worker takes.

use crate::sync::{Condvar, Mutex, lock};

/// One worker's bed. A wake-up that comes before the sleep is kept.
#[derive(Debug)]
pub(crate) struct Sleeper {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self { woken: Mutex::new(false), changed: Condvar::new() }
    }

    /// Sleeps until [`Sleeper::wake`] was called, and takes its token.
    pub(crate) fn sleep(&self) {
        let mut woken = lock(&self.woken);
        while !*woken {
            woken = self.changed.wait(woken).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *woken = false;
    }

    /// Leaves the token, and ends a sleep if there is one.
    pub(crate) fn wake(&self) {
        *lock(&self.woken) = true;
        self.changed.notify_one();
    }
}
