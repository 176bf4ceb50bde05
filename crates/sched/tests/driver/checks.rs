//! What must hold while a scenario runs.
//!
//! A queue is *exposed* while items wait in it and a CPU that may serve it is idle: parked, and
//! not woken. It stops being so when somebody takes from it. How long that may last:
//!
//! * Prompt scenarios (see [`Scenario::prompt`]): `PULL_AGE_MAX_NS` and two wake delays. Each
//!   insertion wakes an idle CPU, if there is one, which takes the item or something else whose
//!   own CPU has been woken too; whoever parks beside an item that is not ripe comes back when it
//!   is, and then takes whatever there is.
//! * All others: ticks. The first that looks at the queue notes since when it has seen the item
//!   wait, the next one is more than `TICK_AGE_NS` later and wakes a CPU for it: two ticks, a wake
//!   delay, and as much as facts may be stale, rounded up to ticks, twice. A tick wakes one CPU,
//!   and one that is woken may find other work first: so for each other queue that is exposed at
//!   the time two ticks more.

use std::collections::BTreeMap;

use homing_sched::{Attributes, Facts, Features, Layout, PULL_AGE_MAX_NS, QueueId, TICK_AGE_NS};
use homing_topology::{CpuId, CpuSet};

use super::board::{Board, Item};
use super::{Scenario, TICK_NS};

/// What came of a scenario.
#[derive(Debug)]
pub(crate) struct Report {
    /// Every decision, in order.
    pub(crate) log: String,
    pub(crate) extra_looks: u64,
    pub(crate) wakes: u64,
    /// The longest that a queue was exposed.
    pub(crate) exposed_max_ns: u64,
    /// For each pool the longest that an item waited.
    pub(crate) waited_max_ns: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Exposed {
    since_ns: u64,
    /// The most queues that were exposed at a time since then, but for this one.
    rivals: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) puts: u64,
    pub(crate) wakes: u64,
    pub(crate) extra_looks: u64,
    takes: u64,
    ticks_ns: u64,
    prompt_ns: Option<u64>,
    exposed: BTreeMap<usize, Exposed>,
    exposed_max_ns: u64,
    waited_max_ns: Vec<u64>,
    begun: Vec<bool>,
    left: u32,
}

impl Checks {
    pub(crate) fn new(scenario: &Scenario, board: &Board) -> Self {
        const { assert!(TICK_AGE_NS <= TICK_NS) };
        let stale_ns = scenario.stale_ns.div_ceil(TICK_NS) * TICK_NS;
        let strict = scenario.pools.iter().any(|pool| pool.affinity.strict);
        let tiny = scenario.lengths_ns.iter().any(|length| *length < homing_sched::TINY_ITEM_NS);
        let calm = scenario.stale_ns == 0 && scenario.search_ns == 0 && !scenario.occupy;
        let all_on = board.features == Features::ALL && scenario.masks.is_empty();
        let is_prompt = calm && all_on && !strict && !tiny;
        Self {
            puts: 0,
            wakes: 0,
            extra_looks: 0,
            takes: 0,
            ticks_ns: 2 * TICK_NS + scenario.wake_ns + 2 * stale_ns,
            prompt_ns: is_prompt.then_some(PULL_AGE_MAX_NS + 2 * scenario.wake_ns),
            exposed: BTreeMap::new(),
            exposed_max_ns: 0,
            waited_max_ns: vec![0; scenario.pools.len()],
            begun: vec![false; scenario.items as usize],
            left: scenario.items,
        }
    }

    pub(crate) fn all_ran(&self) -> bool {
        self.left == 0
    }

    /// Time goes on to `at_ns`: nothing was exposed for too long until then.
    pub(crate) fn before(&mut self, at_ns: u64, layout: &Layout, board: &Board) {
        for (number, exposed) in &self.exposed {
            let lasted_ns = at_ns - exposed.since_ns;
            self.exposed_max_ns = self.exposed_max_ns.max(lasted_ns);
            let by_ticks_ns = self.ticks_ns + 2 * TICK_NS * exposed.rivals;
            let bound_ns = self.prompt_ns.unwrap_or(by_ticks_ns);
            let queue = board.queues[*number].id;
            assert!(
                lasted_ns <= bound_ns,
                "{queue:?} has waited for {lasted_ns} ns, {} rivals, beside {}",
                exposed.rivals,
                servers(layout, board, queue).and(&board.idle)
            );
        }
    }

    pub(crate) fn after(&mut self, layout: &Layout, board: &Board) {
        if board.idle.is_empty() {
            self.exposed.clear();
            return;
        }
        let is_exposed = |number: &usize| {
            let queue = board.queues[*number].id;
            board.filled.contains(number) && servers(layout, board, queue).intersects(&board.idle)
        };
        self.exposed.retain(|number, _| is_exposed(number));
        let fresh = Exposed { since_ns: board.now_ns, rivals: 0 };
        for number in board.filled.iter().filter(|number| is_exposed(number)) {
            self.exposed.entry(*number).or_insert(fresh);
        }
        let rivals = (self.exposed.len() as u64).saturating_sub(1);
        self.exposed.values_mut().for_each(|found| found.rivals = found.rivals.max(rivals));
    }

    /// A worker has taken from a queue.
    pub(crate) fn taken(&mut self, layout: &Layout, board: &Board, cpu: CpuId, queue: QueueId) {
        self.takes += 1;
        self.exposed.remove(&board.number_of(queue));
        let may = servers(layout, board, queue).contains(cpu);
        assert!(may, "CPU {cpu} has taken from {queue:?}, which it may not serve");
    }

    pub(crate) fn begins(&mut self, now_ns: u64, item: Item, queue: QueueId) {
        let begun = &mut self.begun[item.number as usize];
        assert!(!std::mem::replace(begun, true), "item {} ran twice", item.number);
        let waited_max_ns = &mut self.waited_max_ns[usize::from(queue.pool.0)];
        *waited_max_ns = (*waited_max_ns).max(now_ns - item.issued_ns);
    }

    pub(crate) fn ran(&mut self, _item: Item) {
        self.left -= 1;
    }

    pub(crate) fn report(self, board: Board, log: String) -> Report {
        assert!(board.filled.is_empty(), "items are left");
        assert!(self.begun.iter().all(|begun| *begun));
        Report {
            log,
            extra_looks: self.extra_looks,
            wakes: self.wakes,
            exposed_max_ns: self.exposed_max_ns,
            waited_max_ns: self.waited_max_ns,
        }
    }
}

/// The CPUs that may serve a queue: spelled out here once more, so that the decisions are not
/// measured by themselves.
fn servers(layout: &Layout, board: &Board, queue: QueueId) -> CpuSet {
    let Attributes { affinity, .. } = board.attributes(queue.pool);
    let pod = *layout.pod(affinity.scope, queue.leader);
    if !board.active.intersects(&pod) {
        return board.active;
    }
    if affinity.strict {
        return pod;
    }
    let cache = layout.rings(queue.leader)[0].minus(&pod);
    let far = layout.machine().online().minus(&pod).minus(&cache);
    let part = |feature, cpus| if board.features.has(feature) { cpus } else { CpuSet::EMPTY };
    pod.or(&part(Features::SWQUEUE, cache)).or(&part(Features::XSTEAL, far))
}
