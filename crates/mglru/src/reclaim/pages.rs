//! What reclaim asks of a group's pages, and how the kernel's algorithm answers.

use crate::kernel::{Aging, Lruvec, Type, Victim};

/// The result of a batch, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Pages looked at. 0 means that there was nothing to take.
    pub scanned: u64,
    /// Pages that are gone.
    pub reclaimed: u64,
    /// Pages that had to be written, whether they are gone yet or not.
    pub written: u64,
}

/// The pages of one group, as reclaim sees them. A swappiness of 0 means that nothing may be
/// written, and 201 means that no clean pages may be taken.
pub trait Pages {
    /// Pages of each type, by its index, including those that cannot be evicted before aging.
    fn totals(&self) -> [u64; 2];

    /// Pages that can be evicted without aging.
    fn inactive(&self, swappiness: u16) -> u64;

    /// Whether the pages need aging.
    fn need_aging(&self, swappiness: u16) -> Aging;

    /// Ages the pages, at a time in milliseconds.
    fn age(&mut self, now_ms: u64);

    /// When the oldest of the pages came together, in milliseconds.
    fn oldest_birth_ms(&self, swappiness: u16) -> u64;

    /// Evicts at most this many pages, in one batch, and has them written if they must be.
    fn evict(&mut self, budget: u64, swappiness: u16) -> Batch;
}

/// What a victim's owner did with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is gone: dropped, or written and dropped.
    Gone,
    /// It is being written, and is put back meanwhile. It counts as reclaimed once it goes.
    Writing,
    /// It is in use, and is put back.
    InUse,
}

/// The owner of the frames of victims.
pub trait Sink {
    /// Drops a victim, or has it written.
    fn let_go(&mut self, victim: &Victim) -> Fate;

    /// Says that all pages that eviction met are dirty and wait for somebody to write them.
    fn wake_flusher(&mut self) {}
}

/// The kernel's algorithm behind [`Pages`].
#[derive(Debug)]
pub struct LruvecPages<S> {
    /// The pages.
    pub lruvec: Lruvec,
    /// Their owner.
    pub sink: S,
    victims: Vec<Victim>,
}

impl<S: Sink> LruvecPages<S> {
    /// Combines these pages with the sink for their victims.
    pub fn new(lruvec: Lruvec, sink: S) -> Self {
        Self { lruvec, sink, victims: Vec::new() }
    }
}

impl<S: Sink> Pages for LruvecPages<S> {
    fn totals(&self) -> [u64; 2] {
        self.lruvec.totals()
    }

    fn inactive(&self, swappiness: u16) -> u64 {
        let types = Type::ALL.into_iter().filter(|of| of.evictable(swappiness));
        types.map(|of| self.lruvec.inactive(of)).sum()
    }

    fn need_aging(&self, swappiness: u16) -> Aging {
        self.lruvec.need_aging(swappiness)
    }

    fn age(&mut self, now_ms: u64) {
        self.lruvec.age(now_ms, false);
    }

    fn oldest_birth_ms(&self, swappiness: u16) -> u64 {
        self.lruvec.oldest_birth_ms(swappiness)
    }

