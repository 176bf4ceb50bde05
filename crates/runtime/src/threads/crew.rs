//! The threads: those that serve a CPU, those whose item blocks, and the spares.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use homing_sched::{Facts, Idle};
use homing_topology::{CpuId, CpuSet};

use crate::dispatch::Dispatch;
use crate::item::Hand;
use crate::measure::clock::now_ns;
use crate::measure::laps::Away;
use crate::shared::Shared;
use crate::sync::{Mutex, lock, thread};
use crate::threads::affinity::NOWHERE;
use crate::threads::help::Asked;
use crate::threads::sleeper::Sleeper;
use crate::threads::slot::ThreadId;
use crate::threads::worker;
use crate::workqueues::registry::Writer;

/// What other threads may know of a thread.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: ThreadId,
    pub(crate) writer: Writer,
    /// The items that it has taken and not begun.
    pub(crate) hand: Hand,
    /// Since when it has been running its present batch; 0 if it runs none.
    pub(crate) running_since_ns: AtomicU64,
    /// The workqueue whose item it runs.
    pub(crate) workqueue: AtomicU32,
    /// The [place](crate::item::Item::place) of the item that it runs, or has run last.
    pub(crate) item: AtomicUsize,
    /// A workqueue some of whose items have ended, which the threads that wait for them do not know
    /// yet; 0: none.
    pub(crate) unsettled: AtomicU32,
    pub(crate) away: Away,
    /// How long its present batch had had the CPU when it lost it.
    pub(crate) had_ns: AtomicU64,
    /// Whether it has lent its CPU, and most likely sleeps.
    pub(crate) lends: AtomicBool,
    /// The kernel's number for the thread; 0 if there is none.
    pub(crate) kernel_tid: AtomicU32,
    /// The number of the CPU that the thread was last pinned to, or a constant of
    /// [`affinity`](crate::threads::affinity).
    pub(crate) pinned_to: AtomicU32,
    /// Whether it was asked to help out while it waits for an item.
    pub(crate) asked: Asked,
    /// Where it waits as a spare.
    bed: Sleeper,
    /// What it is to do next, as a spare.
    orders: Mutex<Option<Orders>>,
}

/// What a spare is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orders {
    /// Its id has been put in this CPU's slot.
    Serve(CpuId),
    /// End.
    Leave,
}

/// All threads of a runtime.
#[derive(Debug)]
pub(crate) struct Crew {
    roll: Mutex<Roll>,
    name: String,
    /// How long a spare waits before it leaves. One spare always stays, and so do as many threads
    /// as there are CPUs, because it may be impossible to create them again.
    keep_alive: Duration,
    /// How many threads could not be created.
    pub(crate) refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Roll {
    members: BTreeMap<u32, (Arc<Member>, Option<thread::JoinHandle<()>>)>,
    /// Threads without a slot or an item. The last one to come in is the first out, because its
    /// caches are warm: among those pinned to the CPU already, if there are any.
    spares: Vec<Arc<Member>>,
    /// How many members were spares and are about to end.
    leaving: usize,
    /// Claimed CPUs for which there was no thread.
    unfilled: CpuSet,
    refusals: Option<Refusals>,
    last_id: u32,
    closed: bool,
}

/// When threads were first refused, and when last.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    since_ns: u64,
    last_ns: u64,
}

/// After so long without a refusal, the next one counts as the first again.
const REFUSALS_NS: u64 = 1_000_000_000;

/// Between two attempts to create a thread lies half of the time for which threads have been
/// refused, but no more than this: an attempt takes some 30 us.
const ATTEMPTS_NS: u64 = 50_000_000;

impl Refusals {
    fn next_attempt_ns(self) -> u64 {
        self.last_ns + (self.last_ns.saturating_sub(self.since_ns) / 2).min(ATTEMPTS_NS)
    }
}

impl Roll {
    fn is_refused(&mut self) {
        let last_ns = now_ns();
        let before = self.refusals.filter(|it| last_ns.saturating_sub(it.last_ns) < REFUSALS_NS);
        let since_ns = before.map_or(last_ns, |it| it.since_ns);
        self.refusals = Some(Refusals { since_ns, last_ns });
    }

