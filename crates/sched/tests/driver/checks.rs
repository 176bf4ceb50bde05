//! What must hold while a scenario runs.
//!
//! A queue is *exposed* while items wait in it and a CPU that may serve it is idle: parked, and not
//! woken. In the scenarios `prompt` and `patient` this is measured for as long as an item waits; in
//! others, only until somebody takes from the queue. How long it may last:
//!
//! * Prompt scenarios (see [`Scenario::prompt`]): the longer of two times, and two wake delays
//!   more. One is `PULL_AGE_MAX_NS` scaled by the assumed cost of fetching, but at most
//!   `IDLE_PATIENCE_NS` unless all issuers are busy; the other is one wake delay for each item that
//!   comes at once. Each insertion wakes an idle CPU, if there is one. That CPU takes the item, or
//!   another one whose own CPU has been woken too, and wakes the next CPU as it begins. A worker
//!   that parks beside an item that is not ripe comes back when it is ripe, and then takes whatever
//!   there is.
//! * Patient ones (see [`Scenario::patient`]): [`PATIENT_NS`] more. Some items are left to workers
//!   of the pod that are awake. These workers come by when they have finished their item, and one
//!   of each other pool that they serve.
//! * All others: a number of ticks. The first tick that looks at the queue notes since when it has
//!   seen the item wait. The next one is more than `TICK_AGE_NS` later and wakes a CPU for it
//!   (where issuers occupy CPUs, the one that is `OCCUPIED_TICK_AGE_NS` later). That makes two or
//!   three ticks, a wake delay, and twice the staleness of facts, rounded up to ticks. A tick wakes
//!   one CPU for the first overdue queue that it finds, so each other queue that is exposed at the
//!   time adds two ticks. The woken CPU takes what it finds first, so each batch taken from one of
//!   those queues adds one tick.
//!
//! A worker *passes over* its own queue of a pool when it takes from elsewhere while items wait
//! there. This is bounded with fresh facts, and while nobody else takes from that queue either: it
//! lasts at most until the other pools have had as much as that pool, by weight. Let B be the
//! longest batch of the other pools and of the worker's own, w0 the weight of the pool passed over,
//! and w that of another pool. The bound is B * (1 + w / w0) for each other pool, and B once more
//! for the second look, which knows no shares (`SCHED-6`).

use std::collections::BTreeMap;

use homing_sched::{
    Attributes, Facts, Features, IDLE_PATIENCE_NS, Layout, OCCUPIED_TICK_AGE_NS, PULL_AGE_MAX_NS,
    PoolId, QueueId, SLEEP_COST_NS, TICK_AGE_NS, TINY_ITEM_NS,
};
use homing_topology::{CpuId, CpuSet};

use super::board::{Board, Item};
use super::{Scenario, TICK_NS};

/// How much longer work may wait where it is left to workers that are awake: an item of 33 us of
/// each of three pools, and the time by which the next wake-up may be put off.
pub(crate) const PATIENT_NS: u64 = 3 * 33_000 + 40_000;

