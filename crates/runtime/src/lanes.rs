//! The items of one home queue, by the CPUs that they came from.
//!
//! A worker takes what its own CPU has issued first: whoever waits for it sleeps there, with its data
//! in the caches of that CPU, and is woken by a CPU that need not ask another one. Measured, 16 clients
//! that wait for each of their items, 2 CPUs: 270,000 trips a second from one list, 570,000 like this
//! (`docs/decisions/0010-why-does-a-worker-take-its-own-cpus-items-first.md`).
//!
//! * `LANE-1` Items of one lane leave it in the order in which they came.
//! * `LANE-2` A lane that was not served for long comes before one's own: its worker is held up, or
//!   gone. Long is [`LATE_NS`] of work, but [`ROUNDS`] batches for each lane at least.
//! * `LANE-3` Items of [`LATE_NS`] and more come in one lane: beside them a wake-up is little, and a
//!   CPU with many issuers would wait for longer than one with few.
//! * `LANE-4` Whoever has no lane here, or nothing in it, takes from that lane, too. So nothing is left
//!   while anybody takes.

use homing_sched::{IDLE_PATIENCE_NS, ItemLength};

use crate::item::{Batch, Batches, Item, Sealed};

/// How long a lane may wait for its own worker, in nanoseconds. Guessed: what any worker has of patience
/// before it pulls from anywhere. Measured, 32 KiB of AES and SHA, 160 us, 4 issuers: in lanes 1 % more
/// throughput, and 1.5 times the p99.
const LATE_NS: u64 = IDLE_PATIENCE_NS;
/// Guessed: where each worker serves its own lane, all lanes are served within two.
const ROUNDS: u32 = 4;
/// One batch in so many looks for lanes that are late.
const LOOK_EVERY: u32 = 8;
/// CPUs beyond that share lanes. There is a bit for each.
pub(crate) const LANES_MAX: usize = 64;

pub(crate) struct Lanes {
    lanes: Box<[Lane]>,
    /// Those with items: a bit for each.
    filled: u64,
    /// Batches that were taken, modulo 2^32.
    taken: u32,
}

#[derive(Default)]
#[repr(align(64))] // one cache line is fetched for it, by whoever puts in or takes
pub(crate) struct Lane {
    full: Batches,
    open: Batch,
    /// [`Lanes::taken`] when it was served last, or when its first item came.
    served: u32,
}

impl Lanes {
    pub(crate) fn new(count: usize) -> Self {
        let lanes = (0..count.clamp(1, LANES_MAX)).map(|_| Lane::default()).collect();
        Self { lanes, filled: 0, taken: 0 }
    }

    fn index(&self, lane: usize, length: ItemLength) -> usize {
        match lane {
            _ if length.mean_ns() >= LATE_NS => 0,
            lane if lane < self.lanes.len() => lane,
            lane => lane % self.lanes.len(),
        }
    }

    /// The lane for items that are about so long. Something has to be put into it.
    pub(crate) fn lane(&mut self, lane: usize, length: ItemLength) -> &mut Lane {
        let index = self.index(lane, length);
        let lane = &mut self.lanes[index];
        if self.filled >> index & 1 == 0 {
            self.filled |= 1 << index;
            lane.served = self.taken;
        }
        lane
    }

    /// Puts items that were taken back to the front of a lane, for whoever comes first.
    pub(crate) fn push_front(&mut self, batch: Sealed) {
        self.filled |= 1;
        self.lanes[0].full.push_front(batch);
    }

    /// Takes a batch of a lane, of so many items at most, where they are about so long.
    pub(crate) fn take(
        &mut self,
        own: Option<usize>,
        length: ItemLength,
        at_most: u32,
    ) -> Option<Sealed> {
        let index = self.next(own, length, at_most)?;
        self.taken = self.taken.wrapping_add(1);
        let lane = &mut self.lanes[index];
        lane.served = self.taken;
        let next = lane.full.pop_front().or_else(|| lane.open.seal())?;
        // They may have turned out longer than when the batch was filled.
        let (taken, rest) = next.split(at_most);
        if let Some(rest) = rest {
            lane.full.push_front(rest);
        } else if lane.full.is_empty() && lane.open.len() == 0 {
            self.filled &= !(1 << index);
        }
        Some(taken)
    }

    fn next(&self, own: Option<usize>, length: ItemLength, batch: u32) -> Option<usize> {
        let own =
            own.map(|lane| self.index(lane, length)).filter(|lane| self.filled >> lane & 1 == 1);
        if own.is_some() && !self.taken.is_multiple_of(LOOK_EVERY) {
            return own;
        }
        let waits = |lane: &usize| self.taken.wrapping_sub(self.lanes[*lane].served);
        let oldest = self.filled_lanes().max_by_key(waits)?;
        let batch_ns = length.mean_ns().saturating_mul(batch.into()).max(1);
        let late = (LATE_NS / batch_ns).max(u64::from(ROUNDS) * self.lanes.len() as u64);
        Some(own.filter(|_| u64::from(waits(&oldest)) < late).unwrap_or(oldest))
    }

