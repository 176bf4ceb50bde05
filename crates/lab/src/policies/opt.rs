//! The optimum, which knows the future: evict the page that is used again last.
//!
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
//! Journal 5(2), 1966. Two forms: with demand insertion every page that is asked for is held, as
//! in the paper; with bypass one is not that would be the first to go.
//!
//! The next use of each request's page is computed beforehand, backwards. Held pages are in a heap
//! by the time of their next use. A hit leaves the page's old entry in the heap: its time has come,
//! so it is smaller than that of every held page, and never surfaces. This takes O(n log n) without
//! a heap that can be changed inside. Dead entries are swept out when they are most of the heap.

use std::collections::BinaryHeap;

use crate::policy::{Page, Policy, Request, Setup};
use crate::trace::Trace;

/// A page is not used again.
const NEVER: u32 = u32::MAX;

/// Evicts the page that is used again last; `BYPASS` lets that be the page that was asked for.
#[derive(Debug)]
pub struct Opt<const BYPASS: bool> {
    capacity: usize,
    held: Vec<bool>,
    held_count: usize,
    /// For each request, the position of the next one for its page.
    next_uses: Vec<u32>,
    /// The position of the next request.
    now: usize,
    /// Time of the next use, then the page, of pages that are held and of times that have passed.
    heap: BinaryHeap<(u32, Page)>,
}

impl<const BYPASS: bool> Opt<BYPASS> {
    /// An empty one at the beginning of the trace.
    ///
    /// # Panics
    ///
    /// With a trace of more than 2^32 - 2 requests.
    pub fn new(setup: &Setup) -> Self {
        Self {
            capacity: setup.capacity,
            held: vec![false; setup.pages],
            held_count: 0,
            next_uses: next_uses(setup.future),
            now: 0,
            heap: BinaryHeap::new(),
        }
    }

    /// Keeps the heap within a multiple of what is held.
    fn note(&mut self, next_use: u32, page: Page) {
        if self.heap.len() > 4 * self.capacity.max(1 << 10) {
            let now = self.now;
            self.heap.retain(|(time, _)| *time as usize >= now);
        }
        self.heap.push((next_use, page));
    }
}

impl<const BYPASS: bool> Policy for Opt<BYPASS> {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        let next_use = self.next_uses[self.now];
        self.now += 1;
        if self.held[page as usize] {
            self.note(next_use, page);
            return true;
        }
        if self.held_count == self.capacity {
            let (last_use, victim) = *self.heap.peek().expect("a full cache holds a page");
            if BYPASS && next_use >= last_use {
                evicted.push(page);
                return false;
            }
            self.heap.pop();
            self.held[victim as usize] = false;
            evicted.push(victim);
        } else {
            self.held_count += 1;
        }
        self.held[page as usize] = true;
        self.note(next_use, page);
        false
    }

    fn held(&self) -> usize {
        self.held_count
    }
}

/// For each request, the position of the next request for its page.
fn next_uses(trace: &Trace) -> Vec<u32> {
    assert!(trace.len() < NEVER as usize, "{} requests are too many to number", trace.len());
    let mut next_of_page = vec![NEVER; trace.pages()];
    let mut next_uses = vec![NEVER; trace.len()];
    for (position, next_use) in next_uses.iter_mut().enumerate().rev() {
        let page = trace.request(position).page as usize;
        *next_use = std::mem::replace(&mut next_of_page[page], position as u32);
    }
    next_uses
}
