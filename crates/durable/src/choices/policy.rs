//! What may be done: the settings, and what follows from how much waits to be written.

use crate::choices::early::WriteBack;
use crate::choices::pace::Sharing;
use crate::choices::strategy::Strategy;
use crate::sync::{AtomicU8, AtomicUsize, Ordering};

/// If more bytes than this wait to be written, commits of a filesystem are not tried: they would
/// write other people's data first. Chosen: what a slow disk writes in a third of a second; issuers
/// of small files, thousands at a time, have less.
pub(crate) const UNWRITTEN_MAX: u64 = 32 << 20;

/// What each file of a bulk may have of that itself. Larger files gain nothing from commits.
const OWN: u64 = 64 << 10;

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
