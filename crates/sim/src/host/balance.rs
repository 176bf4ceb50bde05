//! Balancing: a CPU that becomes idle, a tick, or a tick on behalf of idle CPUs moves waiting
//! threads from the busiest group of a domain.

use std::sync::Arc;

use super::busiest::{Group, GroupType, Move, Sums, find_busiest, idle_scan};
use super::load::FULL;
use super::{Host, ThreadId};
use crate::agenda::Ns;
use crate::geometry::{CpuIndex, Domain, DomainKind};

const MS: Ns = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    NewIdle,
    Idle,
    Busy,
}

/// The result of a look at a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Another CPU of the group does the look.
    NotChosen,
    /// There is nothing to move.
    Balanced,
    /// The threads that could be moved may not run here.
    Pinned,
    /// There was something to move, but no waiting thread was moved.
    Failed,
    /// As `Failed`, and the thread that runs there may not run here.
    OnePinned,
    Moved,
}

/// The limit up to which an interval grows if all threads are pinned (`MAX_PINNED_INTERVAL`).
const PINNED_INTERVAL_NS: Ns = 512 * MS;

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

    /// A tick of a busy CPU: balances its own domains, and those of idle CPUs if one of these is
    /// needed.
    pub(super) fn balance_at_tick(&mut self, cpu: CpuIndex) {
        self.balance_domains(cpu, Why::Busy);
        let now_ns = self.now_ns();
        if now_ns < self.next_idle_balance_ns {
            return;
        }
        let cache = &self.geometry.llcs()[self.geometry.llc_of(cpu)];
        let mut busy = cache.iter().filter(|at| !self.is_idle(**at));
        // Needed: several threads are runnable here, or several CPUs of the cache are busy, while
        // others are idle.
        if self.runnable(cpu) >= 2 || busy.nth(1).is_some() {
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

    /// The averages of a group's CPUs.
    fn sums(&mut self, group: &[CpuIndex]) -> Sums {
        let mut sums = Sums::default();
        for at in group {
            self.account(*at);
            sums.add(self.sums_of(*at));
        }
        sums
    }

    fn sums_of(&self, cpu: CpuIndex) -> Sums {
        let average = &self.cpus[cpu].average;
        Sums { load: average.load(), util: self.cpu_util(cpu), runnable: average.runnable() }
    }

    /// How much of a CPU is used: at least as much as its runnable threads are estimated to use
    /// (`cpu_util_cfs`).
    fn cpu_util(&self, cpu: CpuIndex) -> u64 {
        let core = &self.cpus[cpu];
        let util = core.average.util();
        let util = if self.rules.util_est { util.max(core.estimate) } else { util };
        util.min(FULL)
    }

    /// The groups of a domain. The load of their CPUs is summed only where a decision needs it:
    /// summing takes most of the time.
    fn groups(
        &mut self,
        number: usize,
        domain: &Domain,
        own: usize,
        notes_use: bool,
    ) -> Vec<Group> {
        let mut groups = Vec::with_capacity(domain.groups.len());
        for (position, cpus) in domain.groups.iter().enumerate() {
            let mut group = Group::new(self.tallies.group(number, position), cpus.len());
            if group.may_be_busy() {
                group.load(self.sums(cpus), domain.kind);
            }
            groups.push(group);
        }
        let all = notes_use || groups[own].kind != GroupType::HasSpare;
        let some = groups.iter().any(|group| group.kind == GroupType::Overloaded);
        for (position, group) in groups.iter_mut().enumerate() {
            if group.sums.is_none() && (all || some && position == own) {
                group.load(self.sums(&domain.groups[position]), domain.kind);
            }
        }
        groups
    }

    /// Looks for a CPU to take from. CPUs of which no thread may come here do not count.
    fn look(
        &mut self,
        cpu: CpuIndex,
        level: usize,
        domain: &Domain,
        own: usize,
        why: Why,
    ) -> Outcome {
        let (number, _) = self.geometry.domains_of(cpu)[level];
        let cache = self.geometry.llc_of(cpu);
        let weight = self.geometry.llcs()[cache].len();
        let notes_use = why != Why::NewIdle && domain.span.len() == weight;
        let mut groups = self.groups(number, domain, own, notes_use);
        let (mut pinned, mut crowded) = (Vec::new(), (usize::MAX, Vec::new()));
        loop {
            if domain.is_top {
                self.overloaded = self.tallies.is_any_crowded();
            }
            if notes_use {
                self.idle_scan[cache] = idle_scan(&groups, weight as u64, domain.kind);
            }
            let nothing = if pinned.is_empty() { Outcome::Balanced } else { Outcome::Pinned };
            let Some((busiest, mut amount)) = find_busiest(domain, &groups, own, why) else {
                return nothing;
            };
            let group = &domain.groups[busiest];
            if crowded.0 != busiest {
                let several = |at: &CpuIndex| self.runnable(*at) > 1 && !pinned.contains(at);
                crowded = (busiest, group.iter().copied().filter(several).collect());
            }
            let Some(from) = self.busiest_queue(group, &crowded.1, amount) else { return nothing };
            if self.runnable(from) > 1 {
                if self.take_from(cpu, level, domain, from, &mut amount, why) > 0 {
                    return Outcome::Moved;
                }
                if self.all_pinned(cpu, from) {
                    pinned.push(from);
                    crowded.1.retain(|at| *at != from);
                    let running = self.runnable(from) as u64;
                    groups[busiest].exclude(running, self.sums_of(from), domain.kind);
                    continue;
                }
            }
            return self.count_failure(cpu, level, domain, from, amount, why);
        }
    }

    /// Whether no thread of `from` may be moved (`LBF_ALL_PINNED`): then the balance continues
    /// without this queue. The running thread counts as well.
    fn all_pinned(&self, cpu: CpuIndex, from: CpuIndex) -> bool {
        let id = self.geometry.id(cpu);
        let core = &self.cpus[from];
        let mut threads = core.queue.iter().chain(&core.current);
        !threads.any(|thread| self.threads[thread.0 as usize].allowed.contains(id))
    }

    /// The CPU of a group that has most, the first of several. `crowded`: the CPUs with more than
    /// one thread that are not excluded as pinned.
    fn busiest_queue(
        &self,
        group: &[CpuIndex],
        crowded: &[CpuIndex],
        amount: Move,
    ) -> Option<CpuIndex> {
        let first_most = |(amount, at): &(u64, CpuIndex)| (*amount, usize::MAX - at);
        let load = |at: CpuIndex| (self.cpus[at].average.load(), at);
        let group = group.iter().copied();
        let crowded = crowded.iter().copied();
        let busiest = match amount {
            Move::Load(most) => {
                let others = group.filter(|at| self.runnable(*at) <= 1).map(load);
                let others = others.filter(|(load, _)| *load <= most);
                crowded.map(load).chain(others).max_by_key(first_most)
            }
            Move::Util(_) => crowded.map(|at| (self.cpu_util(at), at)).max_by_key(first_most),
            Move::Tasks(_) => {
                let most = crowded.map(|at| (self.runnable(at) as u64, at)).max_by_key(first_most);
                let single = |at: &CpuIndex| self.runnable(*at) == 1;
                most.or_else(|| group.clone().find(single).map(|at| (1, at)))
            }
        };
        busiest.filter(|(amount, _)| *amount > 0).map(|(_, at)| at)
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
        // The threads that were there first are the coldest.
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

    /// Counts a failure. After several of them the running thread is moved (`active_balance`).
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
