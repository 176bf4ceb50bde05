//! Looking for the next request for a while before sleeping.
//!
//! A client with one request at a time sends the next one sooner than a CPU can go to sleep and be woken, above all
//! on a virtual machine. So who got a request soon after the one before looks for the next without sleeping, and stops
//! once one did not come so soon; the kernel's `net.core.busy_poll` and its haltpoll governor
//! (drivers/cpuidle/governors/haltpoll.c) do alike. No CPU is kept from anyone: whoever is to run there runs between
//! two looks, and his time counts.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many connections look at a time.
#[derive(Debug)]
pub(crate) struct Pollers {
    window: Duration,
    count: AtomicUsize,
    max: usize,
}

impl Pollers {
    /// Each looks for `window` at most. Half of the CPUs are for those with something to do.
    pub(crate) fn new(window: Duration) -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        Self { window, count: AtomicUsize::new(0), max: (cpus / 2).max(1) }
    }

    fn enter(&self) -> Option<Poller<'_>> {
        // Counted before it is known, and given back: one may be turned away for another that is. It sleeps, as ever.
        let poller = Poller(self);
        (self.count.fetch_add(1, Ordering::Relaxed) < self.max).then_some(poller)
    }
}

struct Poller<'a>(&'a Pollers);

impl Drop for Poller<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a connection's next request is likely to come soon.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    soon: bool,
}

impl BusyPoll {
    /// Reads by `try_read` while that says `WouldBlock` and it is worth it, else by `read`, which sleeps.
    pub(crate) fn read(
        &mut self,
        pollers: &Pollers,
        buffer: &mut [u8],
        try_read: impl Fn(&mut [u8]) -> io::Result<usize>,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if pollers.window.is_zero() {
            return read(buffer);
        }
        let began = Instant::now();
        if self.soon
            && let Some(_poller) = pollers.enter()
        {
            while began.elapsed() < pollers.window {
                match try_read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                    read => return read,
                }
            }
        }
        let read = read(buffer);
        self.soon = began.elapsed() < pollers.window;
        read
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether a read slept, where polls find nothing `empty` times.
    fn sleeps(poll: &mut BusyPoll, pollers: &Pollers, empty: u32) -> bool {
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
        assert_eq!(poll.read(pollers, &mut [0], try_read, read).unwrap(), 1);
        slept.get()
    }

    #[test]
    fn who_got_a_request_soon_does_not_sleep() {
        let (pollers, mut poll) = (Pollers::new(Duration::MAX), BusyPoll::default());
        assert!(sleeps(&mut poll, &pollers, 0), "nothing is known of it");
        assert!(!sleeps(&mut poll, &pollers, 3));
        assert!(!sleeps(&mut poll, &pollers, 0));
    }

    #[test]
    fn who_waited_long_sleeps() {
        let (pollers, mut poll) = (Pollers::new(Duration::from_nanos(1)), BusyPoll { soon: true });
        assert!(sleeps(&mut poll, &pollers, u32::MAX));
        assert!(!poll.soon);
    }

    #[test]
    fn only_so_many_look_at_a_time() {
        let pollers = Pollers { max: 1, ..Pollers::new(Duration::MAX) };
        let one = pollers.enter();
        assert!(sleeps(&mut BusyPoll { soon: true }, &pollers, 0));
        drop(one);
        assert!(!sleeps(&mut BusyPoll { soon: true }, &pollers, 0));
        assert_eq!(pollers.count.into_inner(), 0);
    }

    #[test]
    fn an_error_is_no_reason_to_look_on() {
        let (pollers, mut poll) = (Pollers::new(Duration::MAX), BusyPoll { soon: true });
        let reset = |_: &mut [u8]| Err(io::ErrorKind::ConnectionReset.into());
        let error = poll.read(&pollers, &mut [0], reset, |_| unreachable!()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn without_a_window_nobody_looks() {
        assert!(sleeps(&mut BusyPoll { soon: true }, &Pollers::new(Duration::ZERO), 0));
    }
}
