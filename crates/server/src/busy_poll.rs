//! Polls for the next request for a while before sleeping.
//!
//! A client with one request at a time sends the next one sooner than a CPU can go to sleep and be
//! woken, above all on a virtual machine. So a connection that got a request soon after the one
//! before polls for the next without sleeping, and stops once a request does not come so soon. The
//! kernel's `net.core.busy_poll` and its haltpoll governor (drivers/cpuidle/governors/haltpoll.c)
//! work alike. Polling keeps no other thread from its CPU: a thread that is to run there runs
//! between two polls, and its time counts towards the window. If more connections than half the
//! number of CPUs are lively, none polls.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Pollers {
    window: Duration,
    /// Connections whose last request came soon. An idle connection counts until it has waited for
    /// a second.
    lively: AtomicUsize,
    /// If more are lively, each has others to wait for, and none polls.
    lively_max: usize,
}

impl Pollers {
    /// Each connection polls for `window` at most.
    pub(crate) fn new(window: Duration) -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        Self { window, lively: AtomicUsize::new(0), lively_max: (cpus / 2).max(1) }
    }
}

/// Whether the next request of a connection is likely to come soon.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    pollers: Arc<Pollers>,
    soon: bool,
}

impl Drop for BusyPoll {
    fn drop(&mut self) {
        self.note(false);
    }
}

impl BusyPoll {
    pub(crate) fn new(pollers: &Arc<Pollers>) -> Self {
        Self { pollers: Arc::clone(pollers), soon: false }
    }

    /// Reads with `try_read` as long as that says `WouldBlock` and polling is worth it, otherwise
    /// with `read`, which sleeps.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        try_read: impl Fn(&mut [u8]) -> io::Result<usize>,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Pollers { window, ref lively, lively_max } = *self.pollers;
        if window.is_zero() {
            return read(buffer);
        }
        let began = Instant::now();
        if self.soon && lively.load(Ordering::Relaxed) <= lively_max {
            while began.elapsed() < window {
                match try_read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                    read => return read,
                }
            }
        }
        let read = read(buffer);
        self.note(began.elapsed() < window);
        read
    }

    fn note(&mut self, soon: bool) {
        match (std::mem::replace(&mut self.soon, soon), soon) {
            (false, true) => self.pollers.lively.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.pollers.lively.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether a read slept, if polls find nothing `empty` times.
    fn sleeps(poll: &mut BusyPoll, empty: u32) -> bool {
        let (left, slept) = (Cell::new(empty), Cell::new(false));
        let try_read = |_: &mut [u8]| match left.get() {
            0 => Ok(1),
            some => {
                left.set(some - 1);
                Err(io::ErrorKind::WouldBlock.into())
            }
        };
        let read = |_: &mut [u8]| {
            slept.set(true);
            Ok(1)
        };
        assert_eq!(poll.read(&mut [0], try_read, read).unwrap(), 1);
        slept.get()
    }

    fn pollers(window: Duration) -> Arc<Pollers> {
        Arc::new(Pollers { lively_max: 1, ..Pollers::new(window) })
    }

    #[test]
    fn who_got_a_request_soon_does_not_sleep() {
        let mut poll = BusyPoll::new(&pollers(Duration::MAX));
        assert!(sleeps(&mut poll, 0), "nothing is known of it");
        assert!(!sleeps(&mut poll, 3));
        assert!(!sleeps(&mut poll, 0));
    }

    #[test]
    fn who_waited_long_sleeps() {
        let pollers = pollers(Duration::from_nanos(1));
        let mut poll = BusyPoll::new(&pollers);
        poll.note(true);
        assert!(sleeps(&mut poll, u32::MAX));
        assert_eq!((poll.soon, pollers.lively.load(Ordering::Relaxed)), (false, 0));
    }

    #[test]
    fn where_more_are_lively_nobody_looks() {
        let pollers = pollers(Duration::MAX);
        let (mut one, mut other) = (BusyPoll::new(&pollers), BusyPoll::new(&pollers));
        assert!(sleeps(&mut one, 0) && sleeps(&mut other, 0));
        assert!(sleeps(&mut one, 0) && sleeps(&mut other, 0));
        drop(other);
        assert!(!sleeps(&mut one, 0));
        drop(one);
        assert_eq!(pollers.lively.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_error_is_no_reason_to_look_on() {
        let mut poll = BusyPoll::new(&pollers(Duration::MAX));
        poll.note(true);
        let reset = |_: &mut [u8]| Err(io::ErrorKind::ConnectionReset.into());
        let error = poll.read(&mut [0], reset, |_| unreachable!()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn without_a_window_nobody_looks() {
        let mut poll = BusyPoll::new(&pollers(Duration::ZERO));
        assert!(sleeps(&mut poll, 0) && sleeps(&mut poll, 0));
    }
}
