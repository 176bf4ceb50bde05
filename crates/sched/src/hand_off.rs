//! Whether to queue a piece of work at all, or to run it where it arose.

use serde::{Deserialize, Serialize};

/// What handing an item to another CPU costs, in nanoseconds: the queue, the wake-up of a sleeping
/// worker and the cold cache lines it then fetches. Measured: a futex wake to running is a few
/// microseconds on current x86-64 servers.
pub const HAND_OFF_NS: u64 = 5_000;

/// How many times its own hand-off an item must cost before queueing pays. Guessed: at 4 the
/// hand-off is at most a fifth of the CPU time spent.
const WORTH: u64 = 4;

/// Issuers are remembered this many times as long in [`HandOffFacts::spare_of_late`]: as long as an
/// issuer waits for its turn when as many threads want its CPU as a kernel's slices of 3 ms allow.
pub const ISSUERS_OF_LATE: u64 = 16;

/// Issuers are crowded behind some caches if that leaves this part of the CPUs, or a larger one: as
/// issuers are moved to and fro, some are always without a CPU. By experiment on drawn machines:
/// with an eighth, two of these lose 2 %; with a quarter, the one that gains 13 % gains 7.
const CROWDED_PART: usize = 6;

/// The places from which issuers have issued lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssuersPlaces {
    /// CPUs of the caches from which some issued.
    pub beside: usize,
    /// Issuers that have a CPU to themselves there: for each cache, no more than it has CPUs.
    pub seated: usize,
}

impl IssuersPlaces {
    /// Adds an issuer that was last seen behind a cache with this many CPUs, for which `others`
    /// issuers were counted before. For one that is pinned to a CPU, that CPU is the place.
    pub fn add(&mut self, cpus: usize, others: usize) {
        self.beside += if others == 0 { cpus } else { 0 };
        self.seated += usize::from(others < cpus);
    }

    /// How many of these CPUs the issuers take: one each, but no more than there are at the places
    /// from which they issue.
    ///
    /// ```
    /// use homing_sched::IssuersPlaces;
    ///
    /// let mut places = IssuersPlaces::default();
    /// (0..4).for_each(|others| places.add(2, others)); // four behind a cache of two CPUs
    /// (0..2).for_each(|_| places.add(2, 0)); // and one behind each of two others
    /// assert_eq!(places.taken(6, 6), 4);
    /// ```
    pub fn taken(&self, cpus: usize, issuers: usize) -> usize {
        let left = cpus.saturating_sub(self.seated);
        let crowd = left * CROWDED_PART >= cpus;
        issuers.min(if crowd { self.seated } else { self.beside })
    }
}

/// The facts behind the choice. All of them may be estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOffFacts {
    /// What the item costs to run, in nanoseconds.
    pub item_ns: u64,
    /// Whether the issuer has something else to do meanwhile. If not, it would only wait.
    pub issuer_has_more: bool,
    /// CPUs with workers that issuers and other processes leave free. CPUs that run queued items
    /// count; CPUs of issuers do not, even while those wait. Issuers take no more CPUs of a cache
    /// than it has, however many issue from there ([`IssuersPlaces`]): crowded behind some caches,
    /// they would otherwise run their items beside idle CPUs of other caches (simulated: 88 and 91
    /// % used, where queueing uses 99 %). The same holds for issuers that are pinned to one CPU.
    ///
    /// Counting only those that are idle now is wrong. If there are fewer issuers than CPUs, items
    /// would then run inline whenever all workers are busy, the issuers would become the
    /// bottleneck, and CPUs would be idle (simulated: 88 % used, where queueing uses 98 %).
    pub spare_cpu_count: usize,
    /// The same, but with issuers remembered for [`ISSUERS_OF_LATE`] times as long. If workers run
    /// queued items on every CPU, issuers have few turns and look as if they were few: items would
    /// be queued because items are queued.
    pub spare_of_late: usize,
    /// Whether some CPU was idle lately. Then there is something to gain, however many issuers
    /// there are: all of them may be behind one cache.
    pub idle_of_late: bool,
}

