//! Aging: sweeps find pages that were accessed through mappings and promote them, then a new
//! generation begins. Eviction feeds it: if a page turns out to be in use, its neighbors are looked
//! at, too.

use super::Type;
use super::frames::Frame;
use super::lruvec::{End, Lruvec, index};
use super::tunables::{Enabled, MAX_NR_GENS, MAX_SWAPPINESS, MIN_NR_GENS};

/// Frames of a region: those whose marks share a cache line.
const REGION: usize = 64;

/// Whether a group needs aging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aging {
    /// Required: only the two youngest generations are left, so nothing can be evicted.
    Must,
    /// Something can be evicted, but it is time for a new generation.
    Better,
    /// Not yet.
    No,
}

/// What the last sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkStats {
    /// Pages looked at.
    pub total: u64,
    /// Of these, pages that had been accessed.
    pub young: u64,
    /// Regions visited.
    pub found: u64,
    /// Regions that the next sweep should visit.
    pub added: u64,
}

impl Lruvec {
    /// Whether this group needs aging, under a swappiness of 0 to 201.
    pub fn need_aging(&self, swappiness: u16) -> Aging {
        let eldest = self.eldest(swappiness) + MIN_NR_GENS;
        if !self.main() || eldest < self.max_seq {
            Aging::No
        } else if eldest > self.max_seq {
            Aging::Must
        } else if !self.tunables.spread || self.badly_spread(swappiness) {
            Aging::Better
        } else {
            Aging::No
        }
    }

    /// The oldest generation of what may be evicted.
    pub(super) fn eldest(&self, swappiness: u16) -> u64 {
        let dirty_or_clean = |dirty: bool| self.min_seq[usize::from(!dirty)];
        dirty_or_clean(swappiness > 0).min(dirty_or_clean(swappiness > MAX_SWAPPINESS))
    }

    /// Pages of a type that are old enough to be evicted.
    pub fn inactive(&self, of: Type) -> u64 {
        let old = self.min_seq(of)..=self.max_seq - MIN_NR_GENS;
        old.map(|seq| self.size(seq, of)).sum()
    }

    /// When the oldest generation of the types that may be evicted was born, in milliseconds.
    pub fn oldest_birth_ms(&self, swappiness: u16) -> u64 {
        self.births_ms[index(self.eldest(swappiness))]
    }

    /// Whether more than half of the pages are in the youngest generation, or less than a quarter
    /// in the oldest of three. Kernels from 6.1 to 6.13 use this criterion.
    fn badly_spread(&self, swappiness: u16) -> bool {
        let size = |seq| {
            let types = Type::ALL.into_iter().filter(|of| of.evictable(swappiness));
            types.map(|of| self.size(seq, of)).sum::<u64>()
        };
        let total: u64 = (self.eldest(swappiness)..=self.max_seq).map(size).sum();
        size(self.max_seq) * MIN_NR_GENS > total
            || size(self.max_seq - MIN_NR_GENS) * (MIN_NR_GENS + 2) < total
    }

    /// Ages the pages at a time in milliseconds: sweeps and begins a new generation. With
    /// `force_scan` the sweep visits every region. Does nothing while the generations are switched
    /// off.
    pub fn age(&mut self, now_ms: u64, force_scan: bool) {
        if self.main() {
            self.sweep(force_scan);
            while !self.inc_max_seq(now_ms) {}
        }
    }

    /// Sweeps over the regions: clears the marks of accesses through mappings, and promotes pages
    /// that were found for the second time. Does nothing if walks are switched off.
    pub fn sweep(&mut self, force_scan: bool) {
        let enabled = self.tunables.enabled;
        if !enabled.has(Enabled::MAIN.with(Enabled::WALK)) {
            return;
        }
        let all = force_scan || !enabled.has(Enabled::NONLEAF);
        self.walked = WalkStats::default();
        self.filters.reset(self.max_seq + 1);
        match self.own_regions() {
            Some(own) => own.into_iter().for_each(|region| self.visit(region, all)),
            None => (0..self.regions()).for_each(|region| self.visit(region, all)),
        }
    }

    /// Visits a region if all are to be visited or this one is worth it.
    fn visit(&mut self, region: u32, all: bool) {
        if !all && !self.filters.test(self.max_seq, region) {
            return;
        }
        let begin = region as usize * REGION;
        let (total, young) = self.promote_young(begin..begin + REGION);
        self.walked.total += total;
        self.walked.young += young;
        self.walked.found += u64::from(total > 0);
        if self.dense(total, young) {
            self.filters.add(self.max_seq + 1, region);
            self.walked.added += 1;
        }
    }

    fn regions(&self) -> u32 {
        self.frames.len().div_ceil(REGION) as u32
    }

    /// The regions with pages of this group, if it has so few pages that it is less work to go
    /// through the lists first. Otherwise `None`.
    fn own_regions(&self) -> Option<Vec<u32>> {
        let pages: u64 = self.totals().iter().sum();
        if pages >= u64::from(self.regions()) {
            return None;
        }
        let lists = self.lists.iter().flatten();
        let frames = lists.flat_map(|list| list.iter(&self.frames));
        let mut regions: Vec<u32> = frames.map(|frame| frame / REGION as u32).collect();
        regions.sort_unstable();
        regions.dedup();
        Some(regions)
    }

