//! What a worker without work takes next, before it parks.

use homing_topology::{CpuId, CpuSet, Scope};

use crate::attributes::Priority;
use crate::facts::Facts;
use crate::features::Features;
use crate::layout::{Layout, PoolId, QueueId};

/// A worker that has been idle for this long pulls whatever it may, however fresh. Derived: ten
/// times the dearest pull.
pub const IDLE_PATIENCE_NS: u64 = 100_000;

/// The longest that the age of an item keeps others from pulling it.
pub const PULL_AGE_MAX_NS: u64 = 50_000;

/// Every so many turns the pools are looked at lowest priority first (`SCHED-6`).
const LOW_FIRST_EVERY: usize = 8;

/// How far a worker went for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// What pulling an item from there costs, in nanoseconds: guessed from published figures
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

/// Why and since when a worker has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It has just run out of work, at this time.
    Since(u64),
    /// It was woken, or its patience is at an end: it takes the freshest item too.
    Woken,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take items from this queue: a batch of those that wait, but no more than half of them
    /// (rounded up).
    Take {
        /// The queue to take from.
        queue: QueueId,
        /// How far away it is.
        reach: Reach,
    },
    /// Nothing to do: park, at the latest until then. A time is given where some item is still
    /// too fresh to be pulled.
    Park {
        /// When to look again, if nobody wakes it.
        until_ns: Option<u64>,
    },
}

/// Decides what the worker of `cpu` does (`SCHED-4`, `SCHED-5`, `SCHED-6`). `turn` rotates which
/// pool is looked at first: the caller counts it up.
pub fn before_park(
    layout: &Layout,
    facts: &impl Facts,
    cpu: CpuId,
    idle: Idle,
    turn: usize,
) -> Next {
    let pools = facts.pool_count();
    let mut scan = Scan { layout, facts, cpu, idle, now_ns: None, until_ns: None };
    if let Some(queue) = in_order(facts, pools, turn).find_map(|pool| scan.own(pool)) {
        return Next::Take { queue, reach: Reach::Home };
    }
    for (distance, ring) in layout.rings(cpu).iter().enumerate() {
        for pool in in_order(facts, pools, turn) {
            if let Some((queue, reach)) = scan.around(pool, ring, distance) {
                return Next::Take { queue, reach };
            }
        }
    }
    Next::Park { until_ns: scan.until_ns }
}

/// The pools in the order in which a worker looks at them: by priority, and within a priority
/// beginning with another one at each turn. Every eighth turn the lowest priority comes first.
fn in_order(facts: &impl Facts, pools: u8, turn: usize) -> impl Iterator<Item = PoolId> {
    let first = (turn % usize::from(pools.max(1))) as u8;
    let rotated = move || (0..pools).map(move |step| PoolId((first + step) % pools));
    let order = if turn % LOW_FIRST_EVERY == LOW_FIRST_EVERY - 1 {
        [Priority::Normal, Priority::High]
    } else {
        [Priority::High, Priority::Normal]
    };
    order.into_iter().flat_map(move |priority| {
        rotated().filter(move |pool| facts.attributes(*pool).priority == priority)
    })
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
        (self.facts.waiting(queue) > 0).then_some(queue)
    }

    /// The next queue of a pool in a ring that this CPU may take from now.
    fn around(&mut self, pool: PoolId, ring: &CpuSet, distance: usize) -> Option<(QueueId, Reach)> {
        let attributes = self.facts.attributes(pool);
        let mut leaders = self.layout.leaders(attributes.level()).and(ring);
        // Different CPUs begin with different victims, so that thieves do not stampede.
        while let Some(leader) = leaders.first_from(self.cpu) {
            leaders.remove(leader);
            let queue = QueueId { pool, leader };
            let waiting = self.facts.waiting(queue);
            if waiting == 0 {
                continue;
            }
            let pod = self.layout.pod(attributes.affinity.scope, leader);
            if pod.contains(self.cpu) {
                return Some((queue, Reach::Home));
            }
            let orphaned = !self.facts.active().intersects(pod);
            let reach = self.reach(leader, distance);
            if orphaned {
                return Some((queue, reach));
            }
            if attributes.affinity.strict || !self.is_on(reach) {
                continue;
            }
            if self.is_ripe(queue, reach) {
                return Some((queue, reach));
            }
        }
        None
    }

    fn is_on(&self, reach: Reach) -> bool {
        let needed = if reach == Reach::Llc { Features::SWQUEUE } else { Features::XSTEAL };
        self.facts.features().has(needed)
    }

    /// Whether an item has waited for longer than fetching it costs: its own CPUs are late.
    fn is_ripe(&mut self, queue: QueueId, reach: Reach) -> bool {
        let Idle::Since(idle_since_ns) = self.idle else {
            return true;
        };
        let facts = self.facts;
        let now_ns = *self.now_ns.get_or_insert_with(|| facts.now_ns());
        let age_ns = (facts.item_ns(queue) / 16).clamp(reach.cost_ns(), PULL_AGE_MAX_NS);
        let by_age = facts.head_since_ns(queue).saturating_add(age_ns);
        let by_patience = idle_since_ns.saturating_add(IDLE_PATIENCE_NS);
        let ripe_at = by_age.min(by_patience);
        if now_ns >= ripe_at {
            return true;
        }
        self.until_ns = Some(self.until_ns.map_or(ripe_at, |known| known.min(ripe_at)));
        false
    }

    fn reach(&self, leader: CpuId, distance: usize) -> Reach {
        if distance == 0 {
            return Reach::Llc;
        }
        let numa = self.layout.pods(Scope::Numa);
        let near = numa.pod_of(self.cpu) == numa.pod_of(leader);
        if near { Reach::Node } else { Reach::Remote }
    }
}
