//! The generations of one group's pages: where a page comes in, how it leaves, and what is reported
//! about it meanwhile. Aging, eviction and CLOCK have their own files.
//!
//! The lists of a generation have the index `seq % 4`. The generation of a page may be younger than
//! the list that it is on: the page was promoted, and moves to its list when eviction reaches it.

use std::sync::Arc;

use super::age::WalkStats;
use super::feedback::Feedback;
use super::filter::Filters;
use super::frames::{Flag, Frame, Frames, Marks, State};
use super::list::List;
use super::token::Token;
use super::tunables::{Enabled, MAX_NR_GENS, MIN_NR_GENS, Tunables, TunablesError};
use super::{Type, Victim};

/// The pages of one group.
#[derive(Debug)]
pub struct Lruvec {
    pub(super) frames: Arc<Frames>,
    pub(super) owner: u16,
    pub(super) tunables: Tunables,
    /// The number of the youngest generation; the first is 0.
    pub(super) max_seq: u64,
    /// The numbers of the oldest generation of each type.
    pub(super) min_seq: [u64; 2],
    /// When generations were born, in milliseconds.
    pub(super) births_ms: [u64; MAX_NR_GENS as usize],
    pub(super) lists: [[List; 2]; MAX_NR_GENS as usize],
    /// The number of pages by generation and type, whatever list they are on.
    pub(super) sizes: [[u64; 2]; MAX_NR_GENS as usize],
    pub(super) feedback: [Feedback; 2],
    pub(super) filters: Filters,
    pub(super) walked: WalkStats,
    /// How many pages CLOCK took of each type when it had the choice.
    pub(super) clock_taken: [u64; 2],
}

/// A page that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its type.
    pub of: Type,
    /// Whether it comes in through a mapping, and so is in use.
    pub active: bool,
    /// Whether it is dirty although its type is clean: somebody other than eviction will write its
    /// bytes soon.
    pub dirty: bool,
    /// Whether it is being written.
    pub writing: bool,
    /// The result of [`Lruvec::refault`] for it.
    pub marks: Marks,
}

impl Arrival {
    /// A page of this type that was read or written by a call and was not here before.
    pub fn new(of: Type) -> Self {
        Self { of, active: false, dirty: false, writing: false, marks: Marks::default() }
    }
}

impl Lruvec {
    /// Makes an lruvec without pages, at a time in milliseconds. The number distinguishes it from
    /// others that share the frames.
    ///
    /// # Panics
    ///
    /// If the number is 65535.
    pub fn new(
        frames: Arc<Frames>,
        number: u16,
        tunables: Tunables,
        now_ms: u64,
    ) -> Result<Self, TunablesError> {
        assert!(number < u16::MAX, "65535 marks frames that are free");
        tunables.check()?;
        Ok(Self {
            frames,
            owner: number,
            tunables,
            max_seq: MAX_NR_GENS - 1,
            min_seq: [0; 2],
            births_ms: [now_ms; MAX_NR_GENS as usize],
            lists: [[List::EMPTY; 2]; MAX_NR_GENS as usize],
            sizes: [[0; 2]; MAX_NR_GENS as usize],
            feedback: [Feedback::default(), Feedback::default()],
            filters: Filters::default(),
            walked: WalkStats::default(),
            clock_taken: [0; 2],
        })
    }

