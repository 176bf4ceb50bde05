//! The three flags of a background run, which decide whether the next round ages and writes.
//!
//! ```text
//!               need_aging     some round before could not do without ageing
//!               need_swapping  some round before could not do without writing
//!               avoid_swapping this round leaves a group as soon as it writes
//!
//!  a round begins, need_aging off:  no ageing; avoid_swapping = !need_swapping
//!                  need_aging on:   age all groups; avoid_swapping = on
//!                  both:            need_aging = on, need_swapping = on
//!  a group had old generations:           need_aging = off
//!  a group gave enough without writing:   need_swapping = off
//! ```
//!
//! So the next round ages only if no group could do without aging. After that it tries clean pages
//! first, and it writes for one round if no group had any.
//!
//! The two forms come from postings of one kernel patch. They differ in when a group may clear a
//! flag. In the older one, old generations are enough to clear `need_aging`, and clearing
//! `need_swapping` takes a full batch without writing. Groups with dirty pages gained much from
//! that, and the others paid for it. In the newer one, a group clears flags only if its turn ended
//! normally.

/// A form of the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flags {
    /// None: each round ages what needs it, and writes.
    Off,
    /// The form of version 8 of the patch.
    V8,
    /// The form of version 14, as merged in 6.1.
    #[default]
    V14,
}

/// One run of background reclaim, which may have many rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Background {
    form: Flags,
    need_aging: bool,
    need_swapping: bool,
    avoid_swapping: bool,
}

/// A group's turn in a round, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visit {
    /// How many pages were to be looked at.
    pub target: u64,
    /// How many were looked at so far.
    pub scanned: u64,
    /// How many left.
    pub reclaimed: u64,
    /// How many had to be written.
    pub written: u64,
    /// The group's swappiness.
    pub swappiness: u16,
    /// Whether it needed aging when its turn began.
    pub needs_aging: bool,
}

/// What a group's turn does after a batch.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It goes on.
    Next,
    /// It ends.
    End,
    /// It ends early.
    Leave,
}

/// Pages that a turn has to give before it clears `need_swapping` in the older form: the kernel's
/// `MIN_LRU_BATCH`.
const ENOUGH: u64 = 64;

impl Background {
    /// The state before the first round, with all flags off.
    pub fn new(form: Flags) -> Self {
        Self { form, need_aging: false, need_swapping: false, avoid_swapping: false }
    }

    /// `need_aging`, `need_swapping` and `avoid_swapping`.
    pub fn flags(&self) -> [bool; 3] {
        [self.need_aging, self.need_swapping, self.avoid_swapping]
    }

    /// Begins a round. Returns whether all groups are aged first.
    #[must_use]
    pub fn begin_round(&mut self) -> bool {
        if self.form == Flags::Off {
            return true;
        }
        let ages = self.need_aging;
        self.avoid_swapping = ages || !self.need_swapping;
        self.need_aging = true;
        self.need_swapping = true;
        ages
    }

    /// Begins a group's turn, after its budget was computed.
    pub fn begin_visit(&mut self, visit: &Visit) {
        if self.form == Flags::V8 && !visit.needs_aging {
            self.need_aging = false;
        }
    }

    /// Ends a batch that found something to look at.
    pub fn after_batch(&mut self, visit: &Visit) -> Step {
        let done = visit.scanned >= visit.target;
        let avoid = self.avoid_swapping
            && visit.swappiness < crate::kernel::MAX_SWAPPINESS
            && visit.written > 0;
        match self.form {
            Flags::V8 if avoid => Step::Leave,
            _ if done => Step::End,
            Flags::V14 if avoid => Step::End,
            _ => Step::Next,
        }
    }

