//! The kernel's multi-generational LRU, fed as it is with pages of files that are read and written
//! by calls: `homing_mglru::kernel`.
//!
//! `Documentation/mm/multigen_lru.rst` of the kernel, as of 6.14. All pages are of the clean type,
//! as files' pages are, written or not; the replay counts write-backs. A page is a frame of the
//! same number. There are no mappings, so sweeps find nothing and are switched off.
//!
//! The kernel isolates 64 pages at a time of memory that has millions, and the feedback does not
//! react before 64 refaults. A trace's cache may hold ten pages. So both constants of batches are
//! scaled: 64 becomes a 64th of the capacity (1 to 64), 4096 becomes 64 of these. One page is
//! evicted at a time, when its place is needed: there is no background reclaim that runs ahead.
//! That is not yet pressure in the kernel's sense, so a new generation begins only if eviction
//! needs one.

use std::sync::Arc;

use homing_mglru::kernel::{
    Aging, Arrival, Enabled, Frames, Lruvec, Token, Tunables, Type, Types, Victim,
};

use crate::policy::{Page, Policy, Request, Setup};

/// A batch is this share of the capacity, but at most as large as in the kernel.
const BATCHES: usize = 64;

/// Generations, tiers and the refault feedback.
#[derive(Debug)]
pub struct MglruKernel {
    lruvec: Lruvec,
    capacity: usize,
    held: usize,
    /// What is remembered of pages that were evicted.
    tokens: Vec<Option<Token>>,
    victims: Vec<Victim>,
}

impl MglruKernel {
    /// An empty one.
    pub fn new(setup: &Setup) -> Self {
        let kernel = Tunables::default();
        let batch = (setup.capacity / BATCHES).clamp(1, kernel.min_lru_batch as usize) as u32;
        let tunables = Tunables {
            enabled: Enabled::MAIN,
            min_lru_batch: batch,
            max_lru_batch: batch * (kernel.max_lru_batch / kernel.min_lru_batch),
            ..kernel
        };
        let frames = Arc::new(Frames::new(setup.pages));
        Self {
            lruvec: Lruvec::new(frames, 0, tunables, 0).expect("these are within their bounds"),
            capacity: setup.capacity,
            held: 0,
            tokens: vec![None; setup.pages],
            victims: Vec::new(),
        }
    }

    /// Evicts one page.
    fn evict(&mut self) -> Page {
        loop {
            if self.lruvec.need_aging(0) == Aging::Must {
                self.lruvec.age(0, false);
            }
            self.lruvec.evict(1, Types::Clean, &mut self.victims);
            if let Some(victim) = self.victims.pop() {
                self.tokens[victim.frame as usize] = Some(victim.token);
                return victim.frame;
            }
        }
    }
}

impl Policy for MglruKernel {
    #[inline]
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page;
        let hit = self.lruvec.generation(page).is_some();
        if !hit {
            if self.held == self.capacity {
                evicted.push(self.evict());
            } else {
                self.held += 1;
            }
            let token = self.tokens[page as usize].take();
            let marks = token.map_or_else(Default::default, |token| self.lruvec.refault(token));
            self.lruvec.insert(page, Arrival { marks, ..Arrival::new(Type::Clean) });
        }
        self.lruvec.frames().access(page);
        hit
    }

    fn held(&self) -> usize {
        self.held
    }
}
