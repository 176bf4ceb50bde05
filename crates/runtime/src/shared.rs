//! What the threads of a runtime, its workqueues and its handles share.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use homing_sched::{Affinity, Facts};
use homing_topology::{CpuId, CpuSet, NodeId};

use crate::dispatch::issuers::Issuers;
use crate::dispatch::{Dispatch, Fill};
use crate::extensions::Extensions;
use crate::handles::futures::Futures;
use crate::item::quietly;
use crate::measure::books::CpuCounters;
use crate::measure::clock::now_ns;
use crate::measure::spare::SpareCpus;
use crate::monitor::bed::MonitorBed;
use crate::monitor::stall::OnStall;
use crate::monitor::timers::Timers;
use crate::monitor::watched::Watched;
use crate::sync::{Condvar, Mutex, lock};
use crate::threads::affinity::{Mask, NOWHERE, pin_to, read_mask};
use crate::threads::crew::{Crew, Member};
use crate::threads::local;
use crate::threads::rescuer::Rescuer;
use crate::workqueues::gate::Gate;
use crate::workqueues::registry::Registry;

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
    /// Items that are queued are to run, so nothing may be frozen any more.
    pub(crate) ending: AtomicBool,
    pub(crate) monitor: MonitorBed,
    /// How many threads, of the monitor and the rescuers, may have items that are in no queue and
    /// no hand at present.
    holders: AtomicU32,
    pub(crate) futures: Futures,
    pub(crate) timers: Timers,
    pub(crate) spare: SpareCpus,
    /// The threads that issue and are no workers.
    pub(crate) issuers: Issuers,
    /// For threads that come back to the runtime later.
    pub(crate) me: Weak<Self>,
    /// Workqueues that somebody flushes, and those whose scope is left to the monitor.
    pub(crate) flushing: Watched,
    pub(crate) auto: Watched,
    /// Stalls that the watchdog has found.
    pub(crate) stalls: AtomicU64,
    /// How often the kernel has not allowed a thread to be pinned.
    pub(crate) pins_refused: AtomicU64,
    /// Items that did not run.
    pub(crate) cancelled: AtomicU64,
    /// Rotates among the CPUs of a node.
    node_turn: AtomicU32,
    /// All freezable workqueues are frozen.
    pub(crate) frozen: AtomicBool,
    /// The queues are closed or being closed.
    abandoned: AtomicBool,
    /// The affinity mask of the runtime's threads that are not pinned.
    pub(crate) mask: Mutex<Option<Mask>>,
    closed: Mutex<bool>,
    closed_changed: Condvar,
    /// The extensions of a runtime that was dropped while its items run. Locked within `closed`.
    extensions: Mutex<Option<Extensions>>,
}

