//! What the runtime knows of one workqueue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use homing_sched::{
    Attributes, Auto, Layout, MIN_ACTIVE, PoolId, PoolSet, PullCost, Reach, Taken, Window,
};
use homing_topology::{CpuId, CpuSet, Scope};

use crate::dispatch::tape::Tape;
use crate::item::Tag;
use crate::measure::books::{ByColour, Counters, Spread, WorkqueueBooks};
use crate::monitor::watched::IsWatched;
use crate::sync::{Mutex, lock};
use crate::threads::rescuer::Rescuer;
use crate::threads::slot::ThreadId;
use crate::workqueues::flush::{Flushes, InFlight};
use crate::workqueues::gate::{Gate, Kind};

/// What a workqueue is, which never changes.
// These are the kernel's flags, each a field of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub(crate) per_cpu: bool,
    pub(crate) ordered: bool,
    pub(crate) freezable: bool,
    pub(crate) mem_reclaim: bool,
    pub(crate) cpu_intensive: bool,
    pub(crate) blocking: bool,
}

impl Kinds {
    /// Whether its items leave their CPU to others while they run.
    pub(crate) fn lends(self) -> bool {
        self.blocking || self.per_cpu && self.cpu_intensive
    }
}

/// The attributes, as they were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// If the scope follows the default, `affinity.scope` is the default scope.
    pub(crate) attributes: Attributes,
    pub(crate) scope_is_default: bool,
    pub(crate) cpumask: Option<CpuSet>,
    /// `None`: no limit.
    pub(crate) max_active: Option<u32>,
}

/// The pool that new items go to, and what else an issuer must know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode(u32);

impl Mode {
    /// Items go through the gate.
    pub(crate) const GATED: u32 = 1 << 8;
    /// Only items of this workqueue may queue more.
    pub(crate) const DRAINING: u32 = 1 << 9;
    /// Nothing may be queued.
    pub(crate) const DESTROYED: u32 = 1 << 10;
    /// Items may not run wherever somebody waits for them: the pool is strict or has a mask, or was
    /// so while items that may still wait were queued. Threads that queue do not look at this.
    pub(crate) const BOUND: u32 = 1 << 11;
    /// The runtime ends: only its own threads may queue more.
    pub(crate) const ENDING: u32 = 1 << 12;
    const POOL: u32 = 0xff;

    pub(crate) fn pool(self) -> PoolId {
        PoolId((self.0 & Self::POOL) as u8)
    }

    fn bound(chosen: &Chosen) -> u32 {
        let bound = chosen.attributes.affinity.strict || chosen.cpumask.is_some();
        if bound { Self::BOUND } else { 0 }
    }

    /// Whether an item has only to be put into its home queue.
    pub(crate) fn is_plain(self) -> bool {
        self.0 & !(Self::POOL | Self::BOUND) == 0
    }

    pub(crate) fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct WorkqueueState {
    pub(crate) number: u32,
    pub(crate) name: Box<str>,
    pub(crate) kinds: Kinds,
    /// [`Mode`]
    mode: AtomicU32,
    /// What the pool was made from. Changes are made to this, one at a time. Locked after the
    /// registry.
    chosen: Mutex<Chosen>,
    pub(crate) flushes: Flushes,
    /// Made when there is first something to hold back.
    gate: OnceLock<Gate>,
    pub(crate) rescuer: OnceLock<Rescuer>,
    /// How many futures have not ended. Counted only if there is a rescuer, which must still be
    /// there when they are woken.
    pub(crate) futures: AtomicUsize,
    /// How many threads drain the workqueue.
    drainers: Mutex<u32>,
    pub(crate) queued: Spread,
    cancelled: AtomicU64,
    /// How many items ended without a worker.
    unrun: ByColour,
    pub(crate) woken: AtomicU64,
    pub(crate) repatriated: AtomicU64,
    pub(crate) blocked: AtomicU64,
    pub(crate) cpu_intensive: AtomicU64,
    pub(crate) mayday: AtomicU64,
    pub(crate) rescued: AtomicU64,
    /// Chooses the scope and the pull cost if the user leaves that to the runtime. Locked before
    /// `chosen`.
    auto: Mutex<Option<Chooser>>,
    books: Mutex<AllBooks>,
    /// No handle is left: once nothing is in flight, the workqueue can be forgotten.
    pub(crate) let_go: AtomicBool,
    pub(crate) flush_is_watched: IsWatched,
    pub(crate) auto_is_watched: IsWatched,
    pool_users: Arc<PoolUsers>,
}

impl Drop for WorkqueueState {
    fn drop(&mut self) {
        self.pool_users.leave(self.mode().pool());
    }
}

/// How many workqueues use each pool.
#[derive(Debug)]
pub(crate) struct PoolUsers(Box<[AtomicUsize]>);

impl PoolUsers {
    pub(crate) fn new() -> Self {
        Self((0..PoolSet::WORDS * 64).map(|_| AtomicUsize::new(0)).collect())
    }