    fn filled_lanes(&self) -> impl Iterator<Item = usize> + use<> {
        let mut filled = self.filled;
        std::iter::from_fn(move || {
            let lane = (filled != 0).then(|| filled.trailing_zeros() as usize)?;
            filled &= filled - 1;
            Some(lane)
        })
    }

    /// Takes all that waits, lane by lane, and leaves in each what `keep` does of it.
    pub(crate) fn sift(&mut self, mut keep: impl FnMut(Batches) -> Batches) {
        for index in self.filled_lanes() {
            let lane = &mut self.lanes[index];
            let mut all = std::mem::take(&mut lane.full);
            lane.open.seal().into_iter().for_each(|batch| all.push_back(batch));
            lane.full = keep(all);
            if lane.full.is_empty() {
                self.filled &= !(1 << index);
            }
        }
    }
}

impl Lane {
    /// Puts an item at the end, where batches get so many.
    pub(crate) fn push(&mut self, item: Item, batch: u32) {
        if self.open.len() >= batch {
            self.open.seal().into_iter().for_each(|batch| self.full.push_back(batch));
        }
        self.open.push(item);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::item::{Tag, lone};

    /// Long enough for the smallest bound of `LANE-2`.
    const SHORT: ItemLength = ItemLength::from_ns(LATE_NS - 1);

    fn push(lanes: &mut Lanes, lane: usize, number: u32) {
        lanes.lane(lane, SHORT).push(lone(Tag::new(number, 0), || ()), 1);
    }

    fn take(lanes: &mut Lanes, own: Option<usize>) -> Option<u32> {
        let batch = lanes.take(own, SHORT, 1)?;
        batch.into_iter().next().map(|item| item.tag().workqueue())
    }

    #[test]
    fn a_worker_takes_its_own_first_and_then_others() {
        let mut lanes = Lanes::new(3);
        (0..6).for_each(|number| push(&mut lanes, number as usize % 3, number));
        assert_eq!([(); 2].map(|()| take(&mut lanes, Some(1))), [Some(1), Some(4)]);
        assert_eq!(take(&mut lanes, Some(2)), Some(2));
        assert_eq!(take(&mut lanes, None), Some(0), "this lane was never served");
        assert_eq!(take(&mut lanes, Some(1)), Some(5), "nor that one for long");
        assert_eq!([(); 2].map(|()| take(&mut lanes, Some(1))), [Some(3), None]);
        push(&mut lanes, 7, 8);
        assert_eq!(take(&mut lanes, Some(1)), Some(8), "lanes are shared where there are too few");
    }

    /// `LANE-2`: the other lanes' workers never come.
    #[test]
    fn a_lane_that_nobody_serves_waits_for_a_bounded_time() {
        let mut lanes = Lanes::new(4);
        for number in 0..1000 {
            push(&mut lanes, 0, number);
        }
        for lane in 1..4 {
            push(&mut lanes, lane, 1000 + lane as u32);
        }
        let mut took = (0..4 * ROUNDS + 4 * LOOK_EVERY).map(|_| take(&mut lanes, Some(0)).unwrap());
        assert!(took.by_ref().take(4 * ROUNDS as usize).all(|number| number < 1000), "too soon");
        assert_eq!(took.filter(|number| *number > 1000).count(), 3);
    }

    /// `LANE-3`, also while the estimate changes.
    #[test]
    fn long_items_are_one_list() {
        let long = ItemLength::from_ns(LATE_NS);
        let mut lanes = Lanes::new(2);
        push(&mut lanes, 1, 0);
        for number in 1..5 {
            lanes.lane(number % 2, long).push(lone(Tag::new(number as u32, 0), || ()), 1);
        }
        let mut took = || {
            let batch = lanes.take(Some(1), long, 1)?;
            batch.into_iter().next().map(|item| item.tag().workqueue())
        };
        let all: Vec<_> = std::iter::from_fn(&mut took).collect();
        assert_eq!(all.iter().filter(|number| **number > 0).collect::<Vec<_>>(), [&1, &2, &3, &4]);
        assert!(all.contains(&0));
    }

    proptest! {
        /// `LANE-1`, `LANE-4`, and nothing is lost or doubled.
        #[test]
        fn lanes_are_lists_each_by_itself(
            count in 1..5_usize,
            steps in prop::collection::vec((any::<bool>(), prop::option::of(0..6_usize)), 1..200),
        ) {
            let mut lanes = Lanes::new(count);
            let mut model = vec![VecDeque::new(); count];
            for (number, (pushes, lane)) in steps.into_iter().enumerate() {
                if pushes {
                    let lane = lane.unwrap_or(0);
                    push(&mut lanes, lane, number as u32);
                    model[lane % count].push_back(number as u32);
                } else {
                    let took = take(&mut lanes, lane);
                    let fronts = model.iter_mut().find(|lane| lane.front().copied() == took);
                    match took {
                        Some(_) => drop(fronts.expect("no front of a lane").pop_front()),
                        None => prop_assert!(model.iter().all(VecDeque::is_empty)),
                    }
                }
                let filled = model.iter().enumerate().filter(|(_, lane)| !lane.is_empty());
                prop_assert!(lanes.filled_lanes().eq(filled.map(|(index, _)| index)));
            }
        }
    }
}
