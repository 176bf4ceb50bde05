//! Passes over groups: budgets, protection, priorities, and when a pass has enough.

use super::flags::{Background, Step, Visit};
use super::groups::{Group, GroupId, Groups};
use super::pages::Pages;
use crate::kernel::{Aging, MAX_SWAPPINESS, Type};

/// `DEF_PRIORITY`: a first pass looks at one page of 4096.
const DEF_PRIORITY: u32 = 12;
/// A pass over all groups begins with this priority at least: the kernel's `DEF_PRIORITY / 2`.
const PRIORITY_MIN: u32 = DEF_PRIORITY / 2;
/// The most that a batch takes: the kernel's `MIN_LRU_BATCH`. Also how many pages above the
/// watermark the background run frees.
const BATCH: u64 = 64;
/// How often a dead group's pages are aged before reclaim gives up: all generations, and one more.
const AGINGS_MAX: u32 = 4;

/// The goal of a background run, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// How many pages to reclaim.
    pub pages: u64,
    /// How many more free pages there must be to reach the watermark.
    pub short: u64,
}

/// The result of reclaim, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages looked at.
    pub scanned: u64,
    /// Pages that are gone.
    pub reclaimed: u64,
    /// Pages that had to be written; they are reclaimed after that.
    pub written: u64,
    /// How often groups were aged.
    pub agings: u64,
    /// Whether all groups are protected by `min_ttl_ms`, so that nothing more was taken. Memory is
    /// too small for what is in use: refuse new requests.
    pub thrashing: bool,
}

/// A pass under way.
#[derive(Debug)]
struct Pass<'a> {
    priority: u32,
    /// How many pages end it early. A pass of a single group never ends early.
    enough: u64,
    /// Whether groups within `low` give pages, too.
    low_reclaim: bool,
    /// Whether some group was passed over because it is within `low`.
    low_skipped: bool,
    now_ms: u64,
    background: Option<&'a mut Background>,
    outcome: Outcome,
}

impl<P: Pages> Groups<P> {
    /// Reclaims this many pages from all groups, at a time in milliseconds, for a caller that
    /// cannot wait for the background.
    pub fn reclaim(&mut self, pages: u64, now_ms: u64) -> Outcome {
        let mut pass = Pass::new(self.initial_priority(pages), now_ms);
        pass.enough = pages;
        self.by_priorities(&mut pass, pages, None);
        pass.outcome
    }

    /// Reclaims this many pages from a group that is above a limit, at a time in milliseconds.
    pub fn reclaim_group(&mut self, id: GroupId, pages: u64, now_ms: u64) -> Outcome {
        let mut pass = Pass::new(DEF_PRIORITY, now_ms);
        self.by_priorities(&mut pass, pages, Some(id));
        pass.outcome
    }

    /// Runs passes until there are this many pages, each with a priority one lower than the pass
    /// before. If nothing was reclaimed and groups within `low` were passed over, does it once more
    /// with these.
    fn by_priorities(&mut self, pass: &mut Pass, pages: u64, one: Option<GroupId>) {
        let initial = pass.priority;
        loop {
            for priority in (0..=initial).rev() {
                pass.priority = priority;
                match one {
                    None => self.pass(pass),
                    Some(id) => {
                        if let Some(group) = self.group_mut(id) {
                            group.shrink(pass);
                        }
                    }
                }
                if pass.outcome.reclaimed >= pages {
                    return;
                }
            }
            if pass.outcome.reclaimed > 0 || pass.low_reclaim || !pass.low_skipped {
                return;
            }
            pass.low_reclaim = true;
        }
    }

    /// Reclaims in the background: runs rounds until the goal is reached, or nothing is left to
    /// take.
    pub fn run_background(&mut self, run: &mut Background, goal: Goal, now_ms: u64) -> Outcome {
        let enough = goal.enough();
        let mut priority = self.initial_priority(enough);
        let mut low_reclaim = false;
        let mut sum = Outcome::default();
        while priority > 0 && sum.reclaimed < enough && !sum.thrashing {
            let rest = enough - sum.reclaimed;
            let (round, low_skipped) = self.round(run, priority, rest, low_reclaim, now_ms);
            sum.add(&round);
            if round.scanned < rest || round.reclaimed == 0 {
                priority -= 1;
            }
            if priority == 0 && sum.reclaimed == 0 && low_skipped && !low_reclaim {
                (priority, low_reclaim) = (DEF_PRIORITY, true);
            }
        }
        sum
    }

