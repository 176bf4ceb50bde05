//! What may be done: the settings, and how busy the machine's disks are.

use std::time::Duration;
#[cfg(not(shuttle))]
use std::time::Instant;

use crate::choices::early::WriteBack;
use crate::choices::pace::Sharing;
use crate::choices::strategy::Strategy;
use crate::sync::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use crate::system::System;

/// If more bytes than this wait to be written, commits of a filesystem are not tried: they would
/// write other people's data first. Chosen: what a slow disk writes in a third of a second; issuers
/// of small files, thousands at a time, have less.
const UNWRITTEN_MAX: u64 = 32 << 20;

/// What each file of a bulk may have of that itself. Larger files gain nothing from commits.
const OWN: u64 = 64 << 10;

/// How often that is looked at, at most: looking takes some 20 us.
const LOOKS: Duration = Duration::from_millis(50);

/// What may be done now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) strategy: Strategy,
    pub(crate) write_back: WriteBack,
    /// Jobs under way at a time on each filesystem, at least 1; `None`: as many as have been faster
    /// there.
    pub(crate) depth: Option<usize>,
    /// Bytes that wait to be written, whoever wrote them.
    pub(crate) unwritten: u64,
}

impl Policy {
    /// Whether much waits to be written.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded_for(0)
    }

    /// Whether more waits to be written than a bulk of this many small files may have itself.
    pub(crate) fn is_crowded_for(&self, files: usize) -> bool {
        self.unwritten > UNWRITTEN_MAX.saturating_add(OWN.saturating_mul(files as u64))
    }
}

/// The settings; they can change at any time.
#[derive(Debug)]
pub(crate) struct Settings {
    strategy: AtomicU8,
    write_back: AtomicU8,
    sharing: AtomicU8,
    /// 0: whatever has been faster.
    depth: AtomicUsize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: AtomicU8::new(Strategy::Auto as u8),
            write_back: AtomicU8::new(WriteBack::Auto as u8),
            sharing: AtomicU8::new(Sharing::Auto as u8),
            depth: AtomicUsize::new(0),
        }
    }
}

impl Settings {
    pub(crate) fn strategy(&self) -> Strategy {
        let number = self.strategy.load(Ordering::Relaxed);
        let known = Strategy::ALL.into_iter().find(|strategy| *strategy as u8 == number);
        known.unwrap_or_default()
    }

    pub(crate) fn set_strategy(&self, strategy: Strategy) {
        self.strategy.store(strategy as u8, Ordering::Relaxed);
    }

    pub(crate) fn write_back(&self) -> WriteBack {
        let number = self.write_back.load(Ordering::Relaxed);
        let known = WriteBack::ALL.into_iter().find(|known| *known as u8 == number);
        known.unwrap_or_default()
    }

    pub(crate) fn set_write_back(&self, write_back: WriteBack) {
        self.write_back.store(write_back as u8, Ordering::Relaxed);
    }

    pub(crate) fn sharing(&self) -> Sharing {
        let number = self.sharing.load(Ordering::Relaxed);
        let known = Sharing::ALL.into_iter().find(|known| *known as u8 == number);
        known.unwrap_or_default()
    }

    pub(crate) fn set_sharing(&self, sharing: Sharing) {
        self.sharing.store(sharing as u8, Ordering::Relaxed);
    }

    pub(crate) fn depth(&self) -> Option<usize> {
        Some(self.depth.load(Ordering::Relaxed)).filter(|depth| *depth > 0)
    }

    pub(crate) fn set_depth(&self, depth: Option<usize>) {
        self.depth.store(depth.map_or(0, |depth| depth.max(1)), Ordering::Relaxed);
    }
}

/// Looks now and then at how much waits to be written.
#[derive(Debug)]
pub(crate) struct Crowd {
    #[cfg(not(shuttle))]
    began: Instant,
    /// When somebody looked last, in ns since `began`; 0: never.
    looked: AtomicU64,
    unwritten: AtomicU64,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            #[cfg(not(shuttle))]
            began: Instant::now(),
            looked: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
        }
    }
}

impl Crowd {
    /// How many bytes waited to be written when somebody looked last.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Looks, if it is time. Called after callers that were not alone have been answered, and when
    /// a bulk begins.
    pub(crate) fn look(&self, system: &dyn System) {
        if self.is_to_look() {
            let unwritten = system.unwritten().unwrap_or(0);
            self.unwritten.store(unwritten, Ordering::Relaxed);
        }
    }

    /// Whether it is time, and nobody else does it.
    fn is_to_look(&self) -> bool {
        // Under the model checker no time passes.
        #[cfg(shuttle)]
        let now: u64 = 0;
        #[cfg(not(shuttle))]
        let now = crate::engine::nanoseconds(self.began.elapsed());
        let (looked, pause) = (self.looked.load(Ordering::Relaxed), LOOKS.as_nanos() as u64);
        let is_time = looked == 0 || now.saturating_sub(looked) >= pause;
        let (set, fail) = (Ordering::Relaxed, Ordering::Relaxed);
        is_time && self.looked.compare_exchange(looked, now.max(1), set, fail).is_ok()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::{Failure, Kind};

    struct Unwritten(AtomicU64, AtomicU64);

    impl System for Unwritten {
        fn unwritten(&self) -> Option<u64> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Some(self.0.load(Ordering::Relaxed))
        }
        fn sync(&self, _: &File, _: Kind) -> Result<(), Failure> {
            unreachable!()
        }
        fn sync_filesystem(&self, _: &File) -> Result<(), Failure> {
            unreachable!()
        }
        fn check(&self, _: &File) -> Result<(), Failure> {
            unreachable!()
        }
        fn flush_device(&self, _: &File) -> Result<(), Failure> {
            unreachable!()
        }
    }

    #[test]
    fn a_crowd_is_seen_and_looked_for_seldom() {
        let system = Unwritten(AtomicU64::new(UNWRITTEN_MAX + 1), AtomicU64::new(0));
        let mut crowd = Crowd::default();
        let looks = |crowd: &Crowd| {
            crowd.look(&system);
            Policy { unwritten: crowd.unwritten(), ..Policy::default() }.is_crowded()
        };
        assert!((0..1000).all(|_| looks(&crowd)));
        system.0.store(UNWRITTEN_MAX, Ordering::Relaxed);
        let count = system.1.load(Ordering::Relaxed);
        let most = 1 + crowd.began.elapsed().as_millis() as u64 / 50;
        assert!((1..=most).contains(&count), "{count} looks");
        crowd.looked = AtomicU64::new(0);
        assert!(!looks(&crowd));
    }

    #[test]
    fn what_a_bulk_has_itself_is_no_crowd() {
        let policy = Policy { unwritten: UNWRITTEN_MAX + 10_000 * 4096, ..Policy::default() };
        assert!(policy.is_crowded() && !policy.is_crowded_for(10_000));
        let strangers = Policy { unwritten: 1 << 30, ..Policy::default() };
        assert!(strangers.is_crowded_for(10_000));
    }
}
