//! Events to come, in order of time. Events that are due at the same time come in the order in
//! which they were entered.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Simulated time, in nanoseconds since the beginning.
pub type Ns = u64;

/// Events to come.
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    now_ns: Ns,
    entered: u64,
    passed: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: Ns,
    sequence: u64,
    event: E,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), now_ns: 0, entered: 0, passed: 0 }
    }
}

impl<E> Agenda<E> {
    /// The time of the last event that was taken.
    pub fn now_ns(&self) -> Ns {
        self.now_ns
    }

    /// How many events were taken.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Enters an event. One whose time has passed happens now.
    pub fn at(&mut self, at_ns: Ns, event: E) {
        let sequence = self.entered;
        self.entered += 1;
        self.heap.push(Entry { at_ns: at_ns.max(self.now_ns), sequence, event });
    }

    /// Takes the next event before `until_ns`. If there is none, the time becomes `until_ns`.
    pub fn next(&mut self, until_ns: Ns) -> Option<E> {
        if self.heap.peek().is_none_or(|entry| entry.at_ns >= until_ns) {
            self.now_ns = until_ns;
            return None;
        }
        let entry = self.heap.pop()?;
        self.now_ns = entry.at_ns;
        self.passed += 1;
        Some(entry.event)
    }
}

impl<E> Entry<E> {
    fn key(&self) -> u128 {
        u128::from(self.at_ns) << 64 | u128::from(self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The earliest is the greatest: the heap gives the greatest first.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_at_once_happens_in_the_order_of_its_entry() {
        let mut agenda = Agenda::default();
        for (at_ns, name) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            agenda.at(at_ns, name);
        }
        let mut order = String::new();
        while let Some(name) = agenda.next(9) {
            order.push(name);
            if name == 'a' {
                agenda.at(0, 'x'); // its time has passed: it happens now
            }
        }
        assert_eq!(order, "abxcd");
        assert_eq!((agenda.now_ns(), agenda.passed()), (9, 5));
        assert_eq!(agenda.next(10), Some('e'));
    }
}
