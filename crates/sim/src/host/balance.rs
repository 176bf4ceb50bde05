//! Balancing: a CPU that becomes idle, a tick, or a tick on behalf of idle CPUs moves waiting
//! threads from the busiest group of a domain.

use std::sync::Arc;

use homing_topology::CpuSet;

use super::load::FULL;
use super::{Host, ThreadId};
use crate::agenda::Ns;
use crate::geometry::{CpuIndex, Domain, DomainKind};

const MS: Ns = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    NewIdle,
    Idle,
    Busy,
}

/// What came of a look at a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Another CPU of the group looks.
    NotChosen,
    /// There is nothing to move.
    Balanced,
    /// What there is may not come here.
    Pinned,
    /// There was, but nothing that waits was moved.
    Failed,
    /// The same, and what runs there may not come here.
    OnePinned,
    Moved,
}

/// To this an interval may grow where all is pinned (`MAX_PINNED_INTERVAL`).
const PINNED_INTERVAL_NS: Ns = 512 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GroupType {
    HasSpare,
    FullyBusy,
    Imbalanced,
    Overloaded,
}

#[derive(Clone, Copy, Debug)]
struct Stats {
    kind: GroupType,
    load: u64,
    util: u64,
    capacity: u64,
    running: u64,
    idle: u64,
    weight: u64,
}

impl Stats {
    fn average_load(&self) -> u64 {
        self.load * 1024 / self.capacity
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Load(u64),
    Util(u64),
    Tasks(u64),
}

impl Host {
    /// A CPU with nothing to run looks around (`newidle_balance`).
    pub(super) fn newidle_balance(&mut self, cpu: CpuIndex) {
        if !self.rules.newidle || !self.overloaded {
            return;
        }
        let mut spent_ns = 0;
        for level in 0..self.geometry.domains_of(cpu).len() {
            let (number, _) = self.geometry.domains_of(cpu)[level];
            let kind = self.geometry.domain(number).kind;
            let far = matches!(kind, DomainKind::Package | DomainKind::Numa);
            if far && !self.rules.newidle_far {
                break;
            }
            let cost_ns = self.rules.newidle_costs_ns[(kind as usize).min(2)];
            if self.cpus[cpu].average_idle_ns < spent_ns + cost_ns {
                break;
            }
            let outcome = self.balance(cpu, level, Why::NewIdle);
            spent_ns += cost_ns * self.rules.newidle_spent_per_mille / 1000;
            if outcome == Outcome::Moved || !self.cpus[cpu].queue.is_empty() {
                break;
            }
        }
    }

    /// A tick of a CPU that is busy: its own domains, and those of idle CPUs where one is wanted.
    pub(super) fn balance_at_tick(&mut self, cpu: CpuIndex) {
        self.balance_domains(cpu, Why::Busy);
        let cache = &self.geometry.llcs()[self.geometry.llc_of(cpu)];
        let busy = cache.iter().filter(|at| !self.is_idle(**at)).count();
        let now_ns = self.now_ns();
        // Several runnable here, or several CPUs of the cache busy, while others are idle.
        if (self.runnable(cpu) >= 2 || busy > 1) && now_ns >= self.next_idle_balance_ns {
            self.next_idle_balance_ns = now_ns + MS;
            for at in 0..self.cpus.len() {
                if self.is_idle(at) {
                    self.balance_domains(at, Why::Idle);
                    if !self.cpus[at].queue.is_empty() {
                        self.want_schedule(at);
                    }
                }
            }
        }
    }

    fn balance_domains(&mut self, cpu: CpuIndex, why: Why) {
        for level in 0..self.geometry.domains_of(cpu).len() {
            let (number, _) = self.geometry.domains_of(cpu)[level];
            let weight = self.geometry.domain(number).span.len() as Ns;
            let state = &self.cpus[cpu].balance[level];
            let busy_factor = if why == Why::Busy { 16 } else { 1 };
            let mut interval_ns = state.interval_ns * busy_factor;
            if why == Why::Busy {
                interval_ns = interval_ns.saturating_sub(MS); // so that levels do not coincide
            }
            if self.now_ns() < state.last_ns + interval_ns {
                continue;
            }
            let outcome = self.balance(cpu, level, why);
            let now_ns = self.now_ns();
            let state = &mut self.cpus[cpu].balance[level];
            state.last_ns = now_ns;
            let most_ns = match outcome {
                Outcome::NotChosen | Outcome::Balanced | Outcome::OnePinned => 2 * weight * MS,
                Outcome::Pinned => PINNED_INTERVAL_NS,
                Outcome::Failed | Outcome::Moved => 0,
            };
            if state.interval_ns < most_ns {
                state.interval_ns *= 2;
            }
            if outcome == Outcome::NotChosen || outcome == Outcome::Moved && why == Why::Idle {
                break;
            }
        }
    }

