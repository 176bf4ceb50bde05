//! What is known of each frame, in 13 bytes: the marks that accesses leave, the state of its page,
//! and its neighbours on a list.
//!
//! Groups share one table of frames, and each has its own [`Lruvec`](super::Lruvec). Letters say
//! who writes a field: `A` anybody, at any time; `L` only the thread that exclusively holds the
//! lruvec to which the frame belongs, or that takes a frame that belongs to none. All fields are
//! relaxed atomics. The way in which a thread gets hold of the lruvec orders `L` fields, and
//! nothing depends on the order of `A` fields. A mark may be lost when an access meets another one,
//! or the sweep that clears it. A page then looks used once less than it was.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::Type;

/// A frame: an index into whatever its owner keeps pages in.
pub type Frame = u32;

/// No frame.
pub(super) const NIL: Frame = Frame::MAX;

/// The frames of a cache.
#[derive(Debug)]
pub struct Frames {
    /// `A` What accesses leave, 64 frames to a cache line.
    marks: Box<[AtomicU8]>,
    /// `L` The state of the frame's page.
    states: Box<[AtomicU32]>,
    /// `L` The neighbours on its list.
    links: Box<[Link]>,
}

#[derive(Debug)]
struct Link {
    newer: AtomicU32,
    older: AtomicU32,
}

/// What accesses have left on a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(u8);

const REFERENCED: u8 = 1;
const COUNT_ONE: u8 = 2;
const COUNT: u8 = 3 * COUNT_ONE;
const WORKINGSET: u8 = 8;
const ACCESSED: u8 = 16;

impl Frames {
    /// Makes this many frames, all free.
    ///
    /// # Panics
    ///
    /// If that is more than 2³² - 1.
    pub fn new(count: usize) -> Self {
        assert!(count <= NIL as usize, "frames are numbered with 32 bits");
        let link = |_| Link { newer: AtomicU32::new(NIL), older: AtomicU32::new(NIL) };
        Self {
            marks: (0..count).map(|_| AtomicU8::new(0)).collect(),
            states: (0..count).map(|_| AtomicU32::new(0)).collect(),
            links: (0..count).map(link).collect(),
        }
    }

    /// The number of frames.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Notes an access by a read or write call. It costs a load and, until the page counts as part
    /// of the working set, a store.
    #[inline]
    pub fn access(&self, frame: Frame) {
        let mark = &self.marks[frame as usize];
        let old = mark.load(Relaxed);
        let new = Marks(old).accessed_again().0;
        if new != old {
            mark.store(new, Relaxed);
        }
    }

    /// Notes an access through a mapping. It costs a load and, if it is the first one since the
    /// last sweep, a store. Nothing is counted: sweeps find the mark and clear it.
    #[inline]
    pub fn touch(&self, frame: Frame) {
        let mark = &self.marks[frame as usize];
        let old = mark.load(Relaxed);
        if old & ACCESSED == 0 {
            mark.store(old | ACCESSED, Relaxed);
        }
    }

    /// What accesses have left on a frame.
    #[inline]
    pub fn marks(&self, frame: Frame) -> Marks {
        Marks(self.marks[frame as usize].load(Relaxed))
    }

    pub(super) fn set_marks(&self, frame: Frame, marks: Marks) {
        self.marks[frame as usize].store(marks.0, Relaxed);
    }

    #[inline]
    pub(super) fn state(&self, frame: Frame) -> State {
        State(self.states[frame as usize].load(Relaxed))
    }

    pub(super) fn set_state(&self, frame: Frame, state: State) {
        self.states[frame as usize].store(state.0, Relaxed);
    }

    pub(super) fn newer(&self, frame: Frame) -> Frame {
        self.links[frame as usize].newer.load(Relaxed)
    }

    pub(super) fn older(&self, frame: Frame) -> Frame {
        self.links[frame as usize].older.load(Relaxed)
    }

    pub(super) fn set_newer(&self, frame: Frame, newer: Frame) {
        self.links[frame as usize].newer.store(newer, Relaxed);
    }

    pub(super) fn set_older(&self, frame: Frame, older: Frame) {
        self.links[frame as usize].older.store(older, Relaxed);
    }
}

impl Marks {
    /// The marks of a page that was evicted with this many references and came back.
    pub(super) fn restored(refs: u8, workingset: bool) -> Self {
        Self(if workingset { WORKINGSET } else { refs.saturating_sub(1).min(3) * COUNT_ONE })
    }

    /// How often calls have accessed the page since it came to its generation: 0 to 4, where 4
    /// means 4 or more.
    pub const fn refs(self) -> u8 {
        if self.0 & REFERENCED == 0 { 0 } else { (self.0 & COUNT) / COUNT_ONE + 1 }
    }

    /// Whether it is part of the working set.
    pub const fn workingset(self) -> bool {
        self.0 & WORKINGSET != 0
    }

    /// Whether it was accessed through a mapping since the last sweep.
    pub const fn accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// The tier: 3 for the working set, otherwise the binary logarithm of the references, rounded
    /// up.
    pub const fn tier(self) -> usize {
        match (self.workingset(), self.refs()) {
            (true, _) => 3,
            (false, 0 | 1) => 0,
            (false, 2) => 1,
            (false, _) => 2,
        }
    }

