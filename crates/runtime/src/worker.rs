//! A worker: takes an item, runs it, and sleeps when there is none. It goes step by step, so that
//! tests can drive it without a thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use homing_sched::Reach;
use homing_topology::CpuId;

use crate::queues::{Announced, Queues};
use crate::task::Item;
use crate::workqueue::Accounts;

/// An item in a queue, with the books it is kept in.
pub(crate) struct Queued {
    pub(crate) item: Arc<dyn Item>,
    pub(crate) accounts: Arc<Accounts>,
}

/// What the workers of a runtime share.
pub(crate) struct Shared {
    pub(crate) queues: Queues<Queued>,
    /// Workers end when there is nothing left to do.
    pub(crate) stopping: AtomicBool,
    /// Workers end after the item they run.
    pub(crate) stopping_now: AtomicBool,
    /// Workers that have not ended yet. The last one closes the queues.
    pub(crate) alive: AtomicUsize,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ran an item.
    Ran(Reach),
    /// Found nothing, then something came: step again.
    LookAgain,
    /// Nothing to do: sleep until woken, then step again.
    Sleep,
    /// The runtime is shut down.
    Stop,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    cpu: CpuId,
    turn: usize,
}

thread_local! {
    static CURRENT: Cell<Option<CpuId>> = const { Cell::new(None) };
}

/// The CPU whose worker this thread is; `None` on other threads.
pub(crate) fn current_cpu() -> Option<CpuId> {
    CURRENT.with(Cell::get)
}

/// The CPU this thread issues work from: a worker's own, else where the thread runs at present.
pub(crate) fn issuing_cpu() -> CpuId {
    current_cpu().or_else(|| CpuId::new(rustix::thread::sched_getcpu())).unwrap_or(FALLBACK)
}

/// For CPUs beyond what a [`CpuId`] can name: their items are at home with CPU 0's.
const FALLBACK: CpuId = CpuId::new(0).expect("0 is a CPU number");

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, cpu: CpuId) -> Self {
        Self { shared, cpu, turn: 0 }
    }

    /// Steps until the runtime stops.
    pub(crate) fn run(mut self) {
        CURRENT.with(|current| current.set(Some(self.cpu)));
        loop {
            match self.step() {
                Step::Ran(_) | Step::LookAgain => {}
                Step::Sleep => self.shared.queues.sleep(self.cpu),
                Step::Stop => break,
            }
        }
        if self.shared.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            // What came after the others had looked for the last time, or was not to be run.
            self.shared.queues.close().into_iter().for_each(|left| left.item.cancel());
        }
    }

    pub(crate) fn step(&mut self) -> Step {
        if self.shared.stopping_now.load(Ordering::Acquire) {
            return Step::Stop;
        }
        self.turn = self.turn.wrapping_add(1);
        if let Some((queued, found, woken)) = self.shared.queues.take(self.cpu, self.turn) {
            queued.accounts.count_taken(found.reach, woken);
            queued.item.run();
            return Step::Ran(found.reach);
        }
        let stopping = || self.shared.stopping.load(Ordering::Acquire);
        match self.shared.queues.announce(self.cpu, stopping) {
            Announced::Sleep => Step::Sleep,
            // After the flag no look is needed but the one that `announce` has just taken.
            Announced::LookAgain if stopping() && self.is_out_of_work() => Step::Stop,
            Announced::LookAgain => Step::LookAgain,
        }
    }

    fn is_out_of_work(&self) -> bool {
        let queues = &self.shared.queues;
        homing_sched::next_queue(queues.layout(), queues, self.cpu, self.turn).is_none()
    }
}