    /// `should_we_balance`: one CPU of a group does it for all.
    fn is_chosen(&self, cpu: CpuIndex, group: &[CpuIndex], why: Why) -> bool {
        if why == Why::NewIdle {
            return self.cpus[cpu].queue.is_empty();
        }
        let idle = group.iter().find(|at| self.is_idle(**at));
        idle.or_else(|| group.first()) == Some(&cpu)
    }

    /// Moves threads to `cpu`.
    fn balance(&mut self, cpu: CpuIndex, level: usize, why: Why) -> Outcome {
        let (number, own) = self.geometry.domains_of(cpu)[level];
        let domain = Arc::clone(self.geometry.domain(number));
        let outcome = if self.is_chosen(cpu, &domain.groups[own], why) {
            for at in &domain.span {
                self.account(*at);
            }
            self.look(cpu, level, &domain, own, why)
        } else {
            Outcome::NotChosen
        };
        let state = &mut self.cpus[cpu].balance[level];
        match outcome {
            Outcome::Failed | Outcome::OnePinned => {}
            _ => state.failed = 0,
        }
        if matches!(outcome, Outcome::Failed | Outcome::Moved) {
            state.interval_ns = domain.span.len() as Ns * MS;
        }
        outcome
    }

    fn but_for(&self, group: &[CpuIndex], pinned: &CpuSet) -> impl Iterator<Item = CpuIndex> {
        group.iter().copied().filter(|at| !pinned.contains(self.geometry.id(*at)))
    }

    fn group_stats(&self, domain: &Domain, group: &[CpuIndex], pinned: &CpuSet) -> Stats {
        let (mut load, mut util, mut runnable, mut running, mut idle) = (0, 0, 0, 0, 0);
        for at in self.but_for(group, pinned) {
            load += self.cpus[at].average.load();
            util += self.cpu_util(at);
            runnable += self.cpus[at].average.runnable();
            running += self.runnable(at) as u64;
            idle += u64::from(self.is_idle(at));
        }
        let (weight, capacity) = (group.len() as u64, group.len() as u64 * 1024);
        let pct = domain.kind.imbalance_pct();
        let crowded =
            running > weight && (capacity * 100 < util * pct || capacity * pct < runnable * 100);
        let spare =
            running < weight || (capacity * pct >= runnable * 100 && capacity * 100 > util * pct);
        let kind = match (crowded, spare) {
            (true, _) => GroupType::Overloaded,
            (_, true) => GroupType::HasSpare,
            _ => GroupType::FullyBusy,
        };
        Stats { kind, load, util, capacity, running, idle, weight }
    }

    /// How much of a CPU is used: at least what is runnable is estimated to use (`cpu_util_cfs`).
    fn cpu_util(&self, cpu: CpuIndex) -> u64 {
        let core = &self.cpus[cpu];
        let util = core.average.util();
        let util = if self.rules.util_est { util.max(core.estimate) } else { util };
        util.min(FULL)
    }

    /// What a look at all groups tells: how far to search for idle CPUs, whether any is crowded.
    fn note_stats(&mut self, domain: &Domain, stats: &[Stats], cpu: CpuIndex, why: Why) {
        if domain.is_top {
            self.overloaded = domain.span.iter().any(|at| self.runnable(*at) > 1);
        }
        let cache = self.geometry.llc_of(cpu);
        let weight = self.geometry.llcs()[cache].len() as u64;
        if why == Why::NewIdle || domain.span.len() as u64 != weight {
            return;
        }
        let util: u64 = stats.iter().map(|group| group.util).sum();
        let x = util / weight;
        let pct = domain.kind.imbalance_pct();
        let used = (x * x * pct * pct / (10_000 * 1024)).min(1024);
        self.idle_scan[cache] = (1024 - used) * weight / 1024;
    }

