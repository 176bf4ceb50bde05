//! What a thread of a runtime knows of itself, and which CPU any thread issues from.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, RawWakerVTable, Waker};

use homing_sched::IssuerClock;
use homing_topology::CpuId;

use crate::item::quietly;
use crate::measure::books::WorkqueueBooks;
use crate::measure::clock::{now_ns, thread_cpu_ns};
use crate::shared::Shared;
use crate::sync::thread_local;
use crate::threads::crew::Member;
use crate::workqueues::state::WorkqueueState;

/// For CPUs beyond those that a [`CpuId`] can name: the home of their items is CPU 0's.
const FALLBACK: CpuId = CpuId::new(0).expect("0 is a CPU number");

/// A thread's place in its runtime.
#[derive(Clone)]
pub(crate) struct Local {
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Arc<Member>,
}

/// Fits in a register pair: read for each item that is queued.
#[derive(Clone, Copy)]
struct Place {
    /// The runtime's number; 0: the thread belongs to no runtime.
    runtime: u32,
    cpu: CpuId,
}

/// The runtime for which a thread that is not a worker has issued, and the CPU on which it did
/// since its last wait.
struct Issued {
    runtime: u32,
    shared: Weak<Shared>,
    cpu: Option<CpuId>,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place { runtime: 0, cpu: FALLBACK }) };
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
    static NESTED: RefCell<Vec<Nested>> = const { RefCell::new(Vec::new()) };
    static ISSUED: RefCell<Option<Issued>> = const { RefCell::new(None) };
    /// The runtime for which this thread was last asked for its CPU time, and the monitor's look
    /// after which it was.
    static ASKED_FOR: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    static CLOCK: Cell<IssuerClock> = Cell::default();
    static BUDGET: Cell<Option<u32>> = const { Cell::new(None) };
    static KNOWN: RefCell<Option<Rc<Known>>> = const { RefCell::new(None) };
    /// The waker of the runtime's future that is being polled.
    static POLLED: Cell<Option<(*const (), &'static RawWakerVTable)>> = const { Cell::new(None) };
    static STACK_BEGINS: Cell<usize> = const { Cell::new(0) };
    static STACK_SIZE: Cell<usize> = const { Cell::new(1) };
}

/// A workqueue of the thread's runtime, and those of its counters that the thread writes.
pub(crate) struct Known {
    pub(crate) workqueue: Arc<WorkqueueState>,
    pub(crate) books: Arc<WorkqueueBooks>,
}

/// The workqueue of this number, if it belongs to this thread's runtime. The last one is kept at
/// hand, because a thread that waits for items mostly waits for several of one workqueue.
pub(crate) fn known(number: u32) -> Option<Rc<Known>> {
    let at_hand = KNOWN.try_with(|known| known.borrow().clone()).ok()?;
    at_hand.filter(|known| known.workqueue.number == number).or_else(|| {
        let Local { shared, member } = current()?;
        let workqueue = shared.workqueues.find(number)?;
        let books = shared.workqueues.books_of(&workqueue, &member.writer);
        let found = Rc::new(Known { workqueue, books });
        drop(KNOWN.try_with(|known| known.replace(Some(Rc::clone(&found)))));
        Some(found)
    })
}

/// What runs on this thread within the item that its worker took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nested {
    /// An item of this workqueue, in this place, which another item runs because it waits for it.
    Item(u32, usize),
    /// The work item at this address.
    Work(usize),
    /// Nothing yet, but this thread is to run the work item at this address next: its instance of
    /// this generation.
    Next(usize, u32),
    /// An item of this workqueue, in this place, whose thread helps out: the items on top of it are
    /// not those that it waits for.
    Beneath(u32, usize),
}

impl Nested {
    /// The workqueue and the place of the item, if this is one.
    fn item(self) -> Option<(u32, usize)> {
        match self {
            Self::Item(workqueue, place) | Self::Beneath(workqueue, place) => {
                Some((workqueue, place))
            }
            Self::Work(_) | Self::Next(..) => None,
        }
    }
}

/// The workqueue of the item that this thread runs, not of those beneath it: whether an item is run
/// on top of others is chance.
pub(crate) fn innermost() -> Option<u32> {
    let nested = NESTED.try_with(|nested| {
        let nested = nested.borrow();
        nested.iter().rfind(|nested| nested.item().is_some()).copied()
    });
    match nested.ok().flatten() {
        Some(Nested::Item(workqueue, _)) => Some(workqueue),
        // The item on top of one that is `Beneath` was taken from a queue.
        _ => taken().filter(|number| *number != 0),
    }
}

/// Whether there is an item of the workqueue on this thread's stack. Such an item cannot end before
/// what runs now.
pub(crate) fn runs_item_of(workqueue: u32) -> bool {
    taken() == Some(workqueue)
        || runs_nested(|nested| nested.item().is_some_and(|it| it.0 == workqueue))
}

