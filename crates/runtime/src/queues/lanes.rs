//! The items of one home queue, by the CPUs that they came from.
//!
//! A worker first takes what its own CPU has issued. The thread that waits for such an item sleeps
//! on that CPU, with its data in the caches there, and is woken by that CPU, which need not ask
//! another one (`docs/decisions/0010-why-does-a-worker-take-its-own-cpus-items-first.md` says what
//! this gives).
//!
//! * `LANE-1` One lane is everybody's. It is for items of CPUs that have no worker here, for items
//!   that were put back, and, while items are long, for all items. Each worker takes from it and
//!   from its own lane by turns.
//! * `LANE-2` A lane that was not served for long is everybody's, too, until its own worker takes
//!   from it again: that worker is held up, or gone. Long is [`LATE_NS`] of work, and at least
//!   [`ROUNDS`] batches for each lane.
//! * `LANE-3` A worker that finds nothing in these takes from the lane that was not served for
//!   longest. So nothing is left while any worker takes.

use homing_sched::{IDLE_PATIENCE_NS, ItemLength};

use crate::item::{Batch, Batches, Item, Sealed};

/// How long a lane may wait for its own worker, in nanoseconds of work. Guessed: as long as any
/// worker waits before it pulls from anywhere. Items that run for so long are not worth lanes:
/// measured, 32 KiB of AES and SHA, 160 us, 4 issuers: 1 % more throughput, and 1.5 times the p99.
const LATE_NS: u64 = IDLE_PATIENCE_NS;
/// Guessed: if each worker serves its own lane, all lanes are served within two rounds.
const ROUNDS: u32 = 4;
/// At one batch in so many, late lanes are looked for.
const LOOK_EVERY: u32 = 8;
/// What a batch takes in addition to its items, in nanoseconds: guessed from the 1 to 2 million
/// that two CPUs take in a second.
const BATCH_NS_MIN: u64 = 500;
/// For how many batches the shared lane counts as not served after items were put back there,
/// because these have waited before.
const WAITED: u32 = 1 << 31;
/// How many lanes there can be, with a bit for each. CPUs beyond that share lanes.
const LANES_MAX: usize = 64;

/// The lane that is everybody's.
pub(crate) const SHARED: usize = 0;

pub(crate) struct Lanes {
    lanes: Box<[Lane]>,
    /// The lanes with items: a bit for each.
    filled: u64,
    /// The lanes that are everybody's at present.
    shared: u64,
    /// Batches that were taken, modulo 2^32.
    taken: u32,
}

#[derive(Default)]
#[repr(align(64))] // a thread that puts in or takes fetches one cache line for it
pub(crate) struct Lane {
    full: Batches,
    open: Batch,
    /// [`Lanes::taken`] when the lane was served last, or when its first item came.
    served: u32,
    /// Items that ever came in and went out.
    pushed: u64,
    popped: u64,
}

/// An item's place: the lane, and its number there.
#[derive(Clone, Copy)]
pub(crate) struct Position(u64);

const LANE_BITS: u32 = LANES_MAX.ilog2();

impl Lanes {
    /// Lanes for so many CPUs.
    pub(crate) fn new(cpus: usize) -> Self {
        let lanes = (0..=cpus.clamp(1, LANES_MAX - 1)).map(|_| Lane::default()).collect();
        Self { lanes, filled: 0, shared: 1 << SHARED, taken: 0 }
    }

    /// The lane of the CPU with this rank, from 0.
    fn own(&self, cpu: usize) -> usize {
        let cpus = self.lanes.len() - 1;
        1 + if cpu < cpus { cpu } else { cpu % cpus }
    }

    /// The lane that the next item of a CPU goes to, by its rank, while items are about so long.
    pub(crate) fn place(&self, cpu: Option<usize>, length: ItemLength) -> usize {
        let near = cpu.filter(|_| length.mean_ns() < LATE_NS);
        near.map_or(SHARED, |cpu| self.own(cpu))
    }