    fn join(&self, pool: PoolId) {
        self.0[usize::from(pool.0)].fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self, pool: PoolId) {
        self.0[usize::from(pool.0)].fetch_sub(1, Ordering::Relaxed);
    }

    /// The pools that any workqueue uses.
    pub(crate) fn used(&self) -> PoolSet {
        let users = self.0.iter().zip(0..=u8::MAX);
        let used = users.filter(|(users, _)| users.load(Ordering::Relaxed) > 0);
        let mut set = PoolSet::default();
        used.for_each(|(_, pool)| set.insert(PoolId(pool)));
        set
    }
}

/// The parts of the counters that threads write.
#[derive(Debug, Default)]
struct AllBooks {
    of: BTreeMap<ThreadId, Arc<WorkqueueBooks>>,
    /// The sum of the counters of threads that have ended.
    closed: Counters,
    closed_ended: InFlight,
}

/// [`Auto`], and where its present window began, if one has begun.
#[derive(Debug)]
struct Chooser {
    auto: Auto,
    window: Option<Began>,
}

/// When a window began, and what had been counted by then.
#[derive(Debug)]
struct Began {
    at_ns: u64,
    counters: Counters,
    busy_ns: u64,
}

impl WorkqueueState {
    pub(crate) fn new(
        number: u32,
        name: &str,
        kinds: Kinds,
        chosen: Chosen,
        pool: PoolId,
        cpus: usize,
        pool_users: Arc<PoolUsers>,
    ) -> Self {
        pool_users.join(pool);
        Self {
            number,
            name: name.into(),
            kinds,
            mode: AtomicU32::new(u32::from(pool.0) | Mode::bound(&chosen)),
            chosen: Mutex::new(chosen),
            flushes: Flushes::new(number),
            gate: OnceLock::new(),
            rescuer: OnceLock::new(),
            futures: AtomicUsize::new(0),
            drainers: Mutex::new(0),
            queued: Spread::new(cpus),
            cancelled: AtomicU64::new(0),
            unrun: ByColour::default(),
            woken: AtomicU64::new(0),
            repatriated: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            cpu_intensive: AtomicU64::new(0),
            mayday: AtomicU64::new(0),
            rescued: AtomicU64::new(0),
            auto: Mutex::new(None),
            books: Mutex::default(),
            let_go: AtomicBool::new(false),
            flush_is_watched: IsWatched::default(),
            auto_is_watched: IsWatched::default(),
            pool_users,
        }
    }

    /// `SeqCst`: to be read after the item has been counted as queued ([`Spread::add`]).
    pub(crate) fn mode(&self) -> Mode {
        Mode(self.mode.load(Ordering::SeqCst))
    }

    pub(crate) fn set_mode(&self, flag: u32, on: bool) {
        if on {
            self.mode.fetch_or(flag, Ordering::SeqCst);
        } else {
            self.mode.fetch_and(!flag, Ordering::SeqCst);
        }
    }

    /// The tag of new items.
    pub(crate) fn tag(&self) -> Tag {
        self.flushes.tag()
    }

    pub(crate) fn attributes(&self) -> Attributes {
        lock(&self.chosen).attributes
    }

    pub(crate) fn chosen(&self) -> Chosen {
        lock(&self.chosen).clone()
    }

