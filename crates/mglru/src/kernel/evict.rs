//! Eviction: sorts the pages at the end of the oldest generation and isolates those that leave.
//!
//! A call is one batch. Its caller has the victims written or drops them, returns those that it
//! could not part with ([`Lruvec::putback`]), ages the pages if nothing is left to take, and calls
//! again.

use super::Type;
use super::frames::{Flag, Frame, State};
use super::lruvec::{End, Lruvec, index};
use super::token::Token;
use super::tunables::{MAX_NR_TIERS, MAX_SWAPPINESS, MIN_NR_GENS, SWAPPINESS_DIRTY_ONLY};

/// Which types may be evicted, whatever the swappiness says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Types {
    /// As the swappiness says.
    Both,
    /// Clean pages only.
    Clean,
    /// Dirty pages only.
    Dirty,
}

impl Types {
    /// The swappiness that results from this and a given one.
    pub const fn swappiness(self, given: u16) -> u16 {
        match self {
            Self::Both => given,
            Self::Clean => 0,
            Self::Dirty => SWAPPINESS_DIRTY_ONLY,
        }
    }
}

/// A page that is to leave. It is no longer on any list, and its frame is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The frame that it is in.
    pub frame: Frame,
    /// The type that it had.
    pub of: Type,
    /// Whether it must be written first.
    pub dirty: bool,
    /// What to remember of it.
    pub token: Token,
}

/// The result of a batch, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Pages looked at. 0 means that there was nothing to take.
    pub scanned: u64,
    /// Victims of each type.
    pub isolated: [u64; 2],
    /// Pages that had been promoted earlier, and were now moved to the list of their generation.
    pub promoted: u64,
    /// Pages kept because of their tier.
    pub protected: u64,
    /// Pages kept because they turned out to be in use through a mapping.
    pub activated: u64,
    /// Victims of the clean type, and dirty pages of that type that were passed over.
    pub file_taken: u64,
    /// Of these, dirty pages that nobody writes yet.
    pub unqueued_dirty: u64,
}

impl Evicted {
    /// Whether everything that was taken waits to be written, so that the thread that writes must
    /// be woken.
    pub fn wake_flusher(&self) -> bool {
        self.unqueued_dirty > 0 && self.unqueued_dirty == self.file_taken
    }

    /// Adds the result of another batch.
    pub fn add(&mut self, other: &Self) {
        self.scanned += other.scanned;
        for of in Type::ALL {
            self.isolated[of as usize] += other.isolated[of as usize];
        }
        self.promoted += other.promoted;
        self.protected += other.protected;
        self.activated += other.activated;
        self.file_taken += other.file_taken;
        self.unqueued_dirty += other.unqueued_dirty;
    }
}

impl Lruvec {
    /// Evicts a batch: at most `budget` victims and no more than `min_lru_batch`, looking at no
    /// more than `max_lru_batch` pages.
    pub fn evict(&mut self, budget: u64, types: Types, victims: &mut Vec<Victim>) -> Evicted {
        self.evict_with(budget, types.swappiness(self.tunables.swappiness), victims)
    }

    /// The same under a given swappiness, 0 to 201.
    pub fn evict_with(
        &mut self,
        budget: u64,
        swappiness: u16,
        victims: &mut Vec<Victim>,
    ) -> Evicted {
        let limit = budget.min(u64::from(self.tunables.min_lru_batch));
        let mut report = Evicted::default();
        if limit == 0 {
            return report;
        }
        if self.main() {
            let first = self.type_to_scan(swappiness);
            for of in [first, first.other()] {
                if of.evictable(swappiness) && self.scan(of, limit, victims, &mut report) {
                    break;
                }
            }
        } else {
            self.evict_by_clock(limit, swappiness, victims, &mut report);
        }
        self.try_to_inc_min_seq(swappiness);
        report
    }

    /// The type whose pages have come back less often, by the weight that the swappiness gives it.
    fn type_to_scan(&self, swappiness: u16) -> Type {
        if swappiness <= 1 {
            return Type::Clean;
        }
        if swappiness >= MAX_SWAPPINESS {
            return Type::Dirty;
        }
        let gain = u32::from(swappiness);
        let all = 0..MAX_NR_TIERS;
        let sp = self.feedback(Type::Dirty).position(all.clone(), gain);
        let pv = self.feedback(Type::Clean).position(all, u32::from(MAX_SWAPPINESS) - gain);
        let batch = self.tunables.min_lru_batch;
        if super::positive(sp, pv, batch) { Type::Clean } else { Type::Dirty }
    }

