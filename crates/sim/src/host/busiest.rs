//! Which group of a domain is busiest, and how much of it is to be moved (`find_busiest_group`).

use super::balance::Why;
use super::tally::Tally;
use crate::geometry::{Domain, DomainKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupType {
    HasSpare,
    FullyBusy,
    Imbalanced,
    Overloaded,
}

/// What a group of CPUs has to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) kind: GroupType,
    /// Known only where a decision needs it.
    pub(super) sums: Option<Sums>,
    capacity: u64,
    running: u64,
    idle: u64,
    weight: u64,
}

/// The sums of the averages of a group's CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) load: u64,
    pub(super) util: u64,
    pub(super) runnable: u64,
}

impl Sums {
    pub(super) fn add(&mut self, other: Self) {
        self.load += other.load;
        self.util += other.util;
        self.runnable += other.runnable;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Load(u64),
    Util(u64),
    Tasks(u64),
}

impl Group {
    /// A group of `weight` CPUs, judged by its counts alone: it has room if it has fewer threads
    /// than CPUs.
    pub(super) fn new(tally: Tally, weight: usize) -> Self {
        let weight = weight as u64;
        Self {
            kind: GroupType::HasSpare,
            sums: None,
            capacity: weight * 1024,
            running: u64::from(tally.running),
            idle: u64::from(tally.idle),
            weight,
        }
    }

    /// Whether its averages are needed to tell if there is room.
    pub(super) fn may_be_busy(&self) -> bool {
        self.running >= self.weight
    }

    /// Sets its averages, and judges it by them.
    pub(super) fn load(&mut self, sums: Sums, kind: DomainKind) {
        self.sums = Some(sums);
        let (pct, capacity) = (kind.imbalance_pct(), self.capacity);
        let crowded = self.running > self.weight
            && (capacity * 100 < sums.util * pct || capacity * pct < sums.runnable * 100);
        let spare = self.running < self.weight
            || (capacity * pct >= sums.runnable * 100 && capacity * 100 > sums.util * pct);
        self.kind = match (crowded, spare) {
            (true, _) => GroupType::Overloaded,
            (_, true) => GroupType::HasSpare,
            _ => GroupType::FullyBusy,
        };
    }

    /// One of its CPUs no longer counts.
    pub(super) fn exclude(&mut self, running: u64, of: Sums, kind: DomainKind) {
        self.running -= running;
        match self.sums {
            Some(Sums { load, util, runnable }) => {
                let (load, util) = (load - of.load, util - of.util);
                self.load(Sums { load, util, runnable: runnable - of.runnable }, kind);
            }
            None => self.kind = GroupType::HasSpare,
        }
    }

    fn sums(&self) -> Sums {
        self.sums.expect("the loads of these groups were looked at")
    }

    fn average_load(&self) -> u64 {
        self.sums().load * 1024 / self.capacity
    }
}

/// The load of all groups together, for each CPU.
fn mean_load(groups: &[Group]) -> u64 {
    let load: u64 = groups.iter().map(|group| group.sums().load).sum();
    load * 1024 / groups.iter().map(|group| group.capacity).sum::<u64>()
}

/// How many of a cache's `weight` CPUs a search for an idle one may look at
/// (`update_idle_cpu_scan`).
pub(super) fn idle_scan(groups: &[Group], weight: u64, kind: DomainKind) -> u64 {
    let util: u64 = groups.iter().map(|group| group.sums().util).sum();
    let x = util / weight;
    let pct = kind.imbalance_pct();
    let used = (x * x * pct * pct / (10_000 * 1024)).min(1024);
    (1024 - used) * weight / 1024
}

/// The group to take from, and how much.
pub(super) fn find_busiest(
    domain: &Domain,
    groups: &[Group],
    own: usize,
    why: Why,
) -> Option<(usize, Move)> {
    let mut busiest: Option<usize> = None;
    // Starts after the CPU's own group, and goes all around.
    for index in (own + 1..groups.len()).chain(0..own) {
        let group = &groups[index];
        if group.running == 0 {
            continue;
        }
        let Some(best) = busiest else {
            busiest = Some(index);
            continue;
        };
        let best = &groups[best];
        let better = match group.kind.cmp(&best.kind) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => match group.kind {
                GroupType::Overloaded => group.average_load() > best.average_load(),
                GroupType::FullyBusy | GroupType::Imbalanced => false,
                GroupType::HasSpare => {
                    group.idle < best.idle
                        || (group.idle == best.idle && group.running > best.running)
                }
            },
        };
        if better {
            busiest = Some(index);
        }
    }
    let index = busiest?;
    let (busy, local) = (&groups[index], &groups[own]);
    if busy.kind == GroupType::Imbalanced {
        return Some((index, Move::Tasks(1)));
    }
    if local.kind > busy.kind {
        return None;
    }
    if local.kind == GroupType::Overloaded {
        let mean = mean_load(groups);
        let (mine, theirs) = (local.average_load(), busy.average_load());
        if mine >= theirs || mine >= mean || 100 * theirs <= domain.kind.imbalance_pct() * mine {
            return None;
        }
        return imbalance(domain, groups, index, own, why);
    }
    if domain.prefers_siblings
        && local.kind == GroupType::HasSpare
        && busy.running > local.running + 1
    {
        return imbalance(domain, groups, index, own, why);
    }
    if busy.kind != GroupType::Overloaded {
        let even = busy.weight > 1 && local.idle <= busy.idle + 1;
        if why == Why::Busy || even || busy.running == 1 {
            return None;
        }
    }
    imbalance(domain, groups, index, own, why)
}

/// How much to move (`calculate_imbalance`).
fn imbalance(
    domain: &Domain,
    groups: &[Group],
    index: usize,
    own: usize,
    why: Why,
) -> Option<(usize, Move)> {
    let (busy, local) = (&groups[index], &groups[own]);
    if local.kind == GroupType::HasSpare {
        let in_cache = matches!(domain.kind, DomainKind::Smt | DomainKind::Llc);
        if busy.kind > GroupType::FullyBusy && !in_cache {
            let amount = local.capacity.saturating_sub(local.sums().util);
            if amount == 0 && why != Why::Busy {
                return Some((index, Move::Tasks(1)));
            }
            return (amount > 0).then_some((index, Move::Util(amount)));
        }
        let tasks = if busy.weight == 1 || domain.prefers_siblings {
            busy.running.saturating_sub(local.running) / 2
        } else {
            local.idle.saturating_sub(busy.idle) / 2
        };
        return (tasks > 0).then_some((index, Move::Tasks(tasks)));
    }
    let mean = mean_load(groups);
    let (mine, theirs) = (local.average_load(), busy.average_load());
    // The load of a group that is not crowded is not known, and counts as 0.
    if busy.kind < GroupType::Overloaded || local.kind < GroupType::Overloaded && mine >= mean {
        return None;
    }
    let surplus = theirs.saturating_sub(mean) * busy.capacity;
    let lack = mean.saturating_sub(mine) * local.capacity;
    let load = surplus.min(lack) / 1024;
    (load > 0).then_some((index, Move::Load(load)))
}
