//! Where a woken thread continues: near its waker or where it was, on an idle CPU of that cache if
//! a bounded search finds one. And whether it preempts the thread that runs there.

use super::load::FULL;
use super::{Host, State, ThreadId};
use crate::agenda::Ns;
use crate::geometry::CpuIndex;

impl Host {
    /// Wakes `thread` from `waker`, which runs and pays for it; see [`Host::wake_from`].
    pub fn wake(&mut self, thread: ThreadId, waker: ThreadId) -> bool {
        self.wake_for(thread, Some(waker), self.cpu_of(waker))
    }

    /// The same from a thread, or from an interrupt on `cpu`.
    pub fn wake_for(&mut self, thread: ThreadId, by: Option<ThreadId>, cpu: CpuIndex) -> bool {
        let woken = self.wake_from(thread, by.map_or(cpu, |by| self.cpu_of(by)), by);
        if woken {
            self.spend(by, cpu, self.costs.wake_ns.value);
        }
        woken
    }

    /// Wakes `thread` from something that happens on `cpu`. Whether it slept: one that did not is
    /// asked once more before it sleeps.
    pub fn wake_from(&mut self, thread: ThreadId, cpu: CpuIndex, waker: Option<ThreadId>) -> bool {
        let own = &mut self.threads[thread.0 as usize];
        if own.state != State::Asleep {
            own.wake_pending = true;
            return false;
        }
        own.wake_pending = false;
        let target = self.place(thread, cpu, waker);
        let moved = self.cpu_of(thread) != target;
        self.migrate(thread, target);
        self.give_credit(thread, target);
        self.enqueue(thread, target);
        // A thread is listed only if it was not placed on another CPU at this moment.
        if self.rules.swqueue.is_some() && !moved {
            let payer = waker.or(self.cpus[cpu].current);
            self.list_woken(thread, target, payer);
        }
        self.preempt(thread, target);
        true
    }

    /// A thread that has slept is at most half a latency behind the others.
    fn give_credit(&mut self, thread: ThreadId, cpu: CpuIndex) {
        self.account(cpu);
        let credit_ns = if self.rules.sleeper_credit { self.rules.latency_ns / 2 } else { 0 };
        let least = self.cpus[cpu].min_vruntime - credit_ns.cast_signed();
        let own = &mut self.threads[thread.0 as usize];
        own.vruntime = own.vruntime.max(least);
    }

    /// `thread`, which is new on `cpu`, runs there at once if it is far enough behind.
    pub(super) fn preempt(&mut self, thread: ThreadId, cpu: CpuIndex) {
        let Some(current) = self.cpus[cpu].current else {
            self.want_schedule(cpu);
            return;
        };
        self.account(cpu);
        let (own, other) = (&self.threads[thread.0 as usize], &self.threads[current.0 as usize]);
        let gran_ns = self.rules.wakeup_granularity_ns * FULL / own.weight;
        if other.vruntime - own.vruntime > gran_ns.cast_signed() {
            self.want_schedule(cpu);
        }
    }

    fn allows(&self, thread: ThreadId, cpu: CpuIndex) -> bool {
        self.threads[thread.0 as usize].allowed.contains(self.geometry.id(cpu))
    }

    fn place(&mut self, thread: ThreadId, this: CpuIndex, waker: Option<ThreadId>) -> CpuIndex {
        let prev = self.wake_cpu_of(thread);
        if let Some(only) = self.threads[thread.0 as usize].only_cpu {
            return only;
        }
        let payer = (waker, this);
        // An interrupt counts as what it interrupted.
        let waker = waker.or(self.cpus[this].current);
        let wide = waker.is_some_and(|waker| self.note_wakee(waker, thread));
        let mut target = prev;
        if self.rules.wake_affine && !wide && this != prev && self.allows(thread, this) {
            target = self.wake_affine(thread, this, prev);
        }
        let found = self.idle_sibling(thread, prev, target, payer);
        if self.allows(thread, found) {
            return found;
        }
        let first = self.threads[thread.0 as usize].allowed.first();
        first.map_or(found, |cpu| self.geometry.index(cpu))
    }

    /// Whether the waker wakes so many threads that they should not all run near it
    /// (`wake_wide`).
    fn note_wakee(&mut self, waker: ThreadId, wakee: ThreadId) -> bool {
        const FORGET_NS: Ns = 1_000_000_000;
        let now_ns = self.now_ns();
        let own = &mut self.threads[waker.0 as usize];
        if now_ns > own.flips_at_ns + FORGET_NS {
            own.wakee_flips /= 2;
            own.flips_at_ns = now_ns;
        }
        if own.last_wakee != Some(wakee) {
            own.last_wakee = Some(wakee);
            own.wakee_flips += 1;
        }
        let (master, slave) = {
            let a = self.threads[waker.0 as usize].wakee_flips;
            let b = self.threads[wakee.0 as usize].wakee_flips;
            (a.max(b), a.min(b))
        };
        let factor = self.geometry.llcs()[self.geometry.llc_of(self.cpu_of(waker))].len() as u64;
        slave >= factor && master >= slave * factor
    }

