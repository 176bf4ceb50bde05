//! Wakes one thread at a time that any thread may change. Putting the time off does not wake it.
//!
//! On Linux, this is a timer of the kernel's. Under the model checkers, under miri, on other
//! systems, and where the process may have no more files, the thread sleeps in a [`Sleeper`] and
//! wakes too early if the time was put off meanwhile.

use std::time::Duration;

use crate::measure::clock::now_ns;
#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
use crate::sync::{AtomicBool, Ordering};
use crate::threads::sleeper::Sleeper;

/// How long the thread sleeps at most if the kernel's timer fails: somebody has closed its file, or
/// a filter of system calls came after it was made.
#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
const WITHOUT_TIMER: Duration = Duration::from_millis(4);

pub(crate) struct Alarm {
    bed: Sleeper,
    #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
    timer: Option<timer::Timer>,
    /// The timer could not be set once. A thread that waits for it already does so until
    /// the time before.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
    is_broken: AtomicBool,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self {
            bed: Sleeper::new(),
            #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
            timer: timer::Timer::new().ok(),
            #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
            is_broken: AtomicBool::new(false),
        }
    }

    /// Sets when it goes off, which is now if that time has passed. Calls must not overlap.
    pub(crate) fn set(&self, at_ns: u64) {
        #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
        if let Some(timer) = &self.timer {
            // A filter may be of some threads only: it is broken for good, whoever can set it.
            if timer.set_after(at_ns.saturating_sub(now_ns())).is_err() {
                self.is_broken.store(true, Ordering::Release);
            }
        }
        let _ = at_ns;
    }

    /// To be called after another thread than the one that waits has set an earlier time.
    pub(crate) fn hasten(&self) {
        #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
        if self.timer.is_some() && !self.is_broken.load(Ordering::Acquire) {
            return;
        }
        self.bed.wake();
    }

    /// Waits until it has gone off since the last time, or for a shorter time. `at_ns` is when it
    /// goes off as far as is known.
    pub(crate) fn wait(&self, at_ns: u64) {
        let left = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
        #[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
        if let Some(timer) = &self.timer {
            // A timer that could not be set may never go off.
            if self.is_broken.load(Ordering::Acquire) || timer.wait().is_err() {
                self.bed.sleep(Some(left.min(WITHOUT_TIMER)));
            }
            return;
        }
        if !left.is_zero() {
            self.bed.sleep(Some(left));
        }
    }
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
mod timer {
    use std::os::fd::OwnedFd;

    use rustix::io::{Errno, Result, read};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    pub(super) struct Timer(pub(super) OwnedFd);

    impl Timer {
        pub(super) fn new() -> Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
            let timer = Self(timer);
            // A sandbox may allow the one call and not the other.
            timer.set_after(u64::MAX / 4).map(|()| timer)
        }

        /// Goes off after this time, and not when it was to before.
        pub(super) fn set_after(&self, after_ns: u64) -> Result<()> {
            const SECOND: u64 = 1_000_000_000;
            // 0 would stop it.
            let after_ns = after_ns.max(1);
            let it_value = Timespec {
                tv_sec: (after_ns / SECOND).cast_signed(),
                tv_nsec: (after_ns % SECOND).cast_signed(),
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec).map(drop)
        }

        /// Waits until it has gone off. A signal ends the wait, too.
        pub(super) fn wait(&self) -> Result<()> {
            match read(&self.0, &mut [0_u8; 8]) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error),
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn it_goes_off_also_if_its_time_has_passed() {
        let alarm = Alarm::new();
        for after_ns in [0, 30 * MS] {
            let at_ns = now_ns() + after_ns;
            alarm.set(at_ns);
            while now_ns() < at_ns {
                alarm.wait(at_ns);
            }
        }
        alarm.set(1);
        alarm.wait(1);
    }

    /// As where a filter of system calls comes after the timer was made.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_timer_that_cannot_be_set_is_done_without() {
        use rustix::event::{EventfdFlags, eventfd};
        let never_ready = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (timer, is_broken) = (Some(timer::Timer(never_ready)), AtomicBool::new(false));
        let alarm = Alarm { bed: Sleeper::new(), timer, is_broken };
        let at_ns = now_ns() + 30 * MS;
        alarm.set(at_ns);
        while now_ns() < at_ns {
            alarm.wait(at_ns);
        }
    }

    #[test]
    fn an_earlier_time_ends_the_wait_and_a_later_one_does_not_keep_it_from_ending() {
        let (alarm, over) = (Alarm::new(), AtomicBool::new(false));
        let far_ns = now_ns() + 3_600_000 * MS;
        alarm.set(far_ns);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    alarm.wait(far_ns);
                }
            });
            thread::sleep(Duration::from_millis(5));
            alarm.set(far_ns + MS);
            thread::sleep(Duration::from_millis(5));
            over.store(true, Ordering::Release);
            alarm.set(0);
            alarm.hasten();
        });
    }
}
