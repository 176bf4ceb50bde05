//! Uses that the learner has not heard of yet. Reporting several at a time takes a fraction of the
//! time.

use homing_mglru::density::{ERA, Use};

use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// The learner is told after this many uses.
const BATCH: usize = 16;
/// How many uses are kept: some come while the learner is told of others.
const RING: usize = 2 * BATCH;
/// Bits of a kind below those of the epoch: whether the page was put in, whether it was written,
/// and its group. `ERA` is a multiple of 2 to the number of the epoch's bits, so that kinds stay
/// right when the clock is turned back.
const FLAGS: u32 = 6;
/// The mask of a group's number, and the number that says that the group is not known.
const NOBODY: u32 = 0xf;
/// Groups that can be told apart.
pub(crate) const GROUPS_MAX: usize = NOBODY as usize;
const _: () = assert!(ERA.is_multiple_of(1 << (u32::BITS - FLAGS)));

/// The last few uses. If threads overtake each other, some are lost, or told with the epoch of
/// another use. This does no harm to a sample.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Heard {
    next: AtomicU32,
    /// The epoch and the kind of each use.
    kinds: [AtomicU32; RING],
    /// The hash of each use; 0 if there is none.
    hashes: [AtomicU64; RING],
}

impl Heard {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU32::new(0),
            kinds: std::array::from_fn(|_| AtomicU32::new(0)),
            hashes: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Room for the uses that are [taken](Self::take).
    pub(crate) fn room() -> [Use; RING] {
        [Use { hash: 0, group: None, epoch: 0, write: false, met: false }; RING]
    }

    /// Notes a use. Returns whether it is time to tell the learner.
    pub(crate) fn note(&self, Use { hash, group, epoch, write, met }: Use) -> bool {
        let next = self.next.fetch_add(1, Relaxed) as usize;
        let group = group.map_or(NOBODY, u32::from);
        let kind = epoch << FLAGS | group << 2 | u32::from(met) << 1 | u32::from(write);
        self.kinds[next % RING].store(kind, Relaxed);
        self.hashes[next % RING].store(hash, Relaxed);
        next % BATCH == BATCH - 1
    }

    /// Takes the uses that were noted, the oldest first. `epoch` is the current one.
    pub(crate) fn take<'a>(&self, epoch: u32, room: &'a mut [Use; RING]) -> &'a [Use] {
        let next = self.next.load(Relaxed) as usize;
        let mut count = 0;
        for at in (next..next + RING).map(|at| at % RING) {
            let hash = self.hashes[at].load(Relaxed);
            if hash == 0 {
                continue;
            }
            self.hashes[at].store(0, Relaxed);
            let kind = self.kinds[at].load(Relaxed);
            // The uppermost bits of the noted epoch are gone. They are taken from the current
            // epoch.
            let age = epoch.wrapping_sub(kind >> FLAGS) << FLAGS;
            let age = age.cast_signed() >> FLAGS;
            let group = kind >> 2 & NOBODY;
            let (met, write) = (kind & 2 != 0, kind & 1 != 0);
            room[count] = Use {
                hash,
                group: (group != NOBODY).then_some(group as u8),
                epoch: epoch.saturating_add_signed(-age),
                write,
                met,
            };
            count += 1;
        }
        &room[..count]
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn heard(hash: u64, epoch: u32) -> Use {
        let group = hash.checked_sub(8).map(|group| (group % GROUPS_MAX as u64) as u8);
        Use { hash, group, epoch, write: hash.is_multiple_of(2), met: hash.is_multiple_of(3) }
    }

    #[test]
    fn what_was_noted_is_told_once_and_in_order() {
        let some = Heard::new();
        for hash in 1..=BATCH as u64 {
            assert_eq!(some.note(heard(hash, 7)), hash == BATCH as u64);
        }
        let mut room = Heard::room();
        let told = some.take(9, &mut room);
        assert!(told.iter().map(|heard| heard.hash).eq(1..=BATCH as u64));
        for told in told {
            let noted = heard(told.hash, 7);
            assert_eq!((told.epoch, told.write, told.met), (7, noted.write, noted.met));
            assert_eq!(told.group, noted.group);
        }
        assert!(some.take(9, &mut room).is_empty());
    }

    #[test]
    fn where_nobody_takes_them_the_oldest_are_lost() {
        let some = Heard::new();
        (1..=3 * RING as u64).for_each(|hash| _ = some.note(heard(hash, 1)));
        let mut room = Heard::room();
        let last = 2 * RING as u64 + 1..=3 * RING as u64;
        assert!(some.take(1, &mut room).iter().map(|heard| heard.hash).eq(last));
    }

    /// The lowest 26 bits of the epoch are kept.
    #[test]
    fn epochs_are_those_about_the_one_that_runs() {
        for (noted, runs) in
            [(0, 0), (5, 3), ((1 << 26) - 1, (1 << 26) + 2), (u32::MAX / 2, u32::MAX / 2)]
        {
            let some = Heard::new();
            some.note(heard(1, noted));
            assert_eq!(some.take(runs, &mut Heard::room())[0].epoch, noted);
        }
    }
}