    fn wake_affine(&mut self, thread: ThreadId, this: CpuIndex, prev: CpuIndex) -> CpuIndex {
        let (this_idle, prev_idle) = (self.is_idle(this), self.is_idle(prev));
        if this_idle && self.geometry.shares_llc(this, prev) {
            return if prev_idle { prev } else { this };
        }
        if prev_idle {
            return prev;
        }
        self.account(this);
        self.account(prev);
        // Its load is still the one with which it fell asleep.
        let own = self.threads[thread.0 as usize].average.load();
        let this_load = (self.cpus[this].average.load() + own) * 100;
        let prev_load = self.cpus[prev].average.load().saturating_sub(own) * 108;
        if this_load < prev_load { this } else { prev }
    }

    /// An idle CPU behind the cache of `target`, or `target`.
    fn idle_sibling(
        &mut self,
        thread: ThreadId,
        prev: CpuIndex,
        target: CpuIndex,
        payer: (Option<ThreadId>, CpuIndex),
    ) -> CpuIndex {
        if self.is_idle(target) && self.allows(thread, target) {
            return target;
        }
        let near = self.geometry.shares_llc(prev, target);
        if prev != target && near && self.is_idle(prev) && self.allows(thread, prev) {
            return prev;
        }
        let own = &mut self.threads[thread.0 as usize];
        let recent = std::mem::replace(&mut own.recent_cpu, prev);
        if recent != prev
            && recent != target
            && self.geometry.shares_llc(recent, target)
            && self.is_idle(recent)
            && self.allows(thread, recent)
        {
            return recent;
        }
        let cache = self.geometry.llc_of(target);
        let may_have_core = self.has_siblings && self.idle_cores[cache];
        if self.has_siblings && !may_have_core && near {
            let siblings = self.geometry.siblings(prev);
            let idle = |at: &&CpuIndex| self.is_idle(**at) && self.allows(thread, **at);
            if let Some(at) = siblings.iter().find(idle) {
                return *at;
            }
        }
        if let Some(found) = self.search(thread, target, cache, may_have_core) {
            return found;
        }
        if self.rules.sis_node
            && let Some(found) = self.search_node(thread, target, cache, payer)
        {
            return found;
        }
        target
    }

    fn search(
        &mut self,
        thread: ThreadId,
        target: CpuIndex,
        cache: usize,
        may_have_core: bool,
    ) -> Option<CpuIndex> {
        let cpus = &self.geometry.llcs()[cache];
        let start = cpus.iter().position(|cpu| *cpu > target).unwrap_or(0);
        let mut looks = if self.rules.sis_util { self.idle_scan[cache] } else { u64::MAX - 1 };
        if looks == 0 {
            return None;
        }
        let order = cpus[start..].iter().chain(&cpus[..start]).copied();
        let mut some = None;
        for cpu in order {
            let idle = self.is_idle(cpu) && self.allows(thread, cpu);
            if may_have_core {
                let whole = || self.geometry.siblings(cpu).iter().all(|at| self.is_idle(*at));
                if idle && whole() {
                    return Some(cpu);
                }
                some = some.or(idle.then_some(cpu));
            } else {
                if looks == 0 {
                    return None;
                }
                looks -= 1;
                if idle {
                    return Some(cpu);
                }
            }
        }
        if may_have_core {
            self.idle_cores[cache] = false;
        }
        some
    }

    /// `SIS_NODE`: the other caches of the node, in their order. The payer is a thread, or an
    /// interrupt of a CPU.
    fn search_node(
        &mut self,
        thread: ThreadId,
        target: CpuIndex,
        cache: usize,
        payer: (Option<ThreadId>, CpuIndex),
    ) -> Option<CpuIndex> {
        let cpus = self.geometry.node(target);
        let start = cpus.iter().position(|cpu| *cpu > target).unwrap_or(0);
        let order = cpus[start..].iter().chain(&cpus[..start]).copied();
        let mut others = order.filter(|cpu| self.geometry.llc_of(*cpu) != cache);
        let mut looks = 0;
        let found = others.find(|cpu| {
            looks += 1;
            self.is_idle(*cpu) && self.allows(thread, *cpu)
        });
        self.spend(payer.0, payer.1, looks * self.costs.look_node_ns.value);
        found
    }
}
