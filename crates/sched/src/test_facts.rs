//! Facts for unit tests, in few words.

use homing_topology::{CpuId, CpuSet, Machine, Scope};

use crate::attributes::{Affinity, Attributes};
use crate::layout::{Layout, PoolId, QueueId};

pub(crate) use crate::snapshot::Snapshot as Given;

impl Given {
    /// Lets items wait since `since_ns` in the queue of a pool that `cpu` uses.
    pub(crate) fn put(
        &mut self,
        layout: &Layout,
        pool: u8,
        cpu: usize,
        items: u32,
        since_ns: u64,
    ) -> QueueId {
        self.queue_items(layout, PoolId(pool), cpu_id(cpu), items, since_ns)
    }
}

pub(crate) fn layout(grid: &str) -> Layout {
    Layout::new(&Machine::from_grid(grid).unwrap()).unwrap()
}

pub(crate) fn cpu_id(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}

pub(crate) fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

pub(crate) const fn loose(scope: Scope) -> Attributes {
    Attributes::new(Affinity { scope, strict: false })
}

pub(crate) const fn strict(scope: Scope) -> Attributes {
    Attributes::new(Affinity { scope, strict: true })
}
