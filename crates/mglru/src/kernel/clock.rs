//! The kill switch: without the generations, a plain CLOCK chooses among the same pages.
//!
//! The lists of a type, from the oldest generation to the youngest, form the circle. The hand is at
//! the old end. Pages that it passes over go to the young end of the youngest list, and so do new
//! pages. Throwing the switch moves nothing, in either direction.
//!
//! F. J. Corbató, "A paging experiment with the Multics system", 1968.

use super::frames::{Flag, Frame};
use super::lruvec::{End, Lruvec, index};
use super::{Evicted, Type, Victim};

impl Lruvec {
    /// Evicts a batch, under the limits of [`evict`](Lruvec::evict).
    pub(super) fn evict_by_clock(
        &mut self,
        limit: u64,
        swappiness: u16,
        victims: &mut Vec<Victim>,
        report: &mut Evicted,
    ) {
        let end = victims.len() as u64 + limit;
        for _ in 0..self.tunables.max_lru_batch {
            if victims.len() as u64 == end {
                return;
            }
            let Some(frame) = self.under_the_hand(swappiness) else { return };
            report.scanned += 1;
            let (state, marks) = (self.frames.state(frame), self.frames.marks(frame));
            self.take(frame, state);
            let (dirty, writing) = (state.has(Flag::Dirty), state.has(Flag::Writing));
            if state.has(Flag::Unevictable) {
                self.frames.set_state(frame, state.off_lists());
            } else if marks.used() {
                self.frames.set_marks(frame, marks.moved().without_accessed());
                self.place(frame, state, self.max_seq, End::Head);
                report.activated += 1;
            } else if dirty || writing {
                if dirty {
                    report.file_taken += 1;
                    report.unqueued_dirty += u64::from(!writing);
                }
                self.place(frame, state.with(Flag::Reclaim, true), self.max_seq, End::Head);
            } else {
                self.let_go(frame, state, victims, report);
            }
        }
    }

    /// The page at the hand. If both types may go there are two circles. The one whose page is on
    /// the list of an older generation is next; if both are of the same one, each is next in
    /// proportion to its size.
    fn under_the_hand(&mut self, swappiness: u16) -> Option<Frame> {
        let [dirty, clean] = Type::ALL.map(|of| self.hand(of, swappiness));
        let (Some((dirty_seq, dirty)), Some((clean_seq, clean))) = (dirty, clean) else {
            return dirty.or(clean).map(|(_, frame)| frame);
        };
        if dirty_seq != clean_seq {
            return Some(if dirty_seq < clean_seq { dirty } else { clean });
        }
        let totals = self.totals();
        let taken = &mut self.clock_taken;
        let dirty_is_next = taken[0] * totals[1] < taken[1] * totals[0];
        taken[usize::from(!dirty_is_next)] += 1;
        if taken[0] + taken[1] > totals[0] + totals[1] {
            // Proportions change, so what was taken long ago counts less.
            *taken = taken.map(|taken| taken / 2);
        }
        Some(if dirty_is_next { dirty } else { clean })
    }

    /// The oldest page of a type, and the generation of the list that it is on.
    fn hand(&self, of: Type, swappiness: u16) -> Option<(u64, Frame)> {
        let mut seqs = self.min_seq(of)..=self.max_seq;
        let oldest = |seq| Some((seq, self.lists[index(seq)][of as usize].oldest()?));
        seqs.find_map(oldest).filter(|_| of.evictable(swappiness))
    }
}
