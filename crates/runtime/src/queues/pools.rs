//! The pools: for each combination of attributes that has been in use, its home queues.

use std::sync::OnceLock;

use homing_sched::{Attributes, Layout, Level, Nice, PoolId, PoolSet, QueueId};
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::queues::home_queue::HomeQueue;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// As many pools as a pool's number can name. Combinations of attributes beyond that are refused.
const POOL_COUNT_MAX: usize = 255;

/// All pools of a runtime. Pools come and never go: there are few combinations of attributes.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: Box<[OnceLock<Pool>]>,
    count: AtomicU32,
    /// The pools that workers look at: a bit for each. Those that no workqueue uses any more, and
    /// that are empty, are left out until somebody uses them again.
    in_use: [AtomicU64; PoolSet::WORDS],
    /// Some pool has not had the weight of the first one.
    weights_differ: AtomicBool,
    /// Held while a pool is made. Whether new pools take nothing, because the runtime has ended.
    growing: Mutex<bool>,
    /// For each level and each CPU, the index of its queue.
    index_of: [Box<[u16]>; Level::ALL.len()],
    /// For each level: for each CPU, its rank among the CPUs of its queue; and for each leader, how
    /// many CPUs its queue has.
    rank_of: [Box<[u16]>; Level::ALL.len()],
    cpus_of: [Box<[u16]>; Level::ALL.len()],
}

#[derive(Debug)]
struct Pool {
    attributes: Attributes,
    cpumask: Option<CpuSet>,
    blocking: bool,
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
        let mut rank_of = Level::ALL.map(|_| vec![0; CPU_COUNT_MAX].into_boxed_slice());
        let mut cpus_of = rank_of.clone();
        for level in Level::ALL {
            for cpu in layout.machine().online().iter() {
                let cpus = &mut cpus_of[level as usize][layout.leader(level, cpu).index()];
                rank_of[level as usize][cpu.index()] = *cpus;
                *cpus += 1;
            }
        }
        Self {
            pools: (0..POOL_COUNT_MAX).map(|_| OnceLock::new()).collect(),
            count: AtomicU32::new(0),
            in_use: std::array::from_fn(|_| AtomicU64::new(0)),
            weights_differ: AtomicBool::new(false),
            growing: Mutex::new(false),
            index_of,
            rank_of,
            cpus_of,
        }
    }

    /// The pool with these attributes, made if there is none yet; `None` if there are too many
    /// pools.
    pub(crate) fn with(
        &self,
        layout: &Layout,
        attributes: Attributes,
        cpumask: Option<CpuSet>,
        blocking: bool,
    ) -> Option<PoolId> {
        let growing = lock(&self.growing);
        let count = self.count();
        let is_it = |pool: &PoolId| {
            let pool = self.pool(*pool);
            pool.attributes == attributes && pool.cpumask == cpumask && pool.blocking == blocking
        };
        if let Some(known) = (0..count).map(PoolId).find(is_it) {
            self.use_again(known);
            return Some(known);
        }
        let place = self.pools.get(usize::from(count))?;
        let level = attributes.level() as usize;
        let cpus = |leader: CpuId| self.cpus_of[level][leader.index()].into();
        let leaders = layout.leaders(attributes.level()).iter();
        let queues = leaders.map(|leader| HomeQueue::new(cpus(leader)));
        let pool = Pool { attributes, cpumask, blocking, level, queues: queues.collect() };
        if *growing {
            pool.queues.iter().for_each(|queue| drop(queue.close()));
        }
        place.get_or_init(|| pool);
        if self.attributes(PoolId(0)).nice != attributes.nice {
            self.weights_differ.store(true, Ordering::Relaxed);
        }
        // Release: a thread that reads the count finds the pool.
        self.count.store(u32::from(count) + 1, Ordering::Release);
        self.use_again(PoolId(count));
        Some(PoolId(count))
    }

    /// Pools that are made from now on take nothing. The caller closes those there are.
    pub(crate) fn close(&self) {
        *lock(&self.growing) = true;
    }

    /// The pools that workers look at.
    pub(crate) fn in_use(&self) -> PoolSet {
        // Acquire: a thread that sees the bit finds the pool.
        PoolSet::from_words(self.in_use.each_ref().map(|word| word.load(Ordering::Acquire)))
    }

    /// Makes sure that workers look at the pool, after an item was put in. Returns whether they did
    /// not before.
    pub(crate) fn use_again(&self, pool: PoolId) -> bool {
        let (word, bit) = PoolSet::place(pool);
        let word = &self.in_use[word];
        word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Leaves out pools that are not in `wanted`, unless items wait there.
    ///
    /// The locks of the queues order this: either an issuer puts its item in before the look, which
    /// sees the item, or the issuer then sees that the pool is left out.
    pub(crate) fn leave_out_all_but(&self, wanted: &PoolSet) {
        for pool in self.in_use().iter().filter(|pool| !wanted.contains(*pool)) {
            let (word, bit) = PoolSet::place(pool);
            self.in_use[word].fetch_and(!bit, Ordering::AcqRel);
            if self.pool(pool).queues.iter().any(HomeQueue::has_any) {
                self.use_again(pool);
            }
        }
    }

    /// How many pools there are.
    pub(crate) fn count(&self) -> u8 {
        self.count.load(Ordering::Acquire) as u8
    }

    /// Whether pools may weigh more than others.
    pub(crate) fn weights_differ(&self) -> bool {
        self.weights_differ.load(Ordering::Relaxed)
    }

    /// All pools there are.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PoolId> + Clone + use<> {
        (0..self.count()).map(PoolId)
    }

    pub(crate) fn attributes(&self, pool: PoolId) -> Attributes {
        self.pool(pool).attributes
    }

    pub(crate) fn nice(&self, pool: PoolId) -> Nice {
        self.attributes(pool).nice
    }

    /// Whether its items are said to block.
    pub(crate) fn is_blocking(&self, pool: PoolId) -> bool {
        self.pool(pool).blocking
    }

    pub(crate) fn cpumask(&self, pool: PoolId) -> Option<&CpuSet> {
        self.pool(pool).cpumask.as_ref()
    }

    pub(crate) fn queue(&self, queue: QueueId) -> &HomeQueue {
        let pool = self.pool(queue.pool);
        &pool.queues[usize::from(self.index_of[pool.level][queue.leader.index()])]
    }

    /// The rank of a CPU among those of its queue of a pool.
    pub(crate) fn rank(&self, pool: PoolId, cpu: CpuId) -> usize {
        self.rank_of[self.pool(pool).level][cpu.index()].into()
    }

    /// Every queue there is.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &HomeQueue> {
        self.pools.iter().filter_map(OnceLock::get).flat_map(|pool| pool.queues.iter())
    }

    fn pool(&self, pool: PoolId) -> &Pool {
        self.pools[usize::from(pool.0)].get().expect("pools are numbered as they are made")
    }
}
