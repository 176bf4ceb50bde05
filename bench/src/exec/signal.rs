//! How a client waits for its item, in the same way with every peer: it parks, and the item unparks
//! it. That takes a futex of its own, and no system call if the item was faster than the client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// From an item to the thread that waits for it.
pub(crate) struct Signal {
    given: AtomicBool,
    waiter: Thread,
}

impl Signal {
    /// A signal to the calling thread, for the rest of the process: items hold it without counting.
    pub(crate) fn to_this_thread() -> &'static Self {
        Box::leak(Box::new(Self { given: AtomicBool::new(false), waiter: thread::current() }))
    }

    /// Wakes the waiter.
    pub(crate) fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.waiter.unpark();
    }

    /// Waits until the signal is given, and takes it back.
    pub(crate) fn wait(&self) {
        while !self.given.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}
