//! Chooses how writes are made durable that must be when they are answered: each by itself, or many
//! by one sync.
//!
//! A write by itself (`RWF_DSYNC`) waits for nothing that others have written, but each flushes the
//! device. Plain writes that come at the same time share a sync of the engine, which also writes
//! what others have left dirty. It is measured which way answers more. Lone writers go by
//! themselves, and so do all writers while much is dirty, since writing that takes longer than any
//! flush. Measured: 2.3 s for 256 MiB.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use homing_durable::{Pace, Sharing, Way};

/// Writes do not wait for more bytes than this that others have left dirty. Guessed: a few flushes'
/// worth.
const DIRTY_MAX: u64 = 4 << 20;

/// What is known of the writes of one file.
#[derive(Debug)]
pub(crate) struct Forced {
    state: Mutex<State>,
    /// Bytes written plainly since the last sync of the file began. It is not known how many of
    /// them the kernel has written by itself.
    dirty: AtomicU64,
}

#[derive(Debug)]
struct State {
    pace: Pace,
    under_way: usize,
    /// The most writes at a time since there were none.
    most: usize,
}

impl Forced {
    pub(crate) fn new(pace: Pace) -> Self {
        let state = Mutex::new(State { pace, under_way: 0, most: 0 });
        Self { state, dirty: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this many bytes were written that need not be durable.
    pub(crate) fn left_dirty(&self, length: usize) {
        self.dirty.fetch_add(length as u64, Ordering::Relaxed);
    }

    /// Notes that a sync of the file begins.
    pub(crate) fn syncs(&self) {
        self.dirty.store(0, Ordering::Relaxed);
    }

    /// Notes that a write begins, and chooses how, of the ways that are allowed.
    pub(crate) fn begin(&self, sharing: Sharing, now: Instant) -> Way {
        let mut state = self.state();
        state.pace.allow(sharing);
        let is_lone = state.under_way == 0 && state.most <= 1;
        if state.under_way == 0 {
            state.most = 0;
            state.pace.idle(is_lone, now);
        }
        state.under_way += 1;
        state.most = state.most.max(state.under_way);
        let is_much = self.dirty.load(Ordering::Relaxed) > DIRTY_MAX;
        let by_itself = sharing == Sharing::Auto && (is_lone || is_much);
        if by_itself { Way::Beside } else { state.pace.way() }
    }

    /// Notes that a write has ended.
    pub(crate) fn end(&self, now: Instant) {
        let mut state = self.state();
        state.under_way -= 1;
        state.pace.answered(1, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_writer_goes_by_itself_and_others_as_is_best() {
        let (forced, now) = (Forced::new(Pace::new(Way::Together)), Instant::now());
        for _ in 0..3 {
            assert_eq!(forced.begin(Sharing::Auto, now), Way::Beside);
            forced.end(now);
        }
        assert_eq!(
            [(); 3].map(|()| forced.begin(Sharing::Auto, now)),
            [Way::Beside, Way::Together, Way::Together]
        );
        (0..3).for_each(|_| forced.end(now));
        // They were three at a time: the first of them is not alone when they come again.
        assert_eq!([(); 2].map(|()| forced.begin(Sharing::Auto, now)), [Way::Together; 2]);
        (0..2).for_each(|_| forced.end(now));
        assert_eq!(forced.begin(Sharing::Auto, now), Way::Together);
        forced.end(now);
        assert_eq!(forced.begin(Sharing::Auto, now), Way::Beside);
    }

    #[test]
    fn what_others_have_left_is_not_waited_for_where_it_is_much() {
        let (forced, now) = (Forced::new(Pace::new(Way::Together)), Instant::now());
        forced.begin(Sharing::Auto, now);
        forced.left_dirty(4 << 20);
        assert_eq!(forced.begin(Sharing::Auto, now), Way::Together);
        forced.left_dirty(1);
        assert_eq!(forced.begin(Sharing::Auto, now), Way::Beside);
        forced.syncs();
        assert_eq!(forced.begin(Sharing::Auto, now), Way::Together);
    }
    #[test]
    fn what_is_set_holds_for_all() {
        let (forced, now) = (Forced::new(Pace::new(Way::Together)), Instant::now());
        assert_eq!(forced.begin(Sharing::Together, now), Way::Together, "also for a lone one");
        forced.left_dirty(5 << 20);
        assert_eq!(forced.begin(Sharing::Together, now), Way::Together, "whatever is dirty");
        forced.syncs();
        assert_eq!(forced.begin(Sharing::Beside, now), Way::Beside);
    }
}
