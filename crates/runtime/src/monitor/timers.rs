//! Work that is to be queued at a given time: kept in the order of these times, and fired by the
//! monitor's thread.

use std::collections::BTreeMap;

use homing_topology::CpuId;

use crate::item::{drop_quietly, quietly};
use crate::sync::{Mutex, lock};

/// What is left to do elsewhere.
pub(crate) type Rest = Box<dyn FnOnce() + Send>;

/// What a timer does when its time has come.
pub(crate) trait Fire: Send {
    /// The timer of this instance, which was set on this CPU, has run out. Returns what may drop
    /// the last reference to what the user's function holds: on the monitor's thread such a drop
    /// could wait for a timer.
    fn fire(self: Box<Self>, generation: u32, cpu: CpuId) -> Option<Rest>;

    /// The runtime ends, so the timer will not fire.
    fn abandon(&self, generation: u32);
}

/// A timer's place in the order: its time in nanoseconds, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey(u64, u64);

pub(crate) struct Timer {
    pub(crate) what: Box<dyn Fire>,
    pub(crate) generation: u32,
    pub(crate) cpu: CpuId,
}

/// All timers of a runtime.
#[derive(Default)]
pub(crate) struct Timers {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    timers: BTreeMap<TimerKey, Timer>,
    last_number: u64,
    closed: bool,
}

impl Timers {
    /// Sets a timer; gives it back if the runtime has ended.
    pub(crate) fn set(&self, at_ns: u64, timer: Timer) -> Result<TimerKey, Timer> {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return Err(timer);
        }
        inner.last_number += 1;
        let key = TimerKey(at_ns, inner.last_number);
        inner.timers.insert(key, timer);
        Ok(key)
    }

    /// Takes a timer out, unless it is gone.
    pub(crate) fn remove(&self, key: TimerKey) {
        let timer = lock(&self.inner).timers.remove(&key);
        // Not under the lock: it may be the last reference.
        drop(timer);
    }

    /// Takes out the next timer if its time has come.
    pub(crate) fn due(&self, now_ns: u64) -> Option<Timer> {
        let mut inner = lock(&self.inner);
        let next = inner.timers.first_entry().filter(|first| first.key().0 <= now_ns)?;
        Some(next.remove())
    }

    /// When the next timer is due; the end of time if there is none.
    pub(crate) fn next_ns(&self) -> u64 {
        lock(&self.inner).timers.first_key_value().map_or(u64::MAX, |(key, _)| key.0)
    }

    /// Refuses timers from now on, and abandons those that are set.
    pub(crate) fn close(&self) {
        let timers = {
            let mut inner = lock(&self.inner);
            inner.closed = true;
            std::mem::take(&mut inner.timers)
        };
        for timer in timers.into_values() {
            // The timer may hold the last reference to what the user's function holds.
            quietly(|| timer.what.abandon(timer.generation));
            drop_quietly(timer);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Clone, Default)]
    struct Last(Arc<AtomicU32>);

    impl Fire for Last {
        fn fire(self: Box<Self>, generation: u32, _: CpuId) -> Option<Rest> {
            self.0.store(generation, Ordering::Relaxed);
            None
        }
        fn abandon(&self, generation: u32) {
            self.0.store(1000 + generation, Ordering::Relaxed);
        }
    }

    #[test]
    fn timers_come_in_order_of_time_and_of_setting() {
        let (timers, last) = (Timers::default(), Last::default());
        let cpu = CpuId::new(0).unwrap();
        let timer = |generation| Timer { what: Box::new(last.clone()), generation, cpu };
        assert!(timers.set(50, timer(1)).is_ok());
        let Ok(first) = timers.set(20, timer(2)) else { panic!("before it") };
        assert!(timers.set(50, timer(3)).is_ok());
        assert_eq!(timers.next_ns(), 20);
        timers.remove(first);
        assert!(timers.due(49).is_none());
        let generations: Vec<_> =
            std::iter::from_fn(|| timers.due(50)).map(|timer| timer.generation).collect();
        assert_eq!(generations, [1, 3]);
        assert!(timers.set(60, timer(4)).is_ok());
        timers.close();
        assert_eq!(last.0.load(Ordering::Relaxed), 1004);
        assert!(timers.set(60, timer(5)).is_err_and(|timer| timer.generation == 5));
        assert_eq!(timers.next_ns(), u64::MAX);
    }
}
