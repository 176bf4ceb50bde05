//! Where one worker sleeps: a token that a waker leaves and the worker takes.
//!
//! On Linux, it is a futex; under the model checkers, under miri and on other systems, a condition
//! variable. The word of the futex is a [`Token`], for which there are loom models of their own
//! (`loom_sleeper_tests.rs`).

use std::time::Duration;
#[cfg(not(any(loom, shuttle)))]
use std::time::Instant;

pub(crate) use place::Sleeper;
#[cfg(any(all(loom, test), all(target_os = "linux", not(any(loom, shuttle, miri)))))]
pub(crate) use token::{Token, Wakes};

/// Starts the reactor of async-io, if nobody has yet. If it cannot start, it panics. On a worker
/// that would end the process, so this is called before there are any.
#[cfg(feature = "async-io")]
pub(crate) fn start_reactor() -> Result<(), String> {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    let mut timer = async_io::Timer::after(Duration::from_secs(3600));
    let mut nobody = Context::from_waker(Waker::noop());
    let polled = std::panic::AssertUnwindSafe(|| Pin::new(&mut timer).poll(&mut nobody));
    std::panic::catch_unwind(polled).map(drop).map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(_) => "it panicked".to_owned(),
    })
}

/// The word that a sleeper waits at.
#[cfg(any(all(loom, test), all(target_os = "linux", not(any(loom, shuttle, miri)))))]
mod token {
    use crate::sync::{AtomicU32, Ordering};

    const EMPTY: u32 = 0;
    const TOKEN: u32 = 1;
    const ASLEEP: u32 = 2;
    /// The worker waits in the reactor, where its waker reaches it.
    #[cfg(any(feature = "async-io", loom))]
    const DRIVING: u32 = 3;

    #[derive(Debug)]
    pub(crate) struct Token(AtomicU32);

    /// Whom a thread that leaves a token has to wake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Wakes {
        Nobody,
        /// The worker that waits at the word.
        Sleeper,
        #[cfg(any(feature = "async-io", loom))]
        Driver,
    }

    impl Token {
        /// The word's value while somebody waits at it.
        pub(crate) const ASLEEP: u32 = ASLEEP;

        pub(crate) fn none() -> Self {
            Self(AtomicU32::new(EMPTY))
        }

        pub(crate) fn word(&self) -> &AtomicU32 {
            &self.0
        }

        /// Takes the token. Until there is one, calls `wait`, which returns whether the time is up.
        /// Returns whether there was a token.
        pub(crate) fn take(&self, mut wait: impl FnMut() -> bool) -> bool {
            // `Acquire` pairs with the `Release` of `leave`.
            let go = self.0.compare_exchange(EMPTY, ASLEEP, Ordering::Acquire, Ordering::Acquire);
            if go.is_err() {
                // A swap, because another token may have come since: what its waker wrote before is
                // read after this.
                self.0.swap(EMPTY, Ordering::Acquire);
                return true;
            }
            loop {
                let is_over = wait();
                // One swap tells whether a token came, even at the last moment.
                if self.0.load(Ordering::Relaxed) == TOKEN || is_over {
                    return self.0.swap(EMPTY, Ordering::Acquire) == TOKEN;
                }
            }
        }

        /// Leaves the token.
        #[must_use = "somebody may have to be woken"]
        pub(crate) fn leave(&self) -> Wakes {
            match self.0.swap(TOKEN, Ordering::AcqRel) {
                ASLEEP => Wakes::Sleeper,
                #[cfg(any(feature = "async-io", loom))]
                DRIVING => Wakes::Driver,
                _ => Wakes::Nobody,
            }
        }

        /// To be called when the worker waits in the reactor, or goes on waiting. Returns `false`
        /// if there is a token.
        #[cfg(any(feature = "async-io", loom))]
        pub(crate) fn begin_driving(&self) -> bool {
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            self.0.compare_exchange(EMPTY, DRIVING, success, failure) != Err(TOKEN)
        }

        /// Returns whether there was a token, even at the last moment.
        #[cfg(any(feature = "async-io", loom))]
        pub(crate) fn end_driving(&self) -> bool {
            self.0.swap(EMPTY, Ordering::AcqRel) == TOKEN
        }
    }
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
mod place {
    use rustix::io::Errno;
    use rustix::thread::futex;

    use super::{Duration, Instant, Token, Wakes};

    /// One worker's bed. A wake-up that comes before the sleep is kept.
    #[derive(Debug)]
    pub(crate) struct Sleeper {
        token: Token,
        #[cfg(feature = "async-io")]
        waker: atomic_waker::AtomicWaker,
    }

    impl Sleeper {
        pub(crate) fn new() -> Self {
            Self {
                token: Token::none(),
                #[cfg(feature = "async-io")]
                waker: atomic_waker::AtomicWaker::new(),
            }
        }

