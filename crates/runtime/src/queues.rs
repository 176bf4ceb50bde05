//! The home queues and the two sides of the wake protocol: put an item in and wake somebody;
//! announce idle, look again, sleep. The steps are numbered as in `README.md`.
//!
//! Generic over the item, so that the model checker can run it with numbers.

use std::collections::VecDeque;

use homing_sched::{Affinity, Facts, Found, Layout, QueueId, next_queue, submit, wake_next};
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::idle_set::AtomicCpuSet;
use crate::sleeper::Sleeper;
use crate::sync::{Mutex, Ordering, fence, lock};

/// Everything the workers of one runtime share.
///
/// Field legend: `I` immutable after build, `A` atomic, `L` under the lock inside.
#[derive(Debug)]
pub(crate) struct Queues<T> {
    /// I
    layout: Layout,
    /// L: for each affinity the queue of each pod, in the order of the pods.
    homes: Vec<Vec<Mutex<Home<T>>>>,
    /// A: leaders of the queues that have items, for each affinity. A bit changes under the lock
    /// of its queue; it is read without.
    waiting: Vec<AtomicCpuSet>,
    /// A: CPUs whose worker is about to sleep or asleep, and that nobody has woken yet.
    idle: AtomicCpuSet,
    /// I: a bed for each CPU with a worker.
    sleepers: Vec<Option<Sleeper>>,
}

#[derive(Debug)]
struct Home<T> {
    items: VecDeque<T>,
    /// Set at shutdown: nothing comes in any more.
    closed: bool,
}

/// Whether a worker that found no work may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// It is announced, and there was nothing to do after that.
    Sleep,
    /// There is something to do after all.
    LookAgain,
}

impl<T> Queues<T> {
    pub(crate) fn new(layout: Layout) -> Self {
        let home = || Mutex::new(Home { items: VecDeque::new(), closed: false });
        let homes = Affinity::ALL
            .map(|affinity| (0..layout.pods(affinity.scope).len()).map(|_| home()).collect());
        let sleeper = |cpu| layout.workers().contains(cpu).then(Sleeper::new);
        Self {
            homes: homes.into(),
            waiting: Affinity::ALL
                .map(|_| AtomicCpuSet::for_range_of(layout.workers()))
                .into_iter()
                .collect(),
            idle: AtomicCpuSet::for_range_of(layout.workers()),
            sleepers: (0..CPU_COUNT_MAX).filter_map(CpuId::new).map(sleeper).collect(),
            layout,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Puts an item that `cpu` issued into its home queue and wakes an idle CPU for it, if there
    /// is one. Gives the item back where the queues are closed. Whether somebody was woken.
    pub(crate) fn put(&self, cpu: CpuId, affinity: Affinity, item: T) -> Result<bool, T> {
        let queue = self.layout.home(cpu, affinity);
        {
            // P1: insert, and say so, under the lock of the queue.
            let mut home = lock(self.home(queue));
            if home.closed {
                return Err(item);
            }
            home.items.push_back(item);
            if home.items.len() == 1 {
                self.waiting[affinity.index()].insert(queue.leader);
            }
        }
        // P2: pairs with the fence of I2.
        fence(Ordering::SeqCst);
        // P3: who is idle?
        Ok(self.wake_one(|facts| submit(&self.layout, facts, cpu, affinity).wake))
    }

    /// Looks for the next item for the worker of `cpu`, takes it, and wakes the next CPU while
    /// more wait. Whether somebody was woken comes along.
    pub(crate) fn take(&self, cpu: CpuId, turn: usize) -> Option<(T, Found, bool)> {
        // A queue may be emptied between the look and the lock: then look again. This ends,
        // because each round some other worker has taken an item.
        while let Some(found) = next_queue(&self.layout, self, cpu, turn) {
            let item = {
                let mut home = lock(self.home(found.queue));
                let item = home.items.pop_front();
                if home.items.is_empty() {
                    self.waiting[found.queue.affinity.index()].remove(found.queue.leader);
                }
                item
            };
            if let Some(item) = item {
                let woken = self.wake_one(|facts| wake_next(&self.layout, facts, found.queue));
                return Some((item, found, woken));
            }
        }
        None
    }

    /// Announces that the worker of `cpu` is idle, and looks once more.
    pub(crate) fn announce(&self, cpu: CpuId, stopping: impl Fn() -> bool) -> Announced {
        // I1: announce.
        self.idle.insert(cpu);
        // I2: pairs with the fence of P2 (and of `wake_all`).
        fence(Ordering::SeqCst);
        // I3: look again.
        if next_queue(&self.layout, self, cpu, 0).is_some() || stopping() {
            // Whoever was faster and removed the bit leaves a token: one sleep will end at once,
            // which is harmless.
            self.idle.remove(cpu);
            return Announced::LookAgain;
        }
        Announced::Sleep
    }

    /// I4: sleeps until woken. The waker has removed the bit of `cpu` from the idle set.
    pub(crate) fn sleep(&self, cpu: CpuId) {
        self.sleeper(cpu).sleep();
    }

    /// Wakes every idle worker: at shutdown, after the flag that they look at is set.
    pub(crate) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for cpu in self.idle.snapshot().iter() {
            self.claim(cpu);
        }
    }

    /// Refuses items from now on and hands out those that are left.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut left = Vec::new();
        for home in self.homes.iter().flatten() {
            let mut home = lock(home);
            home.closed = true;
            left.extend(home.items.drain(..));
        }
        left
    }

    /// How many workers are idle.
    pub(crate) fn idle_count(&self) -> usize {
        self.idle.snapshot().len()
    }

    /// P4: wakes the CPU that `choose` names. Where another waker was faster to it, chooses
    /// again: each failure means that somebody else was woken, so this ends.
    fn wake_one(&self, choose: impl Fn(&Self) -> Option<CpuId>) -> bool {
        while let Some(cpu) = choose(self) {
            if self.claim(cpu) {
                return true;
            }
        }
        false
    }

    fn claim(&self, cpu: CpuId) -> bool {
        let claimed = self.idle.remove(cpu);
        if claimed {
            self.sleeper(cpu).wake();
        }
        claimed
    }

    fn home(&self, queue: QueueId) -> &Mutex<Home<T>> {
        let pods = self.layout.pods(queue.affinity.scope);
        let pod = pods.pod_of(queue.leader).expect("SCHED-1: a leader is in a pod of its scope");
        &self.homes[queue.affinity.index()][pod]
    }

    fn sleeper(&self, cpu: CpuId) -> &Sleeper {
        self.sleepers[cpu.index()].as_ref().expect("only CPUs with workers sleep and are woken")
    }
}

impl<T> Facts for Queues<T> {
    fn idle(&self) -> CpuSet {
        self.idle.snapshot()
    }

    fn waiting(&self, affinity: Affinity) -> CpuSet {
        self.waiting[affinity.index()].snapshot()
    }
}
