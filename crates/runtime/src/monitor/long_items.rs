//! Items that run for long: which of them block without having said so, and which compute.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use homing_sched::{Asked, BLOCKED_NS, Decided, Facts, PoolId, QueueId, Running, Verdict, tick};
use homing_topology::CpuId;

use super::looks::INTERVAL_NS;
use super::strays::Strays;
use super::usage::{Since, Usage, cpu_clock_ns, sleeps};
use crate::measure::clock;
use crate::shared::Shared;
use crate::threads::crew::Member;
use crate::threads::slot::ThreadId;
use crate::workqueues::state::WorkqueueState;

/// A thread that has run for more than this part of the time since the last look is not blocked.
pub(super) const RUNS_SHARE: u64 = 4;

/// Items that run for longer are watched, and the rest of their batch goes back to its queue.
const LONG_NS: u64 = BLOCKED_NS / 2;

/// What was seen of the threads whose items run for long.
#[derive(Default)]
pub(super) struct LongItems {
    seen: HashMap<ThreadId, Seen>,
    strays: Strays,
    /// When an item was last seen that has computed for long.
    pub(super) computed_ns: u64,
}

/// What was seen of a thread whose item runs for long.
#[derive(Clone, Copy)]
struct Seen {
    running_since_ns: u64,
    /// At the last look, the time, and the CPU time of its thread by then.
    looked_ns: u64,
    on_cpu_ns: u64,
    /// What `/proc` told then, and when, if it was asked.
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

impl LongItems {
    /// Returns whether anybody works, and whether an item has been running for long.
    pub(super) fn look(&mut self, shared: &Shared, now_ns: u64) -> (bool, bool) {
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
            self.look_at(shared, &member, *cpu, since_ns, now_ns);
        }
        self.seen.retain(|member, _| owners.contains_key(member));
        (!owners.is_empty(), long)
    }

