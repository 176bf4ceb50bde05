//! The default policy: `homing-mglru`'s hit density, with shadows of six times as many pages as
//! are held.

use std::collections::VecDeque;

use homing_mglru::density::{HitDensity as Core, Shadow};
use homing_mglru::prefetch;

use crate::policy::{Page, Policy, Request, Setup};

const NONE: u32 = u32::MAX;
/// Evicted pages that are remembered, for each page that is held.
const SHADOWS: usize = 6;
/// How many tenants are learnt apart: as many as in a cache of some size.
const GROUPS: usize = 8;
/// How many shadows lie between the one that is given up and the one that is prefetched, to be
/// given up soon.
const AHEAD: usize = 8;

/// Evicts what gives the fewest hits for its frame.
#[derive(Debug)]
pub struct HitDensity {
    core: Core,
    groups: Groups,
    known: Vec<Known>,
    /// Which page each frame holds.
    pages: Vec<Page>,
    /// Evicted pages, oldest first, and the number of each eviction.
    order: VecDeque<(Page, u32)>,
    evictions: u32,
    capacity: usize,
}

/// The group of each tenant: the first tenants each have a group of their own, and the others share
/// the last one, as in the caches.
#[derive(Debug, Default)]
struct Groups {
    /// The groups, by the tenants' numbers.
    of: Vec<Option<u8>>,
    count: usize,
}

impl Groups {
    fn of(&mut self, tenant: u16, core: &mut Core) -> u8 {
        let known = self.of.get(usize::from(tenant)).copied().flatten();
        known.unwrap_or_else(|| self.add(tenant, core))
    }

    #[cold]
    fn add(&mut self, tenant: u16, core: &mut Core) -> u8 {
        let at = usize::from(tenant);
        self.of.resize(self.of.len().max(at + 1), None);
        self.count += 1;
        // The policy has its first group from the beginning.
        if (2..=GROUPS).contains(&self.count) {
            core.add_group();
        }
        let group = self.count.min(GROUPS) as u8 - 1;
        self.of[at] = Some(group);
        group
    }
}

/// What is known of a page.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The frame that holds it.
    frame: u32,
    /// The number of the eviction that left the shadow; none if there is no shadow.
    eviction: u32,
    shadow: Shadow,
}

impl Known {
    const NOTHING: Self = Self { frame: NONE, eviction: NONE, shadow: Shadow::NEVER };

    fn shadow(&self) -> Option<Shadow> {
        (self.eviction != NONE).then_some(self.shadow)
    }
}

impl HitDensity {
    /// An empty cache.
    pub fn new(setup: &Setup<'_>) -> Self {
        Self {
            core: Core::new(setup.capacity),
            groups: Groups::default(),
            known: vec![Known::NOTHING; setup.pages],
            pages: Vec::with_capacity(setup.capacity),
            evictions: 0,
            order: VecDeque::new(),
            capacity: setup.capacity,
        }
    }

    fn free_frame(&mut self, evicted: &mut Vec<Page>) -> u32 {
        if self.pages.len() < self.capacity {
            self.pages.push(0);
            return self.pages.len() as u32 - 1;
        }
        let victim = self.core.evict().expect("a full cache holds pages");
        let page = self.pages[victim.frame as usize];
        self.known[page as usize].frame = NONE;
        self.remember(page, victim.shadow);
        evicted.push(page);
        victim.frame
    }

    /// Leaves out a page that is not worth a frame.
    fn decline(&mut self, group: u8, page: Page) -> bool {
        let rest = self.core.decline(group, self.known[page as usize].shadow());
        rest.inspect(|&rest| self.remember(page, rest)).is_some()
    }

    fn remember(&mut self, page: Page, shadow: Shadow) {
        let known = &mut self.known[page as usize];
        (known.shadow, known.eviction) = (shadow, self.evictions);
        self.order.push_back((page, self.evictions));
        self.evictions += 1;
        if self.order.len() > SHADOWS * self.capacity {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let (page, eviction) = self.order.pop_front().expect("there are shadows");
        if let Some(&(next, _)) = self.order.get(AHEAD) {
            prefetch(&self.known[next as usize]);
        }
        let known = &mut self.known[page as usize];
        // The page may have come back since, and been evicted again.
        if known.eviction == eviction {
            known.eviction = NONE;
            self.core.forget(known.shadow);
        }
    }
}

impl Policy for HitDensity {
    fn request(&mut self, request: Request, evicted: &mut Vec<Page>) -> bool {
        let page = request.page as usize;
        let group = self.groups.of(request.tenant, &mut self.core);
        let held = self.known[page].frame;
        if held != NONE {
            self.core.hit(group, held, hash(request.page), request.write);
            if request.write {
                self.core.set_dirty(held);
            }
            return true;
        }
        self.core.request(group, hash(request.page), request.write);
        // A page that is written has to be held.
        if self.pages.len() >= self.capacity && !request.write && self.decline(group, request.page)
        {
            evicted.push(request.page);
            return false;
        }
        let frame = self.free_frame(evicted);
        let known = &mut self.known[page];
        known.frame = frame;
        let shadow = known.shadow();
        known.eviction = NONE;
        self.pages[frame as usize] = request.page;
        self.core.insert(group, frame, request.write, shadow);
        false
    }

    fn prefetch(&self, page: Page) {
        prefetch(&self.known[page as usize]);
    }

    fn held(&self) -> usize {
        self.pages.len()
    }
}

/// Mixes the bits of a page's number as in `SplitMix64`: G. Steele, D. Lea, C. Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014.
fn hash(page: Page) -> u64 {
    let mut bits = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