    /// Whether a spare may leave: another spare stays, and as many threads as there are CPUs.
    fn has_too_many(&self, shared: &Shared) -> bool {
        let staying = self.members.len() - self.leaving;
        self.spares.len() > 1 && staying > shared.dispatch.active().len()
    }
}

impl Crew {
    pub(crate) fn new(name: String, keep_alive: Duration) -> Self {
        Self { roll: Mutex::default(), name, keep_alive, refused: AtomicU64::new(0) }
    }

    /// What threads are called, before `/`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A thread that never serves a CPU and that the crew does not wait for: a rescuer, or the
    /// monitor.
    pub(crate) fn outsider(&self) -> Member {
        let mut roll = lock(&self.roll);
        roll.last_id += 1;
        Member::new(ThreadId(roll.last_id))
    }

    /// Gives the vacant slot of `cpu` to a spare. If there is none, notes the CPU: the next thread
    /// that becomes a spare serves it, or the monitor creates one. Returns whether the CPU has a
    /// thread.
    pub(crate) fn fill(&self, shared: &Shared, cpu: CpuId) -> bool {
        let mut roll = lock(&self.roll);
        let number = cpu.index() as u32;
        let is_there = |spare: &Arc<Member>| spare.pinned_to.load(Ordering::Relaxed) == number;
        let place = roll.spares.iter().rposition(is_there).or(roll.spares.len().checked_sub(1));
        let Some(place) = place else {
            roll.unfilled.insert(cpu);
            return false;
        };
        let spare = roll.spares.remove(place);
        if !shared.dispatch.slot(cpu).assign(spare.id) {
            // Somebody serves it already.
            roll.spares.push(spare);
            return true;
        }
        drop(roll);
        spare.give(Orders::Serve(cpu));
        true
    }

    /// Whether it is too early to ask for a thread again, after some were refused.
    fn awaits_threads(&self) -> bool {
        let refusals = lock(&self.roll).refusals;
        refusals.is_some_and(|refusals| now_ns() < refusals.next_attempt_ns())
    }

    /// Whether the next item that blocks finds a spare, and no CPU waits for one.
    pub(crate) fn has_spare(&self) -> bool {
        let roll = lock(&self.roll);
        roll.unfilled.is_empty() && !roll.spares.is_empty()
    }

    /// Creates threads for the CPUs that were claimed when there was no spare.
    pub(crate) fn create_missing(&self, shared: &Arc<Shared>) {
        while !self.awaits_threads() {
            let cpu = {
                let mut roll = lock(&self.roll);
                let Some(cpu) = roll.unfilled.first() else { return };
                roll.unfilled.remove(cpu);
                cpu
            };
            if !shared.dispatch.slot(cpu).is_vacant() || self.fill(shared, cpu) {
                continue;
            }
            if self.create(shared, Some(cpu)).is_err() {
                // `fill` has noted the CPU again: for the next look, or the next thread without an
                // item.
                return;
            }
        }
    }

    /// Creates a spare if there is none, so that the next blocking item need not wait for it.
    pub(crate) fn create_spare_if_none(&self, shared: &Arc<Shared>) {
        if lock(&self.roll).spares.is_empty() && !self.awaits_threads() {
            // If this is refused, the next blocking item does wait.
            let _ = self.create(shared, None);
        }
    }

    /// Creates a thread, for a CPU whose slot is vacant or as a spare.
    pub(crate) fn create(&self, shared: &Arc<Shared>, cpu: Option<CpuId>) -> io::Result<()> {
        let member = {
            let mut roll = lock(&self.roll);
            // This thread answers the note. It is not removed later: once the thread works, its CPU
            // may be noted anew.
            if let Some(cpu) = cpu {
                roll.unfilled.remove(cpu);
            }
            if roll.closed {
                return Ok(());
            }
            roll.last_id += 1;
            let member = Arc::new(Member::new(ThreadId(roll.last_id)));
            roll.members.insert(member.id.0, (Arc::clone(&member), None));
            member
        };
        let id = member.id.0;
        let assigned = cpu.filter(|cpu| shared.dispatch.slot(*cpu).assign(member.id));
        let body = {
            let (shared, member) = (Arc::clone(shared), Arc::clone(&member));
            move || worker::main(&shared, &member, assigned)
        };
        let created = shared.hooks.create_thread(|| {
            let named = thread::Builder::new().name(format!("{}/{id}", self.name));
            named.stack_size(shared.settings.stack_size).spawn(body)
        });
        let mut roll = lock(&self.roll);
        match created {
            Ok(handle) => {
                roll.refusals = None;
                // It may have left already.
                if let Some((_, place)) = roll.members.get_mut(&id) {
                    *place = Some(handle);
                }
                Ok(())
            }
            Err(error) => {
                roll.members.remove(&id);
                roll.is_refused();
                drop(roll);
                self.refused.fetch_add(1, Ordering::Relaxed);
                if let Some(cpu) = assigned {
                    shared.dispatch.slot(cpu).vacate(member.id);
                    // Somebody may have become a spare meanwhile; if not, the CPU is noted.
                    self.fill(shared, cpu);
                }
                self.close_if_done(shared);
                Err(error)
            }
        }
    }