    /// Looks at a thread whose item runs for long. Reading a file of `/proc` takes some ten times
    /// as long as reading the thread's CPU clock. So that is done only for threads that have been
    /// seen before and have hardly run since; and if such a thread has not run at all, the state
    /// that it is in now is the one that it has been in all the time.
    fn look_at(
        &mut self,
        shared: &Shared,
        member: &Member,
        cpu: CpuId,
        running_since_ns: u64,
        now_ns: u64,
    ) {
        let tid = member.kernel_tid.load(Ordering::Relaxed);
        let before = self.seen.get(&member.id).copied();
        let before = before.filter(|seen| seen.running_since_ns == running_since_ns);
        let clock_ns = cpu_clock_ns(tid);
        // Much of the look may lie between its time and this reading.
        let now_ns = clock::now_ns().max(now_ns);
        let by_clock = before.zip(clock_ns).and_then(|(before, clock_ns)| {
            let elapsed_ns = now_ns.saturating_sub(before.looked_ns);
            let on_cpu_ns = clock_ns.saturating_sub(before.on_cpu_ns);
            let stays = || cpu_clock_ns(tid) == Some(clock_ns);
            let (ready_ns, asleep_now) = match on_cpu_ns {
                // Called out of turn: anybody sleeps for so short a time.
                0 if elapsed_ns < INTERVAL_NS / 2 => return None,
                // Unless it has run and gone to sleep between the two readings.
                0 if sleeps(tid)? && stays() => (0, true),
                0 => (elapsed_ns, false),
                _ if on_cpu_ns > elapsed_ns / RUNS_SHARE => (0, false),
                _ => return None,
            };
            Some((Since { on_cpu_ns, ready_ns, asleep_now }, elapsed_ns))
        });
        let enough = by_clock.is_some() || (before.is_none() && clock_ns.is_some());
        let usage = if enough { None } else { Usage::read(tid) };
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
        let since = by_clock.or_else(|| {
            let (at_ns, before) = seen.usage?;
            let elapsed_ns = now_ns.saturating_sub(at_ns);
            Some((usage?.since(&before, elapsed_ns), elapsed_ns))
        });
        (seen.looked_ns, seen.on_cpu_ns) = (now_ns, on_cpu_ns);
        if let Some((since, elapsed_ns)) = since {
            let running = Running {
                running_for_ns: now_ns.saturating_sub(running_since_ns),
                used_ns: seen.used_ns(on_cpu_ns, now_ns),
                elapsed_ns,
                on_cpu_ns: since.on_cpu_ns,
                ready_ns: since.ready_ns,
                asleep_now: since.asleep_now,
                cpu_intensive_ns: shared.settings.cpu_intensive_ns.load(Ordering::Relaxed),
            };
            let verdict = tick(&running);
            if let Some(tape) = shared.dispatch.tape().running() {
                tape.note(Asked::Tick(running), Decided::Verdict(verdict));
            }
            match verdict {
                Verdict::Blocked => replace(shared, member, cpu, || {
                    count(shared, member, |workqueue| &workqueue.blocked);
                }),
                Verdict::CpuIntensive => {
                    self.computed_ns = now_ns;
                    if !std::mem::replace(&mut seen.counted, true) {
                        count(shared, member, |workqueue| &workqueue.cpu_intensive);
                    }
                    if is_in_the_way(shared, member, cpu, now_ns) {
                        replace(shared, member, cpu, || ());
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
}

/// Offers the CPU of a thread to others, if the thread still has it. Counts that first, so that
/// nobody sees what the next thread has done and not this.
fn replace(shared: &Shared, member: &Member, cpu: CpuId, count: impl FnOnce()) {
    let slot = shared.dispatch.slot(cpu);
    let under_way = slot.shares.loses(clock::now_ns());
    if slot.vacate(member.id) {
        member.had_ns.store(under_way.had_ns, Ordering::Relaxed);
        count();
        shared.holding_items(|| shared.rescue(member, Some(cpu)));
        shared.dispatch.offer(shared, cpu);
    }
}

/// Whether a CPU-intensive item holds up items that no worker of another pod may take: those of
/// its own per-CPU workqueue, or strict ones of other pools that have waited for as long as an
/// item may run before it counts as CPU-intensive.
fn is_in_the_way(shared: &Shared, member: &Member, cpu: CpuId, now_ns: u64) -> bool {
    let number = member.workqueue.load(Ordering::Relaxed);
    // Between items, while it calls a waker, the thread runs an item of no workqueue.
    let workqueue = shared.workqueues.find(number);
    if workqueue.as_ref().is_some_and(|workqueue| workqueue.kinds.per_cpu) {
        return true;
    }
    let pool = workqueue.map(|workqueue| workqueue.mode().pool());
    bound_items_wait(shared, cpu, pool, now_ns, |_| false)
}

fn count(shared: &Shared, member: &Member, counter: impl Fn(&WorkqueueState) -> &AtomicU64) {
    let number = member.workqueue.load(Ordering::Relaxed);
    if let Some(workqueue) = shared.workqueues.find(number) {
        counter(&workqueue).fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether items of pools other than `but` have waited for a CPU for as long as an item may run
/// before it counts as CPU-intensive. Only strict items count, and items of a queue that is
/// `alone`.
pub(super) fn bound_items_wait(
    shared: &Shared,
    cpu: CpuId,
    but: Option<PoolId>,
    now_ns: u64,
    alone: impl Fn(QueueId) -> bool,
) -> bool {
    let dispatch = &shared.dispatch;
    let patience_ns = shared.settings.cpu_intensive_ns.load(Ordering::Relaxed);
    Facts::pools(dispatch).iter().filter(|pool| Some(*pool) != but).any(|pool| {
        let attributes = dispatch.attributes(pool);
        let queue = dispatch.layout().queue(pool, attributes, cpu);
        dispatch.waiting(queue) > 0
            && now_ns.saturating_sub(dispatch.head_since_ns(queue)) >= patience_ns
            && (attributes.affinity.strict || alone(queue))
    })
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
