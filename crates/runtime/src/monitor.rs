//! A thread that looks at the workers now and then: it finds items that block without having said
//! so, items that use their CPU for long, CPUs without a thread, changes of the CPU mask, and
//! stalls. Between its looks it fires timers.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use homing_sched::{
    Asked, Attributes, BLOCKED_NS, Decided, Facts, PoolId, QueueId, Running, TRIAL_NS, Verdict,
    WINDOW_NS, is_stranded, tick,
};
use homing_topology::{Allowed, CpuId, CpuSet};

use crate::affinity::{LET_GO, MOVED, Mask, NOWHERE, STRAY, may_leave, read_mask};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::crew::Member;
use crate::item::quietly;
use crate::local;
use crate::rescuer::{MAYDAY_INTERVAL_NS, MAYDAY_NS};
use crate::shared::Shared;
use crate::slot::ThreadId;
use crate::stall::Stalls;
use crate::state::{Chosen, WorkqueueState};
use crate::strays::Strays;
use crate::sync::lock;
use crate::timers::Timer;
use crate::usage::{Since, Usage, cpu_clock_ns};

/// Between two looks while items run for long.
const INTERVAL_NS: u64 = 1_000_000;

/// Looks are so far apart that they take at most one in this many parts of a CPU. That matters only
/// with hundreds of threads whose items run for long, or dozens for which there is no CPU.
const LOOKS_SHARE: u64 = 8;

/// A thread that has run for more than this part of the time since the last look is not blocked.
pub(crate) const RUNS_SHARE: u64 = 4;

/// Between two looks while only short items run. A blocked item goes unnoticed for at most this and
/// [`BLOCKED_NS`] together.
const INTERVAL_MAX_NS: u64 = 4_000_000;

/// How often the CPU mask is read.
const MASK_NS: u64 = 250_000_000;

/// How often the CPU quota is read, which takes some files for each level of the cgroup.
const QUOTA_NS: u64 = 1_000_000_000;

/// The most CPUs woken at a look for items that are overdue.
const WAKES_MAX: usize = 8;

/// How long the creation of threads must have failed before a waiting thread is asked to run other
/// items on top of its own. Model time does not pass while the monitor sleeps.
const PATIENCE_NS: u64 = if cfg!(shuttle) { 0 } else { MAYDAY_NS };

/// Items that run for longer are watched, and the rest of their batch goes back to its queue.
const LONG_NS: u64 = BLOCKED_NS / 2;

/// If there are more pools, scopes stay as they were chosen: the rest is for what the program asks
/// for, because a pool is never given back.
const POOLS_CHOSEN_MAX: u8 = 128;

/// The life of the monitor's thread.
pub(crate) fn main(shared: &Arc<Shared>) {
    let mut monitor = Monitor {
        shared,
        seen: HashMap::new(),
        strays: Strays::default(),
        interval_ns: INTERVAL_NS,
        mask_read_ns: now_ns(),
        quota_read_ns: now_ns(),
        mask: None,
        pools_seen_ns: now_ns(),
        chosen_ns: now_ns(),
        any_auto: false,
        short_since_ns: None,
        computed_ns: 0,
        behind: HashSet::new(),
        behind_looked_ns: 0,
        others_asked_ns: 0,
        stalls: Stalls::default(),
    };
    // What a timer runs may drop the runtime: on a thread of the runtime, that drop waits for no
    // thread.
    local::enter(shared, &Arc::new(shared.crew.outsider()));
    while !shared.monitor.is_closed() {
        let now_ns = now_ns();
        while let Some(timer) = shared.timers.due(now_ns) {
            let Timer { what, generation, cpu } = timer;
            quietly(|| what.fire(generation, cpu).into_iter().for_each(|rest| shared.finish(rest)));
        }
        if shared.monitor.is_due(now_ns) {
            monitor.look(now_ns);
        }
        shared.monitor.sleep(|| shared.timers.next_ns());
    }
    local::leave();
}

