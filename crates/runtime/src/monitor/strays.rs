//! Threads that have come back from blocking and have lost their CPU: each shares it with the
//! thread that has it now. The monitor lets them go to others while some are idle.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use homing_sched::Facts;
use homing_topology::{CpuId, CpuSet};

use super::long_items::RUNS_SHARE;
use super::usage::cpu_clock_ns;
use crate::shared::Shared;
use crate::sync::lock;
use crate::threads::affinity::{LET_GO, MOVED, NOWHERE, STRAY, mask_of, set_mask_of};
use crate::threads::crew::Member;
use crate::threads::slot::ThreadId;

/// When each was looked at, and its CPU time by then.
#[derive(Default)]
pub(super) struct Strays {
    before: HashMap<ThreadId, (u64, u64)>,
    now: HashMap<ThreadId, (u64, u64)>,
}

impl Strays {
    pub(super) fn begin_look(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Looks at a thread whose item runs for long and has lost its CPU, and lets it go if it runs.
    pub(super) fn look_at(&mut self, shared: &Shared, member: &Member, now_ns: u64) {
        if !shared.dispatch.is_any_idle() || member.lends.load(Ordering::Relaxed) {
            return;
        }
        let clock_ns = cpu_clock_ns(member.kernel_tid.load(Ordering::Relaxed));
        let Some(clock_ns) = clock_ns else { return };
        self.now.insert(member.id, (now_ns, clock_ns));
        let ran = self.before.get(&member.id).is_some_and(|&(at_ns, before_ns)| {
            clock_ns.saturating_sub(before_ns) > now_ns.saturating_sub(at_ns) / RUNS_SHARE
        });
        if ran {
            let_go(shared, member);
        }
    }
}

/// Lets a thread run on any CPU that its item may use. It is pinned again when it next works for a
/// CPU.
fn let_go(shared: &Shared, member: &Member) {
    let of = shared.workqueues.find(member.workqueue.load(Ordering::Relaxed));
    let chosen = of.as_ref().map(|of| of.chosen());
    let strict = chosen.as_ref().is_some_and(|chosen| chosen.attributes.affinity.strict);
    if strict || of.is_some_and(|of| of.kinds.per_cpu) {
        return;
    }
    let active = shared.dispatch.active();
    let cpumask = chosen.and_then(|chosen| chosen.cpumask);
    let cpus = cpumask.map_or(active, |mask| active.and(&mask));
    let pinned_to = &member.pinned_to;
    let number = pinned_to.load(Ordering::Relaxed);
    let (order, on_failure) = (Ordering::Relaxed, Ordering::Relaxed);
    if !shared.settings.pinned
        || cpus.is_empty()
        || [NOWHERE, MOVED, LET_GO, STRAY].contains(&number)
        || pinned_to.compare_exchange(number, STRAY, order, on_failure).is_err()
    {
        return;
    }
    let all = *lock(&shared.mask);
    // The kernel's number may name another thread once this one has left.
    shared.crew.while_member(member, || {
        let tid = member.kernel_tid.load(Ordering::Relaxed);
        // If it fails, the thread stays where it is.
        let _ = set_mask_of(tid, &mask_of(&cpus));
        // It may have set another mask itself just before.
        let again = match pinned_to.load(Ordering::Relaxed) {
            STRAY => None,
            LET_GO => all,
            number => CpuId::new(number as usize).map(|cpu| mask_of(&CpuSet::of(cpu))),
        };
        let _ = again.map(|mask| set_mask_of(tid, &mask));
    });
}
