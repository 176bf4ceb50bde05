//! Lists of items through their own links: no allocation, and O(1) to hand over.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use homing_sched::QueueId;

use super::header::{Header, Item, Link, Tag};
use super::prefetch::prefetch_to_write;
use crate::sync::{AtomicPtr, Ordering};

/// # Safety
/// The caller owns the item that begins there.
unsafe fn link<'a>(header: NonNull<Header>) -> &'a mut Link {
    // SAFETY: the owner of an item owns its link.
    unsafe { &mut *header.as_ref().link.get() }
}

/// A list of items that grows at its end.
#[derive(Default)]
pub(crate) struct Batch {
    ends: Option<(NonNull<Header>, NonNull<Header>)>,
    len: u32,
}

// SAFETY: it owns its items, which are `Send`.
unsafe impl Send for Batch {}

impl Batch {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn push(&mut self, item: Item) {
        let header = item.into_header();
        // SAFETY: we own the item, and those of the list.
        unsafe {
            link(header).next = None;
            self.ends = match self.ends {
                Some((first, last)) => {
                    link(last).next = Some(header);
                    Some((first, header))
                }
                None => Some((header, header)),
            };
        }
        self.len += 1;
    }

    /// Closes the list; `None` if it is empty.
    pub(crate) fn seal(&mut self) -> Option<Sealed> {
        let (first, _) = self.ends.take()?;
        // SAFETY: we own the item.
        unsafe {
            link(first).batch_len = self.len;
            link(first).next_batch = None;
        }
        self.len = 0;
        Some(Sealed { first })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        drop(self.seal());
    }
}

/// One or more items, first in first out. Dropping it cancels them.
pub(crate) struct Sealed {
    first: NonNull<Header>,
}

// SAFETY: it owns its items, which are `Send`.
unsafe impl Send for Sealed {}

impl From<Item> for Sealed {
    fn from(item: Item) -> Self {
        let first = item.into_header();
        // SAFETY: we own the item.
        let link = unsafe { link(first) };
        (link.next, link.next_batch, link.batch_len) = (None, None, 1);
        Self { first }
    }
}

impl Sealed {
    pub(crate) fn len(&self) -> u32 {
        // SAFETY: we own the item.
        unsafe { link(self.first).batch_len }
    }

    /// The queue that its items come from: a batch is of one queue.
    pub(crate) fn queue(&self) -> QueueId {
        // SAFETY: we own the item.
        unsafe { link(self.first).queue }
    }

    /// The tag of its first item.
    pub(crate) fn tag(&self) -> Tag {
        // SAFETY: we own the item, so it lives.
        unsafe { self.first.as_ref() }.tag()
    }

    /// Notes the queue that its items are about to be put in.
    pub(crate) fn set_queue(&mut self, queue: QueueId) {
        let mut next = Some(self.first);
        while let Some(header) = next {
            // SAFETY: we own the items.
            unsafe {
                link(header).queue = queue;
                next = link(header).next;
            }
        }
    }

    fn into_first(self) -> NonNull<Header> {
        std::mem::ManuallyDrop::new(self).first
    }

    /// The first item, and the others.
    pub(crate) fn split_first(self) -> (Item, Option<Self>) {
        let first = self.into_first();
        // SAFETY: we own the whole list: the first item goes out, the rest stays with us.
        unsafe {
            let len = link(first).batch_len;
            let rest = link(first).next.take();
            if let Some(rest) = rest {
                link(rest).batch_len = len - 1;
                link(rest).next_batch = None;
                // While the first item runs, the line of the one behind `rest` is on its way.
                prefetch_to_write(link(rest).next);
            }
            (Item::from_header(first), rest.map(|first| Self { first }))
        }
    }

    /// The first `count` items, and the others. `count` is at least 1.
    pub(crate) fn split(self, count: u32) -> (Self, Option<Self>) {
        let len = self.len();
        if count >= len {
            return (self, None);
        }
        // SAFETY: we own the whole list, which is longer than `count`.
        unsafe {
            let mut last = self.first;
            for _ in 1..count.max(1) {
                last = link(last).next.unwrap_or(last);
            }
            link(self.first).batch_len = count.max(1);
            let rest = link(last).next.take();
            if let Some(rest) = rest {
                link(rest).batch_len = len - count.max(1);
                link(rest).next_batch = None;
            }
            (self, rest.map(|first| Self { first }))
        }
    }
}

/// Its items, one by one.
pub(crate) struct IntoIter {
    left: Option<Sealed>,
}

impl IntoIterator for Sealed {
    type Item = Item;
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter { left: Some(self) }
    }
}

impl Iterator for IntoIter {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let (first, rest) = self.left.take()?.split_first();
        self.left = rest;
        Some(first)
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        let mut next = Some(self.first);
        while let Some(header) = next {
            // SAFETY: we own the items; the link is read before the item ends.
            unsafe {
                next = link(header).next.take();
                drop(Item::from_header(header));
            }
        }
    }
}

/// A queue of batches.
#[derive(Default)]
pub(crate) struct Batches {
    ends: Option<(NonNull<Header>, NonNull<Header>)>,
}

// SAFETY: it owns its items, which are `Send`.
unsafe impl Send for Batches {}

