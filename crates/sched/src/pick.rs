//! Which idle CPU a waker chooses.

use homing_topology::{CpuId, CpuSet};

use crate::facts::Facts;
use crate::features::Features;
use crate::layout::{Layout, QueueId};
use crate::mask::Pod;
use crate::place::{WHOLE_CORE_ITEM_NS, pullers};

/// `SCHED-2`: the search of a waker for an idle CPU.
pub(crate) struct Search<'a, F> {
    pub(crate) layout: &'a Layout,
    pub(crate) facts: &'a F,
    pub(crate) queue: QueueId,
    pub(crate) pod: &'a Pod<'a>,
    pub(crate) near: CpuId,
    pub(crate) active: &'a CpuSet,
    /// Left to issuers.
    pub(crate) occupied: &'a CpuSet,
    pub(crate) item_ns: u64,
}

impl<F: Facts> Search<'_, F> {
    pub(crate) fn pick(&self, idle: &CpuSet) -> Option<CpuId> {
        if idle.is_empty() {
            return None;
        }
        let attributes = self.facts.attributes(self.queue.pool);
        let features = self.facts.features();
        if attributes.localize && idle.contains(self.near) {
            return Some(self.near);
        }
        let smt_aware = features.has(Features::SMT_AWARE);
        let whole =
            if smt_aware { self.layout.whole_cores(idle, self.active) } else { CpuSet::EMPTY };
        let rings = self.layout.rings(self.near);
        let nearest = |among: &CpuSet| {
            if among.is_empty() {
                return None;
            }
            rings.iter().find_map(|ring| ring.and(among).first_from(self.near))
        };
        if let Some(cpu) = nearest(&whole.and(self.pod.cpus())) {
            return Some(cpu);
        }
        // Whoever may not take the item is not woken for it.
        let away = pullers(self.layout, self.facts, self.queue, self.pod, idle);
        let beyond = features.has(Features::SIS_NODE);
        let reach = if beyond { rings } else { &rings[..1] };
        let core = |ring: &CpuSet| ring.and(&away).and(&whole).first_from(self.near);
        if self.item_ns >= WHOLE_CORE_ITEM_NS
            && let Some(cpu) = reach.iter().find_map(core)
        {
            return Some(cpu);
        }
        // All items come from issuers: rather a worker's sibling than one of theirs.
        let at_home = idle.and(self.pod.cpus());
        let apart = if smt_aware { self.layout.apart(&at_home, self.occupied) } else { at_home };
        if let Some(cpu) = nearest(&apart).or_else(|| nearest(&at_home)) {
            return Some(cpu);
        }
        reach.iter().find_map(|ring| {
            let there = ring.and(&away);
            let core = there.and(&whole).first_from(self.near);
            core.or_else(|| there.first_from(self.near))
        })
    }
}