/// What was chosen when the runtime was built, or can be changed since.
pub(crate) struct Settings {
    /// The stack of each thread that runs items, in bytes.
    pub(crate) stack_size: usize,
    /// Whether workers stay on their CPU.
    pub(crate) pinned: bool,
    /// The CPUs that the user named; `None`: all that are allowed.
    pub(crate) wanted: Option<CpuSet>,
    /// Changes of the CPU mask are not followed, because the machine is not the one we run on.
    pub(crate) mask_is_fixed: bool,
    /// Items that use the CPU for longer are CPU-intensive; 0: none are.
    pub(crate) cpu_intensive_ns: AtomicU64,
    /// Queues that stand still for longer are reported; 0: none are.
    pub(crate) watchdog_ns: AtomicU64,
    pub(crate) on_stall: Option<OnStall>,
    /// Workers drive async-io's reactor when they would sleep.
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

/// How much memory must be left to the process for a thread to be created, in bytes. The standard
/// library ends the process if a thread gets no memory for its signal stack, and the creation may
/// have succeeded before that, because the C library uses the stacks of ended threads again.
#[cfg(not(any(loom, shuttle, miri)))]
const ROOM: usize = 1 << 20;

impl Hooks {
    pub(crate) fn create_thread<T>(&self, create: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.refuse_threads.as_ref().is_some_and(|refuse| refuse.load(Ordering::Relaxed)) {
            return Err(io::Error::from_raw_os_error(11)); // EAGAIN
        }
        #[cfg(not(any(loom, shuttle, miri)))]
        memmap2::MmapMut::map_anon(ROOM)?;
        create()
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
        let layout = dispatch.layout();
        let (cpus, default) = (layout.machine().online().len(), Affinity::default_on(layout));
        let spare = SpareCpus::new(dispatch.active());
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            issuers: Issuers::new(),
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            dispatch,
            crew,
            workqueues: Registry::new(cpus, default.scope),
            settings,
            hooks,
            stopping: AtomicBool::new(false),
            stopping_now: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            monitor: MonitorBed::new(),
            holders: AtomicU32::new(0),
            futures: Futures::new(cpus),
            timers: Timers::default(),
            spare,
            flushing: Watched::new(|state| &state.flush_is_watched),
            auto: Watched::new(|state| &state.auto_is_watched),
            stalls: AtomicU64::new(0),
            pins_refused: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            node_turn: AtomicU32::new(0),
            frozen: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            mask: Mutex::new(read_mask()),
            closed: Mutex::new(false),
            closed_changed: Condvar::new(),
            extensions: Mutex::new(None),
        })
    }

    /// What the workers have done, for each CPU that has or had one.
    pub(crate) fn cpu_counters(&self) -> impl Iterator<Item = (CpuId, CpuCounters)> + '_ {
        let active = self.dispatch.active();
        let read = self.dispatch.slots().map(|(cpu, slot)| (cpu, slot.books.read()));
        read.filter(move |(cpu, counters)| active.contains(*cpu) || counters.items > 0)
    }

    /// Calls the monitor, because there is something for it to see: for example, a CPU waits that
    /// has no thread.
    pub(crate) fn call_monitor(&self) {
        self.monitor.call(|| self.timers.next_ns());
    }

    /// To be called by a thread that begins to work for a CPU and may have looked asleep until
    /// then.
    pub(crate) fn somebody_works(&self) {
        if self.monitor.next_look.begin(now_ns) {
            self.monitor.set_alarm(|| self.timers.next_ns());
        }
    }

    /// To be called by a worker that is about to sleep until it is woken.
    pub(crate) fn somebody_sleeps(&self, now_ns: u64) {
        let next_look = &self.monitor.next_look;
        if next_look.may_put_off(now_ns)
            && self.dispatch.all_idle()
            && next_look.put_off(now_ns, || self.dispatch.is_at_rest())
        {
            self.monitor.set_alarm(|| self.timers.next_ns());
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping_now(&self) -> bool {
        self.stopping_now.load(Ordering::Acquire)
    }

    /// Whether a runtime without a thread at work may close its queues.
    pub(crate) fn may_close(&self) -> bool {
        // Read first: if a thread has put its items back, then this one sees work in the queues.
        self.holders.load(Ordering::Acquire) == 0
            && (self.is_stopping_now() || (self.is_stopping() && !self.dispatch.has_work()))
    }

    /// Lets the monitor and rescuers move items. The queues are not closed meanwhile, so that items
    /// taken from one place are neither refused in the other nor left there for good.
    pub(crate) fn holding_items(&self, move_items: impl FnOnce()) {
        // A thread that sees, by the lock of the roll or by a hand, that items were taken, sees
        // this, too.
        self.holders.fetch_add(1, Ordering::AcqRel);
        move_items();
        self.holders.fetch_sub(1, Ordering::AcqRel);
        // A thread that would have closed the queues meanwhile did not.
        self.crew.close_if_done(self);
    }

    /// A CPU of `node` to queue for: the issuing CPU, else an idle one, else the next in turn.
    pub(crate) fn cpu_of_node(&self, node: NodeId) -> Option<CpuId> {
        let machine = self.dispatch.layout().machine();
        let of_node = machine.cpus().iter().filter(|cpu| cpu.numa_nodes.contains(&node));
        let of_node: CpuSet = of_node.map(|cpu| cpu.cpu).collect();
        let active = of_node.and(&self.dispatch.active());
        let near = local::issuing_cpu(self);
        if active.contains(near) {
            return Some(near);
        }
        let turn = self.node_turn.fetch_add(1, Ordering::Relaxed) as usize;
        let in_turn = |among: &CpuSet| among.iter().nth(turn % among.len().max(1));
        let idle = in_turn(&active.and(&self.dispatch.idle()));
        idle.or_else(|| in_turn(&active)).or_else(|| in_turn(&of_node))
    }

    /// Puts what a thread has in its hand back into its queue, or cancels it if the queues are
    /// closed. `cpu` is the one that the thread serves, or served, if that is known.
    pub(crate) fn rescue(&self, member: &Member, cpu: Option<CpuId>) {
        let Some(batch) = member.hand.take() else { return };
        let count = u64::from(batch.len());
        let workqueue = self.workqueues.find(member.workqueue.load(Ordering::Relaxed));
        if let Err(closed) = self.dispatch.put_back(self, batch) {
            closed.into_iter().for_each(|item| self.cancel(item));
            return;
        }
        if let Some(workqueue) = workqueue {
            workqueue.repatriated.fetch_add(count, Ordering::Relaxed);
        }
        if let Some(cpu) = cpu {
            self.dispatch.slot(cpu).books.repatriated(count);
        }
    }

    /// Puts the calling thread, which is `member`, on `cpu`. If placement is left to the kernel,
    /// the thread keeps the mask of the thread that created it, with any changes since.
    pub(crate) fn place(&self, member: &Member, cpu: CpuId) {
        let number = cpu.index() as u32;
        if !self.settings.pinned || member.pinned_to.swap(number, Ordering::Relaxed) == number {
            return;
        }
        // Refused if the CPU has just gone offline or out of the cpuset: then the kernel places us.
        if let Err(error) = pin_to(&CpuSet::of(cpu)) {
            member.pinned_to.store(NOWHERE, Ordering::Relaxed);
            // A sandbox may allow none.
            if error.kind() == io::ErrorKind::PermissionDenied {
                self.pins_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Refuses items from now on, and cancels those that are left. Futures that wait for something
    /// outside are woken, are refused, and so end.
    pub(crate) fn cancel_all(&self) {
        // Whatever panics in these: somebody waits for the end.
        quietly(|| self.abandon());
        quietly(|| self.futures.wake_all());
    }

    fn abandon(&self) {
        // A thread that puts an item behind a gate that was emptied sees this.
        self.abandoned.store(true, Ordering::SeqCst);
        self.timers.close();
        for workqueue in self.workqueues.with_items() {
            let left = workqueue.gate().map(Gate::close).unwrap_or_default();
            for item in left {
                self.cancel(item);
            }
        }
        self.dispatch.pools.close();
        for queue in self.dispatch.pools.queues() {
            let mut left = queue.close();
            while let Some(batch) = left.pop_front() {
                batch.into_iter().for_each(|item| self.cancel(item));
            }
        }
        // The items that threads have taken and not begun, as these threads may be busy with an
        // item for long.
        self.crew.members().iter().for_each(|member| self.rescue(member, None));
    }

    /// Ends the runtime, when no thread is at work any more.
    pub(crate) fn close(&self) {
        self.cancel_all();
        let rescued = self.workqueues.with_items();
        rescued.iter().filter_map(|state| state.rescuer.get()).for_each(Rescuer::stop);
        self.monitor.close(|| self.timers.next_ns());
        *lock(&self.closed) = true;
        self.closed_changed.notify_all();
        let extensions = lock(&self.extensions).take();
        quietly(|| drop(extensions));
    }

    /// Drops the extensions now, or when the last items have ended.
    pub(crate) fn drop_with_the_last(&self, extensions: Extensions) {
        let closed = lock(&self.closed);
        if *closed {
            drop(closed);
            return drop(extensions);
        }
        *lock(&self.extensions) = Some(extensions);
    }

    /// Whether the queues no longer take items.
    pub(crate) fn is_closed(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Waits until [`Shared::close`] has run, but not beyond the deadline. Returns whether it has
    /// run.
    pub(crate) fn wait_closed(&self, deadline: Option<Instant>) -> bool {
        let mut closed = lock(&self.closed);
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
}

impl Fill for Shared {
    fn fill(&self, cpu: CpuId) -> bool {
        let filled = self.crew.fill(self, cpu);
        if !filled {
            self.call_monitor();
        }
        filled
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}
