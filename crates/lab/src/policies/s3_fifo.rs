//! S3-FIFO: a small queue in front of the main one lets most pages that come once leave early.
//!
//! J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi, "FIFO queues are all you need for cache
//! eviction", SOSP 2023.
//!
//! ```text
//! miss ─▶ small (10 %) ── used more than once? ─▶ main ⟲ once more for each use
//!              │ no                                ▲
//!              ▼                                   │ asked for again
//!            gone ───────────────────────────▶ ghosts: known for as long as main is
//! ```
//!
//! As in the paper, a ghost is not an entry of a list, but the number of its eviction from the
//! small queue. The page is a ghost until as many others were evicted from there as main is to
//! hold.

use std::collections::VecDeque;

use crate::policy::{Page, Policy, Request, Setup};

/// Share of the small queue, from the paper.
const SMALL_PER_CENT: usize = 10;
/// Uses are counted up to this: two bits.
const USES_MAX: u8 = 3;
/// A page with at least this many uses goes from the small queue to the main one.
const PROMOTE_USES: u8 = 2;

/// Two queues and the memory of what left the first one.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: usize,
    small_target: usize,
    ghosts_max: u64,
    /// Whether each page is held, and how often it was used in its queue.
    states: Vec<State>,
    /// The number of the last eviction of each page from the small queue; 0 for none.
    demoted: Vec<u64>,
    /// Evictions from the small queue.
    demotions: u64,
    small: VecDeque<Page>,
    main: VecDeque<Page>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Held { uses: u8 },
}

impl S3Fifo {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        let small_target = (setup.capacity * SMALL_PER_CENT / 100).max(1);
        Self {
            capacity: setup.capacity,
            small_target,
            ghosts_max: (setup.capacity - small_target) as u64,
            states: vec![State::Absent; setup.pages],
            demoted: vec![0; setup.pages],
            demotions: 0,
            small: VecDeque::with_capacity(setup.capacity),
            main: VecDeque::with_capacity(setup.capacity),
        }
    }

    fn evict(&mut self) -> Page {
        if self.small.len() >= self.small_target
            && let Some(page) = self.evict_small()
        {
            return page;
        }
        self.evict_main()
    }

    /// Goes through the small queue until a page leaves it that was not used enough.
    fn evict_small(&mut self) -> Option<Page> {
        while let Some(page) = self.small.pop_front() {
            let state = &mut self.states[page as usize];
            if matches!(state, State::Held { uses: PROMOTE_USES.. }) {
                *state = State::Held { uses: 0 };
                self.main.push_back(page);
            } else {
                *state = State::Absent;
                self.demotions += 1;
                self.demoted[page as usize] = self.demotions;
                return Some(page);
            }
        }
        None
    }

    /// Takes the oldest page of the main queue; used ones go round again.
    fn evict_main(&mut self) -> Page {
        loop {
            let page =
                self.main.pop_front().expect("what is not in the small queue is in this one");
            let state = &mut self.states[page as usize];
            let State::Held { uses: uses @ 1.. } = state else {
                *state = State::Absent;
                self.demoted[page as usize] = 0;
                return page;
            };
            *uses -= 1;
            self.main.push_back(page);
        }
    }

    fn is_ghost(&self, page: Page) -> bool {
        let demoted = self.demoted[page as usize];
        demoted != 0 && self.demotions - demoted < self.ghosts_max
    }
}

impl Policy for S3Fifo {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        if let State::Held { uses } = &mut self.states[page as usize] {
            *uses = (*uses + 1).min(USES_MAX);
            return true;
        }
        if self.held() == self.capacity {
            evicted.push(self.evict());
        }
        self.states[page as usize] = State::Held { uses: 0 };
        if self.is_ghost(page) {
            self.main.push_back(page);
        } else {
            self.small.push_back(page);
        }
        false
    }

    fn held(&self) -> usize {
        self.small.len() + self.main.len()
    }
}
