//! The algorithm as anybody would write it first: a page is a record, a list is a vector, and
//! whatever can be looked up is not counted. It is slow, and has no tricks that could be wrong in
//! the same way as those of the real code.

mod evict;

use std::collections::{BTreeMap, BTreeSet};

use homing_mglru::kernel::{Arrival, Enabled, Tunables};

/// A page.
#[expect(clippy::struct_excessive_bools, reason = "each is what it says")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) of: usize,
    /// Its generation; `None` if it is on no list.
    pub(crate) seq: Option<u64>,
    pub(crate) used: Uses,
    pub(crate) dirty: bool,
    pub(crate) writing: bool,
    reclaim: bool,
    unevictable: bool,
}

/// The marks that accesses left on a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) referenced: bool,
    pub(crate) count: u32,
    pub(crate) workingset: bool,
    pub(crate) accessed: bool,
}

/// What is remembered of an evicted page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow {
    pub(crate) frame: u32,
    pub(crate) of: usize,
    pub(crate) dirty: bool,
    seq: u64,
    used: Uses,
}

/// Counters of a type, by tier: refaulted, evicted, protected, and the two averages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) refaulted: [u64; 4],
    pub(crate) evicted: [u64; 4],
    pub(crate) protected: [u64; 4],
    pub(crate) avg_refaulted: [u64; 4],
    pub(crate) avg_total: [u64; 4],
}

/// The pages of one group. A list's first frame is the next to go.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) tunables: Tunables,
    frames: u32,
    pub(crate) pages: BTreeMap<u32, Page>,
    pub(crate) lists: BTreeMap<(u64, usize), Vec<u32>>,
    pub(crate) max_seq: u64,
    pub(crate) min_seq: [u64; 2],
    pub(crate) counters: [Counters; 2],
    /// Regions worth a visit, by the generation whose walk visits them. If a generation is missing,
    /// all regions are.
    worth: BTreeMap<u64, BTreeSet<u32>>,
    taken: [u64; 2],
}

impl Uses {
    fn refs(self) -> u32 {
        if self.referenced { self.count + 1 } else { 0 }
    }

    fn tier(self) -> usize {
        if self.workingset { 3 } else { [0, 0, 1, 2, 2][self.refs() as usize] }
    }

    fn lazily_promoted(self) -> bool {
        self.refs() + u32::from(self.workingset) == 5
    }

    pub(crate) fn access(&mut self) {
        if !self.referenced {
            self.referenced = true;
        } else if self.count < 3 {
            self.count += 1;
        } else {
            self.workingset = true;
        }
    }

    fn forget(&mut self) {
        self.referenced = false;
        self.count = 0;
    }

    /// Notes that an access through a mapping was seen. Returns whether it was the second one.
    fn observe(&mut self) -> bool {
        let again = self.referenced || self.workingset;
        *self = Self { referenced: !again, workingset: again, ..Self::default() };
        again
    }
}

impl Model {
    pub(crate) fn new(frames: u32, tunables: Tunables) -> Self {
        Self {
            tunables,
            frames,
            pages: BTreeMap::new(),
            lists: BTreeMap::new(),
            max_seq: 3,
            min_seq: [0; 2],
            counters: [Counters::default(), Counters::default()],
            worth: BTreeMap::new(),
            taken: [0; 2],
        }
    }

    fn main(&self) -> bool {
        self.tunables.enabled.has(Enabled::MAIN)
    }

    fn unlist(&mut self, frame: u32) {
        self.lists.values_mut().for_each(|list| list.retain(|other| *other != frame));
    }

    fn list(&mut self, frame: u32, seq: u64, tail: bool) {
        self.unlist(frame);
        let page = self.pages.get_mut(&frame).unwrap();
        page.seq = Some(seq);
        let list = self.lists.entry((seq, page.of)).or_default();
        let at = if tail { 0 } else { list.len() };
        list.insert(at, frame);
    }

    fn placement(&self, page: &Page, active: bool) -> u64 {
        if !self.main() {
            return self.max_seq;
        }
        let waits = page.reclaim && (page.dirty || page.writing);
        let back = match (active, page.used.workingset) {
            (true, true) => 1,
            (true, false) => 2,
            _ if page.of == 0 && !page.writing || waits => 2,
            (_, true) => 3,
            (_, false) => 4,
        };
        (self.max_seq + 1 - back).max(self.min_seq[page.of])
    }

    pub(crate) fn insert(&mut self, frame: u32, arrival: Arrival, used: Uses) {
        let page = Page {
            of: arrival.of as usize,
            used,
            dirty: arrival.dirty,
            writing: arrival.writing,
            ..Page::default()
        };
        let seq = self.placement(&page, arrival.active);
        self.pages.insert(frame, page);
        self.list(frame, seq, false);
    }

    pub(crate) fn remove(&mut self, frame: u32) {
        self.unlist(frame);
        self.pages.remove(&frame);
    }

    pub(crate) fn refault(&mut self, shadow: Shadow) -> Uses {
        let recent = self.max_seq.abs_diff(shadow.seq) < 4;
        if !recent || !self.main() {
            return Uses::default();
        }
        self.counters[shadow.of].refaulted[shadow.used.tier()] += 1;
        let workingset = shadow.used.workingset;
        let count = if workingset { 0 } else { shadow.used.refs().saturating_sub(1) };
        Uses { count, workingset, ..Uses::default() }
    }