    /// The lane at this place. The caller has to put something into it.
    pub(crate) fn lane(&mut self, place: usize) -> &mut Lane {
        self.fill(place);
        &mut self.lanes[place]
    }

    fn fill(&mut self, place: usize) {
        if self.filled >> place & 1 == 0 {
            self.filled |= 1 << place;
            self.lanes[place].served = self.taken;
        }
    }

    /// Whether the item at this position has gone, or one behind it.
    pub(crate) fn has_gone(&self, position: Position) -> bool {
        let lane = position.0 as usize % LANES_MAX;
        position.0 >> LANE_BITS < self.lanes[lane].popped
    }

    /// Puts back items that were taken, for the worker that comes first.
    pub(crate) fn push_front(&mut self, batch: Sealed) {
        self.filled |= 1 << SHARED;
        let lane = &mut self.lanes[SHARED];
        lane.served = self.taken.wrapping_sub(WAITED);
        lane.pushed += u64::from(batch.len());
        lane.full.push_front(batch);
    }

    /// Takes a batch of at most `at_most` items, which are about so long, for a CPU with a lane or
    /// without.
    pub(crate) fn take(
        &mut self,
        cpu: Option<usize>,
        length: ItemLength,
        at_most: u32,
    ) -> Option<Sealed> {
        let own = cpu.map(|cpu| self.own(cpu));
        if self.taken.is_multiple_of(LOOK_EVERY) {
            self.share_late(length, at_most);
        }
        if let Some(own) = own {
            self.shared &= !(1 << own);
        }
        let place = self.next(own)?;
        self.taken = self.taken.wrapping_add(1);
        let lane = &mut self.lanes[place];
        lane.served = self.taken;
        let next = lane.full.pop_front().or_else(|| lane.open.seal())?;
        // The items may have turned out longer than when the batch was filled.
        let (taken, rest) = next.split(at_most);
        if let Some(rest) = rest {
            lane.full.push_front(rest);
        }
        lane.popped += u64::from(taken.len());
        if lane.is_empty() {
            self.filled &= !(1 << place);
        }
        Some(taken)
    }

    fn next(&self, own: Option<usize>) -> Option<usize> {
        let open = self.filled & (self.shared | own.map_or(0, |own| 1 << own));
        // Mostly only the own lane is open.
        if own.is_some() && open.is_power_of_two() {
            return Some(open.trailing_zeros() as usize);
        }
        let open = if own.is_some() && open != 0 { open } else { self.filled };
        bits(open).max_by_key(|place| self.waits(*place))
    }

    /// For how many batches a lane was not served.
    fn waits(&self, place: usize) -> u32 {
        self.taken.wrapping_sub(self.lanes[place].served)
    }

    /// `LANE-2`.
    fn share_late(&mut self, length: ItemLength, batch: u32) {
        let batch_ns = match length.mean_ns() {
            0 => LATE_NS, // nothing is known
            mean_ns => mean_ns.saturating_mul(batch.into()).max(BATCH_NS_MIN),
        };
        let late = (LATE_NS / batch_ns).max(u64::from(ROUNDS) * (self.lanes.len() as u64 - 1));
        for place in bits(self.filled & !self.shared) {
            if u64::from(self.waits(place)) >= late {
                self.shared |= 1 << place;
            }
        }
    }

    /// Takes all items that wait, lane by lane, and leaves in each lane what `keep` returns of it.
    pub(crate) fn sift(&mut self, mut keep: impl FnMut(Batches) -> (Batches, u64)) {
        for place in bits(self.filled) {
            let lane = &mut self.lanes[place];
            let mut all = std::mem::take(&mut lane.full);
            lane.open.seal().into_iter().for_each(|batch| all.push_back(batch));
            let (kept, gone) = keep(all);
            lane.full = kept;
            lane.popped += gone;
            if lane.is_empty() {
                self.filled &= !(1 << place);
            }
        }
    }
}