    /// Changes the attributes, and with them the pool of items that are queued from now on. If
    /// there is no pool for them, returns `None`, and nothing changes.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut Chosen),
        pool_with: impl FnOnce(&Chosen) -> Option<PoolId>,
    ) -> Option<()> {
        let mut chosen = lock(&self.chosen);
        let mut changed = chosen.clone();
        change(&mut changed);
        let pool = pool_with(&changed)?;
        *chosen = changed;
        let bound = Mode::bound(&chosen);
        let with_pool = |mode| Some(mode & !Mode::POOL | u32::from(pool.0) | bound);
        self.pool_users.join(pool);
        // This never fails.
        let before = self.mode.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with_pool);
        if let Ok(before) = before {
            self.pool_users.leave(Mode(before).pool());
        }
        Some(())
    }

    /// The gate, if there is one.
    pub(crate) fn gate(&self) -> Option<&Gate> {
        self.gate.get()
    }

    pub(crate) fn min_active(&self) -> u32 {
        let min = self.gate().map_or(MIN_ACTIVE, Gate::min_active);
        min.min(lock(&self.chosen).max_active.unwrap_or(u32::MAX))
    }

    /// The gate, made now if there is none. Items that are queued already have no slot there, and
    /// count towards no limit.
    pub(crate) fn gate_or_make(&self, make: impl FnOnce() -> Gate) -> &Gate {
        let gate = self.gate.get_or_init(make);
        self.set_mode(Mode::GATED, true);
        gate
    }

    /// Refuses items that are not queued by the workqueue's own, or no longer does: calls nest.
    pub(crate) fn set_draining(&self, draining: bool) {
        let mut drainers = lock(&self.drainers);
        *drainers = if draining { *drainers + 1 } else { *drainers - 1 };
        self.set_mode(Mode::DRAINING, *drainers > 0);
    }

    /// Counts an item that has ended without a worker. `cancelled`: whether it counts as cancelled;
    /// it does not if somebody has run it before.
    pub(crate) fn count_unrun(&self, tag: Tag, cancelled: bool) {
        self.cancelled.fetch_add(cancelled.into(), Ordering::Release);
        self.unrun.add_shared(tag);
        self.settle(1 << tag.colour());
    }

    pub(crate) fn count_woken(&self, woken: bool) {
        if woken {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Items of these colours have ended, and have been counted: ends the flushes that waited for
    /// them.
    pub(crate) fn settle(&self, colours: u32) {
        if self.flushes.awaits(colours) {
            self.flushes.check(|| self.in_flight());
        }
    }

    /// How many items of each colour have been queued and have not ended.
    pub(crate) fn in_flight(&self) -> InFlight {
        let mut ended = [0; Tag::COLOURS];
        {
            let books = lock(&self.books);
            ended.clone_from(&books.closed_ended);
            books.of.values().for_each(|books| books.add_ended_to(&mut ended));
        }
        self.unrun.add_to(&mut ended);
        // Read last: whatever had ended before was queued before.
        let mut in_flight = self.queued.sums();
        in_flight.iter_mut().zip(&ended).for_each(|(queued, ended)| *queued -= ended);
        in_flight
    }

    /// About how many items nobody has begun, and no limit holds back.
    pub(crate) fn waiting(&self) -> u64 {
        let in_flight: u64 = self.in_flight().iter().sum();
        let inactive = self.gate().map_or(0, Gate::inactive);
        in_flight.saturating_sub(self.counters().running() + inactive)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight().iter().all(|count| *count == 0)
    }

    /// Whether the workqueue has no item and nobody can bring one, once no handle is left.
    pub(crate) fn is_over(&self) -> bool {
        // Its items may make futures, and its futures make items. So nothing is left only if there
        // is no item both before and after the look at the futures.
        self.is_empty() && self.futures.load(Ordering::SeqCst) == 0 && self.is_empty()
    }

    /// The part of the counters that a thread writes. `opened` is called if the thread has written
    /// none so far.
    pub(crate) fn books_of(&self, thread: ThreadId, opened: impl FnOnce()) -> Arc<WorkqueueBooks> {
        let mut books = lock(&self.books);
        Arc::clone(books.of.entry(thread).or_insert_with(|| {
            opened();
            Arc::new(WorkqueueBooks::of(&self.name))
        }))
    }

    /// Adds up what a thread has written that writes no more, because threads come and go without
    /// end.
    pub(crate) fn close_books_of(&self, thread: ThreadId) {
        let mut books = lock(&self.books);
        let AllBooks { of, closed, closed_ended } = &mut *books;
        if let Some(books) = of.remove(&thread) {
            books.add_to(closed);
            books.add_ended_to(closed_ended);
        }
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn open_books(&self) -> usize {
        lock(&self.books).of.len()
    }

    /// Leaves the choice of scope and pull cost to measurement, or no longer does.
    pub(crate) fn set_auto(&self, auto: Option<Auto>) {
        let chooser = auto.map(|auto| Chooser { auto, window: None });
        *lock(&self.auto) = chooser;
    }

    /// Ends the choice by measurement if `change` succeeds.
    pub(crate) fn end_auto<T, E>(&self, change: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let chooser = lock(&self.auto).take();
        change().inspect_err(|_| {
            let mut auto = lock(&self.auto);
            *auto = auto.take().or(chooser);
        })
    }

    pub(crate) fn is_auto(&self) -> bool {
        lock(&self.auto).is_some()
    }

    /// If scope and pull cost are chosen by measurement and a window is over, applies what to use
    /// next. `busy` returns how many CPUs there are within a mask, and for how long they have run
    /// items. Returns whether they are chosen by measurement.
    pub(crate) fn choose(
        &self,
        now_ns: u64,
        busy: impl FnOnce(Option<&CpuSet>) -> (u64, u64),
        tape: &Tape,
        apply: impl FnOnce(Scope, PullCost),
    ) -> bool {
        let mut chooser = lock(&self.auto);
        let Some(chooser) = chooser.as_mut() else { return false };
        let elapsed_ns = chooser.window.as_ref().map(|began| now_ns.saturating_sub(began.at_ns));
        if elapsed_ns.is_some_and(|elapsed_ns| elapsed_ns < chooser.auto.window_ns()) {
            return true;
        }
        let now = self.counters();
        let items = |began: &Began| now.completed - began.counters.completed;
        if chooser.window.as_ref().is_some_and(|began| items(began) < chooser.auto.window_items()) {
            return true;
        }
        let (cpus, busy_ns) = busy(self.chosen().cpumask.as_ref());
        let ends = Began { at_ns: now_ns, counters: now, busy_ns };
        let Some(began) = chooser.window.replace(ends) else { return true };
        let before = began.counters;
        let elapsed_ns = now_ns.saturating_sub(began.at_ns);
        let ran_ns = busy_ns.saturating_sub(began.busy_ns);
        let window = Window {
            elapsed_ns,
            taken: Reach::ALL.map(|reach| {
                let since =
                    |now: &[u64], before: &[u64]| now[reach as usize] - before[reach as usize];
                Taken {
                    items: since(&now.taken, &before.taken),
                    ran_ns: since(&now.cpu_times_ns, &before.cpu_times_ns),
                }
            }),
            waited_ns: now.queue_age.mean_since_ns(&before.queue_age),
            idle_ns: (cpus * elapsed_ns).saturating_sub(ran_ns),
        };
        match tape.running() {
            Some(tape) => tape.choose(&mut chooser.auto, &window),
            None => chooser.auto.note(&window),
        }
        // Under the lock, so that what the user fixes is not changed afterwards.
        apply(chooser.auto.scope(), chooser.auto.pull_cost());
        true
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = {
            let books = lock(&self.books);
            let mut sum = books.closed;
            books.of.values().for_each(|books| books.add_to(&mut sum));
            sum
        };
        sum.cancelled += self.cancelled.load(Ordering::Acquire);
        sum.woken += self.woken.load(Ordering::Relaxed);
        sum.repatriated += self.repatriated.load(Ordering::Relaxed);
        sum.blocked += self.blocked.load(Ordering::Relaxed);
        sum.cpu_intensive += self.cpu_intensive.load(Ordering::Relaxed);
        sum.mayday += self.mayday.load(Ordering::Relaxed);
        sum.rescued += self.rescued.load(Ordering::Relaxed);
        // Read last: an item is counted as queued before it is counted as anything else.
        sum.queued = self.queued.sum();
        sum
    }

    /// The slot of the gate in which an item for `cpu` counts, whose home queue is that of `home`.
    pub(crate) fn gate_slot(&self, gate: &Gate, layout: &Layout, home: CpuId, cpu: CpuId) -> usize {
        match gate.kind() {
            Kind::Ordered => 0,
            Kind::PerCpu => cpu.index().min(gate.slot_count() - 1),
            Kind::Nodes => {
                let nodes = layout.pods(Scope::Numa);
                let pod = layout.pod(self.attributes().affinity.scope, home);
                let node = nodes.pod_of(home);
                let within = node.filter(|node| pod.is_subset(nodes.cpus(*node)));
                within.unwrap_or(gate.slot_count() - 1)
            }
        }
    }
}
