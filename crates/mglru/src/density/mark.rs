//! What a hit leaves on its frame.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::prefetch::prefetch;

/// The epoch of a frame's last use, and in how many epochs the frame was used since its past was
/// last brought up to date. It takes four bytes, which the owner may keep beside the page.
// The lower 16 bits are those of the epoch. The upper 16 are the uses, which saturate below
// `UNUSED`.
#[derive(Debug, Default)]
pub struct Mark(AtomicU32);

/// The uses of a page that nobody has asked for yet.
pub(super) const UNUSED: u16 = u16::MAX;

/// Gives the marks of frames.
pub trait Marks {
    /// The mark of a frame, if it holds a page.
    fn mark(&self, frame: u32) -> Option<&Mark>;

    /// Announces that the mark of this frame, and what else the owner keeps of it, will be looked
    /// at soon.
    fn prefetch(&self, frame: u32);
}

impl Marks for [Mark] {
    fn mark(&self, frame: u32) -> Option<&Mark> {
        self.get(frame as usize)
    }

    fn prefetch(&self, frame: u32) {
        if let Some(mark) = self.get(frame as usize) {
            prefetch(mark);
        }
    }
}

impl Mark {
    /// The mark of a page that is put in in this epoch.
    pub fn new(epoch: u32) -> Self {
        Self(AtomicU32::new(epoch as u16 as u32))
    }

    /// The mark of a page that is put in in this epoch before anybody has asked for it: its first
    /// use is not a reuse.
    pub fn ahead(epoch: u32) -> Self {
        Self(AtomicU32::new((UNUSED as u32) << 16 | epoch as u16 as u32))
    }

    /// Notes a use: one relaxed store, if it is the first use in this epoch. Returns whether it is:
    /// the [`Learner`](super::Learner) does not need to hear of the others.
    pub fn used(&self, epoch: u32) -> bool {
        let epoch = epoch as u16;
        let (last, uses) = self.get();
        let first = last != epoch || uses == UNUSED;
        if first {
            // If two threads do this at the same time, only a use is lost.
            let uses = if uses == UNUSED { 0 } else { (uses + 1).min(UNUSED - 1) };
            self.0.store((uses as u32) << 16 | epoch as u32, Ordering::Relaxed);
        }
        first
    }

    /// Whether anybody has asked for the page.
    pub(super) fn is_used(&self) -> bool {
        self.get().1 != UNUSED
    }

    /// Takes over what another mark holds.
    pub(super) fn copy(&self, other: &Self) {
        self.0.store(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn set(&self, epoch: u16) {
        self.0.store(epoch as u32, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> (u16, u16) {
        let mark = self.0.load(Ordering::Relaxed);
        (mark as u16, (mark >> 16) as u16)
    }

    /// If the last use was before this epoch, moves it to this epoch.
    pub(super) fn not_before(&self, oldest: u16) {
        let (last, uses) = self.get();
        if before(last, oldest) {
            self.0.store((uses as u32) << 16 | oldest as u32, Ordering::Relaxed);
        }
    }
}

/// Whether an epoch comes before another one, which is at most 32,767 later.
pub(super) fn before(epoch: u16, other: u16) -> bool {
    other.wrapping_sub(epoch).cast_signed() > 0
}