    pub(crate) fn set_type(&mut self, frame: u32, of: usize) {
        let page = self.pages.get_mut(&frame).unwrap();
        if page.of != of {
            page.of = of;
            if let Some(seq) = page.seq {
                self.list(frame, seq.max(self.min_seq[of]), false);
            }
        }
    }

    pub(crate) fn end_write(&mut self, frame: u32) {
        let page = self.pages.get_mut(&frame).unwrap();
        let waits = page.reclaim;
        (page.reclaim, page.writing, page.dirty) = (false, false, false);
        self.set_type(frame, 1);
        if waits {
            self.rotate(frame);
        }
    }

    pub(crate) fn rotate(&mut self, frame: u32) {
        let page = &self.pages[&frame];
        if page.seq.is_some() {
            let seq = (self.max_seq - 3).max(self.min_seq[page.of]);
            self.list(frame, seq, true);
        }
    }

    pub(crate) fn putback(&mut self, shadow: Shadow, writing: bool) {
        if self.main() {
            let evicted = &mut self.counters[shadow.of].evicted[shadow.used.tier()];
            *evicted = evicted.saturating_sub(1);
        }
        let page = Page {
            of: shadow.of,
            used: shadow.used,
            dirty: shadow.dirty && shadow.of == 1,
            writing,
            reclaim: writing,
            ..Page::default()
        };
        self.pages.insert(shadow.frame, page);
        self.reject(shadow.frame, false);
    }

    fn reject(&mut self, frame: u32, active: bool) {
        let page = self.pages[&frame].clone();
        let mut seq = self.placement(&page, active);
        if active || seq == self.min_seq[page.of] {
            seq = self.placement(&page, true);
            self.pages.get_mut(&frame).unwrap().used.forget();
        }
        self.list(frame, seq, false);
    }

    pub(crate) fn set_unevictable(&mut self, frame: u32, unevictable: bool) {
        let page = self.pages.get_mut(&frame).unwrap();
        page.unevictable = unevictable;
        if !unevictable && page.seq.is_none() {
            let page = self.pages[&frame].clone();
            self.list(frame, self.placement(&page, false), false);
        }
    }

    pub(crate) fn age(&mut self, force_scan: bool) {
        let enabled = self.tunables.enabled;
        if !self.main() {
            return;
        }
        if enabled.has(Enabled::WALK) {
            let all = force_scan || !enabled.has(Enabled::NONLEAF);
            // There are only two filters: the previous generation's is reused for the next one.
            self.worth.remove(&(self.max_seq - 1));
            self.worth.insert(self.max_seq + 1, BTreeSet::new());
            for region in 0..self.frames.div_ceil(64) {
                let due = self.worth.get(&self.max_seq).is_none_or(|w| w.contains(&region));
                if all || due {
                    let (total, young) = self.observe(region * 64..(region + 1) * 64);
                    self.note(self.max_seq + 1, region, total, young);
                }
            }
        }
        for of in [0, 1] {
            if self.max_seq - self.min_seq[of] == 3 {
                self.join_oldest(of);
            }
        }
        self.max_seq += 1;
        if !enabled.has(Enabled::WALK) {
            // The filter of two generations ago is used again, unchanged.
            if let Some(worth) = self.worth.remove(&(self.max_seq - 2)) {
                self.worth.insert(self.max_seq, worth);
            }
        }
    }

    fn note(&mut self, seq: u64, region: u32, total: u32, young: u32) {
        if young > 0
            && young * self.tunables.young_share >= total
            && let Some(worth) = self.worth.get_mut(&seq)
        {
            worth.insert(region);
        }
    }

    fn observe(&mut self, frames: std::ops::Range<u32>) -> (u32, u32) {
        let max_seq = self.max_seq;
        let (mut total, mut young) = (0, 0);
        for (_, page) in self.pages.range_mut(frames).filter(|(_, page)| page.seq.is_some()) {
            total += 1;
            if page.used.accessed {
                young += 1;
                if page.used.observe() {
                    page.seq = Some(max_seq);
                }
            }
        }
        (total, young)
    }

    fn join_oldest(&mut self, of: usize) {
        let oldest = self.min_seq[of];
        for frame in self.lists.get(&(oldest, of)).cloned().unwrap_or_default() {
            let page = self.pages.get_mut(&frame).unwrap();
            let seq = page.seq.unwrap();
            if seq == oldest {
                if !page.used.lazily_promoted() {
                    self.counters[of].protected[page.used.tier()] += 1;
                }
                page.used.forget();
            }
            self.list(frame, seq.max(oldest + 1), true);
        }
        self.carry_over(of);
        self.min_seq[of] += 1;
    }

    fn carry_over(&mut self, of: usize) {
        let old = std::mem::take(&mut self.counters[of]);
        let new = &mut self.counters[of];
        for tier in 0..4 {
            let total = old.evicted[tier] + old.protected[tier];
            new.avg_refaulted[tier] = old.avg_refaulted[tier].midpoint(old.refaulted[tier]);
            new.avg_total[tier] = old.avg_total[tier].midpoint(total);
        }
    }
}
