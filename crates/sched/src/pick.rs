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
    /// CPUs that are left to issuers.
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
        // The first core that has no busy CPU.
        let whole = |cpus: &CpuSet| {
            let rests = |cpu| idle.contains(cpu) || !self.active.contains(cpu);
            if smt_aware { self.layout.first_core(cpus, self.near, rests) } else { None }
        };
        let rings = self.layout.rings(self.near);
        let at_home = idle.and(self.pod.cpus());
        let home_rings = if at_home.is_empty() { &[] } else { rings };
        let near_home = || home_rings.iter().map(|ring| ring.and(&at_home));
        if let Some(cpu) = near_home().find_map(|there| whole(&there)) {
            return Some(cpu);
        }
        // A worker that may not take the item is not woken for it.
        let away = pullers(self.layout, self.facts, self.queue, self.pod, idle);
        let beyond = features.has(Features::SIS_NODE);
        let reach = if beyond { rings } else { &rings[..1] };
        let near_away = || reach.iter().map(|ring| ring.and(&away));
        let long = self.item_ns >= WHOLE_CORE_ITEM_NS;
        if long && let Some(cpu) = near_away().find_map(|there| whole(&there)) {
            return Some(cpu);
        }
        // All items come from issuers, so a worker's sibling is better than an issuer's.
        let apart = |cpus: &CpuSet| {
            let is_free = |cpu| !self.occupied.contains(cpu);
            if smt_aware { self.layout.first_core(cpus, self.near, is_free) } else { None }
        };
        let any = |there: CpuSet| there.first_from(self.near);
        if let Some(cpu) =
            near_home().find_map(|there| apart(&there)).or_else(|| near_home().find_map(any))
        {
            return Some(cpu);
        }
        near_away().find_map(|there| {
            let core = if long { None } else { whole(&there) };
            core.or_else(|| any(there))
        })
    }
}