/// The results of a scenario.
#[derive(Debug)]
pub(crate) struct Report {
    /// Every decision, in order.
    pub(crate) log: String,
    pub(crate) extra_looks: u64,
    /// How many CPUs were woken for items.
    pub(crate) wakes: u64,
    /// The longest time that a queue was exposed.
    pub(crate) exposed_max_ns: u64,
    /// For each pool, the longest time that a worker passed over its own queue.
    pub(crate) passed_ns: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Exposed {
    since_ns: u64,
    /// The most other queues that were exposed at one time since then.
    rivals: u64,
    /// How many batches were taken from those queues.
    rival_takes: u64,
}

/// The checks; see the module.
#[derive(Debug)]
pub(crate) struct Checks {
    /// How often a CPU might have been woken.
    pub(crate) occasions: u64,
    pub(crate) wakes: u64,
    pub(crate) extra_looks: u64,
    is_fresh: bool,
    ticks_ns: u64,
    prompt_ns: Option<u64>,
    /// Whether to check how long an item waits, instead of how long nobody takes any.
    by_item: bool,
    exposed: BTreeMap<usize, Exposed>,
    exposed_max_ns: u64,
    passes: Passes,
    begun: Vec<bool>,
    left: u32,
}

impl Checks {
    pub(crate) fn new(scenario: &Scenario, board: &Board) -> Self {
        const { assert!(TICK_AGE_NS <= TICK_NS) };
        let stale_ns = scenario.stale_ns.div_ceil(TICK_NS) * TICK_NS;
        let strict = scenario.pools.iter().any(|pool| pool.affinity.strict);
        let tiny = scenario.lengths_ns.iter().any(|length| *length < TINY_ITEM_NS);
        let strict = strict || !scenario.cpumasks.is_empty();
        let calm = scenario.stale_ns == 0 && scenario.gap_ns >= SLEEP_COST_NS && !scenario.occupy;
        let all_on = board.features == Features::ALL && scenario.masks.is_empty();
        let alike = !scenario.knows_delay || scenario.lengths_ns.len() == 1;
        let is_prompt = calm && all_on && !strict && !tiny && alike;
        // An issuer may occupy the CPU; such a CPU is spared for longer.
        let age_ns = if scenario.occupy { OCCUPIED_TICK_AGE_NS } else { TICK_AGE_NS };
        let late_ns = age_ns.div_ceil(TICK_NS) * TICK_NS;
        let percents = scenario.pools.iter().map(|pool| pool.pull_cost.percent());
        let dearest = percents.max().unwrap_or(100);
        let ripe_ns = PULL_AGE_MAX_NS * dearest / 100;
        // Where all issuers are busy, no worker takes from another cache for having been idle for
        // long.
        let ripe_ns =
            if scenario.issuers_are_busy { ripe_ns } else { ripe_ns.min(IDLE_PATIENCE_NS) };
        let chain_ns = u64::from(scenario.burst_max) * scenario.wake_ns;
        let more_ns =
            if scenario.knows_delay { ripe_ns + PATIENT_NS } else { ripe_ns.max(chain_ns) };
        Self {
            occasions: 0,
            wakes: 0,
            extra_looks: 0,
            is_fresh: scenario.stale_ns == 0,
            ticks_ns: TICK_NS + late_ns + scenario.wake_ns + 2 * stale_ns,
            prompt_ns: is_prompt.then_some(more_ns + 2 * scenario.wake_ns),
            by_item: scenario.by_item && is_prompt,
            exposed: BTreeMap::new(),
            exposed_max_ns: 0,
            passes: Passes::new(board),
            begun: vec![false; scenario.items as usize],
            left: scenario.items,
        }
    }

    pub(crate) fn all_ran(&self) -> bool {
        self.left == 0
    }

    /// Advances the time to `at_ns` and checks that nothing was exposed for too long until then.
    pub(crate) fn before(
        &mut self,
        at_ns: u64,
        layout: &Layout,
        board: &Board,
    ) -> Result<(), String> {
        for (number, exposed) in &self.exposed {
            let lasted_ns = at_ns - exposed.since_ns;
            self.exposed_max_ns = self.exposed_max_ns.max(lasted_ns);
            let ticks = 2 * exposed.rivals + exposed.rival_takes;
            let by_ticks_ns = self.ticks_ns + TICK_NS * ticks;
            if lasted_ns > self.prompt_ns.unwrap_or(by_ticks_ns) {
                let queue = board.queues[*number].id;
                let idle = servers(layout, board, queue).and(&board.idle);
                return Err(format!("{queue:?}: {exposed:?} for {lasted_ns} ns beside {idle}"));
            }
        }
        Ok(())
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
        let fresh = Exposed { since_ns: board.now_ns, rivals: 0, rival_takes: 0 };
        for number in board.filled.iter().filter(|number| is_exposed(number)) {
            self.exposed.entry(*number).or_insert(fresh);
        }
        if self.by_item {
            for (number, found) in &mut self.exposed {
                let oldest_ns = board.queues[*number].items[0].issued_ns;
                found.since_ns = found.since_ns.max(oldest_ns);
            }
        }
        let rivals = (self.exposed.len() as u64).saturating_sub(1);
        self.exposed.values_mut().for_each(|found| found.rivals = found.rivals.max(rivals));
    }

    /// Notes and checks that a worker has taken from a queue.
    pub(crate) fn taken(&mut self, layout: &Layout, board: &Board, cpu: CpuId, queue: QueueId) {
        self.occasions += 1;
        if self.is_fresh {
            self.passes.taken(layout, board, cpu, queue);
        }
        let was_exposed = if self.by_item {
            // The items that stay in the queue have waited as long.
            self.exposed.contains_key(&board.number_of(queue))
        } else {
            self.exposed.remove(&board.number_of(queue)).is_some()
        };
        if was_exposed {
            self.exposed.values_mut().for_each(|rival| rival.rival_takes += 1);
        }
        let may = servers(layout, board, queue).contains(cpu);
        assert!(may, "CPU {cpu} has taken from {queue:?}, which it may not serve");
    }

