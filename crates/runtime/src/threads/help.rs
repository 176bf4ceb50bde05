//! What a thread that waits for an item of its runtime does when no thread can be had to run that
//! item.
//!
//! While the thread waits, its CPU is free, and a spare thread serves it. If there is no spare
//! thread, and none could be created for a while, the monitor asks one of the waiting threads. That
//! thread serves the CPU on top of the item that waits, until what it waits for is there or nothing
//! is left to do. Otherwise items that wait for others could hold all threads there are, for ever.
//!
//! A thread helps only if nobody else can, because an item that is run on top of another one must
//! not wait for that one, or for what it holds: neither would ever go on, even when threads can be
//! had again. An item that does so by [`JoinHandle::join`](crate::JoinHandle::join) or a flush
//! panics; other ways of waiting cannot be seen. So a single refusal is not enough. What somebody
//! waits for, and steps of futures, which seldom wait, are run first. If most of a stack is used
//! up, only these are run on it.
//!
//! One word for each thread says what state it is in:
//!
//! ```text
//! 0 --the thread begins to wait--> WAITS, NARROW --the monitor asks--> CPU --the thread takes it--> WAITS, NARROW
//!                                  WAITS, NARROW, CPU --the waiting is over--> 0
//! ```
//!
//! `NARROW`: the thread runs only what somebody waits for. The monitor unparks the thread after it
//! has changed the word. The waiting thread looks at the word after each poll, before it parks, so
//! no request is slept through. A request that comes as the waiting ends is dropped: the monitor
//! asks again as long as there is need.

use std::sync::Arc;

use homing_topology::CpuId;

use crate::shared::Shared;
use crate::sync::{AtomicU32, Ordering};
use crate::threads::crew::Member;
use crate::threads::local;
use crate::threads::worker::{self, Serves};

/// A thread that has used so many eighths of its stack runs only what somebody waits for on top of
/// it. A thread runs the item that it waits for on its own stack only while less than half of that
/// is used ([`JoinHandle::join`](crate::JoinHandle::join)), so that some is left for helping out.
const STACK_EIGHTHS_NARROW: usize = 6;

/// A thread that has used so many runs nothing more.
const STACK_EIGHTHS_MAX: usize = 7;

const WAITS: u32 = 1;
const NARROW: u32 = 2;
/// The word that asks for a CPU: this and the CPU's number.
const ASKED: u32 = 3;

/// A member's word (see the module).
#[derive(Debug, Default)]
pub(crate) struct Asked(AtomicU32);

impl Asked {
    /// Asks the thread to serve a CPU, if it waits in the state that `narrow` names and was not
    /// asked yet. Returns whether it asked.
    pub(crate) fn ask(&self, cpu: CpuId, narrow: bool) -> bool {
        let (waits, asked) = (if narrow { NARROW } else { WAITS }, ASKED + cpu.index() as u32);
        self.0.compare_exchange(waits, asked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take(&self, waits: u32) -> Option<CpuId> {
        let word = self.0.swap(waits, Ordering::AcqRel);
        word.checked_sub(ASKED).and_then(|number| CpuId::new(number as usize))
    }
}

/// A thread of a runtime that waits for an item or a future.
pub(crate) struct Waits {
    shared: Arc<Shared>,
    member: Arc<Member>,
    /// The word while it waits; 0: there is too much on the stack already.
    word: u32,
}

impl Waits {
    /// `None` on a thread that belongs to no runtime.
    pub(crate) fn begin() -> Option<Self> {
        let local::Local { shared, member } = local::current()?;
        let word = match local::stack_eighths() {
            STACK_EIGHTHS_MAX.. => 0,
            STACK_EIGHTHS_NARROW.. => NARROW,
            _ => WAITS,
        };
        Some(Self { shared, member, word })
    }

    /// To be called before each sleep. Returns whether the thread served a CPU instead, until there
    /// was nothing left to run or `is_over` returned `true`.
    pub(crate) fn helped(&self, is_over: impl Fn() -> bool) -> bool {
        let (crew, asked) = (&self.shared.crew, self.member.asked.take(self.word));
        if let Some(cpu) = asked.filter(|_| self.word != 0) {
            let what = if self.word == NARROW { Serves::Wanted } else { Serves::Anything };
            worker::help(&self.shared, &self.member, cpu, what, is_over);
            return true;
        }
        if crew.refused.load(Ordering::Relaxed) > 0 && crew.is_short() {
            // The monitor may have looked for a thread that waits just before this one did.
            self.shared.call_monitor();
        }
        false
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.member.asked.0.store(0, Ordering::Release);
    }
}