    /// Ends a group's turn normally. A turn in which nothing was left to take, or to be looked at,
    /// does not end normally.
    pub fn end_visit(&mut self, visit: &Visit) {
        match self.form {
            Flags::Off => {}
            Flags::V8 => {
                if visit.written == 0 && visit.reclaimed >= ENOUGH {
                    self.need_swapping = false;
                }
            }
            Flags::V14 => {
                self.need_aging &= visit.needs_aging;
                self.need_swapping &= visit.written > 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn that has looked at `scanned` of 100 pages.
    fn visit(scanned: u64, reclaimed: u64, written: u64, needs_aging: bool) -> Visit {
        Visit { target: 100, scanned, reclaimed, written, swappiness: 60, needs_aging }
    }

    /// A run with these flags set.
    fn run(form: Flags, [need_aging, need_swapping, avoid_swapping]: [bool; 3]) -> Background {
        Background { form, need_aging, need_swapping, avoid_swapping }
    }

    const ALL: [[bool; 3]; 8] = {
        let (f, t) = (false, true);
        [[f, f, f], [f, f, t], [f, t, f], [f, t, t], [t, f, f], [t, f, t], [t, t, f], [t, t, t]]
    };

    #[test]
    fn rounds_begin_as_the_table_says() {
        for flags in ALL {
            let [need_aging, need_swapping, _] = flags;
            for form in [Flags::V8, Flags::V14] {
                let mut run = run(form, flags);
                assert_eq!(run.begin_round(), need_aging);
                let avoid = need_aging || !need_swapping;
                assert_eq!(run.flags(), [true, true, avoid], "{form:?} {flags:?}");
            }
            let mut off = run(Flags::Off, flags);
            assert!(off.begin_round());
            assert_eq!(off.flags(), flags);
        }
    }

    #[test]
    fn the_old_form_clears_flags_on_the_way() {
        for flags in ALL {
            let [need_aging, need_swapping, avoid] = flags;
            for needs_aging in [false, true] {
                let mut run = run(Flags::V8, flags);
                run.begin_visit(&visit(0, 0, 0, needs_aging));
                assert_eq!(run.flags(), [need_aging && needs_aging, need_swapping, avoid]);
            }
            let mut run = run(Flags::V8, flags);
            // The flag comes before the target.
            let leave = if avoid { Step::Leave } else { Step::End };
            assert_eq!(run.after_batch(&visit(100, 64, 1, true)), leave);
            assert_eq!(run.after_batch(&visit(100, 64, 0, true)), Step::End);
            assert_eq!(run.after_batch(&visit(99, 64, 0, true)), Step::Next);
            let wants_dirty = Visit { swappiness: 200, ..visit(99, 64, 1, true) };
            assert_eq!(run.after_batch(&wants_dirty), Step::Next);
            for (reclaimed, written) in [(63, 0), (100, 1)] {
                run.end_visit(&visit(100, reclaimed, written, false));
                assert_eq!(run.flags(), flags, "too few, or written");
            }
            run.end_visit(&visit(100, 64, 0, false));
            assert_eq!(run.flags(), [need_aging, false, avoid]);
        }
    }

    #[test]
    fn the_new_form_clears_flags_at_the_end() {
        for flags in ALL {
            let [need_aging, need_swapping, avoid] = flags;
            let mut run = run(Flags::V14, flags);
            run.begin_visit(&visit(0, 0, 0, false));
            assert_eq!(run.flags(), flags);
            assert_eq!(run.after_batch(&visit(100, 64, 1, true)), Step::End);
            let early = if avoid { Step::End } else { Step::Next };
            assert_eq!(run.after_batch(&visit(99, 64, 1, true)), early);
            assert_eq!(run.after_batch(&visit(99, 64, 0, true)), Step::Next);
            run.end_visit(&visit(100, 64, 1, true));
            assert_eq!(run.flags(), flags);
            run.end_visit(&visit(99, 1, 0, true));
            assert_eq!(run.flags(), [need_aging, false, avoid]);
            let mut run = self::run(Flags::V14, flags);
            run.end_visit(&visit(100, 64, 1, false));
            assert_eq!(run.flags(), [false, need_swapping, avoid]);
        }
    }

    #[test]
    fn without_flags_all_is_done_always() {
        for flags in ALL {
            let mut run = run(Flags::Off, flags);
            run.begin_visit(&visit(0, 0, 0, false));
            assert_eq!(run.after_batch(&visit(99, 64, 64, true)), Step::Next);
            assert_eq!(run.after_batch(&visit(100, 64, 64, true)), Step::End);
            run.end_visit(&visit(100, 64, 0, false));
            assert_eq!(run.flags(), flags);
        }
    }
}
