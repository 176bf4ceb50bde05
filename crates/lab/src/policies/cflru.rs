//! CFLRU, clean-first LRU: of the pages that LRU would evict soon, clean ones go before dirty ones,
//! which would have to be written.
//!
//! S.-Y. Park, D. Jung, J.-U. Kang, J.-S. Kim, J. Lee, "CFLRU: a replacement algorithm for flash
//! memory", CASES 2006. The paper's window slides; here it is a fixed share of the cache.
//!
//! A page becomes dirty only by being used, which takes it out of the window. So whether a page in
//! the window is clean never changes, and a list of these, by age, makes eviction a matter of a few
//! steps.

use super::links::{Links, List};
use crate::policy::{Page, Policy, Request, Setup};

/// Share of the window at the old end, and its bound in pages. Guessed: the paper finds that the
/// best share depends on the load, and one that searches the window has to bound the search.
const WINDOW_PER_CENT: usize = 25;
const WINDOW_MAX: usize = 4096;
/// Share of the wide window.
const WIDE_PER_CENT: usize = 50;

/// LRU that prefers clean victims.
#[derive(Debug)]
pub struct Cflru {
    capacity: usize,
    /// Pages before the window.
    young_max: usize,
    pages: Vec<State>,
    links: Links,
    young: List,
    window: List,
    clean_links: Links,
    /// The clean pages in the window, by age.
    clean: List,
}

#[derive(Clone, Copy, Debug)]
struct State {
    place: Place,
    dirty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Absent,
    Young,
    Window,
}

impl Cflru {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        Self::with_window(setup, (setup.capacity * WINDOW_PER_CENT / 100).min(WINDOW_MAX))
    }

    /// An empty one, whose window is half of the cache, however large that is.
    pub fn wide(setup: &Setup) -> Self {
        Self::with_window(setup, setup.capacity * WIDE_PER_CENT / 100)
    }

    fn with_window(setup: &Setup, window: usize) -> Self {
        Self {
            capacity: setup.capacity,
            young_max: setup.capacity - window,
            pages: vec![State { place: Place::Absent, dirty: false }; setup.pages],
            links: Links::new(setup.pages),
            young: List::new(),
            window: List::new(),
            clean_links: Links::new(setup.pages),
            clean: List::new(),
        }
    }

    fn evict(&mut self) -> Page {
        let oldest = || self.window.oldest().or(self.young.oldest());
        let page = self.clean.oldest().or_else(oldest).expect("a full cache holds a page");
        self.take(page);
        self.pages[page as usize] = State { place: Place::Absent, dirty: false };
        page
    }

    /// Takes a page that is held off its lists.
    fn take(&mut self, page: Page) {
        let State { place, dirty } = self.pages[page as usize];
        if place == Place::Young {
            self.young.remove(&mut self.links, page);
            return;
        }
        self.window.remove(&mut self.links, page);
        if !dirty {
            self.clean.remove(&mut self.clean_links, page);
        }
    }

    /// Lets the oldest of the young pages into the window if there are too many.
    fn settle(&mut self) {
        if self.young.len() > self.young_max
            && let Some(page) = self.young.pop(&mut self.links)
        {
            self.window.push(&mut self.links, page);
            let state = &mut self.pages[page as usize];
            state.place = Place::Window;
            if !state.dirty {
                self.clean.push(&mut self.clean_links, page);
            }
        }
    }
}

impl Policy for Cflru {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        let hit = self.pages[page as usize].place != Place::Absent;
        if hit {
            self.take(page);
        } else if self.held() == self.capacity {
            evicted.push(self.evict());
        }
        let state = &mut self.pages[page as usize];
        state.place = Place::Young;
        state.dirty |= request.write;
        self.young.push(&mut self.links, page);
        self.settle();
        hit
    }

    fn held(&self) -> usize {
        self.young.len() + self.window.len()
    }
}