    /// Runs one round of the background with this priority, 1 to 12, at a time in milliseconds. For
    /// callers that decide themselves when to go on.
    ///
    /// # Panics
    ///
    /// If the priority is higher than 12.
    pub fn background_round(
        &mut self,
        run: &mut Background,
        priority: u32,
        goal: Goal,
        now_ms: u64,
    ) -> Outcome {
        assert!(priority <= DEF_PRIORITY, "there is no priority {priority}");
        self.round(run, priority, goal.enough(), false, now_ms).0
    }

    /// Runs a round. Also returns whether a group was passed over because it is within `low`.
    fn round(
        &mut self,
        run: &mut Background,
        priority: u32,
        enough: u64,
        low_reclaim: bool,
        now_ms: u64,
    ) -> (Outcome, bool) {
        let mut pass = Pass::new(priority, now_ms);
        pass.enough = enough;
        pass.low_reclaim = low_reclaim;
        if !self.any_reclaimable(priority, now_ms) {
            for group in self.iter_mut().filter(|group| group.is_dead()) {
                group.evict_wholly(&mut pass);
            }
            pass.outcome.thrashing = pass.outcome.reclaimed == 0;
            return (pass.outcome, false);
        }
        if run.begin_round() {
            for group in self.iter_mut().filter(|group| !group.within_min()) {
                if group.pages.need_aging(group.limits.swappiness) != Aging::No {
                    group.pages.age(now_ms);
                    pass.outcome.agings += 1;
                }
            }
        }
        pass.background = Some(run);
        self.pass(&mut pass);
        (pass.outcome, pass.low_skipped)
    }

    /// Whether there is a group whose oldest pages are older than `min_ttl_ms`. As in the kernel, a
    /// group that is too small to give anything at this priority does not count. Unlike there, all
    /// groups may be so small; then they count.
    fn any_reclaimable(&self, priority: u32, now_ms: u64) -> bool {
        if self.min_ttl_ms == 0 {
            return true;
        }
        let all = || self.iter().map(|(_, group)| group);
        let live = || all().filter(|group| !group.is_dead() && !group.within_min());
        let any_large = live().any(|group| group.evictable() >> priority > 0);
        live().any(|group| {
            let birth_ms = group.pages.oldest_birth_ms(group.limits.swappiness);
            let is_open = birth_ms.saturating_add(self.min_ttl_ms) <= now_ms;
            is_open && group.evictable() >> if any_large { priority } else { 0 } > 0
        })
    }

    /// Visits each group once, from the cookie on, until there is enough.
    fn pass(&mut self, pass: &mut Pass) {
        let count = self.slots().len();
        let begin = self.cookie;
        for step in 0..count {
            let at = (begin + step) % count;
            let Some(group) = &mut self.slots()[at] else { continue };
            group.shrink(pass);
            if pass.is_enough() {
                self.cookie = (at + 1) % count;
                return;
            }
        }
    }

    /// The priority under which one pass gives about this many pages.
    fn initial_priority(&self, pages: u64) -> u32 {
        let inactive = |(_, group): (_, &Group<P>)| group.pages.inactive(group.limits.swappiness);
        let inactive: u64 = self.iter().map(inactive).sum();
        // One is rounded down, the other up: the priority should be too low rather than too high.
        let shift = inactive.max(1).ilog2();
        let target = pages.clamp(1, 1 << 62).next_power_of_two().ilog2();
        shift.saturating_sub(target).clamp(PRIORITY_MIN, DEF_PRIORITY)
    }
}

impl<P: Pages> Group<P> {
    fn within_min(&self) -> bool {
        !self.dead && self.usage <= self.limits.min
    }

    /// The number of pages of the types that may be evicted.
    fn evictable(&self) -> u64 {
        let totals = self.pages.totals();
        let types = Type::ALL.into_iter().filter(|of| of.evictable(self.swappiness()));
        types.map(|of| totals[of as usize]).sum()
    }