    /// Waits for orders, as a thread without a slot.
    pub(crate) fn wait_as_spare(&self, shared: &Shared, member: &Arc<Member>) -> Orders {
        // Pairs with the swap of `Hand::take`: if a thread took our items, then we, and whoever
        // finds us among the spares, see that it holds them.
        fence(Ordering::Acquire);
        {
            let mut roll = lock(&self.roll);
            while let Some(cpu) = roll.unfilled.first().filter(|_| !shared.is_stopping_now()) {
                roll.unfilled.remove(cpu);
                if shared.dispatch.slot(cpu).assign(member.id) {
                    return Orders::Serve(cpu);
                }
            }
            if roll.closed {
                return Orders::Leave;
            }
            roll.spares.push(Arc::clone(member));
        }
        self.close_if_done(shared);
        loop {
            // A spare that is to stay sets no timeout. One that comes later does, and leaves
            // instead.
            let may_leave = lock(&self.roll).has_too_many(shared);
            let ordered = member.bed.sleep(may_leave.then_some(self.keep_alive));
            if let Some(orders) = lock(&member.orders).take() {
                return orders;
            }
            let mut roll = lock(&self.roll);
            let place = roll.spares.iter().position(|spare| spare.id == member.id);
            // Not in the list: orders are on their way.
            if let (false, Some(place), true) = (ordered, place, roll.has_too_many(shared)) {
                roll.spares.remove(place);
                roll.leaving += 1;
                return Orders::Leave;
            }
        }
    }

    /// Closes the runtime if no thread is at work any more. To be called after the stop flags or
    /// the roll have changed.
    pub(crate) fn close_if_done(&self, shared: &Shared) {
        let mut roll = lock(&self.roll);
        if !roll.closed && roll.spares.len() == roll.members.len() && shared.may_close() {
            roll.closed = true;
            let spares = std::mem::take(&mut roll.spares);
            drop(roll);
            shared.close();
            for spare in spares {
                spare.give(Orders::Leave);
            }
        }
    }

    /// Removes a thread that ends from the roll.
    pub(crate) fn leave(&self, shared: &Shared, member: &Member) {
        let mut roll = lock(&self.roll);
        // The roll is not closed as long as a spare that has retired is a member.
        if !roll.closed {
            roll.leaving -= 1;
            // Nobody will join it, so drop its handle.
            roll.members.remove(&member.id.0);
            drop(roll);
            // It may have been the last member that was not a spare.
            self.close_if_done(shared);
        }
    }

    /// The handles of the threads that have not ended, once all have been told to leave.
    pub(crate) fn handles(&self) -> Vec<thread::JoinHandle<()>> {
        let mut roll = lock(&self.roll);
        roll.members.values_mut().filter_map(|(_, handle)| handle.take()).collect()
    }