    /// Sorts pages of a type until enough are isolated. Returns whether there was something to
    /// take.
    fn scan(
        &mut self,
        of: Type,
        limit: u64,
        victims: &mut Vec<Victim>,
        report: &mut Evicted,
    ) -> bool {
        if self.generations(of) == MIN_NR_GENS {
            return false;
        }
        let tier_index = self.feedback(of).tier_index(&self.tunables);
        let (mut isolated, mut remaining) = (0, self.tunables.max_lru_batch);
        while remaining > 0 && isolated < limit {
            let Some(frame) = self.lists[index(self.min_seq(of))][of as usize].oldest() else {
                break;
            };
            report.scanned += 1;
            remaining -= 1;
            if !self.sort(frame, of, tier_index, report) {
                isolated += 1;
                self.isolate(frame, victims, report);
            }
        }
        isolated > 0 || remaining == 0
    }

    /// If a page at the end of the oldest generation belongs elsewhere, moves it there. Returns
    /// whether it did.
    fn sort(&mut self, frame: Frame, of: Type, tier_index: usize, report: &mut Evicted) -> bool {
        let state = self.frames.state(frame);
        if state.has(Flag::Unevictable) {
            self.take(frame, state);
            self.frames.set_state(frame, state.off_lists());
            return true;
        }
        let oldest = self.min_seq(of);
        if let Some(generation) = state.generation().filter(|at| *at != index(oldest)) {
            self.relist(frame, state, generation);
            report.promoted += 1;
            return true;
        }
        let marks = self.frames.marks(frame);
        let tier = marks.tier();
        if tier > tier_index || marks.lazily_promoted() {
            self.take(frame, state);
            self.frames.set_marks(frame, marks.moved());
            self.place(frame, state, oldest + 1, End::Head);
            report.protected += 1;
            if !marks.lazily_promoted() {
                self.feedback[of as usize].protected[tier] += 1;
            }
            return true;
        }
        let writing = state.has(Flag::Writing);
        let dirty = of == Type::Clean && state.has(Flag::Dirty);
        if dirty {
            report.file_taken += 1;
            report.unqueued_dirty += u64::from(!writing);
        }
        if dirty || writing {
            self.take(frame, state);
            self.frames.set_marks(frame, marks.moved());
            self.place(frame, state.with(Flag::Reclaim, true), oldest + 1, End::Head);
            return true;
        }
        false
    }

    /// Puts a page that was promoted on the list of its generation.
    fn relist(&mut self, frame: Frame, state: State, generation: usize) {
        let of = state.of() as usize;
        self.lists[state.list()][of].remove(&self.frames, frame);
        self.lists[generation][of].push_head(&self.frames, frame);
        self.frames.set_state(frame, state.with_list(generation));
    }

    /// Takes a page out, unless it turns out to be in use.
    fn isolate(&mut self, frame: Frame, victims: &mut Vec<Victim>, report: &mut Evicted) {
        let state = self.frames.state(frame);
        let marks = self.frames.marks(frame);
        if marks.accessed() {
            self.look_around(frame);
            self.take(frame, state);
            let (marks, working) = marks.without_accessed().observed();
            self.frames.set_marks(frame, marks);
            self.reject(frame, state, working);
            report.activated += 1;
            return;
        }
        self.take(frame, state);
        let of = state.of();
        self.feedback[of as usize].evicted[marks.tier()] += 1;
        self.let_go(frame, state, victims, report);
    }

    /// Frees the frame of a page that is on no list any more and makes it a victim.
    pub(super) fn let_go(
        &mut self,
        frame: Frame,
        state: State,
        victims: &mut Vec<Victim>,
        report: &mut Evicted,
    ) {
        let of = state.of();
        self.frames.set_state(frame, State::FREE);
        report.isolated[of as usize] += 1;
        report.file_taken += u64::from(of == Type::Clean);
        let marks = self.frames.marks(frame);
        victims.push(Victim {
            frame,
            of,
            dirty: of == Type::Dirty || state.has(Flag::Dirty),
            token: Token::new(self.owner, self.min_seq(of), of, marks),
        });
    }
}
