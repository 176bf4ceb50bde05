//! CLOCK with one bit, also known as second chance: LRU's hit ratio, nearly, with a hit that only
//! sets a bit.
//!
//! F. J. Corbató, "A paging experiment with the Multics system", 1968.

use crate::policy::{Page, Policy, Request, Setup};

/// Passes over each page that was used since the hand came by, once.
#[derive(Debug)]
pub struct Clock {
    /// The pages that are held, in a circle.
    slots: Vec<Page>,
    capacity: usize,
    hand: usize,
    states: Vec<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Held,
    Used,
}

impl Clock {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self {
            slots: Vec::with_capacity(setup.capacity.min(setup.pages)),
            capacity: setup.capacity,
            hand: 0,
            states: vec![State::Absent; setup.pages],
        }
    }

    /// Moves the hand to the page that goes; clears the bit of each that it passes.
    fn find_victim(&mut self) -> Page {
        loop {
            let page = self.slots[self.hand];
            let state = &mut self.states[page as usize];
            if *state != State::Used {
                *state = State::Absent;
                return page;
            }
            *state = State::Held;
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.hand += 1;
        if self.hand == self.slots.len() {
            self.hand = 0;
        }
    }
}

impl Policy for Clock {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let state = &mut self.states[request.page as usize];
        if *state != State::Absent {
            *state = State::Used;
            return true;
        }
        *state = State::Held;
        if self.slots.len() < self.capacity {
            self.slots.push(request.page);
            return false;
        }
        // The new page is not in the circle yet, so the hand cannot choose it.
        evicted.push(self.find_victim());
        self.slots[self.hand] = request.page;
        self.advance();
        false
    }

    fn held(&self) -> usize {
        self.slots.len()
    }
}
