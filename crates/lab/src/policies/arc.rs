//! ARC: recency and frequency, in a proportion that is learnt from what was evicted too early.
//!
//! N. Megiddo, D. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. The names
//! are the paper's: T1 holds pages seen once lately and T2 those seen again; B1 and B2 remember
//! what left them; p is how long T1 should be.

use super::links::{Links, List};
use crate::policy::{Page, Policy, Request, Setup};

/// Adaptive replacement.
#[derive(Debug)]
pub struct Arc {
    capacity: usize,
    target: f64,
    places: Vec<Place>,
    links: Links,
    t1: List,
    t2: List,
    b1: List,
    b2: List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unknown,
    T1,
    T2,
    B1,
    B2,
}

impl Arc {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self {
            capacity: setup.capacity,
            target: 0.0,
            places: vec![Place::Unknown; setup.pages],
            links: Links::new(setup.pages),
            t1: List::new(),
            t2: List::new(),
            b1: List::new(),
            b2: List::new(),
        }
    }

    /// The paper's REPLACE: makes room for one page.
    fn replace(&mut self, from_b2: bool) -> Page {
        let len = self.t1.len() as f64;
        let from_t1 = len > self.target || (from_b2 && len >= self.target);
        let from_t1 = (from_t1 && self.t1.len() > 0) || self.t2.len() == 0;
        let (top, bottom, place) = if from_t1 {
            (&mut self.t1, &mut self.b1, Place::B1)
        } else {
            (&mut self.t2, &mut self.b2, Place::B2)
        };
        let page = top.pop(&mut self.links).expect("a full cache holds a page");
        bottom.push(&mut self.links, page);
        self.places[page as usize] = place;
        page
    }

    /// A page that is on no list comes; makes room on the lists and in the cache.
    fn make_room(&mut self, evicted: &mut Vec<Page>) {
        let once = self.t1.len() + self.b1.len();
        let all = once + self.t2.len() + self.b2.len();
        if once == self.capacity {
            if self.t1.len() < self.capacity {
                Self::forget(&mut self.b1, &mut self.links, &mut self.places);
                evicted.push(self.replace(false));
            } else {
                evicted.extend(Self::forget(&mut self.t1, &mut self.links, &mut self.places));
            }
        } else if all >= self.capacity {
            if all == 2 * self.capacity {
                Self::forget(&mut self.b2, &mut self.links, &mut self.places);
            }
            evicted.push(self.replace(false));
        }
    }

    /// Drops the oldest page of a list.
    fn forget(list: &mut List, links: &mut Links, places: &mut [Place]) -> Option<Page> {
        let page = list.pop(links)?;
        places[page as usize] = Place::Unknown;
        Some(page)
    }
}

impl Policy for Arc {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        let place = std::mem::replace(&mut self.places[page as usize], Place::T2);
        match place {
            Place::T1 => self.t1.remove(&mut self.links, page),
            Place::T2 => self.t2.remove(&mut self.links, page),
            Place::B1 => {
                self.target = (self.target + (b2 / b1).max(1.0)).min(self.capacity as f64);
                self.b1.remove(&mut self.links, page);
                evicted.push(self.replace(false));
            }
            Place::B2 => {
                self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
                self.b2.remove(&mut self.links, page);
                evicted.push(self.replace(true));
            }
            Place::Unknown => {
                self.make_room(evicted);
                self.places[page as usize] = Place::T1;
                self.t1.push(&mut self.links, page);
                return false;
            }
        }
        self.t2.push(&mut self.links, page);
        matches!(place, Place::T1 | Place::T2)
    }

    fn held(&self) -> usize {
        self.t1.len() + self.t2.len()
    }
}