    /// The frames that it shares with other lruvecs.
    pub fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.owner
    }

    /// The current constants.
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// Changes constants. The changes take effect with the next call. If a value is out of bounds,
    /// nothing changes. Switching the generations off or on takes no time: the same pages are on
    /// the same lists.
    pub fn set_tunables(&mut self, tunables: Tunables) -> Result<(), TunablesError> {
        tunables.check()?;
        self.tunables = tunables;
        Ok(())
    }

    /// The number of the youngest generation.
    pub fn max_seq(&self) -> u64 {
        self.max_seq
    }

    /// The number of the oldest generation of a type.
    pub fn min_seq(&self, of: Type) -> u64 {
        self.min_seq[of as usize]
    }

    /// The number of generations of a type: 2 to 4.
    pub fn generations(&self, of: Type) -> u64 {
        self.max_seq - self.min_seq(of) + 1
    }

    /// Pages of a generation and type; 0 for generations that do not exist.
    pub fn size(&self, seq: u64, of: Type) -> u64 {
        let there = (self.min_seq(of)..=self.max_seq).contains(&seq);
        if there { self.sizes[index(seq)][of as usize] } else { 0 }
    }

    /// Pages of each type, by its index.
    pub fn totals(&self) -> [u64; 2] {
        Type::ALL.map(|of| self.sizes.iter().map(|sizes| sizes[of as usize]).sum())
    }

    /// The refault feedback of a type.
    pub fn feedback(&self, of: Type) -> &Feedback {
        &self.feedback[of as usize]
    }

    /// The generation of a frame's page, if it is one of these pages and can be evicted.
    pub fn generation(&self, frame: Frame) -> Option<u64> {
        let state = self.frames.state(frame);
        let index = state.generation().filter(|_| state.belongs_to(self.owner))?;
        Some(self.seq_at(state.of(), index))
    }

    /// The frames on the list of a generation, in the order of eviction. Some may already belong to
    /// a younger generation. For tests, and for people who inspect it.
    pub fn listed(&self, seq: u64, of: Type) -> impl Iterator<Item = Frame> + '_ {
        self.lists[index(seq)][of as usize].iter(&self.frames)
    }

    /// Puts a page into a frame. Its first access must still be noted.
    ///
    /// # Panics
    ///
    /// If the frame already holds a page.
    pub fn insert(&mut self, frame: Frame, arrival: Arrival) {
        assert!(self.frames.state(frame).is_free(), "there is a page in frame {frame}");
        self.frames.set_marks(frame, arrival.marks);
        let state = State::new(self.owner, arrival.of)
            .with(Flag::Dirty, arrival.dirty)
            .with(Flag::Writing, arrival.writing);
        let seq = self.placement(state, arrival.active, arrival.marks);
        self.place(frame, state, seq, End::Head);
    }

    /// Removes a page, whatever its state: it was deleted.
    ///
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn remove(&mut self, frame: Frame) {
        let state = self.state(frame);
        self.take(frame, state);
        self.frames.set_state(frame, State::FREE);
    }

    /// Handles an evicted page that comes back: counts it if the eviction was recent and from here,
    /// and returns the marks with which it comes in.
    pub fn refault(&mut self, token: Token) -> Marks {
        let recent = token.distance(self.max_seq) < self.tunables.recent_gens;
        if token.owner() != self.owner || !recent || !self.main() {
            return Marks::default();
        }
        self.feedback[token.of() as usize].refaulted[token.tier()] += 1;
        token.marks()
    }

    /// Changes the type of a page. It keeps its generation, or comes to the oldest one of the other
    /// type if that is younger.
    ///
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn set_type(&mut self, frame: Frame, of: Type) {
        let state = self.state(frame);
        if state.of() == of {
            return;
        }
        let Some(at) = state.generation() else {
            self.frames.set_state(frame, state.with_type(of));
            return;
        };
        let seq = self.seq_at(state.of(), at).max(self.min_seq(of));
        self.take(frame, state);
        self.place(frame, state.with_type(of), seq, End::Head);
    }

    /// Says whether a page of the clean type is nevertheless dirty. Eviction passes over such a
    /// page, marks it to be reclaimed once it is written, and reports it.
    ///
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn set_dirty(&mut self, frame: Frame, dirty: bool) {
        let state = self.state(frame);
        self.frames.set_state(frame, state.with(Flag::Dirty, dirty));
    }

    /// Says that the owner begins to write a page. It cannot be evicted meanwhile.
    ///
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn begin_write(&mut self, frame: Frame) {
        let state = self.state(frame);
        self.frames.set_state(frame, state.with(Flag::Writing, true));
    }

    /// Says that a page was written and not changed since: it is clean. If eviction has waited for
    /// it, it is the next to go. If it was changed again, or could not be written, call
    /// [`set_type`](Self::set_type) or [`set_dirty`](Self::set_dirty) afterwards.
    ///
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn end_write(&mut self, frame: Frame) {
        let waited = self.state(frame).has(Flag::Reclaim);
        let state = self.state(frame).with(Flag::Writing, false).with(Flag::Dirty, false);
        self.frames.set_state(frame, state.with(Flag::Reclaim, false));
        self.set_type(frame, Type::Clean);
        if waited {
            self.rotate(frame);
        }
    }

    /// Makes a page the next of its type to be evicted, unless aging made its generation one of the
    /// two youngest.
    ///
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn rotate(&mut self, frame: Frame) {
        let state = self.state(frame);
        if state.generation().is_some() {
            self.take(frame, state);
            let seq = self.back(MAX_NR_GENS, state.of());
            self.place(frame, state, seq, End::Tail);
        }
    }

    /// Returns a victim that could not be let go, because it is in use or being written. It comes
    /// back, but not to the oldest generation, and does not count as evicted. While it is being
    /// written, it stays marked to be reclaimed, and [`end_write`](Self::end_write) makes it the
    /// next to go.
    ///
    /// # Panics
    ///
    /// If its frame already holds a page.
    pub fn putback(&mut self, victim: Victim, writing: bool) {
        let Victim { frame, of, dirty, token } = victim;
        assert!(self.frames.state(frame).is_free(), "there is a page in frame {frame}");
        if self.main() {
            let evicted = &mut self.feedback[of as usize].evicted[token.tier()];
            *evicted = evicted.saturating_sub(1);
        }
        let state = State::new(self.owner, of)
            .with(Flag::Dirty, dirty && of == Type::Clean)
            .with(Flag::Writing, writing)
            .with(Flag::Reclaim, writing);
        self.reject(frame, state, false);
    }

    /// Says whether a page can be evicted. A page that cannot is taken off its list when eviction
    /// reaches it. When it can be evicted again, it comes in anew.
    /// # Panics
    ///
    /// If it is not one of these pages.
    pub fn set_unevictable(&mut self, frame: Frame, unevictable: bool) {
        let state = self.state(frame).with(Flag::Unevictable, unevictable);
        self.frames.set_state(frame, state);
        if !unevictable && state.generation().is_none() {
            let seq = self.placement(state, false, self.frames.marks(frame));
            self.place(frame, state, seq, End::Head);
        }
    }

    /// The state of a frame that must hold one of these pages.
    fn state(&self, frame: Frame) -> State {
        let state = self.frames.state(frame);
        assert!(state.belongs_to(self.owner), "frame {frame} holds no page of {}", self.owner);
        state
    }

    pub(super) fn main(&self) -> bool {
        self.tunables.enabled.has(Enabled::MAIN)
    }

    /// The generation that is this many back from the youngest (1 is the youngest itself), or the
    /// oldest one.
    fn back(&self, generations: u64, of: Type) -> u64 {
        (self.max_seq + 1 - generations).max(self.min_seq(of))
    }

    /// The generation in which a page comes in.
    fn placement(&self, state: State, active: bool, marks: Marks) -> u64 {
        if !self.main() {
            return self.max_seq;
        }
        let workingset = u64::from(marks.workingset());
        let written = state.has(Flag::Writing);
        // Dirty pages that nobody writes yet, and those that eviction waits for.
        let dirty = state.of() == Type::Dirty && !written
            || state.has(Flag::Reclaim) && (state.has(Flag::Dirty) || written);
        let back = if active {
            MIN_NR_GENS - workingset
        } else if dirty {
            MIN_NR_GENS
        } else {
            (u64::from(self.tunables.inflow_back) - workingset).max(1)
        };
        self.back(back, state.of())
    }

    /// Puts back a page that was to be evicted and is not: where it would come in or, if that were
    /// the oldest generation, into the second youngest one. Pages of the working set then go to the
    /// youngest.
    pub(super) fn reject(&mut self, frame: Frame, state: State, active: bool) {
        let marks = self.frames.marks(frame);
        let mut seq = self.placement(state, active, marks);
        if active || seq == self.min_seq(state.of()) {
            seq = self.placement(state, true, marks);
            self.frames.set_marks(frame, marks.moved());
        }
        self.place(frame, state, seq, End::Head);
    }

    /// Takes a page off its list, if it is on one.
    pub(super) fn take(&mut self, frame: Frame, state: State) {
        if let Some(generation) = state.generation() {
            let of = state.of() as usize;
            self.lists[state.list()][of].remove(&self.frames, frame);
            self.sizes[generation][of] -= 1;
        }
    }

    /// Puts a page that is on no list where it belongs.
    pub(super) fn place(&mut self, frame: Frame, state: State, seq: u64, end: End) {
        let (at, of) = (index(seq), state.of() as usize);
        self.frames.set_state(frame, state.with_generation(at).with_list(at));
        self.sizes[at][of] += 1;
        let list = &mut self.lists[at][of];
        match end {
            End::Head => list.push_head(&self.frames, frame),
            End::Tail => list.push_tail(&self.frames, frame),
        }
    }

    /// The number of the generation of a type that has this index.
    fn seq_at(&self, of: Type, at: usize) -> u64 {
        let min_seq = self.min_seq(of);
        min_seq + (at as u64).wrapping_sub(min_seq) % MAX_NR_GENS
    }
}

/// The ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The young end.
    Head,
    /// The old end.
    Tail,
}

/// The index of a generation's lists.
pub(super) const fn index(seq: u64) -> usize {
    (seq % MAX_NR_GENS) as usize
}