    /// Whether it was used so often that it goes on to the next generation whatever the feedback
    /// says.
    pub(super) const fn lazily_promoted(self) -> bool {
        self.workingset() && self.refs() == 4
    }

    /// After one more access by a call.
    const fn accessed_again(self) -> Self {
        Self(if self.0 & REFERENCED == 0 {
            self.0 | REFERENCED
        } else if self.0 & COUNT == COUNT {
            self.0 | WORKINGSET
        } else {
            self.0 + COUNT_ONE
        })
    }

    /// Whether there was any access for which CLOCK gives a second chance.
    pub(super) const fn used(self) -> bool {
        self.0 & (REFERENCED | ACCESSED) != 0
    }

    /// The marks in another generation, where counting begins anew.
    #[must_use]
    pub(super) const fn moved(self) -> Self {
        Self(self.0 & !(REFERENCED | COUNT))
    }

    #[must_use]
    pub(super) const fn without_accessed(self) -> Self {
        Self(self.0 & !ACCESSED)
    }

    /// The marks after an access through a mapping was observed, and whether that was the second
    /// observation, which makes the page part of the working set.
    pub(super) const fn observed(self) -> (Self, bool) {
        let rest = self.moved().0;
        if self.0 & (REFERENCED | WORKINGSET) == 0 {
            (Self(rest | REFERENCED), false)
        } else {
            (Self(rest | WORKINGSET), true)
        }
    }
}

/// The state of a page.
///
/// ```text
///  31 .. 16  the lruvec that it belongs to, plus 1; 0: the frame is free
///  9         the frame cannot be evicted
///  8         the page is to be reclaimed as soon as it is written
///  7         it is being written
///  6         it is dirty
///  5         its type
///  4 .. 3    the list on which it stands: that of an older generation, if it was promoted
///  2 .. 0    its generation, plus 1; 0: it stands on no list
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State(u32);

/// Bits of a [`State`] that are set and cleared alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    Dirty = 1 << 6,
    Writing = 1 << 7,
    Reclaim = 1 << 8,
    Unevictable = 1 << 9,
}

impl State {
    pub(super) const FREE: Self = Self(0);

    /// The state of a page that is on no list yet.
    pub(super) const fn new(owner: u16, of: Type) -> Self {
        Self((owner as u32 + 1) << 16 | (of as u32) << 5)
    }

    pub(super) const fn is_free(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn belongs_to(self, owner: u16) -> bool {
        self.0 >> 16 == owner as u32 + 1
    }

    /// The index of its generation, if it is on a list.
    pub(super) const fn generation(self) -> Option<usize> {
        match self.0 & 7 {
            0 => None,
            plus_one => Some(plus_one as usize - 1),
        }
    }

    /// The index of the generation whose list it is on.
    pub(super) const fn list(self) -> usize {
        (self.0 >> 3 & 3) as usize
    }

    pub(super) const fn of(self) -> Type {
        if self.0 & 1 << 5 == 0 { Type::Dirty } else { Type::Clean }
    }

    pub(super) const fn has(self, flag: Flag) -> bool {
        self.0 & flag as u32 != 0
    }

    #[must_use]
    pub(super) const fn with_generation(self, index: usize) -> Self {
        Self(self.0 & !7 | (index as u32 + 1))
    }

    #[must_use]
    pub(super) const fn with_list(self, index: usize) -> Self {
        Self(self.0 & !(3 << 3) | (index as u32) << 3)
    }

    #[must_use]
    pub(super) const fn off_lists(self) -> Self {
        Self(self.0 & !7)
    }

    #[must_use]
    pub(super) const fn with_type(self, of: Type) -> Self {
        Self(self.0 & !(1 << 5) | (of as u32) << 5)
    }

    #[must_use]
    pub(super) const fn with(self, flag: Flag, on: bool) -> Self {
        Self(if on { self.0 | flag as u32 } else { self.0 & !(flag as u32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_count_up_to_the_working_set() {
        let frames = Frames::new(2);
        let seen: Vec<_> = (0..7)
            .map(|_| {
                let marks = frames.marks(1);
                frames.access(1);
                (marks.refs(), marks.tier(), marks.lazily_promoted())
            })
            .collect();
        let tiers = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (4, 3), (4, 3)];
        for (index, (refs, tier)) in tiers.into_iter().enumerate() {
            assert_eq!(seen[index], (refs, tier, index >= 5));
        }
        let moved = frames.marks(1).moved();
        assert_eq!((moved.refs(), moved.tier(), moved.workingset()), (0, 3, true));
        assert_eq!(frames.marks(0), Marks::default());
    }

    #[test]
    fn a_second_observation_makes_the_working_set() {
        let frames = Frames::new(1);
        frames.touch(0);
        assert!(frames.marks(0).accessed() && frames.marks(0).refs() == 0);
        let (first, promoted) = frames.marks(0).without_accessed().observed();
        assert_eq!((first.refs(), promoted), (1, false));
        let (second, promoted) = first.observed();
        assert_eq!((second.refs(), second.workingset(), promoted), (0, true, true));
    }

    #[test]
    fn references_survive_an_eviction() {
        for refs in 0..=4 {
            let marks = Marks::restored(refs, false).accessed_again();
            assert_eq!(marks.refs(), refs.max(1));
        }
        assert_eq!(Marks::restored(2, true).tier(), 3);
    }
}