impl Lane {
    /// Puts an item at the end, into batches of so many items.
    pub(crate) fn push(&mut self, item: Item, batch: u32) {
        if self.open.len() >= batch {
            self.open.seal().into_iter().for_each(|batch| self.full.push_back(batch));
        }
        self.open.push(item);
        self.pushed += 1;
    }

    /// Where the next item will stand, in the lane at this place.
    pub(crate) fn next_position(&self, place: usize) -> Position {
        Position(self.pushed << LANE_BITS | place as u64)
    }

    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.open.len() == 0
    }
}

fn bits(mut of: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (of != 0).then(|| of.trailing_zeros() as usize)?;
        of &= of - 1;
        Some(bit)
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::item::{Tag, lone};

    /// Long enough for the smallest bound of `LANE-2`.
    const SHORT: ItemLength = ItemLength::from_ns(LATE_NS - 1);
    const LONG: ItemLength = ItemLength::from_ns(LATE_NS);

    fn item(number: u32) -> Item {
        lone(Tag::new(number, 0), || ())
    }

    fn push(lanes: &mut Lanes, cpu: usize, number: u32, length: ItemLength) {
        let place = lanes.place(Some(cpu), length);
        lanes.lane(place).push(item(number), 1);
    }

    fn numbers(batches: Batches) -> Vec<u32> {
        let mut left = batches;
        let all = std::iter::from_fn(|| left.pop_front()).flatten();
        all.map(|item| item.tag().workqueue()).collect()
    }

    fn take(lanes: &mut Lanes, cpu: Option<usize>) -> Option<u32> {
        let batch = lanes.take(cpu, SHORT, 1)?;
        batch.into_iter().next().map(|item| item.tag().workqueue())
    }

    #[test]
    fn a_worker_takes_its_own_first_and_then_others() {
        let mut lanes = Lanes::new(3);
        (0..6).for_each(|number| push(&mut lanes, number as usize % 3, number, SHORT));
        assert_eq!([(); 2].map(|()| take(&mut lanes, Some(1))), [Some(1), Some(4)]);
        assert_eq!(take(&mut lanes, Some(2)), Some(2));
        let rest: Vec<_> = (0..4).map(|_| take(&mut lanes, Some(1))).collect();
        assert_eq!(rest, [Some(0), Some(5), Some(3), None], "who was not served for longest");
        push(&mut lanes, 7, 8, SHORT);
        assert_eq!(take(&mut lanes, None), Some(8), "lanes are shared where there are too few");
    }

    /// `LANE-2`: as if there were one list, until the other worker comes.
    #[test]
    fn lanes_without_a_worker_become_everybodys() {
        let mut lanes = Lanes::new(4);
        for number in 0..400 {
            for cpu in 0..4 {
                push(&mut lanes, cpu, cpu as u32 * 1000 + number, SHORT);
            }
        }
        let at_first = 4 * ROUNDS + LOOK_EVERY;
        let alone = (0..at_first).filter(|_| take(&mut lanes, Some(0)).unwrap() < 1000).count();
        assert!(alone as u32 >= 4 * ROUNDS, "{alone}");
        let mut took = [0; 4];
        (0..200).for_each(|_| took[take(&mut lanes, Some(0)).unwrap() as usize / 1000] += 1);
        assert!(took.iter().all(|took| (45..=55).contains(took)), "{took:?}");
        take(&mut lanes, Some(1));
        let of_1 = |number: &u32| number / 1000 == 1;
        let next: Vec<_> = (0..4 * ROUNDS - 1).filter_map(|_| take(&mut lanes, Some(0))).collect();
        assert!(!next.iter().any(of_1), "its worker is back: {next:?}");
    }

    #[test]
    fn nothing_known_is_taken_for_long() {
        let mut lanes = Lanes::new(2);
        (0..1000).for_each(|number| push(&mut lanes, 0, number, SHORT));
        push(&mut lanes, 1, 1000, SHORT);
        let unknown = ItemLength::from_ns(0);
        let took = (0..2 * ROUNDS + LOOK_EVERY + 2).any(|_| {
            let batch = lanes.take(Some(0), unknown, 1).unwrap();
            batch.tag().workqueue() == 1000
        });
        assert!(took);
    }

    /// `LANE-1`.
    #[test]
    fn what_is_everybodys_and_the_own_lane_take_turns() {
        let mut lanes = Lanes::new(2);
        (0..4).for_each(|number| push(&mut lanes, 1, number, SHORT));
        (10..13).for_each(|number| push(&mut lanes, 0, number, LONG));
        let mut back = Batch::default();
        back.push(item(20));
        lanes.push_front(back.seal().unwrap());
        let took: Vec<_> = (0..8).filter_map(|_| take(&mut lanes, Some(1))).collect();
        let shared: Vec<_> = took.iter().copied().filter(|number| *number >= 10).collect();
        let own: Vec<_> = took.iter().copied().filter(|number| *number < 10).collect();
        assert_eq!((shared, own), (vec![20, 10, 11, 12], vec![0, 1, 2, 3]));
        assert!(took[..2].contains(&20), "{took:?}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(Option<usize>, bool),
        Take(Option<usize>),
        /// Takes a batch and puts it back.
        Return(usize),
        /// Leaves the even numbers in each lane.
        Sift,
    }

    fn step() -> impl Strategy<Value = Step> {
        let cpu = || prop::option::of(0..6_usize);
        prop_oneof![
            4 => (cpu(), any::<bool>()).prop_map(|(cpu, long)| Step::Push(cpu, long)),
            4 => cpu().prop_map(Step::Take),
            1 => (0..6_usize).prop_map(Step::Return),
            1 => Just(Step::Sift),
        ]
    }

    proptest! {
        /// `LANE-3`, lanes are lists, and nothing is lost or doubled.
        #[test]
        fn lanes_are_lists_each_by_itself(
            cpus in 1..5_usize,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut lanes = Lanes::new(cpus);
            let mut model = vec![VecDeque::new(); cpus + 1];
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u32;
                match step {
                    Step::Push(cpu, long) => {
                        let length = if long { LONG } else { SHORT };
                        let place = lanes.place(cpu, length);
                        let own = cpu.filter(|_| !long).map(|cpu| 1 + cpu % cpus);
                        prop_assert_eq!(place, own.unwrap_or(SHARED));
                        lanes.lane(place).push(item(number), 1);
                        model[place].push_back(number);
                    }
                    Step::Take(cpu) => {
                        let took = take(&mut lanes, cpu);
                        let from = model.iter_mut().find(|lane| lane.front().copied() == took);
                        match took {
                            Some(_) => drop(from.expect("no front of a lane").pop_front()),
                            None => prop_assert!(model.iter().all(VecDeque::is_empty)),
                        }
                    }
                    Step::Return(cpu) => {
                        let Some(batch) = lanes.take(Some(cpu), SHORT, 1) else { continue };
                        let back = batch.tag().workqueue();
                        let from = model.iter_mut().find(|lane| lane.front() == Some(&back));
                        from.expect("no front of a lane").pop_front();
                        model[SHARED].push_front(back);
                        lanes.push_front(batch);
                    }
                    Step::Sift => {
                        let mut odd = Vec::new();
                        lanes.sift(|all| {
                            let (mut kept, before) = (Batches::default(), odd.len());
                            for number in numbers(all) {
                                let mut one = Batch::default();
                                one.push(item(number));
                                match number % 2 {
                                    0 => kept.push_back(one.seal().unwrap()),
                                    _ => odd.push(number),
                                }
                            }
                            (kept, (odd.len() - before) as u64)
                        });
                        let all = model.iter().flatten();
                        prop_assert!(odd.iter().eq(all.filter(|number| *number % 2 == 1)));
                        for lane in &mut model {
                            lane.retain(|number| number % 2 == 0);
                        }
                    }
                }
                let filled = model.iter().enumerate().filter(|(_, lane)| !lane.is_empty());
                prop_assert!(bits(lanes.filled).eq(filled.map(|(place, _)| place)));
            }
        }
    }
}
