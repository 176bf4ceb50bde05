//! The pools: for each combination of attributes in use, its home queues.

use std::sync::OnceLock;

use homing_sched::{Attributes, Layout, Level, PoolId, QueueId};
use homing_topology::CPU_COUNT_MAX;

use crate::home_queue::HomeQueue;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// More than there are combinations of attributes.
const POOL_COUNT_MAX: usize = 64;

/// All pools of a runtime. Pools come and never go: there are few combinations of attributes.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: Box<[OnceLock<Pool>]>,
    count: AtomicU32,
    growing: Mutex<()>,
    /// For each level and each CPU the index of its queue.
    index_of: [Box<[u16]>; Level::ALL.len()],
}

#[derive(Debug)]
struct Pool {
    attributes: Attributes,
    level: usize,
    queues: Box<[HomeQueue]>,
}

impl Pools {
    pub(crate) fn new(layout: &Layout) -> Self {
        let index_of = Level::ALL.map(|level| {
            let mut index_of = vec![0; CPU_COUNT_MAX].into_boxed_slice();
            for (index, leader) in layout.leaders(level).iter().enumerate() {
                index_of[leader.index()] = index as u16;
            }
            index_of
        });
        Self {
            pools: (0..POOL_COUNT_MAX).map(|_| OnceLock::new()).collect(),
            count: AtomicU32::new(0),
            growing: Mutex::new(()),
            index_of,
        }
    }

    /// The pool with these attributes, made if there is none yet.
    pub(crate) fn with(&self, layout: &Layout, attributes: Attributes) -> PoolId {
        let _growing = lock(&self.growing);
        let count = self.count();
        let known = (0..count).map(PoolId).find(|pool| self.pool(*pool).attributes == attributes);
        known.unwrap_or_else(|| {
            let queues = layout.leaders(attributes.level()).iter().map(|_| HomeQueue::new());
            let level = attributes.level() as usize;
            let pool = Pool { attributes, level, queues: queues.collect() };
            self.pools[usize::from(count)].get_or_init(|| pool);
            // Release: who reads the count finds the pool.
            self.count.store(u32::from(count) + 1, Ordering::Release);
            PoolId(count)
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u8 {
        self.count.load(Ordering::Acquire) as u8
    }

    pub(crate) fn attributes(&self, pool: PoolId) -> Attributes {
        self.pool(pool).attributes
    }

    pub(crate) fn queue(&self, queue: QueueId) -> &HomeQueue {
        let pool = self.pool(queue.pool);
        &pool.queues[usize::from(self.index_of[pool.level][queue.leader.index()])]
    }

    /// Every queue there is.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &HomeQueue> {
        self.pools.iter().filter_map(OnceLock::get).flat_map(|pool| pool.queues.iter())
    }

    fn pool(&self, pool: PoolId) -> &Pool {
        self.pools[usize::from(pool.0)].get().expect("pools are numbered as they are made")
    }
}