    /// Checks that work stays in the pod that it came from while that pod has a worker.
    pub(crate) fn at_home(layout: &Layout, board: &Board, cpu: CpuId, queue: QueueId) {
        let mask = board.cpumask(queue.pool).filter(|mask| mask.intersects(&board.active));
        let active = mask.map_or(board.active, |mask| board.active.and(mask));
        let pod = layout.pod(board.attributes(queue.pool).affinity.scope, cpu);
        let is_home = pod.contains(queue.leader) || !pod.intersects(&active);
        assert!(is_home, "work of CPU {cpu} is at home in {queue:?}");
    }

    pub(crate) fn begins(&mut self, item: Item) {
        let begun = &mut self.begun[item.number as usize];
        assert!(!std::mem::replace(begun, true), "item {} ran twice", item.number);
    }

    pub(crate) fn ran(&mut self) {
        self.left -= 1;
    }

    pub(crate) fn report(self, board: &Board, log: String) -> Report {
        assert!(self.wakes <= self.occasions, "more than one CPU was woken at a time");
        assert!(!self.is_fresh || self.extra_looks == 0, "fresh facts deceived somebody");
        assert!(board.filled.is_empty(), "items are left");
        assert!(self.begun.iter().all(|begun| *begun));
        Report {
            log,
            extra_looks: self.extra_looks,
            wakes: self.wakes,
            exposed_max_ns: self.exposed_max_ns,
            passed_ns: self.passes.most_ns,
        }
    }
}

/// The CPUs that may serve a queue. This is spelled out here once more, so that the decisions are
/// not checked against themselves.
fn servers(layout: &Layout, board: &Board, queue: QueueId) -> CpuSet {
    let Attributes { affinity, .. } = board.attributes(queue.pool);
    let mask = board.cpumask(queue.pool).filter(|mask| mask.intersects(&board.active));
    let all = mask.unwrap_or(layout.machine().online());
    let mut pod = layout.pod(affinity.scope, queue.leader).and(all);
    if !board.active.intersects(&pod) {
        match mask {
            None => return board.active,
            Some(mask) => pod = *mask,
        }
    }
    if affinity.strict {
        return pod;
    }
    let cache = layout.rings(queue.leader)[0].and(all).minus(&pod);
    let far = all.minus(&pod).minus(&cache);
    let part = |feature, cpus| if board.features.has(feature) { cpus } else { CpuSet::EMPTY };
    pod.or(&part(Features::SWQUEUE, cache)).or(&part(Features::XSTEAL, far))
}

/// How long workers have passed over their own queues.
#[derive(Debug)]
struct Passes {
    /// For each queue, how often somebody has taken from it.
    takes: Vec<u64>,
    /// For each CPU and pool: how often its queue had been taken from when it was last passed over,
    /// and since when it has been.
    passed: BTreeMap<(CpuId, PoolId), (u64, u64)>,
    /// For each CPU: when it took last, and the longest time that it was busy with a batch.
    batches: BTreeMap<CpuId, (u64, u64)>,
    most_ns: Vec<u64>,
}

impl Passes {
    fn new(board: &Board) -> Self {
        Self {
            takes: vec![0; board.queues.len()],
            passed: BTreeMap::new(),
            batches: BTreeMap::new(),
            most_ns: vec![0; board.pools().iter().count()],
        }
    }

    /// Called after the items are taken and before any is put.
    fn taken(&mut self, layout: &Layout, board: &Board, cpu: CpuId, queue: QueueId) {
        self.takes[board.number_of(queue)] += 1;
        let now_ns = board.now_ns;
        let (last_ns, longest_ns) = self.batches.entry(cpu).or_insert((now_ns, 0));
        *longest_ns = (*longest_ns).max(now_ns - *last_ns);
        *last_ns = now_ns;
        let longest_ns = *longest_ns;
        let weight = |pool| board.attributes(pool).nice.weight();
        let pools = || board.pools().iter();
        for pool in pools() {
            let own = layout.queue(pool, board.attributes(pool), cpu);
            let serves = servers(layout, board, own).contains(cpu);
            if own == queue || board.queue(own).items.is_empty() || !serves {
                continue;
            }
            let takes = self.takes[board.number_of(own)];
            let (takes_then, since_ns) = self.passed.entry((cpu, pool)).or_insert((takes, now_ns));
            if *takes_then != takes {
                (*takes_then, *since_ns) = (takes, now_ns);
            }
            let lasted_ns = now_ns - *since_ns;
            let others = pools().filter(|other| *other != pool);
            let share = |other| longest_ns + longest_ns * weight(other) / weight(pool);
            let bound_ns = longest_ns + others.map(share).sum::<u64>();
            assert!(lasted_ns <= bound_ns, "CPU {cpu} passed over {own:?} for {lasted_ns} ns");
            let most_ns = &mut self.most_ns[usize::from(pool.0)];
            *most_ns = (*most_ns).max(lasted_ns);
        }
    }
}