struct Monitor<'a> {
    shared: &'a Arc<Shared>,
    seen: HashMap<ThreadId, Seen>,
    strays: Strays,
    interval_ns: u64,
    mask_read_ns: u64,
    quota_read_ns: u64,
    pools_seen_ns: u64,
    /// When scopes were chosen last, and whether any workqueue leaves that to the monitor.
    chosen_ns: u64,
    any_auto: bool,
    /// The affinity mask when the allowed CPUs were last read.
    mask: Option<Mask>,
    /// Since when CPUs have waited for threads, and when rescuers were called last.
    short_since_ns: Option<(u64, Option<u64>)>,
    /// When an item was last seen that has computed for long; and which workqueues with rescuers
    /// had items that waited, when they were last looked at for that.
    computed_ns: u64,
    behind: HashSet<u32>,
    behind_looked_ns: u64,
    /// When threads that run only what somebody waits for were last asked to help.
    others_asked_ns: u64,
    stalls: Stalls,
}

/// What was seen of a thread whose item runs for long.
#[derive(Clone, Copy)]
struct Seen {
    running_since_ns: u64,
    /// At the last look, the time, and the CPU time of its thread by then.
    looked_ns: u64,
    on_cpu_ns: u64,
    /// What else was read, and when, unless the thread has run since.
    usage: Option<(u64, Usage)>,
    /// When it was first seen, and the CPU time of its thread by then.
    first_ns: u64,
    first_on_cpu_ns: u64,
    /// It has been counted as CPU-intensive.
    counted: bool,
}

impl Seen {
    /// For how long the item has used a CPU by now. Before it was first seen, it is taken to have
    /// used a CPU as it has since, but for no longer than it has been seen.
    fn used_ns(&self, on_cpu_ns: u64, now_ns: u64) -> u64 {
        let seen_ns = on_cpu_ns.saturating_sub(self.first_on_cpu_ns);
        let unseen_for_ns = self.first_ns.saturating_sub(self.running_since_ns);
        let seen_for_ns = now_ns.saturating_sub(self.first_ns).max(1);
        let before_ns = u128::from(seen_ns) * u128::from(unseen_for_ns) / u128::from(seen_for_ns);
        seen_ns + seen_ns.min(before_ns as u64)
    }
}

