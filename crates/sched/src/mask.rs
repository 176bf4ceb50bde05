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

/// The CPUs at which a queue is at home: those of its pod that its pool's `cpumask` allows or, if
/// none of those has a worker, the mask's (`SCHED-7`).
///
/// ```
/// use homing_sched::{Affinity, Attributes, Layout, PoolId, QueueId, Snapshot};
/// use homing_sched::{home_cpus, may_serve};
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("1x2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: true });
/// let facts = Snapshot::new(&layout, &[attributes]);
/// let [one, two] = [1, 2].map(|cpu| CpuId::new(cpu).expect("below 1024"));
/// let queue = QueueId { pool: PoolId(0), leader: two };
/// assert_eq!(home_cpus(&layout, &facts, queue).to_string(), "2,3");
/// assert!(may_serve(&layout, &facts, queue, two) && !may_serve(&layout, &facts, queue, one));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn home_cpus(layout: &Layout, facts: &impl Facts, queue: QueueId) -> CpuSet {
    *Pod::of(layout, facts, queue).cpus()
}

/// Whether the worker of `cpu` may take from a queue at all, if need be: not if that is strict and
/// at home elsewhere (`SCHED-5`), or has a mask without this CPU (`SCHED-7`); see [`home_cpus`].
pub fn may_serve(layout: &Layout, facts: &impl Facts, queue: QueueId, cpu: CpuId) -> bool {
    let pod = Pod::of(layout, facts, queue);
    let is_strict = facts.attributes(queue.pool).affinity.strict;
    pod.cpus().contains(cpu) || pod.is_orphaned(facts) || (!is_strict && pod.allows(cpu))
}

/// The mask of a queue's pool, if one of its CPUs has a worker.
fn mask(facts: &impl Facts, queue: QueueId) -> Option<&CpuSet> {
    facts.cpumask(queue.pool).filter(|mask| mask.intersects(&facts.active()))
}

#[cfg(test)]
mod tests {
    use homing_topology::Scope;

    use super::*;
    use crate::test_facts::{Given, cpu_id, cpus, layout, loose, strict};

    #[test]
    fn who_may_serve_a_queue_depends_on_strictness_the_mask_and_who_is_left() {
        let layout = layout("2x1x2x2");
        let servers = |attributes, mask: Option<&str>, active| {
            let mut facts = Given::new(&layout, &[attributes]);
            (facts.masks, facts.active) = (vec![mask.map(cpus)], cpus(active));
            let queue = facts.put(&layout, 0, 0, 1, facts.now_ns);
            let all = (0..8).map(cpu_id).filter(|cpu| may_serve(&layout, &facts, queue, *cpu));
            all.collect::<CpuSet>().to_string()
        };
        assert_eq!(servers(loose(Scope::Cache), None, "0-7"), "0-7");
        assert_eq!(servers(strict(Scope::Cache), None, "0-7"), "0-3");
        assert_eq!(servers(strict(Scope::Cache), None, "4-7"), "0-7", "nobody of the pod is left");
        assert_eq!(servers(loose(Scope::Cache), Some("1,5"), "0-7"), "1,5");
        assert_eq!(servers(strict(Scope::Cache), Some("1,5"), "0-7"), "1");
        assert_eq!(servers(loose(Scope::Cache), Some("1,5"), "0,2-4,6-7"), "0-7");
    }
}