/// Whether the item in this place, which is not 0, is on this thread's stack.
pub(crate) fn runs_item_in(place: usize) -> bool {
    let taken = LOCAL.try_with(|local| {
        let local = local.borrow();
        // The number of the workqueue says whether the thread runs an item at all.
        let running = local.as_ref().filter(|it| it.member.workqueue.load(Ordering::Relaxed) != 0);
        running.map(|it| it.member.item.load(Ordering::Relaxed))
    });
    taken.ok().flatten() == Some(place)
        || runs_nested(|nested| nested.item().is_some_and(|it| it.1 == place))
}

/// What to add to a complaint that an item would wait for itself: that item may know nothing of the
/// one beneath it.
pub(crate) fn beneath_note() -> &'static str {
    if runs_nested(|nested| matches!(nested, Nested::Beneath(..))) {
        "; it may be that of an item beneath this one, which waits and whose thread helps out, as no thread can be \
         created"
    } else {
        ""
    }
}

/// Whether this thread runs something for which `what` returns `true` within the item that it has
/// taken.
pub(crate) fn runs_nested(what: impl Fn(Nested) -> bool) -> bool {
    NESTED.try_with(|nested| nested.borrow().iter().any(|it| what(*it))).unwrap_or(false)
}

/// About how many eighths of its stack this thread of a runtime uses. Items may run on top of each
/// other, and a stack has an end.
pub(crate) fn stack_eighths() -> usize {
    let stack = STACK_BEGINS.try_with(Cell::get).ok().zip(STACK_SIZE.try_with(Cell::get).ok());
    stack.map_or(0, |(begins, size)| begins.abs_diff(stack_place()).saturating_mul(8) / size)
}

fn stack_place() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// The workqueue of the item that this thread, which is a worker, has taken.
fn taken() -> Option<u32> {
    let taken = LOCAL.try_with(|local| {
        let local = local.borrow();
        local.as_ref().map(|local| local.member.workqueue.load(Ordering::Relaxed))
    });
    taken.ok().flatten()
}

/// Polls a future of the runtime.
pub(crate) fn polling<T>(context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
    struct Before(Option<(*const (), &'static RawWakerVTable)>);
    impl Drop for Before {
        fn drop(&mut self) {
            POLLED.with(|polled| polled.set(self.0));
        }
    }
    let own = Some((context.waker().data(), context.waker().vtable()));
    let _before = Before(POLLED.with(|polled| polled.replace(own)));
    poll(context)
}

/// Whether this is the waker of the runtime's future that is being polled. Such a waker does not
/// panic.
pub(crate) fn is_own_waker(waker: &Waker) -> bool {
    let polled = POLLED.try_with(Cell::get).ok().flatten();
    polled
        .is_some_and(|(data, vtable)| data == waker.data() && std::ptr::eq(vtable, waker.vtable()))
}

/// Calls `run`, and notes that `what` runs meanwhile.
pub(crate) fn nest<T>(what: Nested, run: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            NESTED.with(|nested| nested.borrow_mut().pop());
        }
    }
    NESTED.with(|nested| nested.borrow_mut().push(what));
    let _leave = Leave;
    run()
}

/// This thread is `member` from now on.
pub(crate) fn enter(shared: &Arc<Shared>, member: &Arc<Member>) {
    let local = Local { shared: Arc::clone(shared), member: Arc::clone(member) };
    STACK_BEGINS.with(|place| place.set(stack_place()));
    STACK_SIZE.with(|place| place.set(shared.settings.stack_size));
    LOCAL.with(|place| *place.borrow_mut() = Some(local));
}

/// This thread ends.
pub(crate) fn leave() {
    PLACE.with(|place| place.set(Place { runtime: 0, cpu: FALLBACK }));
    drop(KNOWN.with(RefCell::take));
    LOCAL.with(|place| *place.borrow_mut() = None);
}

/// This thread works for `cpu` from now on.
pub(crate) fn move_to(shared: &Shared, cpu: CpuId) {
    PLACE.with(|place| place.set(Place { runtime: shared.id, cpu }));
}

/// The runtime that this thread belongs to, if any.
pub(crate) fn current() -> Option<Local> {
    // Fails while a thread ends and its variables are gone.
    LOCAL.try_with(|local| local.borrow().clone()).ok().flatten()
}

/// Whether this thread is the runtime's own, whatever it does.
pub(crate) fn belongs_to(shared: &Shared) -> bool {
    let own = |local: &Local| std::ptr::eq(&raw const *local.shared, shared);
    LOCAL.try_with(|local| local.borrow().as_ref().is_some_and(own)).unwrap_or(false)
}

/// Whether this thread works for the runtime.
pub(crate) fn is_worker_of(shared: &Shared) -> bool {
    PLACE.try_with(Cell::get).is_ok_and(|place| place.runtime == shared.id)
}

/// The CPU that this thread of a runtime works for.
pub(crate) fn current_cpu() -> CpuId {
    PLACE.with(Cell::get).cpu
}

