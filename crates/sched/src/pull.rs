//! What a worker without work takes next, before it parks.

use homing_topology::{CpuId, CpuSet, Scope};
use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::features::Features;
use crate::idle::{IDLE_PATIENCE_NS, Idle};
use crate::layout::{Layout, PoolId, QueueId};
use crate::mask::Pod;
use crate::nice::Shares;
use crate::patience::{LEFT_ITEM_MAX_NS, patience_ns};
use crate::pull_cost::PullCost;

/// The longest time for which the age of an item keeps others from pulling it, if fetching costs
/// what is usual ([`crate::PullCost`]). The time that its pod may take to come by is not included.
pub const PULL_AGE_MAX_NS: u64 = 50_000;

/// How far a worker went for an item.
///
/// ```
/// use homing_sched::Reach;
///
/// // Counters by reach are arrays in the order of `Reach::ALL`.
/// let taken = [90, 8, 2, 0];
/// assert_eq!(taken[Reach::Llc as usize], 8);
/// let costs = Reach::ALL.map(Reach::cost_ns);
/// assert!(costs.is_sorted() && costs[0] == 0, "the farther, the dearer");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reach {
    /// It is a CPU of the item's home pod.
    Home,
    /// Another pod of the same last-level cache.
    Llc,
    /// Another cache of the same node.
    Node,
    /// Another node.
    Remote,
}

impl Reach {
    /// All of them, nearest first.
    pub const ALL: [Self; 4] = [Self::Home, Self::Llc, Self::Node, Self::Remote];

    /// The cost of pulling an item from there, in nanoseconds: guessed from published figures
    /// (fetching 32 KiB from another cache takes 3.5 us; within a cache, some tens of lines).
    pub const fn cost_ns(self) -> u64 {
        match self {
            Self::Home => 0,
            Self::Llc => 1_000,
            Self::Node => 4_000,
            Self::Remote => 10_000,
        }
    }
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Take items from this queue: a batch of those that wait, but from another pod at most half of
    /// them (rounded up).
    Take {
        /// The queue to take from.
        queue: QueueId,
        /// How far away it is.
        reach: Reach,
    },
    /// Nothing to do: park, at the latest until this time. A time is given if some item is still
    /// too fresh to be pulled.
    Park {
        /// When to look again if nobody wakes the worker.
        until_ns: Option<u64>,
    },
}

/// Decides what the worker of `cpu` does (`SCHED-4`, `SCHED-5`, `SCHED-6`, `SCHED-7`). `shares` is
/// what each pool has had of that CPU.
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, Idle, Next, PoolId, Reach, Shares, Snapshot, before_park};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// let cpu = CpuId::new(0).ok_or("?")?;
/// let next = before_park(&layout, &facts, cpu, Idle::Any, &Shares::NONE);
/// assert_eq!(next, Next::Park { until_ns: None });
/// let far = facts.queue_items(&layout, PoolId(0), CpuId::new(3).ok_or("?")?, 1, 0);
/// let next = before_park(&layout, &facts, cpu, Idle::Any, &Shares::NONE);
/// assert_eq!(next, Next::Take { queue: far, reach: Reach::Node }, "of the other cache");
/// let own = facts.queue_items(&layout, PoolId(0), cpu, 1, 0);
/// let next = before_park(&layout, &facts, cpu, Idle::Any, &Shares::NONE);
/// assert_eq!(next, Next::Take { queue: own, reach: Reach::Home }, "its own queue comes first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn before_park(
    layout: &Layout,
    facts: &impl Facts,
    cpu: CpuId,
    idle: Idle,
    shares: &Shares,
) -> Next {
    let all = facts.pools();
    let pools = || all.iter();
    let mut scan = Scan { layout, facts, cpu, idle, now_ns: None, until_ns: None };
    let own = pools().filter_map(|pool| scan.own(pool));
    if let Some(queue) = own.min_by_key(|queue| shares.had_ns(queue.pool)) {
        return Next::Take { queue, reach: Reach::Home };
    }
    for (ring, start) in layout.searches(cpu) {
        let around = pools().filter_map(|pool| scan.around(pool, ring, start));
        if let Some((queue, reach)) = around.min_by_key(|(queue, _)| shares.had_ns(queue.pool)) {
            return Next::Take { queue, reach };
        }
    }
    Next::Park { until_ns: scan.until_ns }
}

/// How far `cpu` is from the home of a queue's items: if its worker is woken for these items, this
/// is the reach to give to [`Idle::Called`].
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, Reach, Snapshot, reach};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cpu, strict: false });
/// let facts = Snapshot::new(&layout, &[attributes]);
/// let queue = layout.queue(PoolId(0), attributes, CpuId::new(0).ok_or("?")?);
/// let cpus = [0, 1, 2, 4].into_iter().filter_map(CpuId::new);
/// assert!(cpus.map(|cpu| reach(&layout, &facts, queue, cpu)).eq(Reach::ALL));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn reach(layout: &Layout, facts: &impl Facts, queue: QueueId, cpu: CpuId) -> Reach {
    if Pod::of(layout, facts, queue).cpus().contains(cpu) {
        return Reach::Home;
    }
    beyond_pod(layout, queue.leader, cpu)
}

