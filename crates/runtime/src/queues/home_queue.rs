//! One home queue: a lock around lists of batches, and what may be read without the lock.

use homing_sched::{BATCH_ITEMS_MAX, ItemLength, calls_for_decision};

use crate::item::{Batch, Batches, Item, Sealed};
use crate::measure::clock::now_ns;
use crate::queues::lanes::{Lanes, Position};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The items of one queue, in a list for each CPU that they came from and one for all ([`Lanes`]).
///
/// Each list holds batches of as many items as a worker takes at once: taking is O(1), and does not
/// touch the cache lines of items that somebody else will run.
///
/// Field legend: `L` under the lock; `A` atomic, written by the thread that holds the lock (the
/// last two by any thread: they are estimates).
#[derive(Debug)]
#[repr(align(128))] // two cache lines: neighbors are fetched in pairs
pub(crate) struct HomeQueue {
    /// L
    items: Mutex<Items>,
    /// A: how many items there are: a hint that saves taking the lock.
    waiting: AtomicU32,
    /// A: when somebody first saw items wait since some were taken; 0: nobody has.
    head_since_ns: AtomicU64,
    /// A: [`ItemLength`].
    item_ns: AtomicU64,
}

struct Items {
    lanes: Lanes,
    len: u32,
    /// How many items ever went out.
    popped: u64,
    sample: Option<Sample>,
    /// Set at shutdown: nothing comes in any more.
    closed: bool,
}

/// The time in the queue is measured for one item in so many: a clock is not free.
const SAMPLE_EVERY: u64 = 64;

#[derive(Clone, Copy)]
struct Sample {
    position: Position,
    workqueue: u32,
    pushed_ns: u64,
}

/// How long an item waited in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAge {
    pub(crate) workqueue: u32,
    pub(crate) ns: u64,
}