    /// Runs the group's turn.
    fn shrink(&mut self, pass: &mut Pass) {
        if self.dead {
            self.evict_wholly(pass);
            return;
        }
        let swappiness = self.limits.swappiness;
        let needs_aging = self.pages.need_aging(swappiness);
        let target = self.budget(pass, needs_aging);
        let needs_aging = needs_aging != Aging::No;
        let mut visit = Visit { target, swappiness, needs_aging, ..Visit::default() };
        if let Some(run) = &mut pass.background
            && !self.passed_over(pass.low_reclaim)
        {
            run.begin_visit(&visit);
        }
        while visit.scanned < target {
            let batch = self.evict(BATCH.min(target - visit.scanned), pass);
            if batch.scanned == 0 {
                return;
            }
            visit.scanned += batch.scanned;
            visit.reclaimed += batch.reclaimed;
            visit.written += batch.written;
            let step = match &mut pass.background {
                Some(run) => run.after_batch(&visit),
                None => Step::Next,
            };
            match step {
                Step::Leave => return,
                Step::End => break,
                Step::Next if pass.is_enough() => break,
                Step::Next => {}
            }
        }
        if visit.scanned > 0
            && let Some(run) = &mut pass.background
        {
            run.end_visit(&visit);
        }
    }

    /// How many pages the group's turn looks at, fixed for the whole turn: 0 if the group is
    /// protected, or ages instead.
    fn budget(&mut self, pass: &mut Pass, needs_aging: Aging) -> u64 {
        if self.passed_over(pass.low_reclaim) {
            pass.low_skipped |= !self.within_min();
            return 0;
        }
        let limits = &self.limits;
        let promised = if pass.low_reclaim { limits.min } else { limits.min.max(limits.low) };
        let total = u128::from(self.evictable());
        // A group that is twice as large as what it is promised gives half of what it would
        // otherwise.
        let protected = total * u128::from(promised) / (u128::from(self.usage) + 1);
        let budget = (total.saturating_sub(protected) >> pass.priority) as u64;
        let budget = budget.min(self.usage.saturating_sub(promised));
        match needs_aging {
            Aging::No => budget,
            Aging::Better if pass.priority == DEF_PRIORITY => budget,
            _ => {
                // The background ages all groups at once, when a round begins.
                if pass.background.is_none() && pass.priority < DEF_PRIORITY {
                    self.pages.age(pass.now_ms);
                    pass.outcome.agings += 1;
                }
                0
            }
        }
    }

    fn passed_over(&self, low_reclaim: bool) -> bool {
        self.within_min() || !low_reclaim && self.usage <= self.limits.low
    }

    fn evict_wholly(&mut self, pass: &mut Pass) {
        for _ in 0..AGINGS_MAX {
            // Pages that are being written come round again and again. Meeting them once is enough.
            let end = pass.outcome.scanned + 2 * self.evictable();
            while pass.outcome.scanned < end && self.evict(BATCH, pass).scanned > 0 {}
            if self.evictable() == 0 {
                return;
            }
            self.pages.age(pass.now_ms);
            pass.outcome.agings += 1;
        }
    }

    /// The group's swappiness. Both types go from a dead group.
    fn swappiness(&self) -> u16 {
        let given = self.limits.swappiness;
        if self.dead { given.clamp(1, MAX_SWAPPINESS) } else { given }
    }

    fn evict(&mut self, budget: u64, pass: &mut Pass) -> super::Batch {
        let batch = self.pages.evict(budget, self.swappiness());
        self.usage = self.usage.saturating_sub(batch.reclaimed);
        pass.outcome.scanned += batch.scanned;
        pass.outcome.reclaimed += batch.reclaimed;
        pass.outcome.written += batch.written;
        batch
    }
}

impl Pass<'_> {
    fn new(priority: u32, now_ms: u64) -> Self {
        Self {
            priority,
            enough: u64::MAX,
            low_reclaim: false,
            low_skipped: false,
            now_ms,
            background: None,
            outcome: Outcome::default(),
        }
    }

    fn is_enough(&self) -> bool {
        self.outcome.reclaimed >= self.enough
    }
}

impl Goal {
    fn enough(self) -> u64 {
        if self.short == 0 { self.pages } else { self.pages.max(self.short.saturating_add(BATCH)) }
    }
}

impl Outcome {
    /// Adds a later result.
    pub fn add(&mut self, other: &Self) {
        self.scanned += other.scanned;
        self.reclaimed += other.reclaimed;
        self.written += other.written;
        self.agings += other.agings;
        self.thrashing |= other.thrashing;
    }
}
