//! Where the monitor sleeps until its next look or the next timer, and who wakes it earlier.

use crate::monitor::alarm::Alarm;
use crate::monitor::next_look::NextLook;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence, lock};

/// What the alarm is set to while the monitor is awake, and for those that do not take the lock
/// while the alarm is being set.
const AWAKE: u64 = u64::MAX;

/// See the module.
pub(crate) struct MonitorBed {
    pub(crate) next_look: NextLook,
    alarm: Alarm,
    /// What the alarm is set to. Whoever changes what it should be set to does so before taking the
    /// lock, so the last one to take it sets the right time.
    set_to_ns: Mutex<u64>,
    /// The same, for those that do not take the lock.
    hint_ns: AtomicU64,
    /// Somebody wants the monitor to look, not only to fire timers.
    called: AtomicBool,
    closed: AtomicBool,
}

impl MonitorBed {
    pub(crate) fn new() -> Self {
        Self {
            next_look: NextLook::new(),
            alarm: Alarm::new(),
            set_to_ns: Mutex::new(AWAKE),
            hint_ns: AtomicU64::new(AWAKE),
            called: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Wakes the monitor to look.
    pub(crate) fn call(&self, next_timer_ns: impl Fn() -> u64) {
        // A swap, because loom lets a thread overlook its own store beside a swap of another's.
        self.called.swap(true, Ordering::Release);
        self.set_alarm(next_timer_ns);
    }

    /// Wakes the monitor to end.
    pub(crate) fn close(&self, next_timer_ns: impl Fn() -> u64) {
        self.closed.store(true, Ordering::Release);
        self.call(next_timer_ns);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether the monitor is to look: it was called since this was asked last, or it is time.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.called.swap(false, Ordering::Acquire) || now_ns >= self.next_look.at_ns()
    }

    /// To be called after a timer was set for `at_ns`.
    pub(crate) fn timer_set(&self, at_ns: u64, next_timer_ns: impl Fn() -> u64) {
        // Pairs with the fence of `set`: either we see that the alarm is being set, or to when, or
        // whoever sets it sees the timer.
        fence(Ordering::SeqCst);
        if at_ns < self.hint_ns.load(Ordering::Relaxed) {
            self.set_alarm(next_timer_ns);
        }
    }

    /// To be called by others than the monitor after the time of its next look has changed.
    pub(crate) fn set_alarm(&self, next_timer_ns: impl Fn() -> u64) {
        let mut set_to_ns = lock(&self.set_to_ns);
        let (before_ns, at_ns) = (*set_to_ns, self.set(&mut set_to_ns, next_timer_ns));
        if at_ns < before_ns {
            self.alarm.hasten();
        }
    }

    /// The monitor sleeps until there may be something to do for it.
    pub(crate) fn sleep(&self, next_timer_ns: impl Fn() -> u64) {
        let at_ns = self.set(&mut lock(&self.set_to_ns), next_timer_ns);
        self.alarm.wait(at_ns);
        *lock(&self.set_to_ns) = AWAKE;
    }

    /// Sets the alarm, and returns to when.
    fn set(&self, set_to_ns: &mut u64, next_timer_ns: impl Fn() -> u64) -> u64 {
        // Pairs with the fence of `timer_set`: either we see the timer, or whoever sets it waits
        // for the lock.
        self.hint_ns.store(AWAKE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let at_ns = self.wakes_ns(next_timer_ns);
        self.hint_ns.store(at_ns, Ordering::Relaxed);
        if std::mem::replace(set_to_ns, at_ns) != at_ns {
            self.alarm.set(at_ns);
        }
        at_ns
    }

    /// When the monitor is to wake.
    fn wakes_ns(&self, next_timer_ns: impl Fn() -> u64) -> u64 {
        if self.called.load(Ordering::Relaxed) || self.is_closed() {
            return 0;
        }
        self.next_look.at_ns().min(next_timer_ns())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::measure::clock::now_ns;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_close_that_comes_as_the_monitor_looks_is_not_slept_through() {
        let bed = MonitorBed::new();
        assert!(!bed.is_closed());
        bed.close(|| u64::MAX);
        assert!(bed.is_due(now_ns()), "it looks");
        assert!(bed.next_look.rest(now_ns(), || true));
        let began_ns = now_ns();
        bed.sleep(|| u64::MAX);
        assert!(now_ns() - began_ns < 30_000 * MS);
    }

    #[test]
    fn a_timer_that_is_set_while_somebody_puts_the_look_off_is_not_slept_through() {
        let bed = Arc::new(MonitorBed::new());
        let (now_ns, timer_ns) = (now_ns(), Arc::new(AtomicU64::new(u64::MAX)));
        bed.next_look.set(now_ns + 3 * MS);
        bed.set_alarm(|| u64::MAX);
        assert!(bed.next_look.rest(now_ns, || true));
        let other_sets = || {
            let (bed, timer_ns) = (Arc::clone(&bed), Arc::clone(&timer_ns));
            thread::spawn(move || {
                let timer_ns = || timer_ns.load(Ordering::SeqCst);
                bed.timer_set(timer_ns(), timer_ns);
            })
        };
        let other = std::cell::OnceCell::new();
        bed.set_alarm(|| {
            let read_ns = timer_ns.swap(now_ns + 5 * MS, Ordering::SeqCst);
            other.get_or_init(other_sets);
            // It may wait for the lock by now.
            thread::sleep(std::time::Duration::from_millis(20));
            read_ns
        });
        other.into_inner().unwrap().join().unwrap();
        assert_eq!(*lock(&bed.set_to_ns), now_ns + 5 * MS);
    }
}
