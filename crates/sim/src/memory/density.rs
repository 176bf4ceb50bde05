//! Memory as homing's caches share it if no limits are set.

use homing_mglru::density::{HitDensity, Savings, Shadow};

use super::{Memory, Tenant, Work};
use crate::agenda::Ns;
use crate::rng::Rng;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Density {
    policy: HitDensity,
    /// The frame of each page; the pages of the second tenant come after those of the first.
    frame_of: Vec<u32>,
    /// The shadows of evicted pages. None is forgotten: there are few.
    shadow_of: Vec<Option<Shadow>>,
    page_in: Vec<u32>,
    capacity: usize,
    first_of: [u32; 2],
    group_of: [u8; 2],
}

impl Density {
    /// Makes a memory that is told what hits save, if `told` says so.
    pub(super) fn new(frames: u32, pages: [u32; 2], told: Option<Savings>) -> Self {
        let all = (pages[0] + pages[1]) as usize;
        let mut policy = HitDensity::new(frames as usize);
        if let Some(savings) = told {
            policy.set_savings(savings);
        }
        let user = policy.add_group();
        Self {
            policy,
            frame_of: vec![NONE; all],
            shadow_of: vec![None; all],
            page_in: Vec::with_capacity(frames as usize),
            capacity: frames as usize,
            first_of: [0, pages[0]],
            group_of: [0, user],
        }
    }
}

impl Memory for Density {
    fn access(&mut self, tenant: Tenant, page: u32, _: Ns) -> Work {
        let page = self.first_of[tenant as usize] + page;
        let group = self.group_of[tenant as usize];
        let (hash, dirty) = (Rng::new(page.into()).bits(), tenant == Tenant::User);
        let held = self.frame_of[page as usize];
        if held != NONE {
            self.policy.hit(group, held, hash, dirty);
            return Work { hit: true, ..Work::default() };
        }
        self.policy.request(group, hash, dirty);
        let mut work = Work::default();
        let frame = if self.page_in.len() < self.capacity {
            self.page_in.push(page);
            self.page_in.len() as u32 - 1
        } else {
            // A page that is only read may be read past the memory.
            let shadow = &mut self.shadow_of[page as usize];
            if !dirty && let Some(rest) = self.policy.decline(group, *shadow) {
                *shadow = Some(rest);
                return work;
            }
            let victim = self.policy.evict().expect("a full memory holds pages");
            let gone = std::mem::replace(&mut self.page_in[victim.frame as usize], page);
            self.frame_of[gone as usize] = NONE;
            self.shadow_of[gone as usize] = Some(victim.shadow);
            work.scanned = 1;
            work.written = u64::from(gone >= self.first_of[1]);
            victim.frame
        };
        self.frame_of[page as usize] = frame;
        let shadow = self.shadow_of[page as usize].take();
        self.policy.insert(group, frame, dirty, shadow);
        work
    }

    fn background(&mut self, _: Ns) -> Option<Work> {
        None
    }
}