/// The CPU that this thread issues work from: a worker's own, for other threads the one that they
/// run on at present. That CPU is noted, because a worker woken there would compete with its
/// issuer.
pub(crate) fn issuing_cpu(shared: &Shared) -> CpuId {
    let place = PLACE.try_with(Cell::get).unwrap_or(Place { runtime: 0, cpu: FALLBACK });
    if place.runtime == shared.id {
        return place.cpu;
    }
    let cpu = running_on();
    occupy(shared, cpu);
    note_issue(shared, cpu);
    cpu
}

/// Notes that this thread, which is not a worker of the runtime, issues on `cpu` or is about to.
/// Once after each look of the monitor, the thread is asked how much of its time it uses.
fn occupy(shared: &Shared, cpu: CpuId) {
    shared.dispatch.occupy(cpu);
    let now = (shared.id, shared.dispatch.looks());
    if ASKED_FOR.try_with(|last| last.replace(now)).is_ok_and(|last| last != now) {
        ask(shared);
    }
}

#[cold]
fn ask(shared: &Shared) {
    let asked = CLOCK.try_with(|clock| {
        let mut told = clock.get();
        let time = told.ask(now_ns(), thread_cpu_ns);
        clock.set(told);
        time
    });
    if let Some((elapsed_ns, on_cpu_ns)) = asked.ok().flatten() {
        shared.dispatch.note_issuer_time(elapsed_ns, on_cpu_ns);
    }
}

/// Remembers that this thread, which is not a worker of the runtime, has issued for it on `cpu`.
fn note_issue(shared: &Shared, cpu: CpuId) {
    let _ = ISSUED.try_with(|issued| {
        let mut issued = issued.borrow_mut();
        match &mut *issued {
            Some(known) if known.runtime == shared.id => known.cpu = Some(cpu),
            _ => {
                let shared_again = Weak::clone(&shared.me);
                let known = Issued { runtime: shared.id, shared: shared_again, cpu: Some(cpu) };
                *issued = Some(known);
            }
        }
    });
}

/// To be called before this thread sleeps until something has ended. If it is not a worker, what it
/// has issued may have its CPU. Returns whether it had issued anything since the last time.
pub(crate) fn issuer_waits() -> bool {
    let Some((shared, cpu)) = issued(|known| known.cpu.take()) else { return false };
    shared.dispatch.issuer_waits(&*shared, cpu);
    quietly(|| drop(shared));
    true
}

/// Notes that what this thread waited for was over `wait_ns` after the wait had begun.
pub(crate) fn issuer_waited(wait_ns: u64) {
    if let Some((shared, ())) = issued(|_| Some(())) {
        shared.dispatch.note_issuer_wait(wait_ns);
        quietly(|| drop(shared));
    }
}

/// To be called when this thread has waited and uses its CPU again.
pub(crate) fn issuer_goes_on() {
    if let Some((shared, cpu)) = issued(|_| Some(running_on())) {
        occupy(&shared, cpu);
        quietly(|| drop(shared));
    }
}

/// The runtime for which this thread has issued, and what `of` says of it. The returned reference
/// may be the last one. The caller drops it outside the borrow, because what the runtime's user has
/// put into it may issue again.
fn issued<T>(of: impl FnOnce(&mut Issued) -> Option<T>) -> Option<(Arc<Shared>, T)> {
    let found = ISSUED.try_with(|issued| {
        let mut issued = issued.borrow_mut();
        let known = issued.as_mut()?;
        let of = of(known)?;
        Some((known.shared.upgrade()?, of))
    });
    found.ok().flatten()
}

#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) fn running_on() -> CpuId {
    // By the C library, which mostly knows without a call, on all architectures.
    nix::sched::sched_getcpu().ok().and_then(CpuId::new).unwrap_or(FALLBACK)
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) fn running_on() -> CpuId {
    FALLBACK
}

/// How many finished handles a future may await at one go, or how often it may call
/// `consume_budget`, before it gives way to other items.
const BUDGET_MAX: u32 = 128;

/// Calls `go` with a full budget, or with none to keep to. Only futures of a runtime have one:
/// other futures are polled by code that knows nothing of budgets and would never fill one again.
pub(crate) fn with_budget<T>(limited: bool, go: impl FnOnce() -> T) -> T {
    struct Restore(Option<u32>);
    impl Drop for Restore {
        fn drop(&mut self) {
            BUDGET.with(|budget| budget.set(self.0));
        }
    }
    let _restore = Restore(BUDGET.with(|budget| budget.replace(limited.then_some(BUDGET_MAX))));
    go()
}

/// Takes one from the budget. Returns `false` if there is nothing left, but only once: then the
/// budget is full again, because a caller that asks on without ending its go is an executor within
/// the future.
pub(crate) fn spend_budget() -> bool {
    // A thread that ends has no budget to keep.
    let Some(left) = BUDGET.try_with(Cell::get).ok().flatten() else { return true };
    BUDGET.with(|budget| budget.set(Some(left.checked_sub(1).unwrap_or(BUDGET_MAX))));
    left > 0
}