    /// Looks for a CPU to take from; those whose threads may none of them come here do not count.
    fn look(
        &mut self,
        cpu: CpuIndex,
        level: usize,
        domain: &Domain,
        own: usize,
        why: Why,
    ) -> Outcome {
        let mut pinned = CpuSet::EMPTY;
        let mut stats: Vec<Stats> =
            domain.groups.iter().map(|group| self.group_stats(domain, group, &pinned)).collect();
        loop {
            let nothing = if pinned.is_empty() { Outcome::Balanced } else { Outcome::Pinned };
            self.note_stats(domain, &stats, cpu, why);
            let Some((busiest, mut amount)) = find_busiest(domain, &stats, own, why) else {
                return nothing;
            };
            let group = &domain.groups[busiest];
            let Some(from) = self.busiest_queue(group, &pinned, amount) else { return nothing };
            if self.runnable(from) > 1 {
                if self.take_from(cpu, level, domain, from, &mut amount, why) > 0 {
                    return Outcome::Moved;
                }
                if self.all_pinned(cpu, from) {
                    pinned.insert(self.geometry.id(from));
                    stats[busiest] = self.group_stats(domain, group, &pinned);
                    continue;
                }
            }
            return self.count_failure(cpu, level, domain, from, amount, why);
        }
    }

    /// Whether no thread may be moved (`LBF_ALL_PINNED`): then the balance goes on without this
    /// queue. What runs counts as well.
    fn all_pinned(&self, cpu: CpuIndex, from: CpuIndex) -> bool {
        let id = self.geometry.id(cpu);
        let core = &self.cpus[from];
        let mut threads = core.queue.iter().chain(&core.current);
        !threads.any(|thread| self.threads[thread.0 as usize].allowed.contains(id))
    }

    fn busiest_queue(&self, group: &[CpuIndex], pinned: &CpuSet, amount: Move) -> Option<CpuIndex> {
        let measure = |at: CpuIndex| match amount {
            Move::Load(_) => self.cpus[at].average.load(),
            Move::Util(_) => self.cpu_util(at),
            Move::Tasks(_) => self.runnable(at) as u64,
        };
        let eligible = |at: &CpuIndex| match amount {
            Move::Load(most) => self.runnable(*at) > 1 || measure(*at) <= most,
            Move::Util(_) => self.runnable(*at) > 1,
            Move::Tasks(_) => self.runnable(*at) > 0,
        };
        let candidates = self.but_for(group, pinned).filter(eligible);
        let measured = candidates.map(|at| (measure(at), at)).filter(|(amount, _)| *amount > 0);
        let busiest = measured.max_by_key(|(amount, at)| (*amount, usize::MAX - at));
        busiest.map(|(_, at)| at)
    }

    fn take_from(
        &mut self,
        cpu: CpuIndex,
        level: usize,
        domain: &Domain,
        from: CpuIndex,
        amount: &mut Move,
        why: Why,
    ) -> usize {
        let failed = self.cpus[cpu].balance[level].failed;
        let mut waiting = self.cpus[from].queue.clone();
        // Those that were there first are the coldest.
        waiting.sort_unstable_by_key(|id| self.threads[id.0 as usize].order);
        let mut moved = 0;
        for thread in waiting {
            if why != Why::Busy && self.runnable(from) <= 1 {
                break;
            }
            if !self.may_take(cpu, domain, thread, failed) {
                continue;
            }
            self.account_waiting(thread);
            let own = &self.threads[thread.0 as usize];
            let util = own.average.util();
            let util = if self.rules.util_est { util.max(own.estimate) } else { util };
            match amount {
                Move::Load(left) => {
                    let load = own.average.load().max(1);
                    if (load >> failed.min(63)) > *left {
                        continue;
                    }
                    *left = left.saturating_sub(load);
                }
                Move::Util(left) => {
                    if util > *left {
                        continue;
                    }
                    *left = left.saturating_sub(util);
                }
                Move::Tasks(left) => *left = left.saturating_sub(1),
            }
            self.dequeue(thread);
            self.enqueue(thread, cpu);
            if why == Why::Busy {
                self.preempt(thread, cpu);
            }
            moved += 1;
            let done = matches!(*amount, Move::Load(0) | Move::Util(0) | Move::Tasks(0));
            if why == Why::NewIdle || done {
                break;
            }
        }
        moved
    }

    fn may_take(&self, cpu: CpuIndex, domain: &Domain, thread: ThreadId, failed: u32) -> bool {
        let own = &self.threads[thread.0 as usize];
        if !own.allowed.contains(self.geometry.id(cpu)) {
            return false;
        }
        let lately = |ran_ns| self.now_ns() - ran_ns < self.rules.migration_cost_ns;
        let hot = self.rules.cache_hot
            && domain.kind != DomainKind::Smt
            && own.warm_since_ns.is_some_and(lately);
        !hot || failed > domain.kind.cache_nice_tries()
    }

