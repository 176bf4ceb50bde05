//! How busy the machine's disks are.

use std::time::Duration;
#[cfg(not(shuttle))]
use std::time::Instant;

use crate::sync::{AtomicU64, Ordering};
use crate::system::System;

/// How often somebody looks, at most: that takes some 20 us.
const LOOKS: Duration = Duration::from_millis(50);

/// Looks now and then at how much waits to be written, whoever wrote it.
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
    use crate::choices::policy::{Policy, UNWRITTEN_MAX};
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
