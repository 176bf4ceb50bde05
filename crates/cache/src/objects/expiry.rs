//! When entries expire: a given time after they were written, which may be their own, or after they
//! were last read.

use std::time::Duration;

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// How long an entry lives, if it has a time of its own.
pub(super) type Own<K, V> = dyn Fn(&K, &V) -> Option<Duration> + Send + Sync;

/// How long entries live.
pub(super) struct Lifetimes<K, V> {
    /// After they were written.
    pub(super) live: Option<Duration>,
    /// After they were last read or written.
    pub(super) idle: Option<Duration>,
    /// After each of them was written.
    pub(super) own: Option<Box<Own<K, V>>>,
}

impl<K, V> Lifetimes<K, V> {
    pub(super) const ENDLESS: Self = Self { live: None, idle: None, own: None };

    pub(super) fn is_endless(&self) -> bool {
        self.live.is_none() && self.idle.is_none() && self.own.is_none()
    }

    /// For how long this entry lives once it is written; `None`: for ever.
    pub(super) fn of(&self, key: &K, value: &V) -> Option<Duration> {
        let own = self.own.as_ref().and_then(|own| own(key, value));
        match (own, self.live) {
            (Some(own), Some(all)) => Some(own.min(all)),
            (own, all) => own.or(all),
        }
    }
}

/// The times of the frames of a shard. Empty if entries live forever.
#[derive(Debug, Default)]
pub(super) struct Times {
    frames: Vec<Span>,
    /// The frame that was looked at last.
    hand: usize,
}

/// Nanoseconds on the cache's clock.
#[derive(Debug, Default)]
struct Span {
    /// `u64::MAX`: never.
    ends: u64,
    used: AtomicU64,
}

impl Times {
    /// The entry was written, and lives for so long.
    pub(super) fn write(&mut self, frame: u32, now: Duration, lives: Option<Duration>) {
        let at = frame as usize;
        if at >= self.frames.len() {
            self.frames.resize_with(at + 1, Span::default);
        }
        let ends = lives.map_or(u64::MAX, |lives| nanos(now.saturating_add(lives)));
        self.frames[at] = Span { ends, used: AtomicU64::new(nanos(now)) };
    }

    pub(super) fn read(&self, frame: u32, now: Duration) {
        self.frames[frame as usize].used.store(nanos(now), Relaxed);
    }

    pub(super) fn is_over(&self, frame: u32, now: Duration, idle: Option<Duration>) -> bool {
        let Span { ends, used } = &self.frames[frame as usize];
        let now = nanos(now);
        let unused_for = now.saturating_sub(used.load(Relaxed));
        let ended = *ends != u64::MAX && now >= *ends;
        ended || idle.is_some_and(|idle| unused_for >= nanos(idle))
    }

    pub(super) fn move_entry(&mut self, from: u32, to: u32) {
        if (from as usize) < self.frames.len() {
            self.frames.swap(from as usize, to as usize);
        }
    }

    pub(super) fn truncate(&mut self, frames: usize) {
        self.frames.truncate(frames);
        self.frames.shrink_to_fit();
    }

    /// The next frame to look at, in turn.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.hand = if self.hand + 1 < self.frames.len() { self.hand + 1 } else { 0 };
        (self.hand < self.frames.len()).then_some(self.hand as u32)
    }
}

/// Saturates after 584 years.
fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}