/// Where an item runs.
///
/// ```
/// use homing_sched::{HandOff, HandOffFacts, hand_off};
///
/// let facts = HandOffFacts {
///     item_ns: 300_000,
///     issuer_has_more: true,
///     spare_cpu_count: 4,
///     spare_of_late: 4,
///     idle_of_late: false,
/// };
/// assert_eq!(hand_off(&facts), HandOff::Queue);
/// let busy = HandOffFacts { spare_cpu_count: 0, ..facts };
/// assert_eq!(hand_off(&busy), HandOff::Inline, "no CPU would run it any sooner");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandOff {
    /// On the issuing thread, at once.
    Inline,
    /// On a worker, through its home queue.
    Queue,
}

/// Decides whether an item that may run anywhere is worth queueing.
///
/// Queueing spends CPU time to save elapsed time. It pays only if a CPU would otherwise be idle,
/// the issuer can do something else meanwhile, and the item is long compared with the hand-off.
///
/// ```
/// use homing_sched::{HAND_OFF_NS, HandOff, HandOffFacts, hand_off};
///
/// let facts = HandOffFacts {
///     item_ns: HAND_OFF_NS,
///     issuer_has_more: true,
///     spare_cpu_count: 1,
///     spare_of_late: 1,
///     idle_of_late: true,
/// };
/// assert_eq!(hand_off(&facts), HandOff::Inline, "half the time would be overhead");
/// let long = HandOffFacts { item_ns: 10 * HAND_OFF_NS, ..facts };
/// assert_eq!(hand_off(&long), HandOff::Queue);
/// ```
pub fn hand_off(facts: &HandOffFacts) -> HandOff {
    let long = facts.item_ns >= WORTH * HAND_OFF_NS;
    let is_spare = facts.spare_cpu_count > 0 && (facts.idle_of_late || facts.spare_of_late > 0);
    if long && facts.issuer_has_more && is_spare { HandOff::Queue } else { HandOff::Inline }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_only_long_work_of_a_busy_issuer_beside_an_idle_cpu() {
        let base = HandOffFacts {
            item_ns: 100_000,
            issuer_has_more: true,
            spare_cpu_count: 1,
            spare_of_late: 1,
            idle_of_late: false,
        };
        let crowded = HandOffFacts { spare_of_late: 0, ..base };
        assert_eq!(hand_off(&base), HandOff::Queue);
        assert_eq!(hand_off(&HandOffFacts { idle_of_late: true, ..crowded }), HandOff::Queue);
        for facts in [
            HandOffFacts { item_ns: 3_000, ..base },
            HandOffFacts { issuer_has_more: false, ..base },
            HandOffFacts { spare_cpu_count: 0, ..base },
            HandOffFacts { spare_cpu_count: 0, idle_of_late: true, ..base },
            crowded,
        ] {
            assert_eq!(hand_off(&facts), HandOff::Inline, "{facts:?}");
        }
    }

    #[test]
    fn issuers_take_a_cpu_each_but_no_more_than_where_they_are() {
        let mut places = IssuersPlaces::default();
        (0..3).for_each(|others| places.add(4, others));
        places.add(1, 0); // pinned
        assert_eq!((places.beside, places.seated), (5, 4));
        assert_eq!(places.taken(24, 3), 3, "no more than there are issuers");
        assert_eq!(places.taken(24, 9), 4, "20 are left: they are crowded");
        assert_eq!(places.taken(4, 9), 5, "none is left");
        let mut many = IssuersPlaces::default();
        (0..10).for_each(|others| many.add(12, others));
        assert_eq!((many.taken(12, 20), many.taken(11, 20)), (10, 12), "a sixth, and less");
    }

    #[test]
    fn an_item_of_four_hand_offs_is_worth_it() {
        let facts = |item_ns| HandOffFacts {
            item_ns,
            issuer_has_more: true,
            spare_cpu_count: 1,
            spare_of_late: 1,
            idle_of_late: true,
        };
        assert_eq!(hand_off(&facts(4 * HAND_OFF_NS)), HandOff::Queue);
        assert_eq!(hand_off(&facts(4 * HAND_OFF_NS - 1)), HandOff::Inline);
    }
}