impl Batches {
    pub(crate) fn push_back(&mut self, batch: Sealed) {
        let first = batch.into_first();
        // SAFETY: we own the batch, and those of the queue.
        unsafe {
            link(first).next_batch = None;
            self.ends = match self.ends {
                Some((front, back)) => {
                    link(back).next_batch = Some(first);
                    Some((front, first))
                }
                None => Some((first, first)),
            };
        }
    }

    pub(crate) fn push_front(&mut self, batch: Sealed) {
        let first = batch.into_first();
        // SAFETY: as above.
        unsafe {
            link(first).next_batch = self.ends.map(|(front, _)| front);
        }
        self.ends = Some((first, self.ends.map_or(first, |(_, back)| back)));
    }

    /// Puts all batches of another queue behind its own.
    pub(crate) fn append(&mut self, mut other: Self) {
        let Some((front, back)) = other.ends.take() else { return };
        self.ends = match self.ends {
            Some((first, last)) => {
                // SAFETY: we own the batches of both.
                unsafe { link(last).next_batch = Some(front) };
                Some((first, back))
            }
            None => Some((front, back)),
        };
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    pub(crate) fn pop_front(&mut self) -> Option<Sealed> {
        let (front, back) = self.ends?;
        // SAFETY: as above.
        let next = unsafe { link(front).next_batch.take() };
        self.ends = next.map(|next| (next, back));
        Some(Sealed { first: front })
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        while let Some(batch) = self.pop_front() {
            drop(batch);
        }
    }
}

/// What a worker has taken and not yet begun. Its owner takes from it; anybody may take all.
///
/// Only the owner puts something in, and only when it is empty: so a swap is all it takes, and
/// nobody follows a link of an item that somebody else owns.
#[derive(Debug)]
pub(crate) struct Hand {
    first: AtomicPtr<Header>,
}

impl Hand {
    pub(crate) fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Puts a batch in. The owner calls this, when it has found the hand empty.
    pub(crate) fn put(&self, batch: Sealed) {
        let first = batch.into_first().as_ptr();
        // A store will do: others only ever swap null for null meanwhile. Loom would let such a
        // swap overwrite the store without having read it, which no memory model allows.
        #[cfg(not(loom))]
        self.first.store(first, Ordering::Release);
        #[cfg(loom)]
        self.first.swap(first, Ordering::AcqRel);
    }

    /// Takes the first item. The owner calls this.
    pub(crate) fn pop(&self) -> Option<Item> {
        // First a look without a locked instruction, because mostly the hand is empty.
        if self.first.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let (item, rest) = self.take()?.split_first();
        if let Some(rest) = rest {
            self.put(rest);
        }
        Some(item)
    }

    /// Whether there is nothing in it, as far as anybody may see.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.load(Ordering::Relaxed).is_null()
    }

    /// Takes everything. Anybody may call this.
    pub(crate) fn take(&self) -> Option<Sealed> {
        let first = self.first.swap(ptr::null_mut(), Ordering::AcqRel);
        NonNull::new(first).map(|first| Sealed { first })
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::item::{Tag, lone};

    fn batch(numbers: std::ops::Range<u32>, alive: &Arc<AtomicUsize>) -> Sealed {
        let mut batch = Batch::default();
        for number in numbers {
            let alive = Arc::clone(alive);
            batch.push(lone(Tag::new(number, 0), move || drop(alive)));
        }
        batch.seal().unwrap()
    }

    fn numbers(batch: Sealed) -> Vec<u32> {
        batch.into_iter().map(|item| item.tag().workqueue()).collect()
    }

    #[test]
    fn batches_keep_their_order_however_they_are_cut() {
        let alive = Arc::default();
        for cut in 1..7 {
            let (front, back) = batch(0..6, &alive).split(cut);
            assert_eq!(front.len(), cut.min(6));
            assert_eq!(back.as_ref().map_or(0, Sealed::len), 6 - cut.min(6));
            let mut all = numbers(front);
            all.extend(back.map(numbers).unwrap_or_default());
            assert_eq!(all, (0..6).collect::<Vec<_>>());
        }
        assert_eq!(Arc::strong_count(&alive), 1, "dropping an item drops what it holds");
    }

    #[test]
    fn queues_of_batches_are_first_in_first_out() {
        let alive = Arc::default();
        let mut queue = Batches::default();
        queue.push_back(batch(2..4, &alive));
        queue.push_back(batch(4..5, &alive));
        queue.push_front(batch(0..2, &alive));
        let mut all = Vec::new();
        while let Some(batch) = queue.pop_front() {
            all.extend(numbers(batch));
        }
        assert_eq!(all, (0..5).collect::<Vec<_>>());
        queue.push_back(batch(0..9, &alive));
        let mut other = Batches::default();
        other.append(Batches::default());
        other.append(queue);
        let mut last = Batches::default();
        last.push_back(batch(9..10, &alive));
        other.append(last);
        let (first, last) = (other.pop_front().unwrap(), other.pop_front().unwrap());
        assert_eq!((first.len(), numbers(last)), (9, vec![9]));
        other.push_back(first);
        drop(other);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_hand_gives_one_to_its_owner_and_all_to_others() {
        let alive = Arc::default();
        let hand = Hand::new();
        assert!(hand.pop().is_none() && hand.take().is_none());
        hand.put(batch(0..3, &alive));
        assert_eq!(hand.pop().unwrap().tag().workqueue(), 0);
        assert_eq!(numbers(hand.take().unwrap()), [1, 2]);
        hand.put(batch(0..3, &alive));
        drop(hand);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