    /// Does `work` if the thread has not left, which it does not do meanwhile.
    pub(crate) fn while_member(&self, member: &Member, work: impl FnOnce()) {
        let roll = lock(&self.roll);
        if !roll.closed && roll.members.contains_key(&member.id.0) {
            work();
        }
    }

    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        lock(&self.roll).members.values().map(|(member, _)| Arc::clone(member)).collect()
    }

    /// The CPUs that wait for a thread.
    pub(crate) fn unfilled(&self) -> CpuSet {
        lock(&self.roll).unfilled
    }

    pub(crate) fn is_short(&self) -> bool {
        !self.unfilled().is_empty()
    }

    /// Whether threads were refused, and there is something to do for a CPU that waits for one.
    pub(crate) fn needs_thread(&self, dispatch: &Dispatch) -> bool {
        self.refused.load(Ordering::Relaxed) > 0
            && self
                .unfilled()
                .iter()
                .any(|cpu| dispatch.slot(cpu).is_vacant() && dispatch.is_ripe(cpu, Idle::Any))
    }

    /// Asks a thread that waits for an item to serve a CPU meanwhile: the youngest that has stack
    /// left for any item or, if there is none and `others` allows it, the youngest of the others.
    /// Returns whether it asked one.
    pub(crate) fn ask_for_help(&self, cpu: CpuId, others: bool) -> bool {
        let roll = lock(&self.roll);
        let threads = roll.members.values().rev();
        let threads = threads.filter_map(|(member, thread)| Some((member, thread.as_ref()?)));
        let ask = |narrow| threads.clone().find(|(member, _)| member.asked.ask(cpu, narrow));
        let asked = ask(false).or_else(|| others.then(|| ask(true)).flatten());
        asked.map(|(_, thread)| thread.thread().unpark()).is_some()
    }

    /// For how long no thread could be created, in nanoseconds; `None` if the last attempt
    /// succeeded, or nobody has tried lately.
    pub(crate) fn refused_for_ns(&self, now_ns: u64) -> Option<u64> {
        let refusals = lock(&self.roll).refusals?;
        let lately = now_ns.saturating_sub(refusals.last_ns) < REFUSALS_NS;
        lately.then(|| now_ns.saturating_sub(refusals.since_ns))
    }

    /// Gives a CPU, if it waits for a thread, to one that helps out. Returns whether it did.
    pub(crate) fn serve(&self, shared: &Shared, member: &Member, cpu: CpuId) -> bool {
        let mut roll = lock(&self.roll);
        let waits = roll.unfilled.contains(cpu);
        roll.unfilled.remove(cpu);
        waits && shared.dispatch.slot(cpu).assign(member.id)
    }

    /// How many threads there are, and how many of them are spare.
    pub(crate) fn count(&self) -> (usize, usize) {
        let roll = lock(&self.roll);
        // Others are being created, which may be refused.
        let there = roll.members.values().filter(|(_, thread)| thread.is_some());
        (there.count(), roll.spares.len())
    }
}

impl Member {
    fn new(id: ThreadId) -> Self {
        Self {
            id,
            writer: Writer::new(id),
            hand: Hand::new(),
            running_since_ns: AtomicU64::new(0),
            workqueue: AtomicU32::new(0),
            item: AtomicUsize::new(0),
            unsettled: AtomicU32::new(0),
            away: Away::default(),
            had_ns: AtomicU64::new(0),
            lends: AtomicBool::new(false),
            kernel_tid: AtomicU32::new(0),
            pinned_to: AtomicU32::new(NOWHERE),
            asked: Asked::default(),
            bed: Sleeper::new(),
            orders: Mutex::new(None),
        }
    }

    /// Notes the calling thread's number, for the monitor. To be called by this member's thread.
    pub(crate) fn note_kernel_tid(&self) {
        #[cfg(all(target_os = "linux", not(shuttle)))]
        {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            self.kernel_tid.store(tid.unsigned_abs(), Ordering::Relaxed);
        }
    }

    fn give(&self, orders: Orders) {
        *lock(&self.orders) = Some(orders);
        self.bed.wake();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::Runtime;
    use crate::sync::{AtomicBool, Ordering};

    #[test]
    fn a_thread_that_is_refused_was_never_counted() {
        let refuse = Arc::new(AtomicBool::new(false));
        let runtime = Runtime::builder().refuse_threads(Arc::clone(&refuse)).build().unwrap();
        refuse.store(true, Ordering::Relaxed);
        let (shared, there) = (runtime.shared(), runtime.thread_count());
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
                    assert!(shared.crew.create(shared, None).is_err());
                }
            });
            while !asking.is_finished() {
                assert!(runtime.thread_count() <= there);
            }
        });
        refuse.store(false, Ordering::Relaxed);
    }
}
