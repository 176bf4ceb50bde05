//! 2Q: a page proves itself by being asked for again after it left a first queue.
//!
//! T. Johnson, D. Shasha, "2Q: a low overhead high performance buffer management replacement
//! algorithm", VLDB 1994; its full version. The names are the paper's: A1in is a FIFO of what came
//! lately, A1out remembers what left it, Am is an LRU list of what was asked for from there.

use super::links::{Links, List};
use crate::policy::{Page, Policy, Request, Setup};

/// The sizes of A1in, in the cache, and of A1out, outside it, in per cent of the cache; from the
/// paper.
const IN_PER_CENT: usize = 25;
const OUT_PER_CENT: usize = 50;

/// Two queues.
#[derive(Debug)]
pub struct TwoQ {
    capacity: usize,
    in_max: usize,
    out_max: usize,
    places: Vec<Place>,
    links: Links,
    a1_in: List,
    a1_out: List,
    am: List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unknown,
    In,
    Out,
    Main,
}

impl TwoQ {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self {
            capacity: setup.capacity,
            in_max: (setup.capacity * IN_PER_CENT / 100).max(1),
            out_max: (setup.capacity * OUT_PER_CENT / 100).max(1),
            places: vec![Place::Unknown; setup.pages],
            links: Links::new(setup.pages),
            a1_in: List::new(),
            a1_out: List::new(),
            am: List::new(),
        }
    }

    fn evict(&mut self) -> Page {
        let from_in = self.a1_in.len() > self.in_max || self.am.len() == 0;
        if !from_in {
            let page = self.am.pop(&mut self.links).expect("Am holds a page");
            self.places[page as usize] = Place::Unknown;
            return page;
        }
        let page = self.a1_in.pop(&mut self.links).expect("a full cache holds a page");
        self.places[page as usize] = Place::Out;
        self.a1_out.push(&mut self.links, page);
        if self.a1_out.len() > self.out_max
            && let Some(forgotten) = self.a1_out.pop(&mut self.links)
        {
            self.places[forgotten as usize] = Place::Unknown;
        }
        page
    }
}

impl Policy for TwoQ {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        match self.places[page as usize] {
            Place::Main => {
                self.am.refresh(&mut self.links, page);
                return true;
            }
            // Uses in quick succession say nothing about the page.
            Place::In => return true,
            Place::Out => {
                self.a1_out.remove(&mut self.links, page);
                if self.held() == self.capacity {
                    evicted.push(self.evict());
                }
                self.places[page as usize] = Place::Main;
                self.am.push(&mut self.links, page);
            }
            Place::Unknown => {
                if self.held() == self.capacity {
                    evicted.push(self.evict());
                }
                self.places[page as usize] = Place::In;
                self.a1_in.push(&mut self.links, page);
            }
        }
        false
    }

    fn held(&self) -> usize {
        self.a1_in.len() + self.am.len()
    }
}
