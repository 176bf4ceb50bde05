//! What to do when threads cannot be created, or all of them compute: ask those that wait for items
//! to run others, and call rescuers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use homing_sched::is_stranded;
use homing_topology::CpuSet;

use super::long_items::bound_items_wait;
use super::looks::INTERVAL_NS;
use crate::shared::Shared;
use crate::threads::rescuer::{MAYDAY_INTERVAL_NS, MAYDAY_NS};

/// How long the creation of threads must have failed before a waiting thread is asked to run other
/// items on top of its own. Model time does not pass while the monitor sleeps.
const PATIENCE_NS: u64 = if cfg!(shuttle) { 0 } else { MAYDAY_NS };

#[derive(Default)]
pub(super) struct Shortage {
    /// Since when CPUs have waited for threads, and when rescuers were called last.
    short_since_ns: Option<(u64, Option<u64>)>,
    /// Which workqueues with rescuers had items that waited while items computed for long, and when
    /// they were looked at.
    behind: HashSet<u32>,
    behind_looked_ns: u64,
    /// When threads that run only what somebody waits for were last asked to help.
    others_asked_ns: u64,
}

impl Shortage {
    /// If no thread can be created, asks a thread that waits for an item to run others, but only if
    /// nobody else can, and not at once. If no thread waits, a parked one leaves its CPU for
    /// another CPU ([`Crew::needs_thread`](crate::threads::crew::Crew::needs_thread)).
    pub(super) fn ask_for_help(&mut self, shared: &Shared, now_ns: u64) {
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
            .filter(|cpu| staffed.is_empty() || bound_items_wait(shared, *cpu, None, now_ns, alone))
        {
            let asked = for_long && crew.ask_for_help(cpu, others);
            if !asked && crew.needs_thread(dispatch) {
                dispatch.wake_any(shared);
            }
        }
    }

    /// Calls the rescuers of workqueues that have items, if CPUs have waited for threads for long.
    pub(super) fn call_rescuers(&mut self, shared: &Shared, now_ns: u64) {
        if !shared.crew.is_short() {
            self.short_since_ns = None;
            return;
        }
        let (since_ns, called_ns) = self.short_since_ns.get_or_insert((now_ns, None));
        let due_ns = called_ns.map_or(*since_ns + MAYDAY_NS, |called| called + MAYDAY_INTERVAL_NS);
        if now_ns < due_ns {
            return;
        }
        *called_ns = Some(now_ns);
        for workqueue in shared.workqueues.with_items() {
            if let Some(rescuer) = workqueue.rescuer.get().filter(|_| !workqueue.is_empty()) {
                workqueue.mayday.fetch_add(1, Ordering::Relaxed);
                rescuer.mayday();
            }
        }
    }

    /// While items compute for long, which keep their CPUs (the last was seen at `computed_ns`):
    /// calls the rescuers of workqueues of which items have waited from one look to the next.
    /// Per-CPU items get a thread another way (`is_in_the_way` in `long_items`).
    pub(super) fn call_rescuers_behind(&mut self, shared: &Shared, computed_ns: u64, now_ns: u64) {
        // Also between two such items.
        if now_ns.saturating_sub(computed_ns) >= MAYDAY_INTERVAL_NS {
            return self.behind.clear();
        }
        if now_ns.saturating_sub(self.behind_looked_ns) < MAYDAY_NS {
            return;
        }
        self.behind_looked_ns = now_ns;
        let had_some = std::mem::take(&mut self.behind);
        for workqueue in shared.workqueues.with_items() {
            let rescuer = workqueue.rescuer.get().filter(|_| !workqueue.kinds.per_cpu);
            let Some(rescuer) = rescuer.filter(|_| workqueue.waiting() > 0) else { continue };
            self.behind.insert(workqueue.number);
            if had_some.contains(&workqueue.number) {
                workqueue.mayday.fetch_add(1, Ordering::Relaxed);
                rescuer.mayday_behind();
            }
        }
    }
}
