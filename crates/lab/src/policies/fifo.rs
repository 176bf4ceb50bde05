//! First in, first out: the floor that everything is measured from.

use super::ring::Ring;
use crate::policy::{Page, Policy, Request, Setup};

/// Evicts the page that came first, whatever happened to it since.
#[derive(Debug)]
pub struct Fifo {
    queue: Ring,
    held: Vec<bool>,
}

impl Fifo {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self { queue: Ring::new(setup.capacity), held: vec![false; setup.pages] }
    }
}

impl Policy for Fifo {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        if std::mem::replace(&mut self.held[request.page as usize], true) {
            return true;
        }
        if self.queue.is_full() {
            let oldest = self.queue.replace(request.page);
            self.held[oldest as usize] = false;
            evicted.push(oldest);
        } else {
            self.queue.push(request.page);
        }
        false
    }

    fn held(&self) -> usize {
        self.queue.len()
    }
}