    fn evict(&mut self, budget: u64, swappiness: u16) -> Batch {
        let report = self.lruvec.evict_with(budget, swappiness, &mut self.victims);
        let mut batch = Batch { scanned: report.scanned, ..Batch::default() };
        for victim in self.victims.drain(..) {
            let fate = self.sink.let_go(&victim);
            batch.reclaimed += u64::from(fate == Fate::Gone);
            batch.written += u64::from(victim.of == Type::Dirty);
            if fate != Fate::Gone {
                self.lruvec.putback(victim, fate == Fate::Writing);
            }
        }
        if report.wake_flusher() {
            self.sink.wake_flusher();
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernel::{Arrival, Enabled, Frames, Tunables};
    use crate::reclaim::{Groups, Limits};

    /// Writes dirty pages without end, has the second page in use, and drops the others.
    #[derive(Debug, Default)]
    struct Owner {
        flusher_woken: u64,
    }

    impl Sink for Owner {
        fn let_go(&mut self, victim: &Victim) -> Fate {
            match (victim.of, victim.frame) {
                (Type::Dirty, _) => Fate::Writing,
                (Type::Clean, 1) => Fate::InUse,
                (Type::Clean, _) => Fate::Gone,
            }
        }

        fn wake_flusher(&mut self) {
            self.flusher_woken += 1;
        }
    }

    fn pages(arrivals: &[Arrival], enabled: Enabled) -> LruvecPages<Owner> {
        let frames = Arc::new(Frames::new(arrivals.len()));
        let tunables = Tunables { enabled, ..Tunables::default() };
        let mut lruvec = Lruvec::new(frames, 0, tunables, 0).unwrap();
        for (frame, arrival) in arrivals.iter().enumerate() {
            lruvec.insert(frame as u32, *arrival);
        }
        LruvecPages::new(lruvec, Owner::default())
    }

    #[test]
    fn what_is_not_let_go_of_comes_back() {
        let [clean, dirty] = [Type::Clean, Type::Dirty].map(Arrival::new);
        let mut pages = pages(&[clean, clean, clean, dirty], Enabled::ALL);
        let batch = pages.evict(10, 60);
        assert_eq!(batch, Batch { scanned: 3, reclaimed: 2, written: 0 });
        assert_eq!(pages.totals(), [1, 1]);
        pages.age(1);
        let batch = pages.evict(10, 201);
        assert_eq!(batch, Batch { scanned: 1, reclaimed: 0, written: 1 });
        // It was written, and is the next to go.
        pages.lruvec.end_write(3);
        assert_eq!(pages.evict(1, 0), Batch { scanned: 1, reclaimed: 1, written: 0 });
        assert_eq!(pages.totals(), [0, 1]);
    }

    /// Has a page in use when it is asked for the first time.
    #[derive(Debug, Default)]
    struct InUseOnce {
        asked: u32,
    }

    impl Sink for InUseOnce {
        fn let_go(&mut self, _: &Victim) -> Fate {
            self.asked += 1;
            if self.asked == 1 { Fate::InUse } else { Fate::Gone }
        }
    }

    #[test]
    fn what_was_in_use_goes_the_next_time() {
        let mut lruvec = Lruvec::new(Arc::new(Frames::new(1)), 0, Tunables::default(), 0).unwrap();
        lruvec.insert(0, Arrival::new(Type::Clean));
        let mut pages = LruvecPages::new(lruvec, InUseOnce::default());
        assert_eq!(pages.evict(1, 0), Batch { scanned: 1, reclaimed: 0, written: 0 });
        (1..4).for_each(|now_ms| pages.age(now_ms));
        assert_eq!(pages.evict(1, 0), Batch { scanned: 1, reclaimed: 1, written: 0 });
    }

    #[test]
    fn whoever_writes_is_woken_where_all_is_dirty() {
        let dirty = Arrival { dirty: true, ..Arrival::new(Type::Clean) };
        let mut pages = pages(&[dirty; 3], Enabled::ALL);
        assert_eq!(pages.evict(10, 60).reclaimed, 0);
        assert_eq!(pages.sink.flusher_woken, 1);
    }

    #[test]
    fn a_dead_group_that_is_being_written_does_not_hold_up_reclaim() {
        for enabled in [Enabled::ALL, Enabled::NONE] {
            let [clean, dirty] = [Type::Clean, Type::Dirty].map(Arrival::new);
            let mut groups = Groups::new();
            let pages = pages(&[clean, clean, dirty, dirty], enabled);
            let id = groups.add(pages, Limits::default(), 4);
            groups.group_mut(id).unwrap().kill();
            assert_eq!(groups.reclaim_group(id, 1, 0).reclaimed, 1);
            assert_eq!(groups.group(id).unwrap().usage(), 3);
        }
    }
}
