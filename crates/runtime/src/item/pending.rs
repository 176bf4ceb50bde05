//! The state of a work item: one word, changed by read-modify-writes only. The crate's `README.md`
//! has the protocol as a table.
//!
//! The thread that sets `PENDING` owns the right to put the item in a queue. Each time it is set is
//! an *instance* with a number of its own, the generation. An instance that was cancelled stays in
//! its queue as an empty husk: the worker that comes to it finds that its generation is no longer
//! pending.

use crate::sync::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::SeqCst};

/// An instance is queued, or on a timer, or waits behind the present run.
const PENDING: u64 = 1;
/// The pending instance waits for a timer.
const TIMER: u64 = 1 << 1;
/// Some worker runs the item.
const RUNNING: u64 = 1 << 2;
/// An instance came up while the item was running, and is kept for the thread that runs it.
const DEFERRED: u64 = 1 << 3;
/// The item's own link is in some queue, as an instance or a husk.
const LINKED: u64 = 1 << 4;
/// Somebody waits for an instance to end.
const WAITERS: u64 = 1 << 5;
/// The low bits of the generation that runs.
const RUN_SHIFT: u32 = 8;
const RUN_MASK: u64 = 0xff;
/// How often it is disabled.
const DEPTH_SHIFT: u32 = 16;
const DEPTH_ONE: u64 = 1 << DEPTH_SHIFT;
const DEPTH_MAX: u64 = 0xffff;
const GENERATION_SHIFT: u32 = 32;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pending(AtomicU64);

/// An instance that its issuer is to put in a queue, or on a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) generation: u32,
    /// The item's own link is free, and now this instance's.
    pub(crate) linked: bool,
}

/// What [`Pending::requeue`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requeued {
    pub(crate) instance: Instance,
    pub(crate) before: Option<Cancelled>,
}

/// A pending instance that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cancelled {
    pub(crate) generation: u32,
    /// It was on a timer.
    pub(crate) on_timer: bool,
    /// Somebody waits, and must be woken.
    pub(crate) waiters: bool,
}

/// What to do with an instance whose turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// It is the caller's to run.
    Run,
    /// The item is running: keep the instance for the thread that runs it ([`Pending::defer`]).
    Running,
    /// It was cancelled.
    Husk,
}

/// What the end of a run leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// An instance was kept for the caller.
    pub(crate) deferred: bool,
    pub(crate) waiters: bool,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The pending instance of this generation, and its run.
    Instance(u32),
    /// The run whose generation has these low bits.
    Run(u64),
}

const fn generation(state: u64) -> u32 {
    (state >> GENERATION_SHIFT) as u32
}

const fn depth(state: u64) -> u64 {
    state >> DEPTH_SHIFT & DEPTH_MAX
}

const fn run(state: u64) -> u64 {
    state >> RUN_SHIFT & RUN_MASK
}

const fn next_generation(state: u64) -> u64 {
    state.wrapping_add(1 << GENERATION_SHIFT)
}