impl Monitor<'_> {
    /// Looks at everything, and sets the time of the next look.
    fn look(&mut self, now_ns: u64) {
        let shared = self.shared;
        let began_cpu_ns = thread_cpu_ns();
        shared.crew.create_missing(shared);
        self.ask_for_help(now_ns);
        shared.dispatch.forget_occupied();
        if now_ns.saturating_sub(self.mask_read_ns) >= MASK_NS {
            self.mask_read_ns = now_ns;
            if self.follow_mask(now_ns) {
                self.find_moved();
            }
        }
        let choose_ns = if self.any_auto { TRIAL_NS } else { WINDOW_NS };
        if now_ns.saturating_sub(self.chosen_ns) >= choose_ns {
            self.chosen_ns = now_ns;
            self.any_auto = self.choose_scopes(now_ns);
        }
        if now_ns.saturating_sub(self.pools_seen_ns) >= WINDOW_NS {
            self.pools_seen_ns = now_ns;
            shared.workqueues.sweep_if_many();
            self.leave_pools_out();
        }
        self.settle_flushes();
        self.call_rescuers(now_ns);
        self.stalls.look(shared, now_ns);
        let (working, long) = self.look_at_workers(now_ns);
        self.call_rescuers_behind(now_ns);
        if long {
            // So that the next item that blocks need not wait for a new thread.
            shared.crew.create_spare_if_none(shared);
        }
        shared.holding_items(|| {
            shared.dispatch.rehome(&**shared, |refused| shared.cancel(refused));
        });
        let overdue = (0..WAKES_MAX).take_while(|_| shared.dispatch.wake_for_overdue(&**shared));
        let overdue = overdue.count() > 0;
        let closely = long || overdue || shared.crew.is_short();
        let next_look = &shared.monitor.next_look;
        let rests = !closely && !working && next_look.rest(now_ns, || self.nothing_to_see());
        // Scopes are chosen by what is done in a time that looks measure. And if nobody works, but
        // there was something to see, then workers may not know of it.
        next_look.looks(now_ns, (working || rests) && !closely && !self.any_auto);
        if rests {
            return;
        }
        self.interval_ns =
            if closely { INTERVAL_NS } else { (self.interval_ns * 2).min(INTERVAL_MAX_NS) };
        let took_ns = thread_cpu_ns().saturating_sub(began_cpu_ns);
        let interval_ns = self.interval_ns.max(took_ns.saturating_mul(LOOKS_SHARE));
        next_look.set(now_ns.saturating_add(interval_ns));
    }

    /// Ends flushes whose items have ended in batches that are not over yet.
    fn settle_flushes(&mut self) {
        for workqueue in self.shared.flushing.take() {
            workqueue.settle(!0);
            if workqueue.flushes.awaits(!0) {
                self.shared.flushing.add(&workqueue);
            }
        }
    }

    /// Whether all workers are parked, and nothing is left that only the monitor would find.
    fn nothing_to_see(&self) -> bool {
        self.shared.dispatch.is_at_rest()
            && self.shared.crew.members().iter().all(|member| member.hand.is_empty())
    }

    /// Returns whether anybody works, and whether an item has been running for long.
    fn look_at_workers(&mut self, now_ns: u64) -> (bool, bool) {
        let shared = self.shared;
        let owners = shared
            .dispatch
            .slots()
            .filter_map(|(cpu, slot)| slot.working_owner().map(|owner| (owner, cpu)));
        let owners: HashMap<ThreadId, CpuId> = owners.collect();
        let mut long = false;
        self.strays.begin_look();
        for member in shared.crew.members() {
            let since_ns = member.running_since_ns.load(Ordering::Relaxed);
            if since_ns == 0 || now_ns.saturating_sub(since_ns) < LONG_NS {
                self.seen.remove(&member.id);
                continue;
            }
            // Also for a thread that has lost its CPU: it may have been taking these items at that
            // moment.
            let cpu = owners.get(&member.id);
            shared.holding_items(|| shared.rescue(&member, cpu.copied()));
            let Some(cpu) = cpu else {
                self.seen.remove(&member.id);
                self.strays.look_at(shared, &member, now_ns);
                continue;
            };
            long = true;
            self.look_at(&member, *cpu, since_ns, now_ns);
        }
        self.seen.retain(|member, _| owners.contains_key(member));
        (!owners.is_empty(), long)
    }

    /// Looks at a thread whose item runs for long. Reading what `/proc` tells of it takes some ten
    /// times as long as reading its CPU clock, so that is done only if the clock has stood still.
    fn look_at(&mut self, member: &Member, cpu: CpuId, running_since_ns: u64, now_ns: u64) {
        let tid = member.kernel_tid.load(Ordering::Relaxed);
        let before = self.seen.get(&member.id).copied();
        let before = before.filter(|seen| seen.running_since_ns == running_since_ns);
        let clock_ns = cpu_clock_ns(tid);
        let ran = before.zip(clock_ns).map(|(before, clock_ns)| {
            let elapsed_ns = now_ns.saturating_sub(before.looked_ns);
            (clock_ns.saturating_sub(before.on_cpu_ns), elapsed_ns)
        });
        let runs = ran.filter(|(ran_ns, elapsed_ns)| *ran_ns > elapsed_ns / RUNS_SHARE);
        let usage = if runs.is_some() { None } else { Usage::read(tid) };
        let Some(on_cpu_ns) = clock_ns.or(usage.map(|usage| usage.on_cpu_ns)) else { return };
        let mut seen = before.unwrap_or(Seen {
            running_since_ns,
            looked_ns: now_ns,
            on_cpu_ns,
            usage: None,
            first_ns: now_ns,
            first_on_cpu_ns: on_cpu_ns,
            counted: false,
        });
        let since = match (runs, seen.usage.zip(usage)) {
            (Some((ran_ns, elapsed_ns)), _) => {
                Some((Since { on_cpu_ns: ran_ns, ready_ns: 0, asleep_now: false }, elapsed_ns))
            }
            (None, Some(((at_ns, before), now))) => {
                let elapsed_ns = now_ns.saturating_sub(at_ns);
                Some((now.since(&before, elapsed_ns), elapsed_ns))
            }
            _ => None,
        };
        (seen.looked_ns, seen.on_cpu_ns) = (now_ns, on_cpu_ns);
        if let Some((since, elapsed_ns)) = since {
            let running = Running {
                running_for_ns: now_ns.saturating_sub(running_since_ns),
                used_ns: seen.used_ns(on_cpu_ns, now_ns),
                elapsed_ns,
                on_cpu_ns: since.on_cpu_ns,
                ready_ns: since.ready_ns,
                asleep_now: since.asleep_now,
                cpu_intensive_ns: self.shared.settings.cpu_intensive_ns.load(Ordering::Relaxed),
            };
            let verdict = tick(&running);
            if let Some(tape) = self.shared.dispatch.tape().running() {
                tape.note(Asked::Tick(running), Decided::Verdict(verdict));
            }
            match verdict {
                Verdict::Blocked => self.replace(member, cpu, || {
                    self.count(member, |workqueue| &workqueue.blocked);
                }),
                Verdict::CpuIntensive => {
                    self.computed_ns = now_ns;
                    if !std::mem::replace(&mut seen.counted, true) {
                        self.count(member, |workqueue| &workqueue.cpu_intensive);
                    }
                    if self.is_in_the_way(member, cpu, now_ns) {
                        self.replace(member, cpu, || ());
                    }
                }
                Verdict::Fine => {}
            }
        }
        match (usage, &seen.usage) {
            (Some(usage), Some((_, before))) if !usage.tells_more(before) => {}
            _ => seen.usage = usage.map(|usage| (now_ns, usage)),
        }
        self.seen.insert(member.id, seen);
    }

    /// Offers the CPU of a thread to others, if the thread still has it. Counts that first, so that
    /// nobody sees what the next thread has done and not this.
    fn replace(&self, member: &Member, cpu: CpuId, count: impl FnOnce()) {
        let slot = self.shared.dispatch.slot(cpu);
        let under_way = slot.shares.loses(now_ns());
        if slot.vacate(member.id) {
            member.had_ns.store(under_way.had_ns, Ordering::Relaxed);
            count();
            self.shared.holding_items(|| self.shared.rescue(member, Some(cpu)));
            self.shared.dispatch.offer(&**self.shared, cpu);
        }
    }

    /// Whether a CPU-intensive item holds up items that no worker of another pod may take: those of
    /// its own per-CPU workqueue, or strict ones of other pools that have waited for as long as an
    /// item may run before it counts as CPU-intensive.
    fn is_in_the_way(&self, member: &Member, cpu: CpuId, now_ns: u64) -> bool {
        let number = member.workqueue.load(Ordering::Relaxed);
        // Between items, while it calls a waker, the thread runs an item of no workqueue.
        let workqueue = self.shared.workqueues.find(number);
        if workqueue.as_ref().is_some_and(|workqueue| workqueue.kinds.per_cpu) {
            return true;
        }
        let pool = workqueue.map(|workqueue| workqueue.mode().pool());
        self.bound_items_wait(cpu, pool, now_ns, |_| false)
    }

    /// If no thread can be created, asks a thread that waits for an item to run others, but only if
    /// nobody else can, and not at once. If no thread waits, a parked one leaves its CPU for
    /// another CPU ([`Crew::needs_thread`](crate::crew::Crew::needs_thread)).
    fn ask_for_help(&mut self, now_ns: u64) {
        let shared = self.shared;
        let (crew, dispatch) = (&shared.crew, &shared.dispatch);
        let short = crew.unfilled();
        if short.is_empty() {
            return;
        }
        let for_long = crew.refused_for_ns(now_ns).is_some_and(|ns| ns >= PATIENCE_NS);
        let owned = dispatch.slots().filter(|(_, slot)| slot.owner().is_some());
        let staffed: CpuSet = owned.map(|(cpu, _)| cpu).collect();
        let alone = |queue| is_stranded(dispatch.layout(), dispatch, queue, &staffed);
        // `others` run only what somebody waits for. They may find none, and are not to be asked
        // again at once.
        let others = for_long && now_ns.saturating_sub(self.others_asked_ns) >= INTERVAL_NS;
        if others {
            self.others_asked_ns = now_ns;
        }
        for cpu in short
            .iter()
            .filter(|cpu| staffed.is_empty() || self.bound_items_wait(*cpu, None, now_ns, alone))
        {
            let asked = for_long && crew.ask_for_help(cpu, others);
            if !asked && crew.needs_thread(dispatch) {
                dispatch.wake_any(&**shared);
            }
        }
    }

    /// Whether items of pools other than `but` have waited for a CPU for as long as an item may run
    /// before it counts as CPU-intensive. Only strict items count, and items of a queue that is
    /// `alone`.
    fn bound_items_wait(
        &self,
        cpu: CpuId,
        but: Option<PoolId>,
        now_ns: u64,
        alone: impl Fn(QueueId) -> bool,
    ) -> bool {
        let dispatch = &self.shared.dispatch;
        let patience_ns = self.shared.settings.cpu_intensive_ns.load(Ordering::Relaxed);
        Facts::pools(dispatch).iter().filter(|pool| Some(*pool) != but).any(|pool| {
            let attributes = dispatch.attributes(pool);
            let queue = dispatch.layout().queue(pool, attributes, cpu);
            dispatch.waiting(queue) > 0
                && now_ns.saturating_sub(dispatch.head_since_ns(queue)) >= patience_ns
                && (attributes.affinity.strict || alone(queue))
        })
    }

    fn count(&self, member: &Member, counter: impl Fn(&WorkqueueState) -> &AtomicU64) {
        let number = member.workqueue.load(Ordering::Relaxed);
        if let Some(workqueue) = self.shared.workqueues.find(number) {
            counter(&workqueue).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the scopes and pull costs of the workqueues that leave them to the monitor. Returns
    /// whether there are any.
    fn choose_scopes(&self, now_ns: u64) -> bool {
        let dispatch = &self.shared.dispatch;
        let busy = |mask: Option<&CpuSet>| {
            let active = dispatch.active();
            let cpus = mask.map_or(active, |mask| active.and(mask));
            let busy_ns = cpus.iter().map(|cpu| dispatch.slot(cpu).books.busy_ns()).sum();
            (cpus.len() as u64, busy_ns)
        };
        let mut any = false;
        let may_choose = dispatch.pools.count() < POOLS_CHOSEN_MAX;
        for workqueue in self.shared.auto.take() {
            if workqueue.let_go.load(Ordering::Acquire) {
                continue;
            }
            if !may_choose {
                self.shared.auto.add(&workqueue);
                any = true;
                continue;
            }
            let tape = dispatch.tape();
            let chosen = workqueue.choose(now_ns, busy, tape, |scope, pull_cost| {
                let Attributes { affinity, pull_cost: before, .. } = workqueue.attributes();
                if (affinity.scope, before) == (scope, pull_cost) {
                    return;
                }
                let set = |chosen: &mut Chosen| {
                    chosen.attributes.affinity.scope = scope;
                    chosen.attributes.pull_cost = pull_cost;
                };
                // If there are too many pools, the workqueue stays as it is.
                let _ =
                    workqueue.change(set, |chosen| self.shared.pool_with(workqueue.kinds, chosen));
            });
            if chosen {
                self.shared.auto.add(&workqueue);
                any = true;
            }
        }
        any
    }

    /// Lets workers pass over pools with attributes that no workqueue has any more.
    fn leave_pools_out(&self) {
        let wanted = self.shared.workqueues.used_pools();
        self.shared.dispatch.pools.leave_out_all_but(&wanted);
    }

    /// Calls the rescuers of workqueues that have items, if CPUs have waited for threads for long.
    fn call_rescuers(&mut self, now_ns: u64) {
        if !self.shared.crew.is_short() {
            self.short_since_ns = None;
            return;
        }
        let (since_ns, called_ns) = self.short_since_ns.get_or_insert((now_ns, None));
        let due_ns = called_ns.map_or(*since_ns + MAYDAY_NS, |called| called + MAYDAY_INTERVAL_NS);
        if now_ns < due_ns {
            return;
        }
        *called_ns = Some(now_ns);
        for workqueue in self.shared.workqueues.with_items() {
            if let Some(rescuer) = workqueue.rescuer.get().filter(|_| !workqueue.is_empty()) {
                workqueue.mayday.fetch_add(1, Ordering::Relaxed);
                rescuer.mayday();
            }
        }
    }

    /// While items compute for long, which keep their CPUs: calls the rescuers of workqueues of
    /// which items have waited from one look to the next. Per-CPU items get a thread another way
    /// (`is_in_the_way`).
    fn call_rescuers_behind(&mut self, now_ns: u64) {
        // Also between two such items.
        if now_ns.saturating_sub(self.computed_ns) >= MAYDAY_INTERVAL_NS {
            return self.behind.clear();
        }
        if now_ns.saturating_sub(self.behind_looked_ns) < MAYDAY_NS {
            return;
        }
        self.behind_looked_ns = now_ns;
        let had_some = std::mem::take(&mut self.behind);
        for workqueue in self.shared.workqueues.with_items() {
            let rescuer = workqueue.rescuer.get().filter(|_| !workqueue.kinds.per_cpu);
            let Some(rescuer) = rescuer.filter(|_| workqueue.waiting() > 0) else { continue };
            self.behind.insert(workqueue.number);
            if had_some.contains(&workqueue.number) {
                workqueue.mayday.fetch_add(1, Ordering::Relaxed);
                rescuer.mayday_behind();
            }
        }
    }

    /// Follows changes of the affinity mask, the cpuset and the quota: CPUs that are gone lose
    /// their worker, new ones get one. Returns whether it is known which CPUs these are.
    fn follow_mask(&mut self, now_ns: u64) -> bool {
        let (shared, dispatch) = (self.shared, &self.shared.dispatch);
        let mask = read_mask();
        if shared.settings.mask_is_fixed || mask.is_none() {
            return true;
        }
        // The kernel keeps the mask within the cpuset: if the mask is the same, only the quota can
        // have changed.
        let same = mask == self.mask;
        if same && now_ns.saturating_sub(self.quota_read_ns) < QUOTA_NS {
            return true;
        }
        self.quota_read_ns = now_ns;
        let machine = dispatch.layout().machine();
        // Tried again at the next look.
        let Ok(allowed) = Allowed::read(Path::new("/"), machine) else { return same };
        *lock(&shared.mask) = mask;
        self.mask = mask;
        let allowed = Allowed {
            cpus: shared.settings.wanted.map_or(allowed.cpus, |wanted| wanted.and(&allowed.cpus)),
            ..allowed
        };
        let (now, before) = (allowed.worker_cpus(machine), dispatch.active());
        if now != before && !now.is_empty() {
            tracing_event!(before = %before, now = %now, "the CPUs of the runtime have changed");
            before.minus(&now).iter().for_each(|cpu| dispatch.retire(&**shared, cpu));
            now.minus(&before).iter().for_each(|cpu| dispatch.activate(&**shared, cpu));
            for workqueue in shared.workqueues.with_items() {
                shared.share_limits(&workqueue);
            }
        }
        true
    }

    /// Has workers pin themselves again if somebody else has let them run elsewhere, by a change of
    /// the masks of all threads (also to what ours was) or of one. Also those that could not be
    /// pinned because their CPU was offline. To be called only when they can see which CPUs are not
    /// to be used any more.
    fn find_moved(&self) {
        if !self.shared.settings.pinned {
            return;
        }
        for member in self.shared.crew.members() {
            let number = member.pinned_to.load(Ordering::Relaxed);
            let tid = member.kernel_tid.load(Ordering::Relaxed);
            let is_moved = match number {
                NOWHERE => true,
                MOVED | LET_GO | STRAY => false,
                _ => may_leave(tid, number),
            };
            if is_moved {
                let (order, on_failure) = (Ordering::Relaxed, Ordering::Relaxed);
                // If this fails, the worker has been placed again meanwhile.
                let _ = member.pinned_to.compare_exchange(number, MOVED, order, on_failure);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_item_used_before_it_was_seen_is_taken_to_be_like_what_it_used_since() {
        const MS: u64 = 1_000_000;
        let seen = |first_ns| {
            let running_since_ns = 100 * MS;
            Seen {
                running_since_ns,
                looked_ns: first_ns,
                on_cpu_ns: 0,
                usage: None,
                first_ns,
                first_on_cpu_ns: 0,
                counted: false,
            }
        };
        let used = |unseen: u64, for_ms: u64, on_cpu: u64| {
            let first_ns = (100 + unseen) * MS;
            seen(first_ns).used_ns(on_cpu * MS, first_ns + for_ms * MS) / MS
        };
        assert_eq!(used(4, 6, 6), 10, "it ran all the time");
        assert_eq!(used(4, 12, 3), 4, "others ran, too");
        assert_eq!(used(20, 2, 2), 4, "no more than was seen");
        assert_eq!(used(4, 0, 0), 0);
    }
}
