//! SIEVE: CLOCK whose survivors stay where they stand, so that new pages are judged first.
//!
//! Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU: an efficient
//! turn-key eviction algorithm for web caches", NSDI 2024.

use super::links::{Links, List};
use crate::policy::{Page, Policy, Request, Setup};

/// A queue with a hand that goes from its old end to its young one and takes what was not used.
#[derive(Debug)]
pub struct Sieve {
    capacity: usize,
    states: Vec<State>,
    links: Links,
    queue: List,
    /// The page at which the next search begins; `None`: it begins at the old end.
    hand: Option<Page>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Held,
    Used,
}

impl Sieve {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self {
            capacity: setup.capacity,
            states: vec![State::Absent; setup.pages],
            links: Links::new(setup.pages),
            queue: List::new(),
            hand: None,
        }
    }

    fn evict(&mut self) -> Page {
        let mut candidate = self.hand;
        loop {
            let page = candidate.or(self.queue.oldest()).expect("a full cache holds a page");
            candidate = self.links.newer(page);
            if self.states[page as usize] == State::Held {
                self.hand = candidate;
                self.queue.remove(&mut self.links, page);
                self.states[page as usize] = State::Absent;
                return page;
            }
            self.states[page as usize] = State::Held;
        }
    }
}

impl Policy for Sieve {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let state = &mut self.states[request.page as usize];
        if *state != State::Absent {
            *state = State::Used;
            return true;
        }
        if self.queue.len() == self.capacity {
            evicted.push(self.evict());
        }
        self.states[request.page as usize] = State::Held;
        self.queue.push(&mut self.links, request.page);
        false
    }

    fn held(&self) -> usize {
        self.queue.len()
    }
}