fn is_over(state: u64, awaited: Awaited) -> bool {
    let runs = |low| state & RUNNING != 0 && run(state) == low;
    match awaited {
        Awaited::Instance(of) => {
            let pending = state & PENDING != 0 && generation(state) == of;
            !pending && !runs(u64::from(of) & RUN_MASK)
        }
        Awaited::Run(low) => !runs(low),
    }
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Changes the state as `change` says. Returns the state before, as `Err` if `change` had
    /// nothing to change.
    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut seen = self.0.load(Acquire);
        loop {
            let Some(next) = change(seen) else { return Err(seen) };
            // SeqCst: the kernel's full barriers, before and after.
            match self.0.compare_exchange_weak(seen, next, SeqCst, Acquire) {
                Ok(before) => return Ok(before),
                Err(now) => seen = now,
            }
        }
    }

    /// Makes an instance; `None` if one is pending, or the item is disabled. Even then, what the
    /// caller did before is visible to the run that follows.
    pub(crate) fn queue(&self, on_timer: bool) -> Option<Instance> {
        let change = |state: u64| {
            let free = state & PENDING == 0 && depth(state) == 0;
            free.then(|| next_generation(state) | PENDING | Self::placed(on_timer))
        };
        let before = self.update(change).or_else(|_| {
            // A write, although nothing changes: the worker that clears `PENDING` reads from it, or
            // from a change after it, and all changes are such that this is enough. (The kernel,
            // which only reads here, has a barrier there.) The second attempt decides, because the
            // item may have begun meanwhile.
            self.0.fetch_or(0, AcqRel);
            self.update(change)
        });
        before.ok().map(|before| Self::instance(before, on_timer))
    }

    const fn placed(on_timer: bool) -> u64 {
        if on_timer { TIMER } else { LINKED }
    }

    const fn instance(before: u64, on_timer: bool) -> Instance {
        let generation = generation(next_generation(before));
        Instance { generation, linked: !on_timer && before & LINKED == 0 }
    }

    /// Makes an instance in place of the pending one, if there is one. `None` if the item is
    /// disabled.
    pub(crate) fn requeue(&self, on_timer: bool) -> Option<Requeued> {
        let before = self.update(|state| {
            // Threads that wait for the instance that goes are woken; those that wait for a run
            // wait on.
            let clear = if state & PENDING == 0 { 0 } else { TIMER | WAITERS };
            let keep = state & !clear;
            let placed = PENDING | Self::placed(on_timer);
            (depth(state) == 0).then(|| next_generation(keep) | placed)
        });
        let before = before.ok()?;
        let instance = Self::instance(before, on_timer);
        Some(Requeued { instance, before: Self::cancelled(before) })
    }

    fn cancelled(before: u64) -> Option<Cancelled> {
        (before & PENDING != 0).then_some(Cancelled {
            generation: generation(before),
            on_timer: before & TIMER != 0,
            waiters: before & WAITERS != 0,
        })
    }

    /// The timer of an instance has run out: it goes to a queue now. `None` if it was cancelled.
    pub(crate) fn fire(&self, of: u32) -> Option<Instance> {
        let before = self.update(|state| {
            let due = state & PENDING != 0 && state & TIMER != 0 && generation(state) == of;
            due.then_some(state & !TIMER | LINKED)
        });
        let linked = before.ok()? & LINKED == 0;
        Some(Instance { generation: of, linked })
    }

    /// [`Pending::fire`] for whatever instance is on a timer.
    pub(crate) fn fire_any(&self) -> Option<Instance> {
        let state = self.0.load(Acquire);
        if state & TIMER == 0 { None } else { self.fire(generation(state)) }
    }

    /// A worker has come to an instance. `linked`: by the item's own link, which is free again if
    /// the instance is not kept.
    pub(crate) fn start(&self, of: u32, linked: bool) -> Start {
        let unlink = if linked { !LINKED } else { !0 };
        let before = self.update(|state| {
            if !Self::is_queued(state, of) {
                return Some(state & unlink);
            }
            let run = (u64::from(of) & RUN_MASK) << RUN_SHIFT;
            let begun = state & !(PENDING | RUN_MASK << RUN_SHIFT) & unlink | RUNNING | run;
            (state & RUNNING == 0).then_some(begun)
        });
        match before {
            Ok(before) if Self::is_queued(before, of) => Start::Run,
            Ok(_) => Start::Husk,
            Err(_) => Start::Running,
        }
    }

    fn is_queued(state: u64, of: u32) -> bool {
        state & (PENDING | TIMER) == PENDING && generation(state) == of
    }

    /// The caller has left an instance for the thread that runs the item. `false` if no thread
    /// does, or the instance was cancelled: then the caller must begin anew.
    pub(crate) fn defer(&self, of: u32) -> bool {
        let kept = self.update(|state| {
            let kept = state & RUNNING != 0 && Self::is_queued(state, of);
            kept.then_some(state | DEFERRED)
        });
        kept.is_ok()
    }

    /// The item's own link is out of all queues: an instance was refused, or a husk dropped.
    pub(crate) fn unlink(&self) {
        self.0.fetch_and(!LINKED, SeqCst);
    }

    /// The caller has run the item.
    pub(crate) fn end(&self) -> Ended {
        let before = self.0.fetch_and(!(RUNNING | DEFERRED | WAITERS), SeqCst);
        Ended { deferred: before & DEFERRED != 0, waiters: before & WAITERS != 0 }
    }

    /// Takes the pending instance back, if there is one.
    pub(crate) fn cancel(&self) -> Option<Cancelled> {
        self.cancel_if(|_| true)
    }

    /// Takes the instance of this generation back, if it is pending.
    pub(crate) fn cancel_instance(&self, of: u32) -> Option<Cancelled> {
        self.cancel_if(|state| generation(state) == of)
    }

    fn cancel_if(&self, which: impl Fn(u64) -> bool) -> Option<Cancelled> {
        let before = self.update(|state| {
            let there = state & PENDING != 0 && which(state);
            there.then_some(state & !(PENDING | TIMER | WAITERS))
        });
        before.ok().and_then(Self::cancelled)
    }

    /// Refuses instances until [`Pending::enable`], and takes the pending one back. `Err` at the
    /// greatest depth.
    pub(crate) fn disable(&self) -> Result<Option<Cancelled>, ()> {
        let before = self.update(|state| {
            let pending = state & PENDING != 0;
            let clear = if pending { PENDING | TIMER | WAITERS } else { 0 };
            (depth(state) < DEPTH_MAX).then(|| (state & !clear) + DEPTH_ONE)
        });
        before.map(Self::cancelled).map_err(drop)
    }

    /// Returns whether it accepts instances again; `Err` if it was not disabled.
    pub(crate) fn enable(&self) -> Result<bool, ()> {
        let before = self.update(|state| (depth(state) > 0).then(|| state - DEPTH_ONE));
        before.map(|before| depth(before) == 1).map_err(drop)
    }

    /// What a flush has to wait for: a run that is on, and the pending instance.
    pub(crate) fn queued(&self) -> [Option<Awaited>; 2] {
        let state = self.0.load(SeqCst);
        let running = (state & RUNNING != 0).then(|| Awaited::Run(run(state)));
        [running, (state & PENDING != 0).then(|| Awaited::Instance(generation(state)))]
    }

    /// Notes that somebody waits for this. Returns `false` if it is over already.
    pub(crate) fn wait(&self, awaited: Awaited) -> bool {
        self.update(|state| (!is_over(state, awaited)).then_some(state | WAITERS)).is_ok()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.0.load(Acquire) & PENDING != 0
    }

    pub(crate) fn is_on_timer(&self) -> bool {
        self.0.load(Acquire) & TIMER != 0
    }

    /// The run that is on, if one is: for a thread that waits until it is over.
    pub(crate) fn running(&self) -> Option<Awaited> {
        let state = self.0.load(SeqCst);
        (state & RUNNING != 0).then(|| Awaited::Run(run(state)))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Acquire) & RUNNING != 0
    }

    pub(crate) fn is_disabled(&self) -> bool {
        depth(self.0.load(Acquire)) > 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn queued(pending: &Pending) -> Instance {
        pending.queue(false).unwrap()
    }

    #[test]
    fn one_instance_at_a_time_and_one_more_while_it_runs() {
        let pending = Pending::new();
        let first = queued(&pending);
        assert_eq!(first, Instance { generation: 1, linked: true });
        assert_eq!(pending.queue(false), None);
        assert_eq!(pending.start(1, true), Start::Run);
        let second = queued(&pending);
        assert!(second.linked, "the link was free again");
        assert_eq!(pending.start(2, true), Start::Running);
        assert!(pending.defer(2));
        assert_eq!(pending.end(), Ended { deferred: true, waiters: false });
        assert_eq!(pending.start(2, true), Start::Run);
        assert_eq!(pending.end(), Ended { deferred: false, waiters: false });
        assert!(!pending.is_pending() && !pending.is_running());
    }

    #[test]
    fn a_husk_is_recognized_and_the_next_instance_needs_another_link() {
        let pending = Pending::new();
        queued(&pending);
        let cancelled = Cancelled { generation: 1, on_timer: false, waiters: false };
        assert_eq!(pending.cancel(), Some(cancelled));
        assert_eq!(pending.cancel(), None);
        assert_eq!(queued(&pending), Instance { generation: 2, linked: false });
        assert_eq!(pending.start(1, true), Start::Husk);
        assert_eq!(pending.start(2, false), Start::Run);
        assert!(queued(&pending).linked);
        assert!(!pending.defer(2), "that one runs");
        assert!(pending.end().waiters.eq(&false) && pending.is_pending());
    }

    #[test]
    fn timers_fire_once_and_can_be_moved() {
        let pending = Pending::new();
        let first = pending.queue(true).unwrap();
        assert!(!first.linked && pending.queue(false).is_none());
        assert_eq!(pending.start(1, true), Start::Husk, "it is not queued yet");
        let moved = pending.requeue(true).unwrap();
        assert!(moved.before.is_some_and(|before| before.on_timer && before.generation == 1));
        assert_eq!(pending.fire(1), None);
        assert_eq!(pending.fire(2), Some(Instance { generation: 2, linked: true }));
        assert_eq!(pending.fire(2), None);
        let now = pending.requeue(false).unwrap();
        assert!(now.before.is_some_and(|before| !before.on_timer));
        assert_eq!(now.instance, Instance { generation: 3, linked: false });
    }

    #[test]
    fn disabling_nests() {
        let pending = Pending::new();
        queued(&pending);
        assert!(pending.disable().unwrap().is_some());
        assert!(pending.disable().unwrap().is_none());
        assert!(pending.queue(false).is_none() && pending.requeue(false).is_none());
        assert_eq!(
            [pending.enable(), pending.enable(), pending.enable()],
            [Ok(false), Ok(true), Err(())]
        );
        assert!(pending.queue(false).is_some());
    }

    #[test]
    fn waiters_wait_for_what_there_was() {
        let pending = Pending::new();
        assert_eq!(pending.queued(), [None, None]);
        queued(&pending);
        let [None, Some(first)] = pending.queued() else { panic!("it is pending") };
        assert!(pending.wait(first));
        assert_eq!(pending.start(1, true), Start::Run);
        queued(&pending);
        let [Some(run), Some(second)] = pending.queued() else { panic!("both are there") };
        assert!(pending.wait(run) && pending.end().waiters);
        assert!(!pending.wait(first) && pending.wait(second));
        assert!(pending.cancel().unwrap().waiters);
        assert!(!pending.wait(second));
        assert_eq!(pending.running(), None);
    }
}
