//! What the threads of a runtime, its workqueues and its handles share.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use homing_topology::{CpuId, CpuSet, NodeId};

use crate::crew::{Crew, Member};
use crate::dispatch::{Dispatch, Fill};
use crate::futures::Futures;
use crate::item::{Batch, Item};
use crate::local;
use crate::registry::{Registry, WorkqueueState};
use crate::sleeper::Sleeper;
use crate::sync::{Condvar, Mutex};
use crate::worker::pin_to;

/// See the module.
pub(crate) struct Shared {
    /// Names the runtime in thread-local variables; never 0.
    pub(crate) id: u32,
    pub(crate) dispatch: Dispatch,
    pub(crate) crew: Crew,
    pub(crate) workqueues: Registry,
    pub(crate) settings: Settings,
    pub(crate) hooks: Hooks,
    /// Workers end when there is nothing left to do.
    pub(crate) stopping: AtomicBool,
    /// Workers end after the item they run.
    pub(crate) stopping_now: AtomicBool,
    pub(crate) monitor: MonitorBed,
    pub(crate) futures: Futures,
    /// Items that did not run.
    pub(crate) cancelled: AtomicU64,
    /// Rotates among the CPUs of a node.
    node_turn: AtomicU32,
    closed: Mutex<bool>,
    closed_changed: Condvar,
}

/// What was chosen when the runtime was built, or can be changed since.
pub(crate) struct Settings {
    /// Whether workers stay on their CPU.
    pub(crate) pinned: bool,
    /// The CPUs that the user named; `None`: all that are allowed.
    pub(crate) wanted: Option<CpuSet>,
    /// Do not look for changes of the CPU mask: the machine is not the one we run on.
    pub(crate) mask_is_fixed: bool,
    /// Items that use the CPU for longer are CPU-intensive; 0: none.
    pub(crate) cpu_intensive_ns: AtomicU64,
    /// Workers drive async-io's reactor while they would sleep.
    #[cfg(feature = "async-io")]
    pub(crate) drives_io: bool,
    #[cfg(feature = "tokio")]
    pub(crate) tokio: Option<tokio::runtime::Handle>,
}

/// Where tests make the system fail.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) refuse_threads: Option<Arc<AtomicBool>>,
}

impl Hooks {
    pub(crate) fn create_thread<T>(&self, create: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.refuse_threads.as_ref().is_some_and(|refuse| refuse.load(Ordering::Relaxed)) {
            return Err(io::Error::from_raw_os_error(11)); // EAGAIN
        }
        create()
    }
}

/// Where the monitor waits for its next look.
pub(crate) struct MonitorBed {
    pub(crate) bed: Sleeper,
    /// It has found nothing to watch and sleeps until somebody works again.
    pub(crate) resting: AtomicBool,
    /// It is to end.
    pub(crate) closed: AtomicBool,
    /// It may have items that are in no queue and no hand at present.
    holds_items: AtomicBool,
}

impl MonitorBed {
    pub(crate) fn new() -> Self {
        Self {
            bed: Sleeper::new(),
            resting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            holds_items: AtomicBool::new(false),
        }
    }

    /// The monitor is about to rest, if it then finds nobody at work.
    pub(crate) fn rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
        // Pairs with the fence of `somebody_works`: either we see the worker, or it sees us.
        fence(Ordering::SeqCst);
    }

    /// A worker begins to work after a sleep.
    pub(crate) fn somebody_works(&self) {
        fence(Ordering::SeqCst);
        if self.resting.load(Ordering::Relaxed) && self.resting.swap(false, Ordering::Relaxed) {
            self.bed.wake();
        }
    }

    /// A CPU without a thread waits.
    pub(crate) fn call(&self) {
        self.bed.wake();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.bed.wake();
    }
}

static LAST_ID: AtomicU32 = AtomicU32::new(0);

impl Shared {
    pub(crate) fn new(
        dispatch: Dispatch,
        crew: Crew,
        settings: Settings,
        hooks: Hooks,
    ) -> Arc<Self> {
        let cpus = dispatch.layout().machine().online().len();
        Arc::new(Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            dispatch,
            crew,
            workqueues: Registry::new(cpus),
            settings,
            hooks,
            stopping: AtomicBool::new(false),
            stopping_now: AtomicBool::new(false),
            monitor: MonitorBed::new(),
            futures: Futures::new(cpus),
            cancelled: AtomicU64::new(0),
            node_turn: AtomicU32::new(0),
            closed: Mutex::new(false),
            closed_changed: Condvar::new(),
        })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping_now(&self) -> bool {
        self.stopping_now.load(Ordering::Acquire)
    }

    /// Whether a runtime without a thread at work may close its queues.
    pub(crate) fn may_close(&self) -> bool {
        // First: who has put its items back is seen to have work in its queues.
        !self.monitor.holds_items.load(Ordering::Acquire)
            && (self.is_stopping_now() || (self.is_stopping() && !self.dispatch.has_work()))
    }

