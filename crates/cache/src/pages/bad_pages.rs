//! Pages of a file that could not be written lately. A thread that wants their frames does not try
//! them again at once, because a disk may take long to refuse.

use std::collections::BTreeSet;
use std::ops::Range;

use homing_mglru::density::EPOCHS;

use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex, lock};

/// The most bad pages that are known. Any others are tried whenever their frames are wanted.
const KNOWN_MAX: usize = 4096;

/// See the module. Bad pages are tried again after an epoch, two, four, and in the end each
/// cacheful of requests.
#[derive(Default)]
pub(super) struct BadPages {
    any: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    pages: BTreeSet<u64>,
    /// The epoch of the failure from which on bad pages are left alone, and for how many epochs.
    since: u32,
    wait: u32,
}

impl Known {
    fn are_let_be(&self, epoch: u32) -> bool {
        epoch.wrapping_sub(self.since) < self.wait
    }
}

impl BadPages {
    /// Notes that a page could not be written.
    pub(super) fn note(&self, page: u64, epoch: u32) {
        let mut known = lock(&self.known);
        if !known.are_let_be(epoch) {
            // If failures go on, pages are tried less often.
            let goes_on = epoch.wrapping_sub(known.since) < 2 * known.wait + 1;
            known.wait = if goes_on { (2 * known.wait).clamp(1, EPOCHS as u32) } else { 1 };
            known.since = epoch;
        }
        if known.pages.len() < KNOWN_MAX {
            known.pages.insert(page);
        }
        self.any.store(true, Relaxed);
    }

    /// Notes that these pages could be written.
    pub(super) fn forget(&self, pages: Range<u64>) {
        if self.any.load(Relaxed) {
            let mut known = lock(&self.known);
            let well: Vec<u64> = known.pages.range(pages).copied().collect();
            for page in well {
                known.pages.remove(&page);
            }
            self.any.store(!known.pages.is_empty(), Relaxed);
        }
    }

    /// The first bad page from this page on, before which a run of others has to end.
    pub(super) fn first_from(&self, page: u64) -> Option<u64> {
        if !self.any.load(Relaxed) {
            return None;
        }
        lock(&self.known).pages.range(page..).next().copied()
    }

    /// Whether a page is bad and must not be tried yet.
    pub(super) fn is_let_be(&self, page: u64, epoch: u32) -> bool {
        if !self.any.load(Relaxed) {
            return false;
        }
        let known = lock(&self.known);
        known.are_let_be(epoch) && known.pages.contains(&page)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn they_are_let_be_for_longer_each_time() {
        let bad = BadPages::default();
        assert!(!bad.is_let_be(5, 7));
        let (mut epoch, mut tries) = (7, 0);
        while epoch < 7 + 1000 {
            if !bad.is_let_be(5, epoch) {
                bad.note(5, epoch);
                tries += 1;
            }
            assert!(!bad.is_let_be(6, epoch));
            epoch += 1;
        }
        assert!((1000 / EPOCHS as u32..1000 / EPOCHS as u32 + 10).contains(&tries), "{tries}");
        // After a long time without failures.
        epoch += 10 * EPOCHS as u32;
        bad.note(9, epoch);
        assert!(bad.is_let_be(9, epoch) && !bad.is_let_be(9, epoch + 1));
        assert_eq!([0, 6, 10].map(|page| bad.first_from(page)), [Some(5), Some(9), None]);
        bad.forget(0..9);
        assert_eq!(bad.first_from(0), Some(9));
        bad.forget(9..10);
        assert!(!bad.is_let_be(9, epoch) && bad.first_from(0).is_none());
    }
}
