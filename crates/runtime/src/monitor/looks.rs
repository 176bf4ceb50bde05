//! The monitor's thread: it looks at everything now and then, and fires timers between its looks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use homing_sched::{Attributes, Facts, TRIAL_NS, WINDOW_NS};
use homing_topology::CpuSet;

use super::long_items::LongItems;
use super::mask::MaskFollower;
use super::shortage::Shortage;
use super::stall::Stalls;
use crate::item::quietly;
use crate::measure::clock::{now_ns, thread_cpu_ns};
use crate::monitor::timers::Timer;
use crate::shared::Shared;
use crate::threads::local;
use crate::workqueues::state::Chosen;

/// Between two looks while items run for long.
pub(super) const INTERVAL_NS: u64 = 1_000_000;

/// Looks are so far apart that they take at most one in this many parts of a CPU. That matters only
/// with hundreds of threads whose items run for long, or dozens for which there is no CPU.
const LOOKS_SHARE: u64 = 8;

/// Between two looks while only short items run. A blocked item goes unnoticed for at most this and
/// [`BLOCKED_NS`](homing_sched::BLOCKED_NS) together.
const INTERVAL_MAX_NS: u64 = 4_000_000;

/// The most CPUs woken at a look for items that are overdue.
const WAKES_MAX: usize = 8;

/// If there are more pools, scopes stay as they were chosen: the rest is for what the program asks
/// for, because a pool is never given back.
const POOLS_CHOSEN_MAX: u8 = 128;

/// The life of the monitor's thread.
pub(crate) fn main(shared: &Arc<Shared>) {
    let mut monitor = Monitor {
        shared,
        interval_ns: INTERVAL_NS,
        pools_seen_ns: now_ns(),
        chosen_ns: now_ns(),
        any_auto: false,
        mask: MaskFollower::new(now_ns()),
        shortage: Shortage::default(),
        long_items: LongItems::default(),
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
    interval_ns: u64,
    pools_seen_ns: u64,
    /// When scopes were chosen last, and whether any workqueue leaves that to the monitor.
    chosen_ns: u64,
    any_auto: bool,
    mask: MaskFollower,
    shortage: Shortage,
    long_items: LongItems,
    stalls: Stalls,
}

impl Monitor<'_> {
    /// Looks at everything, and sets the time of the next look.
    fn look(&mut self, now_ns: u64) {
        let shared = self.shared;
        let began_cpu_ns = thread_cpu_ns();
        shared.crew.create_missing(shared);
        self.shortage.ask_for_help(shared, now_ns);
        shared.dispatch.forget_occupied();
        self.mask.look(shared, now_ns);
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
        self.shortage.call_rescuers(shared, now_ns);
        self.stalls.look(shared, now_ns);
        let (working, long) = self.long_items.look(shared, now_ns);
        self.shortage.call_rescuers_behind(shared, self.long_items.computed_ns, now_ns);
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
}