/// How far it is between CPUs of different pods.
pub(crate) fn beyond_pod(layout: &Layout, leader: CpuId, cpu: CpuId) -> Reach {
    let numa = layout.pods(Scope::Numa);
    if layout.rings(cpu)[0].contains(leader) {
        Reach::Llc
    } else if numa.pod_of(cpu) == numa.pod_of(leader) {
        Reach::Node
    } else {
        Reach::Remote
    }
}

struct Scan<'a, F> {
    layout: &'a Layout,
    facts: &'a F,
    cpu: CpuId,
    idle: Idle,
    now_ns: Option<u64>,
    until_ns: Option<u64>,
}

impl<F: Facts> Scan<'_, F> {
    fn own(&self, pool: PoolId) -> Option<QueueId> {
        let queue = self.layout.queue(pool, self.facts.attributes(pool), self.cpu);
        if self.facts.waiting(queue) == 0 {
            return None;
        }
        let masked = self.facts.cpumask(pool).is_some();
        let serves = !masked || Pod::of(self.layout, self.facts, queue).cpus().contains(self.cpu);
        serves.then_some(queue)
    }

    /// The first queue of a pool in a ring, from `start` on, that this CPU may take from now.
    fn around(&mut self, pool: PoolId, ring: &CpuSet, start: CpuId) -> Option<(QueueId, Reach)> {
        let attributes = self.facts.attributes(pool);
        let leaders = self.layout.leaders(attributes.level()).and(ring);
        for leader in leaders.iter_from(start) {
            let queue = QueueId { pool, leader };
            let waiting = self.facts.waiting(queue);
            if waiting == 0 {
                continue;
            }
            let pod = Pod::of(self.layout, self.facts, queue);
            if pod.cpus().contains(self.cpu) {
                return Some((queue, Reach::Home));
            }
            let reach = beyond_pod(self.layout, leader, self.cpu);
            if pod.is_orphaned(self.facts) {
                return Some((queue, reach));
            }
            let away = attributes.affinity.strict || !pod.allows(self.cpu);
            if away || !self.is_on(reach) {
                continue;
            }
            if self.is_ripe(queue, reach, &pod, attributes.pull_cost) {
                return Some((queue, reach));
            }
        }
        None
    }

    fn is_on(&self, reach: Reach) -> bool {
        let needed = if reach == Reach::Llc { Features::SWQUEUE } else { Features::XSTEAL };
        self.facts.features().has(needed)
    }

    /// Whether an item has waited for longer than fetching it costs, so that its own CPUs are late.
    fn is_ripe(&mut self, queue: QueueId, reach: Reach, pod: &Pod<'_>, cost: PullCost) -> bool {
        let idle_since_ns = match self.idle {
            Idle::Any => return true,
            Idle::Called(near, _) if reach <= near => return true,
            Idle::Called(_, since_ns) | Idle::Since(since_ns) | Idle::Rested(since_ns) => since_ns,
        };
        let facts = self.facts;
        let item_ns = facts.item_ns(queue);
        let age_ns = cost.age_ns(reach, item_ns);
        if self.is_rested(item_ns) && self.has_too_many(queue, pod, age_ns) {
            return true;
        }
        let now_ns = *self.now_ns.get_or_insert_with(|| facts.now_ns());
        let since_ns = facts.head_since_ns(queue);
        // Issuers that do not wait gain nothing from this worker's patience; but no item is left
        // for longer than that.
        let for_nobody = reach > Reach::Llc && facts.issuers_are_busy();
        let by_patience = if for_nobody {
            now_ns.saturating_add(LEFT_ITEM_MAX_NS)
        } else {
            idle_since_ns.saturating_add(IDLE_PATIENCE_NS)
        };
        if now_ns >= by_patience {
            return true;
        }
        // Without the patience that its pod is given, which takes many looks to know.
        let earliest = since_ns.saturating_add(age_ns).min(by_patience);
        if now_ns < earliest && self.until_ns.is_some_and(|known| known <= earliest) {
            return false;
        }
        let age_ns = age_ns.max(patience_ns(self.layout, facts, queue, pod, reach));
        let by_age = since_ns.saturating_add(age_ns);
        let ripe_at = by_age.min(by_patience);
        if now_ns >= ripe_at {
            return true;
        }
        self.until_ns = Some(self.until_ns.map_or(ripe_at, |known| known.min(ripe_at)));
        false
    }

    /// Whether this worker need not sleep before it takes what others have too many of: it has
    /// slept lately, no issuer wants its CPU, and some issuer may wait.
    fn is_rested(&self, item_ns: u64) -> bool {
        let rested = !matches!(self.idle, Idle::Since(_));
        rested && !self.facts.occupied(item_ns).contains(self.cpu) && !self.facts.issuers_are_busy()
    }

    /// Whether the CPUs of a queue have at least an item each to do after those that they run, and
    /// so will not come to the last of these for longer than fetching it takes.
    fn has_too_many(&self, queue: QueueId, pod: &Pod<'_>, age_ns: u64) -> bool {
        let level = self.facts.attributes(queue.pool).level();
        let own =
            pod.allowed(&self.facts.active()).and(self.layout.pod(level.scope(), queue.leader));
        let each = u64::from(self.facts.waiting(queue)) / own.len().max(1) as u64;
        each >= 1 && each.saturating_mul(self.facts.item_ns(queue)) >= age_ns.max(1)
    }
}

#[cfg(test)]
mod tests;