impl std::fmt::Debug for Items {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Items")
            .field("len", &self.len)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl HomeQueue {
    /// For items of so many CPUs.
    pub(crate) fn new(lanes: usize) -> Self {
        let items =
            Items { lanes: Lanes::new(lanes), len: 0, popped: 0, sample: None, closed: false };
        Self {
            items: Mutex::new(items),
            waiting: AtomicU32::new(0),
            head_since_ns: AtomicU64::new(0),
            item_ns: AtomicU64::new(0),
        }
    }

    /// How many items wait, read without the lock.
    pub(crate) fn waiting(&self) -> u32 {
        // Relaxed: the fences of the wake protocol order it.
        self.waiting.load(Ordering::Relaxed)
    }

    /// The present estimate of the items' length.
    pub(crate) fn length(&self) -> ItemLength {
        ItemLength::from_ns(self.item_ns.load(Ordering::Relaxed))
    }

    /// Notes that `items` items ran for `elapsed_ns`. If two threads note at once, one of the notes
    /// is lost.
    pub(crate) fn complete(&self, elapsed_ns: u64, items: u32) {
        let before = self.length();
        let after = before.complete(elapsed_ns, items);
        if after != before {
            self.item_ns.store(after.mean_ns(), Ordering::Relaxed);
        }
    }

    /// When the first item was first seen waiting: now if nobody has seen it before.
    pub(crate) fn head_since_ns(&self, now_ns: impl FnOnce() -> u64) -> u64 {
        let seen = self.head_since_ns.load(Ordering::Relaxed);
        if seen != 0 {
            return seen;
        }
        let now_ns = now_ns();
        self.head_since_ns.store(now_ns, Ordering::Relaxed);
        now_ns
    }

    /// Puts an item at the end of the lane of the CPU with this rank, or of the shared lane.
    /// Returns whether this calls for a decision which CPU to wake; gives the item back if the
    /// queue is closed.
    pub(crate) fn push(&self, cpu: Option<usize>, item: Item) -> Result<bool, Item> {
        let length = self.length();
        let mut items = lock(&self.items);
        if items.closed {
            return Err(item);
        }
        items.push(cpu, [item], length);
        self.publish(items.len);
        Ok(calls_for_decision(length.mean_ns(), items.len))
    }

    /// Puts items at the end of a lane, in order; gives them back if the queue is closed.
    pub(crate) fn push_all(&self, cpu: Option<usize>, new: Sealed) -> Result<(), Sealed> {
        let length = self.length();
        let mut items = lock(&self.items);
        if items.closed {
            return Err(new);
        }
        items.push(cpu, new, length);
        self.publish(items.len);
        Ok(())
    }

    /// Puts back at the front items that were taken; gives them back to the caller if the queue is
    /// closed.
    pub(crate) fn put_back(&self, batch: Sealed) -> Result<(), Sealed> {
        let mut items = lock(&self.items);
        if items.closed {
            return Err(batch);
        }
        items.len += batch.len();
        items.popped -= u64::from(batch.len());
        items.lanes.push_front(batch);
        self.publish(items.len);
        Ok(())
    }

    /// Takes the next batch: at most as many items as the queue's length estimate allows. A worker
    /// from afar, which has no lane, gets at most half of what waits, rounded up. Now and then,
    /// also returns how long one of the items waited.
    pub(crate) fn take(&self, cpu: Option<usize>) -> Option<(Sealed, Option<QueueAge>)> {
        self.take_for(cpu, false)
    }

    /// [`HomeQueue::take`] of one item, for a thread that works for no CPU. The others go on
    /// growing old, because no worker has come for them.
    pub(crate) fn take_in_passing(&self, cpu: Option<usize>) -> Option<(Sealed, Option<QueueAge>)> {
        self.take_for(cpu, true)
    }

    fn take_for(&self, cpu: Option<usize>, passes: bool) -> Option<(Sealed, Option<QueueAge>)> {
        let length = self.length();
        let mut items = lock(&self.items);
        let waiting = items.len;
        let share = if cpu.is_some() { waiting } else { waiting.div_ceil(2) };
        let most = if passes { 1 } else { length.batch(waiting).min(share) };
        let taken = items.lanes.take(cpu, length, most)?;
        items.len -= taken.len();
        items.popped += u64::from(taken.len());
        self.publish(items.len);
        if !passes || items.len == 0 {
            self.head_since_ns.store(0, Ordering::Relaxed);
        }
        let age = items.age_if_sampled();
        Some((taken, age))
    }

    /// Takes the first item for which `is_one` returns `true`.
    pub(crate) fn extract(&self, is_one: impl Fn(&Item) -> bool) -> Option<Item> {
        let mut items = lock(&self.items);
        let mut taken = None;
        items.lanes.sift(|mut all| {
            if taken.is_some() {
                return (all, 0);
            }
            let (mut kept, mut rest) = (Batches::default(), Batch::default());
            while taken.is_none()
                && let Some(batch) = all.pop_front()
            {
                for item in batch {
                    if taken.is_none() && is_one(&item) {
                        taken = Some(item);
                        continue;
                    }
                    rest.push(item);
                    if rest.len() >= BATCH_ITEMS_MAX {
                        rest.seal().into_iter().for_each(|batch| kept.push_back(batch));
                    }
                }
            }
            rest.seal().into_iter().for_each(|batch| kept.push_back(batch));
            // What was not looked at stays as it is.
            kept.append(all);
            (kept, u64::from(taken.is_some()))
        });
        items.len -= u32::from(taken.is_some());
        items.popped += u64::from(taken.is_some());
        let is_empty = items.len == 0;
        if is_empty {
            self.head_since_ns.store(0, Ordering::Relaxed);
        }
        // It may be what was sampled, or the last one that was to go before that.
        let is_sampled = |sample: &mut Sample| {
            taken.as_ref().is_some_and(|item| item.tag().workqueue() == sample.workqueue)
        };
        items.sample.take_if(|sample| is_empty || is_sampled(sample));
        self.publish(items.len);
        taken
    }

    /// Whether items wait: under the lock.
    pub(crate) fn has_any(&self) -> bool {
        lock(&self.items).len > 0
    }

    /// How many items ever went out: under the lock, for callers that look seldom.
    pub(crate) fn popped(&self) -> u64 {
        lock(&self.items).popped
    }

    /// Refuses items from now on, and hands out those that are left.
    pub(crate) fn close(&self) -> Batches {
        let mut items = lock(&self.items);
        items.closed = true;
        let mut left = Batches::default();
        items.lanes.sift(|all| {
            left.append(all);
            (Batches::default(), 0)
        });
        items.len = 0;
        items.sample = None;
        self.publish(0);
        left
    }

    fn publish(&self, len: u32) {
        self.waiting.store(len, Ordering::Relaxed);
    }
}

impl Items {
    fn push(
        &mut self,
        cpu: Option<usize>,
        new: impl IntoIterator<Item = Item>,
        length: ItemLength,
    ) {
        let place = self.lanes.place(cpu, length);
        let lane = self.lanes.lane(place);
        for item in new {
            let number = self.popped + u64::from(self.len);
            if number.is_multiple_of(SAMPLE_EVERY) && self.sample.is_none() {
                let position = lane.next_position(place);
                let workqueue = item.tag().workqueue();
                self.sample = Some(Sample { position, workqueue, pushed_ns: now_ns() });
            }
            lane.push(item, length.batch(self.len));
            self.len += 1;
        }
    }

