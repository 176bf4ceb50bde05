//! Protection of the working set: what was used within a given number of milliseconds is not
//! evicted.
//!
//! Pages know the epoch of their last use, so this module records when epochs began: enough of them
//! to tell apart times that differ by a 64th of the protected time. A thread that finds the list
//! locked uses the last result instead, so no thread waits.

use std::collections::VecDeque;
use std::time::Instant;

use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::lock;

/// How many parts of the protected time are told apart.
const PARTS: u64 = 64;

#[derive(Debug)]
pub(crate) struct MinTtl {
    /// 0: nothing is protected.
    ms: AtomicU64,
    /// The first epoch whose pages are protected.
    from: AtomicU32,
    births: Mutex<Births>,
    start: Instant,
}

impl MinTtl {
    pub(crate) fn new() -> Self {
        Self {
            ms: AtomicU64::new(0),
            from: AtomicU32::new(0),
            births: Mutex::new(Births::default()),
            start: Instant::now(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    #[cfg(feature = "control")]
    pub(crate) fn get(&self) -> u64 {
        self.ms.load(Relaxed)
    }

    /// From this epoch on, protects what is used for this many milliseconds.
    pub(crate) fn set(&self, ms: u64, epoch: u32) {
        let mut births = lock(&self.births);
        if self.ms.swap(ms, Relaxed) == 0 {
            births.0.clear();
        }
        births.began(epoch, self.now_ms(), ms);
        self.from.store(births.protected(self.now_ms(), ms), Relaxed);
    }

    /// Notes that an epoch begins.
    pub(crate) fn epoch_began(&self, epoch: u32) {
        let ms = self.ms.load(Relaxed);
        if ms > 0 {
            lock(&self.births).began(epoch, self.now_ms(), ms);
        }
    }

    /// Turns the clock back by this many epochs.
    pub(crate) fn turn_back(&self, epochs: u32) {
        let mut births = lock(&self.births);
        births.0.iter_mut().for_each(|(epoch, _)| *epoch = epoch.saturating_sub(epochs));
        self.from.store(self.from.load(Relaxed).saturating_sub(epochs), Relaxed);
    }

    /// How many epochs before this one the last use of a protected page may be. `None` if nothing
    /// is protected.
    pub(crate) fn spared(&self, epoch: u32) -> Option<u32> {
        let ms = self.ms.load(Relaxed);
        if ms == 0 {
            return None;
        }
        if let Ok(mut births) = self.births.try_lock() {
            self.from.store(births.protected(self.now_ms(), ms), Relaxed);
        }
        Some(epoch.saturating_sub(self.from.load(Relaxed)))
    }
}

/// Epochs and the times at which they began, the oldest first; epochs in between may be missing.
/// The time of the first one need not be known.
#[derive(Debug, Default)]
struct Births(VecDeque<(u32, u64)>);

impl Births {
    fn began(&mut self, epoch: u32, now_ms: u64, ttl_ms: u64) {
        if self.0.back().is_none_or(|&(_, last)| now_ms > last + ttl_ms / PARTS) {
            self.0.push_back((epoch, now_ms));
        }
    }

    /// The first epoch that ended less than `ttl_ms` ago, or the first one that is known.
    fn protected(&mut self, now_ms: u64, ttl_ms: u64) -> u32 {
        let is_over = |&(_, ends): &(u32, u64)| now_ms.saturating_sub(ends) >= ttl_ms;
        while self.0.get(1).is_some_and(is_over) {
            self.0.pop_front();
        }
        self.0.front().map_or(0, |&(epoch, _)| epoch)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_protected_for_so_long_after_their_end() {
        const TTL: u64 = 1000;
        let mut births = Births::default();
        // An epoch every 3 ms, beginning with the one in which protection was switched on.
        for epoch in 7..2000 {
            let now = u64::from(epoch) * 3;
            births.began(epoch, now, TTL);
            let from = births.protected(now, TTL);
            let exact = epoch.saturating_sub(TTL as u32 / 3 + 1).max(7);
            assert!(from <= exact, "epoch {exact} ended {TTL} ms ago or less, but from {from}");
            assert!(from + TTL as u32 / PARTS as u32 + 1 >= exact, "{from} is long before {exact}");
            assert!(births.0.len() <= PARTS as usize + 2);
        }
        // If no epoch begins any more, the last one is protected.
        assert!(births.protected(100_000, TTL) > 1990);
    }

    #[test]
    fn nothing_is_protected_unless_asked_for() {
        let protection = MinTtl::new();
        protection.epoch_began(5);
        assert_eq!(protection.spared(9), None);
        protection.set(3_600_000, 9);
        assert_eq!(protection.spared(9), Some(0));
        protection.epoch_began(10);
        assert_eq!(protection.spared(20), Some(11));
        protection.set(0, 20);
        assert_eq!(protection.spared(20), None);
        protection.set(3_600_000, 30);
        protection.turn_back(25);
        assert_eq!(protection.spared(10), Some(5));
    }
}
