//! How long an item is left to workers that are awake before another one is woken for it.

use homing_topology::{CpuId, CpuSet};

use crate::facts::Facts;
use crate::features::Features;
use crate::layout::{Layout, PoolId, QueueId};
use crate::mask::Pod;
use crate::pull::{Reach, beyond_pod};

/// No wake-up is assumed to take longer than this, in nanoseconds. If one does, other threads want
/// the CPUs, and it is not the waking that takes so long.
pub const WAKE_DELAY_MAX_NS: u64 = 50_000;

/// Only items shorter than this are left to workers that are awake: for others the wait is
/// expensive. Guessed; with twice as much, high load loses a tenth of a per cent (simulated).
pub const LEFT_ITEM_MAX_NS: u64 = 500_000;

/// An item may wait for a worker that is awake for this many times as long as a wake-up takes. With
/// 1 it would begin as early as by a wake-up, which takes CPU time of both sides. Simulated: with
/// 2, issuers that are the bottleneck gain most.
const PATIENCE: u64 = 2;

/// How long an item of this queue may wait for workers that are awake and nearer, before another
/// one at this distance is woken for it or fetches it; 0 if those are not sure to get it done in
/// that time.
///
/// Only workers count that come to this queue first, that find no other work there, and that have
/// not been busy with what they run for long: one that runs a long item, or is held up, is no help.
/// Before a worker beyond the cache is woken, all workers within it count: they pull from each
/// other sooner.
pub(crate) fn patience_ns(
    layout: &Layout,
    facts: &impl Facts,
    queue: QueueId,
    pod: &Pod<'_>,
    reach: Reach,
) -> u64 {
    let item_ns = facts.item_ns(queue);
    let wake_ns = facts.wake_ns(false).min(WAKE_DELAY_MAX_NS);
    if item_ns == 0 || item_ns >= LEFT_ITEM_MAX_NS || wake_ns == 0 {
        return 0;
    }
    let attributes = facts.attributes(queue.pool);
    // Even at home: a worker that is woken does not have the item's data in its own core.
    let fetch_ns = attributes.pull_cost.age_ns(reach, item_ns);
    let patience_ns = PATIENCE * wake_ns + fetch_ns;
    let patience_ns = if facts.issuers_are_busy() {
        // Each issuer pays for what is woken, and for its data that comes back from afar.
        patience_ns.max(if reach > Reach::Llc { item_ns } else { item_ns / 2 })
    } else {
        patience_ns
    };
    let near = &layout.rings(queue.leader)[0];
    let beyond = reach > Reach::Llc && facts.features().has(Features::SWQUEUE);
    let own = if beyond { near } else { layout.pod(attributes.level().scope(), queue.leader) };
    let leaders = layout.leaders(attributes.level()).and(own);
    let waiting = |leader| u64::from(facts.waiting(QueueId { leader, ..queue }));
    let waiting: u64 = leaders.iter().map(waiting).sum();
    // This many workers would take just as long for what waits.
    let enough = item_ns.saturating_mul(waiting) / patience_ns;
    if own.len() as u64 <= enough || others_wait(layout, facts, queue, own) {
        return 0;
    }
    let now_ns = facts.now_ns();
    let busy_max_ns = patience_ns + 2 * item_ns;
    let (active, idle) = (facts.active(), facts.idle());
    let comes = |cpu: &CpuId| {
        active.contains(*cpu)
            && !idle.contains(*cpu)
            && pod.allows(*cpu)
            && now_ns.saturating_sub(facts.busy_since_ns(*cpu)) <= busy_max_ns
    };
    let more_than_enough = own.iter().filter(comes).nth(enough as usize).is_some();
    if more_than_enough { patience_ns } else { 0 }
}

/// Whether items of other pools wait for the CPUs that share a queue: in queues of fewer CPUs, or
/// of more.
fn others_wait(layout: &Layout, facts: &impl Facts, queue: QueueId, own: &CpuSet) -> bool {
    let is_other = |pool: &PoolId| {
        let serves = facts.cpumask(*pool).is_none_or(|mask| mask.intersects(own));
        *pool != queue.pool && serves
    };
    facts.pools().iter().filter(is_other).any(|pool| {
        let wider = layout.queue(pool, facts.attributes(pool), queue.leader);
        let leaders = layout.leaders(facts.attributes(pool).level()).and(own);
        facts.waiting(wider) > 0
            || leaders.iter().any(|leader| facts.waiting(QueueId { pool, leader }) > 0)
    })
}

/// How far away from a queue the nearest of the `idle` CPUs is.
pub(crate) fn nearest_reach(layout: &Layout, queue: QueueId, pod: &CpuSet, idle: &CpuSet) -> Reach {
    if idle.intersects(pod) {
        return Reach::Home;
    }
    let nearest = layout.rings(queue.leader).iter().find(|ring| ring.intersects(idle));
    let one = nearest.and_then(|ring| ring.and(idle).first());
    one.map_or(Reach::Llc, |cpu| beyond_pod(layout, queue.leader, cpu))
}