    /// What the last sweep found.
    pub fn walk_stats(&self) -> WalkStats {
        self.walked
    }

    /// Looks at the neighbours of a page that eviction found to be in use. The page itself is left
    /// to the caller.
    pub(super) fn look_around(&mut self, frame: Frame) {
        let (frame, width) = (frame as usize, self.tunables.look_around as usize);
        let begin = frame - frame % width;
        let before = self.promote_young(begin..frame);
        let after = self.promote_young(frame + 1..begin + width);
        let (total, young) = (before.0 + after.0 + 1, before.1 + after.1 + 1);
        if self.dense(total, young) {
            self.filters.add(self.max_seq, (frame / REGION) as u32);
        }
    }

    fn dense(&self, total: u64, young: u64) -> bool {
        young > 0 && young * u64::from(self.tunables.young_share) >= total
    }

    /// Counts the pages in these frames that are on a list, and those among them that had been
    /// accessed. Clears their marks. Pages that had been found before are promoted to the youngest
    /// generation, but stay on their lists until eviction comes by.
    fn promote_young(&mut self, range: std::ops::Range<usize>) -> (u64, u64) {
        let (mut total, mut young) = (0, 0);
        for frame in range.start..range.end.min(self.frames.len()) {
            let frame = frame as Frame;
            let state = self.frames.state(frame);
            let Some(generation) = state.generation().filter(|_| state.belongs_to(self.owner))
            else {
                continue;
            };
            total += 1;
            let marks = self.frames.marks(frame);
            if !marks.accessed() {
                continue;
            }
            young += 1;
            let (marks, promoted) = marks.without_accessed().observed();
            self.frames.set_marks(frame, marks);
            if promoted {
                let (youngest, of) = (index(self.max_seq), state.of() as usize);
                self.sizes[generation][of] -= 1;
                self.sizes[youngest][of] += 1;
                self.frames.set_state(frame, state.with_generation(youngest));
            }
        }
        (total, young)
    }

    /// Begins a new generation, at a time in milliseconds. If a type already has four, its oldest
    /// is first joined with the next one, `max_lru_batch` pages at a time. `false` means that there
    /// is more to do, so that a caller that holds a lock may let others in before it comes again.
    pub fn inc_max_seq(&mut self, now_ms: u64) -> bool {
        for of in Type::ALL {
            if self.generations(of) == MAX_NR_GENS && !self.inc_min_seq(of) {
                return false;
            }
        }
        self.max_seq += 1;
        self.births_ms[index(self.max_seq)] = now_ms;
        true
    }

    /// Moves what is left of the oldest generation to the end of the next one. Returns whether all
    /// was moved.
    fn inc_min_seq(&mut self, of: Type) -> bool {
        let oldest = self.min_seq(of);
        let mut remaining = self.tunables.max_lru_batch;
        while let Some(frame) = self.lists[index(oldest)][of as usize].oldest() {
            if remaining == 0 {
                return false;
            }
            remaining -= 1;
            let state = self.frames.state(frame);
            self.take(frame, state);
            let promoted = state.generation().filter(|at| *at != index(oldest));
            if let Some(ahead) = promoted {
                let seq = oldest + (ahead + MAX_NR_GENS as usize - index(oldest)) as u64 % 4;
                self.place(frame, state, seq, End::Tail);
                continue;
            }
            let marks = self.frames.marks(frame);
            if !marks.lazily_promoted() {
                self.feedback[of as usize].protected[marks.tier()] += 1;
            }
            self.frames.set_marks(frame, marks.moved());
            self.place(frame, state, oldest + 1, End::Tail);
        }
        self.leave_oldest(of);
        true
    }

    /// Ends the oldest generation of a type, which is empty.
    fn leave_oldest(&mut self, of: Type) {
        self.feedback[of as usize].carry_over();
        self.min_seq[of as usize] += 1;
    }

    /// Lets go of oldest generations that are empty. Of two types that may both be evicted, one
    /// keeps three generations while the other has four, so that they stay comparable.
    pub(super) fn try_to_inc_min_seq(&mut self, swappiness: u16) {
        let mut min_seq = self.min_seq;
        for of in Type::ALL.into_iter().filter(|of| of.evictable(swappiness)) {
            let min_seq = &mut min_seq[of as usize];
            while *min_seq + MIN_NR_GENS <= self.max_seq
                && self.lists[index(*min_seq)][of as usize].is_empty()
            {
                *min_seq += 1;
            }
        }
        if Type::ALL.into_iter().all(|of| of.evictable(swappiness)) {
            let hold = self.max_seq - MIN_NR_GENS;
            for of in [0, 1] {
                if min_seq[of] > hold && min_seq[1 - of] < hold {
                    min_seq[of] = hold;
                }
            }
        }
        for of in Type::ALL {
            if min_seq[of as usize] > self.min_seq(of) {
                // The counters are carried over once, however many generations went at the same
                // time.
                self.leave_oldest(of);
                self.min_seq[of as usize] = min_seq[of as usize];
            }
        }
    }
}
