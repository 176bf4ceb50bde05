//! The default policy, `homing-mglru`'s hit density.

use homing_mglru::density::{HitDensity as Core, Shadow};

use crate::policy::{Page, Policy, Request, Setup};

const NONE: u32 = u32::MAX;

/// homing's own policy.
#[derive(Debug)]
pub struct HitDensity {
    core: Core,
    frames: Vec<u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
    shadows: Vec<Option<Shadow>>,
    capacity: usize,
}

impl HitDensity {
    /// An empty cache.
    pub fn new(setup: &Setup<'_>) -> Self {
        Self {
            core: Core::new(setup.capacity),
            frames: vec![NONE; setup.pages],
            pages: Vec::new(),
            free: Vec::new(),
            shadows: vec![None; setup.pages],
            capacity: setup.capacity,
        }
    }
}

fn mix(page: u32) -> u64 {
    let mut x = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

impl Policy for HitDensity {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page as usize;
        self.core.request(mix(request.page), request.write);
        let frame = self.frames[page];
        if frame != NONE {
            self.core.access(frame);
            if request.write {
                self.core.set_dirty(frame);
            }
            return true;
        }
        let frame = if self.pages.len() < self.capacity {
            self.pages.push(0);
            self.pages.len() as u32 - 1
        } else {
            let victim = self.core.evict().expect("a full cache holds pages");
            let old = self.pages[victim.frame as usize];
            self.frames[old as usize] = NONE;
            self.shadows[old as usize] = Some(victim.shadow);
            evicted.push(old);
            victim.frame
        };
        self.frames[page] = frame;
        self.pages[frame as usize] = request.page;
        self.core.insert(frame, request.write, self.shadows[page].take());
        false
    }

    fn held(&self) -> usize {
        self.pages.len() - self.free.len()
    }
}