    /// Lets the monitor, and nobody else, move items: meanwhile the queues are not closed, lest
    /// what it takes from one place be refused, or left for good, in the other.
    pub(crate) fn holding_items(&self, move_items: impl FnOnce()) {
        // Visible to whoever sees by the lock of the roll, or by a hand, what was taken.
        self.monitor.holds_items.store(true, Ordering::Release);
        move_items();
        self.monitor.holds_items.store(false, Ordering::Release);
        // Whoever would have closed them did not.
        self.crew.close_if_done(self);
    }

    /// Puts an item of `workqueue` into its home queue: that of `cpu`, or of the issuing CPU.
    pub(crate) fn push(&self, workqueue: &WorkqueueState, cpu: Option<CpuId>, item: Item) {
        let cpu = cpu.unwrap_or_else(|| local::issuing_cpu(self));
        workqueue.queued.add(cpu, 1);
        match self.dispatch.put(self, cpu, workqueue.pool(), item) {
            Ok(woken) => workqueue.count_woken(woken),
            Err(refused) => self.cancel(refused),
        }
    }

    /// The same for many items: they stand in the queue one behind the other.
    pub(crate) fn push_all(
        &self,
        workqueue: &WorkqueueState,
        cpu: Option<CpuId>,
        mut items: Batch,
    ) {
        let Some(items) = items.seal() else { return };
        let cpu = cpu.unwrap_or_else(|| local::issuing_cpu(self));
        workqueue.queued.add(cpu, items.len().into());
        match self.dispatch.put_all(self, cpu, workqueue.pool(), items) {
            Ok(woken) => workqueue.count_woken(woken),
            Err(refused) => refused.into_iter().for_each(|item| self.cancel(item)),
        }
    }

    /// A CPU of `node` to queue for: the issuing one, else an idle one, else the next in turn.
    pub(crate) fn cpu_of_node(&self, node: NodeId) -> Option<CpuId> {
        let machine = self.dispatch.layout().machine();
        let of_node = machine.cpus().iter().filter(|cpu| cpu.numa_nodes.contains(&node));
        let of_node: CpuSet = of_node.map(|cpu| cpu.cpu).collect();
        let active = of_node.and(&self.dispatch.active_cpus());
        let near = local::issuing_cpu(self);
        if active.contains(near) {
            return Some(near);
        }
        let turn = self.node_turn.fetch_add(1, Ordering::Relaxed) as usize;
        let in_turn = |among: &CpuSet| among.iter().nth(turn % among.len().max(1));
        let idle = in_turn(&active.and(&self.dispatch.idle_cpus()));
        idle.or_else(|| in_turn(&active)).or_else(|| in_turn(&of_node))
    }

    /// Takes what a thread has in its hand back to its queue.
    pub(crate) fn rescue(&self, member: &Member) {
        let Some(batch) = member.hand.take() else { return };
        let count = u64::from(batch.len());
        let workqueue = self.workqueues.find(member.workqueue.load(Ordering::Relaxed));
        self.dispatch.put_back(self, batch);
        if let Some(workqueue) = workqueue {
            workqueue.repatriated.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Puts the calling thread, which is `member`, on `cpu`. Where placement is the kernel's it
    /// keeps the mask of whoever created it, and what was changed in that since.
    pub(crate) fn place(&self, member: &Member, cpu: CpuId) {
        let number = cpu.index() as u32;
        if !self.settings.pinned || member.pinned_to.swap(number, Ordering::Relaxed) == number {
            return;
        }
        // Refused where the CPU has just gone offline or out of the cpuset: the kernel places us.
        if pin_to(&CpuSet::of(cpu)).is_err() {
            member.pinned_to.store(u32::MAX, Ordering::Relaxed);
        }
    }

    /// Refuses items from now on, and cancels those that are left.
    pub(crate) fn abandon(&self) {
        for queue in self.dispatch.pools.queues() {
            let mut left = queue.close();
            while let Some(batch) = left.pop_front() {
                batch.into_iter().for_each(|item| self.cancel(item));
            }
        }
    }

    /// No thread is at work any more: the end of the runtime.
    pub(crate) fn close(&self) {
        self.abandon();
        // Futures that wait for something outside: their items are refused, so they end.
        self.futures.wake_all();
        self.monitor.close();
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.closed_changed.notify_all();
    }

    /// Waits until [`Shared::close`] has run; at the latest until then. Whether it has.
    pub(crate) fn wait_closed(&self, deadline: Option<Instant>) -> bool {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        while !*closed {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            closed = match left {
                Some(Duration::ZERO) => return false,
                Some(left) => {
                    let waited = self.closed_changed.wait_timeout(closed, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.closed_changed.wait(closed).unwrap_or_else(PoisonError::into_inner),
            };
        }
        true
    }

    /// Ends an item that will not run.
    pub(crate) fn cancel(&self, item: Item) {
        let workqueue = self.workqueues.find(item.workqueue());
        if item.cancel() {
            self.cancelled.fetch_add(1, Ordering::Relaxed);
            if let Some(workqueue) = workqueue {
                workqueue.count_cancelled();
            }
        }
    }
}

impl Fill for Shared {
    fn fill(&self, cpu: CpuId) {
        if !self.crew.fill(self, cpu) {
            self.monitor.call();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}
