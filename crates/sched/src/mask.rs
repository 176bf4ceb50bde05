//! The CPUs at which a queue is at home: those of its pod that its pool's `cpumask` allows.

use homing_topology::{CpuId, CpuSet};

use crate::facts::Facts;
use crate::layout::{Layout, QueueId};

/// A queue's pod, within the mask (`SCHED-7`). If no CPU of both has a worker, the pod is the mask.
/// If none of the mask has one either, there might as well be no mask.
pub(crate) enum Pod<'a> {
    Whole(&'a CpuSet),
    Masked { cpus: CpuSet, mask: &'a CpuSet },
}

impl<'a> Pod<'a> {
    pub(crate) fn of(layout: &'a Layout, facts: &'a impl Facts, queue: QueueId) -> Self {
        let pod = layout.pod(facts.attributes(queue.pool).affinity.scope, queue.leader);
        let Some(mask) = mask(facts, queue) else { return Self::Whole(pod) };
        let cpus = pod.and(mask);
        let cpus = if cpus.intersects(&facts.active()) { cpus } else { *mask };
        Self::Masked { cpus, mask }
    }

    pub(crate) fn cpus(&self) -> &CpuSet {
        match self {
            Self::Whole(pod) => pod,
            Self::Masked { cpus, .. } => cpus,
        }
    }

    /// Its CPUs whose worker is awake, if `active` CPUs have workers and `idle` ones are idle.
    pub(crate) fn awake(&self, active: &CpuSet, idle: &CpuSet) -> CpuSet {
        active.minus(idle).and(self.cpus())
    }

    /// Whether none of its CPUs has a worker: then any worker may serve it.
    pub(crate) fn is_orphaned(&self, facts: &impl Facts) -> bool {
        !facts.active().intersects(self.cpus())
    }

    /// Whether the mask allows `cpu`.
    pub(crate) fn allows(&self, cpu: CpuId) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Masked { mask, .. } => mask.contains(cpu),
        }
    }

    /// Those of `cpus` that the mask allows.
    pub(crate) fn allowed(&self, cpus: &CpuSet) -> CpuSet {
        match self {
            Self::Whole(_) => *cpus,
            Self::Masked { mask, .. } => cpus.and(mask),
        }
    }
}

/// The mask of a queue's pool, if one of its CPUs has a worker.
fn mask(facts: &impl Facts, queue: QueueId) -> Option<&CpuSet> {
    facts.cpumask(queue.pool).filter(|mask| mask.intersects(&facts.active()))
}
