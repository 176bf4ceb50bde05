//! First in, first out: the floor that everything is measured from.

use std::collections::VecDeque;

use crate::policy::{Page, Policy, Request, Setup};

/// Evicts the page that came first, whatever happened to it since.
#[derive(Debug)]
pub struct Fifo {
    capacity: usize,
    queue: VecDeque<Page>,
    held: Vec<bool>,
}

impl Fifo {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        let queue = VecDeque::with_capacity(setup.capacity);
        Self { capacity: setup.capacity, queue, held: vec![false; setup.pages] }
    }
}

impl Policy for Fifo {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        if std::mem::replace(&mut self.held[request.page as usize], true) {
            return true;
        }
        if self.queue.len() == self.capacity
            && let Some(oldest) = self.queue.pop_front()
        {
            self.held[oldest as usize] = false;
            evicted.push(oldest);
        }
        self.queue.push_back(request.page);
        false
    }

    fn held(&self) -> usize {
        self.queue.len()
    }
}