        /// [`Sleeper::sleep`], and meanwhile the thread drives the reactor of async-io, if no
        /// other thread does: what becomes ready there is queued by this thread.
        #[cfg(feature = "async-io")]
        pub(crate) fn sleep_driving_io(&self, at_most: Option<Duration>) -> bool {
            use std::pin::Pin;
            use std::task::Poll;

            let mut timer = at_most.map(async_io::Timer::after);
            async_io::block_on(std::future::poll_fn(|context| {
                // The waker first: a thread that leaves the token after this finds it.
                self.waker.register(context.waker());
                if !self.token.begin_driving() {
                    return Poll::Ready(());
                }
                match &mut timer {
                    Some(timer) => Pin::new(timer).poll(context).map(drop),
                    None => Poll::Pending,
                }
            }));
            self.token.end_driving()
        }

        /// Sleeps until [`Sleeper::wake`] was called, and takes its token; or until the time is up.
        /// Returns whether there was a token.
        pub(crate) fn sleep(&self, at_most: Option<Duration>) -> bool {
            let mut began = None;
            self.token.take(|| {
                // A signal or a stray wake-up ends the call: then only the rest of the time is
                // slept.
                let left = at_most.map(|time| {
                    time.saturating_sub(began.get_or_insert_with(Instant::now).elapsed())
                });
                let timeout = left.map(|left| futex::Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()),
                });
                let (word, private) = (self.token.word(), futex::Flags::PRIVATE);
                let ended = futex::wait(word, private, Token::ASLEEP, timeout.as_ref());
                ended == Err(Errno::TIMEDOUT)
            })
        }

        /// Leaves the token, and ends a sleep if there is one.
        pub(crate) fn wake(&self) {
            match self.token.leave() {
                Wakes::Sleeper => {
                    // Fails only on bad addresses.
                    let _ = futex::wake(self.token.word(), futex::Flags::PRIVATE, 1);
                }
                #[cfg(feature = "async-io")]
                Wakes::Driver => self.waker.wake(),
                Wakes::Nobody => {}
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::thread;

        use super::*;

        #[test]
        fn stray_wake_ups_do_not_make_a_sleep_longer() {
            let sleeper = Sleeper::new();
            let began = Instant::now();
            thread::scope(|scope| {
                let slept = scope.spawn(|| sleeper.sleep(Some(Duration::from_millis(50))));
                // As do signals that the sleeping thread handles.
                while !slept.is_finished() {
                    let _ = futex::wake(sleeper.token.word(), futex::Flags::PRIVATE, 1);
                    thread::sleep(Duration::from_millis(1));
                    assert!(began.elapsed() < Duration::from_secs(20), "it sleeps for ever");
                }
                assert!(!slept.join().unwrap());
            });
        }
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, shuttle, miri)))))]
mod place {
    use super::Duration;
    #[cfg(not(any(loom, shuttle)))]
    use super::Instant;
    use crate::sync::{Condvar, Mutex, lock};

    /// Shorter sleeps end under shuttle: a worker's until an item is ripe, and those until timers
    /// of a few nanoseconds. The monitor's are longer, as it would look at everybody.
    #[cfg(shuttle)]
    const SHORT: Duration = Duration::from_micros(500);

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

        /// Sleeps until [`Sleeper::wake`] was called, and takes its token; or until the time is up.
        /// Returns whether there was a token. The model checkers have no time: there the time is
        /// never up, except in shuttle's short sleeps.
        pub(crate) fn sleep(&self, at_most: Option<Duration>) -> bool {
            let mut woken = lock(&self.woken);
            #[cfg(shuttle)]
            if let Some(time) = at_most.filter(|time| !*woken && !time.is_zero() && *time < SHORT) {
                let until_ns = crate::measure::clock::now_ns() + time.as_nanos() as u64;
                drop(woken);
                // Others may go first, then the sleep is over.
                crate::sync::thread::yield_now();
                crate::measure::clock::pass_until(until_ns);
                return std::mem::take(&mut *lock(&self.woken));
            }
            #[cfg(not(any(loom, shuttle)))]
            let began = Instant::now();
            while !*woken {
                let unpoison = std::sync::PoisonError::into_inner;
                #[cfg(not(any(loom, shuttle)))]
                if let Some(time) = at_most {
                    let left = time.saturating_sub(began.elapsed());
                    let (guard, timeout) =
                        self.changed.wait_timeout(woken, left).unwrap_or_else(|e| e.into_inner());
                    woken = guard;
                    if timeout.timed_out() {
                        return std::mem::take(&mut *woken);
                    }
                    continue;
                }
                #[cfg(any(loom, shuttle))]
                let _ = at_most;
                woken = self.changed.wait(woken).unwrap_or_else(unpoison);
            }
            *woken = false;
            true
        }

        /// [`Sleeper::sleep`], because here async-io's own thread drives its reactor.
        #[cfg(feature = "async-io")]
        pub(crate) fn sleep_driving_io(&self, at_most: Option<Duration>) -> bool {
            self.sleep(at_most)
        }

        /// Leaves the token, and ends a sleep if there is one.
        pub(crate) fn wake(&self) {
            *lock(&self.woken) = true;
            self.changed.notify_one();
        }
    }
}