    fn age_if_sampled(&mut self) -> Option<QueueAge> {
        let sample = self.sample.take_if(|sample| self.lanes.has_gone(sample.position))?;
        let ns = now_ns().saturating_sub(sample.pushed_ns);
        Some(QueueAge { workqueue: sample.workqueue, ns })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::item::{Tag, lone};

    fn item(number: u32) -> Item {
        lone(Tag::new(number, 0), || ())
    }

    fn of(number: u32) -> impl Fn(&Item) -> bool {
        move |item| item.tag().workqueue() == number
    }

    fn items(numbers: std::ops::Range<u32>) -> Sealed {
        let mut batch = Batch::default();
        numbers.for_each(|number| batch.push(item(number)));
        batch.seal().unwrap()
    }

    fn take(queue: &HomeQueue) -> Vec<u32> {
        let (batch, _) = queue.take(Some(0)).unwrap_or_else(|| panic!("the queue is empty"));
        batch.into_iter().map(|item| item.tag().workqueue()).collect()
    }

    #[test]
    fn a_queue_takes_two_lines() {
        assert_eq!(size_of::<HomeQueue>(), 128);
    }

    #[test]
    fn batches_follow_the_length_of_the_items() {
        let queue = HomeQueue::new(2);
        (0..3).for_each(|number| assert!(queue.push(Some(0), item(number)).is_ok()));
        assert_eq!((take(&queue), queue.waiting()), (vec![0], 2), "nothing known: one at a time");
        queue.complete(100, 1);
        assert!(queue.push_all(Some(0), items(3..70)).is_ok());
        assert_eq!([take(&queue), take(&queue)], [vec![1], (2..34).collect()]);
        assert_eq!(queue.waiting(), 36);
        queue.complete(1_000_000, 1);
        assert_eq!(take(&queue), [34], "they turned out long");
        let (Some((batch, _)), 34) = (queue.take(Some(0)), queue.waiting()) else {
            panic!("35 were there")
        };
        assert!(queue.put_back(batch).is_ok());
        assert_eq!((take(&queue), queue.waiting()), (vec![35], 34));
    }

    #[test]
    fn a_closed_queue_refuses_and_hands_out_the_rest() {
        let queue = HomeQueue::new(2);
        (0..4).for_each(|number| assert!(queue.push(Some(0), item(number)).is_ok()));
        let (taken, _) = queue.take(Some(0)).unwrap_or_else(|| panic!("4 are there"));
        let mut left = queue.close();
        assert_eq!(left.pop_front().map(|batch| batch.len()), Some(1));
        assert!(queue.put_back(taken).is_err_and(|refused| refused.len() == 1));
        assert!(queue.push(Some(0), item(3)).is_err_and(|refused| refused.tag().workqueue() == 3));
        assert!(queue.push_all(Some(0), items(4..6)).is_err_and(|refused| refused.len() == 2));
        assert!(queue.take(Some(0)).is_none());
    }

    #[test]
    fn all_lanes_are_searched_emptied_and_closed() {
        let queue = HomeQueue::new(3);
        for number in 0..9 {
            let cpu = Some(number as usize % 4).filter(|cpu| *cpu < 3);
            assert!(queue.push(cpu, item(number % 2)).is_ok());
        }
        assert_eq!((0..9).filter_map(|_| queue.extract(of(1))).count(), 4);
        let (taken, _) = queue.take(Some(1)).unwrap_or_else(|| panic!("5 are left"));
        assert!(queue.put_back(taken).is_ok());
        assert_eq!(queue.waiting(), 5);
        let mut left = queue.close();
        let all = std::iter::from_fn(|| left.pop_front()).map(|batch| batch.len());
        assert_eq!((all.sum::<u32>(), queue.waiting()), (5, 0));
    }

    #[test]
    fn from_afar_half_is_taken_and_what_is_put_back_into_an_empty_queue_is_found() {
        let queue = HomeQueue::new(2);
        queue.complete(100, 1);
        assert!(queue.push_all(Some(1), items(0..10)).is_ok());
        let (batch, _) = queue.take(None).unwrap_or_else(|| panic!("10 are there"));
        assert_eq!((batch.len(), queue.waiting()), (5, 5));
        drop(queue.take(Some(1)));
        assert!(queue.put_back(batch).is_ok());
        assert_eq!((take(&queue), queue.waiting()), (vec![0, 1, 2, 3, 4], 0));
    }

    #[test]
    fn a_rescuer_takes_its_own_and_the_rest_keeps_its_order() {
        let queue = HomeQueue::new(2);
        queue.complete(1_000, 1);
        for _ in 0..3 {
            assert!(queue.push_all(Some(0), items(0..4)).is_ok());
        }
        for _ in 0..2 {
            assert_eq!(queue.extract(of(2)).map(|item| item.tag().workqueue()), Some(2));
        }
        assert!(queue.extract(of(7)).is_none());
        assert_eq!(queue.waiting(), 10);
        let rest: Vec<_> =
            std::iter::from_fn(|| queue.take(Some(0))).flat_map(|(b, _)| b).collect();
        let rest: Vec<_> = rest.iter().map(|item| item.tag().workqueue()).collect();
        assert_eq!(rest, [0, 1, 3, 0, 1, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn the_head_ages_from_when_it_is_first_seen() {
        let queue = HomeQueue::new(2);
        assert!(queue.push(Some(0), item(0)).is_ok());
        assert_eq!(queue.head_since_ns(|| 70), 70);
        assert_eq!(queue.head_since_ns(|| 90), 70);
        drop(take(&queue));
        assert_eq!(queue.head_since_ns(|| 120), 120);
    }

    #[test]
    fn what_is_taken_in_passing_makes_no_item_younger() {
        let queue = HomeQueue::new(2);
        (0..2).for_each(|number| assert!(queue.push(Some(0), item(number)).is_ok()));
        assert_eq!(queue.head_since_ns(|| 70), 70);
        assert_eq!(queue.take_in_passing(Some(0)).map(|(batch, _)| batch.len()), Some(1));
        assert_eq!(queue.head_since_ns(|| 90), 70);
        drop(queue.take_in_passing(Some(0)));
        assert_eq!(queue.head_since_ns(|| 120), 120, "the next one has just come");
    }
}
