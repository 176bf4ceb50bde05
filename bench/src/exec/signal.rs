//! How a client waits for its item, the same way whatever the peer: it parks, the item unparks it.
//! That is a futex of its own, and no system call where the item was faster than the client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// From an item to the thread that waits for it.
pub(crate) struct Signal {
    given: AtomicBool,
    waiter: Thread,
}

impl Signal {
    /// To the calling thread, for the rest of the process: items hold it without counting.
    pub(crate) fn to_this_thread() -> &'static Self {
        Box::leak(Box::new(Self { given: AtomicBool::new(false), waiter: thread::current() }))
    }

    /// Wakes the waiter.
    pub(crate) fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.waiter.unpark();
    }

    /// Waits until it is given, and takes it back.
    pub(crate) fn wait(&self) {
        while !self.given.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}
