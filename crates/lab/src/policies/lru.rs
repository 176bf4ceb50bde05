//! Least recently used.

use super::links::{Links, List};
use crate::policy::{Page, Policy, Request, Setup};

/// Evicts the page whose last access is longest ago.
#[derive(Debug)]
pub struct Lru {
    capacity: usize,
    held: Vec<bool>,
    links: Links,
    list: List,
}

impl Lru {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self {
            capacity: setup.capacity,
            held: vec![false; setup.pages],
            links: Links::new(setup.pages),
            list: List::new(),
        }
    }
}

impl Policy for Lru {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        if std::mem::replace(&mut self.held[page as usize], true) {
            self.list.refresh(&mut self.links, page);
            return true;
        }
        if self.list.len() == self.capacity
            && let Some(oldest) = self.list.pop(&mut self.links)
        {
            self.held[oldest as usize] = false;
            evicted.push(oldest);
        }
        self.list.push(&mut self.links, page);
        false
    }

    fn held(&self) -> usize {
        self.list.len()
    }
}
