//! Watches a policy and panics if it breaks its contract.
//!
//! Each request is checked: a hit is reported for a page that is held and for no other; an evicted
//! page was held (or is the one that was asked for), and is evicted once; the capacity is kept; and
//! the policy counts as many pages as it holds.

use crate::policy::{AnyPolicy, Page, Policy, Request, Setup};

/// A policy that is watched. Slower, since each request is a call through a table.
pub struct Audit<'a> {
    policy: Box<dyn AnyPolicy + 'a>,
    capacity: usize,
    held: Vec<bool>,
    count: usize,
}

impl<'a> Audit<'a> {
    /// Watches a policy that was built from this.
    pub fn new(setup: &Setup, policy: Box<dyn AnyPolicy + 'a>) -> Self {
        Self { policy, capacity: setup.capacity, held: vec![false; setup.pages], count: 0 }
    }
}

impl Policy for Audit<'_> {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page as usize;
        let before = evicted.len();
        let hit = self.policy.request(request, evicted);
        assert_eq!(hit, self.held[page], "whether page {page} is held");
        if !hit {
            self.held[page] = true;
            self.count += 1;
        }
        for &page in &evicted[before..] {
            let held = std::mem::take(&mut self.held[page as usize]);
            assert!(held, "page {page} was evicted and was not held");
            self.count -= 1;
        }
        assert!(
            self.count <= self.capacity,
            "{} pages are held with a capacity of {}",
            self.count,
            self.capacity
        );
        assert_eq!(self.policy.held(), self.count, "pages that are held");
        hit
    }

    fn held(&self) -> usize {
        self.count
    }
}