    /// After several failures the thread that runs is moved (`active_balance`).
    fn count_failure(
        &mut self,
        cpu: CpuIndex,
        level: usize,
        domain: &Domain,
        from: CpuIndex,
        amount: Move,
        why: Why,
    ) -> Outcome {
        let state = &mut self.cpus[cpu].balance[level];
        state.failed += u32::from(why != Why::NewIdle);
        let tries = domain.kind.cache_nice_tries();
        let wanted = matches!(amount, Move::Tasks(_)) && state.failed > tries + 2;
        if !wanted || !self.rules.active_balance {
            return Outcome::Failed;
        }
        let Some(thread) = self.cpus[from].current else { return Outcome::Failed };
        if !self.threads[thread.0 as usize].allowed.contains(self.geometry.id(cpu)) {
            return Outcome::OnePinned;
        }
        self.move_running(thread, from, cpu);
        self.cpus[cpu].balance[level].failed = 0;
        Outcome::Failed
    }

    fn move_running(&mut self, thread: ThreadId, from: CpuIndex, to: CpuIndex) {
        self.account(from);
        let core = &mut self.cpus[from];
        core.current = None;
        core.stamp = core.stamp.wrapping_add(1);
        core.queue.push(thread);
        self.threads[thread.0 as usize].state = super::State::Queued;
        self.threads[thread.0 as usize].queued_ns = self.now_ns();
        self.dequeue(thread);
        self.enqueue(thread, to);
        self.want_schedule(from);
        self.want_schedule(to);
    }
}

/// The group to take from, and how much.
fn find_busiest(domain: &Domain, stats: &[Stats], own: usize, why: Why) -> Option<(usize, Move)> {
    let mut busiest: Option<usize> = None;
    // From one's own group on, all around.
    for index in (0..stats.len()).map(|step| (own + step) % stats.len()) {
        let group = &stats[index];
        if index == own || group.running == 0 {
            continue;
        }
        let Some(best) = busiest else {
            busiest = Some(index);
            continue;
        };
        let best = &stats[best];
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
    let (busy, local) = (&stats[index], &stats[own]);
    if busy.kind == GroupType::Imbalanced {
        return Some((index, Move::Tasks(1)));
    }
    if local.kind > busy.kind {
        return None;
    }
    if local.kind == GroupType::Overloaded {
        let all = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
        let mean = all(|s| s.load) * 1024 / all(|s| s.capacity);
        let (mine, theirs) = (local.average_load(), busy.average_load());
        if mine >= theirs || mine >= mean || 100 * theirs <= domain.kind.imbalance_pct() * mine {
            return None;
        }
        return imbalance(domain, stats, index, own, why);
    }
    if domain.prefers_siblings
        && local.kind == GroupType::HasSpare
        && busy.running > local.running + 1
    {
        return imbalance(domain, stats, index, own, why);
    }
    if busy.kind != GroupType::Overloaded {
        let even = busy.weight > 1 && local.idle <= busy.idle + 1;
        if why == Why::Busy || even || busy.running == 1 {
            return None;
        }
    }
    imbalance(domain, stats, index, own, why)
}

/// How much to move (`calculate_imbalance`).
fn imbalance(
    domain: &Domain,
    stats: &[Stats],
    index: usize,
    own: usize,
    why: Why,
) -> Option<(usize, Move)> {
    let (busy, local) = (&stats[index], &stats[own]);
    if local.kind == GroupType::HasSpare {
        let in_cache = matches!(domain.kind, DomainKind::Smt | DomainKind::Llc);
        if busy.kind > GroupType::FullyBusy && !in_cache {
            let amount = local.capacity.max(local.util) - local.util;
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
    let all = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
    let mean = all(|s| s.load) * 1024 / all(|s| s.capacity);
    let (mine, theirs) = (local.average_load(), busy.average_load());
    // Of a group that is not crowded the load is not known, and counts as none.
    if busy.kind < GroupType::Overloaded || local.kind < GroupType::Overloaded && mine >= mean {
        return None;
    }
    let surplus = theirs.saturating_sub(mean) * busy.capacity;
    let lack = mean.saturating_sub(mine) * local.capacity;
    let load = surplus.min(lack) / 1024;
    (load > 0).then_some((index, Move::Load(load)))
}
