//! W-TinyLFU: a small LRU window, and a main part that takes from it only what is asked for more
//! often than what would have to go.
//!
//! G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", ACM
//! Transactions on Storage 13(4), 2017. The main part is a segmented LRU: probation, and 80 %
//! protected for what was hit there.
//!
//! The adaptive form moves the border of the window by hill climbing on the hit ratio: G. Einziger,
//! O. Eytan, R. Friedman, B. Manes, "Adaptive software cache management", Middleware 2018; with the
//! constants of Caffeine.

use super::links::{Links, List};
use super::sketch::Sketch;
use crate::policy::{Page, Policy, Request, Setup};

/// Share of the window, at the beginning.
const WINDOW_PER_CENT: usize = 1;
/// Share of the main part that is protected.
const PROTECTED_PER_CENT: usize = 80;
/// The first step of the climber and the one after a sudden change, by the capacity.
const STEP: f64 = 0.0625;
/// Steps become shorter by this.
const STEP_DECAY: f64 = 0.98;
/// A change of the hit ratio by this much is sudden.
const SUDDEN: f64 = 0.05;
/// Requests between two steps, by the capacity.
const SAMPLE: usize = 10;

/// A window and a main part; `ADAPTIVE` moves the border between them.
#[derive(Debug)]
pub struct WTinyLfu<const ADAPTIVE: bool> {
    capacity: usize,
    window_max: usize,
    protected_max: usize,
    places: Vec<Place>,
    sketch: Sketch,
    links: Links,
    window: List,
    probation: List,
    protected: List,
    climber: Climber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Absent,
    Window,
    Probation,
    Protected,
}

impl<const ADAPTIVE: bool> WTinyLfu<ADAPTIVE> {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        let capacity = setup.capacity;
        let window_max = (capacity * WINDOW_PER_CENT / 100).max(1);
        Self {
            capacity,
            window_max,
            protected_max: (capacity - window_max) * PROTECTED_PER_CENT / 100,
            places: vec![Place::Absent; setup.pages],
            sketch: Sketch::new(capacity),
            links: Links::new(setup.pages),
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            climber: Climber::new(capacity),
        }
    }

    fn hit(&mut self, page: Page) {
        match self.places[page as usize] {
            Place::Window => self.window.refresh(&mut self.links, page),
            Place::Protected => self.protected.refresh(&mut self.links, page),
            Place::Probation => {
                self.probation.remove(&mut self.links, page);
                self.places[page as usize] = Place::Protected;
                self.protected.push(&mut self.links, page);
                self.demote();
            }
            Place::Absent => unreachable!("a hit is for a page that is held"),
        }
    }

    /// Keeps the protected part within its bound.
    fn demote(&mut self) {
        while self.protected.len() > self.protected_max {
            let page = self.protected.pop(&mut self.links).expect("it is longer than its bound");
            self.places[page as usize] = Place::Probation;
            self.probation.push(&mut self.links, page);
        }
    }

    /// Removes pages that are too many from the window, and returns the last of them.
    fn shrink_window(&mut self) -> Option<Page> {
        let mut candidate = None;
        while self.window.len() > self.window_max {
            let page = self.window.pop(&mut self.links)?;
            self.places[page as usize] = Place::Probation;
            self.probation.push(&mut self.links, page);
            candidate = Some(page);
        }
        candidate
    }

    /// Evicts a page, since there is one too many: the candidate from the window, or the page that
    /// it would replace.
    fn evict(&mut self, candidate: Option<Page>) -> Page {
        let lists = [&self.probation, &self.protected, &self.window];
        let victim = lists.iter().find_map(|list| list.oldest()).expect("it holds too many");
        let page = match candidate {
            Some(candidate) if self.sketch.count(candidate) <= self.sketch.count(victim) => {
                candidate
            }
            _ => victim,
        };
        let list = match self.places[page as usize] {
            Place::Window => &mut self.window,
            Place::Protected => &mut self.protected,
            Place::Probation | Place::Absent => &mut self.probation,
        };
        list.remove(&mut self.links, page);
        self.places[page as usize] = Place::Absent;
        page
    }

    /// Moves the border between the window and the protected part by this many pages.
    fn move_border(&mut self, pages: isize) {
        let most = self.window_max + self.protected_max;
        let window_max = self.window_max.saturating_add_signed(pages).clamp(1, most);
        self.protected_max = most - window_max;
        self.window_max = window_max;
        self.demote();
        // A window that grows takes the pages that would be judged next; one that shrinks gives its
        // oldest.
        if pages > 0 {
            while self.window.len() < self.window_max
                && let Some(page) = self.probation.pop(&mut self.links)
            {
                self.places[page as usize] = Place::Window;
                self.window.push(&mut self.links, page);
            }
        } else {
            self.shrink_window();
        }
    }
}

impl<const ADAPTIVE: bool> Policy for WTinyLfu<ADAPTIVE> {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        self.sketch.increment(page);
        let hit = self.places[page as usize] != Place::Absent;
        if hit {
            self.hit(page);
        } else {
            self.places[page as usize] = Place::Window;
            self.window.push(&mut self.links, page);
            let candidate = self.shrink_window();
            if self.held() > self.capacity {
                evicted.push(self.evict(candidate));
            }
        }
        if ADAPTIVE && let Some(pages) = self.climber.record(hit) {
            self.move_border(pages);
        }
        hit
    }

    fn held(&self) -> usize {
        self.window.len() + self.probation.len() + self.protected.len()
    }
}

/// Continues in a direction while the hit ratio rises, and turns when it falls.
#[derive(Debug)]
struct Climber {
    first_step: f64,
    step: f64,
    sample_size: usize,
    requests: usize,
    hits: usize,
    last_ratio: f64,
}

impl Climber {
    fn new(capacity: usize) -> Self {
        let first_step = STEP * capacity as f64;
        let sample_size = capacity.saturating_mul(SAMPLE).max(SAMPLE);
        Self { first_step, step: -first_step, sample_size, requests: 0, hits: 0, last_ratio: 0.0 }
    }

    /// Notes a request. At the end of a sample, returns by how many pages the window should grow.
    fn record(&mut self, hit: bool) -> Option<isize> {
        self.requests += 1;
        self.hits += usize::from(hit);
        if self.requests < self.sample_size {
            return None;
        }
        let ratio = self.hits as f64 / self.requests as f64;
        let change = ratio - self.last_ratio;
        let amount = if change >= 0.0 { self.step } else { -self.step };
        self.step = if change.abs() >= SUDDEN {
            self.first_step.copysign(amount)
        } else {
            amount * STEP_DECAY
        };
        (self.requests, self.hits, self.last_ratio) = (0, 0, ratio);
        Some(amount as isize)
    }
}
